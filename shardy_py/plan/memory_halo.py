"""What a device fetches from its neighbours for ops with windows along a dimension that is cut (`ReshardAsWindowedInput`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from shardy_py.cost.liveness.graph import Kind, Region
from shardy_py.ir import Op

if TYPE_CHECKING:
    from shardy_py.plan.memory_graph import Reader


@dataclass(frozen=True, slots=True)
class Window:
    """A window along one dimension.

    Attributes:
        dim: The dimension of the operand.
        to: That of the result.
        size: Positions of the window.
        stride: Of the window.
        low: Padding in front.
        base: Dilation of the operand.
        spread: Dilation of the window.
    """

    dim: int
    to: int
    size: int
    stride: int = 1
    low: int = 0
    base: int = 1
    spread: int = 1


@dataclass(frozen=True, slots=True)
class Halo:
    """What a piece is extended by.

    Attributes:
        left: Elements that come from pieces in front.
        right: Elements that come from pieces behind.
        extent: Elements that a piece has with what it needs of these.
    """

    left: int
    right: int
    extent: int


def halo(window: Window, piece: int, made: int, pieces: int) -> Halo:
    """The halo of the pieces of an operand.

    Args:
        window: The window.
        piece: Elements of a piece of the operand.
        made: Elements of a piece of the result.
        pieces: How many pieces there are.

    Example:
        >>> halo(Window(0, 0, 3, low=1), 2, 2, 4)
        Halo(left=1, right=1, extent=4)
    """
    left = right = extent = 0
    for i in range(pieces):
        start = i * made * window.stride - window.low
        end = start + (made - 1) * window.stride + (window.size - 1) * window.spread + 1
        first, last = -(-start // window.base), (end - 1) // window.base + 1
        left, right = max(left, i * piece - first), max(right, last - (i + 1) * piece)
        extent = max(extent, last - first)
    return Halo(left, right, extent)


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


def windows_of_convolution(op: Op) -> list[Window]:
    """The windows of a convolution, one per spatial dimension."""
    a = op.attributes
    sizes = (op.operands[1].type.shape[d] for d in a["kernel_spatial_dimensions"])
    low = (before for before, _ in a["padding"])
    return [
        Window(*of)
        for of in zip(
            a["input_spatial_dimensions"],
            a["output_spatial_dimensions"],
            sizes,
            a["window_strides"],
            low,
            a["lhs_dilation"],
            a["rhs_dilation"],
        )
    ]


def windows_of_reduction(op: Op) -> list[Window]:
    """The windows of a reduce-window, one per dimension."""
    a = op.attributes
    low = [before for before, _ in a["padding"]]
    parts = zip(a["window_dimensions"], a["window_strides"], low, a["base_dilations"], a["window_dilations"])
    return [Window(d, d, *of) for d, of in enumerate(parts)]
