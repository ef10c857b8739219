"""Logical axis names of Flax become shardings of arguments and results, or errors."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

import shardy_py as sp
from shardy_py.api.logical_axes import AxisNames, check_logical_rules, spec_of
from shardy_py.api.meshes import view_of
from shardy_py.api.trees import Leaf
from shardy_py.plan.checks.specs import sharding_text

linen, nnx, optax = pytest.importorskip("flax.linen"), pytest.importorskip("flax.nnx"), pytest.importorskip("optax")

MESH = {"data": 4, "model": 2}
RULES = [("batch", "data"), ("embed", None), ("mlp", "model")]
KERNEL = linen.initializers.lecun_normal()


class Net(linen.Module):
    @linen.compact
    def __call__(self, x):
        x = linen.with_logical_constraint(x, ("batch", "embed"))
        bias = linen.with_logical_partitioning(linen.initializers.zeros, ("mlp",))
        x = linen.Dense(32, kernel_init=linen.with_logical_partitioning(KERNEL, ("embed", "mlp")), bias_init=bias)(x)
        return linen.Dense(16, kernel_init=linen.with_logical_partitioning(KERNEL, ("mlp", "embed")))(x)


def spec(dims, rules, shape=(8, 16), own=()):
    names = AxisNames(dims, check_logical_rules(own))
    return spec_of(names, check_logical_rules(rules), view_of(MESH), Leaf("p['w']", shape, "float32"), "f.py:1 (f)")


def texts(values):
    return {value.path.replace(".value", ""): sharding_text(value.sharding) for value in values}


@pytest.mark.parametrize(
    ("dims", "rules", "expected"),
    [
        (("embed", "mlp"), {"embed": None, "mlp": "model"}, P(None, "model")),
        (("batch", "mlp"), [("batch", ("data", "model")), ("mlp", None)], P(("data", "model"), None)),
        (("a", "b"), [("b", "model"), ("a", "model"), ("a", "data")], P("data", "model")),
        (("a", "b"), [("a", "model"), ("b", "model"), ("b", None)], P("model", None)),
        (("a", "a"), [("a", "model"), ("a", None)], P("model", None)),
        (("data", None), [], P("data", None)),
        (("data", P.UNCONSTRAINED), [("data", "model")], P("model", P.UNCONSTRAINED)),
        ((("x", "y"), None), [("x", "model"), ("y", "data")], P(("model", "data"), None)),
    ],
)
def test_first_rule_with_free_axes_counts(dims, rules, expected):
    assert spec(dims, rules) == expected


def test_rules_of_the_array_count_after_those_of_the_caller():
    assert spec(("a", "b"), [("a", "model")], own=[("a", "data"), ("b", "data")]) == P("model", "data")


@pytest.mark.parametrize(
    ("dims", "rules", "message"),
    [
        (
            ("embed", "mlp"),
            [("embed", "model"), ("mlp", "model")],
            ["mesh axis 'model'", "p['w']", "[1] ('mlp', 'model')", "[0] ('embed', 'model')", "add ('mlp', None)"],
        ),
        (("model", "mlp"), [("mlp", "model")], ["mesh axis 'model'", "p['w']", "the mesh axis ('model', 'model')", "[0] ('mlp', 'model')"]),
        (("embed", "mpl"), RULES, ["no rule for 'mpl'", "p['w']", "did you mean 'mlp'", "add ('mpl', None)"]),
    ],
)
def test_conflicts_name_path_rules_and_remedy(dims, rules, message):
    with pytest.raises(sp.SpecError) as error:
        spec(dims, rules)
    assert not [part for part in message if part not in str(error.value)]


@pytest.mark.parametrize("rules", ["embed", [("embed", 3)], [("embed",)], 7])
def test_what_is_no_rule_is_refused(rules):
    with pytest.raises(sp.SpecError, match="is not a rule"):
        sp.auto_shard(lambda x: x, mesh=MESH, logical_axis_rules=rules)


def test_an_axis_that_the_mesh_has_not_is_refused():
    run = sp.auto_shard(lambda x: x, mesh=MESH, logical_axis_rules=[*RULES, ("heads", "modle")])
    with pytest.raises(sp.SpecError, match=r"unknown mesh axis 'modle'(.|\n)*logical_axis_rules\[3\](.|\n)*did you mean 'model'"):
        run.plan(jnp.ones(8))


@pytest.mark.parametrize("optimizer", [optax.adam(1e-3), optax.adafactor(1e-3, min_dim_size_to_factor=8)], ids=["adam", "adafactor"])
def test_linen_parameters_and_optimizer_state(optimizer):
    """Results of `init` lie as the step plans them, its state as its parameters, and numbers are those without sharding."""
    model, x, key = Net(), jnp.ones((8, 16)), jax.random.key(0)

    def init(key, x):
        variables = model.init(key, x)
        return variables, optimizer.init(variables)

    def step(variables, state, x):
        gradients = jax.grad(lambda v: jnp.mean(model.apply(v, x) ** 2))(variables)
        updates, state = optimizer.update(gradients, state, variables)
        return optax.apply_updates(variables, updates), state

    start = sp.auto_shard(init, mesh=MESH, logical_axis_rules=RULES)
    run = sp.auto_shard(step, mesh=MESH, logical_axis_rules=RULES)
    plan = run.plan(*jax.eval_shape(init, key, x), x)
    inputs = texts(plan.inputs)
    assert inputs["variables['params']['Dense_0']['kernel']"] == "P(None, 'model')"
    assert inputs["variables['params']['Dense_1']['kernel']"] == "P('model')"
    assert inputs["x"] == "P('data')"
    assert {given.given_by for given in plan.inputs if "kernel" in given.path and given.shape == (16, 32)} == {
        "logical_axis_rules of ('embed', 'mlp')"
    }
    for part, (path, expected) in {
        "mu": ("Dense_1", "P('model')"), "nu": ("Dense_0", "P(None, 'model')"), "v_col": ("Dense_0", "P('model')")
    }.items():  # fmt: skip
        assert {s for p, s in inputs.items() if f".{part}[" in p and f"['{path}']['kernel']" in p} <= {expected}
    variables, state = start(key, x)
    assert texts(start.plan(key, x).outputs).keys() == {
        path.replace("variables", "result[0]").replace("state", "result[1]", 1) for path in inputs
    } - {"x"}
    placed = jax.tree.leaves((variables, state))
    planned = jax.tree.leaves(plan.input_shardings[:2])
    assert all(leaf.sharding.is_equivalent_to(s, leaf.ndim) for leaf, s in zip(placed, planned, strict=True))
    expected = jax.jit(step)(*jax.jit(init)(key, x), x)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-5, atol=1e-6), run(variables, state, x), expected)


def test_unboxed_parameters_follow_the_rules_where_they_are_unboxed():
    run = sp.auto_shard(lambda key, x: linen.unbox(Net().init(key, x)), mesh=MESH, logical_axis_rules=RULES)
    params = run(jax.random.key(0), jnp.ones((8, 16)))["params"]
    assert params["Dense_0"]["kernel"].sharding.spec == P(None, "model")


class Layer(nnx.Module):
    def __init__(self, rngs):
        self.up = nnx.Linear(8, 16, kernel_init=nnx.with_partitioning(KERNEL, ("embed", "mlp")), rngs=rngs)

    def __call__(self, x):
        return self.up(x)


class Heads(linen.Module):
    """Its kernel is flat where the box gives it three names, which Flax writes as a constraint if it finds a mesh."""

    @linen.compact
    def __call__(self, x):
        return linen.DenseGeneral((4, 8), kernel_init=linen.with_partitioning(KERNEL, (None, "model", None)), use_bias=False)(x)


@pytest.mark.parametrize("lowering", ["jit", "shard_map"])
def test_boxes_are_read_as_under_jit(lowering):
    x = np.random.default_rng(0).standard_normal((8, 16)).astype("float32")
    variables = Heads().init(jax.random.key(0), x)

    def loss(variables, x):
        return jnp.sum(Heads().apply(variables, x) ** 2)

    step = sp.auto_shard(jax.grad(loss), mesh=MESH, in_shardings=(None, P("data")), lowering=lowering)
    got, want = step(variables, x), jax.jit(jax.grad(loss))(variables, x)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4), got, want)


def test_nnx_variables_and_their_optimizer():
    mesh = jax.make_mesh((4, 2), ("data", "model"), axis_types=(AxisType.Auto,) * 2)
    flax_rules = tuple((name, axes) for name, axes in RULES)
    with jax.set_mesh(mesh), nnx.logical_axis_rules(flax_rules):
        model = Layer(nnx.Rngs(0))
        optimizer = nnx.Optimizer(model, optax.adam(1e-3), wrt=nnx.Param)

    def step(model, optimizer, x):
        loss, gradients = nnx.value_and_grad(lambda m: jnp.mean(m(x) ** 2))(model)
        optimizer.update(model, gradients)
        return loss

    run = sp.auto_shard(step, mesh=MESH, in_shardings=(None, None, P("data")), logical_axis_rules=RULES)
    inputs = texts(run.plan(model, optimizer, jnp.ones((8, 8))).inputs)
    kernels = {path: text for path, text in inputs.items() if "kernel" in path}
    assert len(kernels) == 3
    assert set(kernels.values()) == {"P(None, 'model')"}
    losses = [float(run(model, optimizer, jnp.ones((8, 8)))) for _ in range(3)]
    assert losses[2] < losses[0]
    assert model.up.kernel[...].sharding.spec == P(None, "model")


def test_nnx_state_made_inside():
    run = sp.auto_shard(lambda key: nnx.state(Layer(nnx.Rngs(key))), mesh=MESH, logical_axis_rules=RULES)
    assert run(jax.random.key(0))["up"]["kernel"][...].sharding.spec == P(None, "model")


def boxed(names=("embed", "mlp"), shape=(8, 16)):
    return {"w": linen.LogicallyPartitioned(jnp.ones(shape), names)}


def test_names_and_other_shardings_must_agree():
    for other in ({"in_shardings": P("data")}, {"rules": [("w", P("data"))]}):
        with pytest.raises(sp.SpecError, match=r"disagree(.|\n)*p\['w'\]"):
            sp.auto_shard(lambda p: p, mesh=MESH, logical_axis_rules=RULES, **other).plan(boxed())
        sp.auto_shard(lambda p: p, mesh=MESH, logical_axis_rules=[("embed", "data"), ("mlp", None)], **other).plan(boxed())


def test_names_without_rules_are_a_note():
    plan = sp.auto_shard(lambda p: p, mesh=MESH).plan(boxed())
    (note, *_) = [finding for finding in plan.findings if finding.kind == "unmatched-rule"]
    assert note.severity == "info"
    assert "('embed', 'mlp')" in note.message
    assert "logical_axis_rules" in note.fix


def idle(fun, *args, rules=(*RULES, ("heads", "model"), ("kv", "model")), **options):
    plan = sp.auto_shard(fun, mesh=MESH, logical_axis_rules=rules, **options).plan(*args)
    return [(f.severity, f.message) for f in plan.findings if f.kind == "unused-rule"]


def test_rules_for_names_that_nothing_has_are_one_finding():
    nothing = "logical_axis_rules apply to nothing: no array of the arguments or the result names its dimensions"
    assert idle(lambda p: p, {"w": jnp.ones((8, 16))}) == [("warning", nothing)]
    some = "logical_axis_rules for 'batch', 'heads', 'kv' apply to nothing: no array of the arguments or the result calls a dimension so"
    assert idle(lambda p: jax.tree.map(lambda x: x + 1, p), boxed()) == [("info", some)]
    assert not idle(lambda p: p, {"w": jnp.ones((8, 16))}, rules=[("embed", None)])
    assert not idle(lambda p: p, boxed(), rules=[("mlp", "data"), ("mlp", "model"), ("embed", None)])  # the second is for other arrays


def test_rules_for_constraints_inside_are_used():
    def inside(x):
        return linen.with_logical_constraint(x, ("batch", "heads"))

    assert not idle(inside, jnp.ones((8, 16)))


def test_names_that_cut_unevenly():
    p = boxed(shape=(8, 15))
    with pytest.raises(sp.SpecError, match=r"dimension 1 of size 15 is not divisible by 2"):
        sp.auto_shard(lambda p: p, mesh=MESH, logical_axis_rules=RULES).plan(p)
    dropping = sp.auto_shard(lambda p: p, mesh=MESH, logical_axis_rules=RULES, options=sp.Options(indivisible="drop"))
    assert "indivisible" in [finding.kind for finding in dropping.plan(p).findings]


def test_names_of_more_dimensions_than_the_array_has():
    with pytest.raises(sp.SpecError, match="2 entries for a value of rank 1"):
        sp.auto_shard(lambda p: p, mesh=MESH, logical_axis_rules=RULES).plan(boxed(shape=(16,)))
