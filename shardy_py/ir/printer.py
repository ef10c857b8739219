"""Programs as text, in the form of an MLIR module of StableHLO and SDY ops.

The text is what MLIR prints, to the extent that a `Program` holds the information. It differs in this:

* An attribute that a `Program` does not keep is missing: `precision` of a dot, the direction of a comparison, layouts.
* Attributes stand under their flattened names (`offset_dims = [1]` of a gather) and integers have no type (`1`, not `1 : i64`).
* Regions of `reduce`, `sort`, `scatter` and the like are not kept; a `reduce` says at most which op it applies.
* An element that is not finite is `inf` or `nan`. A constant of more than 16 elements is `dense_resource<__elided__>`.
* Functions that are public are not marked so.
* Sharding rules are written where a user gave them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from shardy_py.dialect import TensorSharding, TensorShardingPerValue
from shardy_py.ir.attribute_text import MLIR_TEXT_KEY, RESOURCES, attribute_text, entries_text, name_text
from shardy_py.ir.core import PRINTERS, Block, Function, Op, Program, Value
from shardy_py.ir.numbering import Names
from shardy_py.ir.op_forms import FORMS
from shardy_py.ir.type_text import type_text
from shardy_py.ir.types import Type

_OPTIMIZATION_BARRIER = "stablehlo.optimization_barrier"
_SELECT = "stablehlo.select"
_WHILE = "stablehlo.while"
_NAMED_COMPUTATION = "sdy.named_computation"
_MANUAL_COMPUTATION = "sdy.manual_computation"


def print_program(program: Program) -> str:
    """The lines of a program, as MLIR writes a module; equal programs have equal texts. The last line ends without a line break.

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


def print_function(function: Function) -> str:
    """The text of one function, without the meshes it refers to."""
    printer = Printer()
    printer.function(function, "")
    return "\n".join(printer.lines)


def print_op(op: Op, *, regions: bool = True) -> str:
    """The text of one op, with its function's names of values; without `regions` each region is `{...}`."""
    top: Block | Function | None = op.block
    while isinstance(top, Block) and top.parent is not None:
        parent = top.parent
        if isinstance(parent, Function):
            top = parent
            break
        if parent.block is None:
            break
        top = parent.block
    printer = Printer(regions)
    printer.names = Names(top)
    printer.op(op, "", isinstance(op.block, Block) and isinstance(op.block.parent, Function))
    return "\n".join(printer.lines)


class Printer:
    """Writes ops in the forms that MLIR prints."""

    def __init__(self, regions: bool = True) -> None:
        self.lines: list[str] = []
        self.names = Names(None)
        self.regions = regions
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
            self.function(function, "  ")
        self.lines += ["}", *attributes.get(RESOURCES, ())]

    def typed(self, values: Sequence[Value]) -> str:
        """The types of values, with commas between."""
        return ", ".join([self.type(value.type) for value in values])

    def functional(self, op: Op) -> str:
        """The type of an op as a function."""
        results = self.typed(op.results)
        return f"({self.typed(op.operands)}) -> {results if len(op.results) == 1 else f'({results})'}"

    def dictionary(self, attributes: dict[str, Any]) -> str:
        """Attributes in braces."""
        return entries_text((name, attribute_text(value)) for name, value in attributes.items() if value is not None)

    def function(self, function: Function, indent: str) -> None:
        """Adds the lines of a function."""
        self.names = Names(function)
        declared = not function.body.ops and function.visibility == "private"
        arguments = [
            f"{'' if declared else f'{self.names.get(value)}: '}{self.type(value.type)}{self.value_attributes(value.sharding, attributes)}"
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
        head = f"{indent}func.func {visibility}@{name_text(function.name)}({', '.join(arguments)})"
        if results:
            text = ", ".join(results)
            bare = len(results) == 1 and not text.endswith("}")
            head += f" -> {text if bare else f'({text})'}"
        if attributes := {name: value for name, value in function.attributes.items() if name != "sym_visibility"}:
            head += f" attributes {self.dictionary(attributes)}"
        if declared:
            self.lines.append(head)
            return
        self.lines.append(f"{head} {{")
        self.block(function.body, f"{indent}  ", True)
        self.lines.append(f"{indent}}}")

    def value_attributes(self, sharding: TensorSharding | None, attributes: dict[str, Any]) -> str:
        """The sharding and other attributes of an argument or result."""
        if sharding is None and not attributes:
            return ""
        return f" {self.dictionary({**attributes, 'sdy.sharding': sharding})}"

    def block(self, block: Block, indent: str, in_function: bool = False) -> None:
        """Adds the lines of the ops of a block."""
        for op in block.ops:
            self.op(op, indent, in_function)

    def op(self, op: Op, indent: str, in_function: bool = False) -> None:
        """Adds the lines of an op."""
        name, names = op.name, self.names
        head = f"{indent}{names.results(op)}"
        if name.endswith(".return"):
            text = f"{'return' if in_function and name == 'func.return' else name}{self.extra(op)}"
            if op.operands:
                text += f" {names.list(op.operands)} : {self.typed(op.operands)}"
        elif op.regions and name in _WITH_REGIONS:
            self.lines.append(f"{head}{_WITH_REGIONS[name](self, op, indent)}")
            return
        else:
            text = self.plain(op, indent, in_function)
        self.lines.append(f"{head}{text}")

    def plain(self, op: Op, indent: str, in_function: bool) -> str:
        """The text of an op without regions, or with regions in their generic form."""
        name = op.name
        if name == _OPTIMIZATION_BARRIER:
            operands = self.names.list(op.operands)
            return f"{name}{self.extra(op)} {operands} : {self.typed(op.operands)}" if operands else f"{name}{self.extra(op)}() : ()"
        form = FORMS.get(name)
        if form is not None and (form.attributes <= op.attributes.keys() or "constant" in name):
            written, functional = form.write(op, self.names), form.functional
            extra = self.extra(op, form.attributes | form.optional, sharding=not form.holds_sharding)
            text = "call" if in_function and name == "func.call" else name
            text += extra + written if "constant" in name else written + extra
        elif op.regions or any("." not in attribute for attribute in op.attributes):
            own = {attribute: value for attribute, value in op.attributes.items() if "." not in attribute and attribute != "value"}
            text = f'"{name}"({self.names.list(op.operands)})'
            if own:
                text += f" <{self.dictionary(own)}>"
            if op.regions:
                text += self.generic_regions(op, indent)
            text += self.extra(op)
            functional = True
        else:
            operands = self.names.list(op.operands)
            text = f"{name} {operands}" if operands else name
            text += self.extra(op)
            functional = False
        if not functional:
            types = [value.type for value in (*op.operands, *op.results)]
            if types and types.count(types[0]) == len(types) and len(op.results) <= 1:
                return f"{text} : {self.type(types[0])}"
            if name == _SELECT and types.count(types[1]) == len(types) - 1:
                return f"{text} : {self.type(types[0])}, {self.type(types[1])}"
        return f"{text} : {self.functional(op)}"

    def extra(self, op: Op, written: frozenset[str] | None = None, *, sharding: bool = True) -> str:
        """The attributes with a dialect prefix, or all except the written ones; the sharding and a user's rule, as ` {...}`."""
        shardings = self.per_value(op) if sharding else ""
        entries = [
            (name, attribute_text(value))
            for name, value in op.attributes.items()
            if value is not None and ("." in name if written is None else name not in written)
        ]
        rule = str(op.rule) if op.rule is not None and op.rule.is_custom else ""
        if not entries and not rule:
            return f" {{sdy.sharding = {shardings}}}" if shardings else ""
        if shardings:
            entries.append(("sdy.sharding", shardings))
        if rule:
            entries.append(("sdy.sharding_rule", rule))
        return f" {entries_text(entries)}"

    def per_value(self, op: Op) -> str:
        """The shardings of the results, the unknown ones as open; nothing where none is known."""
        shardings = tuple([result.sharding for result in op.results])
        text = self.shardings.get(shardings)
        if text is None:
            first = next((sharding for sharding in shardings if sharding is not None), None)
            if first is None:
                return ""
            pairs = zip(shardings, op.results, strict=True)
            filled = tuple(TensorSharding.open(first.mesh, value.type.rank) if s is None else s for s, value in pairs)
            text = str(TensorShardingPerValue(filled))
            if None not in shardings:
                self.shardings[shardings] = text
        return text

    def body(self, block: Block, indent: str) -> str:
        """The ops of a region in braces."""
        if not self.regions:
            return "{...}"
        mark = len(self.lines)
        self.block(block, f"{indent}  ")
        inner = self.lines[mark:]
        del self.lines[mark:]
        return "\n".join(["{", *inner, f"{indent}}}"])

    def generic_regions(self, op: Op, indent: str) -> str:
        """Regions in parentheses."""
        texts: list[str] = []
        for region in op.regions:
            text = self.body(region, indent)
            if region.arguments and self.regions:
                arguments = ", ".join(f"{self.names.get(v)}: {self.type(v.type)}" for v in region.arguments)
                text = text.replace("{", f"{{\n{indent}^bb0({arguments}):", 1)
            texts.append(text)
        return f" ({', '.join(texts)})"

    def while_(self, op: Op, indent: str) -> str:
        """The text of a loop."""
        cond, body = op.regions
        for mine, theirs in zip(body.arguments, cond.arguments, strict=False):
            self.names.of[mine] = self.names.get(theirs)
        names = self.names
        pairs = ", ".join(f"{names.get(a)} = {names.get(v)}" for a, v in zip(cond.arguments, op.operands, strict=False))
        text = f"{_WHILE}({pairs}) : {self.typed(op.operands)}"
        extra = self.extra(op, frozenset())
        if extra:
            text += f" attributes{extra}"
        return f"{text}\n{indent}cond {self.body(cond, indent)} do {self.body(body, indent)}"

    def computation(self, op: Op, indent: str) -> str:
        """The text of a named or manual computation."""
        attributes = op.attributes
        text = op.name
        if op.name == _NAMED_COMPUTATION:
            text += f"<{attribute_text(str(attributes.get('name', '')))}>"
        text += f"({self.names.list(op.operands)})"
        for label in ("in_shardings", "out_shardings"):
            shardings: Sequence[TensorSharding] | None = attributes.get(label)
            if shardings is not None:
                text += f" {label}=[{', '.join(sharding.text(short=True) for sharding in shardings)}]"
        if op.name == _MANUAL_COMPUTATION:
            text += f" manual_axes={{{', '.join(map(attribute_text, attributes.get('manual_axes', ())))}}}"
        (body,) = op.regions
        arguments = ", ".join(f"{self.names.get(v)}: {self.type(v.type)}" for v in body.arguments)
        written = frozenset(("in_shardings", "out_shardings", "manual_axes", "name"))
        return f"{text} ({arguments}) {self.body(body, indent)}{self.extra(op, written)} : {self.functional(op)}"


_WITH_REGIONS: dict[str, Callable[[Printer, Op, str], str]] = {
    _WHILE: Printer.while_,
    _NAMED_COMPUTATION: Printer.computation,
    _MANUAL_COMPUTATION: Printer.computation,
}


PRINTERS.update({Op: print_op, Function: print_function, Program: print_program})
