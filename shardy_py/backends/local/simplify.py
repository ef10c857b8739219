"""Simplification of the jaxpr of a region: common subexpressions, dead code and operands of sorts that nothing reads go."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jax.extend.core import Jaxpr, JaxprEqn, Literal
from jax.interpreters import partial_eval

from shardy_py.backends.local.jaxpr_rewriting import COLLECTIVES, UNEQUAL, Atom, Rewritten, has_effects, rewrite, rewrite_bodies
from shardy_py.frontends.context import settings
from shardy_py.frontends.jaxprs import live_equations


def drop_dead_code(jaxpr: Jaxpr) -> Jaxpr:
    """Drops equations that no result depends on, in bodies too; effects stay."""
    if not any(eqn.primitive in partial_eval.dce_rules or has_effects(eqn) for eqn in jaxpr.eqns):
        live = live_equations(jaxpr.eqns, jaxpr.outvars)  # four times as fast as JAX's
        return jaxpr if len(live) == len(jaxpr.eqns) else jaxpr.replace(eqns=live)
    new, _ = partial_eval.dce_jaxpr(jaxpr, [True] * len(jaxpr.outvars), instantiate=True)
    return new


def trim_sorts(jaxpr: Jaxpr) -> Jaxpr:
    """Drops operands of sorts that are no keys and whose results nothing reads, as XLA does, so that nothing is gathered for them."""
    if not any(eqn.primitive.name == "sort" and len(eqn.outvars) > eqn.params["num_keys"] for eqn in jaxpr.eqns):
        return jaxpr
    read: set[Any] = {v for v in jaxpr.outvars if not isinstance(v, Literal)}
    eqns: list[JaxprEqn] = []
    for eqn in reversed(jaxpr.eqns):
        if eqn.primitive.name == "sort":
            needed = [i < eqn.params["num_keys"] or v in read for i, v in enumerate(eqn.outvars)]
            if not all(needed):
                invars = [v for v, is_needed in zip(eqn.invars, needed, strict=True) if is_needed]
                eqn = eqn.replace(invars=invars, outvars=[v for v, is_needed in zip(eqn.outvars, needed, strict=True) if is_needed])
        eqns.append(eqn)
        read.update(v for v in eqn.invars if not isinstance(v, Literal))
    return jaxpr if all(new is old for new, old in zip(reversed(eqns), jaxpr.eqns)) else jaxpr.replace(eqns=eqns[::-1])


def merge_equal_equations(jaxpr: Jaxpr, drop_barriers: bool = False) -> Jaxpr:
    """Merges equal equations of a body, as XLA will, so that collectives of equal operands become one.

    Equations behind an `optimization_barrier` have other operands than those before it, and are kept.
    """
    seen: dict[Any, JaxprEqn] = {}  # the first equation of a primitive on operands; few have a second
    alike: dict[Any, dict[Any, JaxprEqn]] = {}
    aliases: dict[Atom, Atom] = {}  # values that only differ from another one in how their type came about
    available: set[Any] = {*jaxpr.invars, *jaxpr.constvars}

    def source(v: Atom) -> Atom:
        return v if isinstance(v, Literal) else aliases.get(v, v)

    def key(v: Atom) -> Any:
        return _key(v) if isinstance(v, Literal) else _key(aliases[v]) if v in aliases else v

    def is_available(v: Atom) -> bool:
        origin = source(v)
        return isinstance(origin, Literal) or origin in available

    def replace(eqn: JaxprEqn) -> Rewritten | None:
        name = eqn.primitive.name
        same = _same_as(eqn) if name in _HANDING_ON else None
        if same is not None:
            (out,) = eqn.outvars
            if name == "reshard" or _type(same) == _type(out):
                return [], [same]
            aliases[out] = source(same)
            return None
        if drop_barriers and name == "optimization_barrier":
            aliases.update((out, source(v)) for v, out in zip(eqn.invars, eqn.outvars) if is_available(v))
        if name in UNEQUAL or (eqn.effects and has_effects(eqn)):
            return None
        if drop_barriers and (name in _SHAPING or name in COLLECTIVES) and all(map(is_available, eqn.invars)):
            available.update(eqn.outvars)
        operands = tuple([key(v) for v in eqn.invars])
        first = seen.setdefault((eqn.primitive, operands), eqn)
        if first is eqn:
            return None
        equal = alike.setdefault((eqn.primitive, operands), {})
        try:
            if not equal:
                equal[_details(first)] = first
            earlier = equal.setdefault(_details(eqn), eqn)
        except TypeError:  # a parameter that has no hash
            return None
        return None if earlier is eqn else ([], list(earlier.outvars))

    return rewrite(jaxpr, replace)


def _details(eqn: JaxprEqn) -> Any:
    """All in which equations of one primitive on equal operands may differ."""
    return tuple(eqn.params.items()), tuple(map(_type, eqn.outvars)), settings(eqn)


def _same_as(eqn: JaxprEqn) -> Atom | None:
    """The operand that the result equals, if any; where all axes are manual, a `reshard` does nothing."""
    name = eqn.primitive.name
    operands: Sequence[Any] = eqn.invars
    if name == "reshard" or (name in _SHAPING and _keeps_shape(eqn)):
        return operands[0]
    if name == "dynamic_update_slice":
        return operands[1] if _type(operands[1])[0] == _type(operands[0])[0] else None
    return None


def _keeps_shape(eqn: JaxprEqn) -> bool:
    name, params = eqn.primitive.name, eqn.params
    before: Any = eqn.invars[0].aval
    after: Any = eqn.outvars[0].aval
    if before.shape != after.shape or before.dtype != after.dtype:
        return False
    in_order = tuple(range(len(before.shape)))
    if name == "pad":
        return not any(low or high or inner for low, high, inner in params["padding_config"])
    if name in ("transpose", "broadcast_in_dim"):
        return tuple(params["permutation" if name == "transpose" else "broadcast_dimensions"]) == in_order
    return name not in ("reshape", "rev") or not params["dimensions"]


_SHAPING = frozenset(
    "broadcast_in_dim concatenate convert_element_type copy dynamic_slice pad reshape rev slice squeeze stop_gradient transpose".split()
)
"""Primitives that return the first operand if its shape stays."""

_HANDING_ON = frozenset({"dynamic_update_slice", "reshard", *_SHAPING})
"""Primitives whose result may equal an operand."""


def _type(v: Atom) -> Any:
    """The type without the mesh that it was traced under."""
    aval: Any = v.aval
    return getattr(aval, "shape", aval), getattr(aval, "dtype", None), getattr(aval, "weak_type", False)


def _key(v: Atom) -> Any:
    """A key that is equal for atoms of equal values; 0.0 and -0.0 are not equal."""
    if not isinstance(v, Literal):
        return v
    return v.val.tobytes() if hasattr(v.val, "tobytes") else repr(v.val), type(v.val), _type(v)


def simplify(jaxpr: Jaxpr, *, drop_barriers: bool = False) -> Jaxpr:
    """Merges equal equations, then drops dead code and dead operands of sorts, in all bodies."""
    live = drop_dead_code(rewrite_bodies(jaxpr, lambda body: merge_equal_equations(body, drop_barriers)))
    trimmed = rewrite_bodies(live, trim_sorts)
    return live if trimmed is live else drop_dead_code(trimmed)
