"""Windows on local arrays."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from jax import lax
from jax import numpy as jnp

from tests.backends.local.running import check_together

RNG = np.random.default_rng(0)
SETTINGS = [  # size, window, stride, padding, base dilation, window dilation
    (16, 3, 1, (1, 1), 1, 1),
    (16, 2, 2, (0, 0), 1, 1),
    (13, 3, 2, (0, 1), 1, 1),
    (7, 3, 3, (2, 2), 1, 1),
    (8, 3, 1, (2, 0), 1, 2),
    (9, 2, 1, (0, 0), 2, 1),
    (8, 3, 2, (1, 2), 3, 1),
    (5, 5, 1, (4, 0), 1, 1),
    (6, 2, 3, (1, 0), 2, 2),
    (3, 2, 1, (6, 3), 1, 1),
]


def floats(*shape: int) -> jnp.ndarray:
    return jnp.asarray(RNG.permutation(int(np.prod(shape))).reshape(shape) + 0.5, jnp.float32)


def reducing(init, op, setting):
    _, window, stride, padding, base, dilation = setting
    return lambda x: lax.reduce_window(
        x, init, op, (window, 1), (stride, 1), (padding, (0, 0)), base_dilation=(base, 1), window_dilation=(dilation, 1)
    )


@pytest.mark.parametrize(("name", "init", "op"), [("sum", 0, lax.add), ("max", -(2**31), lax.max), ("min", 2**31 - 1, lax.min)])
def test_integers(name, init, op):
    cases = [(reducing(np.int32(init), op, s), (jnp.asarray(RNG.integers(-50, 50, (s[0], 3)), jnp.int32),)) for s in SETTINGS]
    check_together(f"reduce_window_{name}", cases)


def test_any_reducer():
    settings = [SETTINGS[1], SETTINGS[2], (9, 3, 2, (0, 0), 1, 2)]
    cases = [(reducing(np.float32(1.5), lambda a, b: a * b, s), (floats(s[0], 3) * 0.01,)) for s in settings]
    check_together("reduce_window", cases, tolerance=1e-6)


def test_two_dimensions():
    f = lambda x: lax.reduce_window(x, -np.inf, lax.max, (3, 3), (2, 2), "SAME")  # noqa: E731
    check_together("reduce_window_max", [(f, (floats(13, 9),)), (f, (floats(16, 8),))], count=8)


POOLS = [(16, 2, 2, (0, 0)), (16, 3, 2, (0, 1)), (13, 3, 1, (1, 1)), (7, 2, 3, (1, 1)), (5, 3, 2, (2, 2)), (12, 4, 1, (0, 3))]


def pool(window, stride, padding):
    return lambda x: lax.reduce_window(x, -np.inf, lax.max, (window, 2), (stride, 2), (padding, (0, 0)))


def test_gradient_of_max():
    cases = []
    for n, *setting in POOLS:
        f = jax.grad(lambda x, setting=setting: (pool(*setting)(x) ** 2).sum())
        cases.append((f, (floats(n, 6),)))
    check_together("select_and_scatter_add", cases)


def test_tangent_of_max():
    cases = [(lambda x, t, s=setting: jax.jvp(pool(*s), (x,), (t,)), (floats(n, 6), floats(n, 6))) for n, *setting in POOLS]
    check_together("select_and_gather_add", cases)
