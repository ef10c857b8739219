"""One op over parts: its types and shardings before, the ops that take its place, and the part that each device has."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from shardy_py.dialect import AxisRef, Mesh, TensorSharding
from shardy_py.dialect.axis import num_shards
from shardy_py.dialect.devices import device_ids, shard_index
from shardy_py.errors import DialectError, ShardyError
from shardy_py.ir import Block, Op, Program, TensorType, Type, Value
from shardy_py.ir.attribute_text import MLIR_TEXT_KEY
from shardy_py.opt.partitioner import local_ops
from shardy_py.passes.base import Pass, option
from shardy_py.passes.dataflow import get_sharding
from shardy_py.passes.walk import place


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


def shard_table(out: Emitter, axes: Sequence[AxisRef], mesh: Mesh, entries: Sequence[int]) -> list[int]:
    """`entries[i]` for each device, by its id, where `i` is the part of the dimension that it has."""
    table = [0] * mesh.size
    for position, device in enumerate(device_ids(mesh)):
        table[device] = entries[part_of(out, position, axes, mesh)]
    return table


def part_of(out: Emitter, position: int, axes: Sequence[AxisRef], mesh: Mesh) -> int:
    """`shard_index` as the options of the pass say."""
    return shard_index(position, axes, mesh, from_minor=not out.world.options.sub_axes_in_order)


def emit_device(out: Emitter) -> Value:
    """Adds what gives the id of the running device."""
    return out.convert(out.value("partition_id", (), TensorType((), "uint32")), "int64")


def emit_lookup(out: Emitter, table: Sequence[int], device: Value, dtype: str = "int64") -> Value:
    """Adds what gives a device's entry of a table, as a vector of one element."""
    texts = [str(bool(entry)).lower() if dtype == "bool" else str(entry) for entry in table]
    entries = out.constant(f"[{', '.join(texts)}]", TensorType((len(table),), dtype))
    return out.dynamic_slice(entries, (device,), (1,))


def emit_entry(out: Emitter, axes: Sequence[AxisRef], mesh: Mesh, entries: Sequence[int]) -> Value:
    """Adds what gives `entries[i]`, where `i` is the part of a dimension that the running device has."""
    return out.reshape(emit_lookup(out, shard_table(out, axes, mesh, entries), emit_device(out)), ())


def emit_offset(out: Emitter, axes: Sequence[AxisRef], mesh: Mesh, size: int) -> Value:
    """Emits the first index of the running device's part of a dimension whose parts have `size` elements."""
    parts = num_shards(axes, mesh)
    return emit_entry(out, axes, mesh, range(0, parts * size, size) if size else [0] * parts)


def emit_part(out: Emitter, value: Value, axes: Sequence[Sequence[AxisRef]], mesh: Mesh, sizes: Sequence[int]) -> Value:
    """Adds a slice of the running device's part of a value."""
    starts = [emit_offset(out, dim, mesh, size) if dim else out.integer(0) for dim, size in zip(axes, sizes, strict=True)]
    return out.dynamic_slice(value, starts, sizes)


_HANDLE = re.compile(r"#stablehlo\.channel_handle<handle = (\d+)")


@dataclass(frozen=True, kw_only=True)
class ConversionOptions(Pass):
    """Options of `sdy-convert-global-to-local`."""

    per_dim_all_gather: bool = option(False, "gather dimension by dimension")
    combine_multi_dimension_reduce_scatter: bool = option(False, "keep a reduce-scatter of several dimensions as one")
    enable_rgv3: bool = option(False, "write replica groups as axes of a mesh")
    sub_axes_in_order: bool = option(False, "number parts of axes as replica groups do, for right results (not in Shardy)")


class LocalTensor(NamedTuple):
    """Type, local type and sharding of a value before the conversion."""

    type: Type
    local: Type
    sharding: TensorSharding | None

    @property
    def is_cut(self) -> bool:
        """Whether axes cut a dimension, be it into one part."""
        return self.sharding is not None and not self.sharding.is_fully_replicated

    @property
    def rank(self) -> int:
        """Number of dimensions."""
        return self.type.rank

    def axes(self, dim: int) -> tuple[AxisRef, ...]:
        """The axes that cut a dimension."""
        return () if self.sharding is None or dim >= self.sharding.rank else self.sharding.dims[dim].axes


class Facts(NamedTuple):
    """The operands and results of an op before the conversion."""

    operands: tuple[LocalTensor, ...]
    results: tuple[LocalTensor, ...]

    @property
    def is_cut(self) -> bool:
        """Whether any operand or result is cut."""
        return any(tensor.is_cut for tensor in (*self.operands, *self.results))


class World:
    """The program, its options, the facts of each of its ops, and the channel that the next collective gets."""

    def __init__(self, program: Program, options: ConversionOptions) -> None:
        self.program = program
        self.options = options
        self.tensors: dict[Value, LocalTensor] = {}
        self.facts: dict[Op, Facts] = {}
        self._last_channel = 0
        for function in program.functions:
            for value in function.arguments:
                self.tensor(value)
            for op in function.body.walk():
                self._collect(op)

    def _collect(self, op: Op) -> None:
        for region in op.regions:
            for value in region.arguments:
                self.tensor(value)
        self.facts[op] = Facts(tuple(map(self.tensor, op.operands)), tuple(map(self.tensor, op.results)))
        handle = _HANDLE.search(op.attributes.get(MLIR_TEXT_KEY) or str(op.attributes.get("channel_handle", "")))
        if handle is not None:
            self._last_channel = max(self._last_channel, int(handle[1]))

    def tensor(self, value: Value) -> LocalTensor:
        """The facts of a value that the program has had from the start."""
        tensor = self.tensors.get(value)
        if tensor is None:
            sharding = get_sharding(value)
            tensor = self.tensors[value] = LocalTensor(value.type, self.local_type(value.type, sharding), sharding)
        return tensor

    def mesh(self, sharding: TensorSharding) -> Mesh:
        """The mesh of a sharding."""
        return sharding.mesh_in(self.program.meshes)

    def local_type(self, type_: Type, sharding: TensorSharding | None) -> Type:
        """The type of one device's part; raises ShardyError if the parts differ in size."""
        if sharding is None or sharding.is_fully_replicated or not isinstance(type_, TensorType) or sharding.rank != type_.rank:
            return type_
        try:
            return TensorType(sharding.local_shape(type_.shape, self.mesh(sharding), allow_uneven=False), type_.dtype)
        except DialectError as error:
            raise ShardyError(
                "Failed to compute local type due to non-divisible sharding",
                where=error.where,
                why=error.what,
                fix="run sdy-pad-for-divisibility before sdy-convert-global-to-local",
            ) from None

    def next_channel(self) -> int:
        """A channel that no collective of the program has."""
        self._last_channel += 1
        return self._last_channel


def illegal(world: World, op: Op, what: str, *, why: str | None = None, fix: str | None = None) -> ShardyError:
    """The error for an op that has no local form."""
    return ShardyError(
        f"'{op.name}' op {what}",
        where=place(world.program, op),
        why=why,
        fix=fix,
        notes=(f"failed to legalize operation '{op.name}' that was explicitly marked illegal",),
    )
