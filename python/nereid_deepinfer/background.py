"""A thread beside the engine's loop, for what would hold it: bytes of KV to the host, and the KV node of the machine.

Jobs run in order, one at a time. `collect`, on the engine's thread, runs what follows each: there the agent's and the
engine's state may be touched, in a job it may not (arenas apart: blocks that are pinned do not change).
"""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Callable
from typing import Any


class Background:
    def __init__(self, wake: Callable[[], None]) -> None:
        """`wake` is called on the thread when something is to be collected."""
        self._wake = wake
        self._jobs: queue.SimpleQueue[tuple[Callable[[], Any], Callable[[Any], None]] | None] = queue.SimpleQueue()
        self._done: deque[tuple[Callable[[Any], None], Any]] = deque()
        self.pending = 0  # jobs whose end has not been collected
        self._thread = threading.Thread(target=self._run, name="nereid-kv", daemon=True)
        self._thread.start()

    def run(self, job: Callable[[], Any], then: Callable[[Any], None]) -> None:
        """`then` gets what `job` returned, or the exception that it raised."""
        self.pending += 1
        self._jobs.put((job, then))

    def ready(self) -> bool:
        return bool(self._done)

    def collect(self) -> None:
        while self._done:
            then, result = self._done.popleft()
            self.pending -= 1
            then(result)

    def close(self) -> None:
        """The job that runs is waited for; later ones are not begun."""
        self._jobs.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (entry := self._jobs.get()) is not None:
            job, then = entry
            result: Any
            try:
                result = job()
            except Exception as bad:  # noqa: BLE001  (`then` says what it means)
                result = bad
            self._done.append((then, result))
            self._wake()


class Inline:
    """The same without a thread, for tests: a job runs when it is handed over, its end is collected later."""

    def __init__(self) -> None:
        self._done: deque[tuple[Callable[[Any], None], Any]] = deque()

    @property
    def pending(self) -> int:
        return len(self._done)

    def run(self, job: Callable[[], Any], then: Callable[[Any], None]) -> None:
        result: Any
        try:
            result = job()
        except Exception as bad:  # noqa: BLE001
            result = bad
        self._done.append((then, result))

    def ready(self) -> bool:
        return bool(self._done)

    def collect(self) -> None:
        while self._done:
            then, result = self._done.popleft()
            then(result)

    def close(self) -> None: ...
