"""Tools of the passes over the jaxpr of a region: rewriting equations in all bodies, tracing replacements, cutting jaxprs apart."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Mapping, Sequence
from typing import Any

from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Var
from jax.extend.source_info_util import user_context

from shardy_py.frontends.jaxprs import bodies, inlined, with_bodies
from shardy_py.frontends.transforms import axes_bound, traced_locally

Atom = Any
Rewritten = tuple[list[JaxprEqn], list[Atom]]
"""The equations that replace another one, and the atoms that replace its results."""

BODIES = frozenset({"closed_call", "cond", "jit", "scan", "while"})
"""Primitives that run their jaxprs in place."""

COLLECTIVES = frozenset({"all_gather", "all_to_all", "pmax", "pmin", "pmul", "ppermute", "psum", "reduce_scatter"})
"""Primitives in which devices exchange data."""


def axes_of(eqn: JaxprEqn) -> tuple[Any, ...]:
    """The axes of a collective."""
    named = eqn.params["axes" if "axes" in eqn.params else "axis_name"]
    return tuple(named) if isinstance(named, tuple | list) else (named,)


Pass = Callable[[Jaxpr], Jaxpr]
Replacement = Callable[[JaxprEqn, Mapping[str, int]], Rewritten | None]
"""Given an equation and the axes of the region, the replacement; None to keep it."""


def rewrite_bodies(jaxpr: Jaxpr, run: Pass, last: Pass | None = None) -> Jaxpr:
    """Runs a pass on all bodies of loops, branches and calls, the innermost first, then on the jaxpr (or `last` instead)."""
    if any(eqn.primitive.name in BODIES for eqn in jaxpr.eqns):
        eqns = [_with_bodies(eqn, run) if eqn.primitive.name in BODIES else eqn for eqn in jaxpr.eqns]
        if any(new is not old for new, old in zip(eqns, jaxpr.eqns)):
            jaxpr = jaxpr.replace(eqns=eqns)
    return (last or run)(jaxpr)


def _with_bodies(eqn: JaxprEqn, run: Pass) -> JaxprEqn:
    params = with_bodies(eqn, lambda _, body: rewrite_bodies(body, run))
    return eqn if params is eqn.params else eqn.replace(params=params)


def rewrite(jaxpr: Jaxpr, replace: Callable[[JaxprEqn], Rewritten | None]) -> Jaxpr:
    """Replaces equations of a jaxpr by `replace`, which gets replaced operands and returns None to keep an equation."""
    renamed: dict[Var, Atom] = {}
    eqns: list[JaxprEqn] = []
    changed = False

    def use(v: Atom) -> Atom:
        return v if isinstance(v, Literal) else renamed.get(v, v)

    for eqn in jaxpr.eqns:
        if renamed and _reads_any(eqn, renamed):
            eqn = eqn.replace(invars=[use(v) for v in eqn.invars])
        replacement = replace(eqn)
        if replacement is None:
            eqns.append(eqn)
            continue
        changed = True
        eqns += replacement[0]
        renamed.update(zip(eqn.outvars, replacement[1], strict=True))
    return jaxpr.replace(eqns=eqns, outvars=[use(v) for v in jaxpr.outvars]) if changed else jaxpr


def _reads_any(eqn: JaxprEqn, variables: Container[Var]) -> bool:
    for v in eqn.invars:
        if not isinstance(v, Literal) and v in variables:
            return True
    return False


def without_calls(closed: ClosedJaxpr) -> ClosedJaxpr:
    """A jaxpr whose calls of jitted functions, those of its own equations and theirs in turn, are replaced by what they call.

    Jaxprs that are called twice, or have constants, stay calls.
    """
    calls = Counter(id(eqn.params["jaxpr"].jaxpr) for eqn in closed.jaxpr.eqns if eqn.primitive.name == "jit")

    def body(eqn: JaxprEqn) -> Rewritten | None:
        called = eqn.params["jaxpr"] if eqn.primitive.name == "jit" else None
        if called is None or called.consts or calls[id(called.jaxpr)] > 1:
            return None
        return inlined(called.jaxpr, eqn.invars, lambda source: source)

    jaxpr = rewrite(closed.jaxpr, body)
    return closed if jaxpr is closed.jaxpr else without_calls(ClosedJaxpr(jaxpr, closed.consts))


def rewrite_by_name(jaxpr: Jaxpr, sizes: Mapping[str, int], replacements: Mapping[str, Replacement]) -> Jaxpr:
    """Replaces equations of a jaxpr and of all bodies in it."""

    def replace(eqn: JaxprEqn) -> Rewritten | None:
        replacement = replacements.get(eqn.primitive.name)
        return None if replacement is None else replacement(eqn, sizes)

    return rewrite_bodies(jaxpr, lambda body: rewrite(body, replace))


def retraced(
    function: Callable[..., list[Any]],
    like: JaxprEqn,
    sizes: Mapping[str, int],
    operands: Sequence[Atom] | None = None,
) -> Rewritten:
    """Traces a function as the replacement of an equation; `traces` has those of functions with an equal `key` and operand types."""
    arguments: Sequence[Atom] = like.invars if operands is None else operands
    types = [v.aval for v in arguments]
    with like.ctx.manager, axes_bound(sizes), user_context(like.source_info.traceback):
        traced = traced_locally(function, types)
    if traced.consts:
        raise AssertionError(f"what stands for {like.primitive.name} has constants")
    return copy_equations(traced.jaxpr, like, arguments)  # JAX traces without the names around


def copy_equations(jaxpr: Jaxpr, like: JaxprEqn, operands: Sequence[Atom]) -> Rewritten:
    """Inlines the body of an equation."""
    stack = like.source_info.name_stack
    return inlined(jaxpr, operands, lambda source: source.replace(name_stack=stack + source.name_stack))


def sub_jaxpr(jaxpr: Jaxpr, eqns: Sequence[JaxprEqn], arguments: Sequence[Var], results: Sequence[Atom]) -> Jaxpr:
    """The jaxpr of some of the equations of another jaxpr."""
    return jaxpr.replace(constvars=[], invars=list(arguments), outvars=list(results), eqns=list(eqns), debug_info=_unnamed(jaxpr))


def _unnamed(jaxpr: Jaxpr) -> Any:
    info = jaxpr.debug_info
    return info._replace(arg_names=None, result_paths=None) if info is not None else None


def has_effects(eqn: JaxprEqn) -> bool:
    """Whether an equation has effects other than the use of an axis name."""
    return bool(eqn.effects) and any(type(effect).__name__ != "NamedAxisEffect" for effect in eqn.effects)


UNEQUAL = frozenset({"empty", "ffi_call", "optimization_barrier", "pallas_call", "pure_callback", "rng_uniform"})
"""Primitives that are never merged: they may give other results each time, or are there to keep values apart."""


def is_pure(eqn: JaxprEqn) -> bool:
    """Whether an equation only computes, the same from the same operands, without jaxprs of its own."""
    return eqn.primitive.name not in UNEQUAL and not bodies(eqn) and not has_effects(eqn)
