"""How mesh axes lie on links."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardy_py.cost.hardware import lay_out
from shardy_py.cost.hardware_table import HARDWARE, hardware
from shardy_py.cost.links import Fabric, LinkError, Links, lattices, levels_of, ring, split


def names(axes: dict[str, int], machine: str, **links: object) -> dict[str, list[tuple[str, int]]]:
    layout = lay_out(axes, hardware(machine), links)
    return {axis: [(level.links.name, level.size) for level in levels] for axis, levels in layout.items()}


def test_the_last_axes_of_gpus_are_in_a_node() -> None:
    assert names({"data": 16, "model": 8}, "h100") == {"data": [("dcn", 16)], "model": [("nvlink", 8)]}
    assert names({"data": 4, "model": 2}, "h100") == {"data": [("nvlink", 4)], "model": [("nvlink", 2)]}


def test_an_axis_may_go_beyond_a_node() -> None:
    assert names({"data": 4, "model": 16}, "h100") == {"data": [("dcn", 4)], "model": [("nvlink", 8), ("dcn", 2)]}
    assert names({"data": 16, "model": 4}, "h100") == {"data": [("nvlink", 2), ("dcn", 8)], "model": [("nvlink", 4)]}


def test_tpus_beyond_a_pod() -> None:
    assert names({"data": 32, "model": 256}, "v5e") == {"data": [("dcn", 32)], "model": [("ici", 256)]}


def test_axes_of_size_one_lie_on_nothing() -> None:
    assert names({"data": 1, "model": 8}, "h100") == {"data": [], "model": [("nvlink", 8)]}


def test_what_is_said_counts() -> None:
    assert names({"data": 4, "model": 2}, "h100", data="dcn") == {"data": [("dcn", 4)], "model": [("nvlink", 2)]}
    assert names({"data": 16}, "h100", data="nvlink") == {"data": [("nvlink", 16)]}
    own = Links("torus", 1e11, dims=(4, 4), name="own")
    assert names({"data": 16}, "h100", data=own) == {"data": [("own", 16)]}


def test_axes_share_a_torus() -> None:
    layout = lay_out({"a": 4, "b": 16, "c": 4}, hardware("v5p"))
    assert [layout[axis][0].links.dims for axis in "abc"] == [(4,), (16,), (4,)]
    assert all(layout[axis][0].links.wrapped == (True,) for axis in "abc")
    (level,) = lay_out({"a": 64}, hardware("v5p"))["a"]
    assert level.links.dims == (4, 4, 4)
    assert level.links.speed(64) == 6 * 9e10
    layout = lay_out({"a": 64, "b": 4}, hardware("v5p"))
    assert [layout[axis][0].links.dims for axis in "ab"] == [(8, 8), (4,)]


def test_axes_beyond_the_dimensions_lie_on_lines() -> None:
    layout = lay_out({"a": 16, "b": 16, "c": 2}, hardware("v5e"), {"a": "ici"})
    assert layout["c"][0].links.wrapped == (False,)
    assert layout["b"][0].links.wrapped == (True,)


def test_small_slices_are_not_closed_to_rings() -> None:
    assert lay_out({"a": 8, "b": 4}, hardware("v5e"))["a"][0].links.wrapped == (False,)


@pytest.mark.parametrize(
    ("links", "message"),
    [
        ({"rows": "dcn"}, "unknown mesh axis 'rows'"),
        ({"data": "infiniband"}, "unknown links 'infiniband'"),
        ({"data": Links("torus", 1e9, dims=(3, 2))}, "6 devices, the axis 4"),
    ],
)
def test_links_that_do_not_fit(links: dict[str, object], message: str) -> None:
    with pytest.raises(LinkError, match=message):
        lay_out({"data": 4}, hardware("h100"), links)


@pytest.mark.parametrize(
    "make",
    [
        lambda: Links("star", 1e9),  # type: ignore[arg-type]
        lambda: Links("ring", 0),
        lambda: Links("ring", 1e9, -1.0),
        lambda: Links("torus", 1e9, dims=(4,), wrapped=(True, False)),
        lambda: Links("torus", 1e9, dims=(0,)),
        lambda: Fabric("ring", math.nan),
        lambda: Fabric("bus", 1e9),  # type: ignore[arg-type]
        lambda: Fabric("ring", 1e9, reach=0),
        lambda: Fabric("ring", 1e9, latency=math.inf),
    ],
)
def test_links_that_make_no_sense(make: object) -> None:
    with pytest.raises(LinkError):
        make()  # type: ignore[operator]


def test_parts_of_axes() -> None:
    sizes = {"a": 8, "b": 16}
    layout = lay_out(sizes, hardware("h100"))
    assert [(level.links.name, level.size) for level in levels_of([("b", 4)], layout, sizes)] == [("nvlink", 4)]
    assert [(level.links.name, level.size) for level in levels_of([("b", 16), ("a", 2)], layout, sizes)] == [
        ("nvlink", 8),
        ("dcn", 2),
        ("dcn", 2),
    ]
    sizes = {"a": 16}
    (level,) = levels_of([("a", 4)], lay_out(sizes, hardware("v5p")), sizes)
    assert level.links.wrapped == (False,)


@given(st.integers(1, 4096), st.integers(1, 3))
def test_split_is_a_product(size: int, parts: int) -> None:
    found = split(size, parts)
    assert math.prod(found) == size
    assert len(found) <= parts
    assert list(found) == sorted(found, reverse=True)


@given(st.sampled_from(sorted(HARDWARE)), st.lists(st.sampled_from([1, 2, 3, 4, 8, 16, 48]), min_size=1, max_size=4))
def test_levels_make_up_the_axis(machine: str, sizes: list[int]) -> None:
    axes = {f"a{i}": n for i, n in enumerate(sizes)}
    layout = lay_out(axes, hardware(machine))
    for axis, size in axes.items():
        assert math.prod(level.size for level in layout[axis]) == size
        assert all(math.prod(level.links.dims or (level.size,)) == level.size for level in layout[axis])


def test_links_are_a_mapping() -> None:
    with pytest.raises(TypeError, match="links is a str; it is a mapping from mesh axes"):
        lay_out({"data": 2}, hardware("h100"), "dcn")  # pyright: ignore[reportArgumentType]


TRAY = [
    (0, 0, 0),
    (1, 0, 0),
    (0, 1, 0),
    (1, 1, 0),
    (1, 3, 0),
    (0, 3, 0),
    (1, 2, 0),
    (0, 2, 0),
]


def test_axes_on_the_chips_of_a_mesh() -> None:
    of = lattices({"x": 2, "y": 4}, TRAY)
    layout = lay_out({"x": 2, "y": 4}, hardware("v5e"), of)
    assert {axis: level.links.speed(level.size) for axis, (level,) in layout.items()} == {"x": 22.5e9, "y": 90e9}
    torus = [(i, j, 0) for i in range(4) for j in range(4)]
    assert lattices({"x": 4, "y": 4}, torus)["y"].links(hardware("v4").fabric).wrapped == (True,)
    assert not any(lattices({"x": 4, "y": 4}, torus)["y"].links(hardware("v5e").fabric).wrapped)
    on_switch = lay_out({"x": 2, "y": 4}, hardware("h100"), of)
    assert on_switch == lay_out({"x": 2, "y": 4}, hardware("h100"))


@pytest.mark.parametrize("sides", [(4, 4), (3, 4), (4, 3), (8, 2)], ids=str)
def test_rings_go_from_neighbour_to_neighbour(sides: tuple[int, int]) -> None:
    places = [(r, c, 0) for r in range(sides[0]) for c in range(sides[1])]
    order = ring({"x": 1, "y": len(places)}, ["y"], places)
    assert sorted(order) == list(range(len(places)))
    steps = [(places[order[k - 1]], places[device]) for k, device in enumerate(order)]
    assert all(sum(abs(p - q) for p, q in zip(*step)) == 1 for step in steps)


@pytest.mark.parametrize("coordinates", [[], [(0, c) for c in range(9)], [(r, c) for r in range(3) for c in range(3)]], ids=len)
def test_rings_in_the_order_of_the_mesh(coordinates: list[tuple[int, ...]]) -> None:
    assert ring({"x": 9}, ["x"], coordinates) == tuple(range(9))
