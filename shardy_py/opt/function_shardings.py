"""Shardings of function results, calls and returned values brought together."""

from __future__ import annotations

from dataclasses import dataclass

from shardy_py.dialect import TensorSharding
from shardy_py.ir import Op, Program, Value
from shardy_py.opt.explicit_reshards.unreduced import unreduced_of
from shardy_py.passes.base import Pass
from shardy_py.passes.dataflow import get_sharding
from shardy_py.passes.propagation.log import Log
from shardy_py.passes.walk import CALL, functions_by_name, ops_of


@dataclass(frozen=True, kw_only=True)
class InsertFuncCallReshards(Pass):
    """Gives calls the result shardings of their functions."""

    name = "sdy-insert-func-call-reshards"

    def run(self, program: Program, log: Log | None = None) -> None:
        """Gives each call the shardings of its callee's results; missing ones are open, or closed where all are missing.

        Where that changes how a result is laid out, a reshard to the sharding of before, replicated if there was none,
        follows the call. From 0.12 on a call keeps a sharding, or is replicated, where its callee's has other unreduced axes.

        Source: Shardy's insert_func_call_reshards.cc.
        """
        functions = functions_by_name(program)
        keeps = program.semantics.has("calls: unreduced axes stay")
        for call in ops_of(program, (CALL,)):
            call_mesh = next((result.sharding.mesh for result in call.results if result.sharding is not None), None)
            shardings = functions[call.attributes["callee"]].result_shardings
            callee_mesh = next((sharding.mesh for sharding in shardings if sharding is not None), None)
            if callee_mesh is None and call_mesh is None:
                continue
            reshards: list[Op] = []
            for result, sharding in zip(call.results, shardings, strict=True):
                if sharding is None:
                    make = TensorSharding.open if callee_mesh is not None else TensorSharding.closed
                    sharding = make(callee_mesh if callee_mesh is not None else call_mesh, result.type.rank)  # type: ignore[arg-type]
                if keeps and unreduced_of(sharding) != unreduced_of(result.sharding):
                    result.sharding = result.sharding or sharding.fully_closed_like()
                    continue
                old, result.sharding = result.sharding, sharding
                if not sharding.is_equivalent(old):
                    reshards.insert(0, _reshard(result, sharding.fully_closed_like() if old is None else old, call))
            if reshards:
                assert call.block is not None
                i = call.block.ops.index(call) + 1
                call.block.ops[i:i] = reshards


def _reshard(value: Value, sharding: TensorSharding, call: Op) -> Op:
    reshard = Op("sdy.reshard", (value,), (value.type,), location=call.location, sharding=sharding)
    reshard.block = call.block
    value.replace_uses(reshard.results[0], lambda user, _: user is reshard)
    return reshard


@dataclass(frozen=True, kw_only=True)
class PropagateToFuncResults(Pass):
    """Copies shardings of returned values to function results."""

    name = "sdy-propagate-to-func-results"

    def run(self, program: Program, log: Log | None = None) -> None:
        """Gives each result of a function other than main the sharding of the value it returns, or none; from 0.12 on main's that lack one.

        A function that ends in another op than `func.return` keeps the shardings of its results.

        Source: Shardy's propagate_to_func_results.cc.
        """
        main = program.entry
        for function in program.functions:
            if not function.body.ops or function.body.terminator.name != "func.return":
                continue
            shardings = [get_sharding(value) for value in function.body.terminator.operands]
            if function is not main:
                function.result_shardings = shardings
            elif program.semantics.has("results: main has shardings"):
                function.result_shardings = [s or made for s, made in zip(function.result_shardings, shardings, strict=True)]


@dataclass(frozen=True, kw_only=True)
class PropagateShardingFromFuncToCall(Pass):
    """Copies result shardings of functions to their calls."""

    name = "sdy-propagate-sharding-from-func-to-call"

    def run(self, program: Program, log: Log | None = None) -> None:
        """Gives a call without shardings the shardings of its callee's results, missing ones fully open.

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
