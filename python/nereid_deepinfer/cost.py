"""What prefill and decode cost, from the engine's own models, for the balancers' cost model (src/router/cost).

Prefill: FlopsEstimator.calc_flops (FP8-equivalent FLOPs of the main model) on a grid of (tokens to compute, length). Decode:
`scheduler.decode_perf_curve`, measured by the engine when it starts: (rows x verified tokens, ms); empty without CUDA graphs.
Written once as JSON beside the rank's socket when the configuration names a `report_folder`.
"""

from __future__ import annotations

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


def cost_source(engine: Any, context: int, yoco_mode: str, keep_tokens: int) -> dict[str, Any]:
    from deepinfer._C.engine import FlopsEstimator

    estimator = FlopsEstimator(engine.model_metadata, yoco_mode=yoco_mode, keep_tokens=keep_tokens)
    curve = [(int(rows), float(ms)) for rows, ms in (engine.scheduler.decode_perf_curve or [])]
    return {"unit": "FP8-equivalent FLOPs of the main model; ms", "prefill": prefill_grid(estimator, context), "decode": curve}
