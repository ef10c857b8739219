"""Convolutions on local arrays."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from jax import lax
from jax import numpy as jnp

from tests.backends.local.running import check_together

RNG = np.random.default_rng(0)


def floats(*shape: int) -> jnp.ndarray:
    return jnp.asarray(RNG.integers(-4, 5, shape), jnp.float32)


def conv(strides=(1, 1), padding="SAME", base=(1, 1), spread=(1, 1), features=1, batches=1):
    return lambda x, w: lax.conv_general_dilated(
        x, w, strides, padding, lhs_dilation=base, rhs_dilation=spread, feature_group_count=features, batch_group_count=batches,
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
    )  # fmt: skip


SETTINGS = {
    "same": (conv(), (4, 16, 6, 4), (3, 3, 4, 8)),
    "uneven": (conv(padding=((2, 1), (0, 0))), (3, 13, 5, 5), (4, 1, 5, 6)),
    "strides": (conv(strides=(2, 1)), (2, 16, 4, 2), (3, 3, 2, 4)),
    "valid": (conv(padding="VALID", spread=(2, 1)), (2, 15, 4, 2), (3, 2, 2, 4)),
    "transposed": (conv(base=(2, 2), padding=((2, 1), (1, 1))), (2, 9, 4, 2), (3, 3, 2, 4)),
    "pointwise": (conv(), (4, 6, 6, 4), (1, 1, 4, 8)),
    "depthwise": (conv(features=8), (4, 8, 4, 8), (3, 3, 1, 8)),
    "groups": (conv(features=2), (4, 8, 4, 8), (3, 3, 4, 12)),
    "multiplier": (conv(features=4), (4, 8, 4, 4), (3, 1, 1, 8)),
    "batch groups": (conv(batches=4), (8, 8, 4, 6), (3, 3, 6, 8)),
    "patches": (conv(strides=(4, 4), padding="VALID"), (2, 16, 8, 3), (4, 4, 3, 8)),
    "long kernel": (conv(padding=((1, 1), (1, 1))), (2, 16, 4, 3), (16, 4, 3, 8)),
    "long kernel, uneven": (conv(padding=((1, 2), (1, 1)), strides=(2, 1)), (2, 13, 4, 3), (11, 4, 3, 8)),
    "long kernel, spread": (conv(padding=((1, 2), (1, 1)), spread=(2, 1)), (2, 25, 4, 3), (13, 4, 3, 8)),
    "long kernel, base": (conv(padding=((1, 2), (1, 1)), base=(2, 1)), (2, 9, 4, 3), (13, 4, 3, 8)),
}


@pytest.mark.parametrize("name", SETTINGS)
def test_numbers(name):
    f, lhs, rhs = SETTINGS[name]
    check_together("conv_general_dilated", [(f, (floats(*lhs), floats(*rhs)))], count=4)


@pytest.mark.parametrize("name", ["same", "strides", "depthwise", "groups", "multiplier", "transposed"])
def test_gradients(name):
    f, lhs, rhs = SETTINGS[name]
    x, w = floats(*lhs), floats(*rhs)
    ct = floats(*jax.eval_shape(f, x, w).shape)
    cases = [(lambda c, f=f, w=w: jax.linear_transpose(lambda x: f(x, w), x)(c), (ct,))]
    cases.append((lambda c, f=f, x=x: jax.linear_transpose(lambda w: f(x, w), w)(c), (ct,)))
    check_together("conv_general_dilated", cases, count=4)
