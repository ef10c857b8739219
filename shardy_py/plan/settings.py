"""The options of a plan's propagation, which its explanations depend on."""

from __future__ import annotations

from dataclasses import dataclass

from shardy_py.passes.propagation.step import Strategy


@dataclass(frozen=True, slots=True)
class PropagationOptions:
    """The options of the propagation that set a plan's shardings.

    Attributes:
        strategy: The resolution of conflicting shardings.
        conservative: Whether axes were never split.
        op_priority: Whether it went in stages by kinds of ops.
        recorded: Whether its steps were kept.
    """

    strategy: Strategy = "aggressive"
    conservative: bool = False
    op_priority: bool = True
    recorded: bool = True
