"""Whether a program is well formed: the graph its ops make, their types, their shardings, and the rules of SDY ops.

Broken rules of MLIR, StableHLO and SDY are named in their words. Shapes are not inferred here: that an `add` adds
tensors of one shape is for the front end to see to.
"""

# Attributes hold anything, so what their lists hold has no type.
# pyright: reportUnknownArgumentType=false, reportUnknownVariableType=false

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from shardy_py.dialect import Mesh, OpShardingRule, TensorSharding, TensorShardingPerValue
from shardy_py.dialect.verify import verify_rule, verify_sharding, verify_shardings
from shardy_py.dialect.verify_ops import COLLECTIVES
from shardy_py.errors import ShardyError, VerificationError
from shardy_py.ir.attribute_text import split_entries
from shardy_py.ir.core import Block, Function, Location, Op, Program, Value
from shardy_py.ir.op_checks import CHECKS, ISOLATED, TERMINATORS, Context
from shardy_py.ir.printer import print_op
from shardy_py.ir.type_text import shape_of, type_text
from shardy_py.ir.types import TensorType

_FEW = 100
_SHARDING = "sdy.sharding"
_RULE = "sdy.sharding_rule"
_EDGES = ("sdy.propagation_edges", "sdy.result_propagation_edges", "sdy.block_arg_propagation_edges")
_EDGES_TEXT = "#sdy.propagation_edges<"
_MANUAL_COMPUTATION = "sdy.manual_computation"


class BrokenRule:
    """A broken rule of the IR."""

    __slots__ = ("fix", "function", "location", "notes", "op", "what", "why")

    def __init__(
        self,
        what: str,
        op: Op | None = None,
        function: Function | None = None,
        *,
        why: str | None = None,
        fix: str | None = None,
        notes: Sequence[str] = (),
        location: Location | None = None,
    ) -> None:
        self.what = what
        self.op = op
        self.function = function
        self.why = why
        self.fix = fix
        self.notes = tuple(notes)
        self.location = location

    @property
    def where(self) -> str:
        """The op as text, its place in the source where that is known, and the function."""
        function = f"function @{self.function.name}" if self.function is not None else "the module"
        if self.op is None:
            return function
        place = f" at {self.location!r}" if self.location is not None else ""
        return f"{print_op(self.op, regions=False).strip()}{place}, in {function}"

    def error(self) -> VerificationError:
        """The problem as an error."""
        return VerificationError(self.what, where=self.where, why=self.why, fix=self.fix, notes=self.notes)

    def __str__(self) -> str:
        return str(self.error())

    def __repr__(self) -> str:
        return f"<Problem {self.what}>"


def verify(program: Program) -> None:
    """Checks a program, as MLIR's verifier does a module.

    Raises VerificationError for the first rule that it breaks, function by function, an op before those in its regions; the rules of the
    graph come before those of single ops.
    """
    broken = problems(program, limit=1)
    if broken:
        raise broken[0].error()


def problems(program: Program, *, limit: int = _FEW) -> list[BrokenRule]:
    """All rules that a program breaks, in the order in which `verify` looks at them.

    Where the graph itself is broken, in that a use leads nowhere or a value is used before it is made, the rest of the
    checks of that function are still made as far as they can be.
    """
    return _Verifier(program, limit).run()


class _Full(Exception):
    """The limit is reached."""


class _Verifier:
    def __init__(self, program: Program, limit: int) -> None:
        self.program = program
        self.limit = limit
        self.problems: list[BrokenRule] = []
        self.functions: dict[str, Function] = {}
        self.function: Function | None = None
        self.valid: set[tuple[Any, ...]] = set()
        self.operands = 0
        self.uses = 0

    def run(self) -> list[BrokenRule]:
        try:
            for function in self.program.functions:
                if function.name in self.functions:
                    self.report(f"redefinition of symbol named '{function.name}'", None, function=function)
                self.functions[function.name] = function
            for name, mesh in self.program.meshes.items():
                if not isinstance(mesh, Mesh):  # pyright: ignore[reportUnnecessaryIsInstance]
                    self.report(f"the mesh '{name}' is a {type(mesh).__name__}", None, why="a mesh of a program is a dialect.Mesh")
            for function in self.program.functions:
                self.function = function
                self.check_function(function)
        except _Full:
            pass
        return self.problems

    def report(self, what: str, op: Op | None, **rest: Any) -> None:
        location = self.program.locate(op.location) if op is not None else None
        self.problems.append(BrokenRule(what, op, rest.pop("function", self.function), location=location, **rest))
        if len(self.problems) >= self.limit:
            raise _Full

    def attempt(self, op: Op | None, check: Callable[..., None], *args: Any, prefix: str = "") -> bool:
        """Runs a check, and reports the error that it raises."""
        try:
            check(*args)
        except ShardyError as error:
            why = "; ".join(part for part in (error.where, error.why) if part)
            self.report(prefix + error.what, op, why=why or None, fix=error.fix, notes=error.notes)
            return False
        return True

    # The graph.

    def check_function(self, function: Function) -> None:
        body = function.body
        self.check_signature(function)
        if not body.ops and function.visibility == "private":
            return
        if body.parent is not function:
            self.report("the body of a function has another parent", None, why="Block.parent is the function or op it is the body of")
        self.operands = self.uses = 0
        self.check_region(body, set(), None)
        if self.operands != self.uses:
            self.find_uses(function)
        self.check_ops(body, Context(self.program.meshes, self.functions, function, ()))

    def check_region(self, block: Block, defined: set[Value], inside: Op | None) -> None:
        """Checks parents, terminators, dominance and uses of a block; `inside` is the innermost op around that is isolated from above."""
        visible: list[Value] = []
        for i, value in enumerate(block.arguments):
            self.check_value(value, block, i, None)
            visible.append(value)
        defined.update(visible)
        ops = block.ops
        last = len(ops) - 1
        parent = block.parent
        if last < 0 or not (ops[last].name.endswith(".return") or ops[last].name.partition(".")[0] not in DIALECTS):
            self.report("block with no terminator", ops[last] if ops else parent if isinstance(parent, Op) else None)
        for at, op in enumerate(ops):
            if op.block is not block:
                self.report(
                    "op stands in a block that is not its own", op, why="Op.block is the block whose list of ops it is in, and in one place"
                )
            i = 0
            for operand in op.operands:
                if operand not in defined:
                    self.undefined(op, i, operand, inside)
                i += 1
            self.operands += i
            if at != last and op.name in TERMINATORS:
                self.report("must be the last operation in the parent block", op)
            if op.regions:
                for region in op.regions:
                    if region.parent is not op:
                        self.report("a region of an op has another parent", op, why="Block.parent is the function or op it is the body of")
                    if op.name in ISOLATED:
                        self.check_region(region, set(), op)
                    else:
                        self.check_region(region, defined, inside)
            i = 0
            for result in op.results:
                if result.owner is not op or result.index != i or len(result.uses) != 0:
                    self.check_value(result, op, i, op)
                if result in defined:
                    self.report("op stands in a block twice", op)
                visible.append(result)
                defined.add(result)
                i += 1
        defined.difference_update(visible)

    def check_value(self, value: Value, owner: Op | Block, index: int, op: Op | None) -> None:
        if value.owner is not owner or value.index != index:
            self.report(
                f"result or argument #{index} does not know its owner", op, why="Value.owner and Value.index say where a value stands"
            )
        uses = value.uses
        self.uses += len(uses)
        for user, i in uses:
            if i >= len(user.operands) or user.operands[i] is not value:
                self.report(f"use list names operand #{i} of '{user.name}', which is another value", op or user)

    def undefined(self, op: Op, i: int, operand: Value, inside: Op | None) -> None:
        if inside is not None and self.is_outside(operand, inside):
            self.report("using value defined outside the region", op, notes=("required by region isolation constraints",))
        else:
            self.report(f"operand #{i} does not dominate this use", op)

    @staticmethod
    def is_outside(value: Value, inside: Op) -> bool:
        block = value.owner.block if isinstance(value.owner, Op) else value.owner
        while block is not None:
            parent = block.parent
            if parent is inside:
                return False
            block = parent.block if isinstance(parent, Op) else None
        return True

    def find_uses(self, function: Function) -> None:
        """Says which operand a use list lacks, or which use is by an op that is not in the function."""
        live: set[Op] = set()
        for op in function.body.walk():
            live.add(op)
            for i, operand in enumerate(op.operands):
                if (op, i) not in operand.uses:
                    self.report(f"operand #{i} does not have this op among its uses", op)
        values = [*function.arguments]
        for op in function.body.walk():
            values += [value for region in op.regions for value in region.arguments]
            values += op.results
        for value in values:
            for user, i in value.uses:
                if user not in live:
                    self.report(f"operand #{i} of an op that is not in the function", user, why="an op that is erased must drop its uses")

    # Single ops.

    def check_signature(self, function: Function) -> None:
        for i, value in enumerate(function.arguments):
            self.check_sharding(None, value.sharding, value.type, (), f"arg {i} - ")
        if len(function.result_shardings) != len(function.result_types):
            self.report("number of result shardings and results must match", None)
            return
        for i, (type_, sharding) in enumerate(zip(function.result_types, function.result_shardings, strict=True)):
            self.check_sharding(None, sharding, type_, (), f"result {i} - ")

    def check_ops(self, block: Block, context: Context) -> None:
        valid = self.valid
        for op in block.ops:
            manual = context.manual_axes
            for result in op.results:
                sharding = result.sharding
                if sharding is not None and (sharding, result.type, manual) not in valid and op.name not in COLLECTIVES:
                    own = op.name in _OWN_SHARDING
                    number = "result" if len(op.results) == 1 else f"result {result.index}"
                    self.check_sharding(op, sharding, result.type, manual, "" if own else f"{number} - ")
            if op.rule is not None:
                self.check_rule(op, op.rule)
            if op.attributes:
                if _SHARDING in op.attributes:
                    self.check_left(op, op.attributes[_SHARDING], manual)
                if _RULE in op.attributes:
                    self.report(f"should have a sharding rule attribute of type OpShardingRuleAttr for attr named '{_RULE}'", op)
                for name in _EDGES:
                    if name in op.attributes:
                        self.check_edges(op, name, op.attributes[name])
            check = CHECKS.get(op.name)
            if check is not None:
                try:
                    self.attempt(op, check, op, context)
                except (KeyError, AttributeError, IndexError, TypeError, ValueError) as error:
                    self.report(f"attributes, operands or regions are not those of the op: {type(error).__name__}: {error}", op)
            if op.regions:
                inner = context
                if op.name == _MANUAL_COMPUTATION:
                    inner = context.within(op.attributes.get("manual_axes") or ())
                for region in op.regions:
                    self.check_ops(region, inner)

    def check_sharding(self, op: Op | None, sharding: Any, type_: Any, manual: tuple[str, ...], prefix: str) -> None:
        if sharding is None:
            return
        if not isinstance(sharding, TensorSharding):
            self.report(f"{prefix}should have a sharding attribute of type TensorShardingAttr", op)
            return
        key = (sharding, type_, manual)
        if key in self.valid:
            return
        try:
            shape = shape_of(type_)
        except ValueError as error:
            # A maximal sharding suits anything.
            mesh = self.program.meshes.get(sharding.mesh) if isinstance(sharding.mesh, str) else sharding.mesh
            if mesh is not None and mesh.is_maximal:
                shape = None
            else:
                self.report(prefix + str(error), op)
                return
        if self.attempt(op, verify_sharding, sharding, shape, self.program.meshes, manual, prefix=prefix):
            self.valid.add(key)

    def check_left(self, op: Op, shardings: Any, manual: tuple[str, ...]) -> None:
        """Checks an `sdy.sharding` that could not be given to the results one by one."""
        if not isinstance(shardings, TensorShardingPerValue):
            self.report("should have a sharding attribute of type TensorShardingPerValueAttr", op)
            return
        shapes = [result.type.shape if isinstance(result.type, TensorType) else None for result in op.results]
        self.attempt(op, verify_shardings, shardings, shapes, self.program.meshes, manual)

    def check_edges(self, op: Op, name: str, edges: Any) -> None:
        """Checks the type of debug attributes: attribute text, or a list of it."""
        if name == _EDGES[0]:
            if not str(edges).startswith(_EDGES_TEXT):
                self.report(f"should have a propagation edges attribute of type PropagationEdgesAttr for attr named '{name}'", op)
        elif not all(edge.startswith(_EDGES_TEXT) for edge in _entries(edges)):
            self.report(
                "should have a propagation edges attribute of type ArrayAttr<PropagationEdgesAttr> for attr named "
                f"'{_EDGES[1]}' or '{_EDGES[2]}'",
                op,
            )

    def check_rule(self, op: Op, rule: Any) -> None:
        if not isinstance(rule, OpShardingRule):
            self.report(f"should have a sharding rule attribute of type OpShardingRuleAttr for attr named '{_RULE}'", op)
            return
        key = (rule, *[v.type for v in op.operands], None, *[v.type for v in op.results])
        if key in self.valid:
            return
        for what, values in (("operand", op.operands), ("result", op.results)):
            for i, value in enumerate(values):
                if not isinstance(value.type, TensorType):
                    number = what if len(values) == 1 else f"{what} {i}"
                    self.report(f"{number} - expected a ranked tensor with a static shape", op, why=f"its type is {type_text(value.type)}")
                    return
        if self.attempt(op, verify_rule, rule, [v.type.shape for v in op.operands], [v.type.shape for v in op.results]):
            self.valid.add(key)


def _entries(attribute: Any) -> list[str]:
    """The texts of the entries of a list, which may be spelled as text; of any other attribute its own text."""
    if isinstance(attribute, tuple):
        return list(map(str, attribute))
    text = str(attribute)
    return list(split_entries(text[1:])) if text.startswith("[") else [text]


DIALECTS = frozenset(("chlo", "func", "mhlo", "sdy", "stablehlo"))
"""Dialects whose ops are known. MLIR accepts an op of any other dialect as the end of a block."""

_OWN_SHARDING = frozenset(("sdy.data_flow_edge", "sdy.reshard", "sdy.sharding_constraint"))
"""Ops whose sharding is an attribute of their own; a message about it does not say `result`."""
