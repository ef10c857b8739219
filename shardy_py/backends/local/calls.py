"""Equations that call another jaxpr: it runs in the caller's place."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jax import lax
from jax.extend.core import ClosedJaxpr, JaxprEqn

from shardy_py.backends.local.held import Held
from shardy_py.backends.local.walk import Handler, Walker, runs_dry
from shardy_py.backends.rewriting import bodies, open_jaxpr, scopes_of
from shardy_py.frontends.importer import Scope


def run_body(walker: Walker, body: Any, arguments: Sequence[Held], scope: Scope | None) -> list[Held]:
    """Runs a body, with its constants."""
    consts = body.consts if isinstance(body, ClosedJaxpr) else ()
    jaxpr = open_jaxpr(body)
    held = [walker.constant(c, v.aval) for c, v in zip(consts, jaxpr.constvars)]
    return walker.jaxpr(jaxpr, held, arguments, scope)


def child(scope: Scope | None, index: int, eqn: JaxprEqn, body: int = 0) -> Scope | None:
    """The scope of a body of an equation."""
    return scopes_of(scope, index, bodies(eqn))[body]


def only_child(scope: Scope | None, index: int) -> Scope | None:
    """The scope of the one body that was read of an equation."""
    found = scope.children.get(index, ()) if scope is not None else ()
    return found[0] if len(found) == 1 else None


@runs_dry
def inlined(walker: Walker, eqn: JaxprEqn, index: int, operands: list[Held], scope: Scope | None) -> list[Held]:
    """The first body, on the operands."""
    body = next(eqn.params[name] for name in _BODIES if name in eqn.params)
    return run_body(walker, body, operands, only_child(scope, index))


_BODIES = ("jaxpr", "call_jaxpr", "call", "callee", "fwd_jaxpr")


@runs_dry
def remat(walker: Walker, eqn: JaxprEqn, index: int, operands: list[Held], scope: Scope | None) -> list[Held]:
    """Its body, behind a barrier where it is differentiated, so that it is computed again."""
    guarded = eqn.params["prevent_cse"]
    if isinstance(guarded, bool):
        guarded = (guarded,) * len(operands)
    if eqn.params["differentiated"] and any(guarded):
        behind = [i for i, g in enumerate(guarded) if g]
        operands = list(operands)
        for i, held in zip(behind, barrier(walker, [operands[i] for i in behind])):
            operands[i] = held
    return run_body(walker, eqn.params["jaxpr"], operands, only_child(scope, index))


def barrier(walker: Walker, operands: Sequence[Held]) -> list[Held]:
    """The same values, each as it is at hand, which no compiler looks behind."""
    first = [next(iter(held.versions), None) for held in operands]
    real = [(held, at) for held, at in zip(operands, first) if at is not None and held.remake is None]
    if not real:
        return list(operands)
    parts = [held.versions[at] for held, at in real]
    made = iter(parts if walker.region.dry else lax.optimization_barrier(parts))
    out = []
    for held, at in zip(operands, first):
        if at is None or held.remake is not None:
            out.append(held)
        else:
            out.append(walker.hold(next(made), at, held.shape, held.dtype, uses=held.uses))
    return out


@runs_dry
def optimization_barrier(walker: Walker, eqn: JaxprEqn, index: int, operands: list[Held], scope: Scope | None) -> list[Held]:
    """A barrier for the local parts."""
    return [_renamed(held) for held in barrier(walker, operands)]


def _renamed(held: Held) -> Held:
    made = Held(held.region, held.shape, held.dtype)
    made.versions, made.remake = dict(held.versions), held.remake
    return made


@runs_dry
def linear_solve(walker: Walker, eqn: JaxprEqn, index: int, operands: list[Held], scope: Scope | None) -> list[Held]:
    """The solving jaxpr, on its own constants and the right-hand sides."""
    lengths, jaxprs = eqn.params["const_lengths"], eqn.params["jaxprs"]
    start = lengths.matvec + lengths.vecmat
    arguments = [*operands[start : start + lengths.solve], *operands[start + lengths.solve + lengths.transpose_solve :]]
    return run_body(walker, jaxprs.solve, arguments, only_child(scope, index))


HANDLERS: dict[str, Handler] = {
    "call": inlined,
    "closed_call": inlined,
    "core_call": inlined,
    "custom_jvp_call": inlined,
    "custom_linear_solve": linear_solve,
    "custom_vjp_call": inlined,
    "custom_vmap_call": inlined,
    "eval_jaxpr": inlined,
    "jit": inlined,
    "linear_call": inlined,
    "optimization_barrier": optimization_barrier,
    "partitioned_call": inlined,
    "remat2": remat,
    "remat_opt": inlined,
    "xla_metadata_call": inlined,
}
"""Primitive -> what runs it."""
