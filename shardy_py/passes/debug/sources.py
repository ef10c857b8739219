"""Sources of the axes that a value gets in one step of the propagation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from shardy_py.dialect import AxisRef, Mesh, OpShardingRule, TensorSharding
from shardy_py.dialect.axis import Axes, is_prefix, overlaps
from shardy_py.dialect.projection import project
from shardy_py.ir import Op, Value
from shardy_py.passes import dataflow
from shardy_py.passes.propagation.log import FunctionResult, Step
from shardy_py.passes.propagation.step import common_mesh
from shardy_py.rules import identity_rule


class NewAxis(NamedTuple):
    """An axis that `targets`, tensors of one value, got from tensor `source` of an op, operands numbered before results."""

    axis: AxisRef
    source: int
    targets: tuple[int, ...]


def new_axes(step: Step, meshes: Mapping[str, Mesh]) -> list[NewAxis]:
    """The axes that a step of the propagation added to its target.

    The source of the axes of a factor is the first tensor that had all of them before, or more.
    """
    before = list(step.before)
    new = step.new
    rule = _rule(step)
    owner = step.op.operands[0] if step.op is not None and step.op.name == dataflow.EDGE else None
    if rule is None:
        return []
    mappings, sizes = rule.mappings, rule.factor_sizes
    place = step.place if step.place >= 0 else next(i for i, value in enumerate(step.tensors) if value is step.target)
    targets = tuple(i for i, value in enumerate(step.tensors) if value is step.target and mappings[i] == mappings[place])
    if owner is not None:
        before[-1] = dataflow.before_edge(owner, before[-1])
        if place == len(before) - 1:
            new = dataflow.before_edge(owner, new)
    named_mesh = common_mesh([*before, new], meshes)
    if named_mesh is None or new is None:
        return []
    mesh = named_mesh[1]
    tensors = [project(mapping, sharding, sizes, mesh).factors for mapping, sharding in zip(mappings, before, strict=True)]
    old = before[place]
    sources: list[tuple[AxisRef, int]] = []
    for f, factor in project(mappings[place], new, sizes, mesh).factors.items():
        if factor.axes:
            source = next((i for i, tensor in enumerate(tensors) if f in tensor and is_prefix(factor.axes, tensor[f].axes)), None)
            if source is not None:
                sources += [(axis, source) for axis in factor.axes]
    return [NewAxis(axis, source, targets) for axis in _added(old, new) if (source := _source_of(axis, sources)) is not None]


def axes_of(sharding: TensorSharding | None) -> Axes:
    """The axes of all dimensions of a sharding."""
    return () if sharding is None else tuple(axis for dim in sharding.dims for axis in dim.axes)


def _added(old: TensorSharding | None, new: TensorSharding) -> Axes:
    before = axes_of(old)
    return tuple(axis for axis in axes_of(new) if axis not in before)


def _source_of(axis: AxisRef, sources: list[tuple[AxisRef, int]]) -> int | None:
    exact = next((source for other, source in sources if other is axis), None)
    return exact if exact is not None else next((source for other, source in sources if overlaps(axis, other)), None)


def _rule(step: Step) -> OpShardingRule | None:
    op = step.op
    if isinstance(op, Op) and op.name not in _IDENTITIES:
        return op.rule
    last = step.tensors[-1]
    value = last if isinstance(last, Value) else step.tensors[0]
    assert not isinstance(value, FunctionResult)
    return identity_rule(value.type.shape, len(step.tensors) - 1)


_IDENTITIES = frozenset((dataflow.EDGE, dataflow.FUNC_EDGE, "sdy.propagation_barrier"))
