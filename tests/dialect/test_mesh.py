from __future__ import annotations

import pytest

from shardy_py.dialect import AxisRef, Mesh, MeshAxis
from shardy_py.errors import DialectError

BAD = [
    (lambda: MeshAxis("x", 0), "axis size must be at least 1, got: 0"),
    (lambda: MeshAxis("x", -2), "axis size must be at least 1, got: -2"),
    (lambda: Mesh([("x", 2), ("y", 2), ("x", 4)]), 'duplicate axis name: "x"'),
    (lambda: Mesh([], [-1]), "device id must be non-negative, got: -1"),
    (lambda: Mesh([("x", 2)], [0, -1]), "device id must be non-negative, got: -1"),
    (lambda: Mesh([], [1, 0]), "axes is empty and device_ids has more than one element"),
    (
        lambda: Mesh([("x", 2), ("y", 2)], [0, 2, 1, 3, 4, 5]),
        "total product of axis sizes must match total number of device ids, got: 4 != 6",
    ),
    (lambda: Mesh([("x", 2)], [0]), "total product of axis sizes must match total number of device ids, got: 2 != 1"),
    (lambda: Mesh([("x", 2)], [2, 1]), "sorted device ids must be iota(product(axes)), got: 1, 2"),
    (lambda: Mesh([("x", 2)], [1, 1]), "sorted device ids must be iota(product(axes)), got: 1, 1"),
]


@pytest.mark.parametrize(("make", "what"), BAD, ids=[what for _, what in BAD])
def test_bad_meshes(make, what: str) -> None:
    with pytest.raises(DialectError) as caught:
        make()
    assert caught.value.what == what


def test_properties() -> None:
    mesh = Mesh([("data", 4), ("model", 2)])
    assert mesh.axis_names == ("data", "model")
    assert mesh.shape == {"data": 4, "model": 2}
    assert list(mesh.shape) == ["data", "model"]
    assert mesh.size == 8
    assert not mesh.is_maximal
    assert not mesh.is_empty
    assert mesh.axis_size("model") == 2
    assert mesh.axis_size(AxisRef("data")) == 4
    assert mesh.axis_size(AxisRef("data", 2, 2)) == 2
    assert mesh.axis_index("model") == 1
    assert mesh.has_axis("data")
    assert not mesh.has_axis("other")


def test_unknown_axis() -> None:
    mesh = Mesh([("data", 4)])
    for ask in (mesh.axis_size, mesh.axis_index):
        with pytest.raises(DialectError, match='unknown axis name: "other"') as caught:
            ask("other")
        assert '<["data"=4]>' in str(caught.value)


def test_axes_from_a_mapping() -> None:
    assert Mesh({"data": 4, "model": 2}) is Mesh([("data", 4), ("model", 2)])
    assert Mesh({"data": 4, "model": 2}) is not Mesh({"model": 2, "data": 4})


def test_shape_cannot_change() -> None:
    with pytest.raises(TypeError):
        Mesh({"data": 4}).shape["data"] = 2  # type: ignore[index]


def test_device_ids_in_order_are_dropped() -> None:
    assert Mesh([("x", 2), ("y", 2)], range(4)) is Mesh([("x", 2), ("y", 2)])
    assert Mesh([("x", 1)], [0]) is Mesh([("x", 1)])
    assert Mesh([("x", 2)], [1, 0]).device_ids == (1, 0)


def test_maximal_and_empty() -> None:
    assert Mesh.maximal(0).is_maximal
    assert Mesh.maximal(0).device_ids == (0,)
    assert not Mesh.maximal(0).is_empty
    assert Mesh().is_empty
    assert not Mesh().is_maximal
    assert Mesh().size == 1
    assert not Mesh({"x": 1}).is_maximal


def test_same_axes() -> None:
    assert Mesh([("x", 2)], [1, 0]).same_axes(Mesh([("x", 2)]))
    assert not Mesh([("x", 2), ("y", 1)]).same_axes(Mesh([("y", 1), ("x", 2)]))


def test_large_meshes_need_no_devices() -> None:
    mesh = Mesh({"replica": 1024, "data": 4096, "model": 8192})
    assert mesh.size == 1024 * 4096 * 8192
