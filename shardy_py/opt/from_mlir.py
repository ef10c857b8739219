"""Reads a StableHLO + SDY module, or its text, with all that passes leave as it is.

An op keeps the attributes that no pass sets as one text under `ir.attribute_text.MLIR_TEXT_KEY`, so that copies of the op share it; a
program keeps its top-level ops that are neither function nor mesh there. `ir.printer.MODELLED` says which attributes are written from the
`Program` instead.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

from jaxlib.mlir import ir

from shardy_py.dialect.collectives import AXES_OF, moved_axes
from shardy_py.dialect.verify import verify_parts
from shardy_py.errors import DialectError, ShardyError
from shardy_py.frontends.mlir import ModuleReader, locate, locate_text, make_context, place_of
from shardy_py.frontends.mlir_attributes import attribute_text as text_in
from shardy_py.frontends.mlir_attributes import plain
from shardy_py.ir import Block, Function, Location, Op, Program
from shardy_py.ir.attribute_text import MLIR_TEXT_KEY, PROPERTIES, RESOURCES, AttributeText, name_text, split_entries
from shardy_py.ir.printer import MODELLED, SHARDING_ATTRIBUTE
from shardy_py.opt.mlir_limits import check_text, place
from shardy_py.passes.collection import no_collection

_SHARDING = "sdy.sharding"
_RULE = "sdy.sharding_rule"

_READ_BY_PASSES = frozenset((_SHARDING, "execution_thread", "sdy.original_func_name", "sym_name"))


def from_mlir(module: ir.Module | str, *, keep: bool = False) -> Program:
    """Reads a module into a `Program`; the module is not changed.

    An op keeps its name, operands, result types, shardings, an attached sharding rule, and the attributes listed in
    `mlir_attributes.READERS`. An op that is not listed there keeps only its discardable attributes.

    Args:
        module: The module, such as `jax.jit(f).lower(...).compiler_ir()`, or its text.
        keep: Whether everything else is kept too, so that `to_mlir` can write the module again: other
            attributes as their text, and the regions of all ops.

    Returns:
        A program in which values have their uses in the order in which the module has them.

    Raises:
        ValueError: If the text is no valid module, or a region or function has several blocks.

    Example:
        >>> text = "func.func @main(%x: tensor<8xf32>) -> tensor<8xf32> { return %x : tensor<8xf32> }"
        >>> from_mlir(text).main.arguments[0].type
        float32[8]
    """
    read = parse_module(module) if isinstance(module, str) else module
    reader = _KeepingReader() if keep else ModuleReader()
    try:
        with no_collection():
            program = reader.program(read)
        _check_collectives(reader, program)
        return program
    except RecursionError:
        raise
    except RuntimeError as error:  # of jaxlib's bindings
        raise ShardyError("a name or another text in the module is not UTF-8", where="the module", why=str(error)) from None


def parse_module(text: str, context: ir.Context | None = None) -> ir.Module:
    """Parses MLIR text with the dialects that JAX emits; ops of other dialects may stand in generic form.

    Raises ShardyError if the text is no valid module, in the words of the MLIR parser, or is beyond the limits of `mlir_limits`.
    """
    check_text(text)
    context = make_context(allow_unregistered=True) if context is None else context
    check_edges(text, context.is_registered_operation)
    try:
        return ir.Module.parse(text, context)
    except ir.MLIRError as error:
        raise ShardyError(str(error)) from None
    except (ValueError, MemoryError) as error:
        raise ShardyError("MLIR cannot reserve what the module wants", where="the module", why=str(error) or "out of memory") from None


class _KeepingReader(ModuleReader):
    """Keeps what a `Program` has no form for as its text, and the regions of all ops."""

    def __init__(self) -> None:
        super().__init__()
        self.has_resources = False

    def program(self, module: ir.Module) -> Program:
        program = super().program(module)
        others = [view.operation for view in module.body.operations if view.operation.name not in ("func.func", "sdy.mesh")]
        if others:
            program.attributes[MLIR_TEXT_KEY] = tuple(AttributeText(op.get_asm(print_generic_op_form=True)) for op in others)
        if self.has_resources:
            program.attributes |= module_resources(module)
        program.locate = _locate
        return program

    def function(self, op: ir.Operation) -> Function:
        function = super().function(op)
        if function.visibility == "public" and "sym_visibility" in op.attributes:
            function.attributes["sym_visibility"] = function.visibility
        return function

    def attribute(self, name: str, attribute: ir.Attribute) -> Any:
        return super().attribute(name, attribute) if name in _READ_BY_PASSES else AttributeText(attribute)

    def dictionaries(self, attribute: ir.Attribute | None, count: int) -> Sequence[dict[str, Any]]:
        if attribute is None:
            return super().dictionaries(attribute, count)
        result: list[dict[str, Any]] = []
        for dictionary in cast(ir.ArrayAttr, attribute):
            entries = [cast(ir.DictAttr, dictionary)[i] for i in range(len(cast(ir.DictAttr, dictionary)))]
            result.append({entry.name: self.attribute(entry.name, entry.attr) for entry in entries})
        return result

    def block(self, region: ir.Region, where: str, depth: int = 0) -> Block:
        return super().block(region, where, depth) if len(region.blocks) else Block()

    def keeps_regions(self, name: str) -> bool:
        return True

    def location(self, source: ir.Operation) -> object:
        return LocationText(str(source.location))

    def others(self, op: Op, view: ir.OpView) -> dict[str, Any]:
        texts, attributes = attribute_texts(view)
        unread = unread_attributes(op.name, texts)
        if unread:
            op.attributes = {**op.attributes, MLIR_TEXT_KEY: unread}
        self.has_resources |= any("dense_resource<" in text for text in texts.values())
        return attributes


def _locate(location: object) -> Location | None:
    return locate_text(location.text) if isinstance(location, LocationText) else locate(location)


def _check_collectives(reader: ModuleReader, program: Program) -> None:
    """Checks the sub-axes of collectives, which MLIR's parser accepts unchecked."""
    for source, op in reader.ops.items():
        if op.name in AXES_OF and op.attributes and op.result.sharding is not None:
            try:
                verify_parts(moved_axes(op.attributes[AXES_OF[op.name]]), op.result.sharding.mesh_in(program.meshes))
            except DialectError as error:
                raise error.at(place_of(source)) from None


def attribute_texts(op: ir.OpView) -> tuple[dict[str, str], dict[str, Any]]:
    """Splits the attributes of an op: texts of those without a dialect prefix, and those with one, SDY's parsed."""
    texts: dict[str, str] = {}
    prefixed: dict[str, Any] = {}
    attributes = op.attributes
    for name in attributes:
        if "." not in name:
            texts[name] = text_in(op, name)
        elif name in (_SHARDING, _RULE):
            prefixed[name] = plain(attributes[name])
        else:
            prefixed[name] = AttributeText(text_in(op, name))
    if not op.operation.context.is_registered_operation(op.operation.name):
        head = str(op.operation.get_asm(print_generic_op_form=True)).partition("\n")[0]
        _, mark, rest = head.partition(") <{")
        if mark:
            prefixed[PROPERTIES] = AttributeText(f"<{{{', '.join(split_entries(rest))}}}>")
    return texts, prefixed


def unread_attributes(op_name: str, texts: Mapping[str, str]) -> AttributeText | None:
    """`{a = 1, b = 2}` with the attributes that a `Program` does not set; None where there are none."""
    modelled = (*MODELLED.get(op_name, ()), SHARDING_ATTRIBUTE.get(op_name))
    entries = [f"{name_text(name)} = {text}" for name, text in texts.items() if name not in modelled]
    return AttributeText(f"{{{', '.join(entries)}}}") if entries else None


def module_resources(module: ir.Module) -> dict[str, tuple[AttributeText, ...]]:
    """The data of constants that the text of a module refers to by name, as the section at the end of the text."""
    _, mark, section = str(module).rpartition("\n{-#")
    return {RESOURCES: (AttributeText(f"{{-#{section}"),)} if mark and "dialect_resources" in section else {}


@dataclass(frozen=True, eq=False, slots=True)
class LocationText:
    """A location of an op as MLIR writes it.

    A program is a cycle of objects, so that it stays until Python looks for garbage, which it does by their number. A location itself
    would keep the module's context for as long, a megabyte for what may be a dozen objects.
    """

    text: str


def location_text(location: object) -> str:
    """` loc(...)` of an op that was read from MLIR, else nothing."""
    return f" {location.text}" if isinstance(location, LocationText) else f" {location}" if isinstance(location, ir.Location) else ""


_EDGE = "sdy.data_flow_edge"

_TOKEN = re.compile(
    r'(?://[^\n]*|\s+)|(?P<name>%[\w.$-]+)|(?P<op>"(?:[^"\\\n]|\\.)*"|[A-Za-z_][\w$]*(?:\.[\w$]+)+)|(?P<mark>[{},=^])|(?P<count>:\s*\d+|#\d+)|\S'
)


class _Definition(NamedTuple):
    """The position in a text of an op that jaxlib does not know, and its name."""

    op: str
    position: int


def check_edges(text: str, is_registered: Callable[[str], bool]) -> None:
    """Raises ShardyError if an edge is on a result of an op that jaxlib does not know."""
    if "data_flow_edge" not in text:
        return
    scopes: list[dict[str, _Definition | None]] = [{}]
    anywhere: dict[str, _Definition] = {}
    edges_before: list[tuple[str, int]] = []
    names: list[str] = []  # before an `=`, or the first behind an edge
    op, has_blocks = "", False
    for token in _TOKEN.finditer(text):
        kind, written = token.lastgroup, token[0]
        if kind is None and (written.isspace() or written.startswith("//")):
            continue
        if kind == "name":
            if op == _EDGE:
                definition = next((scope[written] for scope in reversed(scopes) if written in scope), _MISSING)
                if definition is _MISSING:
                    edges_before.append((written, token.start()))
                elif definition is not None:
                    raise _error(text, token.start(), definition)
                op = ""
            names.append(written)
        elif kind == "op":
            op = written.strip('"')
            if names and names[-1] == "=":
                definition = None if is_registered(op) else _Definition(op, token.start())
                for name in names[:-1]:
                    scopes[-1][name] = definition
                    if definition is not None:
                        anywhere[name] = definition
            names = []
        elif written == "=":
            names.append(written)
        elif written != "," and kind != "count":
            names = []
            op = "" if written != "(" else op
            if written == "{":
                scopes.append({})
            elif written == "}" and len(scopes) > 1:
                scopes.pop()
            has_blocks |= written == "^"
    # A block may use what a later one makes, and a module what stands further down; an argument has no op at all.
    for name, position in edges_before:
        if name in anywhere and (has_blocks or anywhere[name].position > position):
            raise _error(text, position, anywhere[name])


_MISSING = _Definition("", -1)


def _error(text: str, position: int, definition: _Definition) -> ShardyError:
    return ShardyError(
        f"an {_EDGE} is on a result of '{definition.op}'",
        where=place(text, position),
        why=f"jaxlib does not know the dialect of the op at {place(text, definition.position)}, and its verifier ends the process there",
        fix="put the edge on the result of a stablehlo.optimization_barrier of that value",
    )
