"""Policies: how a partitioner runs ops, and how it brings values from one layout to another."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from shardy_py.dialect import Mesh, OpShardingRule
from shardy_py.dialect.axis import Axes
from shardy_py.ir import Op, Type
from shardy_py.partition.layouts import Layout, layout_of
from shardy_py.partition.op import CHEAP, OpSpec
from shardy_py.partition.region_policy import region_moves, region_strategy
from shardy_py.partition.routes import Move, settled
from shardy_py.partition.shardy_policy import shardy_moves, shardy_strategy
from shardy_py.partition.strategy import Strategy, strategy
from shardy_py.partition.workarounds import workaround, workaround_of
from shardy_py.rules import rule_for
from shardy_py.rules.traits import CONSTRAINTS

FORWARDING = CONSTRAINTS | {"stablehlo.optimization_barrier", "sdy.propagation_barrier"}
"""Ops each of whose results is an operand, brought to the layout of the result."""


@dataclass(frozen=True, slots=True)
class Policy:
    """The decisions of one partitioner.

    Attributes:
        strategy: The strategy of an op under layouts of operands and results.
        moves: The collectives from partial sums over some axes, or from a value, in one layout to the value in another.
    """

    strategy: Callable[[OpSpec, Sequence[Layout], Mesh], Strategy]
    moves: Callable[[Type, Layout, Layout, Axes, Mesh], tuple[Move, ...]]


StrategyCache = dict[tuple[str, OpShardingRule | None, tuple[Layout, ...], tuple[Type, ...], Mesh], Strategy]
"""Name, rule, layouts and types of an op, and its mesh -> its strategy."""


def xla(op: OpSpec, layouts: Sequence[Layout], mesh: Mesh) -> Strategy:
    """The strategy of an op under `lowering="jit"`: XLA's own, or that of the workaround in its place.

    Args:
        op: The op.
        layouts: Of operands, then of results.
        mesh: The mesh.
    """
    shapes = [type_.shape for type_ in op.types]
    return workaround(op, layouts, mesh) or strategy(op.name, op.rule, shapes, layouts, len(op.operands), mesh)


def xla_of(op: Op, mesh: Mesh, meshes: Mapping[str, Mesh], cache: StrategyCache, *, manual: bool = False) -> Strategy:
    """As `xla`, of an op of a program.

    Args:
        op: With final shardings; none of `FORWARDING`.
        mesh: Its mesh.
        meshes: Where named meshes are looked up.
        cache: Filled with strategies; building an `OpSpec` of every op, to look it up, would cost more than most strategies.
        manual: Whether it stands in a `shard_map`, where there are no workarounds.
    """
    instead = None if manual else workaround_of(op, mesh, meshes)
    if instead is not None:
        return instead
    values = (*op.operands, *op.results)
    layouts = tuple([layout_of(v.sharding, v.type.rank, mesh) for v in values])
    rule, types = op.rule if op.rule_decided else rule_for(op), tuple([v.type for v in values])
    key = (op.name, rule, layouts, types, mesh)
    if key not in cache:
        cache[key] = strategy(op.name, rule, [type_.shape for type_ in types], layouts, len(op.operands), mesh)
    return cache[key]


def xla_moves(type_: Type, source: Layout, target: Layout, summed: Axes, mesh: Mesh) -> tuple[Move, ...]:
    """The collectives of XLA's partitioner, see `settled`."""
    return settled(type_.shape, source, target, summed, mesh)


POLICIES: Mapping[str, Policy] = {
    "xla": Policy(xla, xla_moves),
    "shardy": Policy(shardy_strategy, shardy_moves),
    "local": Policy(region_strategy, region_moves),
    "planner": Policy(xla, region_moves),
}
"""Name -> policy; `planner` is a region that runs ops as a planner chose for it, along the axes of XLA's partitioner."""

AS_XLA = ("xla", "planner")
"""Policies with the strategies of XLA's partitioner."""


def strategy_of(policy: str, op: OpSpec, layouts: Sequence[Layout], mesh: Mesh) -> Strategy:
    """The strategy of an op under a policy.

    Args:
        policy: One of `POLICIES`.
        op: The op.
        layouts: Of operands, then of results.
        mesh: The mesh.
    """
    operands, results = tuple(layouts[: len(op.operands)]), tuple(layouts[len(op.operands) :])
    if op.name in FORWARDING:
        return Strategy(results, results)
    if runs_as_laid(policy, op):
        return Strategy(operands, results)
    return policy_named(policy).strategy(op, layouts, mesh)


def runs_as_laid(policy: str, op: OpSpec) -> bool:
    """Whether an op runs on the pieces that devices have: a constant, or a callback without results that XLA's partitioner is left to.

    Args:
        policy: One of `POLICIES`.
        op: The op.
    """
    return op.name in CHEAP or (policy == "xla" and not op.results)


def policy_named(name: str) -> Policy:
    """A policy by name.

    Args:
        name: One of `POLICIES`.

    Raises:
        ValueError: There is no such policy.
    """
    policy = POLICIES.get(name)
    if policy is None:
        raise ValueError(f"unknown policy {name!r}; there are {', '.join(POLICIES)}")
    return policy
