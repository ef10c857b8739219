"""Meshes by name or inside of shardings: one into the other, and programs without either."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from shardy_py.dialect import Mesh, TensorSharding
from shardy_py.ir import Op, Program
from shardy_py.ir.attribute_text import MLIR_TEXT_KEY, AttributeText
from shardy_py.passes.base import Pass
from shardy_py.passes.dataflow import COMPUTATIONS
from shardy_py.passes.propagation.log import Log
from shardy_py.passes.walk import SHARDING, SymbolNames, blocks_of, map_shardings

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


@dataclass(frozen=True, kw_only=True)
class InlineMeshes(Pass):
    """Writes meshes into the shardings that refer to them."""

    name = "sdy-inline-meshes"

    def run(self, program: Program, log: Log | None = None) -> None:
        """Makes shardings independent of the program they stand in, and removes the meshes. Source: Shardy's inline_meshes.cc."""
        meshes = program.meshes

        def inlined(sharding: TensorSharding) -> TensorSharding:
            return sharding.with_mesh(sharding.mesh_in(meshes))

        map_shardings(program, inlined)
        program.meshes = {}
        program.mesh_attributes = {}


_OWN_SHARDING = tuple(f"sdy.{prefix}" for prefix in "all_ collective data_ reduce_ replicated reshard sharded_ sharding_".split())
"""Prefixes of the ops that state a sharding as an attribute of their own."""


@dataclass(frozen=True, kw_only=True)
class DropShardingAndMesh(Pass):
    """Removes all shardings and meshes."""

    name = "sdy-drop-sharding-and-mesh"

    def run(self, program: Program, log: Log | None = None) -> None:
        """Leaves a program without `sdy.sharding` and meshes, as it is wanted after partitioning.

        SDY ops that state a sharding of their own keep it.

        Source: Shardy's drop_sharding_and_mesh.cc.
        """
        for function in program.functions:
            function.result_shardings = [None] * len(function.result_types)
            for argument in function.arguments:
                argument.sharding = None
        for block in blocks_of(program):
            for op in block.ops:
                if SHARDING in op.attributes:
                    op.attributes = {name: value for name, value in op.attributes.items() if name != SHARDING}
                if op.name not in COMPUTATIONS and not op.name.startswith(_OWN_SHARDING):
                    for result in op.results:
                        result.sharding = None
        program.meshes = {}
        program.mesh_attributes = {}


MESH_AXES = "#stablehlo.replica_group_mesh_axes<"
"""The beginning of the text of replica groups that are axes of a mesh."""

_MESH = re.compile(
    r'mesh = (?:@(?:"(?P<quoted>[^"]*)"|(?P<name>[\w.$-]+))'
    r"|#stablehlo\.mesh<axes ?= ?\[(?P<axes>[^\]]*)\](?:, device_ids ?= ?dense<\[?(?P<ids>[^\]>]*)\]?> : tensor<[^>]*>)?>)"
)
_AXIS = re.compile(r'<name = "([^"]*)", size = (\d+)>')


def replace_meshes(text: str, name_of: Callable[[str | Mesh], str]) -> str:
    """The text with every mesh of a replica group replaced by a reference.

    Example:
        >>> inlined = 'mesh = #stablehlo.mesh<axes=[<name = "x", size = 4>]>'
        >>> replace_meshes(MESH_AXES + inlined + ", axes = []>", lambda mesh: "m")
        '#stablehlo.replica_group_mesh_axes<mesh = @m, axes = []>'
    """
    parts = text.split(MESH_AXES)
    return MESH_AXES.join([parts[0], *(_MESH.sub(lambda match: f"mesh = @{name_of(_read(match))}", part, count=1) for part in parts[1:])])


def _read(match: re.Match[str]) -> str | Mesh:
    if match["axes"] is None:
        return match["name"] or match["quoted"]
    ids = tuple(map(int, match["ids"].split(","))) if match["ids"] else ()
    return Mesh(tuple((name, int(size)) for name, size in _AXIS.findall(match["axes"])), ids)
