"""The options of a plan's propagation, which its explanations depend on."""

from __future__ import annotations

from dataclasses import dataclass

from shardy_py.passes.propagation.step import Strategy


@dataclass(frozen=True, slots=True)
class PropagationOptions:
    """The options of the propagation that set a plan's shardings."""

    strategy: Strategy = "aggressive"
    conservative: bool = False
    op_priority: bool = True
    recorded: bool = True
