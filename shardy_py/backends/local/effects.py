"""Callbacks, kernels and other equations with effects or an opaque implementation.

A callback is called once with the full values, as under `jax.jit`: the first device of the region calls it, and the
others wait for its results.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax import lax
from jax import numpy as jnp
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal

from shardy_py.backends.local.annotations import identity
from shardy_py.backends.local.calls import inlined, only_child, run_body
from shardy_py.backends.local.interpreter import Handler, Interpreter
from shardy_py.backends.local.local_rule import Equation, bind, is_key
from shardy_py.backends.local.loops import settled_layout
from shardy_py.backends.local.sharded_value import Values
from shardy_py.frontends.importer import Scope

Array = Any


def callback(interpreter: Interpreter, eqn: JaxprEqn, index: int, operands: Values, scope: Scope | None) -> Values:
    """Calls back once, and sends the results to every device; for `partitioned` callbacks every device calls with its part."""
    partitioned = eqn.params.get("partitioned")
    if not partitioned:
        why = f"{eqn.primitive.name} is called once, with whole arrays", "give it less, such as a sum of them"
        interpreter.report_gathers(eqn, operands, "whole-callback", *why)
    arrays = [value.get(settled_layout(value)) if partitioned else value.whole() for value in operands]
    if interpreter.region.dry:
        parts = [None] * len(eqn.outvars)
    else:
        parts = bind(eqn, arrays, eqn.params) if partitioned else once(interpreter, eqn, arrays, scope)
    return [interpreter.result(x, v) for x, v in zip(parts, eqn.outvars, strict=True)]


def once(interpreter: Interpreter, eqn: JaxprEqn, arrays: Sequence[Array], scope: Scope | None) -> list[Array]:
    """Runs an equation of whole operands on the first device of the region, and gives its results to all."""
    if interpreter.mesh.size == 1:
        return bind(eqn, arrays, eqn.params)
    names = interpreter.mesh.axis_names
    avals: list[Any] = [v.aval for v in eqn.outvars]

    def call(*xs: Array) -> list[Array]:
        return [_as_bits(x) for x in bind(eqn, xs, eqn.params)]

    def wait(*xs: Array) -> list[Array]:
        return [_as_bits(jnp.zeros(a.shape, a.dtype)) for a in avals]

    bits = lax.cond(lax.axis_index(names) == 0, call, wait, *arrays)
    results = []
    for x, v, aval in zip(bits, eqn.outvars, avals, strict=True):
        with interpreter.moving([v], scope):
            results.append(_from_bits(lax.psum(x, names), aval.dtype))
    return results


def _as_bits(x: Array) -> Array:
    """An array as integers, so that adding the zeros of waiting devices preserves every bit, of -0.0 and NaN too."""
    if jnp.issubdtype(x.dtype, jnp.complexfloating):
        return _as_bits(jnp.stack([x.real, x.imag]))
    if x.dtype == jnp.bool_:
        return x.astype(jnp.uint8)
    if jnp.issubdtype(x.dtype, jnp.floating):
        return lax.bitcast_convert_type(x, jnp.dtype(f"uint{x.dtype.itemsize * 8}"))
    return x


def _from_bits(bits: Array, dtype: Any) -> Array:
    if jnp.issubdtype(dtype, jnp.complexfloating):
        part = jnp.finfo(dtype).dtype
        return lax.complex(_from_bits(bits[0], part), _from_bits(bits[1], part))
    if jnp.issubdtype(dtype, jnp.floating):
        return lax.bitcast_convert_type(bits, dtype)
    return bits.astype(dtype)


def inspect_sharding(named: Callable[[Any, int], Any]) -> Handler:
    """Shows planned shardings when the region is made."""

    def inspect(interpreter: Interpreter, eqn: JaxprEqn, index: int, operands: Values, scope: Scope | None) -> Values:
        (v,) = eqn.invars
        planned = None if scope is None or isinstance(v, Literal) or v not in scope.env else scope.env[v].sharding
        if not interpreter.region.dry:
            eqn.params["callback"](named(planned, operands[0].rank))
        return []

    return inspect


def in_place(interpreter: Interpreter, eqn: JaxprEqn, index: int, operands: Values, scope: Scope | None) -> Values:
    """Applies a constraint on the memory layout to this device's part."""
    (value,) = operands
    planned = interpreter.planned(eqn.outvars[0], scope)
    at = settled_layout(value) if planned is None else planned
    array = value.get(at)
    (part,) = (None,) if interpreter.region.dry else bind(eqn, [array], eqn.params)
    return [interpreter.new_value(part, at, value.shape, value.dtype)]


def device_put(interpreter: Interpreter, eqn: JaxprEqn, index: int, operands: Values, scope: Scope | None) -> Values:
    """Moves a value to another memory space; its devices are those of the region anyway."""
    results = []
    for value, operand, device in zip(operands, eqn.invars, eqn.params["devices"], strict=True):
        space = _space(device)
        if space in (None, getattr(operand.aval, "memory_space", None)) or is_key(value.dtype):
            results += identity(interpreter, eqn, index, [value], scope)
            continue
        at = settled_layout(value)
        array = value.get(at)
        results.append(
            interpreter.new_value(array if interpreter.region.dry else jax.device_put(array, space), at, value.shape, value.dtype)
        )
    return results


def _space(device: Any) -> Any:
    if isinstance(device, jax.memory.Space):
        return device
    kind = getattr(device, "memory_kind", None)
    if kind is None:
        return None
    return jax.memory.Space.Host if "host" in kind else jax.memory.Space.Device


def kernel(interpreter: Interpreter, eqn: JaxprEqn, index: int, operands: Values, scope: Scope | None) -> Values:
    """A kernel on whole operands; its own jaxprs were traced outside of the region, and are made to stand in it.

    One that is interpreted is what the interpreter makes of it, which may run on parts.
    """
    body = interpreter.analysis.body(eqn, interpreter.region.platform) if eqn.params.get("interpret") else None
    if body is not None:
        return run_body(interpreter, body, operands, only_child(scope, index))
    if interpreter.region.dry:
        return interpreter.run_whole(interpreter.analysis.equation(eqn), operands)
    here = jax.make_jaxpr(lambda x: x + 1)(0).eqns[0].ctx
    params = {name: _placed(value, here) for name, value in eqn.params.items()}
    return interpreter.run_whole(Equation(eqn.replace(params=params)), operands)


def _placed(value: Any, context: Any) -> Any:
    """Replaces the context of all equations in jaxprs, those in a grid's mapping too."""
    if isinstance(value, ClosedJaxpr) and not isinstance(value, Jaxpr):
        return ClosedJaxpr(_placed(value.jaxpr, context), value.consts)
    if isinstance(value, Jaxpr):
        eqns = [e.replace(ctx=context, params={name: _placed(p, context) for name, p in e.params.items()}) for e in value.eqns]
        jaxpr: Any = value
        return jaxpr.replace(eqns=eqns)
    if isinstance(value, tuple) and type(value) is tuple:
        return tuple(_placed(item, context) for item in value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type) and type(value).__name__ in ("GridMapping", "BlockMapping"):
        fields = [f.name for f in dataclasses.fields(value) if f.init]
        changed = {name: new for name in fields if (new := _placed(old := getattr(value, name), context)) is not old}
        return dataclasses.replace(value, **changed) if changed else value
    return value


HANDLERS: dict[str, Handler] = {
    "composite": inlined,
    "custom_fusion": kernel,
    "custom_partitioning": inlined,
    "debug_callback": callback,
    "debug_print": callback,
    "device_put": device_put,
    "fusible": kernel,
    "io_callback": callback,
    "layout_constraint": in_place,
    "pallas_call": kernel,
    "pure_callback": callback,
    "relayout": in_place,
    "shard_alike": identity,
    "with_memory_space_constraint": in_place,
}
"""Primitive -> handler."""
