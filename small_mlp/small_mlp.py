# Written by shardy_py.
"""small_mlp: 2 stages in a row."""

from __future__ import annotations

from .stage0 import stage0
from .stage1 import stage1


def small_mlp(w_down, w_up, x):
    """small_mlp: 2 stages in a row."""
    tanh_2 = stage0(w_up, x)
    dot_general_3 = stage1(w_down, tanh_2)
    return dot_general_3
