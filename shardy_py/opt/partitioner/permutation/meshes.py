"""Meshes whose devices stand in reverse order along some axes."""

# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false
# Stubs of numpy 2.5 leave types of some functions open.

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from shardy_py.dialect import AxisRef, Mesh
from shardy_py.ir import Program
from shardy_py.passes.symbols import SymbolNames


def reversed_mesh(mesh: Mesh, axes: Iterable[AxisRef]) -> Mesh:
    """The mesh with its devices in reverse order along axes, or parts of axes.

    Example:
        >>> reversed_mesh(Mesh([("x", 4)]), [AxisRef("x", 1, 2)])
        #sdy.mesh<["x"=4], device_ids=[2, 3, 0, 1]>
    """
    shape = [axis.size for axis in mesh.axes]
    ids = np.asarray(mesh.device_ids or range(mesh.size)).reshape(shape)
    for axis in axes:
        at = mesh.axis_index(axis.name)
        before, size = axis.pre_size or 1, axis.size_in(mesh)
        split = [*shape[:at], before, size, shape[at] // (before * size), *shape[at + 1 :]]
        ids = np.flip(ids.reshape(split), at + 1).reshape(shape)
    return Mesh(mesh.axes, map(int, ids.ravel()))


class MeshNames:
    """Names of meshes that a pass adds in front of those of a program."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.symbols = SymbolNames(program)

    def name(self, mesh: Mesh, wish: str) -> str:
        """The name of the last equal mesh of the program; where there is none, the mesh is added."""
        for name, other in reversed(self.program.meshes.items()):
            if other is mesh:
                return name
        name = self.symbols.take(wish)
        self.program.meshes = {name: mesh, **self.program.meshes}
        return name
