"""Makes dimensions whose elements change places run unsharded, or sends parts to where they are needed."""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from shardy_py.dialect import AxisRef, Mesh, OpShardingRule, TensorSharding
from shardy_py.dialect.devices import device_groups
from shardy_py.dialect.projection import FactorSharding, TensorFactors, project, unproject
from shardy_py.ir import Block, Op, Program, TensorType, Value
from shardy_py.opt.edits import insert_after, insert_before
from shardy_py.opt.explicit_reshards.decision import Decision, matching_meshes
from shardy_py.opt.insert_explicit_reshards import Inserter
from shardy_py.opt.partitioner import local_ops
from shardy_py.passes.base import Pass, option
from shardy_py.passes.dataflow import MANUAL_COMPUTATION, get_sharding, without_manual_axes
from shardy_py.passes.propagation.log import Log
from shardy_py.passes.walk import SymbolNames
from shardy_py.rules import rule_of

_DIALECT = "stablehlo."


@dataclass(frozen=True, kw_only=True)
class ResolvePermutationFactors(Pass):
    """Reshards around ops whose elements change places along a sharded dimension."""

    name = "sdy-resolve-permutation-factors"

    enable_halo_exchange: bool = option(True, "let reversals exchange parts")

    def run(self, program: Program, log: Log | None = None) -> None:
        """Resolves the sharding of permutation factors: of windows, slices, pads, reversals.

        Operands and results of an op are resharded so that these factors are not sharded, except where a slice cuts off no more than
        the end of the last part. A reversal exchanges whole parts instead.

        Other disagreements between shardings must be settled. As in Shardy, permutes number devices among the manual axes, so that other
        devices exchange parts where the mesh has more axes or lists its devices in another order.

        Source: Shardy's resolve_permutation_factors.cc, as of jaxlib 0.10.2: pads, slices and reshapes exchange nothing.
        """
        resolver = _Resolver(program, self.enable_halo_exchange)
        for function in program.functions:
            resolver.visit(function.body)


class _Resolver:
    def __init__(self, program: Program, exchange: bool) -> None:
        self.program = program
        self.exchange = exchange
        self.names = MeshNames(program)
        self.inserter = Inserter(program, full=True)

    def visit(self, block: Block) -> None:
        """Visits the ops of a block, those in the regions of an op before it."""
        for op in list(block.ops):
            for region in op.regions:
                self.visit(region)
            if op.name.startswith(_DIALECT) and op.results:
                self.resolve(op)

    def resolve(self, op: Op) -> None:
        """Inserts the reshards of one op."""
        rule = rule_of(op, self.program.semantics)
        if rule is None or rule.is_custom or not rule.permutation:
            return
        if self.exchange and op.name == REVERSE and reverse_parts(op, self.names):
            return
        shardings = [get_sharding(value) for value in (*op.operands, *op.results)]
        meshes = self.program.meshes
        decision = replicated(rule, moved_factors(op, rule, meshes), shardings, meshes)
        if decision is not None:
            self.inserter.carry_out(op, decision)


REVERSE = "stablehlo.reverse"


def reverse_parts(op: Op, names: MeshNames) -> bool:
    """Makes every device reverse its own part, after a reshard that exchanges the parts.

    The operand goes to a mesh with its devices in reverse order along the axes of reversed dimensions. A dimension that the axes do not
    divide is padded; its padding is moved to the low end, so that it is at the high end again after the reversal, and is sliced off.
    The result is sharded as the operand.

    Returns:
        Whether the op is dealt with; not where the padding is larger than a part, or other dimensions forbid a manual computation.
    """
    value, result = op.operands[0], op.result
    sharding = get_sharding(value)
    dims: tuple[int, ...] = tuple(op.attributes["dimensions"])
    if sharding is None or not any(sharding.dims[dim].axes for dim in dims):
        return True
    mesh = sharding.mesh_in(names.program.meshes)
    shape = local_ops.tensor_type(value).shape
    padding = _padding(shape, dims, sharding, mesh)
    if padding is None:
        return False
    ops: list[Op] = []
    if padding:
        zero = local_ops.constant(0, local_ops.tensor_type(value).dtype, op)
        high = tuple(padding.get(dim, 0) for dim in range(len(shape)))
        padded = local_ops.pad(value, zero.result, (0,) * len(shape), high, op, sharding)
        moved = shift(padded.result, sharding, mesh, padding, op)
        ops += (zero, padded, moved)
        value = moved.result
        result.type = local_ops.tensor_type(value)
    other = reversed_mesh(mesh, [axis for dim in dims for axis in sharding.dims[dim].axes])
    wish = f"{sharding.mesh}_reversed" if isinstance(sharding.mesh, str) else "mesh_reversed"
    exchanged = sharding.with_mesh(names.name(other, wish))
    reshard = Op("sdy.reshard", (value,), (value.type,), {}, location=op.location, sharding=exchanged)
    op.set_operand(0, reshard.result)
    insert_before(op, [*ops, reshard])
    result.sharding = sharding
    if padding:
        sliced = local_ops.slice_(result, (0,) * len(shape), shape, op, sharding)
        result.replace_uses(sliced.result, lambda user, _: user is sliced)
        insert_after(op, [sliced])
    return True


def _padding(shape: tuple[int, ...], dims: tuple[int, ...], sharding: TensorSharding, mesh: Mesh) -> dict[int, int] | None:
    """Reversed dimension -> the padding that makes it a multiple of its shards; None where parts cannot be shifted by as much."""
    padding: dict[int, int] = {}
    for dim in sorted(dims):
        shards = sharding.dims[dim].shards(mesh)
        missing = -shape[dim] % shards
        if missing * shards > shape[dim] + missing:
            return None
        if missing:
            padding[dim] = missing
    if padding:
        manual = {axis.name for dim in padding for axis in sharding.dims[dim].axes}
        padded = [size + padding.get(dim, 0) for dim, size in enumerate(shape)]
        if local_shape(padded, sharding, manual, mesh) is None:
            return None
    return padding


def local_shape(shape: Sequence[int], sharding: TensorSharding, manual: Collection[str], mesh: Mesh) -> tuple[int, ...] | None:
    """The shape of a part inside a manual computation; None where there can be none.

    This is so where the manual axes do not divide a dimension, or come after other axes of it.
    """
    local: list[int] = []
    for size, dim in zip(shape, sharding.dims, strict=True):
        is_manual = [axis.name in manual for axis in dim.axes]
        shards = math.prod(axis.size_in(mesh) for axis, inside in zip(dim.axes, is_manual, strict=True) if inside)
        if size % shards or is_manual != sorted(is_manual, reverse=True):
            return None
        local.append(size // shards)
    return tuple(local)


def shift(value: Value, sharding: TensorSharding, mesh: Mesh, by: dict[int, int], like: Op) -> Op:
    """A manual computation that moves elements `by` at most a device's part to higher indices; zeros come in at the low end."""
    names = {axis.name for dim in by for axis in sharding.dims[dim].axes}
    manual = tuple(name for name in mesh.axis_names if name in names)
    type_ = local_ops.tensor_type(value)
    shape = local_shape(type_.shape, sharding, manual, mesh)
    assert shape is not None
    body = Block([TensorType(shape, type_.dtype)])
    inside = without_manual_axes(sharding, manual)
    moved = body.arguments[0]
    for dim, amount in by.items():
        axes = sharding.dims[dim].axes
        moved = _shift(body, moved, dim, amount, inside, neighbours(axes, manual, mesh), like)
    body.append(Op("sdy.return", (moved,), (), location=like.location))
    attributes = {"in_shardings": (sharding,), "out_shardings": (sharding,), "manual_axes": manual}
    return Op(MANUAL_COMPUTATION, (value,), (type_,), attributes, (body,), location=like.location)


def neighbours(axes: Sequence[AxisRef], names: Sequence[str], mesh: Mesh) -> list[tuple[int, int]]:
    """`(device, device with the next part)` along a dimension, by number among the devices of some axes.

    Example:
        >>> neighbours([AxisRef("y"), AxisRef("x")], ("x", "y"), Mesh([("x", 2), ("y", 2)]))
        [(0, 2), (1, 3), (2, 1)]
    """
    groups = device_groups(tuple(axes), Mesh([(name, mesh.shape[name]) for name in names]))
    return sorted(pair for group in groups for pair in itertools.pairwise(group))


def _shift(body: Block, value: Value, dim: int, amount: int, sharding: TensorSharding, pairs: Sequence[tuple[int, int]], like: Op) -> Value:
    shape = local_ops.tensor_type(value).shape
    size = shape[dim]

    def part(start: int, limit: int) -> Value:
        starts = tuple(start if d == dim else 0 for d in range(len(shape)))
        limits = tuple(limit if d == dim else n for d, n in enumerate(shape))
        return body.append(local_ops.slice_(value, starts, limits, like, sharding)).result

    sent = value if amount == size else part(size - amount, size)
    received = body.append(local_ops.collective_permute(sent, pairs, like, sharding)).result
    if amount == size:
        return received
    return body.append(local_ops.concatenate((received, part(0, size - amount)), dim, like, sharding)).result


_SLICE = "stablehlo.slice"


def replicated(
    rule: OpShardingRule, factors: Collection[int], shardings: Sequence[TensorSharding | None], meshes: Mapping[str, Mesh]
) -> Decision | None:
    """Takes the axes of some factors away from all tensors of an op.

    Tensors over meshes that differ in the order of their devices are brought to one order too, where anything changes.
    """
    named_mesh = _mesh_in_device_order(shardings, meshes)
    if named_mesh is None:
        return None
    name, mesh = named_mesh
    tensors = [project(m, s, rule.factor_sizes, mesh, True) for m, s in zip(rule.mappings, shardings, strict=True)]
    sharded = [any(f in factors and state.axes for f, state in tensor.factors.items()) for tensor in tensors]
    if not any(sharded):
        return None
    changes: list[tuple[int, TensorSharding]] = []
    for i, (tensor, old) in enumerate(zip(tensors, shardings, strict=True)):
        other_order = old is not None and not old.is_fully_replicated and old.mesh_in(meshes) is not mesh
        if sharded[i] or other_order:
            changes.append((i, unproject(rule.mappings[i], _without(tensor, factors), old, rule.factor_sizes, mesh, name)))
    count = len(rule.operand_mappings)
    operands = tuple((i, sharding) for i, sharding in changes if i < count)
    results = tuple((i - count, sharding) for i, sharding in changes if i >= count)
    return Decision(name, operands, results)


def _mesh_in_device_order(shardings: Sequence[TensorSharding | None], meshes: Mapping[str, Mesh]) -> tuple[str | Mesh, Mesh] | None:
    """The mesh on which an op runs, with its name; None where the shardings are over different axes or one device.

    The last of those whose devices are in order, else the first.
    """
    best: tuple[str | Mesh, Mesh] | None = None
    for sharding, mesh in matching_meshes(shardings, meshes):
        if best is None or not mesh.device_ids:
            best = sharding.mesh, mesh
    return best


def moved_factors(op: Op, rule: OpShardingRule, meshes: Mapping[str, Mesh]) -> frozenset[int]:
    """The permutation factors of an op along which devices need elements of each other."""
    if op.name != _SLICE:
        return frozenset(rule.permutation)
    free = {f for dim, mapping in enumerate(rule.operand_mappings[0]) for f in mapping if is_local_slice(op, dim, meshes)}
    return frozenset(rule.permutation) - free


def is_local_slice(op: Op, dim: int, meshes: Mapping[str, Mesh]) -> bool:
    """Whether a slice is local along one dimension: each device makes its part from its part of the operand.

    This holds where only the end is cut off, and no more of it than lies beyond the needs of the last device.
    """
    source, target = get_sharding(op.operands[0]), get_sharding(op.result)
    if source is None or target is None or source.mesh != target.mesh or source.dims[dim].axes != target.dims[dim].axes:
        return False
    if op.attributes["start_indices"][dim] or op.attributes["strides"][dim] != 1:
        return False
    shards = source.dims[dim].shards(source.mesh_in(meshes))
    return -(-op.operands[0].type.shape[dim] // shards) == -(-op.result.type.shape[dim] // shards)


def _without(tensor: TensorFactors, factors: Collection[int]) -> TensorFactors:
    return TensorFactors(
        {
            f: FactorSharding((), state.closed, state.minor_most, state.overflow) if f in factors else state
            for f, state in tensor.factors.items()
        },
        tensor.blocked_axes,
    )


def reversed_mesh(mesh: Mesh, axes: Iterable[AxisRef]) -> Mesh:
    """The mesh with its devices in reverse order along axes, or parts of axes.

    Example:
        >>> reversed_mesh(Mesh([("x", 4)]), [AxisRef("x", 1, 2)])
        #sdy.mesh<["x"=4], device_ids=[2, 3, 0, 1]>
    """
    shape = [axis.size for axis in mesh.axes]
    ids = np.asarray(mesh.device_ids or range(mesh.size)).reshape(shape)
    for axis in axes:
        at = mesh.axis_index(axis.name)
        before, size = axis.pre_size or 1, axis.size_in(mesh)
        split = [*shape[:at], before, size, shape[at] // (before * size), *shape[at + 1 :]]
        ids = np.flip(ids.reshape(split), at + 1).reshape(shape)
    return Mesh(mesh.axes, map(int, ids.ravel()))


class MeshNames:
    """Names of meshes that a pass adds in front of the program's own."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.symbols = SymbolNames(program)

    def name(self, mesh: Mesh, wish: str) -> str:
        """The name of the last equal mesh of the program; where there is none, the mesh is added."""
        for name, other in reversed(self.program.meshes.items()):
            if other is mesh:
                return name
        name = self.symbols.take(wish)
        self.program.meshes = {name: mesh, **self.program.meshes}
        return name
