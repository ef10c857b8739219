"""Programs as text: an MLIR module of StableHLO and SDY ops in their generic form, the same for every op.

MLIR reads the text of a program that holds all that MLIR asks for, as one does that `opt` has read. Of others it differs in this:

* An attribute that a `Program` does not keep is missing: `precision` of a dot, the direction of a comparison, layouts.
* Attributes but those of products stand under their flattened names, such as `offset_dims = array<i64: 1>` of a gather.
* Regions of `sort`, `scatter` and the like are not kept. A `reduce` of one value gets the region of the op that combines it.
* A constant of more than 16 elements is `dense_resource<__elided__>`.
* Sharding rules are written where a user gave them.
"""

# Attributes hold anything, so what their lists hold has no type.
# pyright: reportUnknownArgumentType=false, reportUnknownVariableType=false

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from shardy_py.dialect import ManualAxes, OpShardingRule, TensorSharding, TensorShardingPerValue
from shardy_py.dialect.collectives import AXES_OF
from shardy_py.ir.attribute_text import (
    MLIR_TEXT_KEY,
    PROPERTIES,
    RESOURCES,
    AttributeText,
    attribute_text,
    constant_text,
    entries_text,
    name_text,
)
from shardy_py.ir.core import Block, Function, Op, Program, Value
from shardy_py.ir.type_text import type_text
from shardy_py.ir.types import Type

SHARDING_ATTRIBUTE: Mapping[str, str] = {
    "sdy.sharding_constraint": "sharding",
    "sdy.reshard": "sharding",
    "sdy.data_flow_edge": "sharding",
    **dict.fromkeys((*AXES_OF, "sdy.collective_permute"), "out_sharding"),
}
"""Ops whose sharding is an attribute of their own -> its name."""


def _per_value(value: Any) -> str:
    return str(TensorShardingPerValue(value))


_SHARDINGS: Mapping[str, Callable[[Any], str]] = {"in_shardings": _per_value, "out_shardings": _per_value}

MODELLED: Mapping[str, Mapping[str, Callable[[Any], str]]] = {
    "func.call": {"callee": lambda name: f"@{name_text(name)}"},
    "sdy.constant": {"value": str},
    "sdy.manual_computation": {**_SHARDINGS, "manual_axes": lambda axes: attribute_text(ManualAxes(tuple(axes)))},
    "sdy.named_computation": {**_SHARDINGS, "name": lambda name: attribute_text(str(name))},
    "sdy.propagation_barrier": {"allowed_direction": lambda direction: f"{int(direction)} : i32"},
    "sdy.reshard": {},
    "sdy.sharding_constraint": {},
    "sdy.sharding_group": {"group_id": lambda number: f"{number} : i64"},
    "stablehlo.constant": {"value": str},
    **{
        name: {attribute: attribute_text, "reduction_op": lambda kind: f"{kind} : i32" if kind else ""}
        for name, attribute in AXES_OF.items()
    },
}
"""Name of an op -> its attributes that are read into the `Program` and may be set by passes, beside shardings of results, as texts."""

_PLACED = frozenset((MLIR_TEXT_KEY, PROPERTIES))


def print_program(program: Program) -> str:
    """The lines of a program; equal programs have equal texts. The last line ends without a line break.

    Example:
        >>> print(print_program(Program([Function("main", Block(), ())])))
        module {
          func.func @main() {
          }
        }
    """
    printer = Printer()
    printer.program(program)
    return "\n".join(printer.lines)


class Printer:
    """Writes a program line by line; `opt.to_mlir` writes all that MLIR needs to read it."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.names: dict[Value, str] = {}
        self.types: dict[Type, str] = {}
        self.shardings: dict[tuple[TensorSharding | None, ...], str] = {}

    def type(self, type_: Type) -> str:
        """The text of a type."""
        text = self.types.get(type_)
        if text is None:
            text = self.types[type_] = type_text(type_)
        return text

    def program(self, program: Program) -> None:
        """Adds the lines of a module."""
        attributes = program.attributes
        name = attributes.get("sym_name")
        head = "module" if name is None else f"module @{name_text(name)}"
        if shown := {key: value for key, value in attributes.items() if key not in (MLIR_TEXT_KEY, RESOURCES, "sym_name")}:
            head += f" attributes {self.dictionary(shown)}"
        self.lines.append(f"{head} {{")
        for name, mesh in program.meshes.items():
            extra = program.mesh_attributes.get(name)
            self.lines.append(f"  sdy.mesh @{name_text(name)} = {mesh.text(short=True)}{f' {self.dictionary(extra)}' if extra else ''}")
        self.lines += attributes.get(MLIR_TEXT_KEY, ())
        for function in program.functions:
            self.function(function)
        self.lines += ["}", *attributes.get(RESOURCES, ())]

    def typed(self, values: Sequence[Value]) -> str:
        """The types of values, with commas between."""
        return ", ".join([self.type(value.type) for value in values])

    def used(self, values: Sequence[Value]) -> str:
        """The names of values, with commas between."""
        return ", ".join([self.names.get(value, "%?") for value in values])

    def taken(self, arguments: Sequence[Value]) -> str:
        """Arguments of a block with their types."""
        return ", ".join([f"{self.names[value]}: {self.type(value.type)}" for value in arguments])

    def dictionary(self, attributes: dict[str, Any]) -> str:
        """Attributes in braces."""
        return entries_text((name, attribute_text(value)) for name, value in attributes.items() if value is not None)

    def function(self, function: Function) -> None:
        """Adds the lines of a function."""
        self.names = names_in(function.body)
        declared = not function.body.ops and function.visibility == "private"
        arguments = [
            f"{'' if declared else f'{self.names[value]}: '}{self.type(value.type)}{self.value_attributes(value.sharding, attributes)}"
            for value, attributes in zip(function.arguments, function.argument_attributes, strict=False)
        ]
        results = [
            f"{self.type(type_)}{self.value_attributes(sharding, attributes)}"
            for type_, sharding, attributes in zip(
                function.result_types, function.result_shardings, function.result_attributes, strict=False
            )
        ]
        shows_visibility = function.visibility != "public" or "sym_visibility" in function.attributes
        visibility = f"{function.visibility} " if shows_visibility else ""
        head = f"  func.func {visibility}@{name_text(function.name)}({', '.join(arguments)})"
        head += f" -> ({', '.join(results)})" if results else ""
        if attributes := {name: value for name, value in function.attributes.items() if name != "sym_visibility"}:
            head += f" attributes {self.dictionary(attributes)}"
        if declared:
            self.lines.append(head)
            return
        self.lines.append(f"{head} {{")
        self.block(function.body, "    ")
        self.lines.append("  }")

    def value_attributes(self, sharding: TensorSharding | None, attributes: dict[str, Any]) -> str:
        """The sharding and other attributes of an argument or result."""
        if sharding is None and not attributes:
            return ""
        return f" {self.dictionary({**attributes, 'sdy.sharding': sharding})}"

    def block(self, block: Block, indent: str) -> None:
        """Adds the lines of the ops of a block."""
        for op in block.ops:
            self.op(op, indent)

    def op(self, op: Op, indent: str) -> None:
        """Adds the lines of an op."""
        count = len(op.results)
        results = self.used(op.results[:1]).partition("#")[0] + (f":{count} = " if count > 1 else " = " if count else "")
        head = f'{indent}{results}"{op.name}"({self.used(op.operands)})'
        if PROPERTIES in op.attributes:
            head += f" {op.attributes[PROPERTIES]}"
        for i, region in enumerate(op.regions):
            self.lines.append(f"{head} ({{" if i == 0 else f"{indent}}}, {{")
            if region.arguments:
                self.lines.append(f"{indent}^bb0({self.taken(region.arguments)}):")
            self.block(region, f"{indent}  ")
        if op.name == "stablehlo.reduce" and count == 1 and not op.regions:
            one = self.type(op.operands[1].type)
            self.lines += [
                f"{head} ({{",
                f"{indent}^bb0(%lhs: {one}, %rhs: {one}):",
                f'{indent}  %both = "{op.attributes["body"]}"(%lhs, %rhs) : ({one}, {one}) -> ({one})',
                f'{indent}  "stablehlo.return"(%both) : ({one}) -> ()',
            ]
            head = f"{indent}}})"
        if op.regions:
            head = f"{indent}}})"
        entries = [*self.attributes(op), *self.shardings_of(op)]
        if op.rule is not None and self.shows(op.rule):
            entries.append(f"sdy.sharding_rule = {op.rule}")
        if entries:
            head += f" {{{', '.join(entries)}}}"
        self.lines.append(f"{head} : ({self.typed(op.operands)}) -> ({self.typed(op.results)}){self.location(op)}")

    def shows(self, rule: OpShardingRule) -> bool:
        """Whether a rule is written."""
        return rule.is_custom

    def location(self, _op: Op) -> str:
        """What is written of the location of an op."""
        return ""

    def constant(self, op: Op) -> str:
        """The value of a constant."""
        return f"{constant_text(op.attributes.get('value'), op.results[0].type)} : {self.type(op.results[0].type)}"

    def attributes(self, op: Op) -> list[str]:
        """`name = value` of all attributes of an op but the shardings of its results and its rule."""
        attributes, written = op.attributes, MODELLED.get(op.name)
        entries: list[str] = []
        for name, text_of in (written or {}).items():
            value = attributes.get(name)
            if value is not None and (text := self.constant(op) if name == "value" else text_of(value)):
                entries.append(f"{name} = {text}")
        mlir_text = attributes.get(MLIR_TEXT_KEY)
        if mlir_text is not None:
            entries.append(mlir_text[1:-1])
        elif op.name == "stablehlo.dot_general":
            sides = (f"{name} = [{', '.join(map(str, axes))}]" for name, axes in attributes.items())
            entries.append(f"dot_dimension_numbers = #stablehlo.dot<{', '.join(sides)}>")
        elif written is None:
            shown = {name: value for name, value in attributes.items() if "." not in name and value is not None and name != "body"}
            entries += [f"{name} = {_typed(value)}" for name, value in shown.items()]
        for name, value in attributes.items():
            if "." in name and name not in _PLACED and value is not None:
                entries.append(f"{name} = {attribute_text(value)}")
        return entries

    def shardings_of(self, op: Op) -> list[str]:
        """The shardings of the results, the unknown ones as open; nothing where none is known."""
        shardings = tuple([result.sharding for result in op.results])
        first = next((sharding for sharding in shardings if sharding is not None), None)
        if first is None:
            return []
        own = SHARDING_ATTRIBUTE.get(op.name)
        if own is not None:
            return [f"{own} = {first}"]
        text = self.shardings.get(shardings)
        if text is None:
            pairs = zip(shardings, op.results, strict=True)
            filled = tuple(TensorSharding.open(first.mesh, value.type.rank) if s is None else s for s, value in pairs)
            text = f"sdy.sharding = {TensorShardingPerValue(filled)}"
            if None not in shardings:
                self.shardings[shardings] = text
        return [text]


def names_in(body: Block) -> dict[Value, str]:
    """`%arg0` for arguments, `%0` and `%1#0` for results, numbered in the order of the ops of a function."""
    blocks = [body, *(region for op in body.walk() for region in op.regions)]
    names = {value: f"%arg{i}" for i, value in enumerate(argument for block in blocks for argument in block.arguments)}
    for i, op in enumerate(op for op in body.walk() if op.results):
        names |= {value: f"%{i}#{value.index}" if len(op.results) > 1 else f"%{i}" for value in op.results}
    return names


def _typed(value: Any) -> str:
    """An attribute of an op that was not read from MLIR; integers are as wide as StableHLO has them."""
    if isinstance(value, bool | AttributeText):
        return attribute_text(value)
    if isinstance(value, int):
        return f"{value} : i64"
    if isinstance(value, tuple | list) and all(type(each) is int for each in value):
        return f"array<i64: {', '.join(map(str, value))}>" if value else "array<i64>"
    return attribute_text(value)
