"""Functions that the tests of the command line plan."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

import shardy_py as sp
from shardy_py.facade import Plan


def layer(w: Any, x: Any) -> Any:
    return jnp.tanh(x @ w["up"]) @ w["down"]


step = sp.auto_shard(layer, mesh={"data": 2, "model": 4}, in_shardings=({"up": P(None, "model"), "down": None}, P("data")))


def arguments() -> tuple[Any, ...]:
    f32 = lambda *shape: jax.ShapeDtypeStruct(shape, jnp.float32)  # noqa: E731
    return {"up": f32(16, 32), "down": f32(32, 16)}, f32(8, 16)


jitted = jax.jit(layer, donate_argnums=1)


def planned() -> Plan:
    return step.plan(*arguments())


def warned() -> Plan:
    return sp.auto_shard(lambda x: x.sum(), mesh={"data": 2}, in_shardings=P("data"), donate_argnums=0).plan(
        jax.ShapeDtypeStruct((1024, 1024), jnp.float32)
    )


def broken(x: Any) -> Any:
    return x + jnp.zeros(3) + jnp.zeros(4)


def not_a_plan() -> int:
    return 3


def scaled(x: Any, rate: Any, *, flag: Any = None) -> Any:
    return x * rate


NUMBER = 3


def loss(params: Any, tokens: Any) -> Any:
    with jax.named_scope("embed"):
        x = params["table"][tokens]
    x, _ = jax.lax.scan(lambda x, w: (x + jnp.tanh(x @ w), None), x, params["layers"])
    with jax.named_scope("head"):
        return jnp.mean(jax.nn.logsumexp(x @ params["table"].T, -1))


planned_loss = sp.auto_shard(loss, mesh={"data": 2})


def by_name_alone(x: Any, *, rate: Any) -> Any:
    return x * rate
