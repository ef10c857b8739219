"""Ops that a compiler expands to several steps, each with arrays of its own.

The expansions are those of XLA for CPUs; other compilers do alike, with other scratch.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from shardy_py.cost.liveness.graph import Kind, Region
from shardy_py.dialect.axis import num_shards
from shardy_py.ir import Op, Value
from shardy_py.ir.types import element_bits, moves_elements
from shardy_py.partition.windows import is_cumulative, windows_of_convolution, windows_of_reduction
from shardy_py.passes.dataflow import get_sharding
from shardy_py.plan.memory.xla.halo import extended
from shardy_py.plan.memory.xla.offsets import bounded, cuts, offset, positions, slice_of_device
from shardy_py.plan.memory.xla.reader import LIBRARY_ELEMENTS, Expansion, XlaReader
from shardy_py.plan.memory.xla.slices import sliced


def _finish(reader: XlaReader, op: Op, value: int) -> None:
    reader.numbers[op.result] = value
    reader.graph.origins.setdefault(value, op.result)


def _operands(reader: XlaReader, op: Op) -> list[int]:
    return [reader.numbers[v] for v in op.operands]


def _is_inner(shape: Sequence[int], dim: int) -> bool:
    """Whether dimensions in front of this one have more than one element."""
    return math.prod(shape[:dim]) > 1


def _all_gather(reader: XlaReader, op: Op, region: Region) -> None:
    """Pieces are laid one behind the other: along an inner dimension, the array is transposed before and after."""
    _in_pieces(reader, op, region, reader.local_shape(op.result))


def _reduce_scatter(reader: XlaReader, op: Op, region: Region) -> None:
    """Pieces of the operand are contiguous; see `_all_gather`."""
    _in_pieces(reader, op, region, reader.local_shape(op.operands[0]))


def _in_pieces(reader: XlaReader, op: Op, region: Region, whole: Sequence[int]) -> None:
    """A collective along a dimension of a whole array, transposed where that is an inner one."""
    (x,) = _operands(reader, op)
    before, after = reader.local_shape(op.operands[0]), reader.local_shape(op.result)
    along = [d for d, (n, m) in enumerate(zip(before, after)) if n != m]
    is_transposed = any(_is_inner(whole, d) for d in along)
    size = reader.local_bytes(op.result)
    if is_transposed:
        maker = op.operands[0].defining_op
        order = (*along, *(d for d in range(len(whole)) if d not in along))
        # A reshape can give its result in any order; of others a copy is made, even along dimensions of one element.
        free = maker is not None and maker.name == "stablehlo.reshape" and not moves_elements(before, order)
        x = reader.emit(op, region, Kind.VIEW if free else Kind.SHAPE, [x], reader.graph.bytes[x], "turn")
    x = reader.emit(op, region, Kind.COLLECTIVE, [x], size)
    if is_transposed:
        x = reader.emit(op, region, Kind.SHAPE, [x], size, "back")
    _finish(reader, op, x)


def _all_to_all(reader: XlaReader, op: Op, region: Region) -> None:
    """Slices out the part for each device, and concatenates the received parts."""
    (x,) = _operands(reader, op)
    size = reader.local_bytes(op.result)
    before, after = reader.local_shape(op.operands[0]), reader.local_shape(op.result)
    parts = math.prod(n // m for n, m in zip(before, after) if m and n > m)
    if 1 < parts <= MAX_SEPARATE_PIECES:
        cut = [reader.emit(op, region, Kind.SHAPE, [x], size // parts, ("cut", i)) for i in range(parts)]
        joined = reader.emit_several(op, region, Kind.COLLECTIVE, cut, [size // parts] * parts)
    else:
        x = reader.emit(op, region, Kind.SHAPE, [x], reader.graph.bytes[x], "cut")
        joined = [reader.emit(op, region, Kind.COLLECTIVE, [x], size)]
    _finish(reader, op, reader.emit(op, region, Kind.SHAPE, joined, size, "join"))


MAX_SEPARATE_PIECES = 16
"""Largest number of pieces of an all-to-all that are nodes of their own."""


def _all_reduce(reader: XlaReader, op: Op, region: Region) -> None:
    """Parts of a reduction of several arrays at once are gathered, and reduced on every device."""
    reduction = op.operands[0].defining_op
    if reduction is None or reduction.name != "stablehlo.reduce" or len(reduction.results) < 2:
        region.nodes.append(reader.node(op))
        return
    totals = reader.reduced.get(reduction)
    sharding = get_sharding(reduction.operands[0])
    if totals is None and sharding is not None:
        mesh = sharding.mesh_in(reader.program.meshes)
        group = num_shards(op.attributes["reduction_axes"].axes, mesh)
        sizes = [reader.local_bytes(v) for v in reduction.results]
        parts = [
            reader.emit(op, region, Kind.COLLECTIVE, [reader.numbers[v]], size * group, ("parts", i))
            for i, (v, size) in enumerate(zip(reduction.results, sizes))
        ]
        totals = reader.reduced[reduction] = reader.emit_several(op, region, Kind.WHOLE, parts, sizes)
    _finish(reader, op, _operands(reader, op)[0] if totals is None else totals[op.operands[0].index])


def _convolution(reader: XlaReader, op: Op, region: Region) -> None:
    """Transposes images to channels last and kernels to outputs last; grouped convolutions do not share the transposed arrays."""
    a = op.attributes
    image, kernel = _operands(reader, op)
    shapes = [reader.local_shape(v) for v in op.operands]
    if a["batch_group_count"] == 1:  # of others XLA's partitioner has whole images
        image = extended(reader, op, region, image, windows_of_convolution(op))
    orders = (
        (a["input_batch_dimension"], *a["input_spatial_dimensions"], a["input_feature_dimension"]),
        (*a["kernel_spatial_dimensions"], a["kernel_input_feature_dimension"], a["kernel_output_feature_dimension"]),
        (a["output_batch_dimension"], *a["output_spatial_dimensions"], a["output_feature_dimension"]),
    )
    plain = tuple(range(op.result.type.rank))
    grouped = a.get("feature_group_count", 1) * a.get("batch_group_count", 1) > 1
    transposed = [
        x if order == plain else _transposed(reader, op, region, x, s, order) for x, s, order in zip((image, kernel), shapes, orders)
    ]
    if grouped:
        for node in region.nodes[len(region.nodes) - sum(order != plain for order in orders[:2]) :]:
            node.key = (node.key, reader.key(op, []))
    size = reader.local_bytes(op.result)
    x = reader.emit(op, region, Kind.WHOLE, transposed, size)
    if orders[2] != plain:
        x = reader.emit(op, region, Kind.SHAPE, [x], size, "output")
    _finish(reader, op, x)


def _transposed(reader: XlaReader, op: Op, region: Region, value: int, shape: Sequence[int], order: Sequence[int]) -> int:
    """Transposes a value: a copy where elements move, else a view."""
    moves = moves_elements(shape, order)
    array_type = tuple(shape[d] for d in order), "?"
    result = reader.emit(op, region, Kind.SHAPE if moves else Kind.VIEW, [value], reader.graph.bytes[value], array_type=array_type)
    region.nodes[-1].key = ("transpose" if moves else "view", tuple(order), array_type)
    if value in reader.graph.origins:
        reader.graph.origins[result] = reader.graph.origins[value]
    return result


def _is_plain(shape: Sequence[int], batch: Sequence[int], contracted: Sequence[int], free: Sequence[int]) -> bool:
    leading = tuple(batch) == tuple(range(len(batch)))
    return leading and len(contracted) <= 1 and len(free) <= 1 and all(shape[d] != 1 for d in batch)


def _dot(reader: XlaReader, op: Op, region: Region) -> None:
    """`DotDecomposer`: with several contracted or kept dimensions, operands are brought to batch, rows, columns first."""
    lhs, rhs = (_untransposed(reader, v) for v in op.operands)
    a = op.attributes
    shapes = [reader.local_shape(v) for v in op.operands]
    batch = a["lhs_batching_dimensions"], a["rhs_batching_dimensions"]
    contracted = a["lhs_contracting_dimensions"], a["rhs_contracting_dimensions"]
    free = [[d for d in range(len(shapes[i])) if d not in batch[i] and d not in contracted[i]] for i in (0, 1)]
    plain = [_is_plain(shapes[i], batch[i], contracted[i], free[i]) for i in (0, 1)]
    one = math.prod(shapes[0][d] for d in contracted[0]) == 1 or math.prod(reader.local_shape(op.result)) == 1
    if not all(plain) and not one:  # a matrix, or an array of matrices, can be read either way
        if not plain[0]:
            lhs = _transposed(reader, op, region, lhs, shapes[0], (*batch[0], *free[0], *contracted[0]))
        if not plain[1]:
            rhs = _transposed(reader, op, region, rhs, shapes[1], (*batch[1], *contracted[1], *free[1]))
    size = reader.local_bytes(op.result)
    if math.prod(shapes[0][d] for d in contracted[0]) == 1:
        _outer_product(reader, op, region)
    elif math.prod(reader.local_shape(op.result)) == 1:
        _inner_product(reader, op, region, lhs, rhs, math.prod(shapes[0]))
    elif all(plain):
        _finish(reader, op, reader.emit(op, region, Kind.WHOLE, [lhs, rhs], size))
    else:
        sizes = [[n for n in (shapes[0][d] for d in batch[0]) if n != 1], *([math.prod(shapes[i][d] for d in free[i])] for i in (0, 1))]
        array_type = tuple(n for part in sizes for n in part), op.result.type.dtype
        product = reader.emit(op, region, Kind.WHOLE, [lhs, rhs], size, array_type=array_type)
        _finish(reader, op, reader.emit(op, region, Kind.VIEW, [product], size))


def _outer_product(reader: XlaReader, op: Op, region: Region) -> None:
    """A product without a sum: both operands are broadcast and multiplied."""
    size = reader.local_bytes(op.result)
    repeated = [reader.emit(op, region, Kind.BROADCAST, [v], size, i) for i, v in enumerate(_operands(reader, op))]
    _finish(reader, op, reader.emit(op, region, Kind.ELEMENTWISE, repeated, size))
    region.nodes[-1].name = "stablehlo.multiply"


def _inner_product(reader: XlaReader, op: Op, region: Region, lhs: int, rhs: int, elements: int) -> None:
    """A product with one number as its result: an elementwise product, and a reduction."""
    size = reader.local_bytes(op.result)
    x = reader.emit(op, region, Kind.ELEMENTWISE, [lhs, rhs], size * elements, "product")
    region.nodes[-1].name = "stablehlo.multiply"
    kind = Kind.LIBRARY if elements >= LIBRARY_ELEMENTS and op.result.type.dtype == "float32" else Kind.REDUCE
    if kind is Kind.REDUCE:
        x = _in_windows(reader, op, region, x, (elements,), (0,), size)
    _finish(reader, op, reader.emit(op, region, kind, [x], size))


MAX_REDUCED_SIZE = 32
"""Largest size of a dimension that is reduced in one step."""


def _in_windows(reader: XlaReader, op: Op, region: Region, value: int, shape: Sequence[int], dims: Sequence[int], unit: int) -> int:
    """The partial sums of windows, of `unit` bytes per element, which `TreeReductionRewriter` reduces first."""
    while any(shape[d] > MAX_REDUCED_SIZE for d in dims):
        shape = [-(-n // min(n, MAX_REDUCED_SIZE)) if d in dims and n else n for d, n in enumerate(shape)]
        value = reader.emit(op, region, Kind.WHOLE, [value], math.prod(shape) * unit, ("windows", *shape))
    return value


def _reduce(reader: XlaReader, op: Op, region: Region) -> None:
    """Reduces windows first where dimensions are long."""
    node = reader.node(op)
    if node.kind is Kind.REDUCE and len(node.results) == 1:
        operand = op.operands[0]
        shape, unit = reader.local_shape(operand), element_bits(operand.type.dtype) // 8 or 1
        node.operands[0] = _in_windows(reader, op, region, node.operands[0], shape, op.attributes["dimensions"], unit)
    region.nodes.append(node)


def _broadcast(reader: XlaReader, op: Op, region: Region) -> None:
    """A view where only dimensions of one element are added, else a node."""
    if op.operands[0].type.size != op.result.type.size:
        region.nodes.append(reader.node(op))
        return
    (x,) = _operands(reader, op)
    _finish(reader, op, reader.emit(op, region, Kind.VIEW, [x], reader.local_bytes(op.result)))


def _concatenate(reader: XlaReader, op: Op, region: Region) -> None:
    """Pieces of arrays that are cut along the dimension are written into zeros, one after the other, which are added up afterwards."""
    d = op.attributes["dimension"]
    whole = reader.local_shape(op.result)[d] == op.result.type.shape[d]
    if not whole or not any(s is not None and d < s.rank and s.dims[d].axes for s in map(get_sharding, op.operands)):
        region.nodes.append(reader.node(op))
        return
    size = reader.local_bytes(op.result)
    x = reader.emit(op, region, Kind.BROADCAST, [], size)
    region.nodes[-1].key, region.nodes[-1].varying_dims = ("zeros", op.result.type, size), ()
    for i, v in enumerate(op.operands):
        starts = [offset(reader, op, region, axes, m) for e, axes, m in cuts(reader, v) if e == d]
        x = reader.emit(op, region, Kind.UPDATE, [x, reader.numbers[v], *starts], size, ("piece", i))
    _finish(reader, op, x)


def _divide(reader: XlaReader, op: Op, region: Region) -> None:
    """A division by a constant or by a broadcast becomes a multiplication by the inverse."""
    if _is_by_power_of_two(reader, op):
        _by_bits(reader, op, region)
        return
    x, y = _operands(reader, op)
    below = op.operands[1].defining_op
    repeated = below is not None and below.name == "stablehlo.broadcast_in_dim" and below.operands[0].type.size < op.result.type.size
    if below is None or "int" in op.result.type.dtype or not (repeated or below.name == "sdy.constant"):
        region.nodes.append(reader.node(op))
        return
    size = reader.local_bytes(op.result)
    if repeated:
        small = reader.numbers[below.operands[0]]
        small = reader.emit(op, region, Kind.EXPENSIVE, [small], reader.graph.bytes[small], "inverse")
        y = reader.emit(op, region, Kind.BROADCAST, [small], size, "repeated")
        region.nodes[-1].name = "stablehlo.broadcast_in_dim"
    _finish(reader, op, reader.emit(op, region, Kind.ELEMENTWISE, [x, y], size))
    region.nodes[-1].name = "stablehlo.multiply"


def _is_by_power_of_two(reader: XlaReader, op: Op) -> bool:
    number = reader.splats.get(op.operands[1])
    return "int" in op.result.type.dtype and isinstance(number, int) and number > 0 and not number & (number - 1)


def _by_bits(reader: XlaReader, op: Op, region: Region) -> None:
    """Elementwise and cheap: shifts and masks do it."""
    node = reader.node(op)
    node.kind = Kind.ELEMENTWISE
    region.nodes.append(node)


def _remainder(reader: XlaReader, op: Op, region: Region) -> None:
    """A remainder, by bit operations if the divisor is a power of two."""
    if _is_by_power_of_two(reader, op):
        _by_bits(reader, op, region)
    else:
        region.nodes.append(reader.node(op))


def _erfc(reader: XlaReader, op: Op, region: Region) -> None:
    """exp(-x * x) times a polynomial in 1 / x, or a polynomial in x."""
    x = reader.numbers[op.operands[0]]
    size = reader.local_bytes(op.result)
    steps = (("stablehlo.multiply", Kind.ELEMENTWISE), ("stablehlo.negate", Kind.ELEMENTWISE), ("stablehlo.exponential", Kind.EXPENSIVE))
    y = x
    for name, kind in steps:
        square = name == "stablehlo.multiply"
        y = reader.emit(op, region, kind, [x, x] if square else [y], size)
        region.nodes[-1].key = reader.key_of(name, {}, op.result, size)
    _finish(reader, op, reader.emit(op, region, Kind.EXPENSIVE, [x, y], size))


def _untransposed(reader: XlaReader, value: Value) -> int:
    """The operand of a product; of a transposed matrix, the matrix itself."""
    maker = value.defining_op
    if value.type.rank == 2 and maker is not None and maker.name == "stablehlo.transpose":
        return reader.numbers[maker.operands[0]]
    return reader.numbers[value]


def _transpose(reader: XlaReader, op: Op, region: Region) -> None:
    """Free where only dimensions of one element move, or where a product can be written transposed."""
    (x,) = _operands(reader, op)
    maker = op.operands[0].defining_op
    matrix = op.result.type.rank == 2
    if matrix and maker is not None and maker.name == "stablehlo.dot_general" and len(maker.result.uses) == 1:
        _finish(reader, op, x)
        return
    _finish(reader, op, _transposed(reader, op, region, x, reader.local_shape(op.operands[0]), op.attributes["permutation"]))


def _fft(reader: XlaReader, op: Op, region: Region) -> None:
    """XLA's partitioner transforms whole arrays on every device."""
    (x,) = _operands(reader, op)
    before, after = op.operands[0].type.bytes, op.result.type.bytes
    if before != reader.graph.bytes[x]:
        x = reader.emit(op, region, Kind.COLLECTIVE, [x], before, "gather")
    x = reader.emit(op, region, Kind.WHOLE, [x], after, "whole")
    size = reader.local_bytes(op.result)
    _finish(reader, op, x if size == after else reader.emit(op, region, Kind.SHAPE, [x], size, "slice"))


def _reduce_window(reader: XlaReader, op: Op, region: Region) -> None:
    """Runs on pieces with halos, or on gathered operands where windows reach beyond the neighbour; cumulative ops run on their pieces."""
    pieces, wholes = reader.local_shape(op.operands[0]), op.operands[0].type.shape
    windows = op.attributes["window_dimensions"]
    if is_cumulative(op):
        region.nodes.append(reader.node(op))
        return
    far = [d for d, n in enumerate(windows) if pieces[d] != wholes[d] and n - 1 > pieces[d]]
    if not far and len(op.results) == 1:
        value = extended(reader, op, region, reader.numbers[op.operands[0]], windows_of_reduction(op))
        region.nodes.append(reader.node(op))
        region.nodes[-1].operands[0] = value
        return
    node = reader.node(op)
    region.nodes.append(node)
    if not far:
        return
    shards = math.prod(wholes[d] // pieces[d] for d in far)
    gathered: dict[int, int] = {}
    for i, v in enumerate(node.operands[: len(node.results)]):
        if v not in gathered:
            gathered[v] = reader.emit(op, region, Kind.COLLECTIVE, [v], reader.graph.bytes[v] * shards, ("gather", i))
        node.operands[i] = gathered[v]
    region.nodes.append(region.nodes.pop(region.nodes.index(node)))
    for i, v in enumerate(op.results):
        reader.graph.bytes[node.results[i]] *= shards
        reader.numbers[v] = reader.emit(op, region, Kind.SHAPE, [node.results[i]], reader.local_bytes(v), ("slice", i))


def _add(reader: XlaReader, op: Op, region: Region) -> None:
    """add(x, scatter(zeros, ...)) becomes scatter(x, ...), as XLA simplifies it."""
    for i, v in enumerate(op.operands):
        scatter = v.defining_op
        if scatter is None or len(v.uses) > 1 or not _scatters_into_zeros(reader, scatter):
            continue
        node = next((n for n in region.nodes if n.kind is Kind.SCATTER and n.results == [reader.numbers[v]]), None)
        if node is not None:
            region.nodes.remove(node)
            node.operands[0] = reader.numbers[op.operands[1 - i]]
            region.nodes.append(node)
            _finish(reader, op, node.results[0])
            return
    region.nodes.append(reader.node(op))


def _scatters_into_zeros(reader: XlaReader, op: Op) -> bool:
    if op.name == "stablehlo.select_and_scatter":
        return op.primitive == "select_and_scatter_add"
    return op.name == "stablehlo.scatter" and op.attributes.get("body") == "stablehlo.add" and reader.splats.get(op.operands[0]) == 0


def _slice(reader: XlaReader, op: Op, region: Region) -> None:
    """A slice of everything is the array itself."""
    if op.operands[0].type == op.result.type:
        _finish(reader, op, reader.numbers[op.operands[0]])
    else:
        sliced(reader, op, region)


def _same_if_whole(reader: XlaReader, op: Op, region: Region) -> None:
    """Padding with nothing gives the array itself."""
    if op.operands[0].type == op.result.type and not any(map(any, (op.attributes.get(name, ()) for name in _PADDING))):
        _finish(reader, op, reader.numbers[op.operands[0]])
    else:
        region.nodes.append(reader.node(op))


_PADDING = ("edge_padding_low", "edge_padding_high", "interior_padding")

ANNOTATIONS = frozenset(("LayoutConstraint", "Sharding"))
"""Targets of custom calls that return their operand."""


def _custom_call(reader: XlaReader, op: Op, region: Region) -> None:
    """LAPACK works in place on column-major matrices, which are transposed before and after. Annotations are no calls."""
    target = op.attributes.get("call_target_name", "")
    if target in ANNOTATIONS and len(op.operands) == len(op.results) == 1:
        reader.numbers[op.result] = reader.numbers[op.operands[0]]
        return
    node = reader.node(op)
    if not target.startswith("lapack"):
        region.nodes.append(node)
        return
    node.operands = [
        reader.emit(op, region, Kind.SHAPE, [n], reader.graph.bytes[n], ("columns", i)) if v.type.rank > 1 else n
        for i, (v, n) in enumerate(zip(op.operands, node.operands))
    ]
    node.writes_over = next((i for i, v in reversed([*enumerate(op.operands)]) if v.type == op.results[0].type), None)
    region.nodes.append(node)
    for i, (v, n) in enumerate(zip(op.results, node.results)):
        if v.type.rank > 1:
            reader.numbers[v] = reader.emit(op, region, Kind.SHAPE, [n], reader.graph.bytes[n], ("rows", i))
            region.nodes[-1].is_relayout = True


def _select_and_scatter(reader: XlaReader, op: Op, region: Region) -> None:
    """`SelectAndScatterExpander`: positions of the selected elements are found by a reduce-window, then scattered to."""
    image, source, unit = _operands(reader, op)
    shape = reader.local_shape(op.operands[0])
    elements, selected_elements = math.prod(shape), math.prod(reader.local_shape(op.operands[1]))
    positions = [reader.emit(op, region, Kind.BROADCAST, [], 4 * elements, d) for d in range(len(shape))]
    selected = [
        reader.emit(op, region, Kind.WHOLE, [image, *positions], 4 * selected_elements, f"window {d}") for d in range(len(shape) + 1)
    ]
    indices = reader.emit(op, region, Kind.SHAPE, selected[1:], 4 * selected_elements * len(shape), "indices")
    size = reader.local_bytes(op.result)
    zeros = reader.emit(op, region, Kind.BROADCAST, [unit], size, "zeros")
    _finish(reader, op, reader.emit(op, region, Kind.SCATTER, [zeros, indices, source], size))


EXPANSIONS: Mapping[str, Expansion] = {
    **{f"{dialect}.all_gather": _all_gather for dialect in ("sdy", "stablehlo")},
    **{f"{dialect}.all_to_all": _all_to_all for dialect in ("sdy", "stablehlo")},
    **{f"{dialect}.reduce_scatter": _reduce_scatter for dialect in ("sdy", "stablehlo")},
    "chlo.erfc": _erfc,
    "sdy.all_reduce": _all_reduce,
    "sdy.all_slice": slice_of_device,
    "stablehlo.add": _add,
    "stablehlo.broadcast_in_dim": _broadcast,
    "stablehlo.concatenate": _concatenate,
    "stablehlo.convolution": _convolution,
    "stablehlo.custom_call": _custom_call,
    "stablehlo.divide": _divide,
    "stablehlo.dot_general": _dot,
    "stablehlo.dynamic_update_slice": bounded,
    "stablehlo.fft": _fft,
    "stablehlo.gather": bounded,
    "stablehlo.iota": positions,
    "stablehlo.pad": _same_if_whole,
    "stablehlo.reduce": _reduce,
    "stablehlo.reduce_window": _reduce_window,
    "stablehlo.remainder": _remainder,
    "stablehlo.scatter": bounded,
    "stablehlo.slice": _slice,
    "stablehlo.select_and_scatter": _select_and_scatter,
    "stablehlo.transpose": _transpose,
}
"""Op -> the function that appends its nodes."""
