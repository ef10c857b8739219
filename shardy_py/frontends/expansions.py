"""Primitives that JAX lowers by tracing a Python function: the jaxpr of that function is read like any other.

It gives what `lowered.lower_fragment` gives, in a tenth of the time, since no MLIR module is made.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping
from typing import Any, NamedTuple

from jax.extend.core import ClosedJaxpr, JaxprEqn

from shardy_py.frontends import _jax

_CACHE: OrderedDict[Hashable, Expansion | None] = OrderedDict()
_CACHE_SIZE = 4096


class Expansion(NamedTuple):
    """A jaxpr over physical arrays that a primitive is lowered through.

    Attributes:
        has_own_function: Whether JAX puts it into a function of its own, named after the primitive.
        key: Equal for equations that share the function.
    """

    jaxpr: ClosedJaxpr
    has_own_function: bool
    key: Hashable


def expansion_of(eqn: JaxprEqn, platform: str) -> Expansion | None:
    """The expansion of an equation, or None where JAX's rule makes its ops itself, or fails."""
    key = (
        eqn.primitive,
        tuple(eqn.params.items()),
        tuple(v.aval for v in eqn.invars),
        platform,
        eqn.ctx,
        _jax.trace_context(),
    )
    try:
        expansion = _CACHE.get(key, _CACHE)
    except TypeError:  # a parameter that has no hash
        return _expand(eqn, platform, object())
    if expansion is _CACHE:
        expansion = _CACHE[key] = _expand(eqn, platform, key)
        if len(_CACHE) > _CACHE_SIZE:
            _CACHE.popitem(last=False)
    return expansion  # pyright: ignore[reportReturnType]


def _expand(eqn: JaxprEqn, platform: str, key: Hashable) -> Expansion | None:
    avals = [v.aval for v in eqn.invars]
    find = FUNCTIONS.get(eqn.primitive.name)
    if find is not None:
        function, has_own_function = find(eqn), False
        avals = [_jax.physical_aval(a) for a in avals]
    else:
        function, has_own_function = _jax.lowering_function(eqn.primitive, eqn.params, platform)
    if function is None:
        return None
    try:
        with eqn.ctx.manager:
            return Expansion(_jax.traced(function, avals), has_own_function, key)
    except Exception:  # whatever a rule raises: JAX raises it where the equation is used, and passes over one that is not
        return None


FUNCTIONS: Mapping[str, Callable[[JaxprEqn], Callable[..., Any] | None]] = {
    "pallas_call": _jax.interpreted_kernel,
    "random_bits": _jax.random_bits,
    "random_fold_in": _jax.random_fold_in,
    "random_seed": _jax.random_seed,
    "random_split": _jax.random_split,
}
"""Primitive name -> the function that its rule traces, where the rule is more than that function."""
