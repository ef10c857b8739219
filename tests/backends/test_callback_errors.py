"""Exceptions of callbacks on several devices reach the caller; programs go on working after them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import io_callback
from jax.sharding import PartitionSpec as P

import shardy_py as sp


class Refused(Exception):
    pass


def refuse_negative(x):
    if (np.asarray(x) < 0).any():
        raise Refused("a negative number")
    return 2 * np.asarray(x)


def pure(x):
    return jax.pure_callback(refuse_negative, jax.typeof(x), x, vmap_method="expand_dims")


def impure(x):
    return io_callback(refuse_negative, jax.typeof(x), x)


def in_a_loop(x):
    return jax.lax.scan(lambda carry, _: (pure(carry) / 2, None), x, length=2)[0] * 2


def in_a_branch(x):
    return jax.lax.cond(x.sum() < 1e6, jax.jit(pure), lambda x: x, x)


@pytest.mark.parametrize("lowering", ["jit", "shard_map"])
@pytest.mark.parametrize("call", [pure, impure, in_a_loop, in_a_branch])
def test_the_exception_of_a_callback_reaches_the_caller(call, lowering):
    """Under `jax.jit` the devices that wait in the sum end the process."""
    step = sp.auto_shard(lambda x: (call(x) @ jnp.ones((4, 8))).sum(), mesh={"x": 8}, in_shardings=P("x"), lowering=lowering)
    x = jnp.ones((8, 4))
    assert step(x) == 512
    with pytest.raises(Refused, match="a negative number") as refused:
        step(-x)
    assert refused.traceback[-1].name == "refuse_negative"
    assert step(x) == 512


def test_a_callback_without_an_exception_is_differentiated_around():
    """A function that is only transformed runs as under JAX."""
    step = sp.auto_shard(lambda x, w: (jax.lax.stop_gradient(pure(x)) * w).sum(), mesh={"x": 8}, in_shardings=(P("x"), None))
    np.testing.assert_array_equal(jax.grad(step, argnums=1)(jnp.ones((8, 4)), jnp.ones(4)), np.full(4, 16.0))
