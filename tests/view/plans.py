"""Small plans that the tests of views look at."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec as P

import shardy_py as sp
from shardy_py.facade import Plan

MESH = {"data": 2, "model": 4}
HOSTILE = '</script><b id="injected">&amp;'


def shape(*sizes: int, dtype: Any = jnp.float32) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(sizes, dtype)


def block(params: Any, x: jax.Array) -> jax.Array:
    with jax.named_scope("up"):
        hidden = jax.nn.relu(x @ params["up"])
    with jax.named_scope("down"):
        return x + hidden @ params["down"]


def loss(params: Any, x: jax.Array) -> jax.Array:
    for i, layer in enumerate(params["layers"]):
        with jax.named_scope(f"layer_{i}"):
            x = block(layer, x)
    return jnp.mean((x @ params["head"]) ** 2)


def train_step(params: Any, momentum: Any, x: jax.Array) -> tuple[Any, Any]:
    grads = jax.grad(loss)(params, x)
    momentum = jax.tree.map(lambda m, g: 0.9 * m + g, momentum, grads)
    return jax.tree.map(lambda p, m: p - 0.1 * m, params, momentum), momentum


BATCH = P("data")


def train_plan(batch: Any = BATCH, layers: int = 2, **settings: Any) -> Plan:
    layer = {"up": shape(64, 256), "down": shape(256, 64)}
    params = {"layers": [layer] * layers, "head": shape(64, 7)}
    spec = {"up": P(None, "model"), "down": None}
    specs = {"layers": [spec] * layers, "head": None}
    step = sp.auto_shard(train_step, mesh=MESH, in_shardings=(specs, None, batch), donate_argnums=(0, 1), **settings)
    return step.plan(params, params, shape(32, 64))


@functools.cache
def training() -> Plan:
    """A training step: donation, reshards, modules, a finding or two; partitioned by XLA."""
    return train_plan(lowering="jit")


@functools.cache
def other_training() -> Plan:
    """The same with the batch over all devices."""
    return train_plan(batch=P(("data", "model")))


@functools.cache
def chosen() -> Plan:
    """A training step whose shardings a planner chose."""
    params, settings = {"layers": [{"up": shape(512, 2048), "down": shape(2048, 512)}], "head": shape(512, 64)}, {"donate_argnums": (0, 1)}
    step = sp.auto_shard(train_step, mesh=MESH, planner=sp.Planner(hardware="h100"), lowering="jit", **settings)
    return step.plan(params, params, shape(16384, 512))


@functools.cache
def replicated_layers() -> Plan:
    """Layers that every device has whole, one finding for each."""
    layer = {"kernel": shape(2048, 2048)}

    def run(layers: Any, x: jax.Array) -> jax.Array:
        for each in layers:
            x = jnp.tanh(x @ each["kernel"])
        return x

    return sp.auto_shard(run, mesh=MESH, in_shardings=(None, P("data"))).plan([layer] * 3, shape(64, 2048))


@functools.cache
def scanned() -> Plan:
    """A loop, with values inside that `plan.values` does not list."""

    def run(w: jax.Array, x: jax.Array) -> jax.Array:
        return jax.lax.scan(lambda c, m: (jnp.tanh(c @ m), None), x, w)[0]

    return sp.auto_shard(run, mesh=MESH, in_shardings=(P(None, None, "model"), P("data"))).plan(shape(5, 16, 16), shape(8, 16))


@functools.cache
def ranks() -> Plan:
    """Arrays of rank 0 to 5 on a mesh whose devices stand in an order of their own; reshapes bring parts of axes."""

    def run(*arrays: jax.Array) -> list[jax.Array]:
        return [*(a + 1 for a in arrays), arrays[2].reshape(2, 4, 4), arrays[3].reshape(64)]

    devices = np.array(jax.devices()[:8])[[5, 2, 7, 0, 3, 6, 1, 4]].reshape(8)
    mesh = jax.sharding.Mesh(devices, ("x",))
    specs = (P(), P("x"), P("x", None), P(None, "x"), P(None, None, "x"), P("x", None, None, None, None))
    shapes = (shape(), shape(24), shape(8, 4), shape(4, 16), shape(3, 5, 8), shape(8, 1, 2, 1, 2))
    return sp.auto_shard(run, mesh=mesh, in_shardings=specs).plan(*shapes)


@functools.cache
def cube() -> Plan:
    """Arrays over three mesh axes, some of them together, in an order that is not the mesh's."""
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:8])[::-1].reshape(2, 2, 2), ("x", "y", "z"))
    specs = (P("x", "y", "z"), P(("z", "x"), "y"), P(None, ("x", "y", "z")), P("y"))
    shapes = (shape(4, 6, 8), shape(8, 2), shape(3, 16), shape(10))
    return sp.auto_shard(lambda *a: [each * 2 for each in a], mesh=mesh, in_shardings=specs).plan(*shapes)  # pyright: ignore[reportOperatorIssue]


@functools.cache
def offloaded() -> Plan:
    """An argument and a result in the host's memory."""
    mesh = jax.make_mesh((8,), ("x",))
    device = jax.sharding.NamedSharding(mesh, P("x"))
    host = device.with_memory_kind("pinned_host")
    step = sp.auto_shard(lambda w, state: (w * 2, state), mesh=mesh, in_shardings=(device, host), out_shardings=(device, host))
    return step.plan(shape(16, 4), shape(16, 8))


@functools.cache
def hostile() -> Plan:
    """Names that would be markup if they were written as they are."""

    def run(tree: Any) -> Any:
        with jax.named_scope("<img src=x onerror=alert(1)>"):
            return {key: value * 2 for key, value in tree.items()}

    run.__name__ = "<script>alert(1)</script>"
    step = sp.auto_shard(run, mesh={"<i>": 2, "m": 4}, in_shardings=(P("<i>"),))
    return step.plan({HOSTILE: shape(8, 4), "\u2028 ]]> <!-- \\": shape(4), "quote'\"": shape(2)})
