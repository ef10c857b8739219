from __future__ import annotations

import jax
import numpy as np
import pytest
from jax.sharding import AbstractMesh, AxisType
from jax.sharding import PartitionSpec as P

from shardy_py.backends.named_shardings import NamedShardings, num_shards, refine
from shardy_py.dialect import AxisRef, DimensionSharding, TensorSharding

MESH = AbstractMesh((2, 8), ("x", "y"), axis_types=(AxisType.Auto,) * 2)


def test_full_axes():
    named = NamedShardings(MESH)
    sharding = TensorSharding("mesh", [["y", "x"], []])
    assert named(sharding, 2).spec == P(("y", "x"))
    assert named(sharding, 2) is named(sharding, 2)
    assert named(None, 3).spec == P()
    assert named(TensorSharding("mesh", [["x"], ["y"], []]), 2).spec == P("x", "y")


def test_open_dimensions():
    sharding = TensorSharding("mesh", [DimensionSharding((), False), DimensionSharding(["x"], False)])
    assert NamedShardings(MESH)(sharding, 2).spec == P(None, "x")
    assert NamedShardings(MESH, open_dims=True)(sharding, 2).spec == P(P.UNCONSTRAINED, "x")


@pytest.mark.parametrize(
    ("dims", "names", "sizes", "spec"),
    [
        ([[AxisRef("y", 1, 2)]], ("x", "y_0", "y_1"), (2, 2, 4), P("y_0")),
        ([[AxisRef("y", 2, 4)]], ("x", "y_0", "y_1"), (2, 2, 4), P("y_1")),
        ([[AxisRef("y", 2, 2)], [AxisRef("y", 1, 2)]], ("x", "y_0", "y_1", "y_2"), (2, 2, 2, 2), P("y_1", "y_0")),
        ([[AxisRef("y", 1, 4)], [AxisRef("y", 4, 2), "x"]], ("x", "y_0", "y_1"), (2, 4, 2), P("y_0", ("y_1", "x"))),
    ],
)
def test_sub_axes_refine_the_mesh(dims, names, sizes, spec):
    named = NamedShardings(MESH)(TensorSharding("mesh", dims), len(dims))
    assert (named.mesh.axis_names, named.mesh.axis_sizes, named.spec) == (names, sizes, spec)


def test_refined_mesh_keeps_devices_and_avoids_names():
    mesh = jax.make_mesh((2, 4), ("y_0", "y"), axis_types=(AxisType.Auto,) * 2)
    refined, pieces = refine(mesh, {"y": (2,)})
    assert refined.axis_names == ("y_0", "y_1", "y_2")
    assert pieces == {"y": [(1, 2, "y_1"), (2, 4, "y_2")]}
    np.testing.assert_array_equal(refined.devices.ravel(), mesh.devices.ravel())


def test_ways():
    named = NamedShardings(MESH)(TensorSharding("mesh", [["y", "x"], []]), 2)
    assert [num_shards(named, d) for d in range(2)] == [16, 1]
