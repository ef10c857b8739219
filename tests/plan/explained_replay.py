"""Replays the steps of an explanation from nothing but the annotations that it names."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from shardy_py.dialect import AxisRef, OpShardingRule, PropagationDirection, TensorSharding
from shardy_py.facade import Plan
from shardy_py.passes.propagation.graph import Holder, everything, schedule
from shardy_py.passes.propagation.log import LogStep
from shardy_py.passes.propagation.step import FactorStrategy, propagate_step
from shardy_py.plan.derivation import RuleView, begins_with
from shardy_py.plan.explainer import explainer_of
from shardy_py.plan.explanation import Reason
from shardy_py.rules import is_elementwise, pass_through_direction


@dataclass(frozen=True)
class Replay:
    """A plan whose steps are replayed.

    Attributes:
        plan: The plan.
        changes: Step, strategy and shardings -> the shardings that change: chains share most of their steps.
    """

    plan: Plan
    changes: dict[tuple[object, ...], dict[int, TensorSharding]] = field(default_factory=dict)


def replayed(replay: Replay, chain: Sequence[Reason], *, whole: bool) -> dict[Holder, TensorSharding | None]:
    """The shardings that the steps of a chain give, in the order of the log, each to the value it is about.

    Args:
        replay: The plan.
        chain: One of an explanation.
        whole: Whether the annotations that it names are there with all their axes, or with those only that it names. All other values
            are open.
    """
    explainer, log = explainer_of(replay.plan), replay.plan.log
    history, name = explainer.history, explainer.name
    said = [r for r in chain if not r.needs]
    named = {(r.value, r.annotation, r.location) for r in said}
    state: dict[Holder, TensorSharding | None] = {}
    for holder, sharding in history.annotated.items():
        if (name(holder), *explainer.annotation(holder)) in named:
            state[holder] = only(sharding, name(holder), chain, whole)
    for step in (log[r.step] for r in said if r.step >= 0):
        if step.reason == "propagate" and step.op is not None:  # manual axes, which the specs of a shard_map state
            edge = history.holder(step.op.operands[0])
            given = history.initial.get(edge)
            state[edge] = None if given is None else only(given, "", (), whole)
    numbers = {r.step for r in chain if r.step >= 0}
    for number, step in enumerate(log):
        holder = history.holder(step.target)
        if step.reason == "priority" and holder in state and step.new is not None:
            state[holder] = only(step.new, name(holder), chain, whole)
        if number not in numbers:
            continue
        if step.reason == "group":
            given = [state.get(history.holder(v)) for v in step.tensors if history.holder(v) is not holder]
            state[holder] = next((s for s in given if s is not None and s.has_axes), None)
        elif step.reason == "propagate":
            _propagate(replay, state, number, step)
        elif step.reason != "priority":
            assert step.op is not None
            assert step.new is not None
            manual = step.op.name == "sdy.manual_computation"
            state[holder] = only(step.new, name(holder), said, whole) if manual else state[step.op.results[0]]
    return state


def only(sharding: TensorSharding, value: str, named: Sequence[Reason], whole: bool) -> TensorSharding:
    """A sharding with the axes only that some reasons about a value name, or the whole of it."""
    if whole:
        return sharding
    dims = []
    for d, dim in enumerate(sharding.dims):
        texts = max((r.axes for r in named if (r.value, r.dim) == (value, d)), key=len, default=())
        axes = tuple(map(axis_of, texts))
        dims.append(dim.with_axes(axes if begins_with(sharding, d, axes) else ()))
    return sharding.with_dims(dims)


def axis_of(text: str) -> AxisRef:
    """The inverse of `format_axis`."""
    name, mark, part = text.partition(":(")
    return AxisRef.parse(f'"{name}"{mark}{part}' if not text.startswith('"') else text)


def _propagate(replay: Replay, state: dict[Holder, TensorSharding | None], number: int, step: LogStep) -> None:
    plan = replay.plan
    history, how = explainer_of(plan).history, plan.propagation
    holders = [history.holder(t) for t in step.tensors]
    target = history.holder(step.target)

    def changes(shardings: Sequence[TensorSharding | None], strategy: FactorStrategy) -> dict[int, TensorSharding]:
        key = (number, strategy, *shardings)
        if key not in replay.changes:
            changed = _changes(plan, step, shardings, strategy)
            replay.changes[key] = {i: new for i, new in changed.items() if holders[i] is target}
        return replay.changes[key]

    for strategy in ("basic", "aggressive") if how.strategy == "basic-then-aggressive" else (how.strategy,):
        # An op that takes a value twice changes it once for each; the step is one of these.
        first = changes(step.before, strategy)
        found = changes([state.get(h) for h in holders], strategy)
        for i in [i for i, new in first.items() if new is step.new] or first:
            if i in found:
                state[target] = found[i]


def _changes(plan: Plan, step: LogStep, shardings: Sequence[TensorSharding | None], strategy: FactorStrategy) -> dict[int, TensorSharding]:
    """Tensor -> its sharding after the step, of those that the step changes."""
    view = RuleView(step.op, step.tensors)
    rule = view.rule()
    assert rule is not None
    is_op = step.op is not None and view.edge is None
    elementwise = step.op is not None and view.edge is None and is_elementwise(step.op.name)
    seen = [view.seen(i, s) for i, s in enumerate(shardings)]
    conservative = plan.propagation.conservative and is_op
    update = propagate_step(
        rule, _directions(step, rule), seen, plan.program.meshes, strategy=strategy, conservative=conservative, elementwise=elementwise
    )
    return {i: view.stored(i, new) for i, new in update}


def _directions(step: LogStep, rule: OpShardingRule) -> tuple[int, ...]:
    """The directions of a step at its op priority."""
    op = step.op
    if op is not None and op.name == "sdy.propagation_barrier":
        return (int(op.attributes.get("allowed_direction", PropagationDirection.NONE)),) * rule.num_factors
    if op is None or step.op_priority < 0:
        return everything(rule)
    found = schedule(rule, int(pass_through_direction(op)), op.name == "stablehlo.broadcast_in_dim")[step.op_priority]
    assert found is not None
    return found


def holds(replay: Replay, chain: Sequence[Reason], target: Holder) -> bool:
    """Whether the steps of a chain bring what it explains, from the axes that it names and from the annotations that have these."""
    axes = tuple(map(axis_of, chain[0].axes))
    return all(begins_with(replayed(replay, chain, whole=whole).get(target), chain[0].dim, axes) for whole in (False, True))
