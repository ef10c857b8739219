"""Removes parts of axes from open dimensions of the inputs and outputs of the program."""

from __future__ import annotations

from dataclasses import dataclass

from shardy_py.dialect import DimensionSharding, TensorSharding
from shardy_py.ir import Program
from shardy_py.passes.base import Pass
from shardy_py.passes.propagation.log import Log, LogStep

REASON = "an open dimension of an input or output does not keep parts of axes"
"""The reason in the log."""


@dataclass(frozen=True, kw_only=True)
class RemoveSubAxesInInputOutputShardings(Pass):
    """Cuts open dimensions of inputs and outputs before parts of axes."""

    name = "sdy-remove-sub-axes-in-input-output-shardings"

    def run(self, program: Program, log: Log | None = None) -> None:
        """Cuts each open dimension of arguments and results of the main function before its first sub-axis.

        Nothing happens where no function is main. In the log, a change of a result stands at the value that is returned.

        Source: Shardy's remove_sub_axes_in_input_output_shardings.cc.
        """
        main = program.entry
        if main is None:
            return
        for argument in main.arguments:
            old = argument.sharding
            argument.sharding = without_sub_axes(old)
            if argument.sharding is not old and log is not None:
                log.append(LogStep(argument, old, argument.sharding, REASON))
        for i, old in enumerate(main.result_shardings):
            new = main.result_shardings[i] = without_sub_axes(old)
            if new is not old and log is not None:
                log.append(LogStep(main.body.ops[-1].operands[i], old, new, REASON, main.body.ops[-1]))


def without_sub_axes(sharding: TensorSharding | None) -> TensorSharding | None:
    """The sharding with open dimensions cut before their first sub-axis."""
    if sharding is None or all(dim.is_closed or all(axis.is_full for axis in dim.axes) for dim in sharding.dims):
        return sharding
    return sharding.with_dims(map(_full_axes, sharding.dims))


def _full_axes(dim: DimensionSharding) -> DimensionSharding:
    if dim.is_closed:
        return dim
    for i, axis in enumerate(dim.axes):
        if not axis.is_full:
            return dim.with_axes(dim.axes[:i])
    return dim
