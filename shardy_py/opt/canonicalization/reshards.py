"""Patterns for reshards: of two in a row the first goes (labelled `sdy-reshard`), of two that do the same the second (no label)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from shardy_py.dialect import TensorSharding
from shardy_py.ir import Op, Program, TensorType, Value
from shardy_py.opt.canonicalization.rewriting import Pattern, insert_after, replace
from shardy_py.passes.clone import clone_op

RESHARD = "sdy.reshard"
_RESHAPE = "stablehlo.reshape"
_TRANSPOSE = "stablehlo.transpose"

_Piece = tuple[str, int, int, int]
"""`(axis, pre_size, size, stride)`: neighbouring pieces along this part of an axis begin `stride` elements apart, in row-major order."""


def skip_reshard(op: Op, program: Program) -> bool:
    """Reshards the operand of a reshard instead of its result, where nothing else uses that."""
    first = op.operands[0].defining_op
    if first is None or first.name != RESHARD or len(first.result.uses) != 1:
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
            elif user.name == RESHARD:
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


LABELLED: dict[str, tuple[Pattern, ...]] = {RESHARD: (skip_reshard,)}
UNLABELLED: dict[str, tuple[Pattern, ...]] = {RESHARD: (reuse_reshard,)}
