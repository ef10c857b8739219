"""Where the pieces of a device begin: numbers that XLA's partitioner has computed from the number of the device.

Each is looked up in a table of all devices and multiplied. What reads such a number computes it, but in loops: what does not depend on the
trip is computed in front of them, so that every number is an array of its own that lives as long as the loop, as are positions counted from
it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from shardy_py.cost.liveness.graph import Kind, Region
from shardy_py.ir import Op, Value
from shardy_py.passes.dataflow import get_sharding
from shardy_py.plan.memory.reader import Reader

DEVICE = "partition_id"


def offset(reader: Reader, op: Op, region: Region, axes: Any, size: int, which: str = "first") -> int:
    """Where the piece of a device begins along a dimension; a value of 4 bytes.

    Args:
        reader: Of the program.
        op: What it is computed for.
        region: Where to.
        axes: The axes along which the dimension is cut.
        size: Elements of a piece.
        which: What of the piece: its first element, or another that is computed likewise.
    """
    device = reader.made(op, region, Kind.WHOLE, [], 4, form=((), "uint32"))
    node = region.nodes[-1]
    node.key, node.label = DEVICE, DEVICE
    found = reader.made(op, region, Kind.SHAPE, [device], 4, form=((), "int32"))
    region.nodes[-1].key = "offset", axes, size, which
    return found


def cuts(reader: Reader, value: Value) -> Iterator[tuple[int, Any, int]]:
    """The dimensions along which a value is cut, with their axes and the elements of a piece.

    Args:
        reader: Of the program.
        value: The value.
    """
    sharding = get_sharding(value)
    if sharding is None:
        return
    for d, (n, m, dim) in enumerate(zip(value.type.shape, reader.local_shape(value), sharding.dims)):
        if n != m:
            yield d, tuple(dim.axes), m


def positions(reader: Reader, op: Op, region: Region) -> None:
    """An iota along a dimension that is cut counts from where the piece begins."""
    along = op.attributes["iota_dimension"]
    cut = next(((axes, m) for d, axes, m in cuts(reader, op.result) if d == along), None)
    if cut is None:
        region.nodes.append(reader.node(op))
        return
    size = reader.local_bytes(op.result)
    counted = reader.made(op, region, Kind.BROADCAST, [], size, "counted")
    region.nodes[-1].along = (along,)
    start = offset(reader, op, region, *cut)
    start = reader.made(op, region, Kind.BROADCAST, [start], size, "start")
    region.nodes[-1].along = ()
    reader.numbers[op.result] = reader.made(op, region, Kind.ELEMENTWISE, [counted, start], size, "sum")


def slice_of_device(reader: Reader, op: Op, region: Region) -> None:
    """Each device keeps the part that begins where its piece does."""
    x = reader.numbers[op.operands[0]]
    shape = reader.local_shape(op.result)
    starts = [offset(reader, op, region, axes.axes, m) for axes, m in zip(op.attributes["slicing_axes"].lists, shape) if axes.axes]
    reader.numbers[op.result] = reader.made(op, region, Kind.SHAPE, [x, *starts], reader.local_bytes(op.result))


def bounded(reader: Reader, op: Op, region: Region) -> None:
    """What is read or written at places that are computed, if the piece has them: they are compared with its first element and its last.

    An array that is scattered to has its first subtracted from them.
    """
    value, parts = op.operands[0], _parts(op)
    found: list[int] = []
    for d, axes, m in cuts(reader, value):
        if parts is not None and parts[d] == value.type.shape[d]:
            continue
        for which in ("first",) if op.name == "stablehlo.scatter" else ("first", "last"):
            found.append(offset(reader, op, region, axes, m, which))
    node = reader.node(op)
    node.operands += found
    region.nodes.append(node)


def _parts(op: Op) -> Sequence[int] | None:
    """Elements of what is read or written at once along each dimension; None where all dimensions are looked at."""
    if op.name == "stablehlo.dynamic_update_slice":
        return op.operands[1].type.shape
    if op.name == "stablehlo.gather":
        return op.attributes.get("slice_sizes")
    whole = set(range(op.operands[0].type.rank)) - {*op.attributes["inserted_window_dims"], *op.attributes["input_batching_dims"]}
    return tuple(n if d in whole else 1 for d, n in enumerate(op.operands[0].type.shape))
