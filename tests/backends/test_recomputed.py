"""Scans that keep no residuals compute what they computed before."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.core import jaxpr_as_fun

from shardy_py.backends.recomputed import recomputed
from shardy_py.frontends.loops import scan_counts

B = np.full((8, 8), 0.1, np.float32)
RANDOM = np.random.default_rng(0)
W = [(RANDOM.standard_normal((4, 8, 8)) * 0.3).astype(np.float32) for _ in range(2)]
X = RANDOM.standard_normal((3, 5, 8)).astype(np.float32)


def layer(carry, w):
    x, i = carry
    a = jnp.tanh(x @ w[0]) + i
    return (a * jnp.exp(-x * x) + jnp.sin(a @ w[1]) @ B, i + 1.0), (a.sum(), x)


def loss(w, x, reverse=False):
    (y, _), (sums, xs) = jax.lax.scan(layer, (x, 0.0), w, reverse=reverse)
    return (y * y).sum() + sums.sum() + (xs**2).mean()


def accumulated(w, batches):
    def add(total, x):
        value, gradients = jax.value_and_grad(loss)(w, x)
        return jax.tree.map(jnp.add, total, gradients), value

    return jax.lax.scan(add, jax.tree.map(jnp.zeros_like, w), batches)


def two_scans(w, x):
    (y, _), _ = jax.lax.scan(layer, (x, 0.0), w)
    return loss(w, y)


def inner(w, x):
    """A scan of layers, each of which scans."""

    def outer(x, w):
        y, _ = jax.lax.scan(lambda y, _: (jnp.tanh(y @ w[0]) * y, None), x, None, length=3)
        return y, None

    return jax.lax.scan(outer, x, w)[0].sum()


PROGRAMS = {
    "value and gradient": (jax.value_and_grad(loss, argnums=(0, 1)), (W, X[0])),
    "reversed": (jax.grad(lambda w, x: loss(w, x, reverse=True)), (W, X[0])),
    "accumulated": (accumulated, (W, X)),
    "two scans": (jax.grad(two_scans), (W, X[0])),
    "scans in a scan": (jax.grad(inner), (W, X[0])),
    "inside of a jit": (jax.jit(jax.grad(loss)), (W, X[0])),
    "gradient of a jit": (jax.grad(jax.jit(inner)), (W, X[0])),
}


def stacked(jaxpr):
    """Elements of what scans stack up."""
    total = 0
    for eqn in jaxpr.eqns:
        for body in jax.extend.core.jaxprs_in_params(eqn.params):
            total += stacked(body)
        if eqn.primitive.name == "scan":
            total += sum(int(np.prod(v.aval.shape)) for v in eqn.outvars[scan_counts(eqn)[1] :])
    return total


@pytest.mark.parametrize("name", PROGRAMS)
def test_numbers_stay(name):
    function, args = PROGRAMS[name]
    jaxpr = jax.make_jaxpr(function)(*args)
    variant = recomputed(jaxpr)
    assert variant is not None
    assert all("test_recomputed.py" in place for place in variant.places)
    assert len(variant.places) == (2 if name == "two scans" else len(variant.places))
    assert stacked(variant.jaxpr.jaxpr) < stacked(jaxpr.jaxpr)
    leaves = jax.tree.leaves(args)
    for a, b in zip(jaxpr_as_fun(variant.jaxpr)(*leaves), jaxpr_as_fun(jaxpr)(*leaves), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)


def checkpointed(w, x):
    return jax.lax.scan(jax.checkpoint(layer), (x, 0.0), w)[0][0].sum()


def kept(w, x):
    """Residuals that are results too, which nothing makes unnecessary."""
    return jax.lax.scan(lambda y, w: (jnp.tanh(y @ w[0]), None), x, w)[0]


@pytest.mark.parametrize("function", [jax.grad(checkpointed), checkpointed, kept])
def test_nothing_to_recompute(function):
    assert recomputed(jax.make_jaxpr(function)(W, X[0])) is None
