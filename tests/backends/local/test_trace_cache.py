"""Bodies are traced once."""

from __future__ import annotations

from typing import Any

import jax
from jax import lax
from jax import numpy as jnp

from shardy_py.backends.local.local_rule import affine, block_index
from shardy_py.backends.local.trace_cache import once, remembering

AXES = [("x", 2), ("y", 4)]


def primitives(function: Any, *args: Any) -> list[str]:
    with remembering():
        closed = jax.make_jaxpr(function, axis_env=AXES)(*args)
    return [eqn.primitive.name for eqn in closed.jaxpr.eqns]


def test_a_place_along_axes_is_traced_once() -> None:
    def local(x: Any) -> list[Any]:
        start = lax.mul(x, affine(block_index(("x", "y")), 4))
        return [start, lax.sub(x, affine(block_index(("x", "y")), 4)), lax.add(x, block_index(("x",)))]

    assert primitives(local, jnp.int32(3)) == ["axis_index", "axis_index", "mul", "add", "mul", "mul", "sub", "add"]


def test_a_body_traces_its_own() -> None:
    def local(x: Any) -> Any:
        x = x + block_index(("x",))
        return lax.scan(lambda carry, _: (carry + block_index(("x",)), None), x, None, length=3)[0]

    with remembering():
        closed = jax.make_jaxpr(local, axis_env=AXES)(jnp.int32(3))
    *_, loop = closed.jaxpr.eqns
    assert [v.aval.shape for v in loop.invars] == [()]  # nothing but the carry comes from outside
    assert "axis_index" in str(loop.params["jaxpr"])


def test_what_is_lowered_otherwise_is_traced_again() -> None:
    @once
    def doubled(x: Any) -> Any:
        return lax.mul(x, 2.0)

    def local(x: Any) -> list[Any]:
        with jax.threefry_partitionable(False):
            other = doubled(x)
        return [other, doubled(x), doubled(x)]

    assert primitives(local, 3.0) == ["mul", "mul"]


def test_nothing_is_remembered_outside() -> None:
    made = jax.make_jaxpr(lambda: [block_index(("x",)), block_index(("x",))], axis_env=AXES)()
    assert len(made.jaxpr.eqns) == 2
