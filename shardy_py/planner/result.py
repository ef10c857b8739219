"""The report of a search: `plan.search`, with the space that was searched in words, what constraints cost, and its certificate."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence

from shardy_py.ir import Op
from shardy_py.plan.checks.shardings import OPAQUE
from shardy_py.plan.checks.specs import sharding_text
from shardy_py.plan.collectives import format_bytes
from shardy_py.plan.cost_analysis import seconds_text
from shardy_py.plan.costing import analyse as cost_of
from shardy_py.plan.memory.analysis import ERROR
from shardy_py.plan.progress import report
from shardy_py.plan.record import PlanRecord
from shardy_py.plan.search import MODEL_BOUND, NOTHING, Price, Search, Status
from shardy_py.plan.values import location_of
from shardy_py.planner.assignment import ROUNDING, solve, stages_of
from shardy_py.planner.certificate import Certificate, encode, proven
from shardy_py.planner.evaluation import Evaluation, descend
from shardy_py.planner.judge import Candidate, latency_of
from shardy_py.planner.op_tables import TooLarge
from shardy_py.planner.problem import cost_of_entries, restricted
from shardy_py.planner.search import LARGE, Searcher
from shardy_py.planner.space import Resolution, resolutions, stated, transferred
from shardy_py.rules.traits import UNCONSTRAINED, is_constraint

LISTED = 5
"""Inputs that lie whole, and ops without a rule, that are named."""


def search_of(searcher: Searcher, best: Candidate, bound: float) -> Search:
    """The report of a search."""
    planner = searcher.planner
    bound *= 1 - planner.overlap  # the upper end of a step is at least the bound, and the lower end at least nothing
    prices = constraint_prices(searcher, best)
    # A region that takes less than the bound is the best one known where nothing is cheaper than its assignment by the model either.
    seconds = max(best.seconds, searcher.model.seconds(best.assignment) * (1 - planner.overlap)) if best.seconds < bound else best.seconds
    optimal = seconds - bound <= (planner.gap + ROUNDING) * seconds
    ended: Status = "time_limit" if searcher.is_late else "work_limit"
    return Search(
        hardware=planner.machine.name,
        objective_seconds=best.seconds,
        lower_bound_seconds=min(bound, best.seconds),
        peak_bytes=best.peak,
        budget_bytes=planner.budget,
        status="optimal" if optimal else "template" if best.name else ended,
        space=_space(searcher, best, bound) | ({MODEL_BOUND: seconds_text(bound)} if bound > (1 + ROUNDING) * best.seconds else {}),
        timings={**searcher.timings, "total": time.monotonic() - searcher.began},
        margin_bytes=math.ceil(best.peak * ERROR),
        shards_values=searcher.propagate is None,
        constraint_prices=prices,
        annotations=planner.annotations,
    )


def _space(searcher: Searcher, best: Candidate, bound: float) -> dict[str, str]:
    """The size of the space, and notes on what is not in it, in no price, or in no proof."""
    model, free = searcher.model, len(searcher.model.variables)
    notes = {
        "nothing to choose": ""
        if free
        else f"no size is a multiple of an axis of {searcher.base.mesh} where nothing is annotated: devices share no work",
        NOTHING: _nothing_sharded(searcher, best, bound),
        **_resolution_notes(searcher.space.resolution),
        "objective of the model": _objective_of_model(searcher, best),
        "not donated": _not_donated(searcher),
        "fed": _fed(searcher, best.run),
        "ops without a rule": _opaque_ops(searcher, best.run),
        "time limit": "ended the search: on a machine that is less busy it may end with another plan" if searcher.is_late else "",
        "constraints": ""
        if searcher.propagate is None
        else f"none: values inside follow by propagation; {len(searcher.outcomes)} shardings of arguments were tried",
        "templates left out": _templates_left_out(searcher),
    }
    return {
        "classes": f"{free} of {len(searcher.space.strategies)} classes of dimensions have a choice",
        "entries": str(searcher.entries),
        "moves": str(len(model.problem.moves)),
        **{name: text for name, text in notes.items() if text},
    }


def _nothing_sharded(searcher: Searcher, best: Candidate, bound: float) -> str:
    """Where the plan shards nothing, its step compared with the cheapest finished plan which shards: latencies may be longer."""
    if not searcher.model.variables or searcher.propagate is not None or searcher.is_sharded(best.assignment):
        return ""
    sharded = [each for each in searcher.finished if searcher.is_sharded(each.assignment)]
    if not sharded:
        return f"{seconds_text(best.seconds)} on one device"
    other = min(sharded, key=lambda each: each.seconds)
    count, latency = latency_of(other.run, searcher.planner)
    collectives = f"{count} collective{'s' * (count != 1)}"
    named = f"the cheapest sharded plan that was finished, {f'{other.name}, ' if other.name else ''}{seconds_text(other.seconds)}"
    proof = "; no plan in the space searched takes less than on one device" if bound >= (1 - ROUNDING) * best.seconds else ""
    return f"{seconds_text(best.seconds)} on one device; {named}, {seconds_text(latency)} of it latency of {collectives}{proof}"


def _resolution_notes(resolution: Resolution) -> dict[str, str]:
    """Layers and mesh axes that the space does not tell apart."""
    reason = "to keep the model small; the bound covers such plans only"
    count = len({name for names in resolution.cuts for name in names})
    cuts = ", ".join("+".join(names) for names in resolution.cuts if names)
    return {
        "alike layers": "" if resolution.layers else f"sharded alike, {reason}",
        "ops": "" if resolution.mixes else f"each has the joint strategies that templates have, {reason}",
        "sets of axes": f"dimensions are cut over {cuts} or not at all, {reason}" if len(resolution.cuts) < 1 << count else "",
    }


def _objective_of_model(searcher: Searcher, best: Candidate) -> str:
    """The price of a region by the model."""
    if searcher.region is None:
        return ""
    seconds = seconds_text(searcher.model.seconds(best.assignment))
    return f"{seconds}, to which the bound applies; the plan itself also shares copies, and fuses differently"


def _not_donated(searcher: Searcher) -> str:
    """Arguments taken for the last values of results, which are not donated."""
    count = len(searcher.annotations.alike) - len([d for d in searcher.base.donation if d.output is not None])
    return f"{count} arguments lie as the results of their names and types, which are taken for their next values" if count else ""


def _fed(searcher: Searcher, plan: PlanRecord) -> str:
    """What comes from the host in every call, and goes back to it."""
    feeding, planner = plan.feeding, searcher.planner
    values = [*(plan.inputs[n] for n in feeding.arguments), *(plan.outputs[n] for n in feeding.results)]
    if not values:
        return "nothing: a step without a backward pass, or that replaces no argument, has its arguments on the devices"
    seconds = cost_of(plan, planner.hardware, planner.links).feeding_seconds
    price = seconds_text(seconds) if seconds else "in no price without the host_bandwidth of the hardware"
    listed = _listed([value.path for value in values])
    return f"{listed}: {format_bytes(plan.fed_bytes)} a device, {price}; what the step replaces stays on the devices"


def _opaque_ops(searcher: Searcher, plan: PlanRecord) -> str:
    """Primitives of which some op has no sharding rule, whose one strategy is whole, with their seconds, the costliest first."""
    opaque = {
        op.primitive or str(op.attributes.get("call_target_name", op.name))
        for op in searcher.program.walk()
        if op.name in OPAQUE and not op.rule
    }
    shares = cost_of(plan, searcher.planner.hardware, searcher.planner.links).by_op
    timed = [f"{share.name} {seconds_text(share.seconds)}" for share in shares if share.name in opaque and share.seconds]
    return f"run whole: {', '.join(timed[:LISTED])} of the step" if timed else ""


def _templates_left_out(searcher: Searcher) -> str:
    """Templates of the user's that the space has no plans of."""
    names = {template.name for template in searcher.user_templates} - {template.name for template in searcher.own_templates}
    return f"{', '.join(sorted(names))}, which need more to be told apart" if names else ""


def _listed(items: Sequence[str]) -> str:
    more = f" and {len(items) - LISTED} more" if len(items) > LISTED else ""
    return f"{', '.join(items[:LISTED])}{more}"


def certificate_of(searcher: Searcher, best: Candidate, bound: float) -> str:
    """The certificate of a search, as text."""
    planner, model = searcher.planner, searcher.model
    problem = searcher.limited()
    chosen = model.entries(best.assignment)
    if not problem.keeps(chosen):
        problem = model.problem  # results lie as they follow by propagation
    own = cost_of_entries(problem, chosen)
    stages = stages_of(problem, own)
    links = planner.links or {}
    is_listed = isinstance(planner.hardware, str) and all(isinstance(each, str) for each in links.values())
    facts = {"objective": own + model.constant, "bound": proven(problem, own, stages) + model.constant, "constant": model.constant}
    facts |= {"searched": bound, "overlap": planner.overlap, "listed": is_listed, "links": dict(links) if is_listed and links else None}
    return encode(Certificate(problem, best.assignment, stages, facts))


WORTH = 0.1
"""The part of a step from which on the cost of constraints is worth a finding."""

SHARE = 0.1
"""The part of the time limit that the search without constraints may take."""

GAP = 0.02
"""How far from its bound the step without constraints may be."""

LINES = 3
"""Lines that are named."""


def lines_of(searcher: Searcher) -> dict[str, list[Op]]:
    """The user's constraints on values inside, by source line."""
    lines: dict[str, list[Op]] = {}
    for op in searcher.program.walk():
        if is_constraint(op) and op.result.type.rank > len(op.attributes.get(UNCONSTRAINED, ())):
            lines.setdefault(location_of(searcher.program, op), []).append(op)
    return lines


def constraint_prices(searcher: Searcher, best: Candidate) -> tuple[Price, ...]:
    """What constraints cost by the model, where it is much: all of them together, and then the lines that cost most if no other held."""
    lines = lines_of(searcher)
    if not lines:
        return ()
    report("pricing constraints")
    end = time.monotonic() + SHARE * searcher.planner.time_limit_s
    free = searcher.freed(tuple(lines))
    for resolution in (searcher.space.resolution, resolutions(searcher.base.mesh)[1]):
        try:
            free.prepare(resolution, max(LARGE, 4 * searcher.entries))
            break
        except TooLarge:
            continue
    else:
        return ()
    full = searcher.model.assignment(best.assignment)
    assignment = transferred(full, (searcher.program, searcher.space), (free.program, free.space))
    start, problem = [assignment[c] for c in free.model.variables], free.limited()
    numbers = {c: i for i, c in enumerate(free.model.variables)}
    solution = solve(problem, [start], gap=GAP, seconds=max(0.0, end - time.monotonic()))
    seconds, of_start = free.model.seconds(solution.assignment), free.model.seconds(start)
    if not math.isfinite(of_start) or not of_start - seconds >= WORTH * of_start:
        return ()
    total = best.seconds - seconds * (best.seconds / of_start if searcher.planner.overlap else 1.0)
    if total < WORTH * best.seconds:
        return ()
    scale = total / (of_start - seconds)

    def alone(ops: list[Op]) -> float:
        pairs = [pair for op in ops for pair in zip(free.space.classes[op.result], searcher.space.classes[op.result])]
        pins = {numbers[c]: (assignment[c],) for c, own in pairs if c in numbers and len(searcher.space.strategies[own]) == 1}
        evaluation = Evaluation(restricted(problem, pins))
        near = [pins.get(i, (strategy,))[0] for i, strategy in enumerate(solution.assignment)]
        ends = (descend(evaluation, each).assignment.tolist() for each in (near, start))
        return scale * (min(of_start, *map(free.model.seconds, ends)) - seconds)

    specs = {place: ", ".join(dict.fromkeys(sharding_text(each) for op in ops if (each := stated(op)))) for place, ops in lines.items()}
    costs = {place: total if len(lines) == 1 else alone(ops) for place, ops in lines.items()}
    prices = [Price(place, specs[place], cost, None, 0.0) for place, cost in costs.items() if cost >= WORTH * total]
    return (Price("all constraints", "", total, None, 0.0), *sorted(prices, key=lambda price: (-price.seconds, price.path))[:LINES])
