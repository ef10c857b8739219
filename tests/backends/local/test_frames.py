"""Programs that shift, pad, slice and update: what a device receives is the halo and nothing else, and the numbers are those of jax.jit."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from jax import lax
from jax import numpy as jnp
from jax.sharding import PartitionSpec as P

import shardy_py as sp
from shardy_py.backends.compiled_text import collectives_in

X, XY = {"x": 4}, {"x": 4, "y": 2}
ROWS, COLUMNS = 64, 32
ROW = COLUMNS * 4
"""Bytes of a row of an array of ROWS times COLUMNS whose columns are whole."""
CROSS = 2 * (COLUMNS // 2) * 4 + (ROWS // 4) * 4
"""Bytes of the two rows and the one column that a part of it needs of others where both dimensions are cut."""


def floats(*shape):
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


def laplacian(u):
    return u[2:, 1:-1] + u[:-2, 1:-1] + u[1:-1, 2:] + u[1:-1, :-2] - 4 * u[1:-1, 1:-1]


def central(u):
    return u.at[1:-1].set((u[2:] - u[:-2]) / 2)


def five(u):
    return u.at[1:-1, 1:-1].set(laplacian(u))


def nine(u):
    padded, (n, m) = jnp.pad(u, 1), u.shape
    return sum(padded[i : i + n, j : j + m] * (i + 2.0 * j) for i in range(3) for j in range(3))


def nine_rolled(u):
    return sum(jnp.roll(u, (i, j), (0, 1)) * (i + 0.5 * j) for i in (-1, 0, 1) for j in (-1, 0, 1))


def burgers(u):
    """A step of a scheme whose flux crosses the faces of its cells, with the cells at both ends as they are."""
    flux = (u[1:] ** 2 + u[:-1] ** 2) / 4 - (u[1:] - u[:-1]) / 2
    return jnp.concatenate([u[:1], u[1:-1] - 0.1 * (flux[1:] - flux[:-1]), u[-1:]])


def periodic(u):
    padded, n = jnp.pad(u, ((2, 2), (0, 0)), mode="wrap"), u.shape[0]
    return padded[:n] - 8 * padded[1 : n + 1] + 8 * padded[3 : n + 3] - padded[4:]


def causal(x):
    padded, n = jnp.pad(x, ((0, 0), (3, 0), (0, 0))), x.shape[1]
    return sum(padded[:, i : i + n] * (i + 1.0) for i in range(4))


def blocks(x):
    """Attention of each block to itself and to the one before."""
    before = jnp.pad(x, ((0, 0), (1, 0), (0, 0), (0, 0)))[:, :-1]
    return jnp.einsum("bnqd,bnkd->bnqk", x, jnp.concatenate([before, x], 2))


def loss(tokens, weights):
    logits = jax.nn.log_softmax(weights[tokens[:, :-1]])
    return -jnp.take_along_axis(logits, tokens[:, 1:, None], -1).mean()


def windows(x):
    """Swin's shifted windows."""
    b, h, w, c = x.shape
    y = jnp.roll(x, -2, 1).reshape(b, h // 4, 4, w // 4, 4, c).transpose(0, 1, 3, 2, 4, 5).reshape(-1, 16, c)
    y = (y - y.mean(1, keepdims=True)).reshape(b, h // 4, w // 4, 4, 4, c).transpose(0, 1, 3, 2, 4, 5).reshape(x.shape)
    return jnp.roll(y, 2, 1)


def uneven(f):
    """The function of all rows but three, which 4 devices cannot have in equal parts."""
    return lambda u: jnp.pad(f(u[:-3] * 2), ((0, 3), (0, 0)))


def gradient(f):
    return jax.grad(lambda *xs: (f(*xs) ** 2).sum())


U, SEQUENCE = floats(ROWS, COLUMNS), floats(2, ROWS, 8)
STEP = 2 * 8 * 4
"""Bytes of a position of SEQUENCE."""
TOKENS = np.random.default_rng(0).integers(0, 16, (2, ROWS)).astype(np.int32)

PROGRAMS = {
    "on by one": (lambda u: jnp.pad(u, ((1, 0), (0, 0)))[:-1], X, [(U, P("x"))], ROW),
    "back by one": (lambda u: jnp.pad(u, ((0, 1), (0, 0)))[1:], X, [(U, P("x"))], ROW),
    "pad that is cut off": (lambda u: jnp.pad(u, ((5, 15), (0, 0)))[:ROWS], X, [(U, P("x"))], 5 * ROW),
    "derivative": (central, X, [(U, P("x"))], 2 * ROW),
    "derivative, uneven": (uneven(central), X, [(U, P("x"))], 2 * ROW),
    "derivative, gradient": (gradient(central), X, [(U, P("x"))], 4 * ROW),
    "update": (lambda u, v: lax.dynamic_update_slice(u, v, (5, 0)), X, [(U, P("x")), (U[:-12], P("x"))], 5 * ROW),
    "slice at a known start": (lambda u: u.at[:-4].add(lax.dynamic_slice_in_dim(u, 4, ROWS - 4)), X, [(U, P("x"))], 4 * ROW),
    "five points": (five, XY, [(U, P("x", "y"))], CROSS),
    "five points, uneven": (uneven(five), XY, [(U, P("x", "y"))], CROSS),
    "five points, gradient": (gradient(five), XY, [(U, P("x", "y"))], 2 * CROSS),
    "five points, in steps": (lambda u: lax.fori_loop(0, 3, lambda _, u: five(u), u), XY, [(U, P("x", "y"))], 3 * CROSS),
    "nine points": (nine, XY, [(U, P("x", "y"))], CROSS + 8),
    "nine points, along one axis": (nine, X, [(U, P("x"))], 2 * ROW),
    "nine points, rolled": (nine_rolled, XY, [(U, P("x", "y"))], CROSS + (ROWS // 4) * 4 + 16),
    "periodic": (periodic, X, [(U, P("x"))], 4 * ROW),
    "causal": (causal, X, [(SEQUENCE, P(None, "x"))], 3 * STEP),
    "causal, gradient": (gradient(causal), X, [(SEQUENCE, P(None, "x"))], 6 * STEP),
    "token shift": (lambda x, s: x + jnp.concatenate([s[:, None], x[:, :-1]], 1), X, [(SEQUENCE, P(None, "x")), (floats(2, 8), P())], STEP),
    "differences": (lambda u: ((u[1:] - u[:-1]) ** 2).max(1), X, [(U, P("x"))], ROW + 3 * ROWS),
    "differences, gradient": (gradient(lambda u: jnp.diff(u, axis=0)), X, [(U, P("x"))], 2 * ROW),
    "labels": (loss, X, [(TOKENS, P(None, "x")), (floats(16, 16), P())], 2 * 4 + 6),
    "block windows": (blocks, XY, [(floats(2, 8, 4, 8), P("y", "x"))], 4 * 8 * 4),
    "shifted windows": (windows, XY, [(floats(2, ROWS, 8, 4), P("y", "x"))], 2 * 2 * 8 * 4 * 4),
}
"""Program, mesh, arguments with their shardings, and bytes of the smallest halo; two bytes for each of three parts of a mean."""


@pytest.mark.parametrize("name", PROGRAMS)
def test_halo(name):
    f, mesh, arguments, halo = PROGRAMS[name]
    arrays, specs = [array for array, _ in arguments], [spec for _, spec in arguments]
    result = jax.eval_shape(f, *arrays)
    out = specs[0] if result.shape == arrays[0].shape else None
    step = sp.auto_shard(f, mesh=mesh, in_shardings=tuple(specs), out_shardings=out)
    planned = sum(c.total_bytes for c in step.plan(*arrays).collectives)
    compiled = step.lower(*arrays).compile()
    assert planned == sum(c.total_bytes for c in collectives_in(compiled.as_text()))
    assert halo <= planned <= 1.2 * halo
    np.testing.assert_allclose(compiled(*arrays), jax.jit(f)(*arrays), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["add", "max", "min", "multiply", "set", "subtract"])
def test_updates_of_a_slice_by_its_neighbour(name):
    def f(u):
        return getattr(u.at[1:], name)(u[:-1] * 2)

    step = sp.auto_shard(f, mesh=X, in_shardings=P("x"), out_shardings=P("x"))
    assert sum(c.total_bytes for c in step.plan(U).collectives) == ROW
    np.testing.assert_array_equal(step(U), jax.jit(f)(U))


def test_gradients_split_what_is_concatenated():
    """Less than twice the halo; whole parts in a split's own layouts would be three times as much."""
    step = sp.auto_shard(gradient(burgers), mesh=X, in_shardings=P("x"), out_shardings=P("x"))
    assert sum(c.total_bytes for c in step.plan(U).collectives) < 2 * 4 * ROW
    np.testing.assert_allclose(step(U), jax.jit(gradient(burgers))(U), rtol=1e-4, atol=1e-5)


def test_sums_of_slices_read_them_where_they_are():
    step = sp.auto_shard(lambda u: u[5:].max(), mesh=X, in_shardings=P("x"))
    assert sum(c.total_bytes for c in step.plan(U).collectives) == 6
    assert step(U) == U[5:].max()


NUMBERS = {
    "beginning and end of a pad": lambda u: jnp.pad(jnp.pad(u, ((1, 0), (0, 0)), constant_values=1.5), ((1, 1), (0, 0)), mode="wrap"),
    "pads of different scalars": lambda u: jnp.pad(jnp.pad(u, ((2, 0), (0, 0)), constant_values=1.5), ((1, 1), (0, 0)))[2:-1],
    "scalar in another shape": lambda u: u.at[1:-1].set(jnp.full((2, ROWS // 2, COLUMNS), 2.0).reshape(u.shape)[2:]),
    "part that is never read": lambda u: (jnp.pad(u, ((3, 0), (0, 0))) * jnp.roll(jnp.pad(u, ((0, 3), (0, 0))), 1, 0))[3:],
    "extrema of a slice": lambda u: (u[1:] - u[:-1]).max() + (u[2:] * u[:-2]).min(0),
    "branches": lambda u: lax.cond(u[0, 0] > 0, central, lambda u: jnp.roll(u, 1, 0), u),
}


@pytest.mark.parametrize("name", NUMBERS)
def test_numbers(name):
    step = sp.auto_shard(NUMBERS[name], mesh=X, in_shardings=P("x"), lowering="shard_map")
    np.testing.assert_allclose(step(U), jax.jit(NUMBERS[name])(U), rtol=1e-5)


def test_a_value_that_a_pad_makes_many_times_as_long():
    def f(x):
        padded = lax.pad(jax.nn.logsumexp(x, axis=0, keepdims=True) * 2.0, np.float32(0), ((1, 2, 0),))
        return sp.with_sharding_constraint(padded, P(("x", "y")))

    step = sp.auto_shard(f, mesh={"x": 2, "y": 2}, in_shardings=P("x"), lowering="shard_map")
    x = np.linspace(-1, 1, 8, dtype="float32")
    np.testing.assert_allclose(step(x), jax.jit(lambda x: jnp.pad(jax.nn.logsumexp(x, keepdims=True) * 2, (1, 2)))(x), rtol=1e-6)
