"""Plans of experts without torch: the derived maps against a naive reading, and what is refused. On the engine's own
tensors: real_parts.py."""

from __future__ import annotations

import random

import pytest

from nereid_deepinfer.experts import BadPlan, derive
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


def test_decode_curve() -> None:
    assert DecodeCurve([]).predict_ns(100) == 0
    curve = DecodeCurve([(64, 10.0), (8, 4.0), (128, 18.0)])
    assert [curve.predict_ns(rows) / 1e6 for rows in (0, 1, 8, 36, 64, 96, 128, 256)] == [0, 4, 4, 7, 10, 14, 18, 34]
    assert DecodeCurve([(8, 4.0)]).predict_ns(100) == 4_000_000
