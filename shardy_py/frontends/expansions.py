"""Primitives that JAX lowers by tracing a Python function: the jaxpr of that function is read like any other.

It gives what `lowered.lower_fragment` gives, in a tenth of the time, since no MLIR module is made.
"""

from __future__ import annotations

import functools
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping
from typing import Any, NamedTuple

from jax.extend.core import ClosedJaxpr, JaxprEqn, Literal, Var

from shardy_py.frontends import _jax
from shardy_py.frontends.primitives.avals import is_extended

_CACHE: OrderedDict[Hashable, Expansion | None] = OrderedDict()
_CACHE_SIZE = 4096


class Expansion(NamedTuple):
    """A jaxpr over physical arrays that a primitive is lowered through.

    Attributes:
        jaxpr: The jaxpr.
        called: Whether JAX puts it into a function of its own, named after the primitive.
        key: Equal for equations that share the function.
    """

    jaxpr: ClosedJaxpr
    called: bool
    key: Hashable


def expansion_of(eqn: JaxprEqn, platform: str) -> Expansion | None:
    """The expansion of an equation, or None where JAX's rule makes its ops itself."""
    key = (
        eqn.primitive,
        tuple(eqn.params.items()),
        tuple(v.aval for v in eqn.invars),
        platform,
        eqn.ctx,
        _jax.trace_context(),
    )
    try:
        found = _CACHE.get(key, _CACHE)
    except TypeError:  # a parameter that has no hash
        return _expand(eqn, platform, object())
    if found is _CACHE:
        found = _CACHE[key] = _expand(eqn, platform, key)
        if len(_CACHE) > _CACHE_SIZE:
            _CACHE.popitem(last=False)
    return found  # pyright: ignore[reportReturnType]


def _expand(eqn: JaxprEqn, platform: str, key: Hashable) -> Expansion | None:
    avals = [v.aval for v in eqn.invars]
    find = FUNCTIONS.get(eqn.primitive.name)
    if find is not None:
        function, called = find(eqn), False
        avals = [_jax.physical_aval(a) for a in avals]
    else:
        function, called = _jax.lowering_function(eqn.primitive, eqn.params, platform)
    if function is None:
        return None
    jaxpr = _of_another_shape(eqn, platform)
    if jaxpr is None:
        with eqn.ctx.manager:
            jaxpr = _jax.traced(function, avals)
    return Expansion(jaxpr, called, key)


_TRACED_FOR = (7,)
"""The shape that a hash of numbers is traced for."""


def _of_another_shape(eqn: JaxprEqn, platform: str) -> ClosedJaxpr | None:
    """The jaxpr of a hash of numbers, one by one, from that for arrays of another shape; None for other equations.

    Each array of random numbers has a hash of its own shape, which takes 5 ms to trace.
    """
    if eqn.primitive.name != "threefry2x32":
        return None
    types: list[Any] = [v.aval for v in (*eqn.invars, *eqn.outvars)]
    shapes = {aval.shape for aval in types if aval.shape}
    if len(shapes) != 1 or _TRACED_FOR in shapes or any(map(_jax.has_explicit_axes, types)):
        return None
    now: list[Any] = [Var(_jax.local_type(aval, _TRACED_FOR if aval.shape else ())) for aval in types]
    like = expansion_of(eqn.replace(invars=now[: len(eqn.invars)], outvars=now[len(eqn.invars) :]), platform)
    return None if like is None else with_shape(like.jaxpr, _TRACED_FOR, *shapes)


ELEMENTWISE = frozenset("add and convert_element_type mul not or shift_left shift_right_logical sub xor".split())
"""Primitives that do the same to arrays of any shape."""


def with_shape(closed: ClosedJaxpr, old: tuple[int, ...], new: tuple[int, ...]) -> ClosedJaxpr | None:
    """A jaxpr for arrays of another shape.

    Args:
        closed: What works on the elements of arrays of one shape, one by one; arrays of other shapes stay as they are.
        old: The shape.
        new: The other shape.

    Returns:
        The jaxpr; None where it does anything to the arrays of that shape but what is `ELEMENTWISE`, and to broadcast scalars to it.
    """
    known: dict[Any, Any] = {}

    def renewed(v: Any) -> Any:
        if isinstance(v, Literal) or v.aval.shape != old:
            return v
        if v not in known:
            known[v] = Var(_jax.local_type(v.aval, new))
        return known[v]

    eqns: list[JaxprEqn] = []
    for eqn in closed.jaxpr.eqns:
        params = eqn.params
        variables: list[Any] = [*eqn.invars, *eqn.outvars]
        if eqn.primitive.name == "scan":
            body = with_shape(params["jaxpr"], old, new)
            if body is None or any(v.aval.shape[:1] == (params["length"],) for v in variables):
                return None
            params = {**params, "jaxpr": body}
        elif eqn.primitive.name == "broadcast_in_dim" and params["shape"] == old:
            if any(v.aval.shape for v in eqn.invars):
                return None
            params = {**params, "shape": new}
        elif eqn.primitive.name not in ELEMENTWISE and any(v.aval.shape == old for v in variables):
            return None
        eqns.append(eqn.replace(invars=list(map(renewed, eqn.invars)), outvars=list(map(renewed, eqn.outvars)), params=params))
    jaxpr = closed.jaxpr
    return ClosedJaxpr(
        jaxpr.replace(
            constvars=list(map(renewed, jaxpr.constvars)),
            invars=list(map(renewed, jaxpr.invars)),
            outvars=list(map(renewed, jaxpr.outvars)),
            eqns=eqns,
            debug_info=jaxpr.debug_info.with_unknown_names(),
        ),
        closed.consts,
    )


def _gather(eqn: JaxprEqn) -> Callable[..., Any] | None:
    if is_extended(eqn.invars[0].aval) or eqn.params["mode"].name != "FILL_OR_DROP":
        return None
    return functools.partial(_jax.gather_or_fill, eqn)


def _scatter(eqn: JaxprEqn) -> Callable[..., Any] | None:
    if is_extended(eqn.invars[0].aval) or getattr(eqn.params["mode"], "name", "") != "CLIP":
        return None
    return functools.partial(_jax.scatter_clipped, eqn)


FUNCTIONS: Mapping[str, Callable[[JaxprEqn], Callable[..., Any] | None]] = {
    "gather": _gather,
    "random_bits": _jax.random_bits,
    "random_fold_in": _jax.random_fold_in,
    "random_seed": _jax.random_seed,
    "random_split": _jax.random_split,
    **dict.fromkeys(("scatter", "scatter-add", "scatter-max", "scatter-min", "scatter-mul", "scatter-sub"), _scatter),
}
"""Primitive name -> the function that its rule traces, where the rule is more than that function."""
