"""Sums over devices are scaled, not their parts, where the scaling is fused with what reads the sum."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest
from jax import lax
from jax import numpy as jnp
from jax.extend.core import Jaxpr
from jax.sharding import PartitionSpec as P

from shardy_py.backends.local.passes import optimize_region
from tests.backends.local.test_hoist import SIZES, changed

X = jnp.linspace(-1, 1, 128).reshape(8, 16)


def total(x: Any) -> Any:
    return lax.psum(x, "x")


def scattered(x: Any) -> Any:
    return lax.all_gather(1 + lax.psum_scatter(-x / 3, "x", scatter_dimension=1, tiled=True), "x", axis=1, tiled=True)


def accumulated(x: Any) -> Any:
    return lax.scan(lambda carry, y: (carry + total(0.1 * jnp.sin(y * x)), None), x, jnp.arange(3.0))[0]


LOCAL: dict[str, tuple[Callable[[Any], Any], list[str]]] = {
    "update": (lambda x: x - total(0.1 * x), ["psum", "mul", "sub"]),
    "several": (lambda x: x - total(-(0.1 * x) / 3), ["psum", "mul", "neg", "div", "sub"]),
    "reduce_scatter": (scattered, ["reduce_scatter", "neg", "div", "add", "all_gather"]),
    "result": (lambda x: total(0.1 * x), ["mul", "psum"]),
    "product": (lambda x: total(0.1 * x) @ x.T, ["mul", "psum", "transpose", "dot_general"]),
    "other use": (lambda x: (y := 0.1 * x) - total(y), ["mul", "psum", "sub"]),
    "quotient": (lambda x: x - total(0.1 / x), ["div", "psum", "sub"]),
    "result too": (lambda x: (y := 0.1 * x, x - total(y)), ["mul", "psum", "sub"]),
    "array": (lambda x: x - total(jnp.sin(x) * x), ["sin", "mul", "psum", "sub"]),
    "16 bits": (lambda x: x - total(0.1 * x.astype(jnp.float16)), ["convert_element_type", "mul", "psum", "convert_element_type", "sub"]),
    "integers": (lambda x: x - total(x.astype(jnp.int32) * 3), ["convert_element_type", "mul", "psum", "convert_element_type", "sub"]),
    "behind a loop": (accumulated, ["iota", "broadcast_in_dim", "scan", "psum", "add"]),
}


@pytest.mark.parametrize("name", LOCAL)
def test_order(name: str) -> None:
    local, order = LOCAL[name]
    bodies: list[Jaxpr] = []

    def run(body: Jaxpr) -> Jaxpr:
        bodies.append(optimize_region(body, SIZES, "cuda"))
        return bodies[-1]

    _, before, after = changed(lambda x: jax.tree.leaves(local(x)), run, (X,), (P(),))
    assert [eqn.primitive.name for eqn in bodies[0].eqns] == order
    for a, b in zip(before, after, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5)
