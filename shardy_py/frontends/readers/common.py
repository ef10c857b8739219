"""Helpers of the readers of equations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from jax.extend.core import JaxprEqn

from shardy_py.frontends.importer import Importer, Scope
from shardy_py.frontends.primitives.avals import type_of_aval
from shardy_py.ir import Block, Op, Value
from shardy_py.rules import is_registered

EquationReader = Callable[[Importer, int, JaxprEqn, Scope, Block], None]
ReaderTable = dict[str, EquationReader]


def bind(eqn: JaxprEqn, scope: Scope, results: Sequence[Value]) -> None:
    """Makes values the results of an equation."""
    scope.env.update(zip(eqn.outvars, results, strict=True))


def bind_body(index: int, eqn: JaxprEqn, scope: Scope, body: tuple[Sequence[Value], Scope]) -> None:
    """Makes the results of a jaxpr inside of an equation those of the equation, and keeps its scope."""
    results, inner = body
    scope.children[index] = [inner]
    bind(eqn, scope, results)


def returning(block: Block, results: Sequence[Value], name: str = "sdy.return") -> None:
    """Ends a block."""
    block.append(Op(name, results, (), rule_decided=True))


def barrier(importer: Importer, values: Sequence[Value], eqn: JaxprEqn, block: Block) -> Op:
    """Appends one optimization barrier for several values."""
    return importer.op("stablehlo.optimization_barrier", values, [v.type for v in values], eqn, block)


RULE_FIX = 'say how it propagates: @sp.sharding_rule("b i, i o -> b o"), or like= a function of JAX'
"""The advice for an op without a rule."""


def opaque(importer: Importer, name: str, attributes: dict[str, Any], eqn: JaxprEqn, scope: Scope, block: Block, reason: str = "") -> None:
    """Appends one op with all operands and results of an equation, and a finding where no rule is known for it."""
    operands = importer.read(eqn, scope, block)
    types = [type_of_aval(v.aval) for v in eqn.outvars]
    op = importer.op(name, operands, types, eqn, block, attributes)
    bind(eqn, scope, op.results)
    target = attributes.get("call_target_name")
    if op.rule is not None or is_registered(name, target):
        return
    reason = reason or f"becomes {f'the custom call {target!r}' if target else f'the op {name!r}'}, for which no rule is known."
    importer.report("no-rule", eqn, f"'{eqn.primitive.name}' {reason} Shardings stop there.", RULE_FIX)
