"""Puts callers before the functions they call."""

from __future__ import annotations

from shardy_py.ir import Program
from shardy_py.passes.call_graph import functions_in_order

NAME = "sdy-pre-order-funcs"


def run(program: Program, **_: object) -> None:
    """Orders functions in the reverse of post-order of the call graph. Source: Shardy's pre_order_funcs.cc."""
    program.functions = functions_in_order(program, post=False)
