"""Gives every mesh written inside a sharding a name, and equal meshes one name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from shardy_py.dialect import Mesh, TensorSharding
from shardy_py.ir import Op, Program
from shardy_py.ir.attribute_text import MLIR_TEXT_KEY, AttributeText
from shardy_py.opt.replica_groups import MESH_AXES, replace_meshes
from shardy_py.passes.base import Pass
from shardy_py.passes.propagation.log import Log
from shardy_py.passes.symbols import SymbolNames
from shardy_py.passes.walk import map_shardings

_TAG = "stablehlo.mesh"


@dataclass(frozen=True, kw_only=True)
class LiftInlinedMeshes(Pass):
    """Gives each mesh written inside a sharding a name."""

    name = "sdy-lift-inlined-meshes"

    def run(self, program: Program, log: Log | None = None) -> None:
        """Makes all shardings, and replica groups that are axes of a mesh, refer to meshes by name.

        Of equal meshes the first name stays. A mesh without a name becomes `maximal_mesh_<id>`, `empty_mesh`, or the first
        free one of `mesh`, `mesh_0`, ... Every mesh is described in StableHLO's terms, too.

        Source: Shardy's lift_inlined_meshes.cc.
        """
        names: dict[Mesh, str] = {}
        for name, mesh in program.meshes.items():
            names.setdefault(mesh, name)
        renamed = {name: names[mesh] for name, mesh in program.meshes.items()}
        program.meshes = {name: mesh for mesh, name in names.items()}
        symbols = SymbolNames(program)

        def name_of(mesh: str | Mesh) -> str:
            if isinstance(mesh, str):
                return renamed.get(mesh, mesh)
            name = names.get(mesh)
            if name is None:
                name = names[mesh] = symbols.take(_prefix(mesh))
                program.meshes[name] = mesh
            return name

        def named(sharding: TensorSharding) -> TensorSharding:
            name = name_of(sharding.mesh)
            return sharding if name == sharding.mesh else sharding.with_mesh(name)

        def visit(op: Op) -> None:
            text = op.attributes.get(MLIR_TEXT_KEY, "")
            if MESH_AXES in text:
                op.attributes = {**op.attributes, MLIR_TEXT_KEY: AttributeText(replace_meshes(text, name_of))}

        map_shardings(program, named, visit)
        attributes = program.mesh_attributes
        program.mesh_attributes = {name: {**attributes.get(name, {}), _TAG: _described(mesh)} for name, mesh in program.meshes.items()}


def _prefix(mesh: Mesh) -> str:
    if mesh.is_maximal:
        return f"maximal_mesh_{mesh.device_ids[0]}"
    return "empty_mesh" if mesh.is_empty else "mesh"


def _described(mesh: Mesh) -> dict[str, Any]:
    description: dict[str, Any] = {"axes": [{"name": name, "size": size} for name, size in mesh.shape.items()]}
    ids = mesh.device_ids
    if ids:
        elements = str(ids[0]) if len(ids) == 1 else f"[{', '.join(map(str, ids))}]"
        description["device_ids"] = AttributeText(f"dense<{elements}> : tensor<{len(ids)}xi64>")
    return description
