"""Drops mesh axes of size 1 from all shardings."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from shardy_py.dialect import AxisRef, DimensionSharding, Mesh, TensorSharding
from shardy_py.dialect.axis import reduced_like
from shardy_py.ir import Program
from shardy_py.passes.base import Pass
from shardy_py.passes.propagation.log import Log
from shardy_py.passes.walk import map_shardings


@dataclass(frozen=True, kw_only=True)
class RemoveSizeOneAxes(Pass):
    """Drops axes of size 1 from shardings."""

    name = "sdy-remove-size-one-axes"

    def run(self, program: Program, log: Log | None = None) -> None:
        """Removes axes of size 1, which cut nothing but would make shardings differ; meshes stay.

        Source: Shardy's remove_size_one_axes.cc.
        """
        if not any(size == 1 for mesh in program.meshes.values() for size in mesh.shape.values()):
            return
        meshes = program.meshes

        def without(sharding: TensorSharding) -> TensorSharding:
            mesh = sharding.mesh_in(meshes)
            if all(axis.size_in(mesh) != 1 for axis in sharding.all_axes()):
                return sharding
            dims = tuple(_dimension(dim, _larger(dim.axes, mesh)) for dim in sharding.dims)
            unreduced = reduced_like(_larger(sharding.unreduced, mesh), sharding.unreduced)
            return TensorSharding(sharding.mesh, dims, _larger(sharding.replicated, mesh), unreduced)

        map_shardings(program, without)


def _dimension(dim: DimensionSharding, axes: tuple[AxisRef, ...]) -> DimensionSharding:
    return DimensionSharding(axes, dim.is_closed, dim.priority if axes or not dim.is_closed else None)


def _larger(axes: Iterable[AxisRef], mesh: Mesh) -> tuple[AxisRef, ...]:
    return tuple(axis for axis in axes if axis.size_in(mesh) != 1)
