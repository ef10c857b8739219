"""Copies the shardings of returned values to the results of functions."""

from __future__ import annotations

from dataclasses import dataclass

from shardy_py.ir import Program
from shardy_py.passes.base import Pass
from shardy_py.passes.dataflow import get_sharding
from shardy_py.passes.propagation.log import Log


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
