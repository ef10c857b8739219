"""Removes the attributes that say how the propagation came to its shardings."""

from __future__ import annotations

from dataclasses import dataclass

from shardy_py.ir import Program
from shardy_py.passes.base import Pass
from shardy_py.passes.propagation.log import Log
from shardy_py.passes.walk import blocks_of

_KINDS = ("propagation_edges", "sharding_origins")
ATTRIBUTES = frozenset(f"sdy.{prefix}{kind}" for prefix in ("", "block_arg_", "result_") for kind in _KINDS)
"""Names of the debug attributes; the names that constraints and manual computations have as origins stay."""


@dataclass(frozen=True, kw_only=True)
class RemovePropagationDebugInfo(Pass):
    """Removes the attributes that the debug options added."""

    name = "sdy-remove-propagation-debug-info"

    def run(self, program: Program, log: Log | None = None) -> None:
        """Removes them from ops and from arguments and results of functions. Source: Shardy's remove_propagation_debug_info.cc."""
        for function in program.functions:
            for attributes in (*function.argument_attributes, *function.result_attributes):
                for name in ATTRIBUTES & attributes.keys():
                    del attributes[name]
        for block in blocks_of(program):
            for op in block.ops:
                if not ATTRIBUTES.isdisjoint(op.attributes):
                    op.attributes = {name: value for name, value in op.attributes.items() if name not in ATTRIBUTES}
