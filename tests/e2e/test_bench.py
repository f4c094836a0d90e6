"""What benchmarks make of their figures; none is run here."""

import math
import sys

import pytest

from conftest import ROOT

sys.path.insert(0, str(ROOT / "bench"))
import structured    # noqa: E402

GOOD = {"finished": 500, "valid_share": 1.0, "finished_share_bounded_512": 0.9, "refused_share_bfcl": 0.05,
        "grammar_over_plain_1": 0.9, "grammar_over_plain_8": 1.01}


@pytest.mark.parametrize("name, value", [
    ("valid_share", 0.999), ("finished_share_bounded_512", 0.89), ("refused_share_bfcl", 0.051), ("grammar_over_plain_1", 0.899),
    ("grammar_over_plain_8", 0.5), ("grammar_over_plain_8", math.nan), ("valid_share", None), ("finished", 0)])
def test_structured_names_what_it_misses(name, value):
    assert structured.misses(GOOD, GOOD) == []
    found = structured.misses({**GOOD, name: value}, {**GOOD, name: value})
    assert len(found) == 1 and name.split("_")[0] in found[0]
