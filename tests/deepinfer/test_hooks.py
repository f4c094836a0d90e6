"""The greeting's check: an unknown version, or a hook that is called otherwise, is refused by name."""

from __future__ import annotations

import pytest

from fake_engine import FakeEngine
from nereid_deepinfer import hooks


def test_the_known_version_passes() -> None:
    hooks.check(FakeEngine, "0.1.0")


def test_unknown_version_is_named() -> None:
    with pytest.raises(hooks.Unsupported, match=r"0\.2\.0"):
        hooks.check(FakeEngine, "0.2.0")


def test_changed_and_missing_hooks_are_named() -> None:
    class Other(FakeEngine):
        def finalize_seq(self, seq, reason):  # type: ignore[no-untyped-def,override]
            ...

        send_processed_prompts = None

    del Other.send_processed_prompts
    with pytest.raises(hooks.Unsupported, match=r"finalize_seq\(seq, reason\) was finalize_seq\(seq\)"):
        hooks.check(Other, "0.1.0")

    class Gone:
        step = FakeEngine.step

    with pytest.raises(hooks.Unsupported, match="post_schedule is gone"):
        hooks.check(Gone, "0.1.0")
