"""Derivation of an axis on a dimension: the steps that brought it, each with the facts it depends on, back to the annotations.

A fact says with which axes a dimension of a value begins. Dimensions only grow at their end, so a fact stays true, and a step that
brought an axis brings it again wherever the facts that it needs hold.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from shardy_py.dialect import AxisRef, DimensionSharding, Mesh, OpShardingRule, TensorSharding
from shardy_py.dialect.axis import Axes, add_axis_or_merge, is_prefix
from shardy_py.dialect.projection import FactorSharding, project
from shardy_py.errors import ShardyError
from shardy_py.ir import Block, Op, Value
from shardy_py.passes import dataflow
from shardy_py.passes.propagation.graph import Holder
from shardy_py.passes.propagation.log import FunctionResult, LogStep
from shardy_py.passes.propagation.step import common_mesh
from shardy_py.rules import identity_rule

ANNOTATION, GROUP, MEMBER, PRIORITY, PROPAGATE = "annotation", "group", "member", "priority", "propagate"
CONSTRAINING = ("a closed sharding constraint", "the in sharding of a manual computation")
"""Reasons of steps in which a value takes the sharding of its constraint, before the propagation."""

_PROPAGATION = frozenset((ANNOTATION, GROUP, MEMBER, PRIORITY, PROPAGATE, *CONSTRAINING))


class History:
    """The log of one propagation, whose steps from `end` on only cut shardings, and the annotations that it began with."""

    def __init__(self, log: Sequence[LogStep]) -> None:
        self.log = log
        self.end = len(log)
        self.steps: dict[Holder, list[int]] = {}
        self.groups: dict[Holder, LogStep] = {}
        self.results: dict[int, FunctionResult] = {}
        self.annotated: dict[Holder, TensorSharding] = {}
        self.initial: dict[Holder, TensorSharding | None] = {}
        self._holders: dict[Value, Holder] = {}
        for number, step in enumerate(log):
            target, reason = step.target, step.reason
            if reason not in _PROPAGATION:
                self.end = min(self.end, number)
                if step.op is not None and step.op.name == "func.return":
                    continue  # told of the value that is returned; it is the result that is cut, see `cuts`
            holder = self.holder(target)
            if holder not in self.initial:
                self.initial[holder] = step.old
                if step.old is not None and not (step.old.is_fully_open and not step.old.has_axes):
                    self.annotated[holder] = step.old
            if reason == MEMBER:
                self.groups.setdefault(holder, step)
            if step.old is not step.new:
                self.steps.setdefault(holder, []).append(number)

    def holder(self, value: Any) -> Holder:
        """The value of a planned program that stands for the holder of a sharding."""
        if not isinstance(value, Value):
            return self.results.setdefault(value.index, value)
        owner = value.owner
        if isinstance(owner, Op):
            if owner.name == dataflow.EDGE:
                return owner.operands[0]
            if owner.name not in dataflow.DATA_FLOW_OPS:
                return value
        holder = self._holders.get(value)
        if holder is None:
            shardable = dataflow.shardable_value(value) or value
            if isinstance(shardable.owner, Op) and shardable.owner.name == dataflow.EDGE:
                shardable = shardable.owner.operands[0]
            holder = self._holders[value] = shardable
        return holder

    def at(self, holder: Holder, time: int) -> TensorSharding | None:
        """The sharding of a holder before a step; None is open."""
        steps = self.steps.get(holder, ())
        i = bisect_left(steps, time)
        return self.log[steps[i - 1]].new if i else self.initial.get(holder)

    def arrival(self, holder: Holder, dim: int, axes: Axes, time: int) -> int | None:
        """The step before `time` that brought the last of some axes to a dimension; None where an annotation has them."""
        steps = self.steps.get(holder, ())
        for i in range(bisect_left(steps, time) - 1, -1, -1):
            step = self.log[steps[i]]
            if begins_with(step.new, dim, axes) and not begins_with(step.old, dim, axes):
                return steps[i]
        return None

    def cuts(self, holder: Holder, dim: int) -> list[tuple[TensorSharding, TensorSharding | None, str]]:
        """Shardings before and after each cut of a dimension that follows the propagation, and the reason."""
        cuts = []
        for number in range(self.end, len(self.log)):
            step = self.log[number]
            of_result = step.op is not None and step.op.name == "func.return"
            if of_result:
                same = isinstance(holder, FunctionResult) and step.op is not None and step.target in step.op.operands[holder.index :][:1]
            else:
                same = self.holder(step.target) is holder
            if same and step.old is not None and (step.new is None or step.old.dims[dim].axes != step.new.dims[dim].axes):
                cuts.append((step.old, step.new, step.reason))
        return cuts


def begins_with(sharding: TensorSharding | None, dim: int, axes: Axes) -> bool:
    """Whether the axes of a dimension begin with these; the last may be the major part of an axis."""
    return sharding is not None and dim < sharding.rank and is_prefix(axes, sharding.dims[dim].axes)


class Fact(NamedTuple):
    """The axes with which a dimension of a value begins."""

    holder: Holder
    dim: int
    axes: Axes


class ChainLink(NamedTuple):
    """The step that established a fact, -1 for an annotation, with the positions in the derivation of the links that it needs."""

    fact: Fact
    number: int
    step: LogStep | None
    factors: tuple[int, ...]
    needs: tuple[int, ...]
    sources: tuple[Holder, ...] = ()


class RuleView:
    """The tensors of a step as its rule compares them; at the border of a manual computation this differs from the stored form."""

    def __init__(self, op: Op | None, tensors: Sequence[Holder], owner: Value | None = None) -> None:
        self.op = op
        self.tensors = tensors
        self.last = len(tensors) - 1
        self.edge = owner if owner is not None else op.operands[0] if op is not None and op.name == dataflow.EDGE else None
        op = None if self.edge is None else edge_op(self.edge)
        self.owner = self.edge if op is not None and op.name == dataflow.MANUAL_COMPUTATION else None

    def rule(self) -> OpShardingRule | None:
        """The rule of the step."""
        if self.edge is None and self.op is not None and self.op.name not in IDENTITIES:
            return self.op.rule
        shaped = next((t for t in reversed(self.tensors) if isinstance(t, Value)), None)
        return None if shaped is None else identity_rule(shaped.type.shape, len(self.tensors) - 1)

    def seen(self, i: int, sharding: TensorSharding | None) -> TensorSharding | None:
        """A stored sharding of tensor `i` as the rule compares it."""
        return sharding if self.owner is None or i != self.last or sharding is None else dataflow.before_edge(self.owner, sharding)

    def stored(self, i: int, sharding: TensorSharding) -> TensorSharding:
        """The inverse of `seen`."""
        return sharding if self.owner is None or i != self.last else dataflow.after_edge(self.owner, sharding)

    def seen_axes(self, i: int, fact: Fact) -> Axes:
        """The axes of a fact about tensor `i` as the rule compares them."""
        return fact.axes if self.owner is None or i != self.last else self._axes(fact, self.seen)

    def stored_axes(self, i: int, fact: Fact) -> Axes:
        """The inverse of `seen_axes`."""
        return fact.axes if self.owner is None or i != self.last else self._axes(fact, self.stored)

    def _axes(self, fact: Fact, change: Callable[[int, TensorSharding], TensorSharding | None]) -> Axes:
        assert self.owner is not None
        rank = self.owner.type.rank
        dims = [DimensionSharding(fact.axes if d == fact.dim else ()) for d in range(rank)]
        changed = change(self.last, TensorSharding("", dims))
        return () if changed is None else changed.dims[fact.dim].axes


IDENTITIES = frozenset((dataflow.EDGE, dataflow.FUNC_EDGE, "sdy.propagation_barrier"))
"""Ops that propagate as an identity, whatever rule is recorded on them."""


def edge_op(owner: Value) -> Op | None:
    """The loop, branch or computation whose edge a value owns."""
    op = owner.owner.parent if isinstance(owner.owner, Block) else owner.owner
    return op if isinstance(op, Op) else None


def derive(facts: Iterable[Fact], history: History, meshes: Mapping[str, Mesh]) -> tuple[list[ChainLink], list[int]]:
    """The links of facts, each before those it depends on and shared links once, and for each fact the position of its link among them."""
    links: list[ChainLink] = []
    positions: dict[tuple[Fact, int], int] = {}
    waiting: list[tuple[Fact, int]] = []

    def position(fact: Fact, before: int) -> int:
        """The position of the link of a fact; a new fact is queued."""
        number = history.arrival(*fact, before)
        key = (fact, -1 if number is None else number)
        index = positions.get(key)
        if index is None:
            index = positions[key] = len(waiting)
            waiting.append(key)
        return index

    first = [position(fact, history.end) for fact in facts]
    while len(links) < len(waiting):
        fact, number = waiting[len(links)]
        if number < 0:
            links.append(ChainLink(fact, -1, None, (), ()))
            continue
        step = history.log[number]
        needs, factors = _needs(fact, step, number, history, meshes)
        sources = tuple(need.holder for need, _ in needs)
        links.append(ChainLink(fact, number, step, factors, tuple(position(*need) for need in needs), sources))
    return links, first


def _needs(
    fact: Fact, step: LogStep, number: int, history: History, meshes: Mapping[str, Mesh]
) -> tuple[list[tuple[Fact, int]], tuple[int, ...]]:
    """The facts that a step depends on to establish a fact, each with the number of a step before which it holds; and the factors."""
    if step.reason == PROPAGATE:
        return _propagated(fact, step, number, history, meshes)
    if step.reason == GROUP:
        for member in step.tensors:
            holder = history.holder(member)
            if holder is not fact.holder and begins_with(history.at(holder, number), fact.dim, fact.axes):
                return [(Fact(holder, fact.dim, fact.axes), number)], ()
    if step.reason in CONSTRAINING and step.op is not None:
        if step.op.name != dataflow.MANUAL_COMPUTATION:  # whose own shardings belong to no value
            return [(Fact(step.op.results[0], fact.dim, fact.axes), 0)], ()
    if step.reason == PRIORITY:
        # Set aside by the first such step, back by this one; what was set aside may have come from a constraint or a group before.
        aside = next(n for n in history.steps[fact.holder] if history.log[n].reason == PRIORITY)
        return ([(fact, aside)] if history.arrival(*fact, aside) is not None else []), ()
    if step.reason not in (GROUP, *CONSTRAINING):
        raise _unfit(number, step)
    return [], ()


def _unfit(number: int, step: LogStep) -> ShardyError:
    """The error for a log that does not belong to its program; only a stored plan that was edited by hand has one."""
    return ShardyError(
        "the log of the plan does not fit its program",
        where=f"step {number} ({step.reason})",
        why="a step of the log does not give the recorded sharding",
        fix="make the plan again, or load an unchanged file",
    )


def _propagated(
    fact: Fact, step: LogStep, number: int, history: History, meshes: Mapping[str, Mesh]
) -> tuple[list[tuple[Fact, int]], tuple[int, ...]]:
    holders = [history.holder(t) for t in step.tensors]
    view = RuleView(step.op, step.tensors)
    before = [view.seen(i, history.at(h, number)) for i, h in enumerate(holders)]
    named_mesh = common_mesh(before, meshes)
    rule = view.rule()
    if named_mesh is None or rule is None or len(rule.mappings) != len(before):
        raise _unfit(number, step)
    mesh, sizes, mappings = named_mesh[1], rule.factor_sizes, rule.mappings
    if any(s is not None and s.rank != len(m) for m, s in zip(mappings, before, strict=True)):
        raise _unfit(number, step)
    factors_of = [project(m, s, sizes, mesh).factors for m, s in zip(mappings, before, strict=True)]
    for i, holder in enumerate(holders):
        if holder is not fact.holder:
            continue
        if fact.dim >= len(mappings[i]):
            raise _unfit(number, step)
        target_axes = view.seen_axes(i, fact)
        dim = mappings[i][fact.dim]
        old = factors_of[i]
        needs: dict[tuple[Fact, int], None] = {}
        own_axes: Axes = ()
        factors = []
        for f, axes in _dealt(dim, target_axes, sizes, mesh).items():
            if not axes:
                continue
            if is_prefix(axes, old[f].axes):
                own_axes = _up_to(dim, f, axes, old, mesh)
                continue
            source = next((j for j, of in enumerate(factors_of) if j != i and f in of and is_prefix(axes, of[f].axes)), None)
            if source is None:
                break
            d = next(d for d, dim_factors in enumerate(mappings[source]) if f in dim_factors)
            prefix = _up_to(mappings[source][d], f, axes, factors_of[source], mesh)
            need = Fact(holders[source], d, prefix)
            stored = view.stored_axes(source, need)
            if stored:  # manual axes alone are stated by the computation itself
                needs[need._replace(axes=stored), number] = None
            factors.append(f)
        else:
            prefix = view.stored_axes(i, Fact(holder, fact.dim, own_axes))
            if prefix:
                needs[Fact(holder, fact.dim, prefix), number] = None
            if factors:
                return list(needs), tuple(factors)
    raise _unfit(number, step)


def _dealt(dim: Sequence[int], axes: Axes, sizes: Sequence[int], mesh: Mesh) -> dict[int, Axes]:
    """Distributes the leading axes of a dimension to its factors."""
    if len(dim) == 1:
        return {dim[0]: axes}
    factors = project((dim,), TensorSharding(mesh, (DimensionSharding(axes),)), sizes, mesh).factors
    return {f: factors[f].axes for f in dim if f in factors}


def _up_to(dim: Sequence[int], factor: int, axes: Axes, factors: Mapping[int, FactorSharding], mesh: Mesh) -> Axes:
    """The dimension prefix implied by the axes of its factors up to `factor`."""
    out: list[AxisRef] = []
    for f in dim:
        part: Axes = axes if f == factor else factors[f].axes
        for axis in part:
            add_axis_or_merge(out, axis, mesh)
        if f == factor:
            break
    return tuple(out)
