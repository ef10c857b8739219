"""What a device fetches from its neighbours for ops with windows along a dimension that is cut (`ReshardAsWindowedInput`)."""

from __future__ import annotations

from collections.abc import Sequence

from shardy_py.cost.liveness.graph import Kind, Region
from shardy_py.ir import Op
from shardy_py.partition.windows import Window, halo
from shardy_py.plan.memory.reader import Reader


def extended(reader: Reader, op: Op, region: Region, value: int, windows: Sequence[Window]) -> int:
    """The first operand of an op, as `value`, with what its windows need of other devices' pieces.

    Whole pieces come as they are, parts of pieces are cut out first; where all the pieces would have to come, they are gathered.

    Args:
        reader: The reader.
        op: The op.
        region: Where nodes go.
        value: The operand's piece.
        windows: Those of the op.
    """
    shape = list(reader.local_shape(op.operands[0]))
    whole, made = op.operands[0].type.shape, reader.local_shape(op.result)
    for window in windows:
        d = window.dim
        piece = shape[d]
        if piece == whole[d]:
            continue
        found = halo(window, piece, made[window.to], -(-whole[d] // piece))
        if found.left <= 0 and found.right <= 0:
            continue
        unit = reader.graph.bytes[value] // piece
        parts = [value]
        if found.left + piece + found.right > whole[d]:
            parts = [reader.made(op, region, Kind.COLLECTIVE, [value], unit * whole[d], ("gather", d))]
        else:
            for side, reach in (("left", found.left), ("right", found.right)):
                for hop in range(-(-reach // piece)):
                    part = min(piece, reach - hop * piece)
                    sent = value if part == piece else reader.made(op, region, Kind.SHAPE, [value], unit * part, ("edge", d, side))
                    parts.append(reader.made(op, region, Kind.COLLECTIVE, [sent], unit * part, ("from", d, side, hop)))
        shape[d] = found.extent
        value = reader.made(op, region, Kind.SHAPE, parts, unit * found.extent, ("extended", d), (tuple(shape), op.operands[0].type.dtype))
    return value
