"""Loops and branches: bodies of local arrays, whose arguments and results lie as planned."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

from jax import lax
from jax.extend.core import Jaxpr, JaxprEqn, Literal

from shardy_py.backends.local import ops
from shardy_py.backends.local.calls import run_body
from shardy_py.backends.local.held import Held, Region
from shardy_py.backends.local.layouts import Layout, layout, local_shape, replicated
from shardy_py.backends.local.moves import STARTING, cost
from shardy_py.backends.local.once import remembering
from shardy_py.backends.local.walk import Handler, Start, Walker, runs_dry
from shardy_py.backends.rewriting import open_jaxpr
from shardy_py.frontends.importer import Scope
from shardy_py.frontends.loops import scan_counts

Array = Any


def _body_layouts(walker: Walker, variables: Sequence[Any], scope: Scope | None) -> list[Layout]:
    """Where the variables of a body lie; as planned, whole where nothing is planned."""
    out = []
    for v in variables:
        planned = walker.planned(v, scope)
        out.append(replicated(len(getattr(v.aval, "shape", ()))) if planned is None else planned)
    return out


def _carried(walker: Walker, first: Sequence[Held], variables: Sequence[Any], results: Sequence[Any], scope: Scope | None) -> list[Layout]:
    """Where what a loop carries lies: as planned, or where a walk before had it on either end of a trip if fewer bytes move so.

    A first walk that goes forward carries values as they come.
    """
    out = []
    for held, v, made, planned in zip(first, variables, results, _body_layouts(walker, variables, scope), strict=True):
        if walker.start is Start.FORWARD and not walker.before:
            out.append(settled(held) if held.remake is None else planned)
            continue
        start, end = walker.noted(v, scope), None if isinstance(made, Literal) else walker.noted(made, scope)
        best = planned
        if start is not None and end is not None and end.remake is None and start.shape:
            choices = [planned, *start.asked, *(at for at in end.versions if not at.unreduced)]
            rated = [(_trip_bytes(start, end, at), i) for i, at in enumerate(choices) if not at.unreduced]
            best = choices[min(rated)[1]]
        out.append(best)
    return out


def _trip_bytes(start: Held, end: Held, at: Layout) -> int:
    """What a trip moves of a value that is carried in a layout: to be as it is asked for, and back at the end."""
    first = next(iter(end.versions))
    return _moved_bytes(at, start) + cost(first, at, start.shape, start.bits, start.region.mesh, STARTING)


def _held(
    walker: Walker,
    arrays: Sequence[Array],
    at: Sequence[Layout],
    variables: Sequence[Any],
    scope: Scope | None,
    fixed: int = 0,
    trips: int = 1,
) -> list[Held]:
    """The arguments of a body.

    Args:
        walker: The walker.
        arrays: Their parts.
        at: Where they lie.
        variables: Their variables.
        scope: The scope of the body.
        fixed: How many of them, from the first on, are the same on every trip.
        trips: How often the loop runs.
    """
    out = []
    for i, (x, where, v) in enumerate(zip(arrays, at, variables, strict=True)):
        held = walker.hold(x, where, tuple(getattr(v.aval, "shape", ())), getattr(v.aval, "dtype", None), uses=2)
        if i < fixed and trips:
            held.trips = held.region.trips // trips
        walker.note(v, held, scope)
        out.append(held)
    return out


def settled(held: Held) -> Layout:
    """The cheapest layout without waiting sums in which a value can enter a body: one it is at hand in, else whole."""
    for at in held.versions:
        if not at.unreduced:
            return at
    first = next(iter(held.versions), None)
    return replicated(held.rank) if first is None else layout([dim.axes for dim in first.dims])


def _const_layouts(walker: Walker, consts: Sequence[Held], variables: Sequence[Any], scope: Scope | None) -> list[Layout]:
    """Where what a loop does not change lies in it: as it is at hand.

    What can be had in any layout, such as an attention mask, is made in the smallest part from which all is free that the dry walk asked
    for; whole, every device would hold it for the global batch.

    Args:
        walker: The walker.
        consts: What is there in front of the loop.
        variables: Its variables in the body.
        scope: The scope of the body.
    """
    out = []
    for held, v in zip(consts, variables, strict=True):
        inside = None if held.remake is None else walker.foreseen(v, scope)
        enough = [] if inside is None else [at for at in inside.asked if not at.unreduced and not _moved_bytes(at, inside)]
        out.append(min(enough, key=lambda at, held=held: math.prod(local_shape(held.shape, at, held.region.mesh)), default=settled(held)))
    return out


GUESSED_TRIPS = 4
"""How often a loop is taken to run where that is not known."""


def often(region: Region, trips: int, run: Callable[[], Any]) -> Any:
    """Runs what is repeated once, and counts it as often as it is; once where it never is, as its parts are laid out all the same."""
    before = region.trips
    region.trips = before * max(trips, 1)
    try:
        return run()
    finally:
        region.trips = before


def at_hand(held: Held, planned: Layout) -> Layout:
    """The planned layout if that costs nothing or sums wait, else one the value is at hand in."""
    if not held.price(planned):
        return planned
    return next((at for at in held.versions if not at.unreduced), planned)


def _slice_layout(walker: Walker, stacked: Held, v: Any, planned: Layout, scope: Scope | None) -> Layout:
    """Where slices of a value along its first dimension lie: as planned if that costs nothing, else as the value does.

    As the value does, too, in a first walk that goes forward, and where the walk before asked for less to be moved so.
    """
    came, wanted = settled(stacked), at_hand(stacked, layout([(), *(dim.axes for dim in planned.dims)]))
    first, other = (layout([dim.axes for dim in whole.dims[1:]]) for whole in (wanted, came))
    if came.dims[0].axes or stacked.remake is not None or first is other:
        return first
    if not walker.before:
        return other if walker.start is Start.FORWARD else first
    slices = walker.noted(v, scope)
    return first if slices is None or not _moved_bytes(other, slices) < _moved_bytes(first, slices) else other


def _moved_bytes(at: Layout, held: Held) -> int:
    """What is moved of a value that lies in a layout for all that it is asked for in, but for what leaves sums waiting."""
    mesh = held.region.mesh
    return sum(cost(at, w, held.shape, held.bits, mesh, STARTING) for w in held.asked if not w.unreduced and w is not at)


@runs_dry
def scan(walker: Walker, eqn: JaxprEqn, index: int, operands: list[Held], scope: Scope | None) -> list[Held]:
    """A scan of local arrays: the leading dimension is whole, the carry lies as planned on every trip."""
    n_consts, n_carry = scan_counts(eqn)
    body = eqn.params["jaxpr"]
    inner = _scope_of(walker, scope, index, body)
    shown = inner.jaxpr.invars
    outs = inner.jaxpr.outvars
    consts, carry, xs = operands[:n_consts], operands[n_consts : n_consts + n_carry], operands[n_consts + n_carry :]
    const_layouts = _const_layouts(walker, consts, shown[:n_consts], inner)
    carry_layouts = _carried(walker, carry, shown[n_consts : n_consts + n_carry], outs[:n_carry], inner)
    sliced = shown[n_consts + n_carry :]
    x_layouts = [_slice_layout(walker, x, v, planned, inner) for x, v, planned in zip(xs, sliced, _body_layouts(walker, sliced, inner))]
    y_planned = _body_layouts(walker, outs[n_carry:], inner)
    y_layouts: list[Layout] = []
    const_arrays = [held.get(where) for held, where in zip(consts, const_layouts)]
    first = [held.get(where) for held, where in zip(carry, carry_layouts)]
    stacked = [held.get(layout([(), *(dim.axes for dim in where.dims)])) for held, where in zip(xs, x_layouts)]

    @remembering()
    def step(state: Any, slices: Any) -> tuple[Any, Any]:
        at = [*const_layouts, *carry_layouts, *x_layouts]
        arguments = _held(walker, [*const_arrays, *state, *slices], at, shown, inner, n_consts, eqn.params["length"])
        made = run_body(walker, body, arguments, inner)
        y_layouts[:] = [at_hand(held, planned) for held, planned in zip(made[n_carry:], y_planned, strict=True)]
        new = [held.get(where) for held, where in zip(made, (*carry_layouts, *y_layouts), strict=True)]
        return new[:n_carry], new[n_carry:]

    params = eqn.params
    if walker.region.dry:
        last, ys = often(walker.region, params["length"], lambda: step(first, stacked))
    else:
        last, ys = lax.scan(step, first, stacked, length=params["length"], reverse=params["reverse"], unroll=params["unroll"])
    results = [(x, where) for x, where in zip(last, carry_layouts)]
    results += [(y, layout([(), *(dim.axes for dim in where.dims)])) for y, where in zip(ys, y_layouts)]
    return [_result(walker, x, where, v) for (x, where), v in zip(results, eqn.outvars, strict=True)]


def _result(walker: Walker, x: Array, at: Layout, v: Any) -> Held:
    return walker.hold(x, at, tuple(getattr(v.aval, "shape", ())), getattr(v.aval, "dtype", None))


def _scope_of(walker: Walker, scope: Scope | None, index: int, body: Any, skip: int = 0) -> Scope:
    """The scope of a body, which may have been rewritten where it was read; one without values where it was not read."""
    found = list(scope.children.get(index, ())) if scope is not None else []
    for at in found:
        if at.jaxpr is open_jaxpr(body):
            return at
    fits = len(found) > skip and len(found[skip].jaxpr.invars) == len(open_jaxpr(body).invars)
    return found[skip] if fits else walker.reading.scope(open_jaxpr(body))


@runs_dry
def while_loop(walker: Walker, eqn: JaxprEqn, index: int, operands: list[Held], scope: Scope | None) -> list[Held]:
    """A loop of local arrays; every device decides alike, as the predicate is whole on each."""
    params = eqn.params
    n_cond, n_body = params["cond_nconsts"], params["body_nconsts"]
    cond_jaxpr, body_jaxpr = params["cond_jaxpr"], params["body_jaxpr"]
    cond_scope, body_scope = _scope_of(walker, scope, index, cond_jaxpr), _scope_of(walker, scope, index, body_jaxpr, 1)
    cond_vars, body_vars = cond_scope.jaxpr.invars, body_scope.jaxpr.invars
    consts = operands[: n_cond + n_body]
    const_layouts = _const_layouts(walker, consts[:n_cond], cond_vars[:n_cond], cond_scope)
    const_layouts += _const_layouts(walker, consts[n_cond:], body_vars[:n_body], body_scope)
    const_arrays = [held.get(at) for held, at in zip(consts, const_layouts)]
    carry_layouts = _carried(walker, operands[n_cond + n_body :], body_vars[n_body:], body_scope.jaxpr.outvars, body_scope)
    first = [held.get(at) for held, at in zip(operands[n_cond + n_body :], carry_layouts)]
    predicate_aval: Any = open_jaxpr(cond_jaxpr).outvars[0].aval
    batched = bool(predicate_aval.shape)

    def predicate(state: Any) -> Held:
        arguments = _held(walker, [*const_arrays[:n_cond], *state], [*const_layouts[:n_cond], *carry_layouts], cond_vars, cond_scope)
        return run_body(walker, cond_jaxpr, arguments, cond_scope)[0]

    @remembering()
    def go_on(state: Any) -> Array:
        found = predicate(state).whole()
        return lax.reduce_or(found, tuple(range(found.ndim))) if batched else found

    @remembering()
    def step(state: Any) -> Any:
        arguments = _held(walker, [*const_arrays[n_cond:], *state], [*const_layouts[n_cond:], *carry_layouts], body_vars, body_scope)
        made = run_body(walker, body_jaxpr, arguments, body_scope)
        new = [held.get(at) for held, at in zip(made, carry_layouts, strict=True)]
        if not batched:
            return new
        which = predicate(state)
        return [_masked(which, old, now, at) for old, now, at in zip(state, new, carry_layouts, strict=True)]

    if walker.region.dry:
        last = often(walker.region, GUESSED_TRIPS, lambda: (predicate(first).whole(), step(first))[1])
    else:
        last = lax.while_loop(go_on, step, first)
    return [_result(walker, x, at, v) for x, at, v in zip(last, carry_layouts, eqn.outvars, strict=True)]


def _noted_results(walker: Walker, branch: Jaxpr, scope: Scope | None) -> list[Held | None]:
    outs: Sequence[Any] = (branch if scope is None else scope.jaxpr).outvars
    return [None if isinstance(v, Literal) else walker.noted(v, scope) for v in outs]


def _result_layouts(walker: Walker, results: Sequence[Any], scope: Scope | None, ends: Sequence[Sequence[Held | None]]) -> list[Layout]:
    """Where results of branches lie: as planned, or as a walk before asked for them or as a branch had them if fewer bytes move so.

    Args:
        walker: The walker.
        results: The variables of the results.
        scope: Their scope.
        ends: Per branch what the walk before had of its results; None where it had nothing.
    """
    out = []
    for i, (v, planned) in enumerate(zip(results, _body_layouts(walker, results, scope), strict=True)):
        result = walker.noted(v, scope)
        branch_ends = [held for end in ends if (held := end[i]) is not None and held.remake is None and held.versions]
        if result is None or not result.shape or not branch_ends:
            out.append(planned)
            continue
        first = [next(iter(held.versions)) for held in branch_ends]
        choices = [at for at in (planned, *result.asked, *first) if not at.unreduced]
        price = functools.partial(_branch_bytes, result, first, len(ends))
        out.append(min(choices, key=price))
    return out


def _branch_bytes(result: Held, first: Sequence[Layout], count: int, at: Layout) -> float:
    """What is moved of a result of branches that lies in a layout: to be so in one branch of `count`, and as it is asked for."""
    ends = sum(cost(end, at, result.shape, result.bits, result.region.mesh, STARTING) for end in first)
    return _moved_bytes(at, result) + ends / count


def _masked(which: Held, old: Array, now: Array, at: Layout) -> Array:
    """`now` where the batched predicate holds."""
    rank = which.rank
    mask = which.get(layout([dim.axes for dim in at.dims[:rank]]))
    if which.region.dry:
        return None
    return ops.select(ops.broadcast_in_dim(mask, now.shape, tuple(range(rank))), now, old)


@runs_dry
def cond(walker: Walker, eqn: JaxprEqn, index: int, operands: list[Held], scope: Scope | None) -> list[Held]:
    """Branches of local arrays; every device takes the same, as the index is whole on each."""
    which, *rest = operands
    branches = eqn.params["branches"]
    platforms = eqn.params.get("branches_platforms")
    scopes = [_scope_of(walker, scope, index, branch, i) for i, branch in enumerate(branches)]
    if platforms is not None:
        kept = next(i for i, names in enumerate(platforms) if names is None or walker.region.platform in names)
        return run_body(walker, branches[kept], rest, scope.children[index][0] if scope is not None and index in scope.children else None)
    ends = [_noted_results(walker, open_jaxpr(branch), inner) for branch, inner in zip(branches, scopes)]
    result_layouts = _result_layouts(walker, eqn.outvars, scope, ends)
    forward = walker.start is Start.FORWARD and not walker.before
    at = [settled(held) for held in rest]
    arrays = [held.get(where) for held, where in zip(rest, at)]

    def taken(branch: Any, inner: Scope | None) -> Any:
        @remembering()
        def run(*parts: Array) -> list[Array]:
            made = run_body(walker, branch, _held(walker, parts, at, open_jaxpr(branch).invars, None), inner)
            if forward and branch is branches[0]:
                result_layouts[:] = [planned if held.remake is not None else settled(held) for held, planned in zip(made, result_layouts)]
            return [held.get(where) for held, where in zip(made, result_layouts, strict=True)]

        return run

    chosen = which.whole()
    if walker.region.dry:
        made, *_ = [taken(b, s)(*arrays) for b, s in zip(branches, scopes)]
    else:
        made = lax.switch(chosen, [taken(b, s) for b, s in zip(branches, scopes)], *arrays)
    return [_result(walker, x, where, v) for x, where, v in zip(made, result_layouts, eqn.outvars, strict=True)]


@runs_dry
def platform_index(walker: Walker, eqn: JaxprEqn, index: int, operands: list[Held], scope: Scope | None) -> list[Held]:
    """The number of the platform compiled for."""
    platforms = eqn.params["platforms"]
    at = next(i for i, names in enumerate(platforms) if names is None or walker.region.platform in names)
    aval: Any = eqn.outvars[0].aval
    return [walker.constant(None if walker.region.dry else ops.full((), at, aval.dtype), aval)]


HANDLERS: dict[str, Handler] = {"cond": cond, "platform_index": platform_index, "scan": scan, "while": while_loop}
"""Primitive -> what runs it."""
