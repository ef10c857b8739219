# Written by shardy_py.
"""small_net_2: 2 stages in a row."""

from __future__ import annotations

from .stage0 import stage0
from .stage1 import stage1


def small_net_2(arg0, arg1, arg2, arg3, arg4):
    """small_net_2: 2 stages in a row."""
    dot_general_3 = stage0(arg0, arg1, arg4)
    dot_general_6 = stage1(arg2, arg3, dot_general_3)
    return dot_general_6
