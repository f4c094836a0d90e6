"""What prefill and decode cost, from the engine's own models, for the balancers' cost model (src/router/cost).

Prefill: FlopsEstimator.calc_flops (FP8-equivalent FLOPs of the main model) on a grid of (tokens to compute, length). Decode:
`scheduler.decode_perf_curve`, measured by the engine when it starts: (rows x verified tokens, ms); empty without CUDA graphs.
Written once, by rank 0, as cost.json into the configuration's `report_folder`; docs/ops/deepinfer.md has its form.
"""

from __future__ import annotations

import json
import os
import pathlib
from typing import Any

COMPUTE = (128, 512, 2048, 8192, 32768)
LENGTHS = (512, 2048, 8192, 32768, 131072)


def prefill_grid(estimator: Any, context: int) -> list[tuple[int, int, float]]:
    """(tokens to compute, length of the prompt, FLOPs): the rest of the prompt is a hit."""
    out = []
    for length in LENGTHS:
        for compute in COMPUTE:
            if compute <= length <= context:
                total = estimator.calc_flops(compute, length, is_prompt=True, full_len=length)[1]
                out.append((compute, length, float(total)))
    return out


def least_squares(rows: list[list[float]], values: list[float]) -> list[float]:
    """The x with the smallest sum of squares of (row . x) / value - 1: relative errors count, so that short prompts do."""
    n = len(rows[0])
    scaled = [[a / v for a in row] for row, v in zip(rows, values)]
    matrix = [[sum(r[i] * r[j] for r in scaled) for j in range(n)] + [sum(r[i] for r in scaled)] for i in range(n)]
    for i in range(n):
        pivot = max(range(i, n), key=lambda k: abs(matrix[k][i]))
        matrix[i], matrix[pivot] = matrix[pivot], matrix[i]
        if abs(matrix[i][i]) < 1e-300:
            raise ValueError("the points do not decide the parameters")
        for k in range(n):
            if k != i:
                factor = matrix[k][i] / matrix[i][i]
                matrix[k] = [a - factor * b for a, b in zip(matrix[k], matrix[i])]
    return [matrix[i][n] / matrix[i][i] for i in range(n)]


def prefill_parameters(grid: list[tuple[int, int, float]]) -> dict[str, float]:
    """As src/router/cost/model.h has them (PrefillCost), in FLOPs: per_token u + per_token_context u (cached + u / 2). Divided
    by the FLOPs a millisecond that a pool reaches they are its parameters; the online fit starts from them."""
    rows = [[float(u), u * (length - u + u / 2)] for u, length, _ in grid]
    per_token, per_pair = least_squares(rows, [flops for _, _, flops in grid])
    return {"per_token_flops": per_token, "per_token_context_flops": per_pair}


def decode_parameters(curve: list[tuple[int, float]], nextn: int) -> dict[str, float] | None:
    """DecodeCost: fixed_ms + per_request_ms n, of a step in which every row verifies all drafts. None without a curve."""
    if len(curve) < 2:
        return None
    fixed, per_row = least_squares([[1.0, float(rows)] for rows, _ in curve], [ms for _, ms in curve])
    return {"fixed_ms": fixed, "per_request_ms": per_row * (1 + nextn)}


def cost_source(engine: Any, context: int, yoco_mode: str, keep_tokens: int, nextn: int = 0) -> dict[str, Any]:
    from deepinfer._C.engine import FlopsEstimator

    estimator = FlopsEstimator(engine.model_metadata, yoco_mode=yoco_mode, keep_tokens=keep_tokens)
    curve = [(int(rows), float(ms)) for rows, ms in (engine.scheduler.decode_perf_curve or [])]
    grid = prefill_grid(estimator, context)
    return {"unit": "FP8-equivalent FLOPs of the main model; ms", "prefill": grid, "decode": curve,
            "model": {"prefill": prefill_parameters(grid) if len(grid) > 1 else None, "decode": decode_parameters(curve, nextn)}}


def write(folder: pathlib.Path, source: dict[str, Any]) -> None:
    part = folder / "cost.json.part"
    part.write_text(json.dumps(source))
    os.replace(part, folder / "cost.json")
