"""The origin of every axis of every value, as columns of numbers from which a page builds the chain of a chosen one.

A link says how a dimension of a value came to begin with some axes, and which links that needed. Links are shared, so that the explanations
of all values together take space in proportion to the propagation's log, however long their chains are.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from shardy_py.passes.propagation.graph import Holder
from shardy_py.passes.propagation.log import FunctionResult
from shardy_py.plan.derivation import Fact, derive_all
from shardy_py.plan.explainer import Explainer, explainer_of
from shardy_py.plan.record import PlanRecord
from shardy_py.view.html.tables import Interner, Tables


def links(plan: PlanRecord, tables: Tables, number: Callable[[Holder, str], int]) -> dict[str, Any] | None:
    """The links of all axes of all values; None where the plan keeps no record of them.

    Returns:
        `first`: for every value in the order of `plan.values`, every dimension and every axis of it, the number of its link. Then, with
        one entry per link: `holders`, the number of the value; `spots`, the row in `spot_rows`, `[dimension, axes with which it begins]`;
        `ways`, the row in `way_rows`, `[cause, through, rule, factor, annotation, user priority, op priority]`, texts as numbers of
        strings; `places`; `steps`, the number of the step in the log, -1 for what was given; `needs`, the number of the link that it
        needs, -1 for none, or a list where it needs several.
    """
    if not plan.propagation.recorded:
        return None
    explainer = explainer_of(plan)
    derived, first = derive_all(_facts(plan, explainer), explainer.history, plan.program.meshes)
    text = tables.strings
    spots = Interner[tuple[int, tuple[str, ...]]](lambda spot: [spot[0], [*spot[1]]])
    causes = Interner[tuple[Any, ...]](lambda way: [*map(text, way[:5]), *way[5:]])
    columns: dict[str, list[Any]] = {name: [] for name in ("holders", "spots", "ways", "places", "steps", "needs")}
    for link in derived:
        reason = explainer.reason(link, link.needs)
        columns["holders"].append(number(link.fact.holder, reason.value))
        columns["spots"].append(spots((reason.dim, reason.axes)))
        way = (reason.cause, reason.through, reason.rule, reason.factor, reason.annotation, reason.user_priority, reason.op_priority)
        columns["ways"].append(causes(way))
        columns["places"].append(tables.places((reason.location, "")))
        columns["steps"].append(reason.step)
        columns["needs"].append(-1 if not link.needs else link.needs[0] if len(link.needs) == 1 else [*link.needs])
    return {"first": first, **columns, "spot_rows": spots.rows, "way_rows": causes.rows}


def _facts(plan: PlanRecord, explainer: Explainer) -> list[Fact]:
    history = explainer.history
    holders: list[tuple[Holder, Any]] = []
    holders += ((history.holder(value), planned) for value, planned in zip(plan.program.main.arguments, plan.inputs))
    holders += ((history.holder(value), planned) for value, planned in plan.intermediates)
    for index, planned in enumerate(plan.outputs):
        holder = history.results.get(index)
        holders.append((history.holder(FunctionResult(index, planned.given)) if holder is None else holder, planned))
    facts = []
    for holder, planned in holders:
        if planned.sharding is None:
            continue
        for d, dim in enumerate(planned.sharding.dims[: len(planned.shape)]):
            facts += (Fact(holder, d, dim.axes[: n + 1]) for n in range(len(dim.axes)))
    return facts
