"""Reads a StableHLO + SDY module, as an MLIR module or its text, into a `Program`."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, cast

from jax.export import Exported
from jax.stages import Lowered

from shardy_py.dialect import Mesh, TensorShardingPerValue
from shardy_py.dialect.collectives import AXES_OF, moved_axes
from shardy_py.dialect.verify import verify_parts
from shardy_py.errors import DialectError, ShardyError
from shardy_py.frontends._jax import ir, make_context
from shardy_py.frontends.mlir_attributes import READERS, SHARDING_ATTRIBUTE, discardable, plain, read_type
from shardy_py.frontends.mlir_limits import check_text, place
from shardy_py.frontends.mlir_text import LocationText, attribute_texts, module_resources, unread_attributes
from shardy_py.ir import Block, Function, Location, Op, Program, Type, Value
from shardy_py.ir.attribute_text import MLIR_TEXT_KEY, AttributeText
from shardy_py.passes.call_graph import MAX_REGIONS
from shardy_py.passes.collection import no_collection

KEPT_REGIONS = frozenset(
    (
        "stablehlo.case",
        "stablehlo.if",
        "stablehlo.while",
        "sdy.manual_computation",
        "sdy.named_computation",
    )
)
"""Ops whose regions become blocks of the op; other regions work on scalars and are read into attributes."""

_SHARDING = "sdy.sharding"
_RULE = "sdy.sharding_rule"
_OWN_FUNCTION_ATTRIBUTES = frozenset(("arg_attrs", "res_attrs", "function_type", "sym_name", "sym_visibility"))
_TEXTS = ("execution_thread", "sdy.original_func_name")
_READ_BY_PASSES = frozenset((_SHARDING, *_TEXTS, "sym_name"))
_OWN_MESH_ATTRIBUTES = frozenset(("mesh", "sym_name"))
_FILE_LOCATION = re.compile(r'(?:"((?:[^"\\]|\\.)*)"\()?"((?:[^"\\]|\\.)*)":(\d+):\d+')
_SCOPE = re.compile(r'loc\("((?:[^"\\]|\\.)*)"\(')


def from_mlir(module: ir.Module | Lowered | Exported | str, *, keep: bool = False) -> Program:
    """Reads a module into a `Program`; the module is not changed.

    An op keeps its name, operands, result types, shardings, an attached sharding rule, and the attributes listed in
    `mlir_attributes.READERS`. An op that is not listed there keeps only its discardable attributes.

    Args:
        module: A result of `jax.jit(f).lower(...)`, its `compiler_ir()`, an artifact of `jax.export`, or the text of a module.
        keep: Whether everything else is kept too, so that `backends.mlir.to_mlir` can write the module again: other
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
    read = _module(module)
    try:
        if not keep:
            return _ModuleReader().program(read)
        with no_collection():
            return _ModuleReader(keep=True).program(read)
    except RecursionError:
        raise
    except RuntimeError as error:  # of jaxlib's bindings
        raise ShardyError("a name or another text in the module is not UTF-8", where="the module", why=str(error)) from None


def _module(module: ir.Module | Lowered | Exported | str) -> ir.Module:
    if isinstance(module, Lowered):
        return cast(Any, module.compiler_ir("stablehlo"))
    if isinstance(module, Exported):
        return parse_module(module.mlir_module())
    return parse_module(module) if isinstance(module, str) else module


def parse_module(text: str, context: ir.Context | None = None) -> ir.Module:
    """Parses MLIR text with the dialects that JAX emits; ops of other dialects may stand in generic form.

    Raises ShardyError if the text is no valid module, in the words of the MLIR parser, or is beyond the limits of `mlir_limits`.
    """
    check_text(text)
    context = make_context(allow_unregistered=True) if context is None else context
    check_edges(text, context.is_registered_operation)
    try:
        return ir.Module.parse(text, context)
    except (ir.MLIRError, ValueError, MemoryError) as error:  # the last two where MLIR would reserve more than it can
        raise ShardyError(str(error)) from None


class _ModuleReader:
    def __init__(self, keep: bool = False) -> None:
        self.keep = keep
        self.has_resources = False
        self.values: dict[ir.Value, Value] = {}
        self.ops: dict[ir.Operation, Op] = {}
        self.types: dict[ir.Type, Type] = {}

    def program(self, module: ir.Module) -> Program:
        program = Program()
        for name in module.operation.attributes:
            program.attributes[name] = self.attribute(name, module.operation.attributes[name])
        for view in module.body.operations:
            op = view.operation
            if op.name == "func.func":
                try:
                    program.functions.append(self.function(op))
                except DialectError as error:
                    raise error if error.where else error.at(_place(op)) from None
            elif op.name == "sdy.mesh":
                mesh = plain(op.attributes["mesh"])
                assert isinstance(mesh, Mesh)
                name = plain(op.attributes["sym_name"])
                program.meshes[name] = mesh
                others = {key: self.attribute(key, op.attributes[key]) for key in op.attributes if key not in _OWN_MESH_ATTRIBUTES}
                if others:
                    program.mesh_attributes[name] = others
            elif self.keep:
                text = AttributeText(op.get_asm(print_generic_op_form=True))
                program.attributes[MLIR_TEXT_KEY] = (*program.attributes.get(MLIR_TEXT_KEY, ()), text)
        if self.has_resources:
            program.attributes |= module_resources(module)
        self.check_collectives(program)
        self.order_uses()
        program.locate = locate
        return program

    def function(self, op: ir.Operation) -> Function:
        attributes = {name: op.attributes[name] for name in op.attributes}
        function_type = ir.FunctionType(ir.TypeAttr(attributes["function_type"]).value)
        results = [self.type(t) for t in function_type.results]
        name = plain(attributes["sym_name"])
        visibility = plain(attributes["sym_visibility"]) if "sym_visibility" in attributes else "public"
        (region,) = op.regions
        if not region.blocks:
            body = Block([self.type(t) for t in function_type.inputs])
        else:
            body = self.block(region, f"function '{name}'")
        for key in _TEXTS:
            if key in attributes and not isinstance(attributes[key], ir.StringAttr):
                raise DialectError(f"attribute {key!r} is {attributes[key]}, which is not a text", fix=f'write {key} = "..."')
        function = Function(name, body, results, visibility=visibility)
        function.attributes = {key: self.attribute(key, value) for key, value in attributes.items() if key not in _OWN_FUNCTION_ATTRIBUTES}
        if self.keep and visibility == "public" and "sym_visibility" in attributes:
            function.attributes["sym_visibility"] = visibility
        argument_attributes = self.dictionaries(attributes.get("arg_attrs"), len(function.arguments))
        for argument, own in zip(function.arguments, argument_attributes, strict=True):
            argument.sharding = own.pop(_SHARDING, None)
            function.argument_attributes[argument.index] = own
        for i, own in enumerate(self.dictionaries(attributes.get("res_attrs"), len(results))):
            function.result_shardings[i] = own.pop(_SHARDING, None)
            function.result_attributes[i] = own
        return function

    def attribute(self, name: str, attribute: ir.Attribute) -> Any:
        """The value of an attribute of a module, mesh or function; where everything is kept, the text of what no pass reads."""
        return AttributeText(attribute) if self.keep and name not in _READ_BY_PASSES else plain(attribute)

    def dictionaries(self, attribute: ir.Attribute | None, count: int) -> Sequence[dict[str, Any]]:
        """The attributes of arguments or results, of which the sharding is read in any case."""
        if attribute is None:
            return [{} for _ in range(count)]
        if not self.keep:
            return plain(attribute)
        result: list[dict[str, Any]] = []
        for dictionary in cast(ir.ArrayAttr, attribute):
            entries = [cast(ir.DictAttr, dictionary)[i] for i in range(len(cast(ir.DictAttr, dictionary)))]
            result.append({entry.name: self.attribute(entry.name, entry.attr) for entry in entries})
        return result

    def type(self, type_: ir.Type) -> Type:
        result = self.types.get(type_)
        if result is None:
            result = self.types[type_] = read_type(type_)
        return result

    def block(self, region: ir.Region, where: str, depth: int = 0) -> Block:
        blocks = list(region.blocks)
        if not blocks and self.keep:
            return Block()
        if len(blocks) != 1:
            raise ShardyError(
                f"{where} has {len(blocks)} blocks",
                where=_place(region.owner),
                why="only structured control flow with one block per region can be read",
            )
        if depth > MAX_REGIONS:
            raise ShardyError(
                f"regions are nested more than {MAX_REGIONS} deep",
                where=_place(region.owner),
                why="passes call themselves for every level",
                fix="write fewer loops, branches and computations inside each other",
            )
        source = blocks[0]
        block = Block([self.type(argument.type) for argument in source.arguments])
        for theirs, ours in zip(source.arguments, block.arguments, strict=True):
            self.values[theirs] = ours
        for view in source.operations:
            block.append(self.op(view, depth))
        return block

    def op(self, view: ir.OpView, depth: int) -> Op:
        source = view.operation
        name = source.name
        regions = []
        if self.keep or name in KEPT_REGIONS:
            regions = [self.block(region, f"a region of '{name}'", depth + 1) for region in source.regions]
        operands = [self.values[operand] for operand in source.operands]
        try:
            return self.new_op(view, operands, regions)
        except DialectError as error:
            raise error.at(_place(source)) from None

    def new_op(self, view: ir.OpView, operands: list[Value], regions: list[Block]) -> Op:
        source = view.operation
        name = source.name
        reader = READERS.get(name)
        attributes = reader(view) if reader is not None else None
        location = LocationText(str(source.location)) if self.keep else source.location
        op = Op(name, operands, [self.type(r.type) for r in source.results], attributes, regions, location=location)
        self.ops[source] = op
        for theirs, ours in zip(source.results, op.results, strict=True):
            self.values[theirs] = ours
        self.annotate(op, view)
        return op

    def annotate(self, op: Op, view: ir.OpView) -> None:
        named = SHARDING_ATTRIBUTE.get(op.name)
        if named is not None and named in view.attributes:
            op.result.sharding = plain(view.attributes[named])
        if self.keep:
            texts, attributes = attribute_texts(view)
            unread = unread_attributes(op.name, texts)
            if unread:
                op.attributes = {**op.attributes, MLIR_TEXT_KEY: unread}
            self.has_resources |= any("dense_resource<" in text for text in texts.values())
        else:
            attributes = discardable(view)
        if not attributes:
            return
        shardings = attributes.get(_SHARDING) if named is None else None  # an attribute of its own takes precedence
        if isinstance(shardings, TensorShardingPerValue) and op.results and len(shardings.shardings) == len(op.results):
            del attributes[_SHARDING]
            for result, sharding in zip(op.results, shardings.shardings, strict=True):
                result.sharding = sharding
        if _RULE in attributes:
            op.rule = attributes.pop(_RULE)
            op.rule_decided = True
        if attributes:
            op.attributes = {**op.attributes, **attributes}

    def check_collectives(self, program: Program) -> None:
        """Checks the sub-axes of collectives, which MLIR's parser accepts unchecked."""
        for source, op in self.ops.items():
            if op.name in AXES_OF and op.attributes and op.result.sharding is not None:
                try:
                    verify_parts(moved_axes(op.attributes[AXES_OF[op.name]]), op.result.sharding.mesh_in(program.meshes))
                except DialectError as error:
                    raise error.at(_place(source)) from None

    def order_uses(self) -> None:
        """Puts uses into the order of the module, which depends on how it was built where regions capture values."""
        for theirs, ours in self.values.items():
            if len(ours.uses) > 1:
                uses = [(self.ops.get(cast(ir.OpView, use.owner).operation), use.operand_number) for use in theirs.uses]
                ours.uses = {(op, i): None for op, i in reversed(uses) if op is not None}


def _place(operation: Any) -> str:
    """The name and place of an operation, for errors."""
    location = locate(operation.location)
    return f"'{operation.name}'" if location is None else f"{location.place}, '{operation.name}'"


def locate(location: object) -> Location | None:
    """The innermost file and line of an `ir.Location`, with the name stack that JAX wraps around it."""
    if isinstance(location, LocationText):
        return _locate_text(location.text)
    return _locate_text(str(location)) if isinstance(location, ir.Location) else None


@functools.lru_cache(maxsize=4096)
def _locate_text(text: str) -> Location | None:
    file = _FILE_LOCATION.search(text)
    if file is None:
        return None
    function, path, line = file.groups()
    scope = _SCOPE.match(text)
    if scope is not None and scope.end() > file.start():
        function = None
    return Location(path, int(line), function or "", scope[1] if scope is not None else "")


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
