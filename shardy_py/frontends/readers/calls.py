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
from shardy_py.frontends.readers.common import ReaderTable, barrier, bind_body, returning
from shardy_py.ir import Block, Value
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
    op = block.append(named_computation(importer.symbol(key, name), operands, types, body, eqn.source_info, eqn.primitive.name))
    arguments = body.arguments if around is None else around(body, body.arguments, True)
    results, scope = importer.body(jaxpr, arguments, body)
    if around is not None:
        results = around(body, results, False)
    returning(body, results)
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

    bind_body(index, eqn, scope, call(importer, params["name"], (params["name"], jaxpr), jaxpr, operands, eqn, block, around))


def core_call(importer: Importer, index: int, eqn: JaxprEqn, scope: Scope, block: Block) -> None:
    """`core_call_lowering`: a call named after the primitive."""
    jaxpr = eqn.params["call_jaxpr"]
    if not isinstance(jaxpr, ClosedJaxpr):
        jaxpr = ClosedJaxpr(jaxpr, ())
    name = "core_call" if eqn.primitive.name == "call" else "closed_call"
    key = object() if jaxpr.consts else (name, jaxpr.jaxpr)
    bind_body(index, eqn, scope, call(importer, name, key, jaxpr, importer.read(eqn, scope, block), eqn, block))


_PLACEMENT = {"call_target_name": "annotate_device_placement", "has_side_effect": True}


def compute_on(importer: Importer, index: int, eqn: JaxprEqn, scope: Scope, block: Block) -> None:
    """`_compute_on_lowering`: a call, then a placement of each result."""
    jaxpr = eqn.params["jaxpr"]
    results, inner = call(importer, "compute_on", ("compute_on", jaxpr.jaxpr), jaxpr, importer.read(eqn, scope, block), eqn, block)
    placed = [importer.op("stablehlo.custom_call", (v,), (v.type,), eqn, block, _PLACEMENT).result for v in results]
    bind_body(index, eqn, scope, (placed, inner))


def inlined(importer: Importer, index: int, eqn: JaxprEqn, scope: Scope, block: Block) -> None:
    """`_custom_jvp_vjp_call_lowering` and primitives whose lowering evaluates their jaxpr: the ops stand in the caller."""
    inlined_jaxpr(importer, index, eqn.params[body_parameter(eqn.params)], importer.read(eqn, scope, block), eqn, scope, block)


def inlined_jaxpr(
    importer: Importer, index: int, jaxpr: ClosedJaxpr | Jaxpr, operands: Sequence[Value], eqn: JaxprEqn, scope: Scope, block: Block
) -> None:
    """A jaxpr that stands for an equation."""
    start = len(block.ops)
    bind_body(index, eqn, scope, importer.body(jaxpr, operands, block))
    for op in block.ops[start:]:
        op.location = eqn.source_info if op.location is None else Within(op.location, eqn.source_info)


def linear_solve(importer: Importer, index: int, eqn: JaxprEqn, scope: Scope, block: Block) -> None:
    """`_custom_linear_solve_impl`: only the solving jaxpr, on its own constants and the right-hand sides."""
    lengths, jaxprs = eqn.params["const_lengths"], eqn.params["jaxprs"]
    operands = importer.read(eqn, scope, block)
    start = lengths.matvec + lengths.vecmat
    arguments = [*operands[start : start + lengths.solve], *operands[start + lengths.solve + lengths.transpose_solve :]]
    bind_body(index, eqn, scope, importer.body(jaxprs.solve, arguments, block))


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
    inlined_jaxpr(importer, index, params["jaxpr"], operands, eqn, scope, block)


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
