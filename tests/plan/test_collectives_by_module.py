"""Collectives of each module, forward and backward apart; and the region as a jaxpr."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec as P

import shardy_py as sp
from shardy_py.facade import Plan
from shardy_py.plan.collectives import summary

MESH = {"data": 2, "model": 4}


def f32(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def layer(w: Any, x: jax.Array) -> jax.Array:
    with jax.named_scope("up"):
        hidden = jax.nn.relu(x @ w["up"])
    with jax.named_scope("down"):
        return jnp.tanh(hidden @ w["down"])


def unrolled(params: Any, x: jax.Array) -> jax.Array:
    for name in ("first", "second"):
        with jax.named_scope(name):
            x = layer(params[name], x)
    return jnp.mean(x**2)


def scanned(params: Any, x: jax.Array) -> jax.Array:
    with jax.named_scope("layers"):
        return jnp.mean(jax.lax.scan(lambda x, w: (layer(w, x), None), x, params)[0] ** 2)


LAYER = {"up": f32(64, 256), "down": f32(256, 64)}


def planned(fun: Any, lowering: str, grad: bool = True) -> Plan:
    params: Any = {"first": LAYER, "second": LAYER} if fun is unrolled else {"up": f32(5, 64, 256), "down": f32(5, 256, 64)}
    stacked = () if fun is unrolled else (None,)
    rules = [("up", P(*stacked, None, "model")), ("down", P(*stacked, "model"))]
    step = sp.auto_shard(jax.grad(fun) if grad else fun, mesh=MESH, rules=rules, in_shardings={"x": P("data")}, lowering=lowering)
    return step.plan(params, f32(32, 64))


@pytest.mark.parametrize("lowering", ["shard_map", "jit"])
@pytest.mark.parametrize("fun", [unrolled, scanned])
def test_modules_add_up_to_the_collectives(fun: Any, lowering: str) -> None:
    plan = planned(fun, lowering)
    modules = plan.collectives_by_module()
    whole = modules[""]
    assert whole.forward == summary(c for c in plan.collectives if not c.backward)
    assert whole.backward == summary(c for c in plan.collectives if c.backward)
    assert whole.forward
    assert whole.backward
    for path, module in modules.items():
        inside = [c for c in plan.collectives if not path or f"{c.module}/".startswith(f"{path}/")]
        assert sum(total.count for total in (*module.forward, *module.backward)) == len(inside)
    assert list(plan.collectives_by_module(depth=0)) == [""]


@pytest.mark.parametrize("lowering", ["shard_map", "jit"])
def test_a_forward_pass_alone_has_nothing_backward(lowering: str) -> None:
    modules = planned(unrolled, lowering, grad=False).collectives_by_module()
    assert [module.backward for module in modules.values()] == [()] * len(modules)
    assert {"first/down", "second/down"} <= set(modules)
    assert [total.count for total in modules["first"].forward] == [1]


def test_inner_modules_follow_the_one_they_are_in() -> None:
    text = str(planned(unrolled, "shard_map").collectives_by_module())
    lines = [line.split()[0] for line in text.splitlines()]
    assert lines[:2] == ["module", "(all)"]
    first, second = lines.index("first"), lines.index("second")
    assert {"up", "down"} >= set(lines[first + 1 : second])
    with pytest.raises(sp.ShardyError, match="depth is -1"):
        planned(unrolled, "shard_map").collectives_by_module(-1)


def test_a_loop_counts_with_its_trips() -> None:
    (total,) = planned(scanned, "shard_map", grad=False).collectives_by_module()["layers/down"].forward
    assert (total.count, total.bytes) == (1, 5 * 2 * 3 * 16 * 64 * 4 // 4)  # an all-reduce of float32[16,64] over 4 devices, five times


def test_stored_plans_answer_alike() -> None:
    plan = planned(unrolled, "shard_map")
    assert Plan.from_json(plan.to_json()).collectives_by_module() == plan.collectives_by_module()


def test_the_region_as_a_jaxpr() -> None:
    plan = planned(unrolled, "shard_map", grad=False)
    region = plan.region_jaxpr
    assert [v.aval.shape for v in region.invars] == [(64, 64), (64, 64), (64, 64), (64, 64), (16, 64)]
    assert [eqn.primitive.name for eqn in region.eqns].count("psum") + str(region).count("psum_invariant") == len(plan.collectives)
    assert planned(unrolled, "jit").region_jaxpr is None
    assert Plan.from_json(plan.to_json()).region_jaxpr is None
