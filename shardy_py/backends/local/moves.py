"""Windows of one array by one exchange: what slices, pads, rotations and chains of them read along sharded dimensions."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from jax import lax
from jax import numpy as jnp
from jax.extend.core import Literal, Primitive

from shardy_py.backends.local import halo
from shardy_py.backends.local.local_rule import Builder, Equation, LocalContext, LocalRule, affine, is_before, make_rule, positions

Array = Any

windows_p = Primitive("windows")
"""Several windows of an array: the parameter `places` has the `WindowPlace` of each in each dimension. Only its local rule runs it."""
windows_p.multiple_results = True

FILL, ANY = -1, -2
"""In place of the start of a run: the fill of the window, or anything."""

Runs = tuple[tuple[int, int], ...]
"""Start in an array, or `FILL` or `ANY`, and length of each run of elements of a dimension."""


class WindowPlace(NamedTuple):
    """A dimension of a window: element i is element `start + i` of a line, and the fill outside of `low` to `high`.

    Attributes:
        low: Where its elements begin, if the fill is in front of them; else 0.
        high: Where they end, if the fill is behind them; else `size`.
    """

    origin: int
    line: Runs
    start: int
    size: int
    low: int
    high: int


def whole(size: int) -> WindowPlace:
    """The window that is a whole dimension."""
    return WindowPlace(0, ((0, size),), 0, size, 0, size)


def around(size: int, start: int, length: int, low: int = 0, high: int | None = None) -> WindowPlace:
    """A window of a dimension whose end is followed by its beginning."""
    return WindowPlace(-size, ((0, size),) * 3, start, length, low, length if high is None else high)


@functools.lru_cache(maxsize=4096)
def place(runs: Runs, size: int) -> WindowPlace | None:
    """The window of some runs of a dimension of a size; None where the fill lies between elements.

    Example:
        >>> place(((FILL, 1), (0, 7)), 8)
        WindowPlace(origin=0, line=((0, 8),), start=-1, size=8, low=1, high=8)
        >>> place(((7, 1), (0, 7)), 8).start
        -1
    """
    total, core, ends, filled = sum(length for _, length in runs), list(runs), [0, 0], [False, False]
    for at in (0, -1):
        while core and core[at][0] < 0:
            start, length = core.pop(at)
            ends[at] += length
            filled[at] |= start == FILL
    if not core or any(start < 0 for start, _ in core):
        return None
    first, low, high = core[0][0], ends[0] if filled[0] else 0, total - ends[1] if filled[1] else total
    if len(core) == 1:
        return WindowPlace(0, ((0, size),), first - ends[0], total, low, high)
    if total <= size and all(start + length == size and not after for (start, length), (after, _) in itertools.pairwise(core)):
        return around(size, (first if 2 * first < size else first - size) - ends[0], total, low, high)
    return WindowPlace(0, tuple(core), -ends[0], total, low, high)


@functools.lru_cache(maxsize=4096)
def exchange(size: int, at: WindowPlace, further: int, num_shards: int) -> halo.Exchange:
    """The exchange from blocks of a dimension to blocks of a window, and of those that begin up to so many elements behind it.

    Example:
        >>> exchange(16, place(((15, 1), (0, 15)), 16), 0, 4).received
        1
    """
    have, position, block = [], at.origin, -(-at.size // num_shards)
    for run, (start, length) in enumerate(at.line):
        shift = position - start
        for h in halo.blocks(size, num_shards):
            low, high = max(h.start, start), min(h.stop, start + length)
            if low < high:
                have.append(halo.Have(h.base + shift, low + shift, high + shift, h.device, run))
        position += length
    return halo.exchange(tuple(have), tuple(at.start + t * block for t in range(num_shards)), block + further, -(-size // num_shards))


Cluster = tuple[halo.Exchange, int, tuple[int, ...]]
"""An exchange along a dimension, where the first window that it brings begins, and the numbers of all of these."""


@functools.lru_cache(maxsize=4096)
def clusters(size: int, places: tuple[WindowPlace, ...], members: tuple[int, ...], num_shards: int) -> tuple[Cluster, ...]:
    """The exchanges of the windows of a dimension: neighbours come together where that sends no more than one after the other."""
    result: list[Cluster] = []
    for i in sorted(members, key=lambda i: (places[i][:2], places[i].start)):
        at = places[i]
        alone = exchange(size, at, 0, num_shards)
        if result and places[result[-1][2][0]][:2] == at[:2]:
            before, start, others = result[-1]
            both = exchange(size, places[others[0]], at.start - start, num_shards)
            if both.received <= before.received + alone.received:
                result[-1] = both, start, (*others, i)
                continue
        result.append((alone, at.start, (i,)))
    return tuple(result)


def windows(equation: Equation) -> LocalRule | None:
    """Dimensions of which windows are not the whole fetch what a device's block of any of them lacks; the others pass through."""
    shape, _ = equation.shapes
    rank, itemsize = range(len(shape)), jnp.dtype(equation.dtypes[0]).itemsize
    places: tuple[tuple[WindowPlace, ...], ...] = equation.params["places"]
    moved = {i: tuple(d for d in rank if of[d] != whole(shape[d])) for i, of in enumerate(places)}
    every = [d for d in rank if any(d in dims for dims in moved.values())]
    alike = [tuple(i for i in moved if moved[i] == dims) for dims in dict.fromkeys(moved.values())]
    fills = any((at.low, at.high) != (0, at.size) for of in places for at in of)

    def split(d: int, members: tuple[int, ...], num_shards: int) -> tuple[Cluster, ...]:
        line = tuple(of[d] for of in places)
        if any(at.origin < 0 for at in line):
            line = tuple(around(shape[d], 0, shape[d]) if at == whole(shape[d]) else at for at in line)
        return clusters(shape[d], line, members, num_shards)

    def cost(num_shards: Sequence[int], dims: Sequence[int], members: tuple[int, ...], local: list[int]) -> int:
        total = 0
        for plan, _, part in split(dims[0], members, num_shards[dims[0]]) if dims else ():
            row = math.prod(n for d, n in enumerate(local) if d != dims[0]) * itemsize
            inner = [plan.length if d == dims[0] else n for d, n in enumerate(local)]
            total += plan.cost(row) * (num_shards[dims[0]] > 1) + cost(num_shards, dims[1:], part, inner)
        return total

    def cheapest(num_shards: Sequence[int]) -> tuple[int, list[tuple[int, ...]]]:
        """The bytes to receive, and the windows that come together: all, or those along the same dimensions, without corners."""
        dims, blocks = sorted(every, key=lambda d: num_shards[d] == 1), [-(-n // k) for n, k in zip(shape, num_shards)]
        return min((sum(cost(num_shards, dims, part, blocks) for part in parts), parts) for parts in ([tuple(moved)], alike))

    def run(local: LocalContext, arrays: list[Array]) -> list[Array]:
        x, fill = arrays
        results: list[Array] = [None] * len(places)

        def bring(x: Array, dims: Sequence[int], members: tuple[int, ...], starts: dict[int, int]) -> None:
            for plan, start, part in split(dims[0], members, local.num_shards(dims[0])) if dims else ():
                y = halo.run(x, dims[0], local.names(dims[0]), local, plan, fill if fills else None)
                bring(y, dims[1:], part, {**starts, dims[0]: start})
            for i in () if dims else members:
                results[i] = x
                for d, start in starts.items():
                    results[i] = halo.sliced(results[i], d, places[i][d].start - start, -(-places[i][d].size // local.num_shards(d)))
                for d, at in enumerate(places[i]):
                    results[i] = _filled(results[i], d, at, fill, local)

        for members in cheapest([local.num_shards(d) for d in rank])[1]:
            bring(x, sorted(every, key=lambda d: not local.names(d)), members, {})
        return results

    literal = equation.eqn.invars[1]
    is_zero = isinstance(literal, Literal) and not np.any(literal.val)
    rule = make_rule(shape, [rank, ()], [rank] * len(places), permutation=every)
    costs = (lambda num_shards: cheapest(num_shards)[0]) if every else None
    return LocalRule(rule, run, uneven=frozenset(rank), linear=((0,),) if is_zero else (), bytes_inside=costs)


def _filled(x: Array, d: int, at: WindowPlace, fill: Array, local: LocalContext) -> Array:
    """A block with the fill where the exchange has not put it beside the line."""
    below = at.low > 0 and at.start + at.low != at.origin
    above = at.high < at.size and at.start + at.high != at.origin + sum(length for _, length in at.line)
    if not below and not above:
        return x
    position = positions(x.shape, d, affine(local.index(d), x.shape[d]))
    inside = lax.ge(position, np.int32(at.low)) if below else is_before(position, at.high)
    inside = lax.bitwise_and(inside, is_before(position, at.high)) if below and above else inside
    return lax.select(inside, x, lax.broadcast(fill, x.shape))


LOCAL_RULES: dict[str, Builder] = {"windows": windows}
"""Primitive -> builder of its local rule."""
