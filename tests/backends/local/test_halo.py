"""Exchanges, run on lists."""

from __future__ import annotations

import random

import jax
import numpy as np
import pytest
from jax import numpy as jnp

from shardy_py.backends.local.halo import Exchange, Have, block_exchange, blocks, exchange, of_device
from shardy_py.backends.local.slicing import joined, mirror, steps
from shardy_py.backends.local.windows import LocalWindow, cut


def delivered(plan: Exchange) -> list[dict[int, int]]:
    """The elements of each device: position -> their number."""
    got: list[dict[int, int]] = [{} for _ in plan.starts]
    for slot in plan.slots:
        assert len({p.source for p in slot.pieces}) == len(slot.pieces)
        assert len({p.target for p in slot.pieces}) == len(slot.pieces)
        for piece in slot.pieces:
            assert piece.have.start <= piece.start < piece.stop <= piece.have.stop
            assert 0 <= piece.offset
            assert piece.offset + piece.length <= plan.block
            assert piece.length <= slot.length
            assert slot.is_own == (piece.source == piece.target)
            for position in range(piece.start, piece.stop):
                got[piece.target][position] = got[piece.target].get(position, 0) + 1
    return got


def check(plan: Exchange) -> None:
    first, stop = min(h.start for h in plan.have), max(h.stop for h in plan.have)
    if plan.is_gathered:
        assert plan.received == (len(plan.starts) - 1) * plan.block
        return
    for start, got in zip(plan.starts, delivered(plan), strict=True):
        assert got == dict.fromkeys(range(max(start, first), min(start + plan.length, stop)), 1)
    assert plan.received == sum(slot.length for slot in plan.slots if not slot.is_own)


def test_any_ranges():
    rng = random.Random(0)
    for _ in range(300):
        num_shards, n = rng.randint(1, 8), rng.randint(1, 40)
        length = rng.randint(1, 20)
        check(block_exchange(n, num_shards, [rng.randint(-10, n + 5) for _ in range(num_shards)], length))


def test_slices_windows_concatenations():
    rng = random.Random(1)
    for _ in range(300):
        num_shards, n = rng.randint(1, 8), rng.randint(1, 40)
        start, stride = rng.randrange(n), rng.randint(1, 4)
        check(steps(n, start, stride, rng.randint(1, -(-(n - start) // stride)), num_shards).exchange)
        check(mirror(n, num_shards))
        check(joined(tuple(rng.randint(1, 20) for _ in range(rng.randint(1, 4))), num_shards))
        size, low, footprint, dilation = rng.randint(1, 30), rng.randint(-3, 5), rng.randint(1, 6), rng.randint(1, 3)
        check(cut(LocalWindow(size, rng.randint(1, 30), rng.randint(1, 3), low, footprint, dilation), num_shards).exchange)


@pytest.mark.parametrize(
    ("n", "num_shards", "starts", "length", "rows"),
    [
        (16, 4, (0, 4, 8, 12), 4, 0),  # their own blocks
        (16, 4, (-1, 3, 7, 11), 6, 2),  # one element from either side
        (16, 4, (1, 5, 9, 13), 4, 1),
        (16, 4, (0, 2, 4, 6), 2, 4),  # the first half: two devices have it, two of two elements
        (16, 4, (0, 0, 0, 0), 16, 12),  # all of it: a gather
        (16, 4, (12, 12, 12, 12), 1, 3),  # one element to three
        (16, 4, (30, 30, 30, 30), 2, 0),  # nothing
    ],
)
def test_received(n, num_shards, starts, length, rows):
    assert block_exchange(n, num_shards, starts, length).received == rows


def test_halves_of_a_concatenation_share_slots():
    assert joined((64, 64), 4).received == 32


def test_runs_of_one_device():
    have = (Have(0, 0, 2, 0), Have(2, 2, 4, 1), Have(2, 4, 6, 0, 1), Have(4, 6, 8, 1, 1))
    check(exchange(have, (0, 4), 4, 4))
    assert [h.start for h in blocks(5, 4)] == [0, 2, 4, 5]


def test_numbers_of_devices():
    assert of_device([3, 3, None, 3], 2) == 3
    assert of_device([None, None], 0) == 0
    assert of_device([1, 5, 2], 1) == 5


@pytest.mark.parametrize("size", [4, 40])
@pytest.mark.parametrize("hole", [None, 2])
def test_entries_of_a_short_table_are_selected_one_by_one(size: int, hole: int | None) -> None:
    """A TPU reads an entry of a table in a kernel of its own, and may place it in HBM."""
    values: list[int | None] = [i * i % 7 for i in range(size)]
    if hole is not None:
        values[hole] = None
    lookup = jax.jit(lambda index: of_device(values, index))
    found = [int(lookup(jnp.int32(i))) for i in range(size)]
    assert [v for i, v in enumerate(found) if i != hole] == [v for i, v in enumerate(values) if i != hole]
    assert ("dynamic_slice" in str(jax.make_jaxpr(lookup)(np.int32(0)))) == (size == 40)
