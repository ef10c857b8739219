"""Computes the cost of a plan."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence

from shardy_py.cost.collectives import collective_seconds
from shardy_py.cost.compute import roofline_seconds
from shardy_py.cost.hardware import Hardware, HardwareError, lay_out
from shardy_py.cost.hardware_table import hardware
from shardy_py.cost.links import Level, levels_of
from shardy_py.ir import Block, Op
from shardy_py.passes.collection import no_collection
from shardy_py.plan.collectives import Collective, axes_of
from shardy_py.plan.cost_analysis import CollectiveCost, CostAnalysis, OpCost
from shardy_py.plan.cost_walk import BlockCosts, Run
from shardy_py.plan.executed import collectives_of, executed
from shardy_py.plan.record import Analysis, PlanRecord


@Analysis
def _computed(plan: PlanRecord) -> list[CostAnalysis]:
    """The costs of a plan that have been computed, each on other hardware."""
    del plan
    return []


@no_collection()
def analyse(
    plan: PlanRecord, which: str | Hardware | None = None, links: Mapping[str, object] | None = None, calibrated: bool = True
) -> CostAnalysis:
    """The cost of a call, see `Plan.cost_analysis`. A plan remembers it. Raises HardwareError or LinkError."""
    machine = None if which is None else hardware(which) if calibrated else hardware(which).with_figures(calibration=None)
    if machine is None and links is not None:
        raise HardwareError("links without hardware", where=f"cost of {plan.name}", fix='name the hardware too: hardware="h100"')
    sizes = dict(plan.mesh.shape)
    layout = {} if machine is None else lay_out(sizes, machine, {**plan.lattices, **(links or {})})
    for cost in _computed(plan):
        if (cost.hardware, cost.links) == (machine, layout):
            return cost

    def timed(collective: Collective, levels: tuple[Level, ...]) -> float:
        if collective.overlapped and collective.kind == "collective_permute":
            # A step of a ring: all steps in both directions bring what an all_gather brings, as fast.
            return collective_seconds("all_gather", collective.operand_bytes, levels) / (collective.group_size - 1)
        return collective_seconds(collective.kind, collective.operand_bytes, levels)

    program, moved = executed(plan), collectives_of(plan)
    levels = [levels_of(axes_of(c, sizes), layout, sizes) if layout else () for c in moved]
    seconds = [None if machine is None else timed(c, used) for c, used in zip(moved, levels)]
    collectives = tuple(
        CollectiveCost(c, c.call_bytes, None if once is None else once * c.runs, tuple(dict.fromkeys(level.links.name for level in used)))
        for c, once, used in zip(moved, seconds, levels)
    )
    delays: dict[Op, float] = {}
    beside: dict[Block | None, float] = {}
    for (collective, step), once in zip(program.transfers, seconds):
        if step is not None and once is not None:
            delays[step] = delays.get(step, 0.0) + once
        if collective.overlapped:
            block = program.block if step is None else step.block
            beside[block] = beside.get(block, 0.0) + (once or 0.0) * collective.runs
    roofline = None if machine is None else functools.cache(functools.partial(roofline_seconds, hardware=machine))
    walked = BlockCosts(program.block, program.meshes, roofline, delays)
    ops: list[OpCost] = []
    for run in walked.runs:
        value = program.values.get(run.op.results[0]) if run.op.results else None
        once = None if roofline is None else roofline(run.work, run.accessed)
        ops.append(
            OpCost(
                "" if value is None else value.path,
                run.op.primitive or run.op.name,
                "" if value is None else value.location,
                "" if value is None else value.module,
                run.work.flops * run.trips,
                run.work.transcendentals * run.trips,
                run.accessed.bytes * run.trips,
                None if once is None else once * run.trips,
                run.trips,
                run.work.host * run.trips,
            )
        )
    hidden = _hidden(beside, walked.runs, ops) if beside else 0.0
    exact = walked.exact and all(c.trips is not None for c in moved)
    path, unknown = None if machine is None else walked.path, tuple(walked.unknown)
    cost = CostAnalysis(plan.name, plan.mesh, machine, layout, tuple(ops), collectives, path, exact, unknown, plan.fed_bytes, hidden)
    _computed(plan).append(cost)
    return cost


def _hidden(beside: Mapping[Block | None, float], runs: Sequence[Run], ops: Sequence[OpCost]) -> float:
    """The seconds of overlapped collectives, given those of each body, that the ops of that body and of those inside of it hide."""
    computing = dict.fromkeys(beside, 0.0)
    for run, op in zip(runs, ops, strict=True):
        for around in run.op.outward():
            if around.block in computing:
                computing[around.block] += op.seconds or 0.0
    hidden = sum(min(computing[block], seconds) for block, seconds in beside.items())
    return min(hidden, sum(op.seconds or 0.0 for op in ops))
