"""Caches of functions that are dropped, and the call that clears them."""

from __future__ import annotations

import functools
import gc
import sys
import weakref
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec as P

import shardy_py as sp

X = jax.ShapeDtypeStruct((8, 16), jnp.float32)
W = jax.ShapeDtypeStruct((16, 8), jnp.float32)


def decorated(lowering: str, scale: float = 2.0) -> sp.AutoSharded[..., Any]:
    mesh = jax.make_mesh((2, 4), ("x", "y"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
    return sp.auto_shard(lambda x, w: jnp.tanh(x @ w) * scale, mesh=mesh, in_shardings=(P("x"), P(None, "y")), lowering=lowering)


def in_use() -> dict[str, int]:
    """Caches of the package that hold something."""
    caches = [(name, v) for name, m in sys.modules.items() if name.startswith("shardy_py.") for v in vars(m).values()]
    return {
        f"{name}.{cache.__qualname__}": cache.cache_info().currsize
        for name, cache in caches
        if isinstance(cache, functools._lru_cache_wrapper) and cache.__module__ == name and cache.cache_info().currsize
    }


@pytest.mark.parametrize("run", ["plan", "lower", "call"])
@pytest.mark.parametrize("lowering", ["jit", "shard_map"])
def test_a_dropped_function_is_forgotten(lowering: str, run: str, only_new_garbage: None) -> None:
    step = decorated(lowering, scale=3.0)
    plan = step.plan(X, W)
    assert plan.collectives is not None
    if run == "lower":
        step.lower(X, W)
    elif run == "call":
        step(jnp.ones(X.shape), jnp.ones(W.shape))
    dropped = weakref.ref(plan)
    del plan, step
    gc.collect()
    assert dropped() is None


def test_one_call_forgets_everything() -> None:
    step = decorated("shard_map")
    args = jnp.ones(X.shape), jnp.ones(W.shape)
    result = step(*args)
    assert step.plan_count == 1
    assert in_use()
    sp.clear_caches()
    assert not in_use()
    assert (step(*args) == result).all()
    assert step.plan_count == 2
