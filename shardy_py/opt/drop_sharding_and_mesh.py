"""Removes all shardings and meshes."""

from __future__ import annotations

from dataclasses import dataclass

from shardy_py.ir import Program
from shardy_py.passes.base import Pass
from shardy_py.passes.dataflow import COMPUTATIONS
from shardy_py.passes.propagation.log import Log
from shardy_py.passes.walk import SHARDING, blocks_of

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
