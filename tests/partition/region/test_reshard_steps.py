"""Ways from layout to layout: which collectives, what they cost, and that they carry the right numbers."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import PartitionSpec as P

from shardy_py.backends.local.reshard import reshard
from shardy_py.dialect import AxisRef, Mesh
from shardy_py.partition.region.layouts import Layout, layout, local_shape, replicated
from shardy_py.partition.region.reshard_steps import (
    COLLECTIVE_LAUNCH_BYTES,
    direct_route,
    reshard_cost,
    reshard_steps,
    searched_route,
    step_bytes,
)

MESH = Mesh((("a", 2), ("b", 2), ("c", 2)))
NAMES = ("a", "b", "c")


def at(*dims: str, partial: str = "") -> Layout:
    """`at("ab", "", partial="c")`: the first dimension over a and b, sums over c waiting."""
    return layout([[AxisRef(name) for name in dim] for dim in dims], [AxisRef(name) for name in partial])


def kinds(source: Layout, target: Layout, shape: tuple[int, ...]) -> list[str]:
    return [f"{move.kind} {''.join(axis.name for axis in move.axes)}" for move in reshard_steps(source, target, shape, MESH)]


@pytest.mark.parametrize(
    ("source", "target", "expected"),
    [
        (at("a", ""), at("a", ""), []),
        (at("", ""), at("a", "b"), ["all_slice a", "all_slice b"]),
        (at("ab", ""), at("", ""), ["all_gather ab"]),
        (at("a", ""), at("", "a"), ["all_to_all a"]),
        (at("", "", partial="a"), at("", ""), ["all_reduce a"]),
        (at("", "", partial="a"), at("a", ""), ["reduce_scatter a"]),
        (at("", "", partial="ab"), at("a", ""), ["reduce_scatter a", "all_reduce b"]),
        (at("", "", partial="a"), at("b", "a"), ["all_slice b", "reduce_scatter a"]),
        (at("c", "", partial="a"), at("", "", partial="a"), ["all_gather c"]),
    ],
)
def test_chosen(source: Layout, target: Layout, expected: list[str]) -> None:
    assert kinds(source, target, (8, 8)) == expected


@pytest.mark.parametrize(
    ("source", "target", "expected"),
    [
        (at("b", "a"), at("", ""), ["all_gather a", "all_gather b"]),
        (at("c", "b", "a"), at("", "", ""), ["all_gather a", "all_gather b", "all_gather c"]),
        (at("", "", partial="ab"), at("a", "b"), ["reduce_scatter b", "reduce_scatter a"]),
        (at("", "", partial="ab"), at("b", "a"), ["reduce_scatter b", "reduce_scatter a"]),
    ],
)
def test_the_smallest_pieces_go_over_the_first_axes(source: Layout, target: Layout, expected: list[str]) -> None:
    assert kinds(source, target, (8,) * source.rank) == expected


def test_uneven_blocks_that_do_not_nest_are_gathered_and_cut_again() -> None:
    # 5 elements over 2 devices lie in blocks of 3, over 4 in blocks of 2: not every half is made up of quarters.
    assert kinds(at("a"), at("ab"), (5,)) == ["all_gather a", "all_slice ab"]


def test_cost_counts_the_padding_that_is_sent() -> None:
    # One element lies on the first of four devices; the others send an empty block of the same size.
    assert reshard_cost(at("ab", ""), replicated(2), (1, 8), 32, MESH) == 3 * 32
    (gather,) = reshard_steps(at("ab", ""), replicated(2), (1, 8), MESH)
    assert step_bytes(gather, (1, 8), 32, MESH) == 3 * 32
    # Two of six rows go from each of four devices to each of the others, one of them padding, in pieces of two of five columns.
    (exchange,) = reshard_steps(at("ab", ""), at("", "ab"), (8, 5), MESH)
    assert step_bytes(exchange, (8, 5), 32, MESH) == 3 * (2 * 2) * 4


def test_a_sum_scattered_costs_half_of_one_kept_whole() -> None:
    source = at("", "", partial="a")
    assert 2 * reshard_cost(source, at("a", ""), (8, 8), 32, MESH) == reshard_cost(source, replicated(2), (8, 8), 32, MESH)


def test_every_collective_that_is_started_counts() -> None:
    for source, target, started in (
        (at("a", ""), at("a", ""), 0),
        (at("", ""), at("a", "b"), 0),  # slices send nothing
        (at("ab", ""), at("", ""), 1),
        (at("", "", partial="ab"), at("a", ""), 2),
        (at("ab", ""), at("", "ab"), 4),  # a piece for each device of a group
    ):
        assert (
            reshard_cost(source, target, (8, 8), 32, MESH, COLLECTIVE_LAUNCH_BYTES)
            == reshard_cost(source, target, (8, 8), 32, MESH) + started * COLLECTIVE_LAUNCH_BYTES
        )


@st.composite
def layouts(draw: st.DrawFn, rank: int = 2) -> Layout:
    dims: list[list[str]] = [[] for _ in range(rank)]
    for name in draw(st.permutations(NAMES)):
        d = draw(st.integers(-1, rank - 1))
        if d >= 0:
            dims[d].append(name)
    return at(*map("".join, dims))


@settings(max_examples=400, deadline=None)
@given(layouts(), layouts(), st.sampled_from([(8, 8), (5, 8), (3, 7), (1, 4), (2, 9)]))
def test_what_is_only_cut_further_or_gathered_moves_as_a_search_finds(source: Layout, target: Layout, shape: tuple[int, int]) -> None:
    if source is target:
        return
    found = direct_route(source, target, shape, MESH)
    assert found is None or found == searched_route(source, target, shape, MESH)


def cut(x: np.ndarray, of: Layout, place: dict[str, int]) -> np.ndarray:
    """The block of a device, zeros behind the end."""
    blocks = local_shape(x.shape, of, MESH)
    out = np.zeros(blocks, x.dtype)
    where = []
    for d, dim in enumerate(of.dims):
        index = 0
        for axis in dim.axes:
            index = index * 2 + place[axis.name]
        where.append(slice(index * blocks[d], min((index + 1) * blocks[d], x.shape[d])))
    piece = x[tuple(where)]
    out[tuple(slice(0, n) for n in piece.shape)] = piece
    return out


def test_values_without_elements_are_made_and_not_moved() -> None:
    mesh = jax.make_mesh((2, 2, 2), NAMES, axis_types=(jax.sharding.AxisType.Auto,) * 3)

    def local(x: jax.Array) -> jax.Array:
        return reshard(x, at("", "a"), at("b", ""), (4, 0), MESH, "cpu")

    region = jax.shard_map(local, mesh=mesh, in_specs=P(None, "a"), out_specs=P("b"), check_vma=False)
    assert jax.jit(region)(jnp.zeros((4, 0))).shape == (4, 0)
    assert "all_to_all" not in str(jax.make_jaxpr(region)(jnp.zeros((4, 0))))


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(layouts(), layouts(), st.sampled_from([(8, 8), (5, 8), (3, 7), (1, 4), (2, 9)]))
def test_every_way_carries_the_right_blocks(source: Layout, target: Layout, shape: tuple[int, int]) -> None:
    x = np.arange(1, shape[0] * shape[1] + 1, dtype=np.int32).reshape(shape)
    places = [dict(zip(NAMES, np.unravel_index(i, (2, 2, 2)))) for i in range(8)]
    before = jnp.stack([cut(x, source, place) for place in places])
    mesh = jax.make_mesh((2, 2, 2), NAMES, axis_types=(jax.sharding.AxisType.Auto,) * 3)

    def local(block: jax.Array) -> jax.Array:
        return reshard(block[0], source, target, shape, MESH, "cpu")[None]

    made = np.asarray(jax.jit(jax.shard_map(local, mesh=mesh, in_specs=P(NAMES), out_specs=P(NAMES), check_vma=False))(before))
    for place, got in zip(places, made, strict=True):
        wanted = cut(x, target, place)
        inside = cut(np.ones_like(x), target, place).astype(bool)
        np.testing.assert_array_equal(np.where(inside, got, 0), wanted)
