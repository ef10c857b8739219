"""Time of collectives: a latency per hop and a rate per link, on rings, tori and switches, over one or several kinds of links.

With V the bytes that a device holds of a value that is gathered, n devices, and w the bytes per second of a link in one direction:

* ring: `all_gather` (n-1)/n V / (2w), both directions being used; `reduce_scatter` the same, `all_reduce` both. Every device sends
  V/n to each other in an `all_to_all`; half of it crosses the middle of the ring: n V / (8w), V being what a device has.
* line (a ring that is not closed) and pair: one direction brings everything, w instead of 2w.
* torus: the parts of the data go along the dimensions in different orders, so that the rates of all of them add up; an `all_to_all` is
  bound by its longest dimension.
* switch: (n-1)/n V / w; an `all_to_all` brings as much as it receives.
* several kinds: the data are gathered over the slow links first, while they are small, and reduced over the fast ones first.

The formulas for rings and tori are those of How to Scale Your Model, chapter 3; of Thakur, Rabenseifner and Gropp (2005) for switches.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from shardy_py.cost.links import Level
from shardy_py.passes.export.collective_bytes import received

_Dims = tuple[tuple[int, int, float, float], ...]
"""Per dimension: devices, directions, bytes per second, seconds per hop."""


@dataclass(frozen=True)
class _Net:
    """Links that are used at once."""

    switched: bool
    dims: _Dims

    @property
    def size(self) -> int:
        return math.prod(n for n, *_ in self.dims)

    @property
    def speed(self) -> float:
        """Bytes per second that a device receives."""
        if self.switched:
            return min(rate for _, _, rate, _ in self.dims)
        full = max(rate for _, _, rate, _ in self.dims)  # slower dimensions share links of these
        return sum(directions * rate for _, directions, rate, _ in self.dims if rate == full)

    @property
    def delay(self) -> float:
        """Seconds until the first byte has reached every device."""
        if self.switched:
            return math.ceil(math.log2(self.size)) * max(hop for *_, hop in self.dims)
        return sum((n - 1) / directions * hop for n, directions, _, hop in self.dims)

    def all_to_all_seconds(self, size: float) -> float:
        """Seconds of the bytes of an all_to_all alone."""
        if self.switched:
            return size * (self.size - 1) / self.size / self.speed
        # Half of the data in one half of a dimension crosses its middle, over as many links as it has directions.
        return max(n * size / (4 * directions * rate) for n, directions, rate, _ in self.dims)


KINDS = ("all_gather", "reduce_scatter", "all_reduce", "all_to_all", "collective_permute")
"""The kinds of collectives, as the SDY dialect names them."""


def received_bytes(kind: str, group_size: int, operand_bytes: int) -> int:
    """Bytes that a device receives in a collective whose operand has so many bytes on it.

    Example:
        >>> [received_bytes(kind, 4, 1024) for kind in KINDS]
        [3072, 768, 1536, 768, 1024]
    """
    after = operand_bytes * group_size if kind == "all_gather" else operand_bytes
    return received(kind, group_size, operand_bytes, after)


def collective_seconds(kind: str, operand_bytes: float, levels: Sequence[Level]) -> float:
    """Seconds of a collective over the links `levels` (those of one name and kind at once); 0 for one device or an unknown kind.

    Example:
        >>> from shardy_py.cost.links import Links
        >>> ring = Level(Links("ring", 4.5e10, 0.0), 16)
        >>> round(collective_seconds("all_gather", 1e9, [ring]), 4)  # 15 GB by two links of 45 GB/s
        0.1667
    """
    nets = _nets(tuple(levels))
    run = _KINDS.get(kind)
    if not nets or run is None or operand_bytes <= 0:
        return 0.0
    return min(run(operand_bytes, order) for order in itertools.permutations(nets))


@functools.lru_cache(1 << 10)
def _nets(levels: tuple[Level, ...]) -> tuple[_Net, ...]:
    """The levels grouped into those that are used at once."""
    groups: dict[tuple[str, bool], list[tuple[int, int, float, float]]] = {}
    for level in levels:
        links = level.links
        dims = [(n, directions, links.bandwidth, links.latency) for n, directions in links.ways(level.size)]
        if dims:
            groups.setdefault((links.name, links.kind == "switch"), []).extend(dims)
    return tuple(_Net(switched, tuple(dims)) for (_, switched), dims in groups.items())


def _all_gather(size: float, inner_first: Sequence[_Net]) -> float:
    seconds = 0.0
    for net in reversed(inner_first):
        seconds += net.delay + size * (net.size - 1) / net.speed
        size *= net.size
    return seconds


def _reduce_scatter(size: float, inner_first: Sequence[_Net]) -> float:
    seconds = 0.0
    for net in inner_first:
        size /= net.size
        seconds += net.delay + size * (net.size - 1) / net.speed
    return seconds


def _all_reduce(size: float, inner_first: Sequence[_Net]) -> float:
    return 2 * _reduce_scatter(size, inner_first)


def _all_to_all(size: float, inner_first: Sequence[_Net]) -> float:
    return sum(net.delay + net.all_to_all_seconds(size) for net in inner_first)


def _permute(size: float, inner_first: Sequence[_Net]) -> float:
    """To a neighbour, over the slowest links, one in each dimension."""
    return max(hop + size / rate for net in inner_first for _, _, rate, hop in net.dims)


_KINDS: dict[str, Callable[[float, Sequence[_Net]], float]] = {
    "all_gather": _all_gather,
    "reduce_scatter": _reduce_scatter,
    "all_reduce": _all_reduce,
    "all_to_all": _all_to_all,
    "collective_permute": _permute,
}
