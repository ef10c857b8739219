from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import shardy_py as sp

SIZES = {"data": 2, "model": 4}
X = np.arange(64, dtype=np.float32).reshape(8, 8)


@pytest.fixture(scope="module")
def mesh():
    return jax.make_mesh((2, 4), ("data", "model"), axis_types=(AxisType.Auto,) * 2)


def plan(f, *args, in_shardings=None):
    return sp.auto_shard(f, mesh=SIZES, in_shardings=in_shardings).plan(*args)


def spec(plan):
    return tuple(plan.output_shardings.spec)


def test_constraint_on_a_tree_with_none():
    def f(x):
        tree = sp.with_sharding_constraint({"a": x + 1, "b": x + 2}, {"a": P("data"), "b": None})
        return tree["a"], tree["b"]

    plan_ = plan(f, X)
    assert [tuple(s.spec) for s in plan_.output_shardings] == [("data",), ("data",)]  # both come from x
    assert [v.primitive for v in plan_.values if v.kind == "intermediate"].count("sharding_constraint") == 1


def test_open_dimensions():
    f = lambda x: sp.with_sharding_constraint(x, P("data", P.UNCONSTRAINED)) * 1  # noqa: E731
    assert spec(plan(f, X, in_shardings=P(None, "model"))) == ("data", "model")
    closed = lambda x: sp.with_sharding_constraint(x, P("data", None)) * 1  # noqa: E731
    assert spec(plan(closed, X, in_shardings=P(None, "model"))) == ("data",)


def test_priority_decides_a_conflict():
    def f(x, first, second):
        y = x * 2
        return y, sp.with_sharding_constraint(y, P("data"), priority=first), sp.with_sharding_constraint(y, P("model"), priority=second)

    def chosen(first, second):
        f_ = lambda x: f(x, first, second)  # noqa: E731
        return tuple(plan(f_, X).output_shardings[0].spec)

    assert chosen(0, 1) == ("data",)
    assert chosen(1, 0) == ("model",)


def test_eager_moves_the_array(mesh):
    with jax.set_mesh(mesh):
        y = sp.with_sharding_constraint(jnp.asarray(X), P("data", "model"))
    assert tuple(y.sharding.spec) == ("data", "model")
    z = sp.with_sharding_constraint(jnp.asarray(X), NamedSharding(mesh, P("model")))
    assert tuple(z.sharding.spec) == ("model",)
    assert sp.with_sharding_constraint(X, None) is X


def test_constraint_under_plain_jit(mesh):
    f = jax.jit(lambda x: sp.with_sharding_constraint(x * 2, NamedSharding(mesh, P("data", P.UNCONSTRAINED))))
    assert f(X).sharding.shard_shape((8, 8))[0] == 4
    with jax.set_mesh(mesh):
        g = jax.jit(lambda x: sp.with_sharding_constraint(x * 2, P("data"), priority=3))
        assert tuple(g(X).sharding.spec) == ("data",)


def test_constraint_under_grad_vmap_scan(mesh):
    def f(x):
        def body(c, _):
            return sp.with_sharding_constraint(c * 2, P("data"), priority=1), None

        return jax.lax.scan(body, x, None, length=3)[0]

    step = sp.auto_shard(lambda x: jax.grad(lambda x: f(x).sum())(x), mesh=mesh)
    np.testing.assert_array_equal(step(X), 8 * np.ones((8, 8)))
    batched = sp.auto_shard(jax.vmap(f), mesh=mesh)
    xs = np.stack([X, X])
    np.testing.assert_array_equal(batched(xs), 8 * xs)
    assert tuple(batched.plan(xs).output_shardings.spec) == (None, "data")
    np.testing.assert_array_equal(jax.vmap(sp.auto_shard(f, mesh=mesh))(xs), 8 * xs)


def test_uneven_constraint_inside_is_allowed(mesh):
    step = sp.auto_shard(lambda x: sp.with_sharding_constraint(x[:7] + 1, P("data")).sum(), mesh=mesh)
    np.testing.assert_allclose(step(X), (X[:7] + 1).sum())


def test_constraint_inside_a_partly_manual_region(mesh):
    def local(x):
        return sp.with_sharding_constraint(x * 2, P(None, "model"))

    f = sp.manual_computation(local, in_specs=P("data"), out_specs=P("data"), manual_axes=("data",))
    step = sp.auto_shard(f, mesh=mesh)
    np.testing.assert_array_equal(step(X), 2 * X)

    bad = sp.manual_computation(lambda x: sp.with_sharding_constraint(x, P("data")), in_specs=P("data"), out_specs=P("data"))
    with pytest.raises(ValueError, match="is manual here"):
        sp.auto_shard(bad, mesh=mesh).plan(X)


def test_group_shares_a_sharding(mesh):
    def f(x):
        a, b = sp.sharding_group(jnp.zeros((8, 8)) + 1, x, name="pair")
        return a, b

    plan_ = plan(f, X, in_shardings=P("data", "model"))
    assert [tuple(s.spec) for s in plan_.output_shardings] == [("data", "model")] * 2
    without = plan(lambda x: (jnp.zeros((8, 8)) + 1, x), X, in_shardings=P("data", "model"))
    assert tuple(without.output_shardings[0].spec) == ()
    step = sp.auto_shard(lambda x: jax.vmap(f)(x[None]), mesh=mesh, in_shardings=P("data", "model"))
    np.testing.assert_array_equal(step(X)[1][0], X)
    np.testing.assert_array_equal(jax.jit(f)(X)[1], X)


def test_groups_of_one_name_are_one():
    def f(x):
        sp.sharding_group(x * 1, name="g")
        return sp.sharding_group(jnp.ones((8, 8)) * 2, name="g")

    assert spec(plan(f, X, in_shardings=P("data"))) == ("data",)


@pytest.mark.parametrize(
    ("direction", "forward", "backward"), [("forward", True, False), ("backward", False, True), ("none", False, False)]
)
def test_barrier(direction, forward, backward):
    f = lambda x: sp.propagation_barrier(x * 2, direction) * 2  # noqa: E731
    assert spec(plan(f, X, in_shardings=P("data"))) == (("data",) if forward else ())
    step = sp.auto_shard(f, mesh=SIZES, out_shardings=P("data"))
    assert tuple(step.plan(X).input_shardings[0].spec) == (("data",) if backward else ())


def test_barrier_differentiates(mesh):
    f = lambda x: (sp.propagation_barrier(x * 2, "forward") ** 2).sum()  # noqa: E731
    np.testing.assert_allclose(sp.auto_shard(jax.grad(f), mesh=mesh)(X), 8 * X)
    np.testing.assert_allclose(jax.jit(jax.grad(f))(X), 8 * X)
    with pytest.raises(ValueError, match='use "forward"'):
        sp.propagation_barrier(X, "up")


def test_named_computation(mesh):
    @sp.named_computation(name="block")
    def f(x):
        return x * 2

    step = sp.auto_shard(lambda x: f(x) + 1, mesh=mesh, in_shardings=P("data"))
    assert any("block" in str(op.attributes.get("name")) for op in step.plan(X).program.walk())
    np.testing.assert_array_equal(step(X), 2 * X + 1)


def test_named_computation_of_other_arguments():
    norm = sp.named_computation(lambda tree, mode, act=None: act(tree["x"]) if mode == "act" else tree["x"], name="norm")
    f = lambda x: norm({"x": x, "eps": None}, "act", act=jnp.tanh)  # noqa: E731
    np.testing.assert_allclose(norm({"x": X}, "none"), X)
    assert spec(plan(f, X, in_shardings=P("data"))) == ("data",)
    np.testing.assert_allclose(jax.grad(lambda x: f(x).sum())(X), 1 - np.tanh(X) ** 2, atol=1e-6)


def test_constraints_of_constants_and_in_vmap(mesh):
    w = np.ones((8, 8), np.float32)
    product = plan(lambda x: x @ sp.with_sharding_constraint(w, P(None, "model")), X)
    assert spec(product) == (None, "model")
    with jax.set_mesh(mesh):
        mapped = jax.vmap(lambda x: sp.with_sharding_constraint(x, P("model")))(jnp.asarray(X))
    assert mapped.sharding.spec == P(None, "model")
    explicit = jax.make_mesh((2, 4), ("data", "model"), axis_types=(AxisType.Explicit,) * 2)
    there = jax.jit(lambda x: sp.with_sharding_constraint(x, NamedSharding(explicit, P("data"))))(X)
    assert there.sharding.spec == P("data")


def test_one_manual_axis_by_its_name():
    f = sp.manual_computation(lambda x: jax.lax.psum(x, "data"), in_specs=P("data"), out_specs=P(), manual_axes="data")
    assert spec(plan(f, X, in_shardings=P(None, "model"))) == (None, "model")


def test_manual_computation(mesh):
    f = sp.manual_computation(lambda x: jax.lax.psum(x, "data"), in_specs=P("data"), out_specs=P())
    step = sp.auto_shard(lambda x: f(x) * 2, mesh=mesh)
    np.testing.assert_allclose(step(X), 2 * (X[:4] + X[4:]))
    assert tuple(step.plan(X).input_shardings[0].spec) == ("data",)


def host_matmul(x, y):
    return np.asarray(x) @ np.asarray(y)


@sp.sharding_rule("i k, k j -> i j", reduction="k")
def matmul(x, y):
    return jax.pure_callback(host_matmul, jax.ShapeDtypeStruct((x.shape[0], y.shape[1]), x.dtype), x, y, vmap_method="sequential")


def test_rule_of_an_opaque_function(mesh):
    step = sp.auto_shard(lambda x, y: matmul(x, y), mesh=mesh, in_shardings=(P("data"), P(None, "model")))
    assert tuple(step.plan(X, X).output_shardings.spec) == ("data", "model")
    np.testing.assert_allclose(step(X, X), X @ X)
    np.testing.assert_allclose(matmul(X, X), X @ X)
    xs = np.stack([X, X])
    batched = sp.auto_shard(jax.vmap(matmul, (0, None)), mesh=mesh, in_shardings=(P("data", "model"), None))
    assert tuple(batched.plan(xs, X).output_shardings.spec) == ("data", "model")
    np.testing.assert_allclose(batched(xs, X), xs @ X)


def test_rule_of_a_differentiable_function(mesh):
    @sp.sharding_rule("... i -> ...", reduction="i")
    def total(x):
        return jnp.sum(x**2, axis=-1)

    step = sp.auto_shard(jax.value_and_grad(lambda x: total(x).sum()), mesh=mesh, in_shardings=P("data"))
    value, grad = step(X)
    np.testing.assert_allclose(value, (X**2).sum(), rtol=1e-6)
    np.testing.assert_allclose(grad, 2 * X)


def test_like_another_function():
    @sp.sharding_rule(like=lambda x, y: x @ y)
    def kernel(x, y):
        return jax.pure_callback(host_matmul, jax.ShapeDtypeStruct((8, 8), x.dtype), x, y)

    assert spec(plan(kernel, X, X, in_shardings=(P("data"), P(None, "model")))) == ("data", "model")


def test_rule_that_does_not_fit_the_shapes():
    with pytest.raises(ValueError, match=r"\^"):
        plan(sp.sharding_rule("i j k -> i")(lambda x: x[:, 0]), X)
