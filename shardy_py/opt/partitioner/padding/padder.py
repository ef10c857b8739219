"""The state of a program while its values are padded: sizes before, and which padding is known to be zero."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from shardy_py.dialect import TensorSharding
from shardy_py.errors import ShardyError
from shardy_py.ir import Op, Program, TensorType, Value
from shardy_py.opt.partitioner import local_ops
from shardy_py.opt.partitioner.local_ops import Ints
from shardy_py.passes.dataflow import get_sharding
from shardy_py.passes.walk import place


class Padder:
    """Types before and after, values whose padding Shardy takes for `zero`, and dimensions in which it is zero for certain (`exact`)."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.ops: list[Op] = []
        self.zero: set[Value] = set()
        self.exact: dict[Value, frozenset[int]] = {}
        self._before: dict[Value, TensorType] = {}

    def shape(self, shape: Ints, sharding: TensorSharding | None) -> Ints:
        """The shape with every dimension made a multiple of its shards."""
        if sharding is None or sharding.is_fully_replicated or sharding.rank != len(shape):
            return shape
        return tuple(n + -n % k for n, k in zip(shape, sharding.shards(sharding.mesh_in(self.program.meshes)), strict=True))

    def before(self, value: Value) -> Ints:
        """The shape that a value had."""
        return self._before.get(value, value.type).shape

    def note(self, value: Value, shape: Ints) -> None:
        """Records the unpadded shape of a padded value."""
        self._before[value] = local_ops.resized(local_ops.tensor_type(value), shape)

    def resize(self, value: Value, shape: Ints) -> None:
        """Gives a value its new shape."""
        type_ = local_ops.tensor_type(value)
        if type_.shape != shape:
            self._before.setdefault(value, type_)
            value.type = local_ops.resized(type_, shape)

    def resize_by_sharding(self, value: Value) -> None:
        """Gives a value the shape that its sharding asks for."""
        if isinstance(value.type, TensorType):
            self.resize(value, self.shape(value.type.shape, get_sharding(value)))

    def padded_dims(self, value: Value) -> frozenset[int]:
        """The dimensions in which a value is larger than it was."""
        return frozenset(d for d, (a, b) in enumerate(zip(self.before(value), value.type.shape, strict=True)) if a != b)

    def emit(self, *ops: Op) -> Value:
        """Adds ops to the present block; the result of the last one."""
        self.ops += ops
        return ops[-1].result

    def fill(self, value: Value, shape: Ints, op: Op) -> Value:
        """Pads a value with zeros at the high ends, before an op that uses it."""
        type_ = local_ops.tensor_type(value)
        if type_.shape == shape:
            return value
        zero = self.emit(local_ops.constant(0, type_.dtype, op))
        high = tuple(b - a for a, b in zip(type_.shape, shape, strict=True))
        padded = self.emit(local_ops.pad(value, zero, (0,) * type_.rank, high, op, get_sharding(value)))
        self.note(padded, self.before(value))
        self.exact[padded] = self.padded_dims(padded) - (self.padded_dims(value) - self.exact.get(value, frozenset()))
        return padded

    def mask(self, value: Value, dims: Sequence[int], op: Op, filler: Value | None = None) -> Value:
        """The value with a scalar, by default zero, in the padding of some dimensions."""
        type_ = local_ops.tensor_type(value)
        inside: Value | None = None
        for dim in dims:
            compared = self.emit(*local_ops.below(type_, dim, self.before(value)[dim], op))
            if inside is not None:
                compared = self.emit(local_ops.elementwise("and", (inside, compared), local_ops.tensor_type(compared), op))
            inside = compared
        assert inside is not None
        scalar = self.emit(local_ops.constant(0, type_.dtype, op)) if filler is None else filler
        other = self.emit(local_ops.broadcast(scalar, type_.shape, op))
        masked = self.emit(local_ops.elementwise("select", (inside, value, other), type_, op))
        self.note(masked, self.before(value))
        return masked

    def is_zero(self, value: Value, dims: Sequence[int]) -> bool:
        """Whether the padding of a value in some dimensions needs no mask."""
        return value in self.zero and self.exact.get(value, frozenset()).issuperset(dims)

    def error(self, what: str, op: Op, why: str, fix: str, **more: Any) -> ShardyError:
        """An error about an op."""
        return ShardyError(what, where=place(self.program, op), why=why, fix=fix, **more)


Conversion = Callable[[Padder, Op], None]
"""Changes an op whose operands are padded already, and adds it to the present block."""
