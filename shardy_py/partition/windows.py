"""Windows along dimensions, and their halos where these are sharded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from shardy_py.ir.operation import Operation


@dataclass(frozen=True, slots=True)
class Window:
    """A window along one dimension."""

    dim: int
    to: int
    size: int
    stride: int = 1
    low: int = 0
    base: int = 1
    spread: int = 1


@dataclass(frozen=True, slots=True)
class Halo:
    """The numbers of elements from the pieces in front (`left`) and behind (`right`) that extend a piece."""

    left: int
    right: int
    extent: int


def halo(window: Window, piece: int, result_piece: int, pieces: int) -> Halo:
    """The halo of the pieces of an operand.

    Example:
        >>> halo(Window(0, 0, 3, low=1), 2, 2, 4)
        Halo(left=1, right=1, extent=4)
    """
    left = right = extent = 0
    for i in range(pieces):
        start = i * result_piece * window.stride - window.low
        end = start + (result_piece - 1) * window.stride + (window.size - 1) * window.spread + 1
        first, last = -(-start // window.base), (end - 1) // window.base + 1
        left, right = max(left, i * piece - first), max(right, last - (i + 1) * piece)
        extent = max(extent, last - first)
    return Halo(left, right, extent)


def windows_of_convolution(op: Operation) -> list[Window]:
    """The windows of a convolution, one per spatial dimension."""
    a = op.attributes
    dims: Sequence[int] = a["kernel_spatial_dimensions"]
    sizes = (op.operands[1].type.shape[d] for d in dims)
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


def windows_of_reduction(op: Operation) -> list[Window]:
    """The windows of a reduce-window, one per dimension."""
    a = op.attributes
    low = [before for before, _ in a["padding"]]
    parts = zip(a["window_dimensions"], a["window_strides"], low, a["base_dilations"], a["window_dilations"])
    return [Window(d, d, *of) for d, of in enumerate(parts)]


def windows_of_padding(op: Operation) -> list[Window]:
    """The windows of a pad, one per dimension: each of one element, on an operand that is dilated."""
    a = op.attributes
    amounts = zip(a["edge_padding_low"], a["interior_padding"], strict=True)
    return [Window(d, d, 1, low=low, base=between + 1) for d, (low, between) in enumerate(amounts)]


def is_cumulative(op: Operation) -> bool:
    """Whether a reduce-window has windows over all of a dimension, one for each element, and no others."""
    a, shape = op.attributes, op.results[0].type.shape
    long = [d for d, size in enumerate(a["window_dimensions"]) if size > 1]
    return len(long) == 1 and a["window_dimensions"][long[0]] == op.operands[0].type.shape[long[0]] == shape[long[0]]
