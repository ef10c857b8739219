"""Sums that every device keeps its own part of."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import shardy_py as sp
from shardy_py.frontends.partial_sums import partial_sums

RNG = np.random.default_rng(0)
X = RNG.integers(-4, 5, (16, 8)).astype("float32")
Y = RNG.integers(-4, 5, (16, 4)).astype("float32")


def ran(fun: Any, specs: tuple[Any, ...], out: Any, args: tuple[Any, ...], lowering: str = "shard_map") -> tuple[Any, Any]:
    mesh = jax.make_mesh((2, 4), ("a", "b"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
    step = sp.auto_shard(fun, mesh=mesh, in_shardings=specs, out_shardings=NamedSharding(mesh, out), lowering=lowering)
    return np.asarray(step(*args)), step.plan(*args)


@pytest.mark.parametrize(
    ("axes", "parts", "out"),
    [("a", 2, P("a")), (("a", "b"), 8, P(("a", "b"))), (("b", "a"), 8, P(("b", "a"))), ("b", 4, P("b", "a"))],
    ids=str,
)
def test_nothing_is_sent(axes: Any, parts: int, out: Any) -> None:
    got, plan = ran(lambda x, y: partial_sums(jnp.sin(x).T @ y, parts), (P(axes), P(axes)), out, (X, Y))
    assert not plan.collectives
    rows = [np.sin(x).T @ y for x, y in zip(np.split(X, parts), np.split(Y, parts))]
    np.testing.assert_allclose(got, np.stack(rows), rtol=1e-5, atol=1e-5)


def test_sums_of_them_need_no_more() -> None:
    def step(total: Any, x: Any, y: Any) -> Any:
        return total + partial_sums((2.0 * (x.T @ y)).T, 8)

    got, plan = ran(step, (P(("a", "b")), P(("a", "b")), P(("a", "b"))), P(("a", "b")), (np.ones((8, 4, 8), "float32"), X, Y))
    assert not plan.collectives
    np.testing.assert_array_equal(got.sum(0), 8 + 2 * Y.T @ X)


def test_what_is_summed_over_some_of_the_axes() -> None:
    got, plan = ran(lambda x, y: partial_sums(x.T @ y, 8), (P("a"), P("a")), P(("a", "b")), (X, Y))
    assert not plan.collectives
    np.testing.assert_array_equal(got.sum(0), X.T @ Y)
    assert [bool(row.any()) for row in got] == [True, False, False, False] * 2


@pytest.mark.parametrize("lowering", ["jit", "shard_map"])
@pytest.mark.parametrize("spec", [P(), P("a")], ids=str)
def test_what_is_no_sum_comes_first(lowering: str, spec: Any) -> None:
    got, _ = ran(lambda x: partial_sums(x + 1, 4), (spec,), P("b"), (X.astype(int),), lowering)
    np.testing.assert_array_equal(got, [X + 1, *np.zeros((3, 16, 8), int)])


@pytest.mark.parametrize("lowering", ["jit", "shard_map"])
@pytest.mark.parametrize("out", [P(), P(None, "a"), P("a"), P("b")], ids=str)
def test_any_result(lowering: str, out: Any) -> None:
    """Also where the parts are not one for each device."""
    got, _ = ran(lambda x, y: partial_sums(x.T @ y, 4), (P("b"), P("b")), out, (X, Y), lowering)
    np.testing.assert_array_equal(got.sum(0), X.T @ Y)


def test_as_it_is() -> None:
    np.testing.assert_array_equal(partial_sums(X, 3), jax.jit(partial_sums, static_argnums=1)(X, 3))
    assert partial_sums(jnp.arange(3), 2).tolist() == [[0, 1, 2], [0, 0, 0]]
