# Written by shardy_py.
"""Stage 1 of 2 of small_net_2."""

from __future__ import annotations

import jax.numpy as jnp
from jax import lax


def stage1(arg2, arg3, dot_general_3):
    """Stage 1 of 2 of small_net_2: 3 equations."""
    # arg2: float32[32,8]
    # arg3: float32[8,32]
    # dot_general_3: float32[8,8]
    # float32[8,32]
    dot_general_4 = lax.dot_general(
        dot_general_3,
        arg3,
        dimension_numbers=(((1,), (0,)), ((), ())),
        preferred_element_type=jnp.float32,
    )
    tanh_5 = lax.tanh(dot_general_4)  # float32[8,32]
    # float32[8,8]
    dot_general_6 = lax.dot_general(
        tanh_5, arg2, dimension_numbers=(((1,), (0,)), ((), ())), preferred_element_type=jnp.float32
    )
    return dot_general_6
