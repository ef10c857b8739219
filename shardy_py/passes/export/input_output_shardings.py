"""Cuts shardings of inputs and outputs down to axes that divide their dimensions evenly, and open ones to whole axes."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from shardy_py.dialect import AxisRef, DimensionSharding, Mesh, TensorSharding
from shardy_py.ir import Op, Program, Type, Value
from shardy_py.passes.base import Pass
from shardy_py.passes.dataflow import MANUAL_COMPUTATION, manual_axes, set_in_shardings, without_manual_axes
from shardy_py.passes.propagation.log import Log, LogStep
from shardy_py.passes.walk import CALL, ops_of

NON_DIVISIBLE = "the size of the dimension is not a multiple of the number of shards"
"""The reason in the log."""


@dataclass(frozen=True, kw_only=True)
class UpdateNonDivisibleInputOutputShardings(Pass):
    """Cuts shardings of inputs and outputs to axes that divide their dimensions."""

    name = "sdy-update-non-divisible-input-output-shardings"

    def run(self, program: Program, log: Log | None = None) -> None:
        """Updates arguments and results of functions, results of calls, and operands and results of manual computations.

        In a dimension whose size is not a multiple of its shards, an axis is kept while it divides what is left; of the
        first that does not, the largest leading part that does. This changes what the user gave, too: `{"a"}` with a of
        size 4 becomes `{"a":(1)2}` on a dimension of size 6.

        In the log, a change of a function's result stands at the value it returns.

        Source: Shardy's update_non_divisible_input_output_shardings.cc.
        """
        meshes = program.meshes

        @functools.cache
        def update(sharding: TensorSharding | None, type_: Type) -> TensorSharding | None:
            if sharding is None or sharding.is_fully_replicated or type_.rank != sharding.rank:
                return sharding
            mesh = sharding.mesh_in(meshes)
            if all(size % dim.shards(mesh) == 0 for dim, size in zip(sharding.dims, type_.shape)):
                return sharding
            dims = (DimensionSharding(evenly_dividing(d.axes, size, mesh), d.is_closed) for d, size in zip(sharding.dims, type_.shape))
            return sharding.with_dims(dims)

        for function in program.functions:
            for argument in function.arguments:
                _set(argument, update(argument.sharding, argument.type), log, None)
            returned = function.body.ops[-1].operands if function.body.ops else ()
            for i, old in enumerate(function.result_shardings):
                new = update(old, function.result_types[i])
                if new is not old:
                    function.result_shardings[i] = new
                    if log is not None:
                        log.append(LogStep(returned[i], old, new, NON_DIVISIBLE, function.body.ops[-1]))
        for op in ops_of(program, (CALL, MANUAL_COMPUTATION)):
            if op.name == CALL:
                for result in op.results:
                    _set(result, update(result.sharding, result.type), log, op)
            else:
                _update_manual_computation(op, update, log)


def _set(value: Value, new: TensorSharding | None, log: Log | None, op: Op | None) -> None:
    old = value.sharding
    if new is old:
        return
    value.sharding = new
    if log is not None:
        log.append(LogStep(value, old, new, NON_DIVISIBLE, op))


def _update_manual_computation(op: Op, update: Callable[..., Any], log: Log | None) -> None:
    shardings = op.attributes.get("in_shardings")
    manual = manual_axes(op)
    if shardings:
        arguments = op.regions[0].arguments
        inside = [without_manual_axes(sharding, manual) for sharding in shardings]
        new = [update(sharding, argument.type) for sharding, argument in zip(inside, arguments, strict=True)]
        if new != inside:
            set_in_shardings(op, [a if a is not b else None for a, b in zip(new, inside, strict=True)], keep=True)
            for argument, sharding in zip(arguments, new, strict=True):
                if argument.sharding is not None:
                    _set(argument, sharding, log, op)
    shardings = op.attributes.get("out_shardings")
    if shardings:
        op.attributes = {**op.attributes, "out_shardings": tuple(map(update, shardings, (result.type for result in op.results)))}
        for result, sharding in zip(op.results, op.attributes["out_shardings"], strict=True):
            if result.sharding is not None:
                _set(result, sharding, log, op)


def evenly_dividing(axes: tuple[AxisRef, ...], size: int, mesh: Mesh) -> tuple[AxisRef, ...]:
    """The longest prefix of `axes` that divides a dimension, its last axis possibly shortened.

    Example:
        >>> evenly_dividing((AxisRef("y"), AxisRef("x")), 6, Mesh([("x", 8), ("y", 3)]))
        ("y", "x":(1)2)
    """
    prefix: list[AxisRef] = []
    for axis in axes:
        n = axis.size_in(mesh)
        divisor = math.gcd(n, size)
        if divisor == n:
            prefix.append(axis)
            size //= n
            continue
        if divisor > 1:
            prefix.append(AxisRef(axis.name, axis.pre_size or 1, divisor))
        break
    return tuple(prefix)


SUB_AXES = "an open dimension of an input or output does not keep parts of axes"
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
                log.append(LogStep(argument, old, argument.sharding, SUB_AXES))
        for i, old in enumerate(main.result_shardings):
            new = main.result_shardings[i] = without_sub_axes(old)
            if new is not old and log is not None:
                log.append(LogStep(main.body.ops[-1].operands[i], old, new, SUB_AXES, main.body.ops[-1]))


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
