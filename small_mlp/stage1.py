# Written by shardy_py.
"""Stage 1 of 2 of small_mlp."""

from __future__ import annotations

import jax.numpy as jnp
from jax import lax


def stage1(w_down, tanh_2):
    """Stage 1 of 2 of small_mlp: 1 equation."""
    # w_down: float32[8,4]
    # tanh_2: float32[2,8]
    # float32[2,4]
    dot_general_3 = lax.dot_general(
        tanh_2,
        w_down,
        dimension_numbers=(((1,), (0,)), ((), ())),
        preferred_element_type=jnp.float32,
    )
    return dot_general_3
