"""The values of a plan: type, origin and sharding."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass
from typing import Literal

from shardy_py.dialect import TensorSharding
from shardy_py.dialect.format import format_type, printable
from shardy_py.ir import Location, Op, Program, Type, Value
from shardy_py.passes.dataflow import WHILE
from shardy_py.plan.paths import is_backward, module_path


@dataclass(frozen=True, slots=True)
class PlannedValue:
    """One value of the planned program.

    Attributes:
        path: `params['mlp']['w']` of an input, `result[0]` of an output, `%12` of an intermediate.
        kind: Which of the three it is.
        type: Shape and element type; a PRNG key has its physical type.
        sharding: None is replicated.
        primitive: The JAX primitive that makes it; empty for inputs.
        location: `file:line` of the user's code; empty where unknown.
        depth: The number of bodies (scan, while, cond, named computations) around it.
        module: The named scopes around it, `Transformer/block_0/attention`, from JAX's name stacks; Flax modules are among them.
        given: The annotation of an input or output before the propagation, by in_shardings, rules or the argument itself; None where
            there is none.
        given_by: The source of the annotation: `in_shardings`, `rules[0] ('embed')`, `the sharding of the argument`, `out_shardings`;
            empty where there is none.
        memory_kind: `pinned_host` or `unpinned_host` of an input or output in the host's memory; empty of all others.

    Example:
        >>> import jax, jax.numpy as jnp, shardy_py as sp
        >>> plan = sp.auto_shard(jnp.dot, mesh={"x": 4}, in_shardings=(jax.P(None, "x"), jax.P("x"))).plan(jnp.eye(8), jnp.eye(8))
        >>> value = plan.inputs[1]
        >>> print(value, value.given_by, sep="; ")
        b: float32[8@x,8]; in_shardings
    """

    path: str
    kind: Literal["input", "output", "intermediate"]
    type: Type
    sharding: TensorSharding | None
    primitive: str = ""
    location: str = ""
    depth: int = 0
    module: str = ""
    given: TensorSharding | None = None
    given_by: str = ""
    memory_kind: str = ""

    @property
    def shape(self) -> tuple[int, ...]:
        """The global shape."""
        return self.type.shape

    @property
    def dtype(self) -> str:
        """The element type in JAX's spelling."""
        return self.type.dtype

    @property
    def text(self) -> str:
        """Type, sharding and, in the host's memory, memory kind: `float32[1024@data,512] in pinned_host`."""
        return typed(self.type, self.sharding) + (f" in {self.memory_kind}" if self.memory_kind else "")

    def __str__(self) -> str:
        return printable(f"{self.path}: {self.text}")


def typed(type: Type, sharding: TensorSharding | None) -> str:
    """A type with its sharding; dimensions that the sharding has beyond the type's (those of a PRNG key) are left out.

    Example:
        >>> from shardy_py.ir import TensorType
        >>> typed(TensorType((1024, 512), "float32"), TensorSharding("mesh", [["data"], ["model"]]))
        'float32[1024@data,512@model]'
    """
    if sharding is not None and sharding.rank > type.rank:
        sharding = sharding.with_dims(sharding.dims[: type.rank])
    return format_type(type.dtype, type.shape, sharding)


def name_of(value: Value, names: Mapping[Value, str], movements: Set[Op] = frozenset()) -> str:
    """The name of a value of a program: that of `named_value`, or a description."""
    value = named_value(value, names, movements)
    if value in names:
        return names[value]
    owner = value.owner
    if isinstance(owner, Op):
        return "constant" if owner.name == "sdy.constant" else value.name or owner.primitive or owner.name
    loop = owner.parent
    if isinstance(loop, Op) and value.index < len(loop.operands):  # it changes from trip to trip
        return f"argument {value.index} of {loop.primitive or 'while'}"
    return value.name or f"argument {value.index}"


def named_value(value: Value, names: Mapping[Value, str], movements: Set[Op] = frozenset()) -> Value:
    """The value that gives another its name: itself, or for a loop-invariant argument of a body the operand."""
    while value not in names:
        owner = value.owner
        if isinstance(owner, Op):
            if owner not in movements:
                break
            value = owner.operands[0]
            continue
        parent = owner.parent
        if not isinstance(parent, Op) or value.index >= len(parent.operands):
            break
        if parent.name == WHILE and parent.regions[1].terminator.operands[value.index] is not parent.regions[1].arguments[value.index]:
            break
        value = parent.operands[value.index]
    return value


def location_of(program: Program, op: Op) -> str:
    """`file:line` of the user's code that an op comes from; inside a library's function, of the call of it."""
    where = source_of(program, op)
    return "" if where is None else where.place


def source_of(program: Program, op: Op) -> Location | None:
    """The source location of an op, or else of the ops around it; None if all are unknown."""
    return next((where for each in op.outward() if (where := program.locate(each.location)) is not None), None)


def module_of(program: Program, op: Op) -> str:
    """The named scopes around an op, in the form of `PlannedValue.module`."""
    holder = op.parent
    around = "" if holder is None else module_of(program, holder)
    where = program.locate(op.location)
    # The ops of a loop besides its body have the location of its equation, whose names `around` has already.
    return around if where is None or (holder is not None and op.location is holder.location) else module_path(where.scope, around)


def in_backward_pass(program: Program, op: Op) -> bool:
    """Whether an op, or an op around it, belongs to a backward pass."""
    return any(where is not None and is_backward(where.scope) for where in (program.locate(each.location) for each in op.outward()))


_PLUMBING = frozenset({"sdy.constant", "sdy.return", "func.return", "stablehlo.return", "sdy.data_flow_edge"})


def intermediates(program: Program, prefix: str = "%") -> Iterator[tuple[Value, PlannedValue]]:
    """Every result of an op, in program order, with the value of the program it describes; constants are left out."""
    number = 0
    around: dict[Op | None, tuple[int, str, str, object]] = {None: (0, "", "", None)}
    for op in program.main.body.walk():
        depth, outer, call, holder = around[op.parent]
        if op.name in _PLUMBING and not op.regions:
            continue
        where = program.locate(op.location)
        location = call if where is None else where.place
        # The ops of a loop besides its body have the location of its equation, whose names `outer` has already.
        module = outer if where is None or op.location is holder else module_path(where.scope, outer)
        if op.regions:
            around[op] = depth + 1, module, location, op.location
        if op.name not in _PLUMBING:
            primitive = op.primitive or op.name
            for value in op.results:
                path = f"{prefix}{number}"
                yield value, PlannedValue(path, "intermediate", value.type, value.sharding, primitive, location, depth, module)
                number += 1
