"""Messages between devices for slices of dimensions that are cut."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardy_py.plan.memory.xla.slices import parcels, rounds


@pytest.mark.parametrize(
    ("start", "lengths"),
    [(0, [4, 4, 4, 2]), (16, [2, 2, 4, 2]), (32, [2, 4, 4, 2]), (48, [2, 2, 2, 2])],
)
def test_quarters_of_an_array_in_eight_pieces(start: int, lengths: list[int]) -> None:
    found = [max(p[3] for p in sent) - min(p[2] for p in sent) for sent in rounds(parcels(8, 2, start, start + 16, 1))]
    assert found == lengths  # as XLA's partitioner makes them of 64 elements on 8 devices


def test_pieces_that_lie_where_they_are_wanted_are_not_sent() -> None:
    assert not list(parcels(4, 4, 0, 16, 1))


@given(st.integers(1, 8), st.integers(1, 6), st.integers(0, 10), st.integers(0, 30), st.integers(1, 3))
def test_all_that_is_wanted_arrives_once(piece: int, made: int, start: int, count: int, stride: int) -> None:
    limit = start + count
    sent = list(parcels(piece, made, start, limit, stride))
    wanted = range(start, limit, stride)
    for i, element in enumerate(wanted):
        sender, receiver = element // piece, i // made
        covering = [p for p in sent if p[:2] == (sender, receiver) and p[2] <= element - sender * piece < p[3]]
        assert len(covering) == (sender != receiver)
    for together in rounds(iter(sent)):
        assert len({p[0] for p in together}) == len({p[1] for p in together}) == len(together)
