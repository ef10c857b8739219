"""Puts callers before the functions they call."""

from __future__ import annotations

from dataclasses import dataclass

from shardy_py.ir import Program
from shardy_py.passes.base import Pass
from shardy_py.passes.call_graph import functions_in_order
from shardy_py.passes.propagation.log import Log


@dataclass(frozen=True, kw_only=True)
class PreOrderFuncs(Pass):
    """Puts callers before the functions they call."""

    name = "sdy-pre-order-funcs"

    def run(self, program: Program, log: Log | None = None) -> None:
        """Orders functions in the reverse of post-order of the call graph. Source: Shardy's pre_order_funcs.cc."""
        program.functions = functions_in_order(program, post=False)
