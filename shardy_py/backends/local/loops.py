"""Loops and branches: bodies on local arrays, with layouts chosen for carries, slices and results of branches."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

from jax import lax
from jax.extend.core import Jaxpr, JaxprEqn, Literal

from shardy_py.backends.local.calls import run_body
from shardy_py.backends.local.interpreter import Handler, Interpreter, LayoutHint
from shardy_py.backends.local.sharded_value import RegionContext, ShardedValue, Values
from shardy_py.frontends.importer import Scope
from shardy_py.frontends.jaxprs import open_jaxpr
from shardy_py.frontends.loops import scan_counts
from shardy_py.partition.region.layouts import Layout, layout, local_shape, replicated
from shardy_py.partition.region.reshard_steps import COLLECTIVE_LAUNCH_BYTES, reshard_cost

Array = Any


def _body_layouts(interpreter: Interpreter, variables: Sequence[Any], scope: Scope | None) -> list[Layout]:
    """The planned layouts of the variables of a body; unplanned variables are replicated."""
    layouts = []
    for v in variables:
        planned = interpreter.planned(v, scope)
        layouts.append(replicated(len(getattr(v.aval, "shape", ()))) if planned is None else planned)
    return layouts


def _carry_layouts(
    interpreter: Interpreter, first: Sequence[ShardedValue], variables: Sequence[Any], results: Sequence[Any], scope: Scope | None
) -> list[Layout]:
    """The layouts of carries: planned ones, or those of the previous run at either end of a trip if they move fewer bytes.

    A first run with `LayoutHint.FORWARD` takes the layouts of the initial values.
    """
    layouts = []
    for value, v, result, planned in zip(first, variables, results, _body_layouts(interpreter, variables, scope), strict=True):
        if interpreter.hint is LayoutHint.FORWARD and not interpreter.previous_values:
            layouts.append(settled_layout(value) if value.rematerialize is None else planned)
            continue
        start, end = (
            interpreter.previous_value(v, scope),
            None if isinstance(result, Literal) else interpreter.previous_value(result, scope),
        )
        best = planned
        if start is not None and end is not None and end.rematerialize is None and start.shape:
            choices = [planned, *start.requested, *(at for at in end.copies if not at.unreduced)]
            rated = [(_trip_bytes(start, end, at), i) for i, at in enumerate(choices) if not at.unreduced]
            best = choices[min(rated)[1]]
        layouts.append(best)
    return layouts


def _trip_bytes(start: ShardedValue, end: ShardedValue, at: Layout) -> int:
    """Bytes per trip that a carry costs in a layout: to the requested layouts, and back to its own at the end."""
    first = next(iter(end.copies))
    return _moved_bytes(at, start) + reshard_cost(first, at, start.shape, start.bits, start.region.mesh, COLLECTIVE_LAUNCH_BYTES)


def _body_arguments(
    interpreter: Interpreter,
    arrays: Sequence[Array],
    at: Sequence[Layout],
    variables: Sequence[Any],
    scope: Scope | None,
    n_consts: int = 0,
    trips: int = 1,
) -> Values:
    """The arguments of a body as values."""
    arguments = []
    for i, (x, where, v) in enumerate(zip(arrays, at, variables, strict=True)):
        value = interpreter.new_value(x, where, tuple(getattr(v.aval, "shape", ())), getattr(v.aval, "dtype", None), uses=2)
        if i < n_consts and trips:
            value.trips = value.region.trips // trips
        interpreter.record_value(v, value, scope)
        arguments.append(value)
    return arguments


def settled_layout(value: ShardedValue) -> Layout:
    """The layout in which a value enters a body: its first copy without partial sums, else its first copy, reduced."""
    for at in value.copies:
        if not at.unreduced:
            return at
    first = next(iter(value.copies), None)
    return replicated(value.rank) if first is None else layout([dim.axes for dim in first.dims])


def _const_layouts(interpreter: Interpreter, consts: Sequence[ShardedValue], variables: Sequence[Any], scope: Scope | None) -> list[Layout]:
    """The layouts of a loop's constants, which stay as they are in front of the loop.

    A constant that can be computed in any layout, such as an attention mask, gets the smallest one from which all layouts that the dry
    run requested are free; replicated, every device would hold it for the global batch.
    """
    layouts = []
    for value, v in zip(consts, variables, strict=True):
        inside = None if value.rematerialize is None else interpreter.dry_run_value(v, scope)
        free = [] if inside is None else [at for at in inside.requested if not at.unreduced and not _moved_bytes(at, inside)]
        layouts.append(
            min(free, key=lambda at, value=value: math.prod(local_shape(value.shape, at, value.region.mesh)), default=settled_layout(value))
        )
    return layouts


UNKNOWN_TRIPS = 4
"""Trips that a dry run assumes for a `while` loop."""


def repeated(region: RegionContext, trips: int, run: Callable[[], Any]) -> Any:
    """Dry-runs a loop body once, weighting its cost by the trip count; by one for an empty loop, whose layouts are needed all the same."""
    before = region.trips
    region.trips = before * max(trips, 1)
    try:
        return run()
    finally:
        region.trips = before


def cheap_layout(value: ShardedValue, planned: Layout) -> Layout:
    """The planned layout if it is free or all copies have partial sums, else a copy's layout."""
    if not value.price(planned):
        return planned
    return next((at for at in value.copies if not at.unreduced), planned)


def _slice_layout(interpreter: Interpreter, stacked: ShardedValue, v: Any, planned: Layout, scope: Scope | None) -> Layout:
    """The layout of slices of a stacked value: the planned one if it is free, else the layout of the stacked value.

    A first run with `LayoutHint.FORWARD` takes the layout of the stacked value, and so does one after a run whose requests move less so.
    """
    current, preferred = settled_layout(stacked), cheap_layout(stacked, layout([(), *(dim.axes for dim in planned.dims)]))
    planned_slice, current_slice = (layout([dim.axes for dim in stacked_layout.dims[1:]]) for stacked_layout in (preferred, current))
    if current.dims[0].axes or stacked.rematerialize is not None or planned_slice is current_slice:
        return planned_slice
    if not interpreter.previous_values:
        return current_slice if interpreter.hint is LayoutHint.FORWARD else planned_slice
    slices = interpreter.previous_value(v, scope)
    return (
        planned_slice if slices is None or not _moved_bytes(current_slice, slices) < _moved_bytes(planned_slice, slices) else current_slice
    )


def _moved_bytes(at: Layout, value: ShardedValue) -> int:
    """Bytes from a layout to all requested ones without partial sums."""
    mesh = value.region.mesh
    return sum(
        reshard_cost(at, w, value.shape, value.bits, mesh, COLLECTIVE_LAUNCH_BYTES)
        for w in value.requested
        if not w.unreduced and w is not at
    )


def scan(interpreter: Interpreter, eqn: JaxprEqn, index: int, operands: Values, scope: Scope | None) -> Values:
    """A scan of local arrays: the leading dimension is replicated, the carry has the same layout on every trip."""
    n_consts, n_carry = scan_counts(eqn)
    body = eqn.params["jaxpr"]
    inner = _scope_of(interpreter, scope, index, body)
    variables = inner.jaxpr.invars
    out_variables = inner.jaxpr.outvars
    consts, carry, xs = operands[:n_consts], operands[n_consts : n_consts + n_carry], operands[n_consts + n_carry :]
    const_layouts = _const_layouts(interpreter, consts, variables[:n_consts], inner)
    carry_layouts = _carry_layouts(interpreter, carry, variables[n_consts : n_consts + n_carry], out_variables[:n_carry], inner)
    sliced = variables[n_consts + n_carry :]
    x_layouts = [
        _slice_layout(interpreter, x, v, planned, inner) for x, v, planned in zip(xs, sliced, _body_layouts(interpreter, sliced, inner))
    ]
    y_planned = _body_layouts(interpreter, out_variables[n_carry:], inner)
    y_layouts: list[Layout] = []
    const_arrays = [value.get(where) for value, where in zip(consts, const_layouts)]
    carry_parts = [value.get(where) for value, where in zip(carry, carry_layouts)]
    x_parts = [value.get(layout([(), *(dim.axes for dim in where.dims)])) for value, where in zip(xs, x_layouts)]

    late = interpreter.analysis.summed_late(inner.jaxpr, n_consts, n_carry)
    interpreter.late.update({v: max(eqn.params["length"], 1) for v in late})

    def step(state: Any, slices: Any) -> tuple[Any, Any]:
        at = [*const_layouts, *carry_layouts, *x_layouts]
        arguments = _body_arguments(interpreter, [*const_arrays, *state, *slices], at, variables, inner, n_consts, eqn.params["length"])
        for x, piece in zip(xs, arguments[n_consts + n_carry :]):
            piece.planned = x.planned
        outputs = run_body(interpreter, body, arguments, inner)
        y_layouts[:] = [cheap_layout(value, planned) for value, planned in zip(outputs[n_carry:], y_planned, strict=True)]
        new = [value.get(where) for value, where in zip(outputs, (*carry_layouts, *y_layouts), strict=True)]
        return new[:n_carry], new[n_carry:]

    params = eqn.params
    if interpreter.region.dry:
        last, ys = repeated(interpreter.region, params["length"], lambda: step(carry_parts, x_parts))
    else:
        last, ys = lax.scan(step, carry_parts, x_parts, length=params["length"], reverse=params["reverse"], unroll=params["unroll"])
    results = [(x, where) for x, where in zip(last, carry_layouts)]
    results += [(y, layout([(), *(dim.axes for dim in where.dims)])) for y, where in zip(ys, y_layouts)]
    return [_result(interpreter, x, where, v) for (x, where), v in zip(results, eqn.outvars, strict=True)]


def _result(interpreter: Interpreter, x: Array, at: Layout, v: Any) -> ShardedValue:
    return interpreter.new_value(x, at, tuple(getattr(v.aval, "shape", ())), getattr(v.aval, "dtype", None))


def _scope_of(interpreter: Interpreter, scope: Scope | None, index: int, body: Any, skip: int = 0) -> Scope:
    """The scope of a body, which the importer may have rewritten; an empty one for a body that was not imported."""
    scopes = list(scope.children.get(index, ())) if scope is not None else []
    for candidate in scopes:
        if candidate.jaxpr is open_jaxpr(body):
            return candidate
    fits = len(scopes) > skip and len(scopes[skip].jaxpr.invars) == len(open_jaxpr(body).invars)
    return scopes[skip] if fits else interpreter.analysis.scope(open_jaxpr(body))


def while_loop(interpreter: Interpreter, eqn: JaxprEqn, index: int, operands: Values, scope: Scope | None) -> Values:
    """A `while` loop of local arrays; the predicate is replicated, so all devices make the same trips."""
    params = eqn.params
    n_cond, n_body = params["cond_nconsts"], params["body_nconsts"]
    cond_jaxpr, body_jaxpr = params["cond_jaxpr"], params["body_jaxpr"]
    cond_scope, body_scope = _scope_of(interpreter, scope, index, cond_jaxpr), _scope_of(interpreter, scope, index, body_jaxpr, 1)
    cond_vars, body_vars = cond_scope.jaxpr.invars, body_scope.jaxpr.invars
    consts = operands[: n_cond + n_body]
    const_layouts = _const_layouts(interpreter, consts[:n_cond], cond_vars[:n_cond], cond_scope)
    const_layouts += _const_layouts(interpreter, consts[n_cond:], body_vars[:n_body], body_scope)
    const_arrays = [value.get(at) for value, at in zip(consts, const_layouts)]
    carry_layouts = _carry_layouts(interpreter, operands[n_cond + n_body :], body_vars[n_body:], body_scope.jaxpr.outvars, body_scope)
    carry_parts = [value.get(at) for value, at in zip(operands[n_cond + n_body :], carry_layouts)]
    predicate_aval: Any = open_jaxpr(cond_jaxpr).outvars[0].aval
    batched = bool(predicate_aval.shape)

    def predicate(state: Any) -> ShardedValue:
        arguments = _body_arguments(
            interpreter, [*const_arrays[:n_cond], *state], [*const_layouts[:n_cond], *carry_layouts], cond_vars, cond_scope
        )
        return run_body(interpreter, cond_jaxpr, arguments, cond_scope)[0]

    def continues(state: Any) -> Array:
        predicate_part = predicate(state).whole()
        return lax.reduce_or(predicate_part, tuple(range(predicate_part.ndim))) if batched else predicate_part

    def step(state: Any) -> Any:
        arguments = _body_arguments(
            interpreter, [*const_arrays[n_cond:], *state], [*const_layouts[n_cond:], *carry_layouts], body_vars, body_scope
        )
        outputs = run_body(interpreter, body_jaxpr, arguments, body_scope)
        new_carry = [value.get(at) for value, at in zip(outputs, carry_layouts, strict=True)]
        if not batched:
            return new_carry
        mask = predicate(state)
        return [_select_where(mask, old, now, at) for old, now, at in zip(state, new_carry, carry_layouts, strict=True)]

    if interpreter.region.dry:
        last = repeated(interpreter.region, UNKNOWN_TRIPS, lambda: (predicate(carry_parts).whole(), step(carry_parts))[1])
    else:
        last = lax.while_loop(continues, step, carry_parts)
    return [_result(interpreter, x, at, v) for x, at, v in zip(last, carry_layouts, eqn.outvars, strict=True)]


def _previous_results(interpreter: Interpreter, branch: Jaxpr, scope: Scope | None) -> list[ShardedValue | None]:
    outs: Sequence[Any] = (branch if scope is None else scope.jaxpr).outvars
    return [None if isinstance(v, Literal) else interpreter.previous_value(v, scope) for v in outs]


def _result_layouts(
    interpreter: Interpreter, results: Sequence[Any], scope: Scope | None, ends: Sequence[Sequence[ShardedValue | None]]
) -> list[Layout]:
    """The layouts of results of branches: planned ones, or requested ones or those of a branch if they move fewer bytes."""
    layouts = []
    for i, (v, planned) in enumerate(zip(results, _body_layouts(interpreter, results, scope), strict=True)):
        result = interpreter.previous_value(v, scope)
        branch_ends = [value for end in ends if (value := end[i]) is not None and value.rematerialize is None and value.copies]
        if result is None or not result.shape or not branch_ends:
            layouts.append(planned)
            continue
        branch_layouts = [next(iter(value.copies)) for value in branch_ends]
        choices = [at for at in (planned, *result.requested, *branch_layouts) if not at.unreduced]
        price = functools.partial(_branch_bytes, result, branch_layouts, len(ends))
        layouts.append(min(choices, key=price))
    return layouts


def _branch_bytes(result: ShardedValue, first: Sequence[Layout], count: int, at: Layout) -> float:
    """Bytes that a result of branches costs in a layout: to it, in one branch of `count`, and from it to the requested ones."""
    ends = sum(reshard_cost(end, at, result.shape, result.bits, result.region.mesh, COLLECTIVE_LAUNCH_BYTES) for end in first)
    return _moved_bytes(at, result) + ends / count


def _select_where(which: ShardedValue, old: Array, now: Array, at: Layout) -> Array:
    """`now` where the batched predicate holds."""
    rank = which.rank
    mask = which.get(layout([dim.axes for dim in at.dims[:rank]]))
    if which.region.dry:
        return None
    return lax.select(lax.broadcast_in_dim(mask, now.shape, tuple(range(rank))), now, old)


def cond(interpreter: Interpreter, eqn: JaxprEqn, index: int, operands: Values, scope: Scope | None) -> Values:
    """Branches of local arrays; the index is replicated, so all devices take the same branch."""
    branch_index, *arguments = operands
    branches = eqn.params["branches"]
    platforms = eqn.params.get("branches_platforms")
    scopes = [_scope_of(interpreter, scope, index, branch, i) for i, branch in enumerate(branches)]
    if platforms is not None:
        kept = next(i for i, names in enumerate(platforms) if names is None or interpreter.region.platform in names)
        return run_body(
            interpreter, branches[kept], arguments, scope.children[index][0] if scope is not None and index in scope.children else None
        )
    ends = [_previous_results(interpreter, open_jaxpr(branch), inner) for branch, inner in zip(branches, scopes)]
    result_layouts = _result_layouts(interpreter, eqn.outvars, scope, ends)
    forward = interpreter.hint is LayoutHint.FORWARD and not interpreter.previous_values
    at = [settled_layout(value) for value in arguments]
    arrays = [value.get(where) for value, where in zip(arguments, at)]

    def branch_function(branch: Any, inner: Scope | None) -> Any:
        def run(*parts: Array) -> list[Array]:
            outputs = run_body(interpreter, branch, _body_arguments(interpreter, parts, at, open_jaxpr(branch).invars, None), inner)
            if forward and branch is branches[0]:
                result_layouts[:] = [
                    planned if value.rematerialize is not None else settled_layout(value) for value, planned in zip(outputs, result_layouts)
                ]
            return [value.get(where) for value, where in zip(outputs, result_layouts, strict=True)]

        return run

    branch_number = branch_index.whole()
    if interpreter.region.dry:
        outputs, *_ = [branch_function(b, s)(*arrays) for b, s in zip(branches, scopes)]
    else:
        outputs = lax.switch(branch_number, [branch_function(b, s) for b, s in zip(branches, scopes)], *arrays)
    return [_result(interpreter, x, where, v) for x, where, v in zip(outputs, result_layouts, eqn.outvars, strict=True)]


def platform_index(interpreter: Interpreter, eqn: JaxprEqn, index: int, operands: Values, scope: Scope | None) -> Values:
    """The number of the platform compiled for."""
    platforms = eqn.params["platforms"]
    at = next(i for i, names in enumerate(platforms) if names is None or interpreter.region.platform in names)
    aval: Any = eqn.outvars[0].aval
    return [interpreter.constant(None if interpreter.region.dry else lax.full((), at, aval.dtype), aval)]


HANDLERS: dict[str, Handler] = {"cond": cond, "platform_index": platform_index, "scan": scan, "while": while_loop}
"""Primitive -> handler."""
