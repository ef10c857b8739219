"""Messages of whole programs for slices, windows and convolutions, and their numbers."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from jax import lax
from jax import numpy as jnp
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

import shardy_py as sp
from tests.backends.local.running import sent

RNG = np.random.default_rng(0)


def floats(*shape: int) -> jnp.ndarray:
    return jnp.asarray(RNG.integers(-4, 5, shape), jnp.float32)


def conv(strides=(1, 1), groups=1):
    numbers = ("NHWC", "HWIO", "NHWC")
    return lambda x, w: lax.conv_general_dilated(x, w, strides, "SAME", feature_group_count=groups, dimension_numbers=numbers)


def neighbours(x):
    return sum(jnp.roll(x, shift, d) for d in (0, 1) for shift in (1, -1))


CASES = {
    "convolution": (conv(), (P("x", "y"), P()), (floats(4, 32, 8, 4), floats(3, 3, 4, 8)), None, [("ppermute", (2, 1, 8, 4))] * 2),
    "strides": (conv((2, 2)), (P("x", "y"), P()), (floats(4, 32, 8, 4), floats(3, 3, 4, 8)), None, [("ppermute", (2, 1, 8, 4))]),
    "gradient of a depthwise kernel": (
        jax.grad(lambda w, x: (conv(groups=8)(x, w) ** 2).sum()),
        (P(), P("x")),
        (floats(3, 3, 1, 8), floats(4, 8, 8, 8)),
        None,
        [("psum", (3, 3, 1, 8))],
    ),
    "cumulative sum": (lambda x: lax.cumsum(x, 0), (P("y"),), (floats(64, 16),), None, [("all_gather", (4, 16))]),
    "roll": (lambda x: jnp.roll(x, 3, 0), (P("y"),), (floats(64, 16),), None, [("ppermute", (3, 16))]),
    "neighbours": (neighbours, (P("x", "y"),), (floats(64, 64),), None, [*[("ppermute", (1, 16))] * 2, *[("ppermute", (32, 1))] * 2]),
    "flip": (lambda x: x[::-1], (P("y"),), (floats(64, 16),), None, [("ppermute", (16, 16))]),
    "halves": (lambda x, y: jnp.concatenate([x, y]), (P("y"), P("y")), (floats(64, 8), floats(64, 8)), None, [("ppermute", (16, 8))] * 2),
    "one": (lambda x: x[5], (P("y"),), (floats(64, 16),), P(), [("psum", (16,))]),
    "every second": (lambda x: x[::2], (P("y"),), (floats(64, 8),), P("y"), []),
    "update of a cache": (
        lambda c, u, i: lax.dynamic_update_slice(c, u, (0, i, 0)),
        (P("x", "y"), P("x"), P()),
        (floats(4, 64, 8), floats(4, 1, 8), np.int32(37)),
        P("x", "y"),
        [],
    ),
    "slice at run time": (
        lambda c, i: lax.dynamic_slice(c, (i, 0), (2, 16)),
        (P("y"), P()),
        (floats(64, 16), np.int32(37)),
        P(),
        [("psum", (2, 16))],
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_program(name):
    f, inputs, args, outputs, expected = CASES[name]
    mesh = jax.make_mesh((2, 4), ("x", "y"), axis_types=(AxisType.Auto,) * 2)
    kwargs = {} if outputs is None else {"out_shardings": outputs}
    step = sp.auto_shard(f, mesh=mesh, in_shardings=inputs, lowering="shard_map", **kwargs)
    np.testing.assert_array_equal(step(*args), jax.jit(f)(*args))
    planned = step.trace(*args)._planned
    assert sent(planned.region.partitioned(planned.plan).jaxpr) == expected
