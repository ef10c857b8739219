"""One propagation step through one op: a pure function of rule, directions and shardings, remembered by `StepTable`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from shardy_py.dialect import Mesh, OpShardingRule, TensorSharding
from shardy_py.dialect.projection import project, unproject
from shardy_py.passes.propagation import aggressive_factors, basic_factors

FactorStrategy = Literal["basic", "aggressive"]
Strategy = Literal["basic", "aggressive", "basic-then-aggressive"]
Update = tuple[tuple[int, TensorSharding], ...]
"""`(tensor number, new sharding)`, operands before results."""

_FACTOR_STRATEGIES = {"basic": basic_factors.propagate_factors, "aggressive": aggressive_factors.propagate_factors}
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


class StepTable:
    """Remembers `propagate_step` for one set of meshes, strategy and conservativeness.

    Rules, directions and shardings are interned, so that the key hashes by identity and the step of the fortieth
    identical layer is one look-up.
    """

    __slots__ = ("conservative", "meshes", "steps", "strategy")

    def __init__(self, meshes: Mapping[str, Mesh], strategy: FactorStrategy, conservative: bool) -> None:
        self.meshes = dict(meshes)
        self.strategy: FactorStrategy = strategy
        self.conservative = conservative
        self.steps: dict[tuple[object, ...], Update] = {}

    def compute(
        self,
        key: tuple[object, ...],
        rule: OpShardingRule,
        directions: Sequence[int],
        elementwise: bool,
        shardings: Sequence[TensorSharding | None],
    ) -> Update:
        """Computes a step and remembers it under `key`."""
        if len(self.steps) >= _TABLE_LIMIT:
            self.steps.clear()
        step = propagate_step(
            rule, directions, shardings, self.meshes, strategy=self.strategy, conservative=self.conservative, elementwise=elementwise
        )
        self.steps[key] = step
        return step


_TABLES: dict[tuple[object, ...], StepTable] = {}


def step_table(meshes: Mapping[str, Mesh], strategy: FactorStrategy, conservative: bool) -> StepTable:
    """The table shared by all programs with the same meshes under the same names."""
    key = (tuple(meshes.items()), strategy, conservative)
    table = _TABLES.get(key)
    if table is None:
        if len(_TABLES) >= 64:
            _TABLES.clear()
        table = _TABLES[key] = StepTable(meshes, strategy, conservative)
    return table
