"""Times of collectives: the formulas of the books, and what must hold of any."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardy_py.cost.collectives import collective_seconds
from shardy_py.cost.hardware import lay_out
from shardy_py.cost.hardware_table import hardware
from shardy_py.cost.links import Level, Links

KINDS = ("all_gather", "reduce_scatter", "all_reduce", "all_to_all", "collective_permute")
W = 4.5e10


def ring(n: int, latency: float = 0.0, **changes: object) -> Level:
    return Level(dataclasses.replace(Links("ring", W, latency), **changes), n)  # type: ignore[arg-type]


def switch(n: int, bandwidth: float = W, latency: float = 0.0, name: str = "links") -> Level:
    return Level(Links("switch", bandwidth, latency, name=name), n)


@pytest.mark.parametrize("n", [4, 8, 16])
def test_ring(n: int) -> None:
    """How to Scale Your Model, chapter 3: V / W_bidirectional for an all-gather, twice for an all-reduce, a quarter for an all-to-all."""
    whole = 1e9
    exact = (n - 1) / n * whole / (2 * W)
    assert collective_seconds("all_gather", whole / n, [ring(n)]) == pytest.approx(exact)
    assert collective_seconds("reduce_scatter", whole, [ring(n)]) == pytest.approx(exact)
    assert collective_seconds("all_reduce", whole, [ring(n)]) == pytest.approx(2 * exact)
    assert collective_seconds("all_to_all", whole / n, [ring(n)]) == pytest.approx(whole / (2 * W) / 4)
    assert collective_seconds("collective_permute", whole, [ring(n)]) == pytest.approx(whole / W)


def test_figures_of_the_scaling_book() -> None:
    """V / W of How to Scale Your Model for bf16[2048, 8192] on a ring of TPU v5e: 34 MB at 9e10 bytes per second are 373 microseconds."""
    level = Level(Links("ring", 4.5e10, 0.0), 16)
    whole = 2 * 2048 * 8192
    assert collective_seconds("all_gather", whole / 16, [level]) == pytest.approx(373e-6 * 15 / 16, rel=0.01)  # the book leaves (n-1)/n out


def test_line_and_pair() -> None:
    line = ring(8, dims=(8,), wrapped=(False,))
    assert collective_seconds("all_gather", 1e9, [line]) == pytest.approx(7e9 / W)
    assert collective_seconds("all_gather", 1e9, [ring(2)]) == pytest.approx(1e9 / W)
    assert collective_seconds("all_to_all", 1e9, [line]) == pytest.approx(8 * 1e9 / 4 / W)


def test_an_axis_that_shares_links_with_others_adds_none_to_theirs() -> None:
    square = Level(Links("torus", 4.5e10, 0.0, (2, 2), (False, False)), 4)
    across = Level(Links("torus", 2.25e10, 0.0, (2,), (False,)), 2)
    assert collective_seconds("all_gather", 9e9, [square, across]) == pytest.approx(7 * 9e9 / 9e10)  # a corner has two links


def test_torus_uses_all_dimensions() -> None:
    torus = Level(Links("torus", W, 0.0, (4, 4, 4)), 64)
    assert collective_seconds("all_gather", 1e6, [torus]) == pytest.approx(63e6 / (6 * W))
    flat = [ring(4), ring(4), ring(4)]
    assert collective_seconds("all_gather", 1e6, flat) == pytest.approx(63e6 / (6 * W))
    assert collective_seconds("all_to_all", 1e6, [torus]) == pytest.approx(4 * 1e6 / (8 * W))


def test_switch() -> None:
    assert collective_seconds("all_gather", 1e6, [switch(8)]) == pytest.approx(7e6 / W)
    assert collective_seconds("all_reduce", 8e6, [switch(8)]) == pytest.approx(2 * 7e6 / W)
    assert collective_seconds("all_to_all", 8e6, [switch(8)]) == pytest.approx(7e6 / W)


def test_h100_node() -> None:
    """An all-reduce of 1 GiB in a node: 2 * 7/8 GiB at 450 GB/s."""
    layout = lay_out({"model": 8}, hardware("h100"))
    assert collective_seconds("all_reduce", 1 << 30, layout["model"]) == pytest.approx(2 * 7 / 8 * (1 << 30) / 4.5e11, rel=0.01)


def test_slow_links_carry_the_reduced_or_not_yet_gathered() -> None:
    fast, slow = switch(8, 4e11, name="fast"), switch(16, 5e10, name="slow")
    gather = 15e6 / 5e10 + 7 * 16e6 / 4e11
    assert collective_seconds("all_gather", 1e6, [fast, slow]) == pytest.approx(gather)
    assert collective_seconds("all_gather", 1e6, [slow, fast]) == pytest.approx(gather)
    scatter = 7 / 8 * 1e9 / 4e11 + 15 / 16 * 1e9 / 8 / 5e10
    assert collective_seconds("reduce_scatter", 1e9, [fast, slow]) == pytest.approx(scatter)
    assert collective_seconds("all_reduce", 1e9, [fast, slow]) == pytest.approx(2 * scatter)


def test_latency() -> None:
    assert collective_seconds("all_gather", 1, [ring(8, 1e-6)]) == pytest.approx(3.5e-6, rel=1e-3)
    assert collective_seconds("all_reduce", 1, [ring(8, 1e-6)]) == pytest.approx(7e-6, rel=1e-3)
    assert collective_seconds("all_gather", 1, [switch(8, latency=1e-6)]) == pytest.approx(3e-6, rel=1e-3)


def test_nothing_moves() -> None:
    assert collective_seconds("all_gather", 1e9, []) == 0
    assert collective_seconds("all_gather", 1e9, [ring(1)]) == 0
    assert collective_seconds("all_gather", 0, [ring(8)]) == 0
    assert collective_seconds("all_slice", 1e9, [ring(8)]) == 0


links = st.one_of(
    st.builds(
        lambda w, hop, dims, closed: Level(Links("torus", w, hop, dims, (closed,) * len(dims), "ici"), _product(dims)),
        st.floats(1e8, 1e12),
        st.floats(0, 1e-4),
        st.lists(st.integers(2, 9), min_size=1, max_size=3).map(tuple),
        st.booleans(),
    ),
    st.builds(
        lambda w, hop, n, name: Level(Links("switch", w, hop, name=name), n),
        st.floats(1e8, 1e12),
        st.floats(0, 1e-4),
        st.integers(2, 64),
        st.sampled_from(["nvlink", "dcn"]),
    ),
)


def _product(dims: tuple[int, ...]) -> int:
    size = 1
    for n in dims:
        size *= n
    return size


@given(st.sampled_from(KINDS), st.lists(links, min_size=1, max_size=3), st.integers(1, 10**12), st.integers(0, 10**12))
def test_more_bytes_take_no_less(kind: str, levels: list[Level], size: int, more: int) -> None:
    assert collective_seconds(kind, size, levels) <= collective_seconds(kind, size + more, levels) * (1 + 1e-12)


@given(st.sampled_from(KINDS), st.lists(links, min_size=1, max_size=3), st.integers(1, 10**12), st.data())
def test_faster_links_take_no_more(kind: str, levels: list[Level], size: int, data: st.DataObject) -> None:
    i = data.draw(st.integers(0, len(levels) - 1))
    factor = data.draw(st.floats(1, 100))
    faster = dataclasses.replace(levels[i].links, bandwidth=levels[i].links.bandwidth * factor)
    quicker = [*levels[:i], Level(faster, levels[i].size), *levels[i + 1 :]]
    assert collective_seconds(kind, size, quicker) <= collective_seconds(kind, size, levels) * (1 + 1e-9)


@given(st.lists(links, min_size=1, max_size=3), st.integers(1, 10**12))
def test_an_all_reduce_is_a_reduce_scatter_and_an_all_gather(levels: list[Level], size: int) -> None:
    n = 1
    for level in levels:
        n *= level.size
    both = collective_seconds("reduce_scatter", size, levels) + collective_seconds("all_gather", size / n, levels)
    assert collective_seconds("all_reduce", size, levels) == pytest.approx(both)
