from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractMesh, AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import shardy_py as sp
from shardy_py.api.meshes import view_of
from shardy_py.api.specs import broadcast_specs, to_tensor_sharding
from shardy_py.api.trees import Leaf, parameter_names
from shardy_py.plan.checks.specs import sharding_text

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
    assert view.auto_mesh.axis_types == (AxisType.Auto,) * 2
    assert view_of({"x": 4}).runnable().devices.size == 4


def test_paths():
    def f(params, /, x, *rest, flag=None):
        pass

    assert parameter_names(f, 4) == ["params", "x", "rest[0]", "rest[1]"]


@pytest.mark.slow
def test_importing_touches_no_device():
    """Nor does a plan, and neither imports the solver, which takes a fifth of the time that this takes."""
    import os
    import subprocess
    import sys

    code = (
        "import shardy_py, jax\nshardy_py.auto_shard, shardy_py.Mesh, shardy_py.Plan\nfrom jax._src import xla_bridge\n"
        "assert not xla_bridge.backends_are_initialized()\n"
        "import numpy as np\nfrom jax.sharding import AbstractMesh\n"
        "shardy_py.auto_shard(lambda x: x * 2, mesh=AbstractMesh((64, 64), ('a', 'b'))).plan(jax.ShapeDtypeStruct((8,), 'float32'))\n"
        "assert not xla_bridge.backends_are_initialized()\n"
        "import sys\nassert 'scipy.optimize' not in sys.modules\n"
        "shardy_py.Planner(hardware='v5e')\nassert 'scipy.optimize' in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": os.getcwd()}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


ONE = {"data": 8, "model": 1}


@pytest.mark.parametrize("lowering", ["jit", "shard_map"])
@pytest.mark.parametrize("spec", [P("model"), P(None, "model"), P(("model", "data")), P(("data", "model")), P(P.UNCONSTRAINED, "model")])
def test_an_axis_of_one_device_cuts_nothing(spec, lowering):
    """The plan's proposal for such an axis and the request are the same placement."""
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
    with pytest.raises(ValueError, match="sharding differs from in_shardings"):
        function(jax.device_put(np.ones((8, 8), "float32"), NamedSharding(mesh, P("data", "model"))))


def by_size(path: str, leaf: jax.ShapeDtypeStruct) -> P | None:
    """As a user writes it: the largest dimension that `model` divides, of what is called kernel; None leaves the rest to propagation."""
    if not path.endswith("['kernel']"):
        return P("data") if path in ("x", "result[1]") else None
    dim = max(range(len(leaf.shape)), key=leaf.shape.__getitem__)
    return P(*(["model" if d == dim else None for d in range(len(leaf.shape))]))


def test_functions_of_paths_and_leaves():
    def step(params, x, *, scale):
        return {"kernel": params["kernel"] * scale}, jnp.tanh(x @ params["kernel"])

    run = sp.auto_shard(step, mesh={"data": 2, "model": 4}, in_shardings=by_size, out_shardings=by_size)
    params, x = {"kernel": jnp.ones((8, 16)), "bias": jnp.ones(16)}, jnp.ones((32, 8))
    plan = run.plan(params, x, scale=2.0)
    shardings = {v.path: sharding_text(v.sharding) for v in (*plan.inputs, *plan.outputs)}
    assert shardings["params['kernel']"] == shardings["result[0]['kernel']"] == "P(None, 'model')"
    assert shardings["x"] == shardings["result[1]"] == "P('data')"
    assert shardings["scale"] == "P()"
    jax.tree.map(np.testing.assert_allclose, run(params, x, scale=2.0), step(params, x, scale=2.0))


def test_a_function_for_one_argument():
    run = sp.auto_shard(
        lambda params, x: (x, params), mesh={"data": 2, "model": 4}, in_shardings=(by_size, P("data")), out_shardings=(None, by_size)
    )
    plan = run.plan({"kernel": jnp.ones((8, 16))}, jnp.ones((32, 8)))
    assert [sharding_text(v.sharding) for v in plan.inputs] == ["P(None, 'model')", "P('data')"]
    assert sharding_text(plan.outputs[1].sharding) == "P(None, 'model')"


def test_functions_for_modules():
    nnx = pytest.importorskip("flax.nnx")
    model = nnx.Linear(8, 16, rngs=nnx.Rngs(0))
    specs = {
        "in_shardings": lambda path, leaf: P(None, "model") if "kernel" in path else None,
        "out_shardings": lambda path, leaf: P("data"),
    }
    plan = sp.auto_shard(lambda model, x: model(x), mesh={"data": 2, "model": 4}, **specs).plan(model, jnp.ones((32, 8)))
    assert "P(None, 'model')" in [sharding_text(v.sharding) for v in plan.inputs]
    assert sharding_text(plan.outputs[0].sharding) == "P('data')"


def test_functions_that_give_no_sharding_name_the_leaf():
    run = sp.auto_shard(lambda x: x, mesh={"data": 2}, in_shardings=lambda path, leaf: "data")  # pyright: ignore
    with pytest.raises(sp.SpecError, match=r"in_shardings: 'data' is not a sharding"):
        run.plan(jnp.ones(4))


def test_a_tree_that_can_be_called_is_a_tree():
    @jax.tree_util.register_pytree_node_class
    class Layer:
        def __init__(self, kernel):
            self.kernel = kernel

        def __call__(self, x):
            return x @ self.kernel

        def tree_flatten(self):
            return (self.kernel,), None

        @classmethod
        def tree_unflatten(cls, _, leaves):
            return cls(*leaves)

    run = sp.auto_shard(lambda layer, x: layer(x), mesh={"data": 2, "model": 4}, in_shardings=(Layer(P(None, "model")), P("data")))
    assert sharding_text(run.plan(Layer(jnp.ones((8, 16))), jnp.ones((32, 8))).inputs[0].sharding) == "P(None, 'model')"
    both = sp.auto_shard(lambda layer: layer, mesh={"model": 4}, out_shardings=Layer(P("model")))
    assert sharding_text(both.plan(Layer(jnp.ones((8, 16)))).outputs[0].sharding) == "P('model')"


UNEVEN = {
    "in_shardings": {"in_shardings": ({"w": P("data", "model"), "b": P("model")},)},
    "rules": {"rules": [("w", P("data", "model")), ("b", P("model"))]},
    "out_shardings": {"out_shardings": {"w": P("data", "model"), "b": P("model")}},
}


@pytest.mark.parametrize("where", UNEVEN)
def test_axes_that_do_not_divide_are_an_error_or_dropped(where):
    tree = {"w": np.arange(60.0).reshape(6, 10), "b": np.ones(16)}
    run = sp.auto_shard(lambda tree: jax.tree.map(lambda x: x + 1, tree), mesh={"data": 2, "model": 4}, **UNEVEN[where])
    with pytest.raises(sp.SpecError, match=r"\['w'\](.|\n)*nearest divisible sizes are 8 or 12"):
        run.plan(tree)
    run = run.replace(options=sp.Options(indivisible="drop"))
    plan = run.plan(tree)
    values = plan.outputs if where == "out_shardings" else plan.inputs
    assert {value.path.rpartition("[")[2]: sharding_text(value.sharding) for value in values} == {"'w']": "P('data')", "'b']": "P('model')"}
    dropped = [finding for finding in plan.findings if finding.kind == "indivisible"]
    assert {finding.path.rpartition("[")[2] for finding in dropped} == {"'w']"}
    assert {finding.severity for finding in dropped} == {"info"}
    assert "P('data', 'model'), and it is cut by P('data'): dimension 1 of size 10 is not a multiple of 4 (model=4)" in dropped[0].message
    jax.tree.map(np.testing.assert_array_equal, run(tree), jax.tree.map(lambda x: x + 1, tree))


@pytest.mark.parametrize(
    ("size", "axes", "expected"),
    [
        (8, ("data", "model"), "P(('data', 'model'))"),
        (6, ("data", "model"), "P('data')"),
        (3, ("data", "model"), "P()"),
        (1, "model", "P()"),
    ],
)
def test_the_first_axes_that_divide_stay(size, axes, expected):
    run = sp.auto_shard(lambda x: x, mesh={"data": 2, "model": 4}, in_shardings=P(axes), options=sp.Options(indivisible="drop"))
    plan = run.plan(jnp.ones(size))
    assert sharding_text(plan.inputs[0].sharding) == expected
    assert bool([f for f in plan.findings if f.kind == "indivisible"]) is (size != 8)


def test_a_large_array_that_stays_whole_is_a_warning():
    run = sp.auto_shard(lambda x: x, mesh={"model": 4}, rules=[("x", P("model"))], options=sp.Options(indivisible="drop"))
    findings = run.plan(jax.ShapeDtypeStruct((50257, 1024), jnp.float32)).findings
    assert [(f.severity, f.bytes, f.fix) for f in findings if f.kind == "indivisible"] == [
        ("warning", 50257 * 4096, "make dimension 0 50256 or 50260")
    ]
