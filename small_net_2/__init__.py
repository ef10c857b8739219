# Written by shardy_py.
"""small_net_2 in 2 stages."""

from __future__ import annotations

from .small_net_2 import small_net_2 as whole
from .stage0 import stage0
from .stage1 import stage1


def arch():
    """The name of the architecture."""
    return "small_net_2"


def model(criterion):
    """Each stage with the names of what it takes and gives; the criterion makes the loss."""
    return [
        (stage0, ["arg0", "arg1", "arg4"], ["dot_general_3"]),
        (stage1, ["arg2", "arg3", "dot_general_3"], ["dot_general_6"]),
        (criterion, ["dot_general_6"], ["loss"]),
    ]


def full_model():
    """All stages as one function."""
    return whole
