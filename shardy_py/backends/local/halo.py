"""Halo exchanges: ranges of a sharded dimension, sent to the devices that need them.

Every device says which range it wants. Its own part is sliced; the rest comes in as few `ppermute`s as send the least: each
device sends only what its receiver lacks. Where that would be as much as all of it, the dimension is gathered.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jax import lax
from jax import numpy as jnp

from shardy_py.backends.local.local_rule import LocalContext, affine, block_index, is_before, positions
from shardy_py.backends.local.reshard import all_gather_bits, as_bits
from shardy_py.dialect import AxisRef, Mesh
from shardy_py.dialect.devices import device_groups
from shardy_py.dialect.grouping import grouped
from shardy_py.partition.region.reshard_steps import COLLECTIVE_LAUNCH_BYTES

Array = Any


@dataclass(frozen=True, slots=True)
class Have:
    """A contiguous range of positions of a device; `base` is where its array would begin, `run` which of the device's runs it is."""

    base: int
    start: int
    stop: int
    device: int
    run: int = 0


@dataclass(frozen=True, slots=True)
class Piece:
    """A contiguous range of positions that one device sends to another."""

    have: Have
    target: int
    start: int
    stop: int

    @property
    def source(self) -> int:
        """The device that has it."""
        return self.have.device

    @property
    def offset(self) -> int:
        """The start of the piece in the array of its source."""
        return self.start - self.have.base

    @property
    def length(self) -> int:
        """Number of positions."""
        return self.stop - self.start


@dataclass(frozen=True, slots=True)
class Slot:
    """The pieces that one `ppermute` sends, at most one from and to each device, all as long as the longest; `is_own` sends nothing."""

    length: int
    pieces: tuple[Piece, ...]
    is_own: bool


@dataclass(frozen=True, slots=True)
class Exchange:
    """The exchange that brings every device the range it needs.

    Attributes:
        block: Elements along the dimension in each device's array.
    """

    have: tuple[Have, ...]
    starts: tuple[int, ...]
    length: int
    block: int
    slots: tuple[Slot, ...]
    is_gathered: bool
    received: int

    def cost(self, row: int) -> int:
        """Bytes that a device receives, and `COLLECTIVE_LAUNCH_BYTES` for each collective."""
        sends = 1 if self.is_gathered else sum(not slot.is_own for slot in self.slots)
        return self.received * row + COLLECTIVE_LAUNCH_BYTES * sends


def blocks(size: int, count: int) -> tuple[Have, ...]:
    """The ranges of devices in a dimension of `count` blocks.

    Example:
        >>> blocks(5, 2)
        (Have(base=0, start=0, stop=3, device=0, run=0), Have(base=3, start=3, stop=5, device=1, run=0))
    """
    b = -(-size // count)
    return tuple(Have(t * b, min(t * b, size), min((t + 1) * b, size), t) for t in range(count))


@functools.lru_cache(maxsize=4096)
def exchange(have: tuple[Have, ...], starts: tuple[int, ...], length: int, block: int) -> Exchange:
    """The cheapest exchange that supplies every device's range.

    Example:
        >>> halo = exchange(blocks(12, 3), (-1, 3, 7), 6, 4)
        >>> halo.received, [slot.length for slot in halo.slots]
        (2, [1, 4, 1])
    """
    pieces = [
        Piece(h, t, max(start, h.start), min(start + length, h.stop))
        for t, start in enumerate(starts)
        for h in have
        if max(start, h.start) < min(start + length, h.stop)
    ]
    by_hop, packed = _by_hop(pieces), _packed(pieces)
    slots = min((by_hop, packed), key=lambda slots: (_received(slots), len(slots)))
    received, whole = _received(slots), (len(starts) - 1) * block
    is_even = all(h.device == i and h.base == have[0].base + i * block for i, h in enumerate(have))
    if received and received >= whole and is_even:
        return Exchange(have, starts, length, block, (), True, whole)
    return Exchange(have, starts, length, block, slots, False, received)


def _received(slots: Sequence[Slot]) -> int:
    return sum(slot.length for slot in slots if not slot.is_own)


def _by_hop(pieces: Sequence[Piece]) -> tuple[Slot, ...]:
    """One slot for each distance from source to target, nearest to the left first."""
    hops = grouped(pieces, lambda piece: (piece.have.run, piece.source - piece.target))
    return tuple(_slot(hops[hop]) for hop in sorted(hops))


def _packed(pieces: Sequence[Piece]) -> tuple[Slot, ...]:
    """As few slots as first fit finds, long pieces first."""
    own = grouped((piece for piece in pieces if piece.source == piece.target), lambda piece: piece.have.run)
    slots: list[list[Piece]] = []
    for piece in sorted((p for p in pieces if p.source != p.target), key=lambda p: (-p.length, p.target, p.source)):
        for slot in slots:
            if all(p.source != piece.source and p.target != piece.target for p in slot):
                slot.append(piece)
                break
        else:
            slots.append([piece])
    return tuple(map(_slot, (*own.values(), *slots)))


def _slot(pieces: Sequence[Piece]) -> Slot:
    ordered = tuple(sorted(pieces, key=lambda p: p.target))
    return Slot(max(p.length for p in pieces), ordered, all(p.source == p.target for p in pieces))


def run(x: Array, dim: int, names: tuple[str, ...], local: LocalContext, plan: Exchange, fill: Any = None) -> Array:
    """Runs an exchange: this device's range of a dimension, with `fill` at positions that nobody has; anything if that is None."""
    index = block_index(names)
    if plan.is_gathered:
        return _masked(_from_all(all_gather_bits(x, names, dim, local.platform), dim, plan, index), dim, plan, index, fill)
    if not plan.slots:
        return _filled(x, dim, plan.length, fill)
    places = _places(plan)
    parts = [_sent(x, dim, names, local, plan, slot, index) for slot in plan.slots]
    if places is not None:
        return _masked(_joined(parts, places, dim, plan.length), dim, plan, index, fill)
    room = max(slot.length for slot in plan.slots)
    out = _filled(x, dim, plan.length + room, fill)
    for part, slot in zip(parts, plan.slots, strict=True):
        at: list[int | None] = [plan.length] * len(plan.starts)
        counts: list[int | None] = [0] * len(plan.starts)
        for piece in slot.pieces:
            at[piece.target] = piece.start - plan.starts[piece.target]
            counts[piece.target] = piece.length
        place = of_device(at, index)
        if any(count != slot.length for count in counts):
            old = lax.dynamic_slice_in_dim(out, place, slot.length, axis=dim, allow_negative_indices=False)
            part = lax.select(is_before(positions(part.shape, dim), of_device(counts, index)), part, old)
        out = lax.dynamic_update_slice_in_dim(out, part, place, axis=dim, allow_negative_indices=False)
    return lax.slice_in_dim(out, 0, plan.length, axis=dim)


def block_exchange(n: int, num_shards: int, starts: Sequence[int], length: int) -> Exchange:
    """The exchange from blocks of a dimension to ranges of one length."""
    return exchange(blocks(n, num_shards), tuple(starts), length, -(-n // num_shards))


def of_device(values: Sequence[int | None], index: Array) -> Array:
    """This device's entry of a table; arbitrary if it is None."""
    numbers = [(i, v) for i, v in enumerate(values) if v is not None]
    if not numbers:
        return 0
    (i0, v0), (i1, v1) = numbers[0], numbers[-1]
    if all(v == v0 for _, v in numbers):
        return v0
    if isinstance(index, int):
        return values[index]
    step, rest = divmod(v1 - v0, i1 - i0)
    if not rest and all(v == v0 + (i - i0) * step for i, v in numbers):
        return affine(index, step, v0 - i0 * step)
    return _looked_up(tuple(numbers), index)


MAX_SELECTS = 16
"""Scalar selects that are cheaper than a table. On TPU the entry of a table is an array: a kernel of a microsecond, which the compiler may
place in HBM, where the first array of a program costs a block that has room for all of its tuples."""


def _looked_up(numbers: tuple[tuple[int, int], ...], index: Array) -> Array:
    """The number of the last position up to an index."""
    changes = [(i, v) for (_, before), (i, v) in itertools.pairwise(numbers) if v != before]
    if len(changes) <= MAX_SELECTS:
        entry = np.int32(numbers[0][1])
        for i, v in changes:
            entry = lax.select(lax.ge(index, np.int32(i)), np.int32(v), entry)
        return entry
    table = np.zeros(numbers[-1][0] + 1, np.int32)
    table[[i for i, _ in numbers]] = [v for _, v in numbers]
    return lax.squeeze(lax.dynamic_slice(jnp.asarray(table), (index,), (1,), allow_negative_indices=False), (0,))


def padded(x: Array, dim: int, low: int, high: int) -> Array:
    """Pads both ends of a dimension."""
    if not low and not high:
        return x
    return lax.pad(x, np.zeros((), x.dtype), [(low, high, 0) if d == dim else (0, 0, 0) for d in range(x.ndim)])


def sliced(x: Array, dim: int, start: Array, length: int) -> Array:
    """Slices a range that lies within a dimension."""
    if isinstance(start, int):
        return lax.slice_in_dim(x, start, start + length, axis=dim) if (start, length) != (0, x.shape[dim]) else x
    return lax.dynamic_slice_in_dim(x, start, length, axis=dim, allow_negative_indices=False)


def _filled(x: Array, dim: int, length: int, fill: Any) -> Array:
    shape = [length if d == dim else n for d, n in enumerate(x.shape)]
    return lax.full(shape, 0 if fill is None else fill, x.dtype)


def _sent(x: Array, dim: int, names: tuple[str, ...], local: LocalContext, plan: Exchange, slot: Slot, index: Array) -> Array:
    """The piece of a slot that this device receives."""
    offsets: list[int | None] = [None] * len(plan.starts)
    for piece in slot.pieces:
        offsets[piece.source] = piece.offset
    x = padded(x, dim, 0, max(0, max(o + slot.length - plan.block for o in offsets if o is not None)))
    part = sliced(x, dim, of_device(offsets, index), slot.length)
    if slot.is_own:
        return part
    ordered = tuple(name for name in local.sizes if name in names)
    # `ppermute` counts devices along axes in the order of the mesh, in whatever order they are named.
    (places,) = device_groups(tuple(map(AxisRef, names)), Mesh([(name, local.sizes[name]) for name in ordered]))
    pairs = tuple([(places[p.source], places[p.target]) for p in slot.pieces])
    return as_bits(part, lambda y: lax.ppermute(y, ordered, pairs), local.platform)


def _places(plan: Exchange) -> tuple[int, ...] | None:
    """Start of each slot's pieces in the range, if equal for all devices and contiguous; None otherwise."""
    places: list[int] = []
    end = 0
    for slot in plan.slots:
        at = {piece.start - plan.starts[piece.target] for piece in slot.pieces}
        (place, *others) = at
        if others or (places and place != end) or place + slot.length > plan.length:
            return None
        places.append(place)
        end = place + slot.length
    return tuple(places)


def _joined(parts: Sequence[Array], places: Sequence[int], dim: int, length: int) -> Array:
    out = parts[0] if len(parts) == 1 else lax.concatenate(parts, dim)
    return padded(out, dim, places[0], length - places[0] - out.shape[dim])


def _from_all(whole: Array, dim: int, plan: Exchange, index: Array) -> Array:
    base = plan.have[0].base
    low = max(0, base - min(plan.starts))
    high = max(0, max(plan.starts) + plan.length - base - whole.shape[dim])
    return sliced(padded(whole, dim, low, high), dim, of_device([s - base + low for s in plan.starts], index), plan.length)


def _masked(x: Array, dim: int, plan: Exchange, index: Array, fill: Any) -> Array:
    """Replaces positions that no device has by `fill`."""
    if fill is None:
        return x
    first, stop = min(h.start for h in plan.have), max(h.stop for h in plan.have)
    below, above = min(plan.starts) < first, max(plan.starts) + plan.length > stop
    if not below and not above:
        return x
    position = positions(x.shape, dim, of_device(plan.starts, index))
    inside = lax.ge(position, np.int32(first)) if below else is_before(position, stop)
    if below and above:
        inside = lax.bitwise_and(inside, is_before(position, stop))
    return lax.select(inside, x, _filled(x, dim, x.shape[dim], fill))
