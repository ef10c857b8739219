"""Collectives around pads, slices and masks that cannot run on parts alone."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from shardy_py.dialect import AxisRef, DimensionSharding, ListOfAxisRefLists, TensorSharding
from shardy_py.ir import Op, Program, Value
from shardy_py.passes.dataflow import get_sharding
from shardy_py.passes.export.explicit_reshards.edits import Edits
from shardy_py.rules.traits import is_elementwise


def complete(program: Program) -> None:
    """Inserts the collectives that earlier passes leave out.

    `sdy-pad-for-divisibility` pads and slices dimensions that are cut, where a part's elements may go to the part of another device,
    and computes masks, which have no sharding, over the whole of tensors that are cut. A pad or slice that moves elements between
    parts runs on whole dimensions; an elementwise op without a sharding is cut as its operands are, of which those that are whole
    are sliced.
    """
    edits = Edits()
    for function in program.functions:
        for op in function.body.walk():
            if op.name in _MOVES:
                _on_whole_dims(op, program, edits)
            elif is_elementwise(op.name):
                _cut_as_operands(op, edits)
    edits.apply()


def _on_whole_dims(op: Op, program: Program, edits: Edits) -> None:
    """Gathers the dimensions of the operand along which elements change devices, and slices the result."""
    operand, result = op.operands[0], op.result
    sharding = get_sharding(operand)
    if sharding is None or sharding.is_fully_replicated or sharding is not get_sharding(result):
        return
    shards = sharding.shards(sharding.mesh_in(program.meshes))
    moved = [dim for dim, count in enumerate(shards) if count > 1 and _MOVES[op.name](op, dim, count)]
    if not moved:
        return
    whole = sharding.with_dims(DimensionSharding() if i in moved else dim for i, dim in enumerate(sharding.dims))
    gathered = _collective("all_gather", "gathering_axes", operand, sharding, whole, moved, op)
    op.set_operand(0, gathered.result)
    edits.before(op, gathered)
    result.sharding = whole
    sliced = _collective("all_slice", "slicing_axes", result, sharding, sharding, moved, op)
    result.replace_uses(sliced.result, lambda user, _: user is sliced)
    edits.after(op, sliced)


def _cut_as_operands(op: Op, edits: Edits) -> None:
    """Shards an elementwise op without a sharding as its operands, and slices the operands that are whole."""
    result = op.results[0]
    if get_sharding(result) is not None:
        return
    sharding = next((s for s in map(get_sharding, op.operands) if s is not None and not s.is_fully_replicated), None)
    if sharding is None:
        return
    result.sharding = sharding
    for i, operand in enumerate(op.operands):
        present = get_sharding(operand)
        if operand.type.rank == sharding.rank and (present is None or present.is_fully_replicated):
            sliced = _collective("all_slice", "slicing_axes", operand, sharding, sharding, range(sharding.rank), op)
            op.set_operand(i, sliced.result)
            edits.before(op, sliced)


def _collective(name: str, attribute: str, value: Value, axes: TensorSharding, target: TensorSharding, dims: Collection[int], op: Op) -> Op:
    listed: list[tuple[AxisRef, ...]] = [dim.axes if i in dims else () for i, dim in enumerate(axes.dims)]
    return Op(f"sdy.{name}", (value,), (value.type,), {attribute: ListOfAxisRefLists(listed)}, location=op.location, sharding=target)


def _pad_moves(op: Op, dim: int, shards: int) -> bool:
    """Whether an element of a part comes to lie in another part of the padded dimension."""
    size, wanted = (value.type.shape[dim] // shards for value in (op.operands[0], op.result))
    step = op.attributes["interior_padding"][dim] + 1
    for part in range(shards):
        start = op.attributes["edge_padding_low"][dim] + part * size * step
        first, last = max(0, -(start // step)), min(size - 1, (wanted * shards - 1 - start) // step)
        if first <= last and not part * wanted <= start + first * step <= start + last * step < (part + 1) * wanted:
            return True
    return False


def _slice_moves(op: Op, dim: int, shards: int) -> bool:
    """Whether a slice is not a full one, or its steps do not begin anew with each part."""
    start, limit, stride = (op.attributes[name][dim] for name in ("start_indices", "limit_indices", "strides"))
    size = op.operands[0].type.shape[dim]
    return (start, limit) != (0, size) or size // shards % stride != 0


_MOVES: Mapping[str, Callable[[Op, int, int], bool]] = {"stablehlo.pad": _pad_moves, "stablehlo.slice": _slice_moves}
"""Name of an op -> whether elements change devices along a dimension that is cut into so many parts."""
