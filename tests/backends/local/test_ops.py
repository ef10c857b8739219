"""Functions of `jax.lax` that are written down with known types: the equations that those of `jax.lax` write."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from shardy_py.backends.local import collectives, ops
from tests.backends.local.running import eqns

X, START, P, K = jnp.ones((4, 8)), jnp.int32(2), jnp.ones((4, 8), bool), jax.random.split(jax.random.key(0), (4, 8))

Pair = tuple[Callable[..., Any], Callable[..., Any], tuple[Any, ...]]

CASES: dict[str, Pair] = {
    "slice": (lambda x: ops.slice(x, (1, 0), (3, 8)), lambda x: lax.slice(x, (1, 0), (3, 8)), (X,)),
    "slice with strides": (lambda x: ops.slice(x, (1, 0), (4, 7), (2, 3)), lambda x: lax.slice(x, (1, 0), (4, 7), (2, 3)), (X,)),
    "empty slice": (lambda x: ops.slice(x, (1, 8), (1, 8)), lambda x: lax.slice(x, (1, 8), (1, 8)), (X,)),
    "slice_in_dim": (lambda x: ops.slice_in_dim(x, 1, 7, axis=1), lambda x: lax.slice(x, (0, 1), (4, 7)), (X,)),
    "slice_in_dim with stride": (lambda x: ops.slice_in_dim(x, 1, 7, 2, axis=1), lambda x: lax.slice_in_dim(x, 1, 7, 2, axis=1), (X,)),
    "index_in_dim": (lambda x: ops.index_in_dim(x, -1, -1), lambda x: lax.squeeze(lax.slice(x, (0, 7), (4, 8)), (1,)), (X,)),
    "dynamic_slice": (
        lambda x, i: ops.dynamic_slice(x, (0, i), (4, 2)),
        lambda x, i: lax.dynamic_slice(x, (0, i), (4, 2), allow_negative_indices=False),
        (X, START),
    ),
    "dynamic_slice_in_dim": (
        lambda x, i: ops.dynamic_slice_in_dim(x, i, 2, axis=0),
        lambda x, i: lax.dynamic_slice_in_dim(x, i, 2, axis=0, allow_negative_indices=False),
        (X, START),
    ),
    "dynamic_update_slice": (
        lambda x, y, i: ops.dynamic_update_slice(x, y, (i, 0)),
        lambda x, y, i: lax.dynamic_update_slice(x, y, (i, 0), allow_negative_indices=False),
        (X, X[:1], START),
    ),
    "dynamic_update_slice_in_dim": (
        lambda x, y, i: ops.dynamic_update_slice_in_dim(x, y, i, axis=0),
        lambda x, y, i: lax.dynamic_update_slice_in_dim(x, y, i, axis=0, allow_negative_indices=False),
        (X, X[:1], START),
    ),
    "transpose": (lambda x: ops.transpose(x, (1, 0)), lambda x: lax.transpose(x, (1, 0)), (X,)),
    "reshape": (lambda x: ops.reshape(x, (2, 2, 8)), lambda x: lax.reshape(x, (2, 2, 8)), (X,)),
    "broadcast_in_dim": (lambda x: ops.broadcast_in_dim(x, (2, 4, 8), (1, 2)), lambda x: lax.broadcast(x, (2,)), (X,)),
    "expand_dims": (lambda x: ops.expand_dims(x, -1), lambda x: lax.expand_dims(x, (-1,)), (X,)),
    "concatenate": (lambda x, y: ops.concatenate([x, y], 0), lambda x, y: lax.concatenate([x, y], 0), (X, X[:1])),
    "convert_element_type": (lambda x: ops.convert_element_type(x, "bfloat16"), lambda x: x.astype(jnp.bfloat16), (X,)),
    "select": (ops.select, lax.select, (P, X, X)),
    "select by one": (ops.select, lax.select, (P[0, 0], X, X)),
    "add": (ops.add, lax.add, (X, X)),
    "mul by a scalar": (lambda i: ops.mul(i, np.int32(3)), lambda i: lax.mul(i, np.int32(3)), (START,)),
    "add a scalar": (ops.add, lax.add, (X, X[0, 0])),
    "lt": (lambda x: ops.lt(x, np.float32(3)), lambda x: lax.lt(x, np.float32(3)), (X,)),
    "broadcasted_iota": (lambda: ops.broadcasted_iota(jnp.int32, (4, 8), 1), lambda: lax.broadcasted_iota(jnp.int32, (4, 8), 1), ()),
    "full": (lambda: ops.full((4,), 0, np.dtype("int8")), lambda: lax.full((4,), 0, jnp.int8), ()),
    "full of the lowest": (lambda x: ops.full_like(x, -jnp.inf), lambda x: lax.full_like(x, -jnp.inf), (X,)),
    "pad": (
        lambda x: ops.pad(x, np.zeros((), x.dtype), [(0, 1, 1), (2, 0, 0)]),
        lambda x: lax.pad(x, np.zeros((), x.dtype), [(0, 1, 1), (2, 0, 0)]),
        (X,),
    ),
}

LEFT: dict[str, Pair] = {
    "slices of keys": (lambda k: ops.slice(k, (1, 0), (3, 8)), lambda k: lax.slice(k, (1, 0), (3, 8)), (K,)),
    "keys in another order": (lambda k: ops.transpose(k, (1, 0)), lambda k: lax.transpose(k, (1, 0)), (K,)),
    "what has that shape": (lambda x: ops.reshape(x, (4, 8)), lambda x: x, (X,)),
    "what is in that order": (lambda x: ops.transpose(x, (0, 1)), lambda x: x, (X,)),
    "what is of that type": (lambda x: ops.convert_element_type(x, jnp.float32), lambda x: x, (X,)),
    "weak types": (lambda x: ops.add(x, x), lambda x: lax.add(x, x), (2.5,)),
    "a number that does not fit": (lambda: ops.full((4,), -1, np.dtype("uint8")), lambda: lax.full((4,), -1, jnp.uint8), ()),
    "cut ends": (lambda x: ops.pad(x, np.float32(0), [(-1, 0, 0)] * 2), lambda x: lax.pad(x, np.float32(0), [(-1, 0, 0)] * 2), (X,)),
    "places in other integers": (
        lambda x, i: ops.dynamic_slice(x, (i, i), (1, 1)),
        lambda x, i: lax.dynamic_slice(x, (i, i), (1, 1), allow_negative_indices=False),
        (X, jnp.uint8(1)),
    ),
}


def typed(f: Callable[..., Any], args: tuple[Any, ...]) -> tuple[str, list[Any]]:
    """A jaxpr, and the types in it."""
    with jax.enable_checks(True):
        made = jax.make_jaxpr(f)(*args)
    return str(made), [(v.aval, v.aval.weak_type) for eqn in eqns(made.jaxpr) for v in eqn.outvars]


def count(monkeypatch: pytest.MonkeyPatch, module: Any) -> list[int]:
    """Counts what is written down."""
    counted, recorded = [0], module.recorded

    def run(*args: Any, **more: Any) -> Any:
        made = recorded(*args, **more)
        counted[0] += made is not None
        return made

    monkeypatch.setattr(module, "recorded", run)
    return counted


@pytest.mark.parametrize("name", CASES)
def test_the_equations_of_lax(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    f, plain, args = CASES[name]
    counted = count(monkeypatch, ops)
    assert typed(f, args) == typed(plain, args)
    assert counted[0]


@pytest.mark.parametrize("name", LEFT)
def test_the_rest_is_left_to_lax(name: str) -> None:
    f, plain, args = LEFT[name]
    assert typed(f, args) == typed(plain, args)


def test_numbers_outside_of_a_trace() -> None:
    assert ops.slice_in_dim(X, 1, 3).shape == (2, 8)
    assert ops.select(P, X, X).sum() == 32
    for x in (2.5, np.float32(2.5), np.ones(())):
        assert ops.transpose(x, ()) == ops.reshape(x, ()) == ops.convert_element_type(x, jnp.float32) == ops.add(x, np.zeros_like(x)) == x
        assert ops.expand_dims(x, 0).shape == ops.broadcast_in_dim(x, (1,), ()).shape == (1,)


def test_what_does_not_fit_is_an_error_of_lax() -> None:
    for f in (
        lambda x: ops.slice(x, (0, 0), (5, 8)),
        lambda x: ops.concatenate([x, x[:, :2]], 0),
        lambda x: ops.broadcast_in_dim(x, (2, 8), (0, 1)),
    ):
        with pytest.raises(TypeError):
            jax.make_jaxpr(f)(X)


SENT: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "psum": (lambda x: collectives.psum(x, ("a", "b")), lambda x: lax.psum(x, ("a", "b"))),
    "pmax": (lambda x: collectives.pmax(x, ("a",)), lambda x: lax.pmax(x, ("a",))),
    "pmin": (lambda x: collectives.pmin(x, ("a",)), lambda x: lax.pmin(x, ("a",))),
    "ppermute": (lambda x: collectives.ppermute(x, ("a",), ((0, 1), (1, 0))), lambda x: lax.ppermute(x, ("a",), ((0, 1), (1, 0)))),
    "all_gather": (lambda x: collectives.all_gather(x, ("b",), 1, tiled=True), lambda x: lax.all_gather(x, ("b",), axis=1, tiled=True)),
    "all_gather in front": (lambda x: collectives.all_gather(x, ("a", "b"), 0, tiled=False), lambda x: lax.all_gather(x, ("a", "b"))),
    "all_to_all": (
        lambda x: collectives.all_to_all(x, ("b",), 0, 1),
        lambda x: lax.all_to_all(x, ("b",), split_axis=0, concat_axis=1, tiled=True),
    ),
    "psum_scatter": (
        lambda x: collectives.psum_scatter(x, ("b",), 1),
        lambda x: lax.psum_scatter(x, ("b",), scatter_dimension=1, tiled=True),
    ),
}


@pytest.mark.parametrize("name", SENT)
def test_the_collectives_of_lax(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second time, for another shape, nothing is asked of `jax.lax`; other sizes of axes are other collectives."""
    f, plain = SENT[name]
    counted = count(monkeypatch, collectives)

    def typed_over(f: Callable[..., Any], b: int, x: jax.Array) -> Any:
        made = jax.make_jaxpr(f, axis_env=[("a", 2), ("b", b)])(x)
        (eqn,) = made.jaxpr.eqns
        return str(made), eqn.outvars[0].aval, eqn.effects

    for b, x in ((4, X), (4, jnp.ones((8, 16, 2))), (2, X), (4, X.astype(jnp.int32)), (4, jnp.ones((12, 24)))):
        assert typed_over(f, b, x) == typed_over(plain, b, x)
    assert counted[0] >= 2
