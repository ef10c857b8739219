"""Patterns for collectives, labelled `sdy-collective`: redundant ones, inverse pairs, and pairs that fuse."""

from __future__ import annotations

from shardy_py.dialect import AllToAllParam, AllToAllParamList, AxisRef, ListOfAxisRefLists, Mesh, TensorSharding
from shardy_py.dialect.axis import add_axis_or_merge, sort_and_merge
from shardy_py.dialect.collectives import AXES_OF, moved_axes
from shardy_py.ir import Op, Program, Value
from shardy_py.passes.dataflow import get_sharding
from shardy_py.passes.export.canonicalization.rewriting import Pattern, erase, insert_before, replace


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


COLLECTIVE_PATTERNS: dict[str, tuple[Pattern, ...]] = {
    "sdy.all_gather": (drop_without_axes,),
    "sdy.all_reduce": (drop_without_axes, drop_reduce_of_replicated, gather_instead_of_reduce, fuse_reduce_and_slice),
    "sdy.all_slice": (drop_without_axes, drop_slice_of_gather, fuse_reduce_and_slice),
    "sdy.all_to_all": (fuse_all_to_alls,),
    "sdy.collective_permute": (drop_permute_to_same,),
    "sdy.reduce_scatter": (drop_without_axes,),
}
