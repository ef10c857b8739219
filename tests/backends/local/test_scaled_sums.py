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

import shardy_py as sp
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


def counted(x: Any, n: Any) -> Any:
    """A training loop whose rate follows from the number of the step."""

    def step(carry: Any, _: Any) -> Any:
        y, n = carry
        return (y - total(n * x) * y, n + 1), None

    return lax.scan(step, (x, n), None, length=3)[0][0]


BY_SCALAR: dict[str, tuple[Callable[[Any, Any], Any], P, str]] = {
    "argument": (lambda x, n: x - total(n[0] * x), P(), "slice squeeze psum mul sub"),
    "divisor": (lambda x, n: x - total(x / n[0]), P(), "slice squeeze psum div sub"),
    "of other axes": (lambda x, n: x - total(n.sum() * x), P("y"), "reduce_sum psum mul sub"),
    "branches": (
        lambda x, n: x - total(lax.cond(n[0] > 0, jnp.sin, jnp.cos, n[0]) * x),
        P(),
        "slice squeeze gt convert_element_type cond psum mul sub",
    ),
    "sum": (lambda x, n: x - total(total(n.sum()) * x), P("x"), "reduce_sum psum psum mul sub"),
    "part": (lambda x, n: x - total(n.sum() * x), P("x"), "reduce_sum mul psum sub"),
    "sum of others": (lambda x, n: x - total(lax.psum(n.sum(), "y") * x), P("x"), "reduce_sum psum mul psum sub"),
    "index": (lambda x, n: x - total(lax.axis_index("x") * x), P(), "axis_index convert_element_type mul psum sub"),
    "step": (lambda x, n: counted(x, n[0]), P(), "slice squeeze scan"),
}


@pytest.mark.parametrize("name", BY_SCALAR)
def test_order_of_scalings_by_scalars(name: str) -> None:
    local, spec, order = BY_SCALAR[name]
    args, specs = (X, jnp.linspace(1, 2, 4)), (P(), spec)
    bodies: list[Jaxpr] = []

    def run(body: Jaxpr) -> Jaxpr:
        bodies.append(optimize_region(body, SIZES, "cuda", None, specs))
        return bodies[-1]

    _, before, after = changed(lambda *a: [local(*a)], run, args, specs)
    body = bodies[0]
    assert [eqn.primitive.name for eqn in body.eqns] == order.split()
    if name == "step":
        assert [eqn.primitive.name for eqn in body.eqns[-1].params["jaxpr"].eqns][:2] == ["psum", "mul"]
    np.testing.assert_allclose(before[0], after[0], rtol=1e-5)


def test_gradient_scaled_by_an_argument() -> None:
    def step(w: Any, x: Any, rate: Any) -> Any:
        return w - rate * jax.grad(lambda w: jnp.sum(jnp.sin(x @ w)))(w)

    planned = sp.auto_shard(step, mesh=jax.make_mesh((8,), ("data",)), in_shardings=(P(), P("data"), P()), out_shardings=P())
    args = jnp.ones((16, 4)), X, jnp.float32(0.1)
    lines = planned.lower(*args).as_text().splitlines()
    (sum_at,) = [i for i, line in enumerate(lines) if "all_reduce" in line]
    assert any("multiply" in line for line in lines[sum_at:])
    np.testing.assert_allclose(planned(*args), step(*args), rtol=1e-5)


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
