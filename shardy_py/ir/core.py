"""Program, Function, Block, Op and Value: the graph that front ends build, passes rewrite and back ends read.

It follows MLIR in what the propagation can observe: values know their uses, and the order of a use list is the order
in which the uses were made (MLIR keeps the same list back to front; `Value.replace_uses` turns it over as MLIR does).
An op is named as StableHLO or SDY names it, so that both front ends produce the same graph.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from shardy_py.dialect.semantics import INSTALLED
from shardy_py.errors import VerificationError

if TYPE_CHECKING:
    from shardy_py.dialect import Mesh, OpShardingRule, TensorSharding
    from shardy_py.ir.types import Type

_NO_ATTRIBUTES: dict[str, Any] = {}


class Value:
    """A result of an op or an argument of a block, with the sharding it has at this point.

    Attributes:
        uses: `(op, operand number)` in the order in which the uses were made; the keys of a dict, so that a value with thousands of uses
            loses one at once.
        sharding: None where nothing is known yet.
        name: A pytree path or a variable name for people to read; not unique.
    """

    __slots__ = ("index", "name", "owner", "sharding", "type", "uses")

    def __init__(self, type: Type, owner: Op | Block, index: int) -> None:
        self.type = type
        self.owner = owner
        self.index = index
        self.uses: dict[tuple[Op, int], None] = {}
        self.sharding: TensorSharding | None = None
        self.name: str | None = None

    @property
    def defining_op(self) -> Op | None:
        """The op this is a result of; None for a block argument."""
        return self.owner if type(self.owner) is Op else None

    def replace_uses(self, new: Value, keep: Callable[[Op, int], bool] | None = None) -> None:
        """Makes every use of this value, except those `keep` accepts, a use of `new` (RAUW in MLIR)."""
        remaining: list[tuple[Op, int]] = []
        for use in reversed(self.uses):
            op, i = use
            if keep is not None and keep(op, i):
                remaining.append(use)
                continue
            op.operands[i] = new
            new.uses[use] = None
        self.uses = dict.fromkeys(reversed(remaining))

    def __repr__(self) -> str:
        return f"<Value {self.name or self.index}: {self.type}>"


class Op:
    """One operation: name, operands, results, attributes, regions (one block each) and its sharding rule.

    Attributes:
        attributes: Plain Python values under StableHLO's attribute names; may be shared between ops, so a pass
            that changes one assigns a new dict.
        rule: The sharding rule, once known; None where the op does not propagate.
        rule_decided: Whether `rule` has been decided (None included).
        location: Whatever the front end knows about the source; `Program.locate` turns it into a `Location`.
        block: The block it stands in; None once erased.
    """

    __slots__ = ("attributes", "block", "location", "name", "operands", "primitive", "regions", "results", "rule", "rule_decided")

    def __init__(
        self,
        name: str,
        operands: Sequence[Value],
        result_types: Sequence[Type],
        attributes: dict[str, Any] | None = None,
        regions: Sequence[Block] = (),
        *,
        rule: OpShardingRule | None = None,
        rule_decided: bool = False,
        location: object = None,
        primitive: str | None = None,
        sharding: TensorSharding | None = None,
    ) -> None:
        self.name = name
        self.operands = list(operands)
        self.results = [Value(t, self, i) for i, t in enumerate(result_types)]
        self.attributes = _NO_ATTRIBUTES if attributes is None else attributes
        self.regions = regions
        self.rule = rule
        self.rule_decided = rule_decided
        self.location = location
        self.primitive = primitive
        self.block: Block | None = None
        for i, operand in enumerate(self.operands):
            operand.uses[self, i] = None
        for region in regions:
            region.parent = self
        if sharding is not None:
            self.results[0].sharding = sharding

    @property
    def result(self) -> Value:
        """The only result."""
        (only,) = self.results
        return only

    def set_operand(self, i: int, new: Value) -> None:
        """Makes operand `i` a use of `new`; the use counts as newly made."""
        del self.operands[i].uses[self, i]
        self.operands[i] = new
        new.uses[self, i] = None

    def append_operand(self, value: Value) -> None:
        """Adds an operand at the end."""
        value.uses[self, len(self.operands)] = None
        self.operands.append(value)

    def drop_uses(self) -> None:
        """Drops the uses of its operands, nested ops included: the first half of erasing an op."""
        for op in self.walk():
            for i, operand in enumerate(op.operands):
                del operand.uses[op, i]

    @property
    def parent(self) -> Op | None:
        """The op in whose region it stands; None in the body of a function, and of an op in no block."""
        parent = None if self.block is None else self.block.parent
        return parent if isinstance(parent, Op) else None

    def outward(self) -> Iterator[Op]:
        """This op and the ones that it stands in, the innermost first."""
        op: Op | None = self
        while op is not None:
            yield op
            op = op.parent

    def walk(self) -> Iterator[Op]:
        """This op and all nested ones, an op before its regions."""
        yield self
        for region in self.regions:
            yield from region.walk()

    def __repr__(self) -> str:
        return f"<Op {self.name}>"


class Block:
    """Arguments and a list of ops, the last of which is the terminator."""

    __slots__ = ("arguments", "ops", "parent")

    def __init__(self, argument_types: Iterable[Type] = ()) -> None:
        self.arguments = [Value(t, self, i) for i, t in enumerate(argument_types)]
        self.ops: list[Op] = []
        self.parent: Op | Function | None = None

    @property
    def terminator(self) -> Op:
        """The last op: `func.return`, `stablehlo.return` or `sdy.return`; raises VerificationError where there is none."""
        if not self.ops:
            raise VerificationError("block with no terminator")
        return self.ops[-1]

    def append(self, op: Op) -> Op:
        """Adds an op at the end and returns it."""
        op.block = self
        self.ops.append(op)
        return op

    def insert(self, i: int, op: Op) -> Op:
        """Adds an op at position `i`; a pass that inserts many should build a new list instead."""
        op.block = self
        self.ops.insert(i, op)
        return op

    def set_ops(self, ops: list[Op]) -> None:
        """Replaces the list of ops."""
        for op in ops:
            op.block = self
        self.ops = ops

    def walk(self, skip: frozenset[str] = frozenset()) -> Iterator[Op]:
        """All ops, nested ones included, an op before its regions; regions of ops named in `skip` are left out."""
        waiting = [iter(self.ops)]  # a list instead of a generator per level, which every op would have to pass through
        while waiting:
            for op in waiting[-1]:
                yield op
                if op.regions and op.name not in skip:
                    waiting += [iter(region.ops) for region in reversed(op.regions)]
                    break
            else:
                waiting.pop()


class Function:
    """A named function: one block, shardings of its results, and attributes.

    The sharding of an argument stands on the argument's value, the sharding of a result in `result_shardings`.
    """

    __slots__ = ("argument_attributes", "attributes", "body", "name", "result_attributes", "result_shardings", "result_types", "visibility")

    def __init__(self, name: str, body: Block, result_types: Sequence[Type], *, visibility: str = "public") -> None:
        self.name = name
        self.body = body
        self.result_types = list(result_types)
        self.result_shardings: list[TensorSharding | None] = [None] * len(self.result_types)
        self.visibility = visibility
        self.attributes: dict[str, Any] = {}
        self.argument_attributes: list[dict[str, Any]] = [{} for _ in body.arguments]
        self.result_attributes: list[dict[str, Any]] = [{} for _ in self.result_types]
        body.parent = self

    @property
    def arguments(self) -> list[Value]:
        """The arguments of the body."""
        return self.body.arguments

    def __repr__(self) -> str:
        return f"<Function {self.name}>"


class Program:
    """Functions and the meshes that shardings refer to by name.

    Attributes:
        functions: In order; `main` is the entry (or the only one).
        locate: Turns `Op.location` into a `Location`; set by the front end.
        semantics: The version of Shardy that passes over the program follow.
        calls: Gives `file:line` of the calls around what `Op.location` stands for, innermost first; set by a front end that knows them.
    """

    __slots__ = ("attributes", "calls", "functions", "locate", "mesh_attributes", "meshes", "semantics")

    def __init__(self, functions: Iterable[Function] = (), meshes: dict[str, Mesh] | None = None) -> None:
        self.functions = list(functions)
        self.meshes: dict[str, Mesh] = dict(meshes or {})
        self.mesh_attributes: dict[str, dict[str, Any]] = {}
        self.attributes: dict[str, Any] = {}
        self.semantics = INSTALLED
        self.locate: Callable[[object], Location | None] = _located
        self.calls: Callable[[object], tuple[str, ...]] = _no_calls

    @property
    def entry(self) -> Function | None:
        """The function named `main`, else the only one, else None."""
        main = next((function for function in self.functions if function.name == "main"), None)
        return self.functions[0] if main is None and len(self.functions) == 1 else main

    @property
    def main(self) -> Function:
        """As `entry`; a program without one raises VerificationError."""
        if (entry := self.entry) is not None:
            return entry
        count = f"{len(self.functions)} functions and none is named 'main'" if self.functions else "no function"
        raise VerificationError(f"the module has {count}", where="the module", fix="name the function that calls the others 'main'")

    def walk(self) -> Iterator[Op]:
        """All ops of all functions, an op before its regions."""
        for function in self.functions:
            yield from function.body.walk()

    def __repr__(self) -> str:
        return f"<Program {', '.join(function.name for function in self.functions)}>"


@dataclass(slots=True, frozen=True, repr=False)
class Location:
    """The place in the user's code at which an op was written."""

    file: str
    line: int
    function: str = ""
    scope: str = ""

    @property
    def place(self) -> str:
        """`file:line`."""
        return f"{self.file}:{self.line}"

    def __repr__(self) -> str:
        return self.place + (f" ({self.function})" if self.function else "")


def _no_calls(location: object) -> tuple[str, ...]:
    return ()


def _located(location: object) -> Location | None:
    return location if isinstance(location, Location) else None
