"""A step is compiled once, wherever its arguments come from: numbers, host arrays, arrays of one device, results of earlier calls."""

from __future__ import annotations

import logging

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

import shardy_py as sp


@pytest.fixture
def compilations():
    """The names of the functions that XLA compiles."""
    names = []

    class Names(logging.Handler):
        def emit(self, record):
            text = record.getMessage()
            if "XLA compilation of" in text:
                names.append(text.split("XLA compilation of ")[1].split(" in ")[0])

    handler, logger = Names(), logging.getLogger("jax")
    propagates, logger.propagate = logger.propagate, False
    logger.addHandler(handler)
    with jax.log_compiles(True):
        yield names
    logger.removeHandler(handler)
    logger.propagate = propagates


def step(state, batch):
    gradient = batch.T @ (batch @ state["w"])
    return {"w": state["w"] - 0.001 * gradient, "count": state["count"] + 1, "rate": state["rate"] * 0.5}


STATES = {
    "numbers": lambda: {"w": jnp.ones((8, 8)), "count": 0, "rate": 1.0},
    "host": lambda: {"w": np.ones((8, 8), np.float32), "count": np.int32(0), "rate": np.ones(3, np.float32)},
    "one device": lambda: {"w": jnp.ones((8, 8)), "count": jnp.zeros((), "int32"), "rate": jnp.ones(3)},
}
MESHES = {
    "mapping": lambda: {"data": 8},
    "auto": lambda: jax.make_mesh((4, 2), ("data", "model"), axis_types=(AxisType.Auto,) * 2),
    "explicit": lambda: jax.make_mesh((8,), ("data",), axis_types=(AxisType.Explicit,)),
    "single": lambda: {"data": 1},
}


@pytest.mark.parametrize(
    ("mesh", "state"), [*(("mapping", state) for state in STATES), ("auto", "host"), ("explicit", "numbers"), ("single", "one device")]
)
@pytest.mark.parametrize(
    "options", [{}, {"donate_argnums": 0}, {"donate_argnums": 0, "lowering": "shard_map"}], ids=["plain", "donated", "local"]
)
def test_ten_calls_compile_once(mesh, state, options, compilations):
    run = sp.auto_shard(step, mesh=MESHES[mesh](), in_shardings=(None, P("data")), **options)
    now = STATES[state]()
    for i in range(10):
        now = run(now, np.full((16, 8), i, np.float32))
    assert [name for name in compilations if name == "jit(step)"] == ["jit(step)"]
    want = STATES[state]()
    for i in range(10):
        want = jax.jit(step)(want, np.full((16, 8), i, np.float32))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4), now, want)
    assert [leaf.weak_type for leaf in jax.tree.leaves(now)] == [leaf.weak_type for leaf in jax.tree.leaves(want)]


def test_kinds_of_batches_that_alternate_compile_once(compilations):
    run = sp.auto_shard(step, mesh={"data": 8}, in_shardings=(None, P("data")), donate_argnums=0)
    now = STATES["numbers"]()
    host = np.ones((16, 8), np.float32)
    placed = jax.device_put(host, jax.NamedSharding(jax.make_mesh((8,), ("data",), axis_types=(AxisType.Auto,)), P("data")))
    for batch in [host, jnp.asarray(host), placed] * 3:
        now = run(now, batch)
    assert compilations.count("jit(step)") == 1


def test_a_donated_array_of_one_device_is_not_taken_from_its_owner():
    run = sp.auto_shard(lambda s: s + 1, mesh={"data": 8}, in_shardings=P("data"), donate_argnums=0)
    own = jnp.ones(8)
    for _ in range(3):
        run(own)
    assert not own.is_deleted()


def test_a_linen_train_state_compiles_once(compilations):
    linen, optax = pytest.importorskip("flax.linen"), pytest.importorskip("optax")
    train_state = pytest.importorskip("flax.training.train_state")
    model = linen.Dense(8)
    params = model.init(jax.random.key(0), jnp.ones((1, 8)))
    state = train_state.TrainState.create(apply_fn=model.apply, params=params, tx=optax.adam(1e-3))

    @sp.auto_shard(mesh={"data": 8}, in_shardings=(None, P("data")), donate_argnums=0)
    def train_step(state, x):
        gradients = jax.grad(lambda p: jnp.mean(state.apply_fn(p, x) ** 2))(state.params)
        return state.apply_gradients(grads=gradients)

    for _ in range(10):
        state = train_step(state, np.ones((16, 8), np.float32))
    assert int(state.step) == 10
    assert compilations.count("jit(train_step)") == 1


def test_an_nnx_step_compiles_once(compilations):
    nnx, optax = pytest.importorskip("flax.nnx"), pytest.importorskip("optax")
    model = nnx.Linear(8, 8, rngs=nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, optax.adam(1e-3), wrt=nnx.Param)

    @sp.auto_shard(mesh={"data": 8}, in_shardings=(None, None, P("data")))
    def nnx_step(model, optimizer, x):
        loss, gradients = nnx.value_and_grad(lambda m: jnp.mean(m(x) ** 2))(model)
        optimizer.update(model, gradients)
        return loss

    losses = [float(nnx_step(model, optimizer, np.ones((16, 8), np.float32))) for _ in range(10)]
    assert losses[-1] < losses[0]
    assert compilations.count("jit(nnx_step)") == 1


def test_an_equinox_step_compiles_once(compilations):
    eqx = pytest.importorskip("equinox")
    model = eqx.nn.MLP(8, 8, 16, 2, key=jax.random.key(0))
    weights, static = eqx.partition(model, eqx.is_array)

    @sp.auto_shard(mesh={"data": 8}, in_shardings=(None, P("data")), donate_argnums=0)
    def eqx_step(weights, x):
        gradients = jax.grad(lambda w: jnp.mean(jax.vmap(eqx.combine(w, static))(x) ** 2))(weights)
        return jax.tree.map(lambda w, g: w - 0.1 * g, weights, gradients)

    for _ in range(10):
        weights = eqx_step(weights, np.ones((16, 8), np.float32))
    assert compilations.count("jit(eqx_step)") == 1


def test_a_haiku_step_compiles_once(compilations):
    hk = pytest.importorskip("haiku")
    network = hk.without_apply_rng(hk.transform(lambda x: hk.nets.MLP([16, 8])(x)))
    params = network.init(jax.random.key(0), jnp.ones((1, 8)))

    @sp.auto_shard(mesh={"data": 8}, in_shardings=(None, P("data")), donate_argnums=0)
    def hk_step(params, x):
        gradients = jax.grad(lambda p: jnp.mean(network.apply(p, x) ** 2))(params)
        return jax.tree.map(lambda w, g: w - 0.1 * g, params, gradients)

    for _ in range(10):
        params = hk_step(params, np.ones((16, 8), np.float32))
    assert compilations.count("jit(hk_step)") == 1
