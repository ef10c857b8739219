"""Copies of jaxprs with sharding constraints in them.

A copy keeps the variables of the original, so that values of both can be compared by variable. A pinned variable gets a second
one, the constrained value, which all later equations use.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
from jax import lax
from jax.extend.core import Jaxpr, JaxprEqn, Literal, Var, new_jaxpr_eqn, no_effects
from jax.sharding import NamedSharding, PartitionSpec

from shardy_py.backends.named_shardings import NamedShardings
from shardy_py.dialect import TensorSharding
from shardy_py.frontends.context import types_enabled
from shardy_py.frontends.jaxpr import Scope
from shardy_py.frontends.jaxprs import bodies, inlined, open_jaxpr, with_bodies
from shardy_py.ir import Op
from shardy_py.ir.jax_calls import CALLS

ENTERED = frozenset({*CALLS, "cond", "scan", "while"})
"""Primitives whose bodies are rewritten; the parameters `jvp_jaxpr_fun`, `fwd_jaxpr_thunk`, ... stay as they are."""

Replacement = Callable[..., list[Any]]
"""A function of the operands of an equation, giving its results; traced and put in the equation's place."""


@dataclass
class Pins:
    """Variables to constrain, per jaxpr at one call site.

    Attributes:
        operands: The sharding that an operand of an equation is constrained to for it and all later ones, by `(equation index, operand
            number)`; what the jaxpr returns is the operands of one more equation.
    """

    variables: dict[Var, TensorSharding] = field(default_factory=dict)
    operands: dict[tuple[int, int], TensorSharding] = field(default_factory=dict)
    children: dict[tuple[int, int], Pins] = field(default_factory=dict)

    def child(self, index: int, body: int) -> Pins:
        """The pins of a body, made on first use."""
        return self.children.setdefault((index, body), Pins())


@dataclass
class Copied:
    """A copied jaxpr and where its parts came from."""

    jaxpr: Jaxpr
    position: dict[int, int]
    children: dict[tuple[int, int], Copied]


def scopes_of(scope: Scope | None, index: int, inner_bodies: Sequence[tuple[str, int | None, Any]]) -> list[Scope | None]:
    """The scope of each body of an equation; None where the body was not read."""
    children = [] if scope is None else list(scope.children.get(index, ()))
    scopes: list[Scope | None] = []
    for _, _, jaxpr in inner_bodies:
        at = next((k for k, child in enumerate(children) if child.jaxpr is open_jaxpr(jaxpr)), None)
        scopes.append(None if at is None else children.pop(at))
    return scopes


def op_of(eqn: JaxprEqn, scope: Scope, name: str) -> Op | None:
    """The op with a name that an equation was imported as; None if there is none, or its results are unused."""
    operands = {scope.env[v] for v in eqn.invars if not isinstance(v, Literal) and v in scope.env}
    pending = [scope.env[v] for v in eqn.outvars if v in scope.env]
    for _ in range(_OPS_OF_ONE):
        if not pending:
            return None
        value = pending.pop(0)
        op = value.defining_op
        if value in operands or op is None or op.block is None:
            continue
        if op.name == name:
            return op
        inner_op = next((inner for region in op.regions for inner in region.ops if inner.name == name), None)
        if inner_op is not None:
            return inner_op
        pending += op.operands
    return None


_OPS_OF_ONE = 8
"""Values that `op_of` searches behind an equation that was imported as several ops."""


class Copier:
    """Copies jaxprs."""

    def __init__(self, named: NamedShardings, replace: Callable[[JaxprEqn, Scope | None], Replacement | None]) -> None:
        self.named = named
        self.replace = replace

    def copy(self, jaxpr: Jaxpr, pins: Pins, scope: Scope | None) -> Copied:
        """A copy with the pinned variables constrained where they are defined."""
        eqns: list[JaxprEqn] = []
        renamed: dict[Var, Any] = {}
        position: dict[int, int] = {}
        children: dict[tuple[int, int], Copied] = {}

        def use(v: Any) -> Any:
            return v if isinstance(v, Literal) else renamed.get(v, v)

        def pin(variables: Sequence[Any], like: JaxprEqn) -> None:
            for v in variables:
                sharding = pins.variables.get(v)
                if sharding is not None:
                    constrained = Var(v.aval)
                    eqns.append(self.constraint(renamed.get(v, v), constrained, sharding, like))
                    renamed[v] = constrained

        def operand(v: Any, index: int, number: int, like: JaxprEqn | None) -> Any:
            sharding = pins.operands.get((index, number))
            if sharding is None or like is None or isinstance(v, Literal):
                return use(v)
            constrained = Var(v.aval)
            eqns.append(self.constraint(use(v), constrained, sharding, like))
            renamed[v] = constrained
            return constrained

        if jaxpr.eqns:
            pin([*jaxpr.constvars, *jaxpr.invars], jaxpr.eqns[0])
        for index, eqn in enumerate(jaxpr.eqns):
            operands = [operand(v, index, number, eqn) for number, v in enumerate(eqn.invars)]
            replacement = self.replace(eqn, scope)
            if replacement is not None:
                self.inline(replacement, eqn, operands, eqns, renamed)
            else:
                params = self.params(eqn, index, pins, scope, children)
                position[index] = len(eqns)
                eqns.append(eqn if params is eqn.params and operands == eqn.invars else eqn.replace(invars=operands, params=params))
            pin(eqn.outvars, eqn)
        last = jaxpr.eqns[-1] if jaxpr.eqns else None
        outvars = [operand(v, len(jaxpr.eqns), number, last) for number, v in enumerate(jaxpr.outvars)]
        changed = len(eqns) != len(jaxpr.eqns) or any(a is not b for a, b in zip(eqns, jaxpr.eqns))
        copy = jaxpr.replace(eqns=eqns, outvars=outvars) if changed or renamed else jaxpr
        return Copied(copy, position, children)

    def params(self, eqn: JaxprEqn, index: int, pins: Pins, scope: Scope | None, children: dict[tuple[int, int], Copied]) -> dict[str, Any]:
        """The parameters with copied bodies; the same object where nothing changed."""
        if eqn.primitive.name not in ENTERED:
            return eqn.params
        scopes = scopes_of(scope, index, bodies(eqn))

        def copied(number: int, body: Jaxpr) -> Jaxpr:
            copy = children[index, number] = self.copy(body, pins.children.get((index, number), Pins()), scopes[number])
            if eqn.primitive.name == "cond" and len(eqn.outvars) == 1 and _ends_in_constraint(copy.jaxpr, 0):
                copy.jaxpr = _behind_barrier(copy.jaxpr)
            return copy.jaxpr

        return with_bodies(eqn, copied)

    def constraint(self, old: Any, new: Var, sharding: TensorSharding, like: JaxprEqn) -> JaxprEqn:
        """`new = sharding_constraint old`."""
        params = constraint_params(self.named(sharding, old.aval.ndim))
        return new_jaxpr_eqn([old], [new], lax.sharding_constraint_p, params, no_effects, source_info=like.source_info, ctx=like.ctx)

    def inline(self, replacement: Replacement, eqn: JaxprEqn, operands: list[Any], eqns: list[JaxprEqn], renamed: dict[Var, Any]) -> None:
        """Appends the equations of a replacement."""
        avals = [jax.ShapeDtypeStruct(v.aval.shape, v.aval.dtype, weak_type=v.aval.weak_type) for v in operands]
        with eqn.ctx.manager, types_enabled(str(aval.dtype) for aval in avals):
            traced = jax.make_jaxpr(replacement)(*avals)
        if traced.consts:
            raise AssertionError(f"the replacement of {eqn.primitive.name} has constants")
        copies, results = inlined(traced.jaxpr, operands, lambda _: eqn.source_info)
        eqns += copies
        renamed.update(zip(eqn.outvars, results))


def _ends_in_constraint(jaxpr: Jaxpr, number: int) -> bool:
    """Whether a result is a constrained value, also where a call returns it."""
    result = jaxpr.outvars[number]
    for eqn in reversed(jaxpr.eqns):
        at = next((i for i, v in enumerate(eqn.outvars) if v is result), None)
        if at is not None:
            calls = [body for _, _, body in bodies(eqn)] if eqn.primitive.name in CALLS else []
            return eqn.primitive is lax.sharding_constraint_p or any(_ends_in_constraint(open_jaxpr(body), at) for body in calls)
    return False


def _behind_barrier(branch: Jaxpr) -> Jaxpr:
    """A branch with its only result behind a barrier: XLA refuses a conditional whose branches end in different constraints."""
    (result,) = branch.outvars
    hidden, last = Var(result.aval), branch.eqns[-1]
    source = {"source_info": last.source_info, "ctx": last.ctx}
    barrier = new_jaxpr_eqn([result], [hidden], lax.optimization_barrier_p, {}, no_effects, **source)
    return branch.replace(eqns=[*branch.eqns, barrier], outvars=[hidden])


def constraint_params(named: NamedSharding) -> dict[str, Any]:
    """The parameters of `sharding_constraint_p`."""
    free = frozenset(d for d, entry in enumerate(named.spec) if entry is PartitionSpec.UNCONSTRAINED)
    return {"sharding": named, "layout": None, "context_mesh": jax.sharding.get_abstract_mesh(), "unconstrained_dims": free}


def only_results(eqn: JaxprEqn, body: Jaxpr) -> frozenset[Var]:
    """The result of a branch that has only one: XLA refuses branches whose only results are constrained in different ways."""
    if eqn.primitive.name != "cond" or len(eqn.outvars) != 1:
        return frozenset()
    return frozenset(v for v in body.outvars if isinstance(v, Var))
