"""Updates of arrays that are read for them: each element gets what its neighbour had before."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest
from jax import lax
from jax import numpy as jnp
from jax.extend.core import jaxpr_as_fun
from jax.sharding import PartitionSpec as P

import shardy_py as sp
from shardy_py.backends.local.in_place import update_out_of_place

MESH = {"x": 2, "y": 4}
X = np.random.default_rng(0).integers(-4, 5, (8, 16)).astype(np.float32)


def shifted(kind: str) -> np.ndarray:
    out = X.copy()
    if kind == "add":
        out[1:] += X[:-1]
    elif kind == "set":
        out[1:] = X[:-1]
    elif kind == "max, back":
        out[:-1] = np.maximum(out[:-1], X[1:])
    elif kind == "columns":
        out[:, 1:] += X[:, :-1]
    elif kind == "dynamic_update_slice":
        out[2:] = 2 * X[:-2]
    else:
        out[1:] += X[:-1]
        out[1:] += out[:-1].copy()
    return out


UPDATES: dict[str, Callable[[Any], Any]] = {
    "add": lambda x: x.at[1:].add(x[:-1]),
    "set": lambda x: x.at[1:].set(x[:-1]),
    "max, back": lambda x: x.at[:-1].max(x[1:]),
    "columns": lambda x: x.at[:, 1:].add(x[:, :-1]),
    "dynamic_update_slice": lambda x: lax.dynamic_update_slice(x, 2 * x[:-2], (2, 0)),
    "twice": lambda x: UPDATES["add"](UPDATES["add"](x)),
}
SHAPES = [(8, 16), (8, 4, 4), (8, 16, 1), (128,), (1, 8, 16)]
SPECS = [P("x", "y"), P(None, ("x", "y"))]
WANTED = [None, P(), P(None, "x"), P(("x", "y"))]


def divides(spec: P | None, shape: tuple[int, ...]) -> bool:
    if spec is None:
        return True
    names = [() if axes is None else axes if isinstance(axes, tuple) else (axes,) for axes in spec]
    return len(spec) <= len(shape) and all(n % math.prod(MESH[a] for a in axes) == 0 for n, axes in zip(shape, names))


@pytest.mark.parametrize("given", SPECS, ids=str)
def test_rows_computed_of_their_neighbours(given: P) -> None:
    """Whatever shape and layout the result is wanted in."""
    cases = [(k, s, w) for k, s, w in itertools.product(UPDATES, SHAPES, WANTED) if divides(w, s)]

    def function(*xs: Any) -> tuple[Any, ...]:
        return tuple(UPDATES[kind](x * 1.5).reshape(shape) for x, (kind, shape, _) in zip(xs, cases, strict=True))

    outs = tuple(wanted for *_, wanted in cases)
    step = sp.auto_shard(function, mesh=MESH, in_shardings=(given,) * len(cases), out_shardings=outs, lowering="shard_map")
    for got, (kind, shape, wanted) in zip(step(*[X] * len(cases)), cases, strict=True):
        np.testing.assert_array_equal(got, 1.5 * shifted(kind).reshape(shape), err_msg=f"{kind} {shape} {wanted}")


def test_a_result_that_is_reshaped_outside() -> None:
    step = sp.auto_shard(UPDATES["add"], mesh=MESH, in_shardings=P(None, "x"), lowering="shard_map")
    outside = jax.jit(lambda x: step(2 * x)[None])
    np.testing.assert_array_equal(outside(X)[0], 2 * shifted("add"))


def rewritten(function: Callable[..., Any], *args: Any) -> bool:
    """Whether an update of a region is not run in place; checks that its numbers stay."""
    traced = jax.make_jaxpr(function)(*args)
    made = update_out_of_place(traced.jaxpr, {})
    want = jax.tree.leaves(function(*args))
    for a, b in zip(jaxpr_as_fun(traced.replace(jaxpr=made))(*args), want, strict=True):
        np.testing.assert_array_equal(a, b)
    return made is not traced.jaxpr


def update(x: Any, new: Any, *starts: Any) -> Any:
    return lax.dynamic_update_slice(x, new, starts, allow_negative_indices=False)


def read(x: Any, sizes: tuple[int, ...], *starts: Any) -> Any:
    return lax.dynamic_slice(x, starts, sizes, allow_negative_indices=False)


ONE = np.int32(1)


@pytest.mark.parametrize(
    "function",
    [
        lambda x, i, z: update(x, x[:-1], 1, 0),
        lambda x, i, z: update(x, jnp.sin(read(x, (3, 16), i, z)) + 1, 2, 0),
        lambda x, i, z: update(x[None], x[None, 1:], 0, 0, 0),
        lambda x, i, z: update(x, x[:4][::-1], 0, 0),
        lambda x, i, z: update(x, jnp.concatenate([x[:1], x[:1]]), 2, 0),
        lambda x, i, z: update(x, jnp.broadcast_to(x[3, 3], (8, 4)), 0, 2),
        lambda x, i, z: update(x, x[:, :8] + x[:, 8:], 0, 0),
    ],
)
def test_what_is_not_run_in_place(function: Callable[..., Any]) -> None:
    assert rewritten(function, X, ONE, 0 * ONE)


@pytest.mark.parametrize(
    "function",
    [
        lambda x, i, z: update(x, 2 * jnp.ones((2, 16)), 1, 0),
        lambda x, i, z: update(x, 2 * read(x, (3, 16), i, z), i, z),  # the elements that are replaced
        lambda x, i, z: update(x, read(x, (1, 16), i, z) * 2, i + 1, z),  # one row of another, column by column
        lambda x, i, z: update(x, (read(x, (1, 16), i, z)[0] * 2)[None], i + 1, z),
        lambda x, i, z: update(x, x[:4] @ jnp.ones((16, 16)), 1, 0),  # products are stored
        lambda x, i, z: lax.fori_loop(0, 3, lambda _, y: update(y, y[:-1], 1, 0), x),  # what loops carry is not reshaped
    ],
)
def test_what_is_run_in_place(function: Callable[..., Any]) -> None:
    assert not rewritten(function, X, ONE, 0 * ONE)


def test_what_is_reshaped_in_a_loop() -> None:
    def function(x: Any) -> Any:
        return lax.fori_loop(0, 3, lambda _, y: update(y[None], y[None, :-1], 0, 1, 0)[0], x)

    assert rewritten(function, X)


@pytest.mark.parametrize("given", SPECS, ids=str)
def test_what_a_scan_stacks(given: P) -> None:
    """XLA alone reads what it has overwritten here."""

    def stacked(x: Any) -> Any:
        return lax.scan(lambda c, _: (c + 1, UPDATES["add"](x)), 0, None, length=2)[1]

    step = sp.auto_shard(stacked, mesh=MESH, in_shardings=given, lowering="shard_map")
    np.testing.assert_array_equal(step(X), [shifted("add")] * 2)
