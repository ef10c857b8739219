"""State that is laid out unlike the parameter it belongs to: moments, momentum, averages, gradients."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from shardy_py.dialect import TensorSharding
from shardy_py.passes.export.collective_bytes import reshard_bytes
from shardy_py.plan.checks.context import CheckContext
from shardy_py.plan.checks.fixes import Proposal, costs_less
from shardy_py.plan.checks.phrases import annotation_of
from shardy_py.plan.checks.thresholds import NOTABLE, graded
from shardy_py.plan.findings import Finding
from shardy_py.plan.movements import format_bytes
from shardy_py.plan.path_parts import names_of
from shardy_py.plan.values import PlannedValue, typed

KIND = "state-unlike-parameter"

_STATE = re.compile(
    r"mu|nu|m|v|momentum|momentums|moment|moments|velocity|trace|ema|average|averages|accumulator|acc|accum|accumulated"
    r"|exp_avg|exp_avg_sq|grads?|gradients?|opt|opt_state|optim|optimizer|optimizer_state|inner_state|slow_params|(first|second)_moments?"
)
"""Names that mark a path as optimizer state: names of optax, of Flax, and common ones."""


def state_unlike_parameter(context: CheckContext) -> Iterator[Finding]:
    """State of `NOTABLE` bytes and more that some axes of its parameter do not cut, among inputs and among outputs.

    A leaf is state if its path has one of the usual names; its parameter is the leaf of the same shape whose path ends alike, and no
    other does; of outputs, as those of `optimizer.init`, it may be among the inputs. State that is cut further than its parameter, as
    ZeRO does, is no finding.
    """
    reported: set[tuple[str, ...]] = set()
    input_parameters = _parameters(context.plan.inputs)
    for values, parameters in (
        (context.plan.inputs, (input_parameters,)),
        (context.plan.outputs, (_parameters(context.plan.outputs), input_parameters)),
    ):
        for state, parameter, names in _pairs(values, parameters):
            if names in reported or not _is_coarser(state.sharding, parameter.sharding):
                continue
            reported.add(names)
            yield from _finding(context, state, parameter)


_Parameters = dict[tuple[tuple[str, ...], tuple[int, ...]], list[PlannedValue]]


def _state_name(names: Sequence[str]) -> int:
    """The number of the last name that marks a path as state; -1 where none does."""
    return max((i for i, name in enumerate(names) if _STATE.fullmatch(name)), default=-1)


def _parameters(values: Sequence[PlannedValue]) -> _Parameters:
    """The leaves that are no optimizer state, by shape and by every suffix of their paths."""
    parameters: _Parameters = {}
    for value in values:
        names = names_of(value.path)
        if value.shape and _state_name(names) < 0:
            for k in range(1, len(names) + 1):
                parameters.setdefault((names[-k:], value.shape), []).append(value)
    return parameters


def _pairs(
    values: Sequence[PlannedValue], parameters: Sequence[_Parameters]
) -> Iterator[tuple[PlannedValue, PlannedValue, tuple[str, ...]]]:
    """State, its parameter, and the names of the state below the argument.

    Only what is below the name that makes it state can name a parameter; `m['w']` is the state of `params['w']`, not of `m`.
    """
    for value in values:
        names = names_of(value.path)
        last = _state_name(names) if value.shape else -1
        if last < 0:
            continue
        parameter = next((p for table in parameters if (p := _parameter(value, names[last + 1 :], table)) is not None), None)
        if parameter is not None:
            yield value, parameter, names[1:] if len(names) > 1 else names


def state_and_parameter(
    values: Sequence[PlannedValue], *others: Sequence[PlannedValue]
) -> Iterator[tuple[PlannedValue, PlannedValue, tuple[str, ...]]]:
    """State among values, its parameter, and the names of the state below the argument."""
    return _pairs(values, [_parameters(each) for each in (values, *others)])


def _parameter(value: PlannedValue, names: tuple[str, ...], parameters: _Parameters) -> PlannedValue | None:
    """The only leaf with the longest end of a path in common."""
    for k in range(len(names), 0, -1):
        candidates = parameters.get((names[-k:], value.shape), [])
        if candidates:
            return candidates[0] if len(candidates) == 1 else None
    return None


def _is_coarser(state: TensorSharding | None, parameter: TensorSharding | None) -> bool:
    """Whether some dimension of the state does not begin with the axes that the parameter has there."""
    if parameter is None or not parameter.dim_axes():
        return False
    if state is None:
        return True
    return any(
        state_dim.axes[: len(parameter_dim.axes)] != parameter_dim.axes for state_dim, parameter_dim in zip(state.dims, parameter.dims)
    )


def _finding(context: CheckContext, state: PlannedValue, parameter: PlannedValue) -> Iterator[Finding]:
    size = context.bytes_of(state)
    assert parameter.sharding is not None
    target = state.sharding or TensorSharding.closed(parameter.sharding.mesh, len(state.shape))
    moved = reshard_bytes(parameter.sharding, target, state.type, context.meshes)
    if max(size, moved) < NOTABLE:
        return
    message = (
        f"it is {typed(state.type, state.sharding)}, {format_bytes(size)} on each device, while its parameter {parameter.path} is"
        f" {typed(parameter.type, parameter.sharding)}: an update has to bring one to the other, {format_bytes(moved)} for each device"
    )
    finding = Finding(KIND, message, state.path, "", graded(max(size, moved)), size)
    fix = f"{state.path}: {{spec}} in {annotation_of(state)}", state.path, parameter.sharding
    context.propose(finding, Proposal([fix], costs_less))
    yield finding
