"""The obstacle that keeps an axis from passing between two neighbours: a propagation step repeated on their final shardings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from shardy_py.dialect import AxisRef, Mesh, TensorSharding
from shardy_py.dialect.axis import Axes, contains, is_prefix, num_shards
from shardy_py.dialect.projection import TensorFactors, project
from shardy_py.passes import dataflow
from shardy_py.passes.propagation.compatible import (
    BACKWARD,
    FORWARD,
    NONE,
    compatible_major_axes,
    fit_across_factors,
    fit_within_factor,
)
from shardy_py.passes.propagation.step import FactorStrategy, common_mesh, propagate_step
from shardy_py.plan.neighbours import Neighbours


class Obstacle(NamedTuple):
    """The obstacle in the way of an axis; `dim` is -1 where it is on none in particular, kind `none` means that there is none."""

    kind: str
    tensor: int
    dim: int = -1
    axis: AxisRef | None = None
    size: int = 0


class Passage(NamedTuple):
    """The passage of an axis from one tensor to another along a factor of both."""

    neighbours: Neighbours
    target: int
    source: int
    factor: int
    axis: str


class Fixpoint(NamedTuple):
    """The shardings of some tensors at the end of a propagation, and its options."""

    shardings: Sequence[TensorSharding | None]
    meshes: Mapping[str, Mesh]
    strategies: Sequence[FactorStrategy]
    conservative: bool


def obstacle(passage: Passage, end: Fixpoint) -> Obstacle:
    """The obstacle in the way of an axis from one tensor to another."""
    neighbours, target, source, factor, axis = passage
    rule, direction = neighbours.rule, neighbours.directions[factor]
    operands = len(rule.operand_mappings)
    if direction == NONE:
        return Obstacle("barrier" if neighbours.kind == "barrier" else "blocked", source)
    if (direction == FORWARD and source >= operands) or (direction == BACKWARD and source < operands):
        return Obstacle("barrier", source)
    if neighbours.kind == "edge" and neighbours.op is not None and axis in dataflow.manual_axes(neighbours.op):
        return Obstacle("manual", source)
    compared = [neighbours.view.seen(i, s) for i, s in enumerate(end.shardings)]
    named_mesh = common_mesh(compared, end.meshes)
    if named_mesh is None:
        return Obstacle("mesh", source)
    mesh, mappings = named_mesh[1], rule.mappings
    tensors = [project(m, s, rule.factor_sizes, mesh) for m, s in zip(mappings, compared, strict=True)]
    agreed = compatible_major_axes(tensors, operands, factor, direction)
    source_axes = tensors[source].factors[factor].axes
    place = next((i for i, a in enumerate(source_axes) if a.name == axis), None)
    if place is None:
        return Obstacle("part", source, _dim_of(mappings[source], factor))
    if all(a.name != axis for a in agreed):
        return _conflict(tensors, mappings, factor, source_axes[: place + 1], target)
    conservative = end.conservative and neighbours.kind == "op"
    for i in range(len(tensors)) if end.strategies == ("basic",) else (target,):
        if factor in tensors[i].factors and (stop := _stop(passage, i, tensors[i], agreed, mesh, conservative)) is not None:
            return stop
    for strategy in end.strategies:
        update = propagate_step(
            rule,
            neighbours.directions,
            compared,
            end.meshes,
            strategy=strategy,
            conservative=conservative,
            elementwise=neighbours.elementwise,
        )
        if any(i == target for i, _ in update):
            return Obstacle("none", target)
    return Obstacle("major", target, _dim_of(mappings[target], factor))


def _conflict(
    tensors: Sequence[TensorFactors], mappings: Sequence[Sequence[Sequence[int]]], factor: int, source_axes: Axes, target: int
) -> Obstacle:
    """The first tensor whose axes are no prefix of the source's and have it as no prefix; the target before all others."""
    order = [target, *(i for i in range(len(tensors)) if i != target)]
    for i in order:
        state = tensors[i].factors.get(factor)
        if state is None or is_prefix(state.axes, source_axes) or is_prefix(source_axes, state.axes):
            continue
        other = next((a for a, b in zip(state.axes, source_axes) if a is not b), state.axes[-1])
        return Obstacle("conflict", i, _dim_of(mappings[i], factor), other)
    return Obstacle("conflict", target, _dim_of(mappings[target], factor))


def _stop(passage: Passage, number: int, tensor: TensorFactors, agreed: Axes, mesh: Mesh, conservative: bool) -> Obstacle | None:
    """The obstacle that keeps one tensor from taking the axes up to that of the passage."""
    rule, factor, axis = passage.neighbours.rule, passage.factor, passage.axis
    mapping, size = rule.mappings[number], rule.factor_sizes[factor]
    state = tensor.factors[factor]
    dim = _dim_of(mapping, factor)
    before = 1
    for each in agreed:
        if not any(own.name == each.name and contains(own, each) for own in state.axes):
            fitted = fit_within_factor(each, before, tensor, state, size, mesh)
            across = None if fitted is None else fit_across_factors(fitted, tensor, factor)
            if fitted is None or (state.axes and state.axes[-1] is fitted):
                if any(a.name == each.name for a in tensor.blocked_axes):
                    return Obstacle("replicated", number, dim, each)
                if state.closed:
                    return Obstacle("closed", number, dim, each)
                if state.overflow:
                    return Obstacle("overflow", number, dim, state.overflow[0])
                return Obstacle("indivisible", number, dim, each, size // before if size % before == 0 else size)
            if across is None:
                return Obstacle("used", number, _holding(tensor, mapping, each, factor), each)
            if conservative and across.size is not None:
                return Obstacle("conservative", number, dim, each, size)
            if across is not each:
                return None if each.name == axis else Obstacle("indivisible", number, dim, each, size)
        if each.name == axis:
            return None
        before *= each.size_in(mesh)
    return None


def _holding(tensor: TensorFactors, mapping: Sequence[Sequence[int]], axis: AxisRef, factor: int) -> int:
    """The dimension of the other factor that has an axis; the own dimension if no other factor has it."""
    for f, state in tensor.factors.items():
        if f != factor and any(used.name == axis.name for used in (*state.axes, *state.overflow)):
            return _dim_of(mapping, f)
    return _dim_of(mapping, factor)


def _dim_of(mapping: Sequence[Sequence[int]], factor: int) -> int:
    return next(d for d, dim in enumerate(mapping) if factor in dim)


def nearest_sizes(size: int, axes: Axes, mesh: Mesh) -> tuple[int, int]:
    """The largest size below and the smallest above that some axes divide; the first is 0 where there is none."""
    shards = num_shards(axes, mesh)
    return size // shards * shards, -(-size // shards) * shards
