"""Questions that users of sharded JAX ask most, one call each: replication, whether it fits, state like its parameters, logical axes."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec as P

import shardy_py as sp

MESH = {"data": 2, "model": 4}


def f32(*shape):
    return jax.ShapeDtypeStruct(shape, jnp.float32)


PARAMS = {"table": f32(1 << 15, 512), "up": f32(512, 2048), "down": f32(2048, 512)}
SPECS = {"table": None, "up": P(None, "model"), "down": P("model")}
BATCH = jax.ShapeDtypeStruct((256,), jnp.int32)


def step(params, batch):
    def loss(params):
        hidden = jax.nn.relu(params["table"][batch] @ params["up"])
        return jnp.mean((hidden @ params["down"]) ** 2)

    value, gradients = jax.value_and_grad(loss)(params)
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, gradients), value


def planned(**options):
    return sp.auto_shard(step, mesh=MESH, in_shardings=(SPECS, P("data")), **options).plan(PARAMS, BATCH)


def test_what_is_silently_replicated_is_said_with_what_to_write():
    """Need 2: name, size and the axes that it could be cut by; `strict=True` raises."""
    finding = next(f for f in planned().check() if f.path == "params['table']")
    assert finding.kind == "replicated-large"
    assert "64 MiB" in finding.message
    assert "P('model', 'data')" in finding.fix or "P(('model', 'data'))" in finding.fix
    with pytest.raises(sp.PlanError, match=r"replicated-large(.|\n)*params\['table'\]"):
        planned().check(strict=True)


def test_does_it_fit():
    """Need 7: the peak with what it is made of by path, before there are devices."""
    memory = planned(donate_argnums=0).memory_analysis("h100")
    assert memory.fits
    sizes = {(part.name, part.role): part.bytes for part in memory.contributors}
    assert sizes["params['table']", "argument"] == 64 << 20
    assert sizes["params['up']", "argument"] == 1 << 20
    assert sum(part.bytes for part in memory.contributors) >= 0.95 * memory.peak_memory_in_bytes
    assert not planned(donate_argnums=0).memory_analysis(32 << 20).fits


def test_what_is_sent_over_which_axis():
    """Need 7: bytes and seconds of collectives by mesh axis."""
    cost = planned().cost_analysis("h100")
    by_axis = {share.name: share for share in cost.by_axis}
    assert by_axis["model"].communicated_bytes > 0
    assert by_axis["data"].communication_seconds > 0
    assert sum(share.communicated_bytes for share in cost.by_axis) == sum(collective.bytes for collective in cost.collectives)


def test_optimizer_state_is_made_as_its_parameters_are():
    """Need 8: one call gives sharded parameters and moments like them."""
    optax = pytest.importorskip("optax")

    def init(key):
        params = {"up": jax.random.normal(key, (16, 32)), "down": jnp.zeros((32, 16))}
        return params, optax.adam(1e-3).init(params)

    params, (moments, *_) = sp.auto_shard(init, mesh=MESH, rules=[("up", P(None, "model")), ("down", P("model"))])(jax.random.key(0))
    for tree in (params, moments.mu, moments.nu):
        assert {name: leaf.sharding.spec for name, leaf in tree.items()} == {"up": P(None, "model"), "down": P("model")}


def test_logical_axes_conflict_aloud():
    """Need 11: names of dimensions become mesh axes; a conflict quotes both rules."""
    linen = pytest.importorskip("flax.linen")
    model = linen.Dense(32, kernel_init=linen.with_logical_partitioning(linen.initializers.ones, ("embed", "mlp")))

    def init(key, x):
        return model.init(key, x)

    arguments = jax.random.key(0), f32(8, 16)
    plan = sp.auto_shard(init, mesh=MESH, logical_axis_rules=[("embed", "data"), ("mlp", "model")]).plan(*arguments)
    assert plan.output_shardings["params"]["kernel"].value.spec == P("data", "model")
    with pytest.raises(sp.SpecError) as error:
        sp.auto_shard(init, mesh=MESH, logical_axis_rules=[("embed", "model"), ("mlp", "model")]).plan(*arguments)
    assert all(text in str(error.value) for text in ("('embed', 'model')", "('mlp', 'model')", "['kernel']"))
