"""Facts about a program before the conversion changes it: types and shardings of whole tensors, and types of their parts."""

from __future__ import annotations

import re
from typing import NamedTuple

from shardy_py.dialect import AxisRef, Mesh, TensorSharding
from shardy_py.errors import DialectError, ShardyError
from shardy_py.ir import Op, Program, TensorType, Type, Value
from shardy_py.ir.attribute_text import MLIR_TEXT_KEY
from shardy_py.passes.dataflow import get_sharding
from shardy_py.passes.walk import place

_HANDLE = re.compile(r"#stablehlo\.channel_handle<handle = (\d+)")


class ConversionOptions(NamedTuple):
    """Options of the pass.

    Attributes:
        combine_multi_dimension_reduce_scatter: Whether several dimensions share one reduce-scatter; else they are all-reduced and sliced.
        enable_rgv3: Whether replica groups are axes of a mesh instead of lists of devices.
        sub_axes_in_order: Whether devices number parts of axes as replica groups do, see `devices.shard_index`.
    """

    per_dim_all_gather: bool = False
    combine_multi_dimension_reduce_scatter: bool = False
    enable_rgv3: bool = False
    sub_axes_in_order: bool = False


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
