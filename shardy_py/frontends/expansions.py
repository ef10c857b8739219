"""Primitives that JAX lowers by tracing a Python function: the jaxpr of that function is read like any other.

It gives what `lowered.lower_fragment` gives, in a tenth of the time, since no MLIR module is made.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, NamedTuple

from jax.extend.core import ClosedJaxpr, JaxprEqn, Primitive

from shardy_py.frontends import _jax


class Expansion(NamedTuple):
    """A jaxpr over physical arrays that a primitive is lowered through.

    Attributes:
        jaxpr: Of equations that share it the same one.
        has_own_function: Whether JAX puts it into a function of its own, named after the primitive.
    """

    jaxpr: ClosedJaxpr
    has_own_function: bool


def expansion_of(eqn: JaxprEqn, platform: str) -> Expansion | None:
    """The expansion of an equation, or None where JAX's rule makes its ops itself, or fails."""
    params, avals = tuple(eqn.params.items()), tuple(v.aval for v in eqn.invars)
    key = eqn.primitive, params, avals, platform, eqn.ctx, _jax.trace_context()
    try:
        return _expanded(*key)
    except TypeError:  # a parameter that has no hash
        return _expanded.__wrapped__(*key)


@functools.lru_cache(maxsize=4096)
def _expanded(
    primitive: Primitive, items: tuple[tuple[str, Any], ...], avals: Sequence[Any], platform: str, context: Any, _settings: Hashable
) -> Expansion | None:
    find, params = FUNCTIONS.get(primitive.name), dict(items)
    if find is not None:
        function, has_own_function = find(params, avals), False
        avals = [_jax.physical_aval(a) for a in avals]
    else:
        function, has_own_function = _jax.lowering_function(primitive, params, platform)
    if function is None:
        return None
    try:
        with context.manager:
            return Expansion(_jax.traced(function, avals), has_own_function)
    except Exception:  # whatever a rule raises: JAX raises it where the equation is used, and passes over one that is not
        return None


FUNCTIONS: Mapping[str, Callable[[Mapping[str, Any], Sequence[Any]], Callable[..., Any] | None]] = {
    "pallas_call": _jax.interpreted_kernel,
    "random_bits": _jax.random_bits,
    "random_fold_in": _jax.random_fold_in,
    "random_seed": _jax.random_seed,
    "random_split": _jax.random_split,
}
"""Primitive name -> the function that its rule traces, where the rule is more than that function."""
