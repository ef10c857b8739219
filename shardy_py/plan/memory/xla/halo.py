"""Halos that a device fetches from its neighbours for windows along a sharded dimension (`ReshardAsWindowedInput`)."""

from __future__ import annotations

from collections.abc import Sequence

from shardy_py.cost.liveness.graph import Kind, Region
from shardy_py.ir import Op
from shardy_py.partition.windows import Window, halo
from shardy_py.plan.memory.xla.reader import XlaReader


def extended(reader: XlaReader, op: Op, region: Region, value: int, windows: Sequence[Window]) -> int:
    """The first operand of an op extended by the halos of its windows.

    Whole pieces are sent directly, parts of pieces are sliced first; where a halo needs all pieces, they are gathered.
    """
    shape = list(reader.local_shape(op.operands[0]))
    whole, result = op.operands[0].type.shape, reader.local_shape(op.result)
    for window in windows:
        d = window.dim
        piece = shape[d]
        if piece == whole[d]:
            continue
        overlap = halo(window, piece, result[window.to], -(-whole[d] // piece))
        if overlap.left <= 0 and overlap.right <= 0:
            continue
        unit = reader.graph.bytes[value] // piece
        parts = [value]
        if overlap.left + piece + overlap.right > whole[d]:
            parts = [reader.emit(op, region, Kind.COLLECTIVE, [value], unit * whole[d], ("gather", d))]
        else:
            for side, reach in (("left", overlap.left), ("right", overlap.right)):
                for hop in range(-(-reach // piece)):
                    part = min(piece, reach - hop * piece)
                    sent = value if part == piece else reader.emit(op, region, Kind.SHAPE, [value], unit * part, ("edge", d, side))
                    parts.append(reader.emit(op, region, Kind.COLLECTIVE, [sent], unit * part, ("from", d, side, hop)))
        shape[d] = overlap.extent
        value = reader.emit(
            op, region, Kind.SHAPE, parts, unit * overlap.extent, ("extended", d), (tuple(shape), op.operands[0].type.dtype)
        )
    return value
