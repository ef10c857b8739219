"""Products of which XLA's partitioner lines up the devices in another order than those of the result."""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterator, Mapping, Sequence

from shardy_py.dialect import AxisRef, Mesh
from shardy_py.dialect.axis import Axes
from shardy_py.ir import Op
from shardy_py.partition.layouts import Layout, all_axes, layout_of, local_shape, mesh_of, parts

NESTED_GROUPS = 4
"""Axes from which on XLA groups devices inside of groups."""


def is_misaligned_product(op: Op, meshes: Mapping[str, Mesh]) -> bool:
    """Whether XLA may scatter the partial sums of a product, and line up the devices that have one part of the sum in the wrong order.

    XLA groups devices by the parts of summed dimensions. Where dimensions of the result, or its copies, are cut into the same groups, it
    partitions the rest of the product inside of each group, and takes the place of a device in its group from the larger operand, but the
    layout of the result from the groups of the result (`GetDotGroupPartitionContractingOutputShardings`). If these list their devices in
    different orders, and a dimension has to be moved besides, parts of the result are exchanged. It takes three axes, or parts of them.
    On four axes XLA groups them several times over: there every product counts of which a dimension is moved to other axes.
    """
    values = (*op.operands, op.result)
    mesh = mesh_of((v.sharding for v in values), meshes)
    if mesh is None:
        return False
    layouts = [layout_of(v.sharding, v.type.rank, mesh) for v in values]
    result, dims = layouts[2], list(_result_dims(op, layouts))
    every_axis = tuple(part for axis in mesh.axes for part in parts(AxisRef(axis.name), mesh))
    copies = _rest(every_axis, all_axes(result))
    # Groups of copies come last, when devices are grouped by all dimensions that stay where they are.
    in_place = {axis for sources, after in dims if all(before == after for before in sources) for axis in after}
    *orders, wanted = ((*all_axes(layout), *_rest(every_axis, all_axes(layout))) for layout in layouts)
    sizes = [math.prod(local_shape(v.type.shape, layout, mesh)) for v, layout in zip(op.operands, layouts)]
    orders = [order for order, size in zip(orders, sizes) if size == max(sizes)]
    sums: list[Sequence[int]] = [op.attributes["lhs_contracting_dimensions"], op.attributes["rhs_contracting_dimensions"]]
    is_nested = sum(axis.size > 1 for axis in mesh.axes) >= NESTED_GROUPS
    for operand, contracting in zip(layouts, sums):
        for summed in _unions([operand[d] for d in contracting]):
            moved = [after for sources, after in dims if any(before not in (after, _rest(after, summed)) for before in sources)]
            if is_nested and any(moved):
                return True
            if summed in _unions(result):
                grouped = summed
            elif summed in _unions([*(_rest(axes, in_place) for axes in result), copies]):
                grouped = summed | in_place
            else:
                continue
            if moved and any(_rest(order, grouped) != _rest(wanted, grouped) for order in orders):
                return True
    return False


def _unions(dims: Sequence[Axes]) -> list[frozenset[AxisRef]]:
    """The axes that cut one or several of some dimensions."""
    cut = [axes for axes in dims if axes]
    chosen = (dims for count in range(1, len(cut) + 1) for dims in itertools.combinations(cut, count))
    return [frozenset(itertools.chain.from_iterable(dims)) for dims in chosen]


def _rest(axes: Axes, removed: Collection[AxisRef]) -> Axes:
    return tuple(axis for axis in axes if axis not in removed)


def _result_dims(op: Op, layouts: Sequence[Layout]) -> Iterator[tuple[Sequence[Axes], Axes]]:
    """The axes of each dimension of the result: in the operands that have it, and in the result."""
    a, (lhs, rhs, result) = op.attributes, layouts
    of_lhs: Sequence[int] = a["lhs_batching_dimensions"]
    of_rhs: Sequence[int] = a["rhs_batching_dimensions"]
    free = [(lhs[d],) for d in range(len(lhs)) if d not in of_lhs and d not in a["lhs_contracting_dimensions"]]
    free += [(rhs[d],) for d in range(len(rhs)) if d not in of_rhs and d not in a["rhs_contracting_dimensions"]]
    return zip([*((lhs[i], rhs[j]) for i, j in zip(of_lhs, of_rhs)), *free], result, strict=True)
