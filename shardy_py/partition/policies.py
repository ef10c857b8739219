"""Who decides how an op runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from shardy_py.dialect import Mesh
from shardy_py.partition.layouts import Layout
from shardy_py.partition.op import OpSpec
from shardy_py.partition.strategy import Strategy, strategy
from shardy_py.partition.workarounds import workaround

HANDED_ON = frozenset(("stablehlo.optimization_barrier", "sdy.propagation_barrier", "sdy.sharding_constraint", "sdy.reshard"))
"""Ops each of whose results is an operand, brought to the layout of the result."""

Policy = Callable[[OpSpec, Sequence[Layout], Mesh], Strategy]


def xla(op: OpSpec, layouts: Sequence[Layout], mesh: Mesh) -> Strategy:
    """How an op runs under `lowering="jit"`: as XLA's partitioner runs it, or as the region does that stands in for it.

    Args:
        op: The op.
        layouts: Of operands, then of results.
        mesh: The mesh.
    """
    count = len(op.operands)
    if op.name in HANDED_ON:
        return Strategy(tuple(layouts[count:]), tuple(layouts[count:]))
    own = workaround(op, layouts, mesh)
    if own is not None:
        return own
    shapes = [type_.shape for type_ in op.types]
    return strategy(op.name, op.rule, shapes[:count], layouts[:count], shapes[count:], layouts[count:], mesh)


POLICIES: Mapping[str, Policy] = {"xla": xla}
"""Name -> policy."""


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
