"""Plans that hold a bit of everything, for the tests of stored plans."""

from __future__ import annotations

import functools
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec as P

import shardy_py as sp
from shardy_py.facade import Plan

MESH = {"data": 2, "model": 4}


class State(NamedTuple):
    """A pytree node of a class."""

    step: Any
    nothing: None
    params: dict[str, Any]


def _loss(params: dict[str, Any], batch: dict[str, Any]) -> jax.Array:
    def layer(h: jax.Array, w: jax.Array) -> tuple[jax.Array, None]:
        return jax.nn.relu(h @ w), None

    hidden = jax.nn.relu(batch["x"] @ params["up"])
    hidden, _ = jax.lax.scan(layer, hidden, params["layers"])
    hidden = hidden + jax.random.normal(batch["key"], hidden.shape)
    hidden = jax.lax.cond(hidden.sum() > 0, jnp.sort, lambda x: x * 2, hidden)
    hidden = sp.with_sharding_constraint(hidden, P("data", P.UNCONSTRAINED), priority=1)
    hidden = sp.propagation_barrier(hidden, allowed_direction="forward")
    hidden = hidden[jnp.arange(hidden.shape[0])] + jnp.arange(3.0)[1]
    return jnp.mean((hidden @ params["down"] - batch["y"]) ** 2)


def _step(state: State, batch: dict[str, Any], *, rate: float) -> tuple[State, jax.Array]:
    loss, grads = jax.value_and_grad(_loss)(state.params, batch)
    sp.sharding_group(state.params["up"], grads["up"])
    params = jax.tree.map(lambda p, g: p - rate * g, state.params, grads)
    return State(state.step + 1, None, params), loss


def f32(*shape: int) -> jax.ShapeDtypeStruct:
    """A float32 array."""
    return jax.ShapeDtypeStruct(shape, jnp.float32)


@functools.cache
def training(lowering: Literal["jit", "shard_map"] = "jit") -> Plan:
    """A training step with loops, branches, keys, constraints, groups, barriers, a named tuple, a keyword argument and donation."""
    specs = (State(None, None, {"up": P(None, "model"), "down": None, "layers": None}), {"x": P("data"), "y": P("data"), "key": None})
    step = sp.auto_shard(_step, mesh=MESH, in_shardings=specs, donate_argnums=0, lowering=lowering)
    params = {"up": f32(16, 32), "down": f32(32, 16), "layers": f32(3, 32, 32)}
    key = jax.eval_shape(lambda: jax.random.key(0))
    return step.plan(State(jax.ShapeDtypeStruct((), jnp.int32), None, params), {"x": f32(8, 16), "y": f32(8, 16), "key": key}, rate=0.1)


@functools.cache
def small() -> Plan:
    """Two matrix products."""

    def block(params: dict[str, Any], x: jax.Array) -> jax.Array:
        def body(c: jax.Array, _: None) -> tuple[jax.Array, None]:
            return jnp.tanh(c @ params["up"]) @ params["down"], None

        return jax.lax.scan(body, x, None, length=2)[0]

    step = sp.auto_shard(block, mesh=MESH, in_shardings=({"up": P(None, "model"), "down": None}, P("data")), donate_argnums=1)
    return step.plan({"up": f32(16, 32), "down": f32(32, 16)}, f32(8, 16))


@functools.cache
def with_constants() -> Plan:
    """Arrays in the program that are too long to be written, equal ones and others."""
    a, b, c = (np.arange(64, dtype=np.float32).reshape(8, 8) + k for k in (0, 0, 1))

    def f(x: jax.Array) -> jax.Array:
        return (x @ a + b) @ c * np.array([1, 2, 3, 4, 5, 6, 7, 8], np.float32)

    return sp.auto_shard(f, mesh=MESH, in_shardings=P("data")).plan(f32(8, 8))
