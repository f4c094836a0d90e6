"""Expert placement: ours against DeepSeek's EPLB (as SGLang ships it) and vLLM's numpy policy, 58 layers, interleaved.

Loads: Zipf 0.6 and 1.0, lognormal 0.7, gamma 2, counts from one seed. Times are of one thread: ours measured inside our process
around the solver, theirs around the call in this process (JSON, torch and numpy conversions are outside). Metrics of a shape are the worst of the
four kinds of load. Drift: log-loads of every expert follow an AR(1) process, rho 0.95, stationary deviation 0.7.
"""

import contextlib
import importlib.util
import json
import math
import os
import pathlib
import random
import statistics
import subprocess
import sys
import time
import types

for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[name] = "1"
import lib  # noqa: E402

PROGRAM = pathlib.Path(os.environ.get("NEREID_EPLB", lib.ROOT / "build/release/bin/router_eplb_bench"))
LAYERS = 58
KINDS = ("zipf 0.6", "zipf 1.0", "lognormal 0.7", "gamma 2")
SHAPES = {"ep16": (256, 272, 16), "ep32": (256, 288, 32), "ep64": (256, 320, 64), "ep144": (256, 288, 144),
          "384_ep16": (384, 400, 16), "384_ep32": (384, 416, 32), "384_ep64": (384, 448, 64)}


def layer(kind, experts, rng):
    if kind.startswith("zipf"):
        w = [1e6 / (e + 1) ** float(kind.split()[1]) for e in range(experts)]
        rng.shuffle(w)
    elif kind.startswith("lognormal"):
        w = [1e4 * rng.lognormvariate(0, 0.7) for _ in range(experts)]
    else:
        w = [1e4 * rng.gammavariate(2, 1) for _ in range(experts)]
    return [int(x) for x in w]


def balancedness(loads, slots, ranks):
    """Mean over layers of mean/max rank load, computed here so that every policy is judged alike."""
    total = 0
    for load, row in zip(loads, slots):
        count = [0] * len(load)
        for e in row:
            count[e] += 1
        room = len(row) // ranks
        rank = [sum(load[e] / count[e] for e in row[r * room:(r + 1) * room]) for r in range(ranks)]
        total += sum(rank) / ranks / max(rank)
    return total / len(loads)


def moved_share(old, new, ranks):
    n = 0
    for a, b in zip(old, new):
        room = len(a) // ranks
        for r in range(ranks):
            had = list(a[r * room:(r + 1) * room])
            for e in b[r * room:(r + 1) * room]:
                if e in had:
                    had.remove(e)
                else:
                    n += 1
    return n / sum(map(len, old))


class Ours:
    def __init__(self):
        self.child = subprocess.Popen([PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def __call__(self, method, shape, loads, **more):
        experts, slots, ranks = shape
        request = {"experts": experts, "slots": slots, "ranks": ranks, "method": method, "loads": loads, **more}
        self.child.stdin.write(json.dumps(request) + "\n")
        self.child.stdin.flush()
        reply = json.loads(self.child.stdout.readline())
        if "error" in reply:
            raise SystemExit(reply["error"])
        return reply

    def close(self):
        self.child.stdin.close()
        self.child.wait()


def load_policies(folder):
    """vLLM's policy and DeepSeek's, from the files of their wheels; only numpy and torch are imported for them."""
    package = types.ModuleType("peer_policy")
    package.__path__ = [folder]
    sys.modules["peer_policy"] = package

    def load(name):
        spec = importlib.util.spec_from_file_location(f"peer_policy.{name}", pathlib.Path(folder) / f"{name}.py")
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module
        spec.loader.exec_module(module)
        return module

    load("abstract")
    return load("default").DefaultEplbPolicy, load("deepseek").rebalance_experts


@contextlib.contextmanager
def stable_sort(torch):
    """Equal loads keep their order: torch.sort leaves that open, so the reference's own output varies with torch."""
    sort = torch.Tensor.sort
    torch.Tensor.sort = lambda self, dim=-1, descending=False: sort(self, stable=True, dim=dim, descending=descending)
    try:
        yield
    finally:
        torch.Tensor.sort = sort


def main():
    args = lib.arguments(__doc__)
    if not PROGRAM.exists():
        raise SystemExit(f"{PROGRAM} is missing: ./dev build release router_eplb_bench")
    rounds, drift_rounds = (3, 6) if args.quick else (9, 20)
    folder = lib.peers("eplb")["EPLB_POLICIES"]
    import numpy as np
    import torch
    torch.set_num_threads(1)
    vllm, deepseek = load_policies(folder)
    ours = Ours()
    rng = random.Random(1)

    metrics, times, agree = {}, {}, []
    for name, shape in SHAPES.items():
        worst = {}
        for kind in KINDS:
            loads = [layer(kind, shape[0], rng) for _ in range(LAYERS)]
            as_torch = torch.tensor(loads, dtype=torch.float32)
            as_numpy = np.array(loads, dtype=np.float32)
            timed = name == "ep32"
            results = {}
            for _ in range(rounds if timed else 1):
                turn = ["greedy", "refined"]
                if timed or name == "ep144":
                    turn += ["vllm", "deepseek"]
                rng.shuffle(turn)
                for policy in turn:
                    if policy in ("greedy", "refined"):
                        reply = ours(policy, shape, loads, repeat=5 if timed else 1)
                        spent, results[policy] = statistics.median(reply["ms"]), reply["slots"]
                        worst.setdefault("bound", []).append(reply["bound"])
                    else:
                        begin = time.perf_counter()
                        if policy == "vllm":
                            got = vllm.rebalance_experts_hierarchical(as_numpy, shape[1], 1, 1, shape[2])
                        else:
                            got = deepseek(as_torch, shape[1], 1, 1, shape[2], False)[0]
                        spent = (time.perf_counter() - begin) * 1e3
                        results[policy] = got.tolist()
                    if timed:
                        times.setdefault(policy, {}).setdefault(kind, []).append(spent)
            for policy, slots in results.items():
                worst.setdefault(policy, []).append(balancedness(loads, slots, shape[2]))
            if "deepseek" in results:
                with stable_sort(torch):
                    same_ties = deepseek(as_torch, shape[1], 1, 1, shape[2], False)[0].tolist()
                agree.append(sum(a == b for a, b in zip(results["greedy"], same_ties)) / LAYERS)
            lib.say(f"{name} {kind}: " + ", ".join(f"{p} {v[-1]:.4f}" for p, v in worst.items()))
        metrics[f"balancedness_{name}"] = min(worst["refined"])
        metrics[f"greedy_balancedness_{name}"] = min(worst["greedy"])
        metrics[f"bound_{name}"] = min(worst["bound"])

    middle = {policy: {kind: statistics.median(v) for kind, v in by.items()} for policy, by in times.items()}
    metrics["ms_greedy"], metrics["ms_refined"] = max(middle["greedy"].values()), max(middle["refined"].values())
    metrics["ms_vllm"] = statistics.median(middle["vllm"].values())
    metrics["ms_deepseek"] = statistics.median(middle["deepseek"].values())
    metrics["layers_equal_to_deepseek"] = statistics.mean(agree)

    for name in ("ep16", "ep32", "ep64", "384_ep32"):
        experts, slots, ranks = shape = SHAPES[name]
        x = [[rng.gauss(0, 0.7) for _ in range(experts)] for _ in range(LAYERS)]

        def tokens():
            return [[int(1e4 * math.exp(v)) for v in row] for row in x]

        loads = tokens()
        old = ours("refined", shape, loads)["slots"]
        moved, loss, spent, theirs = [], [], [], []
        their_old = vllm.rebalance_experts_hierarchical(np.array(loads, dtype=np.float32), slots, 1, 1, ranks)
        for _ in range(drift_rounds):
            x = [[0.95 * v + 0.7 * math.sqrt(1 - 0.95 ** 2) * rng.gauss(0, 1) for v in row] for row in x]
            loads = tokens()
            reply = ours("rebalance", shape, loads, old=old)
            fresh = ours("refined", shape, loads)
            moved.append(moved_share(old, reply["slots"], ranks))
            loss.append(1 - balancedness(loads, reply["slots"], ranks) / balancedness(loads, fresh["slots"], ranks))
            spent.append(reply["ms"][0])
            old = reply["slots"]
            if name == "ep32":
                their_new = vllm.preserve_intragpu_slots(
                    vllm.rebalance_experts_hierarchical(np.array(loads, dtype=np.float32), slots, 1, 1, ranks), ranks, their_old)
                theirs.append(moved_share(their_old.tolist(), their_new.tolist(), ranks))
                their_old = their_new
        suffix = "" if name == "ep32" else f"_{name}"
        metrics[f"slots_moved_fraction{suffix}"] = max(moved)
        metrics[f"drift_loss{suffix}"] = statistics.mean(loss)
        metrics[f"drift_loss_max{suffix}"] = max(loss)
        metrics[f"ms_rebalance{suffix}"] = statistics.median(spent)
        if theirs:
            metrics["vllm_slots_moved_fraction"] = statistics.mean(theirs)
        lib.say(f"drift {name}: moved {max(moved):.4f}, loss {statistics.mean(loss):.4f} (max {max(loss):.4f})")
    ours.close()

    def speedup(ours_name, theirs_name):
        return statistics.median(middle[theirs_name][k] / middle[ours_name][k] for k in KINDS)

    ratios = {"greedy_vs_vllm": speedup("greedy", "vllm"), "greedy_vs_deepseek": speedup("greedy", "deepseek"),
              "refined_vs_vllm": speedup("refined", "vllm"), "refined_vs_deepseek": speedup("refined", "deepseek")}
    lib.finish("eplb", metrics, ratios, [
        "ratios are speed-ups: their milliseconds / ours, median over the four kinds of load, EP32 with 288 slots, 58 layers, one thread",
        f"{rounds} rounds in random order; ms_* of ours: the worst kind's median; theirs: the median over kinds",
        "deepseek = deepseek-ai/EPLB's eplb.py as sglang 0.5.23 ships it (its packing loops run on Python lists, faster than the original's "
        f"tensors); vllm = 0.32.0's numpy policy; torch {torch.__version__}, numpy {np.__version__}",
        "layers_equal_to_deepseek: slot for slot, EP32 and EP144, with torch's sort made stable (equal loads: Zipf 1 has many, as w/2 of one "
        "expert is w of another); balancedness is the same either way",
        f"slots_moved_fraction: the largest of {drift_rounds} rebalances; drift_loss: mean loss of balancedness against a fresh refined solution",
        "EP144 is bounded by its 2 slots a rank: see bound_ep144"])


if __name__ == "__main__":
    main()
