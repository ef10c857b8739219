"""Tracebacks show the user's lines: none of this package's above an error in a function, none but theirs for a mistake in a call."""

from __future__ import annotations

import traceback

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec as P

import shardy_py as sp

X = jnp.ones((8, 8))


def bad(x):
    return x @ jnp.ones((3, 3))


class Model:
    @sp.auto_shard(mesh={"data": 8})
    def step(self, x):
        return bad(x)


jax.tree_util.register_static(Model)


def constrained(x):
    return sp.with_sharding_constraint(x, P("dat"))


def sharded(f, **options):
    return sp.auto_shard(f, mesh={"data": 8}, **options)


IN_A_FUNCTION = {
    "call": lambda: sharded(bad)(X),
    "plan": lambda: sharded(bad).plan(X),
    "lower": lambda: sharded(bad).lower(X),
    "verify": lambda: sharded(bad).verify(X),
    "method": lambda: Model().step(X),
    "grad": lambda: jax.grad(lambda x: sharded(bad)(x).sum())(X),
    "jit": lambda: jax.jit(sharded(bad))(X),
    "named": lambda: sharded(sp.named_computation(bad))(X),
    "manual": lambda: sharded(sp.manual_computation(bad, in_specs=P("data"), out_specs=P("data")))(X),
    "rule": lambda: sharded(sp.sharding_rule("i j -> i j")(bad))(X),
    "pipeline": lambda: sp.pipeline(lambda w, x: bad(x @ w).sum(), num_stages=2, num_microbatches=2)(X, X),
}
IN_A_CALL = {
    "spec": lambda: sharded(jnp.sin, in_shardings=P("model"))(X),
    "spec of the result": lambda: sharded(jnp.sin, out_shardings=P("model")).plan(X),
    "constraint": lambda: sharded(constrained)(X),
    "mesh": lambda: sp.auto_shard(bad, mesh={"data": "8"}),
    "lowering": lambda: sp.auto_shard(bad, lowering="other"),
    "devices": lambda: sp.auto_shard(jnp.sin, mesh={"data": 1024})(X),
    "argument": lambda: sharded(jnp.sin)("text"),
}


def frames(run):
    with pytest.raises((TypeError, ValueError)) as error:
        run()
    return [frame for frame in traceback.extract_tb(error.value.__traceback__) if "_pytest" not in frame.filename]


@pytest.mark.parametrize("name", IN_A_FUNCTION)
def test_an_error_in_a_function_shows_no_frames_of_ours(name):
    found = frames(IN_A_FUNCTION[name])
    assert not [frame for frame in found if "shardy_py/" in frame.filename]
    assert any(frame.name == "bad" for frame in found)


@pytest.mark.parametrize("name", IN_A_CALL)
def test_a_mistake_in_a_call_ends_at_the_call(name):
    found = frames(IN_A_CALL[name])
    assert not [frame for frame in found if "shardy_py/" in frame.filename or "contextlib" in frame.filename]


def test_all_frames_are_shown_where_that_is_asked_for():
    before = jax.config.jax_traceback_filtering
    jax.config.update("jax_traceback_filtering", "off")
    try:
        found = frames(IN_A_FUNCTION["call"])
    finally:
        jax.config.update("jax_traceback_filtering", before)
    assert [frame for frame in found if "shardy_py/" in frame.filename]
