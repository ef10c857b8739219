"""References to mesh axes and to parts of them, and the algebra on single references.

A full axis of size n can be split from major to minor into sub-axes; `"x":(m)k` is the part of size k that comes after
parts of total size m. Functions take references of different axes too: they do not contain, overlap or merge, and they
can coexist.

Source: `AxisRefAttr` in Shardy's dialect.cc; specification 1.2 of the project follows it word for word.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, final

from shardy_py.dialect._intern import Interned, integer
from shardy_py.dialect._scan import Scanner, quoted
from shardy_py.dialect.mesh import Mesh

_UNBOUNDED = 1 << 62


@final
class AxisRef(Interned):
    """A mesh axis `"x"`, or a part of one `"x":(1)2`.

    References are ordered by name, then from major to minor; `sort_key` gives the order of a mesh instead.

    Args:
        name: Name of the mesh axis.
        pre_size: Product of the sizes of the parts before it; None, with `size`, for the full axis.
        size: Size of the part.

    Attributes:
        is_full: Whether it is the full axis.
        sub_axis: The text of the part, `(1)2`; "" for the full axis.
        next_pre_size: `pre_size * size`; None for the full axis, whose size only the mesh knows.

    Example:
        >>> from shardy_py import AxisRef
        >>> print(AxisRef("x"), AxisRef("x", 1, 2))
        "x" "x":(1)2
    """

    mnemonic = "axis_ref"

    name: str
    pre_size: int | None
    size: int | None
    is_full: bool
    sub_axis: str
    next_pre_size: int | None
    span: tuple[int, int]
    _text: str
    __slots__ = tuple(__annotations__)

    def __new__(cls, name: str, pre_size: int | None = None, size: int | None = None) -> AxisRef:  # noqa: D102
        if not isinstance(name, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f"an axis name must be a string, got {name!r}")
        name = str(name)
        part, after = "", None
        if pre_size is not None and size is not None:
            pre_size, size = integer(pre_size), integer(size)
            part, after = f"({pre_size}){size}", pre_size * size
        elif pre_size is not None or size is not None:
            raise TypeError(f"a sub-axis of {name!r} needs both pre_size and size, got {pre_size} and {size}")
        is_full = size is None
        text = quoted(name) if is_full else f"{quoted(name)}:{part}"
        within = (1, _UNBOUNDED) if after is None else (pre_size, after)
        return cls._interned(name, pre_size, size, is_full=is_full, sub_axis=part, next_pre_size=after, span=within, _text=text)

    def size_in(self, mesh: Mesh) -> int:
        """Number of shards along it."""
        return mesh.axis_size(self.name) if self.size is None else self.size

    def sort_key(self, mesh: Mesh | None = None) -> tuple[Any, int, int]:
        """Key that sorts references by mesh order, or by name where no mesh is given; then from major to minor."""
        first = self.name if mesh is None else mesh.axis_index(self.name)
        return (first, *self.span)

    def __lt__(self, other: AxisRef) -> bool:
        return (self.name, self.span) < (other.name, other.span)

    @classmethod
    def read(cls, scanner: Scanner) -> AxisRef:
        """Reads an axis or a part of one at the cursor."""
        name = scanner.string()
        if not scanner.accept(":"):
            return AxisRef(name)
        scanner.expect("(")
        pre_size = scanner.integer()
        scanner.expect(")")
        return AxisRef(name, pre_size, scanner.integer())

    def __str__(self) -> str:
        return self._text


Axes = tuple[AxisRef, ...]
"""Axes and parts of axes, major to minor."""

REDUCTIONS = ("sum", "max", "min")
"""How parts along unreduced axes are combined, in the order of `reduction_op`."""


class UnreducedAxes(tuple[AxisRef, ...]):
    """Unreduced axes whose parts are combined by a maximum or minimum; those of sums are a plain tuple."""

    reduction: str

    def __new__(cls, axes: Iterable[AxisRef], reduction: str) -> UnreducedAxes:  # noqa: D102
        unreduced = super().__new__(cls, axes)
        unreduced.reduction = reduction
        return unreduced

    def __eq__(self, other: object) -> bool:
        return type(other) is UnreducedAxes and self.reduction == other.reduction and super().__eq__(other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash((self.reduction, *self))

    def __reduce__(self) -> tuple[Any, ...]:
        return UnreducedAxes, (tuple(self), self.reduction)


def reduction_of(axes: Axes) -> str:
    """How parts along unreduced axes are combined."""
    return axes.reduction if type(axes) is UnreducedAxes else REDUCTIONS[0]


def reduced_like(axes: Iterable[AxisRef], other: Axes) -> Axes:
    """Unreduced axes whose parts are combined as those along others."""
    return UnreducedAxes(axes, other.reduction) if axes and type(other) is UnreducedAxes else tuple(axes)


def read_axes(scanner: Scanner, *, may_be_empty: bool) -> tuple[AxisRef, ...]:
    """Reads `{"x", "y":(1)2}` at the cursor."""
    return scanner.listed("{", "}", lambda: AxisRef.read(scanner), may_be_empty=may_be_empty)


def num_shards(axes: Iterable[AxisRef], mesh: Mesh) -> int:
    """Number of parts into which axes cut a dimension together."""
    size = 1
    for axis in axes:
        size *= axis.size_in(mesh)
    return size


def bounds(axis: AxisRef, mesh: Mesh) -> tuple[int, int]:
    """`(pre_size, next_pre_size)`, for a full axis 1 and its size."""
    if axis.pre_size is None or axis.next_pre_size is None:
        return 1, mesh.axis_size(axis)
    return axis.pre_size, axis.next_pre_size


def contains(axis: AxisRef, other: AxisRef) -> bool:
    """Whether every part of `other` is in `axis`."""
    (begin, end), (start, stop) = axis.span, other.span
    return axis.name == other.name and begin <= start and stop <= end


def is_prefix_of(axis: AxisRef, other: AxisRef) -> bool:
    """Whether `axis` is the major part of `other`, or all of it."""
    return contains(other, axis) and (axis.pre_size or 1) == (other.pre_size or 1)


def overlaps(axis: AxisRef, other: AxisRef) -> bool:
    """Whether they share a part."""
    (begin, end), (start, stop) = axis.span, other.span
    return axis.name == other.name and begin < stop and start < end


def can_coexist(axis: AxisRef, other: AxisRef) -> bool:
    """Whether two references fit into one factorization of their axis, each as one or several neighbouring factors."""
    if axis.name != other.name or axis.is_full or other.is_full:
        return True
    (min_pre, max_pre), (min_next, max_next) = (sorted(pair) for pair in zip(axis.span, other.span, strict=True))
    if min_next > max_pre:
        return min_next % max_pre == 0 and max_pre % min_pre == 0 and max_next % min_next == 0
    return max_pre % min_next == 0


def overlap(axis: AxisRef, other: AxisRef) -> AxisRef | None:
    """The common part of two axes; None if they do not overlap or cannot coexist."""
    if not overlaps(axis, other) or not can_coexist(axis, other):
        return None
    if axis.is_full or other.is_full:
        return other if axis.is_full else axis
    begin = max(axis.span[0], other.span[0])
    return AxisRef(axis.name, begin, min(axis.span[1], other.span[1]) // begin)


def prefix_without_overlap(axis: AxisRef, other: AxisRef) -> AxisRef | None:
    """The part of `axis` that comes before `other`; all of it where they do not overlap, None where nothing is left."""
    if not can_coexist(axis, other):
        return None
    if not overlaps(axis, other):
        return axis
    pre, other_pre = axis.pre_size or 1, other.pre_size or 1
    if pre >= other_pre:
        return None
    return AxisRef(axis.name, pre, other_pre // pre)


def suffix_without_overlap(axis: AxisRef, other: AxisRef, mesh: Mesh) -> AxisRef | None:
    """The part of `axis` that comes after `other`; all of it where they do not overlap, None where nothing is left."""
    if not can_coexist(axis, other):
        return None
    if not overlaps(axis, other):
        return axis
    after, other_after = bounds(axis, mesh)[1], bounds(other, mesh)[1]
    if after <= other_after:
        return None
    return AxisRef(axis.name, other_after, after // other_after)


def greatest_common_prefix(axis: AxisRef, other: AxisRef) -> AxisRef | None:
    """The one of two axes that is a prefix of the other; None if neither is."""
    if not can_coexist(axis, other):
        return None
    if is_prefix_of(axis, other):
        return axis
    return other if is_prefix_of(other, axis) else None


def can_merge(axis: AxisRef, other: AxisRef) -> bool:
    """Whether two parts of an axis are neighbours, `axis` the major one."""
    return axis.name == other.name and axis.next_pre_size is not None and axis.next_pre_size == other.pre_size


def merge(axis: AxisRef, other: AxisRef, mesh: Mesh) -> AxisRef:
    """Merges neighbouring parts, to the full axis where these are all of it; requires `can_merge`."""
    if axis.pre_size is None or axis.size is None or other.size is None:
        raise ValueError(f"{axis} and {other} cannot be merged")
    return normalized(AxisRef(axis.name, axis.pre_size, axis.size * other.size), mesh)


def normalized(axis: AxisRef, mesh: Mesh) -> AxisRef:
    """The full axis where a sub-axis is as large as the axis, else `axis` itself."""
    if axis.size is not None and axis.size == mesh.shape.get(axis.name):
        return AxisRef(axis.name)
    return axis


def add_axis_or_merge(axes: list[AxisRef], axis: AxisRef, mesh: Mesh) -> None:
    """Appends `axis` to `axes` in place, or merges it with the last one where they are neighbouring parts."""
    if axes and can_merge(axes[-1], axis):
        axes[-1] = merge(axes[-1], axis, mesh)
    else:
        axes.append(axis)


def sort_and_merge(axes: Iterable[AxisRef], mesh: Mesh) -> tuple[AxisRef, ...]:
    """The references in mesh order, neighbouring parts of one axis merged."""
    return merged(sorted(axes, key=lambda axis: axis.sort_key(mesh)), mesh)


def set_difference(axes: Iterable[AxisRef], removed: Iterable[AxisRef], mesh: Mesh) -> tuple[AxisRef, ...]:
    """The parts of `axes`, in order, that are in none of `removed`.

    Example:
        >>> mesh = Mesh([("x", 8)])
        >>> set_difference([AxisRef("x")], [AxisRef("x", 2, 2)], mesh)
        ("x":(1)2, "x":(4)2)
    """
    ordered = sorted(removed)
    remainder: list[AxisRef] = []
    for axis in axes:
        rest: AxisRef | None = axis
        while rest is not None:
            taken = next((other for other in ordered if overlaps(other, rest)), None)
            if taken is None:
                remainder.append(rest)
                break
            prefix = prefix_without_overlap(rest, taken)
            if prefix is not None:
                remainder.append(prefix)
            rest = suffix_without_overlap(rest, taken, mesh)
    return tuple(remainder)


def is_prefix(axes: Axes, other: Axes) -> bool:
    """Whether `other` begins with `axes`, or equals it; the last of `axes` may be the major part of its mate."""
    return axes == other or is_strict_prefix(axes, other)


def is_strict_prefix(axes: Axes, other: Axes) -> bool:
    """Whether `other` begins with `axes` and goes on; the last of `axes` may be the major part of its mate.

    Example:
        >>> is_strict_prefix((AxisRef("x", 1, 2),), (AxisRef("x"),))
        True
    """
    if axes == other or len(axes) > len(other):
        return False
    if not axes:
        return True
    last = len(axes) - 1
    return axes[:last] == other[:last] and is_prefix_of(axes[last], other[last])


def merged(axes: Iterable[AxisRef], mesh: Mesh) -> Axes:
    """The same axes with neighbouring parts of one axis merged."""
    merged: list[AxisRef] = []
    for axis in axes:
        add_axis_or_merge(merged, axis, mesh)
    return tuple(merged)


def common_prefix_of_lists(axes: Sequence[AxisRef], other: Sequence[AxisRef]) -> tuple[AxisRef, ...]:
    """The longest list that both begin with; its last element may be a common prefix of two different references."""
    prefix: list[AxisRef] = []
    for a, b in zip(axes, other, strict=False):
        if a is not b:
            common = greatest_common_prefix(a, b)
            if common is not None:
                prefix.append(common)
            break
        prefix.append(a)
    return tuple(prefix)


def truncate_by_removing_overlaps(axes: Sequence[AxisRef], other: Sequence[AxisRef]) -> tuple[AxisRef, ...]:
    """The longest prefix of `axes` that overlaps nothing in `other`; its last element may be shortened."""
    for i, axis in enumerate(axes):
        rest: AxisRef | None = axis
        for b in other:
            rest = prefix_without_overlap(rest, b)
            if rest is None:
                return tuple(axes[:i])
        if rest is not axis:
            return (*axes[:i], rest)
    return tuple(axes)
