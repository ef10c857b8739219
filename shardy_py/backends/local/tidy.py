"""Passes over the jaxpr of a region, and what they share: rewriting of bodies, dead code, common sub-expressions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Var
from jax.extend.source_info_util import user_context
from jax.interpreters import partial_eval

from shardy_py.backends.rewriting import bodies, open_jaxpr
from shardy_py.frontends.context import settings
from shardy_py.frontends.transforms import axes_bound, traced_locally

Atom = Any
Rewritten = tuple[list[JaxprEqn], list[Atom]]
"""Equations that stand in place of another, and its results."""

BODIES: Mapping[str, tuple[str, ...]] = {
    "closed_call": ("call_jaxpr",),
    "cond": ("branches",),
    "jit": ("jaxpr",),
    "scan": ("jaxpr",),
    "while": ("cond_jaxpr", "body_jaxpr"),
}
"""Primitive -> its parameters with jaxprs that run where the equation stands."""

COLLECTIVES = frozenset({"all_gather", "all_to_all", "pmax", "pmin", "pmul", "ppermute", "psum", "reduce_scatter"})
"""Primitives in which devices exchange data."""

Pass = Callable[[Jaxpr], Jaxpr]


def everywhere(jaxpr: Jaxpr, run: Pass, last: Pass | None = None) -> Jaxpr:
    """Runs a pass on the bodies of all loops, branches and calls, the innermost first, then on the jaxpr.

    Args:
        jaxpr: A jaxpr of local arrays.
        run: Gives a jaxpr with the same arguments and results; the same object where nothing changes.
        last: What to run on the jaxpr itself in place of it.
    """
    if any(eqn.primitive.name in BODIES for eqn in jaxpr.eqns):
        eqns = [_with_bodies(eqn, run) for eqn in jaxpr.eqns]
        if any(new is not old for new, old in zip(eqns, jaxpr.eqns)):
            jaxpr = jaxpr.replace(eqns=eqns)
    return (last or run)(jaxpr)


def _with_bodies(eqn: JaxprEqn, run: Pass) -> JaxprEqn:
    changed: dict[str, Any] = {}
    for name in BODIES.get(eqn.primitive.name, ()):
        old = eqn.params[name]
        new = tuple(_body(b, run) for b in old) if isinstance(old, tuple) else _body(old, run)
        if isinstance(old, tuple) and all(a is b for a, b in zip(new, old)):
            continue
        if new is not old:
            changed[name] = new
    return eqn.replace(params={**eqn.params, **changed}) if changed else eqn


def _body(body: Any, run: Pass) -> Any:
    jaxpr = open_jaxpr(body)
    new = everywhere(jaxpr, run)
    return body if new is jaxpr else as_body(new, body)


def as_body(jaxpr: Jaxpr, like: Any) -> Any:
    """A jaxpr as the parameter of an equation, in place of another one."""
    return ClosedJaxpr(jaxpr, like.consts) if isinstance(like, ClosedJaxpr) else jaxpr


def rewrite(jaxpr: Jaxpr, replace: Callable[[JaxprEqn], Rewritten | None]) -> Jaxpr:
    """A copy in which other equations stand for some.

    Args:
        jaxpr: The jaxpr.
        replace: Given an equation of the copy, what stands for it; None to keep it.
    """
    now: dict[Var, Atom] = {}
    eqns: list[JaxprEqn] = []
    changed = False

    def use(v: Atom) -> Atom:
        return v if isinstance(v, Literal) else now.get(v, v)

    for eqn in jaxpr.eqns:
        if now and any(not isinstance(v, Literal) and v in now for v in eqn.invars):
            eqn = eqn.replace(invars=[use(v) for v in eqn.invars])
        found = replace(eqn)
        if found is None:
            eqns.append(eqn)
            continue
        changed = True
        eqns += found[0]
        now.update(zip(eqn.outvars, found[1], strict=True))
    return jaxpr.replace(eqns=eqns, outvars=[use(v) for v in jaxpr.outvars]) if changed else jaxpr


def retraced(
    function: Callable[..., list[Any]], like: JaxprEqn, sizes: Mapping[str, int], operands: Sequence[Atom] | None = None
) -> Rewritten:
    """What a function makes of the operands of an equation.

    Args:
        function: Of the operands, giving the results.
        like: The equation that it stands for.
        sizes: The axes of the region.
        operands: Other operands than those of the equation.
    """
    given: Sequence[Atom] = like.invars if operands is None else operands
    with like.ctx.manager, axes_bound(sizes), user_context(like.source_info.traceback, name_stack=like.source_info.name_stack):
        traced = traced_locally(function, [v.aval for v in given])
    if traced.consts:
        raise AssertionError(f"what stands for {like.primitive.name} has constants")
    return _placed(traced.jaxpr, given, lambda source: source)


def copied(jaxpr: Jaxpr, like: JaxprEqn, operands: Sequence[Atom]) -> Rewritten:
    """The equations of a jaxpr where another equation stands, in which they stood.

    Args:
        jaxpr: Without constants.
        like: The other equation.
        operands: The arguments of the jaxpr.
    """
    stack = like.source_info.name_stack
    return _placed(jaxpr, operands, lambda source: source.replace(name_stack=stack + source.name_stack))


def _placed(jaxpr: Jaxpr, operands: Sequence[Atom], sourced: Callable[[Any], Any]) -> Rewritten:
    """A jaxpr's equations, with variables of their own."""
    inner: dict[Any, Atom] = dict(zip(jaxpr.invars, operands, strict=True))

    def use(v: Any) -> Atom:
        return v if isinstance(v, Literal) else inner[v]

    eqns = []
    for made in jaxpr.eqns:
        outs = [Var(v.aval) for v in made.outvars]
        eqns.append(made.replace(invars=list(map(use, made.invars)), outvars=outs, source_info=sourced(made.source_info)))
        inner.update(zip(made.outvars, outs))
    return eqns, list(map(use, jaxpr.outvars))


def part(jaxpr: Jaxpr, eqns: Sequence[JaxprEqn], arguments: Sequence[Var], results: Sequence[Atom]) -> Jaxpr:
    """Some equations of a jaxpr as one of their own."""
    return jaxpr.replace(constvars=[], invars=list(arguments), outvars=list(results), eqns=list(eqns), debug_info=_unnamed(jaxpr))


def _unnamed(jaxpr: Jaxpr) -> Any:
    info = jaxpr.debug_info
    return info._replace(arg_names=None, result_paths=None) if info is not None else None


def has_effects(eqn: JaxprEqn) -> bool:
    """Whether an equation does more than compute; to speak of an axis is no effect."""
    return bool(eqn.effects) and any(type(effect).__name__ != "NamedAxisEffect" for effect in eqn.effects)


_UNEQUAL = frozenset({"ffi_call", "optimization_barrier", "pallas_call", "pure_callback", "rng_uniform"})
"""Primitives that may not give the same every time, or that are there to be kept apart."""


def is_pure(eqn: JaxprEqn) -> bool:
    """Whether an equation only computes, the same from the same operands, without jaxprs of its own."""
    return eqn.primitive.name not in _UNEQUAL and not bodies(eqn) and not has_effects(eqn)


def needed(eqns: Sequence[JaxprEqn], results: Iterable[Atom], given: Iterable[Var] = (), *, effects: bool = False) -> list[JaxprEqn]:
    """The equations that results depend on, in order.

    Args:
        eqns: Where they stand.
        results: What is asked for.
        given: Variables that are not looked behind.
        effects: Whether equations with effects are asked for too.
    """
    stop = set(given)
    wanted = {v for v in results if not isinstance(v, Literal) and v not in stop}
    found = []
    for eqn in reversed(eqns):
        if any(v in wanted for v in eqn.outvars) or (effects and has_effects(eqn)):
            found.append(eqn)
            wanted.update(v for v in eqn.invars if not isinstance(v, Literal) and v not in stop)
    return found[::-1]


def without_dead_code(jaxpr: Jaxpr) -> Jaxpr:
    """Without what no result needs, in bodies too; effects stay."""
    new, _ = partial_eval.dce_jaxpr(jaxpr, [True] * len(jaxpr.outvars), instantiate=True)
    return new


def without_repeats(jaxpr: Jaxpr, drop_barriers: bool = False) -> Jaxpr:
    """Computes once what a body asks for twice, as XLA will: collectives of equal operands are then seen to be the same.

    What stands behind an `optimization_barrier` has other operands than what stands before it, and is kept.

    Args:
        jaxpr: A body.
        drop_barriers: Whether to see through barriers to arguments and what is sent or shaped of them.
    """
    seen: dict[Any, list[Var]] = {}
    like: dict[Atom, Atom] = {}  # values that only differ from another one in how their type came about
    given: set[Any] = {*jaxpr.invars, *jaxpr.constvars}
    made: dict[Any, JaxprEqn] = {}

    def source(v: Atom) -> Atom:
        return v if isinstance(v, Literal) else like.get(v, v)

    def is_given(v: Atom) -> bool:
        found = source(v)
        return isinstance(found, Literal) or found in given

    def replace(eqn: JaxprEqn) -> Rewritten | None:
        name = eqn.primitive.name
        if name in _STACKING:
            made[eqn.outvars[0]] = eqn
        same = _same_as(eqn, made) if name in _HANDING_ON else None
        if same is not None:
            (out,) = eqn.outvars
            if name == "reshard" or _type(same) == _type(out):
                return [], [same]
            like[out] = source(same)
            return None
        if drop_barriers and name == "optimization_barrier":
            like.update((out, source(v)) for v, out in zip(eqn.invars, eqn.outvars) if is_given(v))
        if name in _UNEQUAL or has_effects(eqn):
            return None
        if drop_barriers and (name in _SHAPING or name in COLLECTIVES) and all(map(is_given, eqn.invars)):
            given.update(eqn.outvars)
        operands = tuple([_key(source(v)) for v in eqn.invars])
        key = (eqn.primitive, tuple(eqn.params.items()), operands, tuple(map(_type, eqn.outvars)), settings(eqn))
        try:
            found = seen.get(key)
        except TypeError:  # a parameter that has no hash
            return None
        if found is None:
            seen[key] = list(eqn.outvars)
            return None
        return [], found

    return rewrite(jaxpr, replace)


def _same_as(eqn: JaxprEqn, made: Mapping[Any, JaxprEqn]) -> Atom | None:
    """What the result is equal to, if there is such; where all axes are manual, a `reshard` says nothing."""
    name, operands = eqn.primitive.name, list[Any](eqn.invars)
    if name in ("slice", "squeeze") and not isinstance(operands[0], Literal) and operands[0] in made:
        found = _taken_back(eqn, made[operands[0]])
        if found is not None:
            return found
    if name == "reshard" or (name in _SHAPING and _keeps_shape(eqn)):
        return operands[0]
    if name == "dynamic_update_slice":
        return operands[1] if _type(operands[1])[0] == _type(operands[0])[0] else None
    if name in _NEUTRAL:
        left, right = operands
        for v, other in ((right, left), (left, right)) if name in ("add", "mul") else ((right, left),):
            if isinstance(v, Literal) and not getattr(v.aval, "shape", ()) and v.val == _NEUTRAL[name] and _is_like(other, eqn):
                return other
    return None


def _taken_back(eqn: JaxprEqn, before: JaxprEqn) -> Atom | None:
    """What is got back of operands that were stacked."""
    name, out = eqn.primitive.name, list[Any](eqn.outvars)[0].aval
    if name == "squeeze" and before.primitive.name in ("broadcast_in_dim", "reshape"):
        inner: Any = before.invars[0]
        return inner if inner.aval.shape == out.shape and inner.aval.size == list[Any](before.outvars)[0].aval.size else None
    if name != "slice" or before.primitive.name != "concatenate" or any(n != 1 for n in eqn.params["strides"] or ()):
        return None
    d, at = before.params["dimension"], 0
    pieces: list[Any] = list(before.invars)
    for piece in pieces:
        if at == eqn.params["start_indices"][d] and _type(piece)[0] == out.shape:
            return piece
        at += piece.aval.shape[d]
    return None


def _is_like(v: Atom, eqn: JaxprEqn) -> bool:
    out: Any = eqn.outvars[0].aval
    return _type(v)[:2] == (out.shape, out.dtype) and (eqn.primitive.name in ("mul", "div") or out.dtype.kind in "iu")


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


_SHAPING = frozenset("broadcast_in_dim concatenate convert_element_type copy dynamic_slice pad reshape rev slice squeeze transpose".split())
"""Primitives that hand the first operand on where its shape stays."""

_NEUTRAL: Mapping[str, int] = {"add": 0, "div": 1, "mul": 1, "sub": 0}
"""Primitive -> what leaves the other operand as it is; floats may not be left out of sums, where -0.0 becomes 0.0."""

_HANDING_ON = frozenset({"dynamic_update_slice", "reshard", *_SHAPING, *_NEUTRAL})
"""Primitives whose result may be an operand of theirs."""

_STACKING = frozenset({"broadcast_in_dim", "concatenate", "reshape"})
"""Primitives whose operands may be got back from the result."""


def _type(v: Atom) -> Any:
    """The type, whatever the mesh that it was traced under."""
    aval: Any = v.aval
    return getattr(aval, "shape", aval), getattr(aval, "dtype", None), getattr(aval, "weak_type", False)


def _key(v: Atom) -> Any:
    """Equal for atoms of equal values; 0.0 and -0.0 are none."""
    if not isinstance(v, Literal):
        return v
    return v.val.tobytes() if hasattr(v.val, "tobytes") else repr(v.val), type(v.val), _type(v)


def tidied(jaxpr: Jaxpr, *, drop_barriers: bool = False) -> Jaxpr:
    """Without repeats and dead code.

    Args:
        jaxpr: The jaxpr of a region.
        drop_barriers: See `without_repeats`.
    """
    return without_dead_code(everywhere(jaxpr, lambda body: without_repeats(body, drop_barriers)))
