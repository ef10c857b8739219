"""The values of a plan: what they are, where they come from, how they are sharded."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from shardy_py.dialect import TensorSharding
from shardy_py.dialect.format import format_type
from shardy_py.ir import Op, Program, Type, Value


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
        depth: How many bodies (scan, while, cond, named computations) it stands in.
    """

    path: str
    kind: Literal["input", "output", "intermediate"]
    type: Type
    sharding: TensorSharding | None
    primitive: str = ""
    location: str = ""
    depth: int = 0

    @property
    def shape(self) -> tuple[int, ...]:
        """The global shape."""
        return self.type.shape

    @property
    def dtype(self) -> str:
        """The element type in JAX's spelling."""
        return self.type.dtype

    def __str__(self) -> str:
        return f"{self.path}: {typed(self.type, self.sharding)}"


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


def location_of(program: Program, op: Op) -> str:
    """`file:line` of the user's code that an op comes from; inside a library's function, of the call of it."""
    inner: Op | None = op
    while isinstance(inner, Op):
        where = program.locate(inner.location)
        if where is not None:
            return f"{where.file}:{where.line}"
        parent = None if inner.block is None else inner.block.parent
        inner = parent if isinstance(parent, Op) else None
    return ""


_PLUMBING = frozenset({"sdy.constant", "sdy.return", "func.return", "stablehlo.return", "sdy.data_flow_edge"})


def intermediates(program: Program) -> Iterator[tuple[Value, PlannedValue]]:
    """Every result of an op, in program order, with the value of the program it describes; constants are left out."""
    number = 0
    stack: list[tuple[Iterator[Op], int]] = [(iter(program.main.body.ops), 0)]
    while stack:
        ops, depth = stack[-1]
        op = next(ops, None)
        if op is None:
            stack.pop()
            continue
        if op.name not in _PLUMBING:
            location = location_of(program, op)
            for value in op.results:
                yield (
                    value,
                    PlannedValue(f"%{number}", "intermediate", value.type, value.sharding, op.primitive or op.name, location, depth),
                )
                number += 1
        stack.extend((iter(region.ops), depth + 1) for region in reversed(list(op.regions)))
