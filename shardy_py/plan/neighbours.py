"""The neighbours of a planned program: the ops, edges and groups over which shardings pass, and the values they connect."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from shardy_py.dialect import OpShardingRule, PropagationDirection, TensorSharding
from shardy_py.dialect.grouping import Components
from shardy_py.ir import Op, Program, TensorType, Value
from shardy_py.passes import dataflow
from shardy_py.passes.collection import no_collection
from shardy_py.passes.propagation.graph import Holder, PropagationGraph, everything
from shardy_py.plan.derivation import IDENTITIES, History, RuleView
from shardy_py.rules import identity_rule, is_elementwise

Place = tuple[Holder, int]
"""A holder and a dimension of its value."""


class Neighbours(NamedTuple):
    """Tensors between which shardings pass.

    Attributes:
        op: The op; the loop, branch or computation of an edge; the op that makes a group; None for a function result.
    """

    op: Op | None
    kind: str
    holders: tuple[Holder, ...]
    rule: OpShardingRule
    directions: tuple[int, ...]
    owner: Value | None = None

    @property
    def view(self) -> RuleView:
        """The tensors as the rule compares them."""
        return RuleView(self.op, self.holders, self.owner)

    @property
    def elementwise(self) -> bool:
        """Whether the op is elementwise, which the aggressive strategy asks."""
        return self.kind == "barrier" or (self.kind == "op" and self.op is not None and is_elementwise(self.op.name))


class Neighbourhood:
    """All neighbours of a planned program."""

    def __init__(self, program: Program, history: History) -> None:
        self.history = history
        self.all: list[Neighbours] = []
        self.at: dict[Holder, list[tuple[Neighbours, int]]] = {}
        self.ops: set[Op | None] = set()
        self._sharing: dict[str, Components[Place]] = {}
        self._parts_with: dict[str, frozenset[Place]] = {}
        with no_collection():
            self._build(program)

    def _build(self, program: Program) -> None:
        graph = PropagationGraph(program)  # with the rules that ops were propagated by
        for node in graph.nodes:
            op = node.op
            assert op is not None
            if node.rule is not None and node.tensors:
                barrier = op.name in IDENTITIES
                directions = node.all_directions or (int(PropagationDirection.NONE),) * node.rule.num_factors
                self._add(op, "barrier" if barrier else "op", node.tensors, node.rule, directions)
            for owner in dataflow.owners(op):
                self._edge(graph, op, owner)
        for node in graph.result_nodes:
            assert node.rule is not None
            self._add(None, "result", node.tensors, node.rule, everything(node.rule))
        self._groups()
        self._removed_ops()

    def _add(
        self,
        op: Op | None,
        kind: str,
        tensors: tuple[Holder, ...],
        rule: OpShardingRule,
        directions: tuple[int, ...],
        owner: Value | None = None,
    ) -> None:
        holders = tuple(map(self.history.holder, tensors))
        neighbours = Neighbours(op, kind, holders, rule, directions, owner)
        self.all.append(neighbours)
        self.ops.add(op)
        for i, holder in enumerate(holders):
            self.at.setdefault(holder, []).append((neighbours, i))

    def _edge(self, graph: PropagationGraph, op: Op, owner: Value) -> None:
        if not isinstance(owner.type, TensorType) or not owner.type.rank:
            return
        sources = [holder for user, i in dataflow.sources(owner) if (holder := graph.holder(user.operands[i])) is not None]
        rule = identity_rule(owner.type.shape, len(sources))
        self._add(op, "edge", (*sources, owner), rule, everything(rule), owner)

    def _groups(self) -> None:
        seen: set[int] = set()
        for step in self.history.groups.values():  # the steps of one group share its tuple
            if id(step.tensors) not in seen and isinstance(step.tensors[0], Value) and step.tensors[0].type.rank:
                seen.add(id(step.tensors))
                rule = identity_rule(step.tensors[0].type.shape, len(step.tensors) - 1)
                self._add(step.op, "group", step.tensors, rule, everything(rule))

    def _removed_ops(self) -> None:
        """Adds removed ops: shardings may have passed through them before their results lost all uses."""
        seen: dict[Op, None] = {}
        for step in self.history.log:
            op = step.op
            if op is not None and op.block is None and op not in seen and op.rule is not None and step.tensors and op.name != dataflow.EDGE:
                seen[op] = None
                if op.name not in IDENTITIES and op.name != "sdy.sharding_group":
                    self._add(op, "op", step.tensors, op.rule, everything(op.rule))

    def of_dimension(self, holder: Holder, dim: int) -> Iterator[tuple[Neighbours, int, int]]:
        """`(neighbours, position, factor)` for each factor of a dimension."""
        for neighbours, i in self.at.get(holder, ()):
            mapping = neighbours.rule.mappings[i]
            if dim < len(mapping):
                for factor in mapping[dim]:
                    yield neighbours, i, factor

    @functools.cached_property
    def related(self) -> Components[Place]:
        """The dimensions that rules connect."""
        return self._connected(None)

    def sharing(self, axis: str) -> Components[Place]:
        """The dimensions that have an axis, connected where rules connect them."""
        if axis not in self._sharing:
            self._sharing[axis] = self._connected({holder: self.with_axis(holder, axis) for holder in self.at})
        return self._sharing[axis]

    def parts_with(self, axis: str) -> frozenset[Place]:
        """The roots of the parts of `related` in which any dimension has an axis."""
        if axis not in self._parts_with:
            places = ((holder, d) for holder in self.at for d in self.with_axis(holder, axis))
            self._parts_with[axis] = frozenset(map(self.related.root, places))
        return self._parts_with[axis]

    def with_axis(self, holder: Holder, axis: str) -> tuple[int, ...]:
        """The dimensions of a value that have an axis or a part of it when propagation ends."""
        return dims_with(self.history.at(holder, self.history.end), axis)

    @no_collection()
    def _connected(self, dims: Mapping[Holder, tuple[int, ...]] | None) -> Components[Place]:
        """Connects dimensions, all or some of each value, along the factors that shardings propagate along."""
        parts = Components[Place]()
        for neighbours in self.all:
            holders = neighbours.holders
            for places in _by_factor(neighbours.rule, neighbours.directions):
                parts.join([(holders[i], d) for i, d in places if dims is None or d in dims[holders[i]]])
        return parts


@functools.lru_cache(maxsize=1 << 14)
def _by_factor(rule: OpShardingRule, directions: tuple[int, ...]) -> tuple[tuple[tuple[int, int], ...], ...]:
    """The dimensions of each factor that shardings propagate along, as `(tensor, dimension)`."""
    by_factor: dict[int, list[tuple[int, int]]] = {}
    for i, mapping in enumerate(rule.mappings):
        for d, dim in enumerate(mapping):
            for f in dim:
                if directions[f]:
                    by_factor.setdefault(f, []).append((i, d))
    return tuple(tuple(places) for places in by_factor.values() if len(places) > 1)


@functools.lru_cache(maxsize=1 << 14)
def dims_with(sharding: TensorSharding | None, axis: str) -> tuple[int, ...]:
    """The dimensions that have an axis or a part of it."""
    return () if sharding is None else tuple(d for d, dim in enumerate(sharding.dims) if any(a.name == axis for a in dim.axes))
