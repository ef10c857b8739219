"""Copies the result shardings of functions to the calls that state none."""

from __future__ import annotations

from dataclasses import dataclass

from shardy_py.dialect import TensorSharding
from shardy_py.ir import Program
from shardy_py.passes.base import Pass
from shardy_py.passes.propagation.log import Log
from shardy_py.passes.walk import CALL, functions_by_name, ops_of


@dataclass(frozen=True, kw_only=True)
class PropagateShardingFromFuncToCall(Pass):
    """Copies result shardings of functions to their calls."""

    name = "sdy-propagate-sharding-from-func-to-call"

    def run(self, program: Program, log: Log | None = None) -> None:
        """Sets the shardings of a call without any to those of its callee's results, missing ones fully open.

        Nothing happens where the callee has none, or only ones on a single device.

        Source: Shardy's propagate_sharding_from_func_to_call.cc.
        """
        functions = functions_by_name(program)
        for call in ops_of(program, (CALL,)):
            if any(result.sharding is not None for result in call.results):
                continue
            shardings = functions[call.attributes["callee"]].result_shardings
            mesh = next((s.mesh for s in shardings if s is not None and not s.mesh_in(program.meshes).is_maximal), None)
            if mesh is None:
                continue
            for result, sharding in zip(call.results, shardings, strict=True):
                result.sharding = TensorSharding.open(mesh, result.type.rank) if sharding is None else sharding
