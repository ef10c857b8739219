# Written by shardy_py.
"""Stage 0 of 2 of small_mlp."""

from __future__ import annotations

import jax.numpy as jnp
from jax import lax


def stage0(w_up, x):
    """Stage 0 of 2 of small_mlp: 2 equations."""
    # w_up: float32[4,8]
    # x: float32[2,4]
    # float32[2,8]
    dot_general_1 = lax.dot_general(
        x, w_up, dimension_numbers=(((1,), (0,)), ((), ())), preferred_element_type=jnp.float32
    )
    tanh_2 = lax.tanh(dot_general_1)  # float32[2,8]
    return tanh_2
