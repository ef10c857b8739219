"""Turns every `sdy.sharding_constraint` into a `sdy.reshard`."""

from __future__ import annotations

from shardy_py.ir import Program
from shardy_py.passes.walk import ops_of

NAME = "sdy-sharding-constraint-to-reshard"


def run(program: Program, **_: object) -> None:
    """Renames the ops; a reshard has no effect of its own, so that one nobody uses can go, and no sharding rule.

    Source: Shardy's sharding_constraint_to_reshard.cc.
    """
    for op in ops_of(program, ("sdy.sharding_constraint",)):
        op.name = "sdy.reshard"
