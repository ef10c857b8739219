"""Calls of jaxprs: the body runs in place of the call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jax import lax
from jax.extend.core import ClosedJaxpr, JaxprEqn

from shardy_py.backends.local.annotations import alias
from shardy_py.backends.local.interpreter import Handler, Interpreter
from shardy_py.backends.local.sharded_value import ShardedValue, Values
from shardy_py.frontends.importer import Scope
from shardy_py.frontends.jaxprs import open_jaxpr
from shardy_py.ir.jax_calls import body_parameter


def run_body(interpreter: Interpreter, body: Any, arguments: Sequence[ShardedValue], scope: Scope | None) -> Values:
    """Runs a body, with its constants."""
    consts = body.consts if isinstance(body, ClosedJaxpr) else ()
    jaxpr = open_jaxpr(body)
    const_values = [interpreter.constant(c, v.aval) for c, v in zip(consts, jaxpr.constvars)]
    return interpreter.jaxpr(jaxpr, const_values, arguments, scope)


def only_child(scope: Scope | None, index: int) -> Scope | None:
    """The scope of the only body of an equation that was imported."""
    children = scope.children.get(index, ()) if scope is not None else ()
    return children[0] if len(children) == 1 else None


def inlined(interpreter: Interpreter, eqn: JaxprEqn, index: int, operands: Values, scope: Scope | None) -> Values:
    """Runs the body of a call on the operands."""
    body = eqn.params[body_parameter(eqn.params)]
    return run_body(interpreter, body, operands, only_child(scope, index))


def remat(interpreter: Interpreter, eqn: JaxprEqn, index: int, operands: Values, scope: Scope | None) -> Values:
    """Runs the body; when differentiated, behind a barrier, so that it is recomputed."""
    guarded = eqn.params["prevent_cse"]
    if isinstance(guarded, bool):
        guarded = (guarded,) * len(operands)
    if eqn.params["differentiated"] and any(guarded):
        guarded_operands = [i for i, g in enumerate(guarded) if g]
        operands = list(operands)
        for i, value in zip(guarded_operands, barrier(interpreter, [operands[i] for i in guarded_operands])):
            operands[i] = value
    return run_body(interpreter, eqn.params["jaxpr"], operands, only_child(scope, index))


def barrier(interpreter: Interpreter, operands: Sequence[ShardedValue]) -> Values:
    """The values behind an optimization barrier, each in the layout of its first copy."""
    layouts = [next(iter(value.copies), None) for value in operands]
    copied = [(value, at) for value, at in zip(operands, layouts) if at is not None and value.rematerialize is None]
    if not copied:
        return list(operands)
    parts = [value.copies[at] for value, at in copied]
    behind = iter(parts if interpreter.region.dry else lax.optimization_barrier(parts))
    results = []
    for value, at in zip(operands, layouts):
        if at is None or value.rematerialize is not None:
            results.append(value)
        else:
            results.append(interpreter.new_value(next(behind), at, value.shape, value.dtype, uses=value.uses))
    return results


def optimization_barrier(interpreter: Interpreter, eqn: JaxprEqn, index: int, operands: Values, scope: Scope | None) -> Values:
    """An optimization barrier of local parts."""
    return [alias(value) for value in barrier(interpreter, operands)]


def linear_solve(interpreter: Interpreter, eqn: JaxprEqn, index: int, operands: Values, scope: Scope | None) -> Values:
    """Runs the solving jaxpr, on its own constants and the right-hand sides."""
    lengths, jaxprs = eqn.params["const_lengths"], eqn.params["jaxprs"]
    start = lengths.matvec + lengths.vecmat
    arguments = [*operands[start : start + lengths.solve], *operands[start + lengths.solve + lengths.transpose_solve :]]
    return run_body(interpreter, jaxprs.solve, arguments, only_child(scope, index))


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
"""Primitive -> handler."""
