# Written by shardy_py.
"""small_mlp in 2 stages."""

from __future__ import annotations

from .small_mlp import small_mlp as whole
from .stage0 import stage0
from .stage1 import stage1


def arch():
    """The name of the architecture."""
    return "small_mlp"


def model(criterion):
    """Each stage with the names of what it takes and gives; the criterion makes the loss."""
    return [
        (stage0, ["w_up", "x"], ["tanh_2"]),
        (stage1, ["w_down", "tanh_2"], ["dot_general_3"]),
        (criterion, ["dot_general_3"], ["loss"]),
    ]


def full_model():
    """All stages as one function."""
    return whole
