"""The real libraries that the agent relies on besides LLMEngine: EPLB's maps, the FLOPs estimator, xgrammar. pytest, on the
Python with torch, by `./dev test --deepinfer`."""

from __future__ import annotations

import json
import os
import pathlib
import sys

import pytest

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE / "cpu"), str(HERE.parents[1] / "python")]

os.environ.setdefault("DEEPINFER_EXPERT_REARRANGEMENT_STEP_INTERVAL", "100")

import world
from script import Script

world.install(Script())

import torch
import torch.distributed as dist
from nereid_deepinfer import cost, experts, schema


@pytest.fixture(scope="session")
def group() -> object:
    if not dist.is_initialized():
        dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{int(os.environ['MASTER_PORT']) - 50}", rank=0, world_size=1)
    return dist.group.WORLD


def test_plan_is_installed_by_the_engines_own_code(group: object, monkeypatch: pytest.MonkeyPatch) -> None:
    """A plan takes the place of the policy's answer; the engine moves the weights and writes the three maps."""
    from deepinfer.model_executor import eplb

    layers, logical, extra = 3, 8, 4
    weights = [[torch.arange(logical + extra, dtype=torch.float32).remainder(logical).unsqueeze(1).clone()] for _ in range(layers)]
    balancer = eplb.ExpertLoadBalancer(weights, layers, logical, logical + extra, group, logical, extra, False)
    monkeypatch.setattr(eplb.ExpertLoadBalancer, "_initialize_shuffle", lambda self: setattr(self, "_intranode_shuffle", False))
    eplb.set_current(eplb.ExpertLoadBalancerManager([(balancer, [0, 1, 2])], layers))
    try:
        control = experts.ExpertControl()
        control.install_override()
        generator = torch.Generator().manual_seed(1)
        slots = [torch.cat([torch.randperm(logical, generator=generator), torch.randint(0, logical, (extra,), generator=generator)]).tolist() for _ in range(layers)]
        with pytest.raises(experts.BadPlan, match="past"):
            control.propose(experts.Plan(5, 0, slots), 5)
        with pytest.raises(experts.BadPlan, match="layers"):
            control.propose(experts.Plan(6, 0, slots[:2]), 5)
        control.propose(experts.Plan(6, 0, slots), 5)
        control.before_step(5)
        assert balancer._rearrangement_step != balancer._rearrangement_interval - 1
        control.before_step(6)
        assert balancer._rearrangement_step == balancer._rearrangement_interval - 1
        balancer._rearrange_experts()
        assert balancer.physical_to_logical_map.tolist() == slots and control.installed == 1
        for layer in range(layers):
            assert weights[layer][0].squeeze(1).tolist() == slots[layer], "the weights follow the map"
            for expert in range(logical):
                found = [p for p in balancer.logical_to_physical_map[layer, expert].tolist() if p >= 0]
                assert sorted(found) == [i for i, e in enumerate(slots[layer]) if e == expert]
                assert balancer.logical_count[layer, expert].item() == len(found)
        # Without a plan the engine's own policy decides again, and its maps agree with ours.
        balancer._expert_count_window.random_(0, 100, generator=generator)
        stats = control.statistics()[0]
        assert len(stats["tokens"]) == layers and sum(map(sum, stats["tokens"])) == int(balancer._expert_count_window.sum())
        balancer._rearrange_experts()
        assert control.installed == 1
        where, counts = experts.derive(balancer.physical_to_logical_map.tolist(), logical, extra + 1)
        for layer in range(layers):
            for expert in range(logical):
                assert sorted(balancer.logical_to_physical_map[layer, expert].tolist()) == sorted(where[layer][expert])
            assert balancer.logical_count[layer].tolist() == counts[layer]
    finally:
        eplb.destroy_current()


def test_prefill_costs_come_from_the_engines_estimator() -> None:
    from deepinfer._C.engine import FlopsEstimator
    from deepinfer.hugging_face.config import load_hf_model_config
    from deepinfer.model_executor.model_metadata_utils import ModelMetadata

    metadata = ModelMetadata(load_hf_model_config(world.model_folder() + "/config.json").gpt)
    grid = cost.prefill_grid(FlopsEstimator(metadata), 32768)
    flops = {(q, k): f for q, k, f in grid}
    assert flops[(8192, 8192)] > flops[(2048, 8192)] > flops[(512, 8192)] > 0
    assert flops[(512, 32768)] > flops[(512, 512)]
    # The router's form of the cost model follows the estimator.
    model = cost.prefill_parameters(grid)
    for compute, length, exact in grid:
        fitted = model["per_token_flops"] * compute + model["per_token_context_flops"] * compute * (length - compute + compute / 2)
        assert abs(fitted / exact - 1) < 0.15, (compute, length, fitted, exact)


def test_the_wires_checksum_beside_python() -> None:
    import random

    import nereid_peek
    from nereid_deepinfer import crc32c

    rng = random.Random(4)
    for size in [*range(40), 511, 4096, 20_001]:
        data = rng.randbytes(size)
        state = rng.randrange(1 << 32)
        assert nereid_peek.crc32c(state, data) == nereid_peek.crc32c(state, bytearray(data)) == crc32c.extend(state, data), size
    assert nereid_peek.crc32c(0xFFFFFFFF, b"123456789") ^ 0xFFFFFFFF == 0xE3069283


def takes(asked: dict[str, object], answer: str) -> bool:
    """Whether xgrammar, as DeepInfer calls it, takes this whole answer."""
    import xgrammar

    vocabulary = [chr(i) for i in range(32, 127)] + ["</s>"]
    compiler = xgrammar.GrammarCompiler(xgrammar.TokenizerInfo(vocabulary, stop_token_ids=[len(vocabulary) - 1]))
    matcher = xgrammar.GrammarMatcher(compiler.compile_json_schema(json.dumps(asked), strict_mode=True))
    return matcher.accept_string(answer) and matcher.accept_token(len(vocabulary) - 1)


@pytest.mark.parametrize(("name", "asked", "answer"), schema.GAPS, ids=[g[0] for g in schema.GAPS])
def test_what_xgrammar_lets_pass_is_refused_before(name: str, asked: dict[str, object], answer: str) -> None:
    assert schema.schema_fault(asked) is not None
    assert name == "multipleOf" or takes(asked, answer), f"{name} is enforced by xgrammar now"


@pytest.mark.parametrize(("asked", "answer"), schema.ENFORCED, ids=[json.dumps(e[0])[:60] for e in schema.ENFORCED])
def test_what_xgrammar_enforces_is_let_through(asked: dict[str, object], answer: str) -> None:
    assert schema.schema_fault(asked) is None
    assert not takes(asked, answer)


def test_forced_calls_as_the_gateway_writes_them() -> None:
    """forced_calls.ebnf is what src/text/grammar_ebnf_test.cc makes of a request; xgrammar, as DeepInfer calls it with the agent's
    compiler in between, takes whole calls of these tools, and nothing else."""
    import xgrammar
    from deepinfer.structure_output.compiler import XGrammarCompiler

    from nereid_deepinfer import ebnf

    mark = "\uff5cDSML\uff5c"
    vocabulary = [chr(i) for i in range(32, 127)] + ["\n", "\uff5c", mark, "</", f"</{mark}", "\u57ce", "</s>"]
    end = len(vocabulary) - 1
    compiler = XGrammarCompiler(xgrammar.TokenizerInfo(vocabulary, stop_token_ids=[end]), num_threads=1)
    ebnf.install(compiler)
    made = compiler.dispatch_and_compile("ebnf", (HERE / "forced_calls.ebnf").read_text())

    def takes_calls(text: str) -> bool:
        matcher = xgrammar.GrammarMatcher(made)
        return bool(matcher.accept_string(text) and matcher.accept_token(end))

    def call(name: str, **parameters: tuple[bool, str]) -> str:
        body = "".join(f'<{mark} parameter name="{k}" string="{str(text).lower()}">{v}</{mark} parameter>\n' for k, (text, v) in parameters.items())
        return f'<{mark} invoke name="{name}">\n{body}</{mark} invoke>\n'

    close = f"</{mark} calls>"
    city, days = (True, "Os </lo \u57ce\n"), (False, "3")
    weather = call("get_weather", city=city, days=days)
    assert takes_calls(weather + close) and takes_calls(weather + call("wait") + weather + close)
    assert takes_calls(call("get_weather", city=city, unit=(True, "c"), days=days, note=(True, f"</{mark} para"), at=(False, "[1, 1]")) + close)
    assert not takes_calls(close) and not takes_calls(weather) and not takes_calls("Hello")
    for bad in (call("other"), call("get_weather", city=city), call("get_weather", days=days, city=city), call("wait", city=city),
                call("get_weather", city=city, days=(False, "0")), call("get_weather", city=city, days=(False, '"3"')),
                call("get_weather", city=city, unit=(True, "k"), days=days), call("get_weather", city=city, days=days, at=(False, '["a"]'))):
        assert not takes_calls(bad + close), bad
    with pytest.raises(RuntimeError, match="multipleOf"):
        compiler.dispatch_and_compile("ebnf", 'root ::= %json {"type":"integer","multipleOf":5}')
