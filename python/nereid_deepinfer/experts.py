"""Placement of experts from outside: statistics out, plans in.

DeepInfer rebalances by its own policy inside `_rearrange_experts`, a collective over the expert-parallel group; there is no
entry for a plan. `install` overrides that method so that a pending plan takes the place of the policy's answer; the
engine's own code still moves the weights and writes the maps. Every rank must run the same plan in the same step, or the
group hangs: a plan carries the step (LLMEngine.generate_step, equal on all ranks) and a rank that is past it refuses.

ExpertFolder is the way in and out of a running group: each rank writes `experts-RANK.json`, and takes `plan.json` once all
ranks have agreed, in a collective of their own every EVERY steps, that they have the same one.

Needs DEEPINFER_EXPERT_REARRANGEMENT_STEP_INTERVAL > 0 (rebalance_interval): else the engine keeps no counts.
"""

from __future__ import annotations

import hashlib
import json
import os
import pathlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


class BadPlan(Exception):
    pass


@dataclass
class Plan:
    at_step: int
    balancer: int  # 0: the backbone's, 1: DSpark's
    physical_to_logical: list[list[int]]  # [layer][physical slot]


def derive(physical_to_logical: list[list[int]], logical: int, copies: int) -> tuple[list[list[list[int]]], list[list[int]]]:
    """The engine's other two maps: [layer][logical][copies] of physical slots, -1 where there is none, and the counts.
    BadPlan when an expert is nowhere, or has more copies than the map holds."""
    where: list[list[list[int]]] = []
    counts: list[list[int]] = []
    for layer, slots in enumerate(physical_to_logical):
        places: list[list[int]] = [[] for _ in range(logical)]
        for slot, expert in enumerate(slots):
            if not 0 <= expert < logical:
                raise BadPlan(f"layer {layer}, slot {slot}: there is no expert {expert}")
            places[expert].append(slot)
        for expert, found in enumerate(places):
            if not found:
                raise BadPlan(f"layer {layer}: expert {expert} is nowhere")
            if len(found) > copies:
                raise BadPlan(f"layer {layer}: expert {expert} has {len(found)} copies; {copies} fit")
        where.append([found + [-1] * (copies - len(found)) for found in places])
        counts.append([len(found) for found in places])
    return where, counts


class ExpertControl:
    """Of one rank. All calls on the engine thread."""

    def __init__(self) -> None:
        self.pending: dict[int, Plan] = {}
        self.installed = 0

    @staticmethod
    def _balancers() -> list[Any]:
        from deepinfer.model_executor import eplb

        manager = eplb.current()
        return [] if manager is None else list(manager._load_balancers)

    def install_override(self) -> None:
        """Once per process, before the first step."""
        from deepinfer.model_executor import eplb

        original = eplb.ExpertLoadBalancer._rearrange_experts
        policy = eplb.rebalance_experts_global
        control = self

        def rearrange(balancer: Any) -> None:
            plan = control._plan_of(balancer)
            if plan is None:
                original(balancer)
                return
            eplb.rebalance_experts_global = lambda counts, physical, local: control._maps(balancer, plan)
            try:
                original(balancer)
            finally:
                eplb.rebalance_experts_global = policy
            control.installed += 1

        eplb.ExpertLoadBalancer._rearrange_experts = rearrange  # type: ignore[method-assign]

    def _plan_of(self, balancer: Any) -> Plan | None:
        for index, candidate in enumerate(self._balancers()):
            if candidate is balancer:
                return self.pending.pop(index, None)
        return None

    @staticmethod
    def _maps(balancer: Any, plan: Plan) -> tuple[Any, Any, Any]:
        import torch

        old = balancer.logical_to_physical_map
        where, counts = derive(plan.physical_to_logical, old.shape[1], old.shape[2])
        like = {"dtype": old.dtype, "device": old.device}
        return torch.tensor(plan.physical_to_logical, **like), torch.tensor(where, **like), torch.tensor(counts, **like)

    def propose(self, plan: Plan, generate_step: int) -> None:
        self.check(plan, generate_step)
        self.pending[plan.balancer] = plan

    def check(self, plan: Plan, generate_step: int) -> None:
        """BadPlan for a step that is past, another shape, or a plan that loses an expert. Checked on every rank before any
        rank may reach the step: a rank that refused would leave the others in the collective."""
        balancers = self._balancers()
        if not 0 <= plan.balancer < len(balancers):
            raise BadPlan(f"there is no balancer {plan.balancer}")
        balancer = balancers[plan.balancer]
        if plan.at_step <= generate_step:
            raise BadPlan(f"step {plan.at_step} is past: this rank is at {generate_step}")
        if balancer._rearrangement_interval <= 0:
            raise BadPlan("the engine keeps no counts: rebalance_interval is 0")
        layers, physical = balancer.physical_to_logical_map.shape
        if len(plan.physical_to_logical) != layers or any(len(s) != physical for s in plan.physical_to_logical):
            raise BadPlan(f"the engine has {layers} layers of {physical} slots")
        old = balancer.logical_to_physical_map
        derive(plan.physical_to_logical, old.shape[1], old.shape[2])

    def before_step(self, generate_step: int) -> None:
        """Makes the engine rearrange at the end of the step that a pending plan names."""
        for index, plan in self.pending.items():
            if plan.at_step == generate_step:
                balancer = self._balancers()[index]
                balancer._rearrangement_step = balancer._rearrangement_interval - 1

    def statistics(self) -> list[dict[str, Any]]:
        """Tokens per logical expert over the engine's window, of this rank's slots; sum over the ranks for the whole."""
        import torch

        out = []
        for balancer in self._balancers():
            window = balancer._expert_count_window.sum(0)  # [layers, local slots]
            local = window.shape[1]
            first = balancer._ep_group.rank() * local
            mapping = balancer.physical_to_logical_map[:, first : first + local].long()
            counts = torch.zeros(window.shape[0], balancer.logical_count.shape[1], dtype=window.dtype, device=window.device)
            counts.scatter_add_(-1, mapping, window)
            out.append({"tokens": counts.tolist(), "physical_to_logical": balancer.physical_to_logical_map.tolist()})
        return out


EVERY = 32  # steps between looks at the folder
_MOST_BYTES = 64 << 20


class ExpertFolder:
    """`agree(number)`: the smallest and the largest of what all ranks say, a collective. All calls on the engine thread, in the
    same steps on all ranks."""

    def __init__(self, control: ExpertControl, folder: pathlib.Path, rank: int, agree: Callable[[int], tuple[int, int]],
                 log: Callable[[str], None]) -> None:
        self.control, self.folder, self.rank, self.agree, self.log = control, folder, rank, agree, log
        self._seen = 0  # number of the plan that was taken, or refused, last
        self._stamp = (0, 0)
        self._offered: tuple[int, Plan] | None = None

    def before_step(self, step: int) -> None:
        self.control.before_step(step)
        if step % EVERY:
            return
        self._write()
        self._read(step + 1)
        number = self._offered[0] if self._offered is not None else 0
        least, most = self.agree(number)
        if least != most or number == 0:
            return  # not all have it yet
        assert self._offered is not None
        _, plan = self._offered
        plan.at_step = step + 1
        self.control.propose(plan, step)
        self._offered = None
        self.log(f"placement of experts {number:x} is installed after step {step + 1}")

    def _write(self) -> None:
        path = self.folder / f"experts-{self.rank}.json"
        part = path.with_suffix(".part")
        part.write_text(json.dumps({"rank": self.rank, "balancers": self.control.statistics()}))
        os.replace(part, path)

    def _read(self, next_step: int) -> None:
        """A plan that this rank would refuse is not offered, so that no rank begins it."""
        path = self.folder / "plan.json"
        try:
            found = path.stat()
            if (found.st_mtime_ns, found.st_size) == self._stamp or found.st_size > _MOST_BYTES:
                return
            self._stamp = (found.st_mtime_ns, found.st_size)
            text = path.read_bytes()
        except OSError:
            return
        number = int.from_bytes(hashlib.sha256(text).digest()[:7], "little") | 1  # the same for the same bytes, never 0
        if number == self._seen:
            return
        self._seen = number
        try:
            data = json.loads(text)
            plan = Plan(next_step, int(data["balancer"]), [[int(e) for e in layer] for layer in data["physical_to_logical"]])
            self.control.check(plan, next_step - 1)
        except (BadPlan, ValueError, KeyError, TypeError) as bad:
            self.log(f"{path} is not installed: {bad!r}")
            self._offered = None
        else:
            self._offered = (number, plan)
