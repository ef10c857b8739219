"""One propagation step through one op: a pure function of rule, directions and shardings, remembered by `StepTable`."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Literal

from shardy_py.dialect import AxisRef, Mesh, OpShardingRule, TensorSharding
from shardy_py.dialect.axis import Axes, is_prefix, is_strict_prefix, num_shards
from shardy_py.dialect.projection import TensorFactors, project, unproject
from shardy_py.passes.propagation.compatible import compatible_major_axes, fit_across_factors, fit_within_factor, truncate

FactorStrategy = Literal["basic", "aggressive"]
Strategy = Literal["basic", "aggressive", "basic-then-aggressive"]
Update = tuple[tuple[int, TensorSharding], ...]
"""`(tensor number, new sharding)`, operands before results."""

_TABLE_LIMIT = 1 << 20


def common_mesh(shardings: Sequence[TensorSharding | None], meshes: Mapping[str, Mesh]) -> tuple[str | Mesh, Mesh] | None:
    """The common mesh of shardings, with its name; None if there is none or they differ. Empty meshes do not count."""
    common: tuple[str | Mesh, Mesh] | None = None
    for sharding in shardings:
        if sharding is None:
            continue
        name = sharding.mesh
        mesh = meshes[name] if isinstance(name, str) else name
        if mesh.is_empty:
            continue
        if common is None:
            common = (name, mesh)
        elif common[1] is not mesh:
            return None
    return common


def propagate_step(
    rule: OpShardingRule,
    directions: Sequence[int],
    shardings: Sequence[TensorSharding | None],
    meshes: Mapping[str, Mesh],
    *,
    strategy: FactorStrategy = "aggressive",
    conservative: bool = False,
    elementwise: bool = False,
) -> Update:
    """The tensors (operands, then results; None is fully open) whose shardings change when an op with this rule propagates once."""
    named_mesh = common_mesh(shardings, meshes)
    if named_mesh is None or named_mesh[1].is_maximal:
        return ()
    mesh_name, mesh = named_mesh
    sizes = rule.factor_sizes
    mappings = rule.mappings
    tensors = [project(m, s, sizes, mesh) for m, s in zip(mappings, shardings, strict=True)]
    updated = _FACTOR_STRATEGIES[strategy](rule, tensors, directions, mesh, conservative, elementwise)
    changes: list[tuple[int, TensorSharding]] = []
    for i, changed in enumerate(updated):
        if not changed:
            continue
        old = shardings[i]
        new = unproject(mappings[i], tensors[i], old, sizes, mesh, mesh_name)
        if new is old or (old is None and not new.has_axes):
            continue
        changes.append((i, new))
    return tuple(changes)


def _propagate_basic(
    rule: OpShardingRule, tensors: Sequence[TensorFactors], directions: Sequence[int], mesh: Mesh, conservative: bool, elementwise: bool
) -> bytearray:
    """Gives every factor the same axes in all tensors; returns which changed. `BasicFactorPropagation` of the reference."""
    del elementwise
    updated = bytearray(len(tensors))
    num_operands = len(rule.operand_mappings)
    for factor, size in enumerate(rule.factor_sizes):
        axes = compatible_major_axes(tensors, num_operands, factor, directions[factor])
        if not axes:
            continue

        def fit(axis: AxisRef, before: int, factor: int = factor, size: int = size) -> AxisRef | None:
            fitting: AxisRef | None = axis
            for tensor in tensors:
                fitting = fit_across_factors(fitting, tensor, factor)
                if fitting is None:
                    return None
                state = tensor.factors.get(factor)
                if state is not None:
                    fitting = fit_within_factor(fitting, before, tensor, state, size, mesh)
                    if fitting is None:
                        return None
            return fitting

        axes = truncate(axes, mesh, fit, conservative)
        for i, tensor in enumerate(tensors):
            state = tensor.factors.get(factor)
            if state is not None and is_strict_prefix(state.axes, axes):
                state.axes = axes
                state.overflow = ()
                updated[i] = True
    return updated


def _propagate_aggressive(
    rule: OpShardingRule, tensors: Sequence[TensorFactors], directions: Sequence[int], mesh: Mesh, conservative: bool, elementwise: bool
) -> bytearray:
    """Gives every tensor what it can take, from the largest source first; returns which changed. `AggressiveFactorPropagation` there."""
    updated = bytearray(len(tensors))
    num_operands = len(rule.operand_mappings)
    axes_of = [compatible_major_axes(tensors, num_operands, f, d) for f, d in enumerate(directions)]
    order = [f for f, axes in enumerate(axes_of) if axes]
    if not order:
        return updated
    if len(order) > 1:
        order = _sorted_factors(rule, tensors, axes_of, order, mesh, elementwise)
    sizes = rule.factor_sizes
    results = range(num_operands, len(tensors))
    for i in results:
        updated[i] = _update(tensors[i], order, axes_of, sizes, mesh, conservative)
    sideways = [tensors[i] for i in results] if elementwise else []
    for i in range(num_operands):
        updated[i] = _update(tensors[i], order, axes_of, sizes, mesh, conservative, sideways)
    return updated


def _sorted_factors(
    rule: OpShardingRule, tensors: Sequence[TensorFactors], axes_of: Sequence[Axes], order: Sequence[int], mesh: Mesh, elementwise: bool
) -> list[int]:
    tensor_sizes = rule.tensor_sizes
    keys: dict[int, tuple[int, int, int, int]] = {}
    for f in order:
        source, source_size = -1, -1
        for i, tensor in enumerate(tensors):
            state = tensor.factors.get(f)
            if state is not None and tensor_sizes[i] > source_size and is_prefix(axes_of[f], state.axes):
                source, source_size = i, tensor_sizes[i]
        keys[f] = (-source_size, -num_shards(axes_of[f], mesh) if elementwise else 0, source, f)
    return sorted(order, key=keys.__getitem__)


def _update(
    tensor: TensorFactors,
    order: Sequence[int],
    axes_of: Sequence[Axes],
    sizes: Sequence[int],
    mesh: Mesh,
    conservative: bool,
    results: Sequence[TensorFactors] = (),
) -> bool:
    updated = False
    for f in order:
        state = tensor.factors.get(f)
        if state is None:
            continue
        axes = axes_of[f]
        if state.axes == axes:
            continue
        for result in results:
            other = result.factors.get(f)
            if other is not None and is_strict_prefix(other.axes, axes):
                axes = other.axes

        def fit_within(axis: AxisRef, before: int, f: int = f) -> AxisRef | None:
            return fit_within_factor(axis, before, tensor, tensor.factors[f], sizes[f], mesh)

        axes = truncate(axes, mesh, fit_within, conservative)
        if not is_strict_prefix(state.axes, axes):
            continue

        def fit_across(axis: AxisRef, before: int, f: int = f) -> AxisRef | None:
            return fit_across_factors(axis, tensor, f)

        axes = truncate(axes, mesh, fit_across, conservative)
        if is_strict_prefix(state.axes, axes):
            state.axes = axes
            state.overflow = ()
            updated = True
    return updated


_FACTOR_STRATEGIES = {"basic": _propagate_basic, "aggressive": _propagate_aggressive}


Key = tuple[OpShardingRule, Sequence[int], bool, tuple[TensorSharding | None, ...]]
"""Rule, directions, whether the op is elementwise, and shardings."""


class StepTable(dict[Key, Update]):
    """Remembers `propagate_step` for one set of meshes, strategy and conservativeness.

    Rules, directions and shardings are interned, so that the key hashes by identity and the step of the fortieth
    identical layer is one look-up.
    """

    def __init__(self, meshes: Mapping[str, Mesh], strategy: FactorStrategy, conservative: bool) -> None:
        super().__init__()
        self.meshes = meshes
        self.strategy: FactorStrategy = strategy
        self.conservative = conservative

    def __missing__(self, key: Key) -> Update:
        if len(self) >= _TABLE_LIMIT:
            self.clear()
        rule, directions, elementwise, shardings = key
        step = propagate_step(
            rule, directions, shardings, self.meshes, strategy=self.strategy, conservative=self.conservative, elementwise=elementwise
        )
        self[key] = step
        return step


@functools.lru_cache(64)
def step_table(meshes: tuple[tuple[str, Mesh], ...], strategy: FactorStrategy, conservative: bool) -> StepTable:
    """The table shared by all programs with the same meshes under the same names."""
    return StepTable(dict(meshes), strategy, conservative)
