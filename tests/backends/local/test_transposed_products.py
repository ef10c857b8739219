"""Products that are made transposed."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.core import ClosedJaxpr, jaxpr_as_fun

from shardy_py.backends.local.passes import transposed_products
from shardy_py.backends.local.simplify import simplify

A = np.arange(24, dtype=np.float32).reshape(4, 6)
B = np.arange(20, dtype=np.float32).reshape(4, 5) % 7
BATCHED_A = np.arange(48, dtype=np.float32).reshape(2, 4, 6) % 5
BATCHED_B = np.arange(40, dtype=np.float32).reshape(2, 4, 5) % 3


def names(closed: ClosedJaxpr) -> list[str]:
    return [eqn.primitive.name for eqn in closed.jaxpr.eqns]


def swapped(fun, *args) -> ClosedJaxpr:
    closed = jax.make_jaxpr(fun)(*args)
    return ClosedJaxpr(simplify(transposed_products(closed.jaxpr)), closed.consts)


@pytest.mark.parametrize(
    ("fun", "args"),
    [
        (lambda a, b: jnp.einsum("ti,tj->ij", a, b).T, (A, B)),
        (lambda a, b: jax.lax.dot_general(a, b, (((0,), (0,)), ((), ())), precision=("highest", "default")).T, (A, B)),
        (lambda a, b: jnp.einsum("bti,btj->bij", a, b).transpose(0, 2, 1), (BATCHED_A, BATCHED_B)),
        (lambda w, b: jax.grad(lambda w: jnp.sum(jnp.sin(w @ b)))(w), (A.T, B)),
    ],
)
def test_a_transposed_product_is_one_product(fun, args) -> None:
    closed = swapped(fun, *args)
    assert "transpose" not in names(closed)
    np.testing.assert_allclose(jaxpr_as_fun(closed)(*args)[0], fun(*args), rtol=1e-6)


@pytest.mark.parametrize(
    ("fun", "args"),
    [
        (lambda a, b: jnp.einsum("bti,btj->bij", a, b).transpose(2, 1, 0), (BATCHED_A, BATCHED_B)),
        (lambda a, b: (y := jnp.einsum("ti,tj->ij", a, b), y.T), (A, B)),
        (lambda a, b: jnp.einsum("ti,cti->tc", a, b).T, (A, np.stack([A, A]))),
    ],
)
def test_another_order_or_another_use_keeps_the_transposition(fun, args) -> None:
    closed = swapped(fun, *args)
    assert "transpose" in names(closed)
    for ours, theirs in zip(jaxpr_as_fun(closed)(*args), jax.tree.leaves(fun(*args))):
        np.testing.assert_array_equal(ours, theirs)


def test_an_algorithm_names_operands_and_is_kept() -> None:
    algorithm = jax.lax.DotAlgorithm(np.float16, np.float32, np.float32)
    closed = swapped(lambda a, b: jax.lax.dot_general(a, b, (((0,), (0,)), ((), ())), precision=algorithm).T, A, B)
    assert names(closed) == ["dot_general", "transpose"]
    assert closed.jaxpr.eqns[0].params["precision"] == algorithm


def test_bodies_of_loops_are_entered() -> None:
    def fun(xs):
        return jax.lax.scan(lambda c, x: (c + (x.T @ c).T, None), jnp.eye(4), xs)[0]

    xs = np.arange(48, dtype=np.float32).reshape(3, 4, 4) / 48
    closed = swapped(fun, xs)
    body = closed.jaxpr.eqns[-1].params["jaxpr"]
    left = [eqn.primitive.name for eqn in getattr(body, "jaxpr", body).eqns]
    assert left.count("transpose") == 1  # that of x, which is an operand
    np.testing.assert_allclose(jaxpr_as_fun(closed)(xs)[0], fun(xs), rtol=1e-6)
