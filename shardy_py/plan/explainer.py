"""Writes derivations and obstacles of a plan in the user's terms: paths, primitives, source lines."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Sequence

from shardy_py.dialect import AxisRef, OpShardingRule, TensorSharding
from shardy_py.dialect.axis import Axes
from shardy_py.dialect.format import format_axis
from shardy_py.dialect.rule import factor_symbol
from shardy_py.ir import Block, Function, Op, Value
from shardy_py.passes import dataflow
from shardy_py.passes.propagation.graph import Holder
from shardy_py.passes.propagation.log import FunctionResult
from shardy_py.passes.walk import ops_of
from shardy_py.plan.derivation import (
    CONSTRAINING,
    GROUP,
    IDENTITIES,
    PRIORITY,
    PROPAGATE,
    ChainLink,
    Fact,
    History,
    RuleView,
    begins_with,
    derive,
    edge_op,
)
from shardy_py.plan.explanation import Reason, Source
from shardy_py.plan.neighbours import Neighbourhood, Neighbours
from shardy_py.plan.record import Analysis, PlanRecord
from shardy_py.plan.values import PlannedValue, location_of
from shardy_py.rules.traits import CONSTRAINTS

CHOICE = "the planner's choice"
"""The source of shardings of arguments and results that a planner chose, where values inside follow by propagation."""

_TYPE_ORIGINS = {
    "sharding_constraint": "with_sharding_constraint",
    "sdy_sharding_constraint": "with_sharding_constraint",
    "argument": "the sharding in the type of the argument",
    "reshard": "reshard",
}
"""Primitive of a constraint -> the user's call."""


class Explainer:
    """Names and explains the values of one plan."""

    def __init__(self, plan: PlanRecord) -> None:
        self.plan = plan
        self.history = History(plan.log)
        self.meshes = plan.program.meshes

    @functools.cached_property
    def neighbourhood(self) -> Neighbourhood:
        """The neighbours of the program: ops, edges and groups with the values they connect."""
        return Neighbourhood(self.plan.program, self.history)

    def holder(self, value: Value | int) -> Holder:
        """What holds the sharding of a value, or of a result by its number, during the propagation."""
        if isinstance(value, Value):
            return self.history.holder(value)
        return self.history.results.get(value) or self.history.holder(FunctionResult(value, self.plan.outputs[value].given))

    def name(self, holder: Holder) -> str:
        """The name of a value in messages."""
        plan = self.plan
        if not isinstance(holder, Value):
            return plan.outputs[holder.index].path if holder.index < len(plan.outputs) else f"result {holder.index}"
        name = plan.names.get(holder)
        if name is not None:
            return name
        if holder.name:
            return holder.name
        owner = holder.owner
        if isinstance(owner, Op):
            return "a constant" if owner.name == "sdy.constant" else f"a value of {title(owner)}"
        parent = owner.parent
        return f"argument {holder.index} of {title(parent) if isinstance(parent, Op) else 'the function'}"

    def locate(self, op: Op | None) -> str:
        """`file:line` of an op; empty where unknown."""
        return "" if op is None else location_of(self.plan.program, op)

    def annotation(self, holder: Holder) -> tuple[str, str]:
        """The annotation that gave a holder its first sharding, and its location in the function."""
        plan = self.plan
        if isinstance(holder, FunctionResult):
            return self._stated_by(plan.outputs, holder.index), ""
        owner = holder.owner
        if isinstance(owner, Block):
            parent = owner.parent
            if isinstance(parent, Function):
                return self._stated_by(plan.inputs, holder.index), ""
            op, side = parent, "in_specs"
        else:
            op, side = owner, "out_specs"
        where = self.locate(op)
        if op is None or op.name == dataflow.MANUAL_COMPUTATION:
            return f"{side} of shard_map", where
        if op.name in CONSTRAINTS:
            return _constraint_text(op), where
        return f"the sharding that {title(op)} states", where

    def _stated_by(self, leaves: Sequence[PlannedValue], number: int) -> str:
        """The source of the sharding that an argument or result has before propagation."""
        leaf = leaves[number] if number < len(leaves) else None
        stated = "" if leaf is None else leaf.given_by
        if self.plan.search is None or leaf is None:
            return stated or "the sharding in its type"
        is_stated = leaf.given is not None and leaf.given.is_equivalent(leaf.sharding)
        return stated if is_stated else f"{stated} and {CHOICE}" if stated else CHOICE

    def closer(self, holder: Holder, dim: int) -> tuple[str, str]:
        """The annotation that closed a dimension, and its location in the function."""
        initial = self.history.initial.get(holder)
        if initial is None or not initial.dims[dim].is_closed:
            for number in self.history.steps.get(holder, ()):
                step = self.history.log[number]
                if step.new is None or not step.new.dims[dim].is_closed:
                    continue
                if step.reason in CONSTRAINING and step.op is not None:
                    if step.op.name == dataflow.MANUAL_COMPUTATION:
                        return self._in_specs(step.op)
                    return self.annotation(step.op.results[0])
                if step.reason == GROUP:
                    member = self.history.groups.get(holder)
                    return "its sharding group", self.locate(None if member is None else member.op)
        return self.annotation(holder)

    def through(self, neighbours: Neighbours) -> tuple[str, str]:
        """The name of the op, edge or group between neighbours, and its `file:line`."""
        op = neighbours.op
        if op is None:
            return "the return of the function", ""
        name = title(op)
        words = {"edge": f"the border of {name}", "group": "the sharding group", "barrier": "the propagation barrier"}
        return words.get(neighbours.kind, name), self.locate(op)

    def derivation(self, holder: Holder, dim: int, axes: Axes) -> list[ChainLink]:
        """The derivation of the leading axes of a dimension."""
        return derive([Fact(holder, dim, axes)], self.history, self.meshes)[0]

    def reasons(self, links: Iterable[ChainLink]) -> tuple[Reason, ...]:
        """Orders a derivation as a chain: each reason right before the reasons it depends on."""
        links = list(links)
        order: list[int] = []
        position_of: dict[int, int] = {}
        stack = [0]
        while stack:
            number = stack.pop()
            if number not in position_of:
                position_of[number] = len(order)
                order.append(number)
                stack.extend(reversed(links[number].needs))
        return tuple(self.reason(links[number], tuple(position_of[need] for need in links[number].needs)) for number in order)

    def _border(self, link: ChainLink, owner: Value) -> str:
        """The border of a loop, branch or computation that an axis crossed, in either direction."""
        if isinstance(owner.owner, Block):
            return "entry"
        passed = {self.history.holder(value) for value in owner.owner.operands}
        if link.fact.holder in passed or any(source in passed for source in link.sources):
            return "entry"
        return "carry" if owner.owner.name == dataflow.WHILE else "exit"

    def _beginning(self, link: ChainLink) -> tuple[str, str]:
        """The name of the annotation with which a derivation begins, and its `file:line`."""
        step = link.step
        if step is not None and step.reason in CONSTRAINING:
            return self._in_specs(step.op)
        if step is not None and step.reason == PROPAGATE and step.op is not None:
            return self.annotation(step.op.operands[0])
        return self.annotation(link.fact.holder)

    def reason(self, link: ChainLink, needs: tuple[int, ...]) -> Reason:
        """Renders a link as a reason."""
        fact, step = link.fact, link.step
        axes = tuple(map(format_axis, fact.axes))
        head = (self.name(fact.holder), fact.dim, axes[-1])
        if step is None or not needs:
            annotation, where = self._beginning(link)
            priority = 0 if step is None else step.user_priority
            return Reason(*head, "annotation", location=where, step=link.number, user_priority=priority, annotation=annotation, axes=axes)
        view = RuleView(step.op, step.tensors)
        rule = None if step.reason != PROPAGATE else view.rule()
        op = step.op
        if step.reason == GROUP:
            cause, member = "group", self.history.groups.get(fact.holder)
            op = None if member is None else member.op
        elif step.reason in (PRIORITY, *CONSTRAINING):
            cause = "priority" if step.reason == PRIORITY else "constraint"
        elif op is None:
            cause = "result"
        elif op.name == dataflow.EDGE:
            cause, op = self._border(link, op.operands[0]), edge_op(op.operands[0])
        else:
            cause = "barrier" if op.name in IDENTITIES else "propagated"
        return Reason(
            *head,
            cause,
            "" if op is None else title(op),
            "" if rule is None else _rule_text(rule),
            self.locate(op),
            link.number,
            step.user_priority,
            step.op_priority,
            ",".join(map(factor_symbol, link.factors)),
            "",
            axes,
            needs,
        )

    def chain(self, holder: Holder, dim: int, axes: Axes) -> tuple[Reason, ...]:
        """Why a dimension begins with some axes."""
        return self.reasons(self.derivation(holder, dim, axes))

    def other_sources(self, holder: Holder, dim: int, axis: AxisRef, links: Iterable[ChainLink]) -> tuple[list[Source], list[Source]]:
        """Annotations with an axis besides those of a derivation: connected by values that have it, and connected by rules only."""
        used = {(link.fact.holder, link.fact.dim, *self._beginning(link)) for link in links if not link.needs}
        sharing = self.neighbourhood.sharing(axis.name)
        related = self.neighbourhood.related
        here, home = sharing.root((holder, dim)), related.root((holder, dim))
        also, connected = [], []
        for source, sharding, annotation, where in self.annotations():
            for d, dims in enumerate(sharding.dims):
                if (
                    (source, d, annotation, where) in used
                    or all(a.name != axis.name for a in dims.axes)
                    or related.root((source, d)) != home
                ):
                    continue
                shared = sharing.root((source, d)) == here and begins_with(self.history.at(source, self.history.end), d, ())
                (also if shared else connected).append(Source(self.name(source), d, axis.name, annotation, where))
        return also, connected

    def annotations(self) -> Iterator[tuple[Holder, TensorSharding, str, str]]:
        """Annotations of the user: the holder, its sharding, the name of the annotation, and its `file:line`.

        The in_specs of a shard_map are said of its operands: no value of its own holds them.
        """
        for holder, sharding in self.history.annotated.items():
            yield holder, sharding, *self.annotation(holder)
        for op in self._manual_computations:
            for operand, sharding in zip(op.operands, op.attributes["in_shardings"], strict=True):
                yield self.history.holder(operand), _of_axes(sharding, op.attributes["manual_axes"]), *self._in_specs(op)

    @functools.cached_property
    def _manual_computations(self) -> list[Op]:
        return ops_of(self.plan.program, (dataflow.MANUAL_COMPUTATION,))

    def _in_specs(self, op: Op | None) -> tuple[str, str]:
        return "in_specs of shard_map", self.locate(op)


@functools.lru_cache(maxsize=1 << 12)
def _rule_text(rule: OpShardingRule) -> str:
    return str(rule)


def _of_axes(sharding: TensorSharding, axes: Iterable[str]) -> TensorSharding:
    """A sharding with only some axes of the mesh: the specs of a shard_map speak of its manual axes."""
    axes = frozenset(axes)
    return sharding.with_dims([dim.with_axes([a for a in dim.axes if a.name in axes]) for dim in sharding.dims])


def _constraint_text(op: Op) -> str:
    """The user's call that became a constraint."""
    if op.primitive is not None:
        return _TYPE_ORIGINS.get(op.primitive, f"the sharding in the type of what {op.primitive} makes")
    parent = op.parent
    if parent is not None and parent.name == dataflow.NAMED_COMPUTATION:
        side = "in" if isinstance(op.operands[0].owner, Block) else "out"
        return f"{side}_shardings of jit {title(parent)}"
    if any(user.name == dataflow.MANUAL_COMPUTATION for user, _ in op.results[0].uses):
        return "in_specs of shard_map"
    return "sharding constraint"


def title(op: Op) -> str:
    """The name of an op in messages: a computation's own name, the primitive of others."""
    if op.name == dataflow.NAMED_COMPUTATION:
        return str(op.attributes.get("name") or op.primitive or op.name)
    if op.name == dataflow.MANUAL_COMPUTATION:
        return "shard_map"
    return _constraint_text(op) if op.name in CONSTRAINTS else op.primitive or op.name


@Analysis
def explainer_of(plan: PlanRecord) -> Explainer:
    """The explainer of a plan, which caches its derivations."""
    return Explainer(plan)
