"""Sharding annotations: constraints, reshards, groups and barriers."""

from __future__ import annotations

from jax.extend.core import JaxprEqn

from shardy_py.backends.local.interpreter import Handler, Interpreter, runs_dry
from shardy_py.backends.local.sharded_value import ShardedValue, Values
from shardy_py.frontends.importer import Scope


@runs_dry
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


@runs_dry
def identity(interpreter: Interpreter, eqn: JaxprEqn, index: int, operands: Values, scope: Scope | None) -> Values:
    """The operands themselves."""
    return [alias(value) for value in operands]


HANDLERS: dict[str, Handler] = {
    "reshard": identity,
    "sdy_propagation_barrier": identity,
    "sdy_sharding_constraint": constraint,
    "sdy_sharding_group": identity,
    "sharding_constraint": constraint,
}
"""Primitive -> handler."""
