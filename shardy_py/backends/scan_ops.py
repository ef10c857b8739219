"""Scans of a region as the while loops that JAX makes of them, written down: JAX traces how a scan counts, slices and stacks each time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.extend.core import JaxprEqn
from jax.interpreters import mlir

from shardy_py.backends.rewriting import open_jaxpr
from shardy_py.backends.single_ops import Value, Writer, compared
from shardy_py.frontends.context import Locations, only_names_axes, stablehlo
from shardy_py.frontends.loops import scan_counts


def scan(writer: Writer, eqn: JaxprEqn, operands: Sequence[Value], locations: Locations) -> list[Value] | None:
    """The results of a scan; None where JAX is to lower it: if it is unrolled, has effects, or holds keys.

    Args:
        writer: Of the block that it stands in.
        eqn: The scan.
        operands: Its operands.
        locations: The locations there.
    """
    types: list[Any] = [v.aval for v in (*eqn.invars, *eqn.outvars)]
    length, body = eqn.params["length"], eqn.params["jaxpr"]
    if eqn.params["unroll"] != 1 or not length or body.consts or not only_names_axes(eqn) or not all(map(_holds_numbers, types)):
        return None
    n_consts, n_carry = scan_counts(eqn)
    fixed, first, stacked = operands[:n_consts], operands[n_consts : n_consts + n_carry], operands[n_consts + n_carry :]
    here, loc = locations.inside(eqn, "", "while"), locations.inside(eqn, "", "broadcast_in_dim")
    made = [writer.filled(np.zeros((), aval.dtype), aval.shape, loc) for aval in types[len(eqn.invars) + n_carry :]]
    given = [*fixed, *stacked, writer.scalar(_number(0)), *first, *made]
    loop = stablehlo.WhileOp([x.type for x in given], given, loc=here)
    condition, trip = (region.blocks.append(*(x.type for x in given)) for region in loop.regions)
    counter = n_consts + len(stacked)
    with mlir.ir.InsertionPoint(condition):
        loc = locations.inside(eqn, "while/cond/", "lt")
        stop = Writer(writer.context).scalar(_number(length))
        stablehlo.return_([compared("LT", "SIGNED", condition.arguments[counter], stop, loc=loc)], loc=here)
    with mlir.ir.InsertionPoint(trip):
        arguments = list(trip.arguments)
        results = _trip(Writer(writer.context), eqn, arguments[:n_consts], arguments[n_consts:counter], arguments[counter:], locations)
        stablehlo.return_([*arguments[:counter], *results], loc=here)
    return list(loop.results)[counter + 1 :]


def _trip(writer: Writer, eqn: JaxprEqn, fixed: list[Value], stacked: list[Value], state: list[Value], locations: Locations) -> list[Value]:
    """The counter, what is carried, and what is stacked, after a trip.

    Args:
        writer: Of the body of the loop.
        eqn: The scan.
        fixed: The constants.
        stacked: What is scanned.
        state: The same before the trip.
        locations: The locations where the scan stands.
    """
    context, body = writer.context, open_jaxpr(eqn.params["jaxpr"])
    n_carry = len(body.invars) - len(fixed) - len(stacked)
    counter, carry, made = state[0], state[1 : 1 + n_carry], state[1 + n_carry :]
    zero, one = (writer.scalar(_number(n)) for n in (0, 1))

    def loc(name: str) -> Any:
        return locations.inside(eqn, "while/body/", name)

    at = counter
    if eqn.params["reverse"]:
        at = stablehlo.subtract(writer.scalar(_number(eqn.params["length"])), counter, loc=loc("sub"))
        at = stablehlo.subtract(at, one, loc=loc("sub"))
    slices = []
    for x, aval in zip(stacked, _types(body.invars[len(fixed) + n_carry :]), strict=True):
        block = stablehlo.dynamic_slice(x, [at, *(zero for _ in aval.shape)], writer.integers((1, *aval.shape)), loc=loc("dynamic_slice"))
        slices.append(stablehlo.reshape(writer.type(aval.shape, aval.dtype), block, loc=loc("squeeze")))
    results: Any
    results, _ = mlir.jaxpr_subcomp(
        context.module_context,
        body,
        locations.stack(eqn).extend("while").extend("body").extend("closed_call"),
        mlir.TokenSet(),
        (),
        *fixed,
        *carry,
        *slices,
        dim_var_values=context.dim_var_values,
        const_lowering=context.const_lowering,
        outer_traceback=context.traceback,
    )
    updated = []
    for x, y, aval in zip(made, results[n_carry:], _types(body.outvars[n_carry:]), strict=True):
        type_, dims = writer.type((1, *aval.shape), aval.dtype), writer.integers(range(1, len(aval.shape) + 1))
        block = stablehlo.broadcast_in_dim(type_, y, dims, loc=loc("broadcast_in_dim"))
        updated.append(stablehlo.dynamic_update_slice(x, block, [at, *(zero for _ in aval.shape)], loc=loc("dynamic_update_slice")))
    return [stablehlo.add(counter, one, loc=loc("add")), *results[:n_carry], *updated]


def _number(n: int) -> Any:
    """A number of a trip, of the type that JAX counts trips in."""
    return np.asarray(n, jax.dtypes.canonicalize_dtype(np.int64))


def _types(variables: Sequence[Any]) -> list[Any]:
    return [v.aval for v in variables]


def _holds_numbers(aval: Any) -> bool:
    return isinstance(getattr(aval, "dtype", None), np.dtype)
