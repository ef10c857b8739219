"""Ops of no family on local arrays."""

from __future__ import annotations

import numpy as np
import pytest
from jax import lax
from jax import numpy as jnp
from jax.sharding import PartitionSpec as P

import shardy_py as sp
from tests.backends.local.forced import check

X = jnp.asarray(np.random.default_rng(0).normal(size=(5, 6, 4)), jnp.float32)


def test_bits_of_another_width() -> None:
    check(lambda x: lax.bitcast_convert_type(x, jnp.int32), X, name="bitcast_convert_type", count=1, cuts=6)
    check(lambda x: lax.bitcast_convert_type(x, jnp.uint8), X, name="bitcast_convert_type", count=1, cuts=6)
    check(lambda x: lax.bitcast_convert_type(x, jnp.float32), X.astype(jnp.bfloat16)[..., :2], name="bitcast_convert_type", count=1, cuts=4)


@pytest.mark.parametrize("axes", [(1,), (0, 2)], ids=str)
def test_parts_are_reduced_by_a_function_of_the_user(axes: tuple[int, ...]) -> None:
    def both(x: jnp.ndarray) -> object:  # from starts that are not neutral
        return lax.reduce((x, x + 1), (0.5, 2.0), lambda a, b: (a[0] + b[0], jnp.maximum(a[1], b[1])), axes)

    check(both, X, name="reduce", cuts=6, tolerance=1e-4)


def test_what_may_not_be_associative_is_reduced_whole() -> None:
    def both(x: jnp.ndarray) -> object:
        return lax.reduce((x, x + 1), (0.0, 1.0), lambda a, b: (a[0] + 2 * b[0], a[1] * b[1] + a[0]), (1,))

    check(both, X, name="reduce", cuts=4, tolerance=1e-4)


def test_parts_without_elements_do_not_count_as_a_start() -> None:
    def step(x: jnp.ndarray) -> object:
        x = sp.with_sharding_constraint(x * 1, P("x"))
        return lax.reduce((x, x), (5.0, 5.0), lambda a, b: (a[0] + b[0], a[1] * b[1]), (0,))

    planned = sp.auto_shard(step, mesh={"x": 8}, lowering="shard_map")
    x = np.arange(1, 6, dtype="float32")
    np.testing.assert_allclose(planned(x), (20, 600))
    assert planned.plan(x).cost_analysis("h100").communicated_bytes <= 7 * 2 * 4
