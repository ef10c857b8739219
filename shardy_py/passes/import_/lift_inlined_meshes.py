"""Gives every mesh written inside a sharding a name, and equal meshes one name."""

from __future__ import annotations

from shardy_py.dialect import Mesh, TensorSharding
from shardy_py.ir import Program
from shardy_py.passes.symbols import SymbolNames
from shardy_py.passes.walk import map_shardings

NAME = "sdy-lift-inlined-meshes"


def run(program: Program, **_: object) -> None:
    """Makes all shardings refer to meshes by name.

    Of equal meshes the first name stays. A mesh without a name becomes `maximal_mesh_<id>`, `empty_mesh`, or the first
    free one of `mesh`, `mesh_0`, ...

    Source: Shardy's lift_inlined_meshes.cc.
    """
    names: dict[Mesh, str] = {}
    for name, mesh in program.meshes.items():
        names.setdefault(mesh, name)
    renamed = {name: names[mesh] for name, mesh in program.meshes.items()}
    program.meshes = {name: mesh for mesh, name in names.items()}
    symbols = SymbolNames(program)

    def named(sharding: TensorSharding) -> TensorSharding:
        mesh = sharding.mesh
        if isinstance(mesh, str):
            name = renamed.get(mesh, mesh)
            return sharding if name == mesh else sharding.with_mesh(name)
        name = names.get(mesh)
        if name is None:
            name = names[mesh] = symbols.take(_prefix(mesh))
            program.meshes[name] = mesh
        return sharding.with_mesh(name)

    map_shardings(program, named)


def _prefix(mesh: Mesh) -> str:
    if mesh.is_maximal:
        return f"maximal_mesh_{mesh.device_ids[0]}"
    return "empty_mesh" if mesh.is_empty else "mesh"
