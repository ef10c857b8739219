"""Fully sharded data parallelism: parameters gathered where they are used, gradients scattered, optimizer state where it is."""

from __future__ import annotations

from collections import Counter
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

import shardy_py as sp
from shardy_py.backends.compiled_text import collectives_in

pytestmark = pytest.mark.usefixtures("usual_fusions")

LAYERS, WIDTH, INNER, BATCH = 4, 64, 128, 1024
ADAM = optax.adam(1e-2)


def block(x: jax.Array, w: dict[str, jax.Array]) -> tuple[jax.Array, None]:
    return x + jnp.tanh(x @ w["up"]) @ w["down"], None


def loss(params: Any, x: jax.Array, y: jax.Array) -> jax.Array:
    if isinstance(params["blocks"], dict):
        x, _ = jax.lax.scan(block, x, params["blocks"])
    else:
        for w in params["blocks"]:
            x, _ = block(x, w)
    return ((x @ params["out"] - y) ** 2).mean()


def step(params: Any, state: Any, x: jax.Array, y: jax.Array) -> Any:
    value, grads = jax.value_and_grad(loss)(params, x, y)
    updates, state = ADAM.update(grads, state, params)
    return optax.apply_updates(params, updates), state, value


def arguments(scanned: bool) -> tuple[Any, ...]:
    keys = jax.random.split(jax.random.key(0), 5)
    lead = (LAYERS,) if scanned else ()

    def made(key: jax.Array) -> dict[str, jax.Array]:
        up, down = jax.random.split(key)
        return {
            "up": jax.random.normal(up, (*lead, WIDTH, INNER)) / 8,
            "down": jax.random.normal(down, (*lead, INNER, WIDTH)) / 8,
        }

    blocks = made(keys[0]) if scanned else [made(key) for key in jax.random.split(keys[0], LAYERS)]
    params = {"blocks": blocks, "out": jax.random.normal(keys[1], (WIDTH, 8))}
    return params, ADAM.init(params), jax.random.normal(keys[2], (BATCH, WIDTH)), jax.random.normal(keys[3], (BATCH, 8))


def sharded(scanned: bool) -> Any:
    mesh = jax.make_mesh((8,), ("data",), axis_types=(AxisType.Auto,))
    at = P(None, "data") if scanned else P("data")
    blocks = {"up": at, "down": at}
    params = {"blocks": blocks if scanned else [blocks] * LAYERS, "out": P("data")}
    specs = (params, None, P("data"), P("data"))
    return sp.auto_shard(step, mesh=mesh, in_shardings=specs, lowering="shard_map", donate_argnums=(0, 1))


@pytest.mark.slow
@pytest.mark.parametrize("scanned", [False, True], ids=["unrolled", "scanned"])
def test_gradients_leave_as_reduce_scatters(scanned: bool) -> None:
    args = arguments(scanned)
    compiled = sharded(scanned).lower(*args).compile()
    kinds: Counter[str] = Counter()
    for collective in collectives_in(compiled.as_text()):
        for piece in collective.pieces:
            # What is left to all-reduce is the loss.
            assert collective.kind != "all_reduce" or piece <= 8
        kinds[collective.kind] += len(collective.pieces) * (collective.trips or 1)
    assert kinds["reduce_scatter"] == 2 * LAYERS + 1
    assert set(kinds) <= {"all_gather", "reduce_scatter", "all_reduce", "all_to_all"}


@pytest.mark.parametrize("scanned", [pytest.param(False, marks=pytest.mark.slow), True], ids=["unrolled", "scanned"])
def test_state_stays_sharded_and_numbers_are_right(scanned: bool) -> None:
    args = arguments(scanned)
    wanted = jax.jit(step)(*args)
    plan = sharded(scanned).plan(*args)
    assert all("data" in str(value) for value in plan.inputs if ".mu" in value.path or ".nu" in value.path)
    got = sharded(scanned)(*jax.tree.map(jnp.copy, args))
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-3, atol=2e-4)


def test_memory_is_a_share_of_the_state_and_what_is_alive() -> None:
    args = arguments(True)
    sizes = sharded(True).lower(*args).compile().memory_analysis()
    state = sum(leaf.nbytes for leaf in jax.tree.leaves(args[:2]))
    batch = sum(leaf.nbytes for leaf in args[2:])
    assert sizes.argument_size_in_bytes <= (state + batch) / 8 * 1.01 + 64
    assert sizes.alias_size_in_bytes >= state / 8 * 0.99
    # Alive at the end of the forward pass: what each block keeps for the backward pass, of an eighth of the batch.
    kept = 4 * BATCH // 8 * LAYERS * (2 * WIDTH + 2 * INNER)
    gathered = 4 * 2 * WIDTH * INNER
    gradients = state / 3 / 8
    assert sizes.temp_size_in_bytes <= 1.1 * (kept + 3 * gathered + 2 * gradients)
