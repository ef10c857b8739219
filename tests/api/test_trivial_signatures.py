"""Arguments that nothing uses, results that are constants, empty or none at all: in both lowerings, on every kind of mesh, transformed."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AxisType, Mesh
from jax.sharding import PartitionSpec as P

import shardy_py as sp

LOWERINGS = ["jit", "shard_map"]
X = np.random.default_rng(0).standard_normal((16, 8)).astype("float32")
COUNT = np.int32(3)
KEYS = jax.random.split(jax.random.key(0), 16)


def made(shape: tuple[int, ...], kind: AxisType) -> Mesh:
    return jax.make_mesh(shape, ("x", "y"), axis_types=(kind,) * 2, devices=jax.devices()[: shape[0] * shape[1]])


SETTINGS: dict[str, tuple[tuple[int, int], AxisType, bool]] = {
    "two of two": ((2, 2), AxisType.Auto, False),
    "axes that are cut into parts": ((2, 4), AxisType.Auto, False),
    "under set_mesh": ((4, 2), AxisType.Auto, True),
    "all along one axis, under set_mesh": ((8, 1), AxisType.Auto, True),
    "explicit": ((2, 4), AxisType.Explicit, False),
    "explicit, under set_mesh": ((4, 2), AxisType.Explicit, True),
}


def same(got: Any, want: Any) -> None:
    assert jax.tree.structure(got) == jax.tree.structure(want)
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        assert a.dtype == b.dtype
        a, b = (jax.random.key_data(v) if jax.dtypes.issubdtype(v.dtype, jax.dtypes.prng_key) else v for v in (a, b))
        np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=1e-5, atol=1e-6)


def check(fun: Callable[..., Any], args: tuple[Any, ...], setting: str) -> None:
    """Compares a function with itself on one device, called and transformed."""
    shape, kind, is_set = SETTINGS[setting]
    mesh, want = made(shape, kind), jax.jit(fun)(*args)
    for lowering in LOWERINGS:
        step = sp.auto_shard(fun, mesh=mesh, in_shardings=(P("x"), *(None for _ in args[1:])), lowering=lowering)
        with jax.set_mesh(mesh) if is_set else contextlib.nullcontext():
            same(step(*args), want)
            if lowering == "shard_map":
                same(step.lower(*args).compile()(*args), want)
            elif kind is AxisType.Auto:
                same(jax.jit(step)(*args), want)


UNUSED: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "an array": (lambda x, y: x * 2, (X, X)),
    "the annotated array": (lambda x, y: y * 2, (X, X)),
    "all": (lambda x, y: jnp.arange(8), (X, X)),
    "keys": (lambda x, k: -x, (X, KEYS)),
    "a scalar beside a number and a scalar": (lambda x, n, m: (x * 2, 1 + n * 1.0), (X, COUNT, np.float32(1))),
    "behind a loop": (lambda x, y: lax.scan(lambda c, _: ((c[0] * 2, c[1] + 1), None), (x, y), None, 2)[0][0], (X, X)),
    "in a loop whose other results are used": (
        lambda x, y: lax.fori_loop(0, 3, lambda i, c: (c[0] + jnp.cumsum(c[0], 0), jnp.sort(c[1], 0)), (x, y))[0],
        (X, X),
    ),
    "in a branch": (lambda x, y: lax.cond(x[0, 0] > 0, lambda a, b: a, lambda a, b: a * 2, x, y), (X, X)),
    "in a call": (lambda x, y: jax.jit(lambda a, b: (a + 1, b.sum()))(x, y)[0], (X, X)),
    "by a gradient": (lambda x, y: jax.grad(lambda x: (x * y).sum())(x), (X, X)),
    "by a pullback": (lambda x, y: jax.vjp(lambda x: jnp.pad(x, [(3, 0), (0, 0)], mode="symmetric")[:8], x)[1](y[:8])[0], (X, X)),
    "beside random numbers": (lambda x, k: x + jax.random.normal(jax.random.key(1), x.shape), (X, KEYS)),
    "an empty one": (lambda x, y: x + 1, (X, X[:0])),
}


def spread(cases: Iterable[str]) -> list[Any]:
    """Every case under two settings, under one of them in the quick tests."""
    settings = [*SETTINGS] * 2
    return [
        pytest.param(case, settings[i % len(SETTINGS) + step], marks=pytest.mark.slow if step else ())
        for i, case in enumerate(cases)
        for step in (0, 3)
    ]


@pytest.mark.parametrize(("unused", "setting"), spread(UNUSED))
def test_arguments_that_nothing_uses(unused: str, setting: str) -> None:
    check(*UNUSED[unused], setting)


def _trips(c: Any, _: Any) -> tuple[Any, Any]:
    return jnp.tanh(c), (1.0, jnp.sum(c), np.arange(3))


CONSTANT: dict[str, Callable[[Any], Any]] = {
    "a number": lambda x: (x, 1.0, True, np.float32(2)),
    "only numbers": lambda x: (1, 2.0),
    "an array that stands in the program": lambda x: (np.arange(16), jnp.zeros((16, 3))),
    "of a trip": lambda x: lax.scan(lambda c, _: (jnp.tanh(c), 1.0), x, None, 3),
    "of a trip, beside a value": lambda x: lax.scan(_trips, x, None, 3),
    "of a trip of a loop in a loop": lambda x: lax.scan(lambda c, _: lax.scan(_trips, c, None, 2), x, None, 3),
    "of a trip over slices": lambda x: lax.scan(lambda c, i: (c * 2, jnp.int32(4)), x, jnp.arange(3)),
    "that is carried": lambda x: lax.scan(lambda c, _: ((c[0] * 2, 3.0), c[1]), (x, 1.0), None, 3),
    "that a while loop carries": lambda x: lax.while_loop(lambda c: c[1] < 2, lambda c: (c[0] * 2, 3.0, c[1]), (x, 1.0, 2.0)),
    "of a trip, mapped": lambda x: jax.vmap(lambda r: lax.scan(lambda c, _: (jnp.tanh(c), (0.0, c[0])), r, None, 3))(x),
    "of a branch": lambda x: lax.cond(x[0, 0] > 0, lambda x: (1.0, x), lambda x: (0.0, x * 2), x),
    "of all branches": lambda x: lax.switch(jnp.int32(1), [lambda: 1.0, lambda: 2.0, lambda: 3.0]) * x,
    "of a call": lambda x: jax.jit(lambda x: (x, 2))(x),
    "of what is computed again": lambda x: jax.checkpoint(lambda x: (jnp.sin(x), 1.0))(x),
    "of a function with a derivative of its own": lambda x: _with_derivative(x),
}


@jax.custom_vjp
def _with_derivative(x: Any) -> Any:
    return x * 2, 1.0


_with_derivative.defvjp(lambda x: (_with_derivative(x), None), lambda _, ct: (ct[0] * 2,))

EMPTY: dict[str, Callable[[Any], Any]] = {
    "nothing": lambda x: None,
    "no leaves": lambda x: {"a": (), "b": []},
    "no elements": lambda x: x[:0],
    "no elements, cut": lambda x: (x[:, :0], x[:, :0] + 1),
    "no elements beside a value": lambda x: (jnp.zeros((0, 8)), x * 2, x[:0].sum(0)),
    "no trips": lambda x: lax.scan(lambda c, y: (c + y, c), x, jnp.zeros((0, 16, 8))),
    "of a sort": lambda x: jnp.sort(x[:0], 0),
    "of a product": lambda x: (x[:0] @ x.T, x[:, :0] @ x[:, :0].T),
}


@pytest.mark.parametrize(("result", "setting"), spread([*CONSTANT, *EMPTY]))
def test_results_that_are_constant_or_empty(result: str, setting: str) -> None:
    check((CONSTANT | EMPTY)[result], (X,), setting)


@pytest.mark.parametrize(
    ("transformation", "lowering"),
    [("grad", "shard_map"), ("vmap", "jit"), ("jvp", "shard_map"), ("linearize", "jit"), ("checkpoint", "shard_map")],
)
@pytest.mark.parametrize("fun", ["unused", "constant", "empty"])
def test_transformed_from_outside(fun: str, transformation: str, lowering: str) -> None:
    def unused(x: Any, y: Any) -> Any:
        return jnp.sin(x).sum(), 1 + x[0, 0]

    def constant(x: Any, y: Any) -> Any:
        return jnp.sin(x).sum() + y.sum(), lax.scan(lambda c, _: (c * 2, (1.0, c.sum())), x, None, 2)

    def empty(x: Any, y: Any) -> Any:
        return jnp.sin(x).sum(), x[:0], (), None

    def transformed(f: Callable[..., Any]) -> Any:
        if transformation == "grad":
            return jax.value_and_grad(lambda *xs: f(*xs)[0], argnums=(0, 1))(X, X)
        if transformation == "vmap":
            return jax.vmap(f)(np.stack([X, X * 2]), np.stack([X, X]))
        if transformation == "jvp":
            return jax.jvp(f, (X, X), (X, X * 2))
        if transformation == "linearize":
            out, tangent = jax.linearize(f, X, X)
            return out, tangent(X, X * 2)
        return jax.grad(lambda *xs: jax.checkpoint(f)(*xs)[0], argnums=(0, 1))(X, X)

    f = {"unused": unused, "constant": constant, "empty": empty}[fun]
    step = sp.auto_shard(f, mesh={"x": 4, "y": 2}, in_shardings=(P("x", "y"), P("y")), lowering=lowering)
    same(transformed(step), transformed(jax.jit(f)))
