"""Small steps and data that tests of pipelines share."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

WIDTH = 8
ROWS = 16


def params() -> dict[str, Any]:
    draw = np.random.default_rng(0)
    return {name: jnp.asarray(draw.normal(size=(WIDTH, WIDTH)) * 0.5, "float32") for name in "abc"}


def data() -> tuple[Any, Any]:
    draw = np.random.default_rng(1)
    return draw.normal(size=(ROWS, WIDTH)).astype("float32"), draw.normal(size=(ROWS, WIDTH)).astype("float32")


def net(p: Any, x: Any) -> Any:
    return jnp.tanh(jnp.tanh(x @ p["a"]) @ p["b"]) @ p["c"]


def loss(p: Any, x: Any, y: Any) -> Any:
    return jnp.mean((net(p, x) - y) ** 2)


def norm_loss(p: Any, x: Any, y: Any) -> Any:
    """With batch normalization; gives the running mean, too."""
    h = x @ p["a"]
    mean = h.mean(0)
    h = (h - mean) * jax.lax.rsqrt(((h - mean) ** 2).mean(0) + 1e-3) * p["b"][0]
    return jnp.mean((h @ p["c"] - y) ** 2), 0.9 * p["b"][1] + 0.1 * mean


def loop_loss(p: Any, x: Any, y: Any) -> Any:
    """A recurrent net over four steps."""
    steps = x.reshape(x.shape[0], 4, 2).transpose(1, 0, 2)

    def body(c: Any, u: Any) -> Any:
        return jnp.tanh(c @ p["a"] + u @ p["b"][:2]), c

    last, rows = jax.lax.scan(body, jnp.zeros((x.shape[0], WIDTH)), steps)
    return jnp.mean((last @ p["c"] - y) ** 2) + jnp.mean(rows**2)


def per_microbatch(fun: Any, count: int) -> Any:
    """The average of a function's results on equal parts of its last two arguments."""

    def run(p: Any, x: Any, y: Any) -> Any:
        n = x.shape[0] // count
        parts = [fun(p, x[i * n : (i + 1) * n], y[i * n : (i + 1) * n]) for i in range(count)]
        return jax.tree.map(lambda *a: sum(a) / count, *parts)

    return run


def largest_gap(got: Any, wanted: Any) -> float:
    gaps = jax.tree.map(lambda a, b: float(np.max(np.abs(np.asarray(a, "float64") - np.asarray(b, "float64")))), got, wanted)
    return max(jax.tree.leaves(gaps))
