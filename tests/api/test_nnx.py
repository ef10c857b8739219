from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

import shardy_py as sp

nnx = pytest.importorskip("flax.nnx")
optax = pytest.importorskip("optax")


class Net(nnx.Module):
    def __init__(self, rngs):
        self.up = nnx.Linear(8, 16, rngs=rngs)
        self.norm = nnx.BatchNorm(16, rngs=rngs)
        self.drop = nnx.Dropout(0.5, rngs=rngs)
        self.down = nnx.Linear(16, 8, rngs=rngs)

    def __call__(self, x):
        return self.down(self.drop(self.norm(self.up(x))))


def train_step(model, optimizer, x):
    def loss(model):
        return ((model(x) - x) ** 2).mean()

    value, grads = nnx.value_and_grad(loss)(model)
    optimizer.update(model, grads)
    return value


@pytest.fixture(scope="module")
def mesh():
    return jax.make_mesh((2, 4), ("data", "model"), axis_types=(AxisType.Auto,) * 2)


def build():
    model = Net(nnx.Rngs(0))
    return model, nnx.Optimizer(model, optax.sgd(1e-1, momentum=0.9), wrt=nnx.Param)


def state_of(*modules):
    return [
        np.asarray(jax.random.key_data(v) if jnp.issubdtype(v.dtype, jax.dtypes.prng_key) else v)
        for v in jax.tree.leaves(nnx.state(modules))
    ]


def test_mutations_are_kept(mesh):
    x = np.random.default_rng(0).standard_normal((16, 8)).astype(np.float32)
    ours, theirs = build(), build()
    step = sp.auto_shard(train_step, mesh=mesh, in_shardings=(None, None, P("data")))
    reference = nnx.jit(train_step)
    for _ in range(3):
        np.testing.assert_allclose(step(*ours, x), reference(*theirs, x), rtol=1e-3)
    for a, b in zip(state_of(*ours), state_of(*theirs), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-2, atol=1e-5)
    assert step.plan_count <= 2
    assert float(jnp.abs(ours[0].norm.mean[...]).sum()) > 0


def test_one_plan_serves_a_loop(mesh):
    model = nnx.Linear(8, 16, rngs=nnx.Rngs(0))

    @sp.auto_shard(mesh=mesh, in_shardings=(None, P("data")), rules=[("kernel", P(None, "model"))])
    def shift(model, x):
        model.bias[...] = model.bias[...] + 1
        return model(x)

    for _ in range(3):
        shift(model, jnp.ones((8, 8)))
    assert shift.plan_count == 1
    assert model.bias[...][0] == 3


def test_plan_names_the_variables(mesh):
    step = sp.auto_shard(train_step, mesh=mesh, in_shardings=(None, None, P("data")), rules=[("up/kernel", P(None, "model"))])
    plan = step.plan(*build(), np.ones((16, 8), np.float32))
    (kernel,) = [v for v in plan.inputs if v.path.startswith("model") and "up" in v.path and "kernel" in v.path]
    assert "16@model" in str(kernel)


def test_a_module_inside_a_container(mesh):
    def count(tree):
        tree["model"].norm.mean[...] += 1.0
        return tree["x"] * 2

    model, _ = build()
    step = sp.auto_shard(count, mesh=mesh)
    np.testing.assert_array_equal(step({"model": model, "x": np.ones(8)}), 2 * np.ones(8))
    step({"model": model, "x": np.ones(8)})
    np.testing.assert_allclose(model.norm.mean[...], 2.0)


def test_donated_state_is_replaced(mesh):
    model, optimizer = build()
    x = np.ones((16, 8), np.float32)
    step = sp.auto_shard(train_step, mesh=mesh, in_shardings=(None, None, P("data")), donate_argnums=(0, 1))
    for _ in range(3):
        step(model, optimizer, x)
    assert np.isfinite(np.asarray(model.up.kernel[...])).all()


def test_changing_the_structure_is_an_error(mesh):
    def grow(model):
        model.extra = nnx.Param(jnp.ones(3))

    with pytest.raises(ValueError, match="changes the structure of a module"):
        sp.auto_shard(grow, mesh=mesh)(build()[0])
