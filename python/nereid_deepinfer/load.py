"""What the agent tells balancers, once per step: counts that are cheap to read, and a guess at the next step from the
engine's own start-up measurement of decode (`scheduler.decode_perf_curve`, points of (rows, ms))."""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING

from nereid_deepinfer.runtime import Runtime
from nereid_deepinfer.wire import Load

if TYPE_CHECKING:
    from nereid_deepinfer.agent import Agent

BLOCK = 128


class DecodeCurve:
    """Linear between the measured points, level before the first, the last slope beyond the last. Empty: unknown."""

    def __init__(self, points: list[tuple[int, float]]) -> None:
        points = sorted((int(rows), float(ms)) for rows, ms in points)
        self.rows = [p[0] for p in points]
        self.ms = [p[1] for p in points]

    def predict_ns(self, rows: int) -> int:
        if not self.rows or rows <= 0:
            return 0
        at = bisect_left(self.rows, rows)
        if at == 0:
            return int(self.ms[0] * 1e6)
        if at == len(self.rows):
            if at == 1:
                return int(self.ms[0] * 1e6)
            at -= 1
        left, right = self.rows[at - 1], self.rows[at]
        part = (rows - left) / (right - left) if right > left else 0.0
        return max(0, int((self.ms[at - 1] + part * (self.ms[at] - self.ms[at - 1])) * 1e6))


class LoadReport:
    def __init__(self, runtime: Runtime) -> None:
        engine = runtime.engine
        self._scheduler, self._manager = engine.scheduler, engine.block_manager
        self._nextn = runtime.nextn
        self._total = self._manager.get_num_free_blocks()
        self._block_bytes = runtime.arenas.block_bytes
        self.curve = DecodeCurve(list(getattr(engine.scheduler, "decode_perf_curve", None) or []))

    def read(self, agent: Agent, last_step_ns: int) -> Load:
        scheduler = self._scheduler
        running = scheduler.get_sum_prompt_len_running()[0]
        chunked = scheduler.get_sum_prompt_len_chunked()[0]
        waiting = scheduler.get_sum_prompt_len_waiting()[0] - chunked
        c = agent.counters
        return Load(
            running + chunked, waiting + len(agent.queue), max(0, agent.uncached),
            (self._total - self._manager.get_num_free_blocks()) * BLOCK, self._total * BLOCK,
            agent.prefixes.blocks * self._block_bytes, c.hit_tokens, c.miss_tokens, scheduler.get_num_preempted_seqs(),
            last_step_ns, self.curve.predict_ns(running * (1 + self._nextn)))
