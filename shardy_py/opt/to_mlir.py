"""Writes a `Program` as the text of a StableHLO + SDY module, the inverse of `from_mlir`."""

from __future__ import annotations

from typing import Any

from shardy_py.dialect import OpShardingRule
from shardy_py.errors import ShardyError
from shardy_py.ir import Op, Program
from shardy_py.ir.printer import Printer
from shardy_py.ir.type_text import type_text
from shardy_py.opt.from_mlir import location_text, parse_module


def to_mlir(program: Program, *, locations: bool = False, pretty: bool = True, context: Any = None) -> str:
    """The text of a program, which jaxlib reads as a module.

    Ops that a `Program` has no form for are written as they were read, so a program from MLIR must have been read with
    `from_mlir(module, keep=True)`. Raises ShardyError if jaxlib finds the module invalid, as where the program does not hold all that
    StableHLO asks for.

    Args:
        pretty: Whether jaxlib reads the text, verifies it and prints it as `sdy_opt` does; else ops stand in their generic form
            and nothing checks them.

    Example:
        >>> from shardy_py.opt.from_mlir import from_mlir
        >>> text = "func.func @main(%x: tensor<8xf32>) -> tensor<8xf32> { return %x : tensor<8xf32> }"
        >>> print(to_mlir(from_mlir(text, keep=True)))
        module {
          func.func @main(%arg0: tensor<8xf32>) -> tensor<8xf32> {
            return %arg0 : tensor<8xf32>
          }
        }
        <BLANKLINE>
    """
    writer = _Writer(locations)
    writer.program(program)
    text = "\n".join(writer.lines)
    if not pretty:
        return text
    try:
        module = parse_module(text, context)
    except ValueError as error:
        raise ShardyError(
            str(error),
            where="the module that was written from the program",
            fix="read the program with from_mlir(module, keep=True); one that was traced by JAX does not hold all attributes",
        ) from None
    return str(module.operation.get_asm(enable_debug_info=True)) if locations else str(module)


class _Writer(Printer):
    """Writes all that MLIR needs to read a program, or that a pass may read again."""

    def __init__(self, locations: bool) -> None:
        super().__init__()
        self.locations = locations

    def shows(self, rule: OpShardingRule) -> bool:
        """All rules are written."""
        return True

    def location(self, op: Op) -> str:
        """That of an op that was read from MLIR."""
        return location_text(op.location) if self.locations else ""

    def constant(self, op: Op) -> str:
        """The value as it was read."""
        value = op.attributes["value"]
        if not isinstance(value, str):
            raise ShardyError(
                "the value of a constant is not held as MLIR text",
                where=op.name,
                fix="write programs that were read with from_mlir(module, keep=True)",
            )
        suffix = type_text(op.results[0].type)
        return str(value) if value.endswith(suffix) else f"{value} : {suffix}"
