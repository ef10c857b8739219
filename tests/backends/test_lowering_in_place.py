"""Equations of a region that are lowered where they stand, instead of as functions."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import PartitionSpec as P

import shardy_py as sp
from shardy_py.backends.lowering_in_place import never_alike
from shardy_py.frontends import _jax
from shardy_py.frontends.context import lowered_in_place


def names(f, *args) -> list[str]:
    return [primitive.name for primitive in never_alike(jax.make_jaxpr(f)(*args).jaxpr)]


def test_primitives_no_two_equations_of_which_are_alike() -> None:
    x = jnp.ones(4)

    def f(x: jax.Array) -> jax.Array:
        return lax.cumsum(lax.erf(lax.cumsum(lax.sin(x))))

    assert names(f, x) == ["erf"]  # a sine is one op, which is written down, and two cumulative sums can share a function


def test_equations_of_bodies_count_once_for_each_body() -> None:
    def f(x: jax.Array) -> jax.Array:
        return lax.fori_loop(0, 3, lambda _, y: lax.logistic(y), x)

    assert "logistic" in names(f, jnp.ones(4))
    assert "logistic" not in names(lambda x: f(lax.logistic(x)), jnp.ones(4))


def test_all_is_as_before_afterwards() -> None:
    before = set(_jax._lowered_in_place)
    with lowered_in_place([lax.sin_p, lax.cos_p]), lowered_in_place([lax.cos_p]):
        assert lax.sin_p in _jax._lowered_in_place
    assert _jax._lowered_in_place == before
    kept = next(iter(before))
    with lowered_in_place([kept]):
        pass
    assert kept in _jax._lowered_in_place  # as its rule says


def test_a_region_is_lowered_without_functions_that_are_called_once() -> None:
    mesh = jax.make_mesh((2, 4), ("x", "y"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
    step = sp.auto_shard(lambda a, b: jnp.tanh(a @ b).sum(), mesh=mesh, in_shardings=(P("x", "y"), P("y")), lowering="shard_map")
    a, b = np.ones((8, 16), np.float32) / 16, np.ones((16, 4), np.float32)
    text = step.lower(a, b).as_text()
    assert "stablehlo.dot_general" in text
    assert "func.func private" not in text
    np.testing.assert_allclose(step(a, b), np.tanh(a @ b).sum(), rtol=1e-6)
