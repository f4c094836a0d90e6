"""Plans of experts without torch: the derived maps against a naive reading, and what is refused. On the engine's own
tensors: real_parts.py."""

from __future__ import annotations

import random

import pytest

from nereid_deepinfer.cost import decode_parameters, prefill_parameters
from nereid_deepinfer.experts import EVERY, BadPlan, ExpertControl, ExpertFolder, Plan, derive
from nereid_deepinfer.load import DecodeCurve


def test_derived_maps_say_where_each_expert_is() -> None:
    rng = random.Random(4)
    for _ in range(50):
        logical, extra = rng.randrange(1, 20), rng.randrange(0, 6)
        slots = list(range(logical)) + [rng.randrange(logical) for _ in range(extra)]
        rng.shuffle(slots)
        where, counts = derive([slots], logical, extra + 1)
        for expert in range(logical):
            found = [s for s in where[0][expert] if s >= 0]
            assert found == [i for i, e in enumerate(slots) if e == expert] and counts[0][expert] == len(found)


@pytest.mark.parametrize(("slots", "copies", "what"), [([0, 0], 2, "nowhere"), ([0, 2], 2, "no expert 2"), ([0, -1], 2, "no expert -1"),
                                                       ([0, 1, 0, 0], 2, "3 copies")])
def test_plans_that_lose_an_expert_are_refused(slots: list[int], copies: int, what: str) -> None:
    with pytest.raises(BadPlan, match=what):
        derive([slots], 2, copies)


def test_parameters_of_the_cost_model_are_those_of_the_points() -> None:
    grid = [(u, n, 3e9 * u + 2e5 * u * (n - u + u / 2)) for n in (512, 8192, 65536) for u in (128, 512, 8192) if u <= n]
    found = prefill_parameters(grid)
    assert abs(found["per_token_flops"] / 3e9 - 1) < 1e-6 and abs(found["per_token_context_flops"] / 2e5 - 1) < 1e-6
    decode = decode_parameters([(8, 10.8), (64, 16.4), (256, 35.6)], 5)
    assert decode is not None and abs(decode["fixed_ms"] - 10) < 1e-6 and abs(decode["per_request_ms"] - 0.6) < 1e-6
    assert decode_parameters([], 5) is None


class StubControl(ExpertControl):
    def __init__(self) -> None:
        super().__init__()
        self.proposed: list[tuple[int, Plan]] = []

    def statistics(self) -> list[dict[str, object]]:
        return [{"tokens": [[1]]}]

    def check(self, plan: Plan, generate_step: int) -> None:
        if plan.physical_to_logical == [[9]]:
            raise BadPlan("there is no expert 9")

    def propose(self, plan: Plan, generate_step: int) -> None:
        self.proposed.append((generate_step, plan))


def test_plan_is_taken_when_all_ranks_have_it_and_by_all_at_once(tmp_path) -> None:
    """Two ranks whose folders see the file at different moments, as over a network's file system."""
    said: list[int] = [0, 0]
    log: list[str] = []
    folders = [tmp_path / str(rank) for rank in range(2)]
    ranks = []
    for rank, folder in enumerate(folders):
        folder.mkdir()

        def agree(number: int, rank: int = rank) -> tuple[int, int]:
            said[rank] = number
            return min(said), max(said)

        ranks.append(ExpertFolder(StubControl(), folder, rank, agree, log.append))

    def step(number: int) -> list[int]:
        for rank in ranks:  # what a collective gives is the same on all: the last call decides here
            rank._read(number + 1)
            said[rank.rank] = rank._offered[0] if rank._offered else 0
        for rank in ranks:
            rank.before_step(number)
        return [len(rank.control.proposed) for rank in ranks]

    text = '{"balancer": 0, "physical_to_logical": [[0]]}'
    (folders[0] / "plan.json").write_text(text)
    assert step(EVERY) == [0, 0] and step(EVERY + 1) == [0, 0]
    (folders[1] / "plan.json").write_text(text)
    assert step(2 * EVERY) == [1, 1]
    assert [rank.control.proposed[0][1].at_step for rank in ranks] == [2 * EVERY + 1] * 2
    assert step(3 * EVERY) == [1, 1], "once"
    for bad in ('{"balancer": 0, "physical_to_logical": [[9]]}', "{", "[]", '{"balancer": null}', '{"balancer": 0, "physical_to_logical": 3}'):
        for folder in folders:
            (folder / "plan.json").write_text(bad)
        assert step(4 * EVERY) == [1, 1]
    assert len([line for line in log if "not installed" in line]) == 10
    assert all((folder / f"experts-{rank}.json").is_file() for rank, folder in enumerate(folders))


def test_decode_curve() -> None:
    assert DecodeCurve([]).predict_ns(100) == 0
    curve = DecodeCurve([(64, 10.0), (8, 4.0), (128, 18.0)])
    assert [curve.predict_ns(rows) / 1e6 for rows in (0, 1, 8, 36, 64, 96, 128, 256)] == [0, 4, 4, 7, 10, 14, 18, 34]
    assert DecodeCurve([(8, 4.0)]).predict_ns(100) == 4_000_000
