"""Simplifies a program as MLIR's canonicalizer does with the patterns of the SDY dialect."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from shardy_py.dialect import AllToAllParam, AllToAllParamList, AxisRef, ListOfAxisRefLists, Mesh, TensorSharding
from shardy_py.dialect.axis import add_axis_or_merge, sort_and_merge
from shardy_py.dialect.collectives import AXES_OF, moved_axes
from shardy_py.ir import Block, Op, Program, TensorType, Value
from shardy_py.opt.edits import erase, insert_after, insert_before, replace
from shardy_py.passes.base import FUNCTION, UNUSED, Pass, option
from shardy_py.passes.clone import clone_op
from shardy_py.passes.dataflow import get_sharding
from shardy_py.passes.propagation.log import Log
from shardy_py.passes.walk import blocks_in
from shardy_py.rules import is_pure

Pattern = Callable[[Op, Program], bool]
"""Rewrites the ops around the given one and returns True, or leaves all as it is and returns False.

A rewritten op that is gone has no block any more; it may still be in the list of its block, which the driver cleans up.
"""


def drop_unused_inputs(op: Op, program: Program) -> bool:
    """Removes operands that the body does not use."""
    body = op.regions[0]
    used = [bool(argument.uses) for argument in body.arguments]
    if all(used):
        return False
    operands = [operand for operand, keep in zip(op.operands, used, strict=True) if keep]
    for i, operand in enumerate(op.operands):
        del operand.uses[op, i]
    op.operands = []
    for operand in operands:
        op.append_operand(operand)
    _drop_arguments(body, used)
    shardings: tuple[TensorSharding, ...] = op.attributes["in_shardings"] or ()
    op.attributes = {**op.attributes, "in_shardings": tuple(s for s, keep in zip(shardings, used, strict=True) if keep)}
    return True


def _drop_arguments(body: Block, used: list[bool]) -> None:
    body.arguments = [argument for argument, keep in zip(body.arguments, used, strict=True) if keep]
    for i, argument in enumerate(body.arguments):
        argument.index = i


def drop_empty(op: Op, program: Program) -> bool:
    """Removes a computation that takes, does and returns nothing."""
    if op.operands or op.results or len(op.regions[0].ops) > 1:
        return False
    erase(op)
    return True


def _per_dim(op: Op) -> list[tuple[AxisRef, ...]]:
    """The axes of a collective per dimension."""
    return [axes.axes for axes in op.attributes[AXES_OF[op.name]].lists]


def _defined_by(op: Op, name: str) -> Op | None:
    """The defining op of the only operand, if it has that name."""
    definition = op.operands[0].defining_op
    return definition if definition is not None and definition.name == name else None


def drop_without_axes(op: Op, program: Program) -> bool:
    """Removes an all-gather, all-slice, reduce-scatter or all-reduce over no axes."""
    if moved_axes(op.attributes[AXES_OF[op.name]]):
        return False
    replace(op, op.operands[0])
    return True


def drop_permute_to_same(op: Op, program: Program) -> bool:
    """Removes a collective permute whose operand is laid out as its result already."""
    target = op.result.sharding
    if target is None or not target.is_equivalent(get_sharding(op.operands[0])):
        return False
    replace(op, op.operands[0])
    return True


def drop_slice_of_gather(op: Op, program: Program) -> bool:
    """Removes an all-slice that undoes an all-gather."""
    gather = _defined_by(op, "sdy.all_gather")
    if gather is None or _per_dim(gather) != _per_dim(op):
        return False
    replace(op, gather.operands[0])
    return True


def drop_reduce_of_replicated(op: Op, program: Program) -> bool:
    """Removes an all-reduce over the axes along which a replicated value was made one of parts of a sum."""
    source = _defined_by(op, "sdy.replicated_to_unreduced")
    if source is None or source.attributes["axes"] is not op.attributes["reduction_axes"]:
        return False
    replace(op, source.operands[0])
    return True


def gather_instead_of_reduce(op: Op, program: Program) -> bool:
    """Makes an all-reduce over the axes along which pieces were made parts of a sum an all-gather of the pieces."""
    source = _defined_by(op, "sdy.sharded_to_unreduced")
    if source is None or _mesh(op, program) is None:
        return False
    axes = (axis for axes in _per_dim(source) for axis in axes)
    if sort_and_merge(axes, op.result.sharding.mesh_in(program.meshes)) != op.attributes["reduction_axes"].axes:  # type: ignore[union-attr]
        return False
    gather = _collective("sdy.all_gather", source.operands[0], {"gathering_axes": source.attributes["axes"]}, op.result.sharding, op)
    insert_before(op, [gather])
    replace(op, gather.result)
    return True


def fuse_all_to_alls(op: Op, program: Program) -> bool:
    """Makes one all-to-all of two whose dimensions all differ, where nothing else uses the first."""
    first = _defined_by(op, "sdy.all_to_all")
    if first is None or len(first.result.uses) != 1:
        return False
    params: list[AllToAllParam] = [*first.attributes["params"].params, *op.attributes["params"].params]
    if len({dim for param in params for dim in (param.source, param.target)}) != 2 * len(params):
        return False
    params.sort(key=lambda param: param.source)
    op.attributes = {**op.attributes, "params": AllToAllParamList(tuple(params))}
    op.set_operand(0, first.operands[0])
    erase(first)
    return True


def fuse_reduce_and_slice(op: Op, program: Program) -> bool:
    """Makes a reduce-scatter of an all-reduce and the all-slices along the same axes that are all that uses it.

    The slices must all be the same, and the axes of the reduction must stand at the beginning of theirs; what is sliced further
    stays an all-slice.
    """
    if op.name == "sdy.all_slice":
        reduce = _defined_by(op, "sdy.all_reduce")
        if reduce is None:
            return False
    else:
        reduce = op
    users = [user for user, _ in reduce.result.uses]
    mesh = _mesh(reduce, program)
    if mesh is None or not users:
        return False
    if any(u.name != "sdy.all_slice" or u.attributes["slicing_axes"] is not users[0].attributes["slicing_axes"] for u in users):
        return False
    counts = _num_scattered(_per_dim(users[0]), reduce.attributes["reduction_axes"].axes)
    block = reduce.block
    if counts is None or block is None or any(user.block is not block for user in users):
        return False
    scattered = [axes[:n] for axes, n in zip(_per_dim(users[0]), counts, strict=True)]
    rest = [axes[n:] for axes, n in zip(_per_dim(users[0]), counts, strict=True)]
    first = min(users, key=block.ops.index)
    sharding = _scattered(reduce, first, scattered, mesh)
    attributes = {name: value for name, value in reduce.attributes.items() if name == "reduction_op"}
    attributes["reduce_scatter_axes"] = ListOfAxisRefLists(scattered)
    ops = [_collective("sdy.reduce_scatter", reduce.operands[0], attributes, sharding, reduce)]
    if any(rest):
        ops.append(_collective("sdy.all_slice", ops[0].result, {"slicing_axes": ListOfAxisRefLists(rest)}, first.result.sharding, first))
    insert_before(first, ops)
    for user in sorted(users, key=block.ops.index):
        replace(user, ops[-1].result)
    erase(reduce)
    return True


def _num_scattered(sliced: list[tuple[AxisRef, ...]], reduced: tuple[AxisRef, ...]) -> list[int] | None:
    """The number of leading axes of each dimension that are reduced; None where these do not cover the reduction."""
    remaining = set(reduced)
    counts: list[int] = []
    for axes in sliced:
        n = 0
        while n < len(axes) and axes[n] in remaining:
            remaining.remove(axes[n])
            n += 1
        counts.append(n)
    return None if remaining else counts


def _scattered(reduce: Op, cut: Op, per_dim: list[tuple[AxisRef, ...]], mesh: Mesh) -> TensorSharding:
    """The sharding of an all-reduce cut further: closed, with the replicated and unreduced axes of the all-slice."""
    summed, sliced = reduce.result.sharding, cut.result.sharding
    assert summed is not None
    assert sliced is not None
    dims: list[list[AxisRef]] = []
    for dim, added in zip(summed.dims, per_dim, strict=True):
        axes = list(dim.axes)
        for axis in added:
            add_axis_or_merge(axes, axis, mesh)
        dims.append(axes)
    return TensorSharding(summed.mesh, [tuple(axes) for axes in dims], sliced.replicated, sliced.unreduced)


def _mesh(op: Op, program: Program) -> Mesh | None:
    return None if op.result.sharding is None else op.result.sharding.mesh_in(program.meshes)


def _collective(name: str, operand: Value, attributes: dict[str, object], sharding: TensorSharding | None, like: Op) -> Op:
    return Op(name, (operand,), (like.result.type,), attributes, location=like.location, sharding=sharding)


_RESHARD = "sdy.reshard"
_RESHAPE = "stablehlo.reshape"
_TRANSPOSE = "stablehlo.transpose"

_Piece = tuple[str, int, int, int]
"""`(axis, pre_size, size, stride)`: neighbouring pieces along this part of an axis begin `stride` elements apart, in row-major order."""


def skip_reshard(op: Op, program: Program) -> bool:
    """Reshards the operand of a reshard instead of its result, where nothing else uses that."""
    first = op.operands[0].defining_op
    if first is None or first.name != _RESHARD or len(first.result.uses) != 1:
        return False
    op.set_operand(0, first.operands[0])
    return True


def reuse_reshard(op: Op, program: Program) -> bool:
    """Uses an earlier reshard of the same value in the same block, where both cut the value into the same pieces.

    The value may have been reshaped before the earlier one, and reshaped and transposed before this one; then the reshapes and
    transposes are done anew after the earlier reshard.
    """
    chain: list[Op] = []
    root = op.operands[0]
    while root.defining_op is not None and root.defining_op.name in (_RESHAPE, _TRANSPOSE):
        chain.append(root.defining_op)
        root = chain[-1].operands[0]
    earlier = next((candidate for candidate in _reshards_of(root, op) if _same_pieces(op, chain, candidate, program)), None)
    if earlier is None:
        return False
    value = earlier.result
    moved: list[Op] = []
    if chain and value.type is not root.type:
        moved.append(Op(_RESHAPE, (value,), (root.type,), location=op.location))
        value = moved[0].result
    for old in reversed(chain):
        moved.append(clone_op(old, {old.operands[0]: value}))
        value = moved[-1].result
    insert_after(earlier, moved)
    replace(op, value)
    return True


def _reshards_of(root: Value, op: Op) -> Iterator[Op]:
    """Reshards of a value, or of reshapes of it, in the same block before `op`."""
    block = op.block
    assert block is not None
    end: int | None = None
    values = [root]
    for value in values:
        for user, _ in value.uses:
            if user is op or user.block is not block:
                continue
            if user.name == _RESHAPE:
                values.append(user.result)
            elif user.name == _RESHARD:
                end = block.ops.index(op) if end is None else end
                if block.ops.index(user) < end:
                    yield user


def _same_pieces(op: Op, chain: Sequence[Op], earlier: Op, program: Program) -> bool:
    """Whether two reshards cut the value at the root of `chain` into the same pieces, on the same devices."""
    sharding, other = op.result.sharding, earlier.result.sharding
    if sharding is None or other is None or sharding.unreduced != other.unreduced:
        return False
    if sharding.is_fully_replicated or other.is_fully_replicated:
        return sharding.is_fully_replicated and other.is_fully_replicated
    if sharding.mesh != other.mesh:
        return False
    if not chain and op.result.type is earlier.result.type:
        return sharding.are_dim_axes_equal(other)
    types = [op.result.type, earlier.result.type, *(step.operands[0].type for step in chain)]
    if not all(isinstance(type_, TensorType) and 0 not in type_.shape for type_ in types):
        return False
    pieces = _pieces(sharding, op.result.type.shape, program)
    for step in chain:
        if pieces is not None and step.name == _TRANSPOSE:
            pieces = _before_transpose(pieces, step.result.type.shape, step.attributes["permutation"])
    return pieces is not None and pieces == _pieces(other, earlier.result.type.shape, program)


def _pieces(sharding: TensorSharding, shape: Sequence[int], program: Program) -> list[_Piece] | None:
    """The cuts that a sharding makes, coarsest first; None where a size does not divide."""
    mesh = sharding.mesh_in(program.meshes)
    pieces: list[_Piece] = []
    for i, dim in enumerate(sharding.dims):
        extent, below = shape[i], math.prod(shape[i + 1 :])
        for axis in dim.axes:
            size = axis.size_in(mesh)
            if extent % size:
                return None
            extent //= size
            pieces.append((axis.name, axis.pre_size or 1, size, extent * below))
    return _merged(pieces)


def _merged(pieces: list[_Piece]) -> list[_Piece]:
    """Sorted from the coarsest cut to the finest, neighbouring parts of an axis merged where their cuts are neighbours, too."""
    merged: list[_Piece] = []
    for piece in sorted(pieces, key=lambda piece: -piece[3]):
        name, pre, size, stride = piece
        if merged:
            last = merged[-1]
            if last[0] == name and last[1] * last[2] == pre and last[3] == stride * size:
                merged[-1] = (name, last[1], last[2] * size, stride)
                continue
        merged.append(piece)
    return merged


def _before_transpose(pieces: list[_Piece], shape: Sequence[int], permutation: Sequence[int]) -> list[_Piece] | None:
    """The sharding of a transpose's operand that gives the sharding of its result; None if sizes do not divide."""
    operand_shape = [0] * len(shape)
    for i, dim in enumerate(permutation):
        operand_shape[dim] = shape[i]
    cuts: list[_Piece] = []
    for name, pre, size, stride in pieces:
        for i, dim in enumerate(permutation):
            below = math.prod(shape[i + 1 :])
            high, low = min(stride * size, below * shape[i]), max(stride, below)
            if high <= low:
                continue
            if high % low or low % below or stride * size % high:
                return None
            part = high // low
            cuts.append((name, pre * (stride * size // high), part, low // below * math.prod(operand_shape[dim + 1 :])))
    return _merged(cuts)


RESHARDS = "sdy-reshard"
COLLECTIVES = "sdy-collective"

PATTERNS: Mapping[str, Mapping[str, tuple[Pattern, ...]]] = {
    RESHARDS: {_RESHARD: (skip_reshard,)},
    COLLECTIVES: {
        "sdy.all_gather": (drop_without_axes,),
        "sdy.all_reduce": (drop_without_axes, drop_reduce_of_replicated, gather_instead_of_reduce, fuse_reduce_and_slice),
        "sdy.all_slice": (drop_without_axes, drop_slice_of_gather, fuse_reduce_and_slice),
        "sdy.all_to_all": (fuse_all_to_alls,),
        "sdy.collective_permute": (drop_permute_to_same,),
        "sdy.reduce_scatter": (drop_without_axes,),
    },
    "": {_RESHARD: (reuse_reshard,), "sdy.manual_computation": (drop_unused_inputs, drop_empty)},
}
"""Label ("" without one) -> op name -> patterns in the order in which they are tried."""


@dataclass(frozen=True, kw_only=True)
class Canonicalize(Pass):
    """Simplifies reshards, collectives and manual computations, and removes dead ops."""

    name = "canonicalize"
    anchor = FUNCTION

    enable_patterns: tuple[str, ...] = option((), "labels of the patterns to apply; all without")
    disable_patterns: tuple[str, ...] = option((), UNUSED)
    max_iterations: int = option(10, UNUSED)
    max_num_rewrites: int = option(-1, UNUSED)
    region_simplify: str = option("normal", UNUSED, choices=("disabled", "normal", "aggressive"))
    top_down: bool = option(True, UNUSED)
    test_convergence: bool = option(False, UNUSED)
    cse_between_iterations: bool = option(False, UNUSED)

    def run(self, program: Program, log: Log | None = None) -> None:
        """Applies patterns and removes dead ops until nothing changes.

        Patterns of other dialects and the folding and merging of constants are left out.

        The patterns have the labels `sdy-reshard` and `sdy-collective`; the export pipeline takes `("sdy-collective",)`. Without labels,
        the patterns that have none apply too. Dead ops go in any case.

        Source: MLIR's Canonicalizer.cpp, and Shardy's patterns in ir/canonicalization.
        """
        patterns: dict[str, tuple[Pattern, ...]] = {}
        for label, table in PATTERNS.items():
            if not self.enable_patterns or label in self.enable_patterns:
                patterns |= {name: (*patterns.get(name, ()), *tried) for name, tried in table.items()}
        for function in program.functions:
            while _sweep(function.body, patterns, program):
                pass


def _sweep(body: Block, patterns: Mapping[str, Sequence[Pattern]], program: Program) -> bool:
    """Visits every op once, and again while it changes; returns whether anything has changed."""
    changed = False
    for block in blocks_in(body):
        for op in list(block.ops):
            while op.block is block:
                operands = _definitions(op)
                if not _drop_dead([op]) and not any(pattern(op, program) for pattern in patterns.get(op.name, ())):
                    break
                _drop_dead(operands)
                changed = True
    if changed:
        for block in blocks_in(body):
            block.ops = [op for op in block.ops if op.block is not None]
    return changed


def _definitions(op: Op) -> list[Op]:
    return [operand.defining_op for inner in op.walk() for operand in inner.operands if operand.defining_op is not None]


def _drop_dead(ops: list[Op]) -> bool:
    """Erases the dead ones of the ops, and what only they have used; returns whether there are any."""
    dropped = False
    for op in ops:
        if op.block is not None and not any(result.uses for result in op.results) and is_pure(op):
            ops += _definitions(op)
            erase(op)
            dropped = True
    return dropped
