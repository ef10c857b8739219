"""Every fix that a finding offers can be written, and makes a plan that is better in what the finding is about."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
import pytest
from jax.sharding import PartitionSpec as P

import shardy_py as sp
from shardy_py.facade import Plan
from shardy_py.plan.checks import fixes
from tests import zoo
from tests.fixes import judge, small_programs_count

MESH = {"data": 2, "model": 4}


def f32(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def accumulated(spec: P | None = None) -> Plan:
    """Gradients of microbatches, added up by a scan; the reshape leaves a part of the axis on the dimension of the scan."""

    def loss(params, batch):
        return jnp.mean((jnp.tanh(batch["x"] @ params["up"]) @ params["down"] - batch["y"]) ** 2)

    def step(params, batch):
        micro = jax.tree.map(lambda x: x.reshape(4, x.shape[0] // 4, *x.shape[1:]), batch)
        micro = micro if spec is None else jax.tree.map(lambda x: sp.with_sharding_constraint(x, spec), micro)
        add = lambda total, part: (jax.tree.map(jnp.add, total, jax.grad(loss)(params, part)), None)  # noqa: E731
        grads, _ = jax.lax.scan(add, jax.tree.map(jnp.zeros_like, params), micro)
        return jax.tree.map(lambda p, g: p - 0.1 * g / 4, params, grads)

    params, batch = {"up": f32(64, 256), "down": f32(256, 64)}, {"x": f32(16384, 64), "y": f32(16384, 64)}
    return sp.auto_shard(step, mesh={"data": 8}, in_shardings=(P(), P("data")), donate_argnums=0).plan(params, batch)


def decoding() -> Plan:
    """A step whose cache is cut along the positions, for its two heads cannot be cut over four devices."""

    def step(w, cache, x, position):
        heads = (x @ w["kv"]).reshape(x.shape[0], 2, 64)
        cache = jax.lax.dynamic_update_slice(cache, heads[:, None], (0, position, 0, 0))
        scores = jnp.einsum("bgnd,blgd->bgnl", (x @ w["q"]).reshape(-1, 2, 4, 64), cache)
        return cache, jnp.einsum("bgnl,blgd->bgnd", jax.nn.softmax(scores), cache).reshape(x.shape[0], -1) @ w["o"]

    weights = {"q": f32(512, 512), "kv": f32(512, 128), "o": f32(512, 512)}
    specs = {"q": P(None, "model"), "kv": P(None, "model"), "o": P("model")}, P("data", "model"), P("data"), None
    position = jax.ShapeDtypeStruct((), jnp.int32)
    return sp.auto_shard(step, mesh=MESH, in_shardings=specs).plan(weights, f32(16, 8192, 2, 64), f32(16, 512), position)


def fully_sharded() -> Plan:
    """A batch that gives way to the parameters, at an embedding of several ops."""

    def loss(params, tokens):
        x = jnp.take(params["table"], tokens, axis=0)
        for w in params["layers"]:
            x = jnp.tanh(x @ w)
        return jnp.mean(x**2)

    params = {"table": f32(8192, 512), "layers": [f32(512, 512) for _ in range(2)]}
    specs = {"table": P("model", "data"), "layers": [P("data", "model")] * 2}
    step = sp.auto_shard(jax.grad(loss), mesh=MESH, in_shardings=(specs, P("data")))
    return step.plan(params, jax.ShapeDtypeStruct((64, 128), jnp.int32))


def stacked() -> Plan:
    """Layers and their moments, cut along the layers."""

    def step(params, state, x):
        grads = jax.grad(lambda p: jnp.sum(jax.lax.scan(lambda x, w: (jnp.tanh(x @ w), None), x, p["w"])[0]))(params)
        updates, state = optax.adam(1e-3).update(grads, state)
        return optax.apply_updates(params, updates), state

    params = {"w": f32(4, 512, 512)}
    state = jax.eval_shape(optax.adam(1e-3).init, params)
    cut = jax.tree.map(lambda leaf: P("model") if leaf.shape else None, state)
    return sp.auto_shard(step, mesh=MESH, in_shardings=(P("model"), cut, P("data"))).plan(params, state, f32(64, 512))


def started() -> Plan:
    params = {"w": f32(2048, 512)}
    return sp.auto_shard(optax.adam(1e-3).init, mesh=MESH, in_shardings=P("model", "data")).plan(params)


def heads() -> Plan:
    """A result that propagation cuts by a part of an axis."""
    split = lambda x, w: jnp.swapaxes((x @ w).reshape(64, 256, 12, 64), 1, 2) * 2  # noqa: E731
    return sp.auto_shard(split, mesh={"data": 2, "model": 8}, in_shardings=(P("data"), P(None, "model"))).plan(
        f32(64, 256, 768), f32(768, 768)
    )


def merged() -> Plan:
    logits = lambda table, x: x.reshape(-1, 256) @ table.T  # noqa: E731
    return sp.auto_shard(logits, mesh=MESH, in_shardings=(None, P(None, "model"))).plan(f32(50257, 256), f32(8, 512, 256))


PROGRAMS = {
    accumulated: "cut-along-scan",
    decoding: "replicated-large",
    fully_sharded: "batch-axis-lost",
    stacked: "cut-along-scan",
    started: "state-unlike-parameter",
    heads: "sub-axis-removed",
    merged: "axis-lost-in-reshape",
}


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda f: f.__name__)
def test_every_fix_helps(program: Callable[[], Plan]) -> None:
    with small_programs_count(1 << 16):
        judged = judge(program())
    if program is not decoding:
        assert PROGRAMS[program] in [finding.kind for finding in judged]


def test_the_fix_as_it_is_written() -> None:
    plan = accumulated()
    fix = next(finding for finding in plan.findings if finding.kind == "cut-along-scan")
    assert fix.fix.endswith("P(None, 'data') by sp.with_sharding_constraint")
    constrained = accumulated(P(None, "data"))
    assert "cut-along-scan" not in {finding.kind for finding in constrained.findings}
    assert sum(c.call_bytes for c in constrained.collectives) < sum(c.call_bytes for c in plan.collectives)
    assert "batch-axis-lost" not in {finding.kind for finding in plan.findings}  # dimension 0 of a slice has the size 1


def test_weights_of_a_decoding_step_are_no_batch_that_gets_lost() -> None:
    assert "batch-axis-lost" not in {finding.kind for finding in decoding().findings}


def test_where_nothing_helps_the_finding_stays() -> None:
    with small_programs_count(1 << 16):
        table = next(finding for finding in merged().findings if finding.path == "table")
    assert (table.kind, table.sharding, table.targets) == ("replicated-large", None, ())
    assert table.fix == "write P() in in_shardings or rules if replication is intended"


def test_what_is_not_tried_is_marked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fixes, "MAX_OPS", 1)
    assert any(f.sharding is not None for f in accumulated().findings)
    assert all(f.fix.endswith("(not tried)") for f in accumulated().findings if f.sharding is not None)
    stored = Plan.from_json(accumulated().to_json())
    assert all(f.fix.endswith("(not tried)") for f in stored.findings if f.sharding is not None)


def cuts(how: str, args: Any) -> Any:
    """None, the data over `data`, or fully sharded besides."""

    def spec(leaf: Any, number: int) -> P | None:
        if not leaf.shape or jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            return None
        d = 0 if number else max(range(len(leaf.shape)), key=lambda d: leaf.shape[d])
        return P(*[None] * d, "data") if leaf.shape[d] % 2 == 0 and (number or how == "fully sharded") else None

    return None if how == "whole" else tuple(jax.tree.map(lambda leaf, i=i: spec(leaf, i), arg) for i, arg in enumerate(args))


@pytest.mark.slow
@pytest.mark.skipif(not zoo.ZOO.exists(), reason="the programs that projects share are not here")
@pytest.mark.parametrize(
    ("name", "how"), [*zip(zoo.programs() if zoo.ZOO.exists() else [], itertools.cycle(["whole", "by data", "fully sharded"]))]
)
def test_every_fix_helps_in_the_zoo(name: str, how: str) -> None:
    function, args = zoo.programs()[name]()
    with small_programs_count():
        judge(sp.auto_shard(function, mesh=MESH, in_shardings=cuts(how, args)).plan(*args))
