"""The invented model, the same for the fake and for the real engine: what request `id` says as its k-th token, and how
many drafts a decode step accepts. Names are the agent's: "<serial>:<id>"."""

from __future__ import annotations


class Script:
    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self.said: dict[str, list[int]] = {}  # id -> the tokens it says first, set by a case
        self.accept = 0
        self._count: dict[str, int] = {}

    def say(self, request: int, tokens: list[int]) -> None:
        self.said[str(request)] = list(tokens)

    def token(self, name: str, at: int) -> int:
        request = name.rsplit(":", 1)[-1]
        said = self.said.get(request, [])
        if at < len(said):
            return said[at]
        return 100 + (sum(request.encode()) * 7 + at) % 800

    def next(self, name: str) -> int:
        at = self._count.get(name, 0)
        self._count[name] = at + 1
        return self.token(name, at)
