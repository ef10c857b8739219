"""Refuses programs whose values have no static shape before anything propagates."""

from __future__ import annotations

from shardy_py.errors import ShardyError
from shardy_py.ir import OpaqueType, Program
from shardy_py.ir.type_text import type_text
from shardy_py.passes.walk import blocks_of


def check_static_shapes(program: Program) -> None:
    """Checks the types of all results. Raises ShardyError if a result is a tensor without a static shape, or a tuple; in Shardy's words."""
    for block in blocks_of(program):
        for op in block.ops:
            for result in op.results:
                if type(result.type) is not OpaqueType:
                    continue
                text = type_text(result.type)
                tuples = text.startswith("tuple<")
                if not tuples and not text.startswith("tensor<"):
                    continue
                location = program.locate(op.location)
                raise ShardyError(
                    f"Shardy propagation doesn't support tuples: '{text}'"
                    if tuples
                    else f"Shardy propagation only supports ranked tensors with a static shape. type: '{text}'",
                    where=f"'{op.name}'" if location is None else f"{location.file}:{location.line}, '{op.name}'",
                )
