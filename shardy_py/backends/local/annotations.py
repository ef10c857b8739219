"""Sharding annotations: constraints, reshards, groups, barriers and partial sums, one per device."""

from __future__ import annotations

from jax import lax
from jax.extend.core import JaxprEqn

from shardy_py.backends.local.interpreter import Handler, Interpreter
from shardy_py.backends.local.local_rule import block_index
from shardy_py.backends.local.sharded_value import ShardedValue, Values
from shardy_py.frontends.importer import Scope
from shardy_py.frontends.partial_sums import first_of
from shardy_py.partition.region.layouts import dim_axes, layout, names, num_shards


def constraint(interpreter: Interpreter, eqn: JaxprEqn, index: int, operands: Values, scope: Scope | None) -> Values:
    """The value in its planned layout only."""
    (value,) = operands
    planned = interpreter.planned(eqn.outvars[0], scope)
    if planned is None or not value.shape:
        return [alias(value)]
    result = ShardedValue(value.region, value.shape, value.dtype)
    result.copies = {planned: value.get(planned)}
    return [result]


def alias(value: ShardedValue) -> ShardedValue:
    """A second handle of a value, which shares its copies."""
    result = ShardedValue(value.region, value.shape, value.dtype, uses=value.uses if value.uses > 1 else 0)
    result.copies, result.rematerialize, result.requested = value.copies, value.rematerialize, value.requested
    return result


def identity(interpreter: Interpreter, eqn: JaxprEqn, index: int, operands: Values, scope: Scope | None) -> Values:
    """The operands themselves."""
    return [alias(value) for value in operands]


def partial_sums(interpreter: Interpreter, eqn: JaxprEqn, index: int, operands: Values, scope: Scope | None) -> Values:
    """Partial sums over the axes of the first dimension; sums that are reduced stand on the first device along them."""
    (value,) = operands
    parts = eqn.params["parts"]
    region = value.region
    planned = interpreter.planned(eqn.outvars[0], scope)
    axes, *rest = dim_axes(planned) if planned is not None else ((), *(() for _ in value.shape))
    if num_shards(axes, region.mesh) != parts:
        axes = ()
    partial_axes = max(([a for a in source.unreduced if a in axes] for source in value.copies), key=len, default=[])
    at = layout(rest, partial_axes)
    was_requested = at in value.requested
    x = value.get(at)
    if not was_requested:  # the next run may have more of the sums partial
        del value.requested[at]
        value.requested[layout(rest, axes)] = None
    result = ShardedValue(region, (parts, *value.shape), value.dtype)
    if not region.dry:
        left = tuple(axis for axis in axes if axis not in partial_axes)
        if not axes:
            x = first_of(x, parts)
        else:
            x = lax.expand_dims(x, (0,))
            if left:
                x = lax.select(lax.broadcast(block_index(names(left)) == 0, x.shape), x, lax.full_like(x, 0))
    result.copies = {layout((axes, *rest)): x}
    return [result]


HANDLERS: dict[str, Handler] = {
    "reshard": identity,
    "sdy_propagation_barrier": identity,
    "sdy_sharding_constraint": constraint,
    "sdy_sharding_group": identity,
    "sharding_constraint": constraint,
    "partial_sums": partial_sums,
}
"""Primitive -> handler."""
