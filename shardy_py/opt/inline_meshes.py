"""Writes every mesh into the shardings that refer to it by name."""

from __future__ import annotations

from dataclasses import dataclass

from shardy_py.dialect import TensorSharding
from shardy_py.ir import Program
from shardy_py.passes.base import Pass
from shardy_py.passes.propagation.log import Log
from shardy_py.passes.walk import map_shardings


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
