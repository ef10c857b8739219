"""Offsets of a device's pieces: numbers that XLA's partitioner computes from the id of the device.

Each is looked up in a table of all devices and multiplied. A reader of an offset computes it itself, except in loops: code that does not
depend on the trip is hoisted, so that every offset, and every array of positions counted from one, lives as long as the loop.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from shardy_py.cost.liveness.graph import Kind, Region
from shardy_py.ir import Op, Value
from shardy_py.passes.dataflow import get_sharding
from shardy_py.plan.memory.xla.reader import XlaReader

DEVICE = "partition_id"


def offset(reader: XlaReader, op: Op, region: Region, axes: Any, size: int, which: str = "first") -> int:
    """The offset of a device's piece along a dimension; a value of 4 bytes."""
    device = reader.emit(op, region, Kind.WHOLE, [], 4, array_type=((), "uint32"))
    node = region.nodes[-1]
    node.key, node.label = DEVICE, DEVICE
    begin = reader.emit(op, region, Kind.SHAPE, [device], 4, array_type=((), "int32"))
    region.nodes[-1].key = "offset", axes, size, which
    return begin


def cuts(reader: XlaReader, value: Value) -> Iterator[tuple[int, Any, int]]:
    """The sharded dimensions of a value, with their axes and the elements of a piece."""
    sharding = get_sharding(value)
    if sharding is None:
        return
    for d, (n, m, dim) in enumerate(zip(value.type.shape, reader.local_shape(value), sharding.dims)):
        if n != m:
            yield d, tuple(dim.axes), m


def positions(reader: XlaReader, op: Op, region: Region) -> None:
    """An iota along a sharded dimension counts from the offset of the piece."""
    along = op.attributes["iota_dimension"]
    cut = next(((axes, m) for d, axes, m in cuts(reader, op.result) if d == along), None)
    if cut is None:
        region.nodes.append(reader.node(op))
        return
    size = reader.local_bytes(op.result)
    counted = reader.emit(op, region, Kind.BROADCAST, [], size, "counted")
    region.nodes[-1].varying_dims = (along,)
    start = offset(reader, op, region, *cut)
    start = reader.emit(op, region, Kind.BROADCAST, [start], size, "start")
    region.nodes[-1].varying_dims = ()
    reader.numbers[op.result] = reader.emit(op, region, Kind.ELEMENTWISE, [counted, start], size, "sum")


def slice_of_device(reader: XlaReader, op: Op, region: Region) -> None:
    """Each device slices at the offset of its piece."""
    x = reader.numbers[op.operands[0]]
    shape = reader.local_shape(op.result)
    starts = [offset(reader, op, region, axes.axes, m) for axes, m in zip(op.attributes["slicing_axes"].lists, shape) if axes.axes]
    reader.numbers[op.result] = reader.emit(op, region, Kind.SHAPE, [x, *starts], reader.local_bytes(op.result))


def bounded(reader: XlaReader, op: Op, region: Region) -> None:
    """Reads or writes at computed indices, which are compared with the first and the last element of the piece.

    A scatter only subtracts the first from them.
    """
    value, parts = op.operands[0], _parts(op)
    bounds: list[int] = []
    for d, axes, m in cuts(reader, value):
        if parts is not None and parts[d] == value.type.shape[d]:
            continue
        for which in ("first",) if op.name == "stablehlo.scatter" else ("first", "last"):
            bounds.append(offset(reader, op, region, axes, m, which))
    node = reader.node(op)
    node.operands += bounds
    region.nodes.append(node)


def _parts(op: Op) -> Sequence[int] | None:
    """Size of the slice that is read or written at once along each dimension; None where every dimension is compared."""
    if op.name == "stablehlo.dynamic_update_slice":
        return op.operands[1].type.shape
    if op.name == "stablehlo.gather":
        return op.attributes.get("slice_sizes")
    whole = set(range(op.operands[0].type.rank)) - {*op.attributes["inserted_window_dims"], *op.attributes["input_batching_dims"]}
    return tuple(n if d in whole else 1 for d, n in enumerate(op.operands[0].type.shape))
