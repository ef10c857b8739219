from __future__ import annotations

import jax
import numpy as np
import pytest
from jax.sharding import AbstractMesh, AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import shardy_py as sp
from shardy_py.api.meshes import view_of
from shardy_py.api.specs import broadcast_specs, to_tensor_sharding
from shardy_py.api.trees import Leaf, argument_paths, parameter_names

VIEW = view_of({"x": 2, "y": 4})
LEAF = Leaf("w", (8, 16), "float32")


@pytest.mark.parametrize(
    ("spec", "text"),
    [
        (P(), "<@mesh, [{}, {}]>"),
        (P("x"), '<@mesh, [{"x"}, {}]>'),
        (P(None, ("y", "x")), '<@mesh, [{}, {"y", "x"}]>'),
        (P(P.UNCONSTRAINED, "y"), '<@mesh, [{?}, {"y"}]>'),
        (NamedSharding(AbstractMesh((2, 4), ("x", "y")), P("y")), '<@mesh, [{"y"}, {}]>'),
        (sp.TensorSharding.parse('#sdy.sharding<@other, [{"x", ?}p1, {"y":(1)2}]>'), '<@mesh, [{"x", ?}p1, {"y":(1)2}]>'),
    ],
)
def test_specs(spec, text):
    made = to_tensor_sharding(spec, VIEW, LEAF, "in_shardings")
    assert made is not None
    assert made.text(short=True) == text


@pytest.mark.parametrize("spec", [P("x"), P(None, "y"), P(("x", "y")), P()])
def test_closed_as_jax_writes_them(spec):
    mesh = jax.make_mesh((2, 4), ("x", "y"), axis_types=(AxisType.Auto,) * 2)
    text = jax.jit(lambda w: w * 2, in_shardings=NamedSharding(mesh, spec)).lower(jax.ShapeDtypeStruct((8, 16), "float32")).as_text()
    made = to_tensor_sharding(spec, VIEW, LEAF, "in_shardings")
    assert str(made) in text


def test_prefixes():
    tree = ({"a": 1, "b": [2, 3]}, 4, None)
    root = str
    assert broadcast_specs(P("x"), tree, "in_shardings", root) == [P("x")] * 4
    assert broadcast_specs(None, tree, "in_shardings", root) == [None] * 4
    assert broadcast_specs(({"a": None, "b": P("x")}, P("y"), None), tree, "in_shardings", root) == [None, P("x"), P("x"), P("y")]
    assert broadcast_specs([P("x"), None, None], tree, "in_shardings", root) == [P("x")] * 3 + [None]


def test_views():
    assert view_of({"x": 2}).describe() == "x=2"
    assert view_of(sp.Mesh([("x", 2)])).sizes == {"x": 2}
    mesh = jax.make_mesh((2, 4), ("x", "y"))
    view = view_of(mesh)
    assert view.explicit
    assert view.runnable() is mesh
    assert view.twin.axis_types == (AxisType.Auto,) * 2
    assert view_of({"x": 4}).runnable().devices.size == 4


def test_paths():
    def f(params, /, x, *rest, flag=None):
        pass

    assert parameter_names(f, 4) == ["params", "x", "rest[0]", "rest[1]"]
    assert argument_paths(["params", "x"], ({"w": [1, 2]}, 3), {"flag": {"a": 4}}) == ["params['w'][0]", "params['w'][1]", "x", "flag['a']"]


def test_importing_touches_no_device():
    import os
    import subprocess
    import sys

    code = (
        "import shardy_py, jax\nshardy_py.auto_shard, shardy_py.Mesh, shardy_py.Plan\nfrom jax._src import xla_bridge\n"
        "assert not xla_bridge.backends_are_initialized()\n"
        "import numpy as np\nfrom jax.sharding import AbstractMesh\n"
        "shardy_py.auto_shard(lambda x: x * 2, mesh=AbstractMesh((64, 64), ('a', 'b'))).plan(jax.ShapeDtypeStruct((8,), 'float32'))\n"
        "assert not xla_bridge.backends_are_initialized()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": os.getcwd()}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


ONE = {"data": 8, "model": 1}


@pytest.mark.parametrize("lowering", ["jit", "shard_map"])
@pytest.mark.parametrize("spec", [P("model"), P(None, "model"), P(("model", "data")), P(("data", "model")), P(P.UNCONSTRAINED, "model")])
def test_an_axis_of_one_device_cuts_nothing(spec, lowering):
    """What the plan proposes for such an axis, and what it is asked for, are the same placement."""
    mesh = jax.make_mesh(tuple(ONE.values()), tuple(ONE), axis_types=(AxisType.Auto,) * 2)
    function = sp.auto_shard(lambda w, x: w + x, mesh=mesh, in_shardings=(spec, P("data")), lowering=lowering)
    w, x = np.arange(64.0, dtype="float32").reshape(8, 8), np.ones((8, 8), "float32")
    plan = function.plan(w, x)
    placements = [plan.input_shardings[0], plan.abstract_state("w").sharding]
    if P.UNCONSTRAINED not in spec:
        placements.append(NamedSharding(mesh, spec))
    for sharding in placements:
        np.testing.assert_array_equal(function(jax.device_put(w, sharding), x), w + 1)
    assert function.plan_count == 1


def test_an_axis_of_one_device_hides_no_difference():
    mesh = jax.make_mesh(tuple(ONE.values()), tuple(ONE), axis_types=(AxisType.Auto,) * 2)
    function = sp.auto_shard(lambda w: w * 2, mesh=mesh, in_shardings=P("model", "data"))
    with pytest.raises(ValueError, match="another sharding than in_shardings says"):
        function(jax.device_put(np.ones((8, 8), "float32"), NamedSharding(mesh, P("data", "model"))))
