"""Writes a `Program` as the text of a StableHLO + SDY module, the inverse of `from_mlir`."""

from __future__ import annotations

from typing import Any

from shardy_py.errors import ShardyError
from shardy_py.frontends.mlir_attributes import SHARDING_ATTRIBUTE
from shardy_py.ir import Op, Program
from shardy_py.ir.attribute_text import MLIR_TEXT_KEY, AttributeText, attribute_text
from shardy_py.ir.printer import Printer
from shardy_py.opt.from_mlir import MODELLED, PROPERTIES, location_text, parse_module


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
    """Writes ops in their generic form, with all that MLIR needs to read them."""

    def __init__(self, locations: bool) -> None:
        super().__init__()
        self.locations = locations

    def op(self, op: Op, indent: str, in_function: bool = False) -> None:
        """Adds the lines of an op."""
        names = self.names
        head = f'{names.results(op)}"{op.name}"({names.list(op.operands)})'
        if PROPERTIES in op.attributes:
            head += f" {op.attributes[PROPERTIES]}"
        if op.regions:
            self.lines.append(f"{head} (")
            for i, region in enumerate(op.regions):
                self.lines.append("{" if i == 0 else "}, {")
                if region.arguments:
                    self.lines.append(f"^bb0({', '.join([f'{names.get(v)}: {self.type(v.type)}' for v in region.arguments])}):")
                self.block(region, indent)
            head = "})"
        entries = op_entries(op)
        own = SHARDING_ATTRIBUTE.get(op.name)
        if own is not None and op.results[0].sharding is not None:
            entries.append(f"{own} = {op.results[0].sharding}")
        elif own is None and (shardings := self.per_value(op)):
            entries.append(f"sdy.sharding = {shardings}")
        if op.rule is not None:
            entries.append(f"sdy.sharding_rule = {op.rule}")
        if entries:
            head += f" {{{', '.join(entries)}}}"
        tail = location_text(op.location) if self.locations else ""
        self.lines.append(f"{head} : ({self.typed(op.operands)}) -> ({self.typed(op.results)}){tail}")


_PLACED = frozenset((MLIR_TEXT_KEY, PROPERTIES))


def op_entries(op: Op) -> list[str]:
    """`name = value` of all attributes of an op but the shardings of its results and its rule."""
    attributes, written = op.attributes, MODELLED.get(op.name)
    entries = []
    for name, write in (written or {}).items():
        value = attributes.get(name)
        if value is not None and (text := write(op, value)):
            entries.append(f"{name} = {text}")
    mlir_text = attributes.get(MLIR_TEXT_KEY)
    if mlir_text is not None:
        entries.append(mlir_text[1:-1])
    elif written is None:
        entries += [f"{name} = {_typed(value)}" for name, value in attributes.items() if "." not in name and value is not None]
    for name, value in attributes.items():
        if "." in name and name not in _PLACED and value is not None:
            entries.append(f"{name} = {attribute_text(value)}")
    return entries


def _typed(value: Any) -> str:
    """An attribute of an op that was not read from MLIR; integers are as wide as StableHLO has them."""
    if isinstance(value, bool | AttributeText):
        return attribute_text(value)
    if isinstance(value, int):
        return f"{value} : i64"
    if isinstance(value, tuple | list) and all(type(each) is int for each in value):
        return f"array<i64: {', '.join(map(str, value))}>" if value else "array<i64>"
    return attribute_text(value)
