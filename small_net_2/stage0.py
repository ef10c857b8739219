# Written by shardy_py.
"""Stage 0 of 2 of small_net_2."""

from __future__ import annotations

import jax.numpy as jnp
from jax import lax


def stage0(arg0, arg1, arg4):
    """Stage 0 of 2 of small_net_2: 3 equations."""
    # arg0: float32[32,8]
    # arg1: float32[8,32]
    # arg4: float32[8,8]
    # float32[8,32]
    dot_general_1 = lax.dot_general(
        arg4, arg1, dimension_numbers=(((1,), (0,)), ((), ())), preferred_element_type=jnp.float32
    )
    tanh_2 = lax.tanh(dot_general_1)  # float32[8,32]
    # float32[8,8]
    dot_general_3 = lax.dot_general(
        tanh_2, arg0, dimension_numbers=(((1,), (0,)), ((), ())), preferred_element_type=jnp.float32
    )
    return dot_general_3
