"""What makes a function a case, and the list of all of them (cases.py)."""

from __future__ import annotations

from collections.abc import Callable

from rig import Rig

CASES: dict[str, tuple[tuple[str, ...], Callable[[Rig], None]]] = {}
UNTRACED: set[str] = set()  # the fake need not repeat them step by step


def case(*types: str, traced: bool = True) -> Callable[[Callable[[Rig], None]], Callable[[Rig], None]]:
    def register(function: Callable[[Rig], None]) -> Callable[[Rig], None]:
        CASES[function.__name__] = (types, function)
        if not traced:
            UNTRACED.add(function.__name__)
        return function

    return register


def expected(rig: Rig, request: int, count: int) -> list[int]:
    return [rig.script.token(f"0:{request}", k) for k in range(count)]
