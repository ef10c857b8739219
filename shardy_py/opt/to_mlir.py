"""Writes a `Program` as the text of a StableHLO + SDY module, the inverse of `from_mlir`."""

from __future__ import annotations

from typing import Any

from shardy_py.dialect import TensorSharding, TensorShardingPerValue
from shardy_py.errors import ShardyError
from shardy_py.frontends.mlir_attributes import SHARDING_ATTRIBUTE
from shardy_py.ir import Block, Function, Op, Program, Type, Value
from shardy_py.ir.attribute_text import MLIR_TEXT_KEY, AttributeText, attribute_text, entries_text, name_text
from shardy_py.ir.type_text import type_text
from shardy_py.opt.from_mlir import MODELLED, PROPERTIES, RESOURCES, location_text, parse_module

_SHARDING = "sdy.sharding"
_RULE = "sdy.sharding_rule"
_OWN_MODULE_ATTRIBUTES = frozenset((MLIR_TEXT_KEY, RESOURCES, "sym_name"))


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


class _Writer:
    def __init__(self, locations: bool) -> None:
        self.lines: list[str] = []
        self.locations = locations
        self.types: dict[Type, str] = {}
        self.shardings: dict[tuple[TensorSharding | None, ...], str] = {}
        self.names: dict[Value, str] = {}
        self.count = 0

    def program(self, program: Program) -> None:
        attributes = program.attributes
        name = attributes.get("sym_name")
        head = "module" if name is None else f"module @{name_text(name)}"
        entries = [(key, attribute_text(value)) for key, value in attributes.items() if key not in _OWN_MODULE_ATTRIBUTES]
        if entries:
            head += f" attributes {entries_text(entries)}"
        self.lines.append(f"{head} {{")
        for name, mesh in program.meshes.items():
            text = f"sdy.mesh @{name_text(name)} = {mesh.text(short=True)}"
            extra = program.mesh_attributes.get(name)
            self.lines.append(f"{text} {entries_text((k, attribute_text(v)) for k, v in extra.items())}" if extra else text)
        self.lines += attributes.get(MLIR_TEXT_KEY, ())
        for function in program.functions:
            self.function(function)
        self.lines.append("}")
        if RESOURCES in attributes:
            self.lines.append(attributes[RESOURCES])

    def type(self, type_: Type) -> str:
        cached = self.types.get(type_)
        if cached is None:
            cached = self.types[type_] = type_text(type_)
        return cached

    def function(self, function: Function) -> None:
        self.names, self.count = {}, 0
        declared = not function.body.ops
        inputs = []
        for value, attributes in zip(function.arguments, function.argument_attributes, strict=True):
            name = "" if declared else f"{self.name(value)}: "
            inputs.append(f"{name}{self.type(value.type)}{_value_attributes(value.sharding, attributes)}")
        results = [
            f"{self.type(type_)}{_value_attributes(sharding, attributes)}"
            for type_, sharding, attributes in zip(
                function.result_types, function.result_shardings, function.result_attributes, strict=True
            )
        ]
        shows_visibility = function.visibility != "public" or "sym_visibility" in function.attributes
        visibility = f"{function.visibility} " if shows_visibility else ""
        head = f"func.func {visibility}@{name_text(function.name)}({', '.join(inputs)})"
        if results:
            head += f" -> ({', '.join(results)})"
        entries = [(name, attribute_text(value)) for name, value in function.attributes.items() if name != "sym_visibility"]
        if entries:
            head += f" attributes {entries_text(entries)}"
        if declared:
            self.lines.append(head)
            return
        self.lines.append(f"{head} {{")
        self.block(function.body)
        self.lines.append("}")

    def name(self, value: Value) -> str:
        """Names a value that is being defined."""
        name = self.names[value] = f"%{self.count}"
        self.count += 1
        return name

    def block(self, block: Block) -> None:
        for op in block.ops:
            self.op(op)

    def op(self, op: Op) -> None:
        names = self.names
        results = op.results
        if not results:
            head = ""
        elif len(results) == 1:
            head = f"{self.name(results[0])} = "
        else:
            group = self.name(results[0])
            head = f"{group}:{len(results)} = "
            for value in results:
                names[value] = f"{group}#{value.index}"
        try:
            operands = ", ".join([names[value] for value in op.operands])
        except KeyError:
            raise ShardyError(f"an operand of '{op.name}' is not defined before it", fix="run the verifier of programs") from None
        head += f'"{op.name}"({operands}){f" {op.attributes[PROPERTIES]}" if PROPERTIES in op.attributes else ""}'
        regions = op.regions
        if regions:
            self.lines.append(f"{head} (")
            for i, region in enumerate(regions):
                self.lines.append("{" if i == 0 else "}, {")
                if region.arguments:
                    self.lines.append(f"^bb0({', '.join([f'{self.name(v)}: {self.type(v.type)}' for v in region.arguments])}):")
                self.block(region)
            head = "})"
        entries = op_entries(op)
        if results:
            self.annotate(op, entries)
        if op.rule is not None:
            entries.append(f"{_RULE} = {op.rule}")
        if entries:
            head += f" {{{', '.join(entries)}}}"
        types = ", ".join([self.type(value.type) for value in op.operands])
        outs = ", ".join([self.type(value.type) for value in results])
        tail = location_text(op.location) if self.locations else ""
        self.lines.append(f"{head} : ({types}) -> ({outs}){tail}")

    def annotate(self, op: Op, entries: list[str]) -> None:
        """Adds the shardings of results; where some results have one, the others are open."""
        shardings = tuple([result.sharding for result in op.results])
        first = next((sharding for sharding in shardings if sharding is not None), None)
        if first is None:
            return
        own = SHARDING_ATTRIBUTE.get(op.name)
        if own is not None:
            entries.append(f"{own} = {first}")
            return
        text = self.shardings.get(shardings)
        if text is None:
            filled = (TensorSharding.open(first.mesh, v.type.rank) if s is None else s for v, s in zip(op.results, shardings))
            text = str(TensorShardingPerValue(filled))
            if None not in shardings:
                self.shardings[shardings] = text
        entries.append(f"{_SHARDING} = {text}")


def _value_attributes(sharding: TensorSharding | None, attributes: dict[str, object]) -> str:
    if sharding is None and not attributes:
        return ""
    entries = [(name, attribute_text(value)) for name, value in attributes.items() if value is not None]
    if sharding is not None:
        entries.append((_SHARDING, str(sharding)))
    return f" {entries_text(entries)}" if entries else ""


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
