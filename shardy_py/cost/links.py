"""Links between devices, and how the devices of a mesh axis lie on a torus."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from shardy_py.errors import ShardyError


class LinkError(ShardyError):
    """Unknown links, or links that do not fit the mesh."""


@dataclass(frozen=True)
class Fabric:
    """Links of one kind, and the number of devices that they join.

    Attributes:
        kind: `ring` or `torus`: a device has two links, to the next and to the previous device, per dimension. `switch`: any device
            sends to any other at its full rate.
        bandwidth: Bytes per second in one direction: of one link of a ring or torus, of one device on a switch.
        latency: Seconds per hop of a ring or torus, per round of messages on a switch.
        reach: Largest number of devices that it joins: a pod, a node.
        dims: Dimensions of a torus.
        wrap: A dimension of a torus is closed to a ring where its size is a multiple of this.
        name: Its name, such as `ici`, `nvlink`, `dcn`.

    Example:
        >>> from shardy_py import Fabric
        >>> nvlink = Fabric("switch", bandwidth=450e9, reach=8, name="nvlink")
        >>> nvlink.reach
        8
    """

    kind: Literal["ring", "torus", "switch"]
    bandwidth: float
    latency: float = 1e-6
    reach: int = 1 << 62
    dims: int = 1
    wrap: int = 1
    name: str = "links"

    def __post_init__(self) -> None:
        _check(self)
        if self.reach < 1 or self.dims < 1 or self.wrap < 1:
            raise LinkError("reach, dims and wrap are whole numbers from one on", where=f"links {self.name!r}")


@dataclass(frozen=True)
class Links:
    """The links of the devices along one mesh axis, or along one part of it.

    Attributes:
        kind: As in `Fabric`.
        bandwidth: Bytes per second in one direction, of one link or, on a switch, of one device.
        latency: Seconds per hop, or per round of messages.
        dims: Devices per dimension of a ring (one dimension) or torus; their product is the number of devices along the axis. Empty for
            a switch, and for a ring of all of them.
        wrapped: Whether each of these dimensions closes to a ring; all do where this is empty.
        name: Links of one name are used at once by a collective over several axes; those of different names one after the other.

    Example:
        >>> Links("torus", 9e10, 1e-6, (4, 4)).speed(16)
        360000000000.0
    """

    kind: Literal["ring", "torus", "switch"]
    bandwidth: float
    latency: float = 1e-6
    dims: tuple[int, ...] = ()
    wrapped: tuple[bool, ...] = ()
    name: str = "links"

    def __post_init__(self) -> None:
        _check(self)
        if self.wrapped and len(self.wrapped) != len(self.dims):
            raise LinkError("wrapped says something for each of dims, or nothing", where=f"links {self.name!r}")
        if any(n < 1 for n in self.dims):
            raise LinkError(f"dims are {self.dims}", where=f"links {self.name!r}", why="sizes are whole numbers from one on")

    def ways(self, size: int) -> tuple[tuple[int, int], ...]:
        """Size of each dimension above one and the directions in which a device sends along it: two on a ring, one on a line or a pair.

        Args:
            size: Devices that take part.
        """
        if self.kind == "switch":
            return ((size, 1),) if size > 1 else ()
        sizes = self.dims or (size,)
        wrapped = self.wrapped or (True,) * len(sizes)
        return tuple((n, 2 if closed and n > 2 else 1) for n, closed in zip(sizes, wrapped, strict=True) if n > 1)

    def speed(self, size: int) -> float:
        """Bytes per second that a device receives over all of these links at once.

        Args:
            size: Devices that take part.
        """
        return self.bandwidth * sum(directions for _, directions in self.ways(size))


@dataclass(frozen=True)
class Lattice:
    """How the devices along one mesh axis lie on the torus of their chips.

    Attributes:
        dims: Sides of the box that they fill; one dimension of all of them where they fill none.
        spans: Whether each of these goes over the whole torus, whose links may close it to a ring.
        share: The part of a link that a device has, where groups along the axis send across each other.
    """

    dims: tuple[int, ...]
    spans: tuple[bool, ...]
    share: float = 1.0

    def links(self, fabric: Fabric) -> Links:
        """The links of the axis on a fabric."""
        wrapped = tuple(spans and n % fabric.wrap == 0 for n, spans in zip(self.dims, self.spans))
        return Links(fabric.kind, fabric.bandwidth * self.share, fabric.latency, self.dims, wrapped, fabric.name)


def lattices(axes: Mapping[str, int], coordinates: Sequence[tuple[int, ...]]) -> dict[str, Lattice]:
    """Mesh axis -> how it lies on a torus, by the coordinates of the mesh's devices, in its order.

    Groups that fill no box send across the torus: of the straight cuts through it, the one with the fewest links for the bytes that cross
    it decides.

    Example:
        >>> tray = [(0, 0), (1, 0), (0, 1), (1, 1), (1, 3), (0, 3), (1, 2), (0, 2)]
        >>> lattices({"x": 2, "y": 4}, tray)["y"]
        Lattice(dims=(2, 2), spans=(True, False), share=1.0)
        >>> lattices({"x": 2, "y": 4}, tray)["x"]  # four pairs, which all cross the middle, where there are two links
        Lattice(dims=(2,), spans=(False,), share=0.5)
    """
    grid = np.array(coordinates).reshape(*axes.values(), -1)
    extents = np.ptp(grid.reshape(len(coordinates), -1), axis=0) + 1
    out: dict[str, Lattice] = {}
    for number, (axis, size) in enumerate(axes.items()):
        groups = np.moveaxis(grid, number, -2).reshape(-1, size, len(extents))
        sides = np.ptp(groups, axis=1) + 1
        if (sides == sides[0]).all() and sides[0].prod() == size:
            long = sides[0] > 1
            out[axis] = Lattice(tuple(sides[0][long].tolist()), tuple((sides[0] == extents)[long].tolist()))
            continue
        share = 1.0
        for dim in range(len(extents)):
            places = grid[..., dim]
            for low in range(places.min(), places.max()):
                below = (groups[..., dim] <= low).sum(1)
                crossing = below[(below > 0) & (below < size)]
                needed = np.maximum(crossing, size - crossing).sum() / (size - 1)
                share = min(share, float((places == low).sum() / needed)) if needed else share
        out[axis] = Lattice((size,), (False,), share)
    return out


def ring(sizes: Mapping[str, int], axes: Sequence[str], coordinates: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    """The devices along axes of a mesh in the order of a ring: each beside the next if they fill a rectangle, else as in the mesh.

    Example:
        >>> ring({"x": 2, "y": 4}, ["y"], [(0, 0), (1, 0), (0, 1), (1, 1), (1, 3), (0, 3), (1, 2), (0, 2)])
        (2, 3, 1, 0)
    """
    order = tuple(range(math.prod(sizes[axis] for axis in axes)))
    if not coordinates:
        return order
    grid = np.moveaxis(np.array(coordinates).reshape(*sizes.values(), -1), [list(sizes).index(axis) for axis in axes], range(len(axes)))
    places = grid.reshape(len(order), -1, grid.shape[-1])[:, 0]
    extents = np.ptp(places, axis=0) + 1
    long = sorted(np.flatnonzero(extents > 1), key=lambda dim: extents[dim] % 2)
    if len(long) != 2 or extents.prod() != len(order) or len(order) % 2:
        return order
    at = {tuple(place): device for device, place in enumerate((places - places.min(0))[:, long].tolist())}
    rows, columns = extents[long]
    there = [(r, c) for r in range(rows) for c in (range(1, columns) if r % 2 == 0 else range(columns - 1, 0, -1))]
    return tuple(at[place] for place in (*there, *((r, 0) for r in reversed(range(rows)))))


@dataclass(frozen=True)
class Level:
    """A number of devices and the links between them."""

    links: Links
    size: int


AxisLinks = Mapping[str, tuple[Level, ...]]
"""Mesh axis -> the links it lies on, the fastest (innermost) first; axes of size 1 on none."""


def split(size: int, parts: int) -> tuple[int, ...]:
    """A number as a product of at most `parts` factors of nearly equal size, the largest first.

    Example:
        >>> split(64, 3), split(32, 2), split(7, 2)
        ((4, 4, 4), (8, 4), (7,))
    """
    if parts <= 1:
        return (size,)
    first = min((n for n in range(1, size + 1) if size % n == 0 and n**parts >= size), default=size)
    rest = split(size // first, parts - 1)
    return tuple(n for n in sorted((first, *rest), reverse=True) if n > 1) or (1,)


def levels_of(axes: Sequence[tuple[str, int]], layout: AxisLinks, sizes: Mapping[str, int]) -> tuple[Level, ...]:
    """The levels of the devices that exchange data over some axes.

    A part of an axis is taken to lie as the whole axis does, on its fastest links first.
    """
    levels: list[Level] = []
    for axis, count in axes:
        if count == sizes.get(axis):
            levels += layout[axis]
            continue
        remaining = count
        for level in layout.get(axis, ()):
            inside = math.gcd(remaining, level.size)
            if inside > 1:
                levels.append(Level(_part(level.links, level.size, inside), inside))
            remaining //= inside
    return tuple(levels)


def _part(links: Links, size: int, inside: int) -> Links:
    """The links of some of the devices on an axis: a line where they are not all of a dimension."""
    if links.kind == "switch" or inside == size:
        return links
    return replace(links, dims=(inside,), wrapped=(False,))


def _check(links: Fabric | Links) -> None:
    """Checks what all links have."""
    if not (isinstance(links.bandwidth, int | float) and 0 < links.bandwidth < math.inf):  # pyright: ignore[reportUnnecessaryIsInstance]
        why = "it is a positive number of bytes per second"
        raise LinkError(f"bandwidth is {links.bandwidth!r}", where=f"links {links.name!r}", why=why)
    if links.kind not in ("ring", "torus", "switch"):
        raise LinkError(f"unknown kind of links {links.kind!r}", why="known are 'ring', 'torus', 'switch'")
    if not 0 <= links.latency < math.inf:
        raise LinkError(f"latency is {links.latency!r}", where=f"links {links.name!r}", why="it is a number of seconds, zero or more")
