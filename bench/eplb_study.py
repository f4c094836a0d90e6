"""EPLB's published speed-ups, 1.49x in prefill and 2.54x in decode, derived: fitted on prefill alone, decode predicted (docs/studies/eplb.md).

A step whose experts' work is distributed with imbalance I (largest rank / mean, mean over layers) takes 1 - m + m I of a balanced one; m is the
share of a balanced step that waits for the most loaded rank (grouped GEMMs, dispatch and combine). Expert popularity is lognormal(sigma), static
in the window EPLB solves for; the batch it serves differs by lognormal(delta).
"""

import argparse
import json
import math
import os
import pathlib
import random
import subprocess

import eplb
import lib

LAYERS, BATCHES = 58, 6
PREFILL, DECODE = (256, 288, 32), (256, 288, 72)
PUBLISHED = {"prefill": 1.49, "decode": 2.54}
PERFECT_OVER_EPLB = 59.3 / 50.3  # LMSYS, prefill: simulated perfect balance against EPLB in service
DECODE_TOKENS = 72 * 256 * 8 / 256  # per expert and step: 256 requests a GPU, 8 of 256 experts

# DeepSeek-V3, one layer, one token, GFLOP: 8 routed experts; all the rest of the layer at 2k of context.
ROUTED = 8 * 3 * 2 * 7168 * 2048 / 1e9
REST = (3 * 2 * 7168 * 2048 + 2 * (7168 * 1536 + 1536 * 24576 + 7168 * 576 + 512 * 32768 + 16384 * 7168)
        + 2 * 128 * (192 + 128) * 1000) / 1e9
M_PREFILL = ROUTED / (ROUTED + REST)
# Decode, milliseconds a layer, 256 requests a GPU: DeepEP's low-latency dispatch and combine at EP64 (173 and 314 us for 128 tokens, its README),
# grouped GEMM at 900 TFLOP/s; MLA's KV at 3 TB/s, projections and shared expert at 3 TB/s, 0.05 of launches.
MOE_MS = 2 * (0.173 + 0.314) + 256 * ROUTED / 900
OTHER_MS = 256 * 2100 * 576 * 2 / 3e9 + (187e6 + 44e6) / 3e9 + 0.05
M_DECODE_LOW = MOE_MS / (MOE_MS + OTHER_MS)  # nothing overlaps
M_DECODE_HIGH = 1.0                          # two-batch overlap hides all but the all-to-all


def imbalance(loads, slots, ranks):
    return sum(1 / eplb.balancedness([w], [s], ranks) for w, s in zip(loads, slots)) / len(loads)


class World:
    def __init__(self, seed):
        rng = random.Random(seed)
        self.popular = [[rng.gauss(0, 1) for _ in range(256)] for _ in range(LAYERS)]
        self.shift = [[[rng.gauss(0, 1) for _ in range(256)] for _ in range(LAYERS)] for _ in range(BATCHES)]
        self.counting = [[[rng.gauss(0, 1) for _ in range(256)] for _ in range(LAYERS)] for _ in range(BATCHES)]

    def window(self, sigma):
        return [[math.exp(sigma * z) for z in row] for row in self.popular]

    def batch(self, b, sigma, delta, tokens=None):
        out = []
        for row, shift, count in zip(self.popular, self.shift[b], self.counting[b]):
            w = [math.exp(sigma * z + delta * s) for z, s in zip(row, shift)]
            if tokens:
                scale = tokens * len(w) / sum(w)
                w = [max(0.0, x * scale + math.sqrt(x * scale) * c) for x, c in zip(w, count)]
            out.append(w)
        return out

    def measure(self, slots, ranks, sigma, delta, tokens=None):
        return sum(imbalance(self.batch(b, sigma, delta, tokens), slots, ranks) for b in range(BATCHES)) / BATCHES


def bisect(f, low, high, wanted):
    for _ in range(14):
        middle = (low + high) / 2
        low, high = (middle, high) if f(middle) < wanted else (low, middle)
    return (low + high) / 2


def step(m, i):
    return 1 - m + m * i


def study(ours, world, m_prefill):
    """Fits sigma and delta on the two prefill figures, then predicts decode."""
    trivial = [list(range(256)) for _ in range(LAYERS)]
    want_eplb = 1 + (PERFECT_OVER_EPLB - 1) / m_prefill
    want_none = 1 + (PUBLISHED["prefill"] * PERFECT_OVER_EPLB - 1) / m_prefill
    delta = 0.3
    for _ in range(4):  # delta adds to the unbalanced figure too: a few turns settle both
        sigma = bisect(lambda s: world.measure(trivial, 32, s, delta), 0.05, 2.5, want_none)
        placed = ours("greedy", PREFILL, world.window(sigma))["slots"]
        delta = bisect(lambda d: world.measure(placed, 32, sigma, d), 0.0, 2.0, want_eplb)
    window = world.window(sigma)
    initial = ours("initial", DECODE, window)["slots"]
    placed = {how: ours(how, DECODE, window)["slots"] for how in ("greedy", "refined")}
    return {"sigma": sigma, "delta": delta, "none_prefill": want_none, "eplb_prefill": want_eplb,
            "none": world.measure(initial, 72, sigma, delta, DECODE_TOKENS),
            "eplb": world.measure(placed["greedy"], 72, sigma, delta, DECODE_TOKENS),
            "refined": world.measure(placed["refined"], 72, sigma, delta, DECODE_TOKENS),
            "exact": world.measure(placed["greedy"], 72, sigma, 0, DECODE_TOKENS)}


def page(path, results, curve, table):
    document = {
        "title": "EPLB's published speed-ups, derived", "subtitle": "./dev bench eplb_study; docs/studies/eplb.md",
        "sections": [
            {"heading": "Result", "table": table,
             "bars": {"title": "Speed-up by EPLB", "value": "throughput with / without EPLB", "categories": ["prefill, EP32", "decode, EP72"],
                      "series": [{"name": "published (LMSYS, 96 H100)", "values": [PUBLISHED["prefill"], PUBLISHED["decode"]]},
                                 {"name": "model (prefill fitted, decode predicted)", "values": [results["prefill"], results["decode"]]}]}},
            {"heading": "What the decode figure depends on",
             "lines": {"title": "Predicted decode speed-up", "x": "share of a balanced decode step that waits for the most loaded rank",
                       "y": "speed-up", "series": curve, "marks": [{"at": PUBLISHED["decode"], "label": "published 2.54"}]}}]}
    program = os.environ.get("NEREID_PAGE", str(lib.ROOT / "build/release/bin/report_page_bench"))
    html = subprocess.run([program], input=json.dumps(document), capture_output=True, text=True, check=True).stdout
    pathlib.Path(path).write_text(html)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one world instead of three")
    parser.add_argument("--json", action="store_true", help="accepted for symmetry")
    parser.add_argument("--html", help="write a page with plots there")
    args = parser.parse_args()
    ours = eplb.Ours()
    found = {m: [study(ours, World(seed), m) for seed in range(1 if args.quick else 3)] for m in (0.45, M_PREFILL, 0.7)}
    ours.close()

    def mean(m, key):
        return sum(r[key] for r in found[m]) / len(found[m])

    def speedup(m_prefill, m_decode, how="eplb"):
        return step(m_decode, mean(m_prefill, "none")) / step(m_decode, mean(m_prefill, how))

    m_decode = (M_DECODE_LOW + M_DECODE_HIGH) / 2
    metrics = {"m_prefill": M_PREFILL, "m_decode_low": M_DECODE_LOW, "m_decode_high": M_DECODE_HIGH,
               "sigma": mean(M_PREFILL, "sigma"), "delta": mean(M_PREFILL, "delta"),
               "imbalance_prefill_none": mean(M_PREFILL, "none_prefill"), "imbalance_prefill_eplb": mean(M_PREFILL, "eplb_prefill"),
               "imbalance_decode_none": mean(M_PREFILL, "none"), "imbalance_decode_eplb": mean(M_PREFILL, "eplb"),
               "imbalance_decode_refined": mean(M_PREFILL, "refined"), "imbalance_decode_eplb_exact_loads": mean(M_PREFILL, "exact"),
               "decode_speedup": speedup(M_PREFILL, m_decode), "decode_speedup_low": speedup(M_PREFILL, M_DECODE_LOW),
               "decode_speedup_high": speedup(M_PREFILL, M_DECODE_HIGH),
               "decode_speedup_m_prefill_45": speedup(0.45, m_decode), "decode_speedup_m_prefill_70": speedup(0.7, m_decode),
               "decode_speedup_exact_loads": speedup(M_PREFILL, m_decode, "exact")}
    if args.html:
        curve = [{"name": f"prefill share {m:.2f}", "points": [[x / 50, speedup(m, x / 50)] for x in range(20, 51)]} for m in found]
        table = {"header": ["quantity", "value"], "rows": [[k, v] for k, v in metrics.items()]}
        page(args.html, {"prefill": PUBLISHED["prefill"], "decode": metrics["decode_speedup"]}, curve, table)
    lib.finish("eplb_study", metrics, {"decode_speedup_vs_published": metrics["decode_speedup"] / PUBLISHED["decode"]},
               ["sigma and delta fitted on prefill (1.49x, and 59.3k / 50.3k of perfect balance); decode is predicted",
                "the ratio is predicted / published"])


if __name__ == "__main__":
    main()
