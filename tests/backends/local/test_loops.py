"""Loops of local arrays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest
from jax import lax
from jax import numpy as jnp
from jax.sharding import PartitionSpec as P

import shardy_py as sp

X = np.arange(64, dtype=np.float32).reshape(8, 8) / 64


def scanned(x: Any, xs: Any) -> Any:
    """Rows made of a constant that has to be moved, and of a carry."""
    return lax.scan(lambda carry, row: (carry @ x + row, carry.sum(0) + row), x, xs)


LOOPS: dict[str, Callable[[Any], Any]] = {
    "fori_loop": lambda x: lax.fori_loop(0, 0, lambda i, y: y.at[1:].add(y[:-1]) @ x, x),
    "scan": lambda x: scanned(x, x[:0]),
    "in a loop": lambda x: lax.fori_loop(0, 3, lambda i, y: scanned(y @ x, x[:0])[0] + 1, x),
    "around a loop": lambda x: lax.fori_loop(0, 0, lambda i, y: scanned(y, x)[0], x),
}


@pytest.mark.parametrize("kind", LOOPS)
@pytest.mark.parametrize("spec", [P("x", "y"), P("y")], ids=str)
def test_loops_that_never_run(kind: str, spec: P) -> None:
    """Their parts are laid out and compiled all the same, also those of the gradient."""
    function = LOOPS[kind]

    def both(x: Any) -> Any:
        return function(x), jax.grad(lambda x: sum(jnp.sum(jnp.sin(leaf)) for leaf in jax.tree.leaves(function(x))))(x)

    step = sp.auto_shard(both, mesh={"x": 2, "y": 4}, in_shardings=spec, lowering="shard_map")
    for got, want in zip(jax.tree.leaves(step(X)), jax.tree.leaves(jax.jit(both)(X)), strict=True):
        # Derivatives of the sines of numbers near 100: float32 leaves 1e-5 of the largest, under jax.jit too.
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=3e-5 * np.max(np.abs(want), initial=1.0))


def test_what_branches_and_steps_have_whole_is_used_whole() -> None:
    """The squarings of a matrix exponential: their results are planned cut, and are whole on every device, where nothing need be sent."""
    step = jax.value_and_grad(lambda a: jax.scipy.linalg.expm(a[0]).sum())
    a = np.random.default_rng(0).normal(size=(3, 8, 8)).astype(np.float32)
    planned = sp.auto_shard(step, mesh={"x": 4, "y": 2}, in_shardings=P(None, "x"), lowering="shard_map")
    assert sum(c.total_bytes or 0 for c in planned.plan(a).collectives) < 12 << 10  # 14454 bytes where slices and branches lie as planned
    for ours, theirs in zip(planned(a), jax.jit(step)(a), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-3, atol=1e-3)


def attended(x: Any, w: Any) -> tuple[Any, None]:
    """A layer of attention with a causal mask, which JAX moves out of the loop over layers, broadcast."""
    q, k, v = jnp.einsum("btd,dnhk->nbthk", x, w)
    mask = jnp.tril(jnp.ones((x.shape[1], x.shape[1]), bool))
    scores = jnp.where(mask, jnp.einsum("bthk,bshk->bhts", q, k), -1e9)
    return x + jnp.einsum("bhts,bshk->bthk", jax.nn.softmax(scores), v).reshape(x.shape), None


def trained(w: Any, x: Any) -> Any:
    return jax.grad(lambda w: jnp.sum(lax.scan(attended, x, w)[0] ** 2))(w)


def repeated(w: Any, x: Any) -> Any:
    """The mask is made outside of a loop with an unknown number of trips."""
    keep = jnp.broadcast_to(jnp.arange(16) % 2 == 0, (16, 4, 8, 16))
    y = jnp.broadcast_to(x[:, None], (16, 4, 8, 16)) * w[0, 0, 0, :, 0][:, None, None]
    return lax.while_loop(lambda s: s[0] < w.shape[0], lambda s: (s[0] + 1, jnp.where(keep, jnp.sin(s[1]), s[1])), (0, y))[1]


@pytest.mark.parametrize(("function", "shape"), [(trained, "16x4x8x8x"), (repeated, "16x4x8x16x")], ids=["scan", "while"])
def test_what_a_loop_does_not_change_is_as_small_as_what_is_used(function: Callable[..., Any], shape: str) -> None:
    rng = np.random.default_rng(0)
    w, x = (rng.normal(size=size).astype(np.float32) * 0.3 for size in ((2, 16, 3, 4, 4), (16, 8, 16)))
    mesh = {"x": 2, "y": 4}
    step = sp.auto_shard(function, mesh=mesh, in_shardings=(P(None, None, None, "y"), P("x")), lowering="shard_map")
    loops = [line for line in step.lower(w, x).as_text().splitlines() if "stablehlo.while" in line]
    assert loops
    assert not [line for line in loops if f"tensor<{shape}" in line]
    np.testing.assert_allclose(step(w, x), jax.jit(function)(w, x), rtol=1e-3, atol=1e-4)
