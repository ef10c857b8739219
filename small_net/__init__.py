# Written by shardy_py.
"""small_net in 2 stages."""

from __future__ import annotations

from .small_net import SmallNet
from .stage0 import Stage0
from .stage1 import Stage1


def arch():
    """The name of the architecture."""
    return "small_net"


def model(criterion):
    """Each stage with the names of what it takes and gives; the criterion makes the loss."""
    return [
        (Stage0(), ["input0"], ["out0"]),
        (Stage1(), ["out0"], ["out1"]),
        (criterion, ["out1"], ["loss"]),
    ]


def full_model():
    """All stages as one module."""
    return SmallNet()
