"""Equations that call another jaxpr: as a named computation, or inlined into the caller."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn

from shardy_py.frontends import _jax
from shardy_py.frontends.importer import Importer, Scope
from shardy_py.frontends.inline import named_computation
from shardy_py.frontends.locations import Within
from shardy_py.frontends.primitives.avals import type_of_aval
from shardy_py.frontends.readers.common import ReaderTable, barrier, bind
from shardy_py.ir import Block, Op, Value
from shardy_py.ir.jax_calls import body_parameter

Around = Callable[[Block, Sequence[Value], bool], Sequence[Value]]
"""Given a body, its values and whether they come in, the values with their constraints."""


def call(
    importer: Importer,
    name: str,
    key: Any,
    jaxpr: ClosedJaxpr,
    operands: Sequence[Value],
    eqn: JaxprEqn,
    block: Block,
    around: Around | None = None,
) -> tuple[list[Value], Scope]:
    """Appends a named computation with the jaxpr as its body."""
    body = Block([v.type for v in operands])
    types = [type_of_aval(a) for a in jaxpr.out_avals]
    op = named_computation(importer.symbol(key, name), operands, types, body, eqn.source_info, eqn.primitive.name)
    block.append(op)
    arguments = body.arguments if around is None else around(body, body.arguments, True)
    results, scope = importer.body(jaxpr, arguments, body)
    if around is not None:
        results = around(body, results, False)
    body.append(Op("sdy.return", results, (), rule_decided=True))
    return op.results, scope


def jit(importer: Importer, index: int, eqn: JaxprEqn, scope: Scope, block: Block) -> None:
    """`_pjit_lowering`: a call, with shardings of arguments and results as constraints inside of the function."""
    params = eqn.params
    jaxpr = params["jaxpr"]
    if getattr(params["inline"], "name", "") == "JAX_LATE":  # jax >= 0.12
        inlined(importer, index, eqn, scope, block)
        return
    operands = importer.read(eqn, scope, block)
    around: Around | None = None
    if any(map(_jax.is_specified, (*params["in_shardings"], *params["out_shardings"]))):

        def constrain(body: Block, values: Sequence[Value], entering: bool) -> Sequence[Value]:
            shardings = params["in_shardings"] if entering else params["out_shardings"]
            avals = jaxpr.in_avals if entering else jaxpr.out_avals
            return [importer.constrained(v, a, s, body) for v, a, s in zip(values, avals, shardings, strict=True)]

        around = constrain

    results, inner = call(importer, params["name"], (params["name"], jaxpr), jaxpr, operands, eqn, block, around)
    scope.children[index] = [inner]
    bind(eqn, scope, results)


def core_call(importer: Importer, index: int, eqn: JaxprEqn, scope: Scope, block: Block) -> None:
    """`core_call_lowering`: a call named after the primitive."""
    jaxpr = eqn.params["call_jaxpr"]
    if not isinstance(jaxpr, ClosedJaxpr):
        jaxpr = ClosedJaxpr(jaxpr, ())
    name = "core_call" if eqn.primitive.name == "call" else "closed_call"
    key = object() if jaxpr.consts else (name, jaxpr.jaxpr)
    results, inner = call(importer, name, key, jaxpr, importer.read(eqn, scope, block), eqn, block)
    scope.children[index] = [inner]
    bind(eqn, scope, results)


_PLACEMENT = {"call_target_name": "annotate_device_placement", "has_side_effect": True}


def compute_on(importer: Importer, index: int, eqn: JaxprEqn, scope: Scope, block: Block) -> None:
    """`_compute_on_lowering`: a call, then a placement of each result."""
    jaxpr = eqn.params["jaxpr"]
    results, inner = call(importer, "compute_on", ("compute_on", jaxpr.jaxpr), jaxpr, importer.read(eqn, scope, block), eqn, block)
    scope.children[index] = [inner]
    placed = [Op("stablehlo.custom_call", (v,), (v.type,), _PLACEMENT, location=eqn.source_info, primitive="compute_on") for v in results]
    bind(eqn, scope, [importer.append(op, block).result for op in placed])


def inlined(importer: Importer, index: int, eqn: JaxprEqn, scope: Scope, block: Block) -> None:
    """`_custom_jvp_vjp_call_lowering` and primitives whose lowering evaluates their jaxpr: the ops stand in the caller."""
    jaxpr = eqn.params[body_parameter(eqn.params)]
    inlined_jaxpr(importer, index, jaxpr, eqn, scope, block)


def inlined_jaxpr(importer: Importer, index: int, jaxpr: ClosedJaxpr | Jaxpr, eqn: JaxprEqn, scope: Scope, block: Block) -> None:
    """A jaxpr that stands for an equation, on its operands."""
    operands = importer.read(eqn, scope, block)
    start = len(block.ops)
    results, inner = importer.body(jaxpr, operands, block)
    _place(block.ops[start:], eqn)
    scope.children[index] = [inner]
    bind(eqn, scope, results)


def _place(ops: Sequence[Op], eqn: JaxprEqn) -> None:
    """Gives ops the location of an equation."""
    for op in ops:
        op.location = eqn.source_info if op.location is None else Within(op.location, eqn.source_info)


def linear_solve(importer: Importer, index: int, eqn: JaxprEqn, scope: Scope, block: Block) -> None:
    """`_custom_linear_solve_impl`: only the solving jaxpr, on its own constants and the right-hand sides."""
    lengths, jaxprs = eqn.params["const_lengths"], eqn.params["jaxprs"]
    operands = importer.read(eqn, scope, block)
    start = lengths.matvec + lengths.vecmat
    arguments = [*operands[start : start + lengths.solve], *operands[start + lengths.solve + lengths.transpose_solve :]]
    results, inner = importer.body(jaxprs.solve, arguments, block)
    scope.children[index] = [inner]
    bind(eqn, scope, results)


def remat(importer: Importer, index: int, eqn: JaxprEqn, scope: Scope, block: Block) -> None:
    """`_remat_lowering`: inlined, behind a barrier where it is differentiated and must not be merged with the original."""
    params = eqn.params
    operands = importer.read(eqn, scope, block)
    guarded = params["prevent_cse"]
    if isinstance(guarded, bool):
        guarded = (guarded,) * len(operands)
    if params["differentiated"] and any(guarded):
        behind = [v for v, g in zip(operands, guarded, strict=True) if g]
        fresh = iter(barrier(importer, behind, eqn, block).results)
        operands = [next(fresh) if g else v for v, g in zip(operands, guarded)]
    start = len(block.ops)
    results, inner = importer.body(params["jaxpr"], operands, block)
    _place(block.ops[start:], eqn)
    scope.children[index] = [inner]
    bind(eqn, scope, results)


READERS: ReaderTable = {
    "call": core_call,
    "closed_call": core_call,
    "compute_on": compute_on,
    "custom_jvp_call": inlined,
    "custom_linear_solve": linear_solve,
    "custom_vjp_call": inlined,
    "custom_vmap_call": inlined,
    "eval_jaxpr": inlined,
    "jit": jit,
    "linear_call": inlined,
    "partitioned_call": inlined,
    "remat2": remat,
    "remat_opt": inlined,
    "xla_metadata_call": inlined,
}
