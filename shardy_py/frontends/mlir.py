"""Reads a StableHLO + SDY module into a `Program`."""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from typing import Any, cast

from shardy_py.dialect import Mesh, TensorShardingPerValue
from shardy_py.errors import DialectError, ShardyError
from shardy_py.frontends._jax import ir
from shardy_py.frontends._jax import make_context as make_context
from shardy_py.frontends.mlir_attributes import READERS, discardable, plain, read_type
from shardy_py.ir import Block, Function, Location, Op, Program, Type, Value
from shardy_py.ir.printer import SHARDING_ATTRIBUTE
from shardy_py.passes.call_graph import MAX_REGIONS

WITH_REGIONS = frozenset(
    (
        "stablehlo.case",
        "stablehlo.if",
        "stablehlo.while",
        "sdy.manual_computation",
        "sdy.named_computation",
    )
)


_SHARDING = "sdy.sharding"
_RULE = "sdy.sharding_rule"
_OWN_FUNCTION_ATTRIBUTES = frozenset(("arg_attrs", "res_attrs", "function_type", "sym_name", "sym_visibility"))
_TEXTS = ("execution_thread", "sdy.original_func_name")
_OWN_MESH_ATTRIBUTES = frozenset(("mesh", "sym_name"))
_FILE_LOCATION = re.compile(r'(?:"((?:[^"\\]|\\.)*)"\()?"((?:[^"\\]|\\.)*)":(\d+):\d+')
_SCOPE = re.compile(r'loc\("((?:[^"\\]|\\.)*)"\(')


def read_module(module: ir.Module) -> Program:
    """Reads a module into a `Program`, values with their uses in the order in which the module has them.

    An op keeps its name, operands, result types, shardings, an attached sharding rule, and the attributes listed in
    `mlir_attributes.READERS`. An op that is not listed there keeps only its discardable attributes.
    """
    return ModuleReader().program(module)


class ModuleReader:
    """Reads one module; `opt.from_mlir` reads everything else of it too."""

    def __init__(self) -> None:
        self.values: dict[ir.Value, Value] = {}
        self.ops: dict[ir.Operation, Op] = {}
        self.types: dict[ir.Type, Type] = {}

    def program(self, module: ir.Module) -> Program:
        """The program of a module."""
        program = Program()
        for name in module.operation.attributes:
            program.attributes[name] = self.attribute(name, module.operation.attributes[name])
        for view in module.body.operations:
            op = view.operation
            if op.name == "func.func":
                try:
                    program.functions.append(self.function(op))
                except DialectError as error:
                    raise error if error.where else error.at(place_of(op)) from None
            elif op.name == "sdy.mesh":
                mesh = plain(op.attributes["mesh"])
                assert isinstance(mesh, Mesh)
                name = plain(op.attributes["sym_name"])
                program.meshes[name] = mesh
                others = {key: self.attribute(key, op.attributes[key]) for key in op.attributes if key not in _OWN_MESH_ATTRIBUTES}
                if others:
                    program.mesh_attributes[name] = others
        self.order_uses()
        program.locate = locate
        return program

    def function(self, op: ir.Operation) -> Function:
        """One function, a declaration without ops."""
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
        argument_attributes = self.dictionaries(attributes.get("arg_attrs"), len(function.arguments))
        for argument, own in zip(function.arguments, argument_attributes, strict=True):
            argument.sharding = own.pop(_SHARDING, None)
            function.argument_attributes[argument.index] = own
        for i, own in enumerate(self.dictionaries(attributes.get("res_attrs"), len(results))):
            function.result_shardings[i] = own.pop(_SHARDING, None)
            function.result_attributes[i] = own
        return function

    def attribute(self, _name: str, attribute: ir.Attribute) -> Any:
        """The value of an attribute of a module, mesh or function."""
        return plain(attribute)

    def dictionaries(self, attribute: ir.Attribute | None, count: int) -> Sequence[dict[str, Any]]:
        """The attributes of arguments or results."""
        return [{} for _ in range(count)] if attribute is None else plain(attribute)

    def type(self, type_: ir.Type) -> Type:
        """A type, read once."""
        result = self.types.get(type_)
        if result is None:
            result = self.types[type_] = read_type(type_)
        return result

    def block(self, region: ir.Region, where: str, depth: int = 0) -> Block:
        """The only block of a region; raises ShardyError where there are several, or too deep a nesting."""
        blocks = list(region.blocks)
        if len(blocks) != 1:
            raise ShardyError(
                f"{where} has {len(blocks)} blocks",
                where=place_of(region.owner),
                why="only structured control flow with one block per region can be read",
            )
        if depth > MAX_REGIONS:
            raise ShardyError(
                f"regions are nested more than {MAX_REGIONS} deep",
                where=place_of(region.owner),
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
        """An op, its regions before it."""
        source = view.operation
        name = source.name
        bodies = source.regions if self.keeps_regions(name) else ()
        regions = [self.block(region, f"a region of '{name}'", depth + 1) for region in bodies]
        operands = [self.values[operand] for operand in source.operands]
        try:
            return self.new_op(view, operands, regions)
        except DialectError as error:
            raise error.at(place_of(source)) from None

    def keeps_regions(self, name: str) -> bool:
        """Whether the regions of an op become blocks; others work on scalars and are read into attributes."""
        return name in WITH_REGIONS

    def location(self, source: ir.Operation) -> object:
        """What an op has as its location."""
        return source.location

    def new_op(self, view: ir.OpView, operands: list[Value], regions: list[Block]) -> Op:
        """An op of what it uses and holds."""
        source = view.operation
        name = source.name
        reader = READERS.get(name)
        attributes = reader(view) if reader is not None else None
        op = Op(name, operands, [self.type(r.type) for r in source.results], attributes, regions, location=self.location(source))
        self.ops[source] = op
        for theirs, ours in zip(source.results, op.results, strict=True):
            self.values[theirs] = ours
        self.annotate(op, view)
        return op

    def annotate(self, op: Op, view: ir.OpView) -> None:
        """Gives an op its shardings, its rule and its other attributes."""
        named = SHARDING_ATTRIBUTE.get(op.name)
        if named is not None and named in view.attributes:
            op.result.sharding = plain(view.attributes[named])
        attributes = self.others(op, view)
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

    def others(self, _op: Op, view: ir.OpView) -> dict[str, Any]:
        """The attributes of an op with a dialect prefix."""
        return discardable(view)

    def order_uses(self) -> None:
        """Puts uses into the order of the module, which depends on how it was built where regions capture values."""
        for theirs, ours in self.values.items():
            if len(ours.uses) > 1:
                uses = [(self.ops.get(cast(ir.OpView, use.owner).operation), use.operand_number) for use in theirs.uses]
                ours.uses = {(op, i): None for op, i in reversed(uses) if op is not None}


def place_of(operation: Any) -> str:
    """The name and place of an operation, for errors."""
    location = locate(operation.location)
    return f"'{operation.name}'" if location is None else f"{location.place}, '{operation.name}'"


def locate(location: object) -> Location | None:
    """The innermost file and line of an `ir.Location`, with the name stack that JAX wraps around it."""
    return locate_text(str(location)) if isinstance(location, ir.Location) else None


@functools.lru_cache(maxsize=4096)
def locate_text(text: str) -> Location | None:
    """As `locate`, of the location's text."""
    file = _FILE_LOCATION.search(text)
    if file is None:
        return None
    function, path, line = file.groups()
    scope = _SCOPE.match(text)
    if scope is not None and scope.end() > file.start():
        function = None
    return Location(path, int(line), function or "", scope[1] if scope is not None else "")
