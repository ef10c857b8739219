"""Makes the ops that take the place of one op, in order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from shardy_py.errors import ShardyError
from shardy_py.ir import Block, Op, TensorType, Type, Value
from shardy_py.opt.partitioner import local_ops
from shardy_py.opt.partitioner.convert_global_to_local.facts import Facts, World, illegal


class Emitter:
    """Ops in place of `op`."""

    def __init__(self, world: World, op: Op) -> None:
        self.world = world
        self.op = op
        self.facts: Facts = world.facts[op]
        self.ops: list[Op] = []

    def error(self, what: str, *, why: str | None = None, fix: str | None = None) -> ShardyError:
        """The error that says that the op has no local form."""
        return illegal(self.world, self.op, what, why=why, fix=fix)

    def add(self, op: Op) -> Value:
        """Adds an op with one result and returns that."""
        self.ops.append(op)
        return op.result

    def make(
        self,
        name: str,
        operands: Sequence[Value],
        types: Sequence[Type],
        attributes: dict[str, Any] | None = None,
        regions: Sequence[Block] = (),
    ) -> Op:
        """Adds an op."""
        op = Op(name, operands, types, attributes, regions, location=self.op.location)
        self.ops.append(op)
        return op

    def value(
        self, name: str, operands: Sequence[Value], type_: Type, attributes: dict[str, Any] | None = None, regions: Sequence[Block] = ()
    ) -> Value:
        """Adds a StableHLO op with one result and returns that."""
        return self.make(f"stablehlo.{name}", operands, (type_,), attributes, regions).result

    def rebuild(self, attributes: dict[str, Any] | None = None, operands: Sequence[Value] | None = None) -> Op:
        """Adds the op anew over local types: with its regions, other attributes or operands, and the shardings of its results."""
        old = self.op
        regions, old.regions = old.regions, ()
        rebuilt = self.make(
            old.name,
            old.operands if operands is None else operands,
            [tensor.local for tensor in self.facts.results],
            old.attributes if attributes is None else attributes,
            regions,
        )
        for result, tensor in zip(rebuilt.results, self.facts.results, strict=True):
            result.sharding = tensor.sharding if old.results[result.index].sharding is not None else None
        return rebuilt

    def constant(self, text: str, type_: TensorType) -> Value:
        """Adds a constant: `text` is what stands in `dense<...>`."""
        return self.add(local_ops.dense(f"dense<{text}>", type_, self.op))

    def integer(self, value: int, shape: tuple[int, ...] = (), dtype: str = "int64") -> Value:
        """Adds a constant all of whose elements are one integer."""
        return self.constant(str(value), TensorType(shape, dtype))

    def integers(self, values: Sequence[int], dtype: str = "int64") -> Value:
        """Adds a vector of integers."""
        return self.constant(f"[{', '.join(map(str, values))}]", TensorType((len(values),), dtype))

    def reshape(self, value: Value, shape: Sequence[int]) -> Value:
        """Adds a reshape."""
        return self.value("reshape", (value,), TensorType(tuple(shape), value.type.dtype))

    def transpose(self, value: Value, permutation: Sequence[int]) -> Value:
        """Adds a transpose."""
        shape = tuple(value.type.shape[i] for i in permutation)
        return self.value("transpose", (value,), TensorType(shape, value.type.dtype), {"permutation": tuple(permutation)})

    def broadcast(self, value: Value, shape: Sequence[int], dims: Sequence[int] = ()) -> Value:
        """Adds a `broadcast_in_dim`."""
        return self.add(local_ops.broadcast(value, shape, self.op, dims))

    def convert(self, value: Value, dtype: str) -> Value:
        """Adds a conversion, also to the type that the value has already."""
        return self.value("convert", (value,), TensorType(value.type.shape, dtype))

    def dynamic_slice(self, value: Value, starts: Sequence[Value], sizes: Sequence[int]) -> Value:
        """Adds a slice whose starts are values."""
        if not sizes:  # MLIR cannot read what it writes of a slice of a scalar
            return value
        return self.value("dynamic_slice", (value, *starts), TensorType(tuple(sizes), value.type.dtype), {"slice_sizes": tuple(sizes)})

    def compare(self, direction: str, left: Value, right: Value) -> Value:
        """Adds a comparison; `direction` is EQ, GE, LE, ..."""
        return self.add(local_ops.compare(direction, left, right, self.op))


Conversion = Callable[[Op, Emitter], "Sequence[Value] | None"]
"""`conversion(op, emitter)`: adds what replaces an op and returns the values that replace its results; None keeps the op as it is."""


def scalar_body(name: str, dtype: str) -> Block:
    """The region of a reduction: one StableHLO op over two scalars."""
    scalar = TensorType((), dtype)
    block = Block((scalar, scalar))
    reduction = block.append(Op(f"stablehlo.{name}", block.arguments, (scalar,)))
    block.append(Op("stablehlo.return", reduction.results, ()))
    return block
