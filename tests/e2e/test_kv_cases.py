"""docs/kv-cases.md: the tests that it names exist and carry the number of their case; no known case is missing."""

import re

from conftest import ROOT

PAGE = (ROOT / "docs/kv-cases.md").read_text()
ALL = re.findall(r"^\| (K\d+) \|", PAGE, re.M)


def test_every_case_has_tests_that_carry_its_number():
    rows = re.findall(r"^\| (K\d+) \| .* \| (\[.*) \|$", PAGE, re.M)
    assert len(rows) >= 44
    for case, cell in rows:
        tests = re.findall(r"\[(\w+)\.(\w+)\]\(\.\./([^)]+)\)", cell)
        assert tests, f"{case} has no test"
        for suite, name, file in tests:
            assert re.search(rf"_{case}(_|$)", name), f"{name} does not carry {case}"
            assert re.search(rf"TEST(_F|_P)?\(\s*{suite},\s*{name}\)", (ROOT / file).read_text()), f"{suite}.{name} is not in {file}"


def test_every_test_that_carries_a_number_is_named():
    for path in (ROOT / "src").rglob("*_test.cc"):
        for name in re.findall(r"^(?:TYPED_)?TEST(?:_F|_P)?\(\s*\w+,\s*(\w+)\)", path.read_text(), re.M):
            for case in re.findall(r"_(K\d+)(?=_|$)", name):
                row = re.search(rf"^\| {case} \| .*$", PAGE, re.M)
                assert row and f".{name}]" in row.group(), f"{name} is not in the row of {case}"


def test_every_known_failure_has_a_row():
    known = ROOT.parent / "shared/cases/kv.md"
    if known.exists():    # only the founders' machine has it
        assert sorted(re.findall(r"^\| (K\d+) \|", known.read_text(), re.M)) == sorted(ALL)
