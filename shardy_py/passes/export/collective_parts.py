"""Parts of mesh axes as plain tuples, for the search for collectives, which takes axes apart and puts them together a lot."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from shardy_py.dialect import AxisRef, Mesh
from shardy_py.dialect.axis import merged, normalized

Part = tuple[str, int, int]
"""`(axis, pre_size, size)`, as in `"x":(2)4`; a full axis has the pre-size 1 and its full size."""


def size_of(parts: Iterable[Part]) -> int:
    """Into how many pieces the parts cut a dimension."""
    product = 1
    for part in parts:
        product *= part[2]
    return product


def parts_of(axes: Iterable[AxisRef], mesh: Mesh) -> list[Part]:
    """The parts of axes, in order."""
    return [(axis.name, axis.pre_size or 1, axis.size_in(mesh)) for axis in axes]


def axes_of(parts: Iterable[Part], mesh: Mesh) -> tuple[AxisRef, ...]:
    """The axes that parts are, neighbouring parts of one axis merged."""
    return merged((normalized(AxisRef(*part), mesh) for part in parts), mesh)


def split_to_fit(part: Part, room: int) -> tuple[Part | None, Part | None]:
    """Splits a part into the piece that fits where `room` more pieces may be cut, and the rest.

    All of it where its size divides the room, the major part where the room divides its size, else nothing.

    Example:
        >>> split_to_fit(("x", 1, 8), 2)
        (('x', 1, 2), ('x', 2, 4))
    """
    name, pre, size = part
    if room == 1:
        return None, part
    if room % size == 0:
        return part, None
    if size % room == 0:
        return (name, pre, room), (name, pre * room, size // room)
    return None, part


def distribute(parts: Iterable[Part], room: list[int], split: Callable[[Part, Part, Part], None] | None = None) -> list[list[Part]]:
    """Puts parts into the first dimensions that have room for them, which gets less in place.

    Args:
        parts: Parts without a dimension, the most urgent first; what is left of one that is split goes first in the next dimension.
        room: Into how many more pieces each dimension may be cut.
        split: Told of a part that is split and of what it becomes.
    """
    left = list(parts)
    return [fill(left, room, dim, split) for dim in range(len(room))]


def fill(left: list[Part], room: list[int], dim: int, split: Callable[[Part, Part, Part], None] | None = None) -> list[Part]:
    """Takes from a list what fits into a dimension, as `distribute` does for each."""
    placed: list[Part] = []
    i = 0
    while i < len(left) and room[dim] > 1:
        part = left[i]
        fitting, rest = split_to_fit(part, room[dim])
        if fitting is None:
            i += 1
            continue
        del left[i]
        if rest is not None:
            left.insert(0, rest)
            if split is not None:
                split(part, fitting, rest)
        room[dim] //= fitting[2]
        placed.append(fitting)
    return placed


def split_in(orders: Sequence[list[Part]], part: Part, first: Part, second: Part) -> None:
    """Replaces a part by two, in whichever list has it."""
    for order in orders:
        if part in order:
            i = order.index(part)
            order[i : i + 1] = [first, second]
            return


def aligned(per_dim: Sequence[list[Part]], other: Sequence[list[Part]]) -> list[list[Part]] | None:
    """The parts of `per_dim`, cut wherever a part of `other` begins or ends within one; None where that cannot be done.

    It cannot where sizes do not divide each other, as with `"x":(1)2` and `"x":(1)3`.
    """
    cuts: dict[str, set[int]] = {}
    for parts in other:
        for name, pre, size in parts:
            cuts.setdefault(name, set()).update((pre, pre * size))
    result: list[list[Part]] = []
    for parts in per_dim:
        pieces: list[Part] = []
        for name, pre, size in parts:
            end = pre * size
            for cut in sorted(cuts.get(name, ())):
                if pre < cut < end:
                    if cut % pre or end % cut:
                        return None
                    pieces.append((name, pre, cut // pre))
                    pre = cut
            pieces.append((name, pre, end // pre))
        result.append(pieces)
    return result


def without_common_prefix(parts: list[Part], other: list[Part]) -> tuple[list[Part], list[Part]]:
    """Both lists without the parts that both begin with."""
    i = 0
    while i < len(parts) and i < len(other) and parts[i] == other[i]:
        i += 1
    return parts[i:], other[i:]
