"""`Plan.explain`: resolves the target and assembles its explanation."""

from __future__ import annotations

import math

from shardy_py.dialect import TensorSharding
from shardy_py.dialect.format import sizes_text
from shardy_py.errors import UserError
from shardy_py.ir import Value
from shardy_py.passes.propagation.graph import Holder
from shardy_py.passes.propagation.log import FunctionResult
from shardy_py.plan.cost_analysis import seconds_text
from shardy_py.plan.explainer import Explainer, explainer_of
from shardy_py.plan.explanation import Explanation, Missing, Reason, Source
from shardy_py.plan.find import Match, find
from shardy_py.plan.missing import missing
from shardy_py.plan.record import PlanError, PlanRecord
from shardy_py.plan.values import PlannedValue, typed


def explain(plan: PlanRecord, target: str | PlannedValue, axis: str | None, dim: int | None) -> Explanation:
    """Explains a value of a plan; see `Plan.explain` for arguments and result."""
    _check_axis(plan, axis)
    match = find(plan, target)
    _check_dim(plan, match.planned, dim)
    if not plan.propagation.recorded:
        raise PlanError(
            f"the plan does not know why {match.planned.path} is {typed(match.planned.type, match.planned.sharding)}",
            where=f"plan of {plan.name}",
            why="it was made with Options(provenance=False), which keeps no steps of the propagation",
            fix="plan with Options(provenance=True), which is the default",
        )
    if plan.is_assigned or (plan.search is not None and match.planned.kind != "intermediate"):
        return _chosen(plan, match, axis, dim, target)
    explainer = explainer_of(plan)
    holder = _holder(explainer, match)
    sharding = match.planned.sharding
    chains: list[tuple[Reason, ...]] = []
    also: dict[Source, None] = {}
    connected: dict[Source, None] = {}
    for d, dims in enumerate(() if sharding is None else sharding.dims[: len(match.planned.shape)]):
        for n, a in enumerate(dims.axes):
            if (axis is None or a.name == axis) and (dim is None or d == dim):
                links = explainer.derivation(holder, d, dims.axes[: n + 1])
                chains.append(explainer.reasons(links))
                more, further = explainer.other_sources(holder, d, a, links)
                also.update(dict.fromkeys(more))
                connected.update(dict.fromkeys(further))
    return Explanation(
        match.planned.path,
        typed(match.planned.type, sharding),
        tuple(chains),
        axis,
        _missing(explainer, holder, match.planned, axis, dim, bool(chains)),
        tuple(also),
        tuple(source for source in connected if source not in also),
        match.nearby,
        "" if not isinstance(target, str) or target == match.planned.path else target,
        match.planned.primitive,
        match.planned.location,
    )


def _chosen(plan: PlanRecord, match: Match, axis: str | None, dim: int | None, target: str | PlannedValue) -> Explanation:
    """The explanation of a value whose sharding a planner chose, unless the user stated it."""
    planned = match.planned
    annotation = planned.given
    chains: list[tuple[Reason, ...]] = []
    for d, dims in enumerate(() if planned.sharding is None else planned.sharding.dims[: len(planned.shape)]):
        for n, a in enumerate(dims.axes):
            if (axis is None or a.name == axis) and (dim is None or d == dim):
                from_user = annotation is not None and any(a.name == own.name for own in annotation.dims[d].axes)
                axes = tuple(each.name for each in dims.axes[: n + 1])
                if from_user:
                    reason = Reason(planned.path, d, a.name, "annotation", annotation=planned.given_by, axes=axes)
                else:
                    reason = Reason(planned.path, d, a.name, "planner", annotation=_choice(plan, planned, d), axes=axes)
                chains.append((reason,))
    query = "" if not isinstance(target, str) or target == planned.path else target
    return Explanation(
        planned.path,
        typed(planned.type, planned.sharding),
        tuple(chains),
        axis,
        nearby=match.nearby,
        asked=query,
        primitive=planned.primitive,
        location=planned.location,
        choice="" if chains else "the planner leaves it whole",
    )


def _choice(plan: PlanRecord, planned: PlannedValue, dim: int) -> str:
    """The decision of a planner on a dimension, with what it costs to leave it whole."""
    decision = "chosen by the planner"
    if plan.search is None or plan.search.pricer is None or planned.sharding is None:
        return decision
    spec = [
        () if d == dim else tuple(axis.name for axis in each.axes) for d, each in enumerate(planned.sharding.dims[: len(planned.shape)])
    ]
    try:
        more = plan.search.price(planned.path, spec).seconds
    except UserError:  # an annotation of a value that lies alike
        return f"{decision}, as an annotation needs it"
    if math.isinf(more):
        return f"{decision}: with it whole no plan was found"
    return f"{decision}: {seconds_text(more)} less than whole" if more > 0 else f"{decision}: it costs nothing beside whole"


def _missing(
    explainer: Explainer, holder: Holder, planned: PlannedValue, axis: str | None, dim: int | None, has_chains: bool
) -> tuple[Missing, ...]:
    dims = [d for d in range(len(planned.shape)) if dim is None or d == dim]
    if axis is not None:
        return () if has_chains else tuple(missing(explainer, holder, d, axis, planned) for d in dims)
    if not has_chains:
        axes = [each.name for each in explainer.plan.mesh.axes if each.size > 1]
        return tuple(missing(explainer, holder, d, name, planned) for name in axes for d in dims)
    before = explainer.history.at(holder, explainer.history.end)
    cut = [(d, name) for d in dims for name in _names(before, d) if name not in _names(planned.sharding, d)]
    return tuple(missing(explainer, holder, d, name, planned) for d, name in cut)


def _names(sharding: TensorSharding | None, dim: int) -> list[str]:
    return [] if sharding is None else list(dict.fromkeys(axis.name for axis in sharding.dims[dim].axes))


def _holder(explainer: Explainer, match: Match) -> Holder:
    """The holder of a value's sharding during the propagation."""
    if isinstance(match.value, Value):
        return explainer.history.holder(match.value)
    result = explainer.history.results.get(match.value)
    return explainer.history.holder(FunctionResult(match.value, match.planned.given)) if result is None else result


def _check_axis(plan: PlanRecord, axis: str | None) -> None:
    if axis is not None and axis not in plan.mesh.shape:
        raise PlanError(
            f"unknown mesh axis {axis!r}",
            where=f"plan of {plan.name}",
            why=f"the mesh has {sizes_text(plan.mesh.shape)}",
            fix=f"use one of {', '.join(map(repr, plan.mesh.shape))}",
        )


def _check_dim(plan: PlanRecord, planned: PlannedValue, dim: int | None) -> None:
    if dim is not None and not (isinstance(dim, int) and 0 <= dim < len(planned.shape)):
        raise PlanError(
            f"{planned.path} has no dimension {dim!r}",
            where=f"plan of {plan.name}",
            why=f"it is {typed(planned.type, planned.sharding)}",
            fix=f"use a number from 0 to {len(planned.shape) - 1}" if planned.shape else "leave dim out",
        )
