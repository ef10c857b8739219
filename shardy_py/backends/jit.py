"""Runs a plan through `jax.jit`: the traced jaxpr with the user's constraints as planned, and workarounds for XLA's wrong numbers.

Inputs and outputs have the planned shardings by `in_shardings` and `out_shardings`. Constraints, groups and barriers are constraints to
what is planned, and so are the operands and results of ops that XLA may get wrong. XLA decides the rest. Of a planner's plan, whose
shardings no propagation would find, all values are constrained.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, cast

import jax
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Var, jaxpr_as_fun
from jax.sharding import AbstractMesh

from shardy_py.backends.local.ruled_call import batched_rule
from shardy_py.backends.named_shardings import NamedShardings
from shardy_py.backends.partitioned_call import Partitioner
from shardy_py.backends.partitioned_equation import in_region
from shardy_py.backends.rewriting import ENTERED, Copier, Pins, Replacement, constraint_params, only_results, op_of, scopes_of
from shardy_py.backends.xla_workarounds import Target, workaround
from shardy_py.dialect import Mesh, TensorSharding
from shardy_py.frontends.jaxpr import Imported, Scope
from shardy_py.frontends.jaxprs import bodies, equations
from shardy_py.frontends.mesh_context import traced_on
from shardy_py.partition.mispartitioned import OPS, Parts, cut_in_any_way, is_mispartitioned


def constrained(
    closed: ClosedJaxpr, planned: Imported, auto_mesh: AbstractMesh, platform: str, partition: Partitioner, everywhere: bool = False
) -> ClosedJaxpr:
    """The copy of a traced jaxpr that `jax.jit` runs as planned; `everywhere` constrains all values."""
    target = Target(NamedShardings(auto_mesh), planned.program.meshes, platform, partition)

    def replace(eqn: JaxprEqn, scope: Scope | None) -> Replacement | None:
        own = _ANNOTATIONS.get(eqn.primitive.name)
        return workaround(eqn, scope, target) if own is None else own(eqn, scope, target)

    pins = Pins()
    _pin(planned.scope, pins, planned.program.meshes, cut_in_any_way(planned.program.meshes), everywhere)
    with traced_on(auto_mesh):
        copied = Copier(target.named, replace).copy(closed.jaxpr, pins, planned.scope)
    return ClosedJaxpr(copied.jaxpr, closed.consts)


def _pin(scope: Scope, pins: Pins, meshes: Mapping[str, Mesh], parts: Parts, everywhere: bool, free: frozenset[Var] = frozenset()) -> None:
    """Pins the operands and results of ops that XLA may get wrong, or all values."""
    for v in (*scope.jaxpr.constvars, *scope.jaxpr.invars) if everywhere else ():
        _pin_variable(v, scope, pins, meshes, free)
    for index, eqn in enumerate(scope.jaxpr.eqns):
        results = [v for v in eqn.outvars if v in scope.env]
        name = OPS.get(eqn.primitive.name)
        op = None if name is None or (results and all(_is_dead(v, scope) for v in results)) else op_of(eqn, scope, name)
        if everywhere or (op is not None and is_mispartitioned(op, parts)):
            for v in (*eqn.outvars, *eqn.invars):
                _pin_variable(v, scope, pins, meshes, free)
        if eqn.primitive.name in ENTERED:
            for k, inner in enumerate(scopes_of(scope, index, bodies(eqn))):
                if inner is not None:
                    inside = everywhere and eqn.primitive.name != "cond"  # XLA refuses branches with different constraints
                    _pin(inner, pins.child(index, k), meshes, parts, inside, only_results(eqn, inner.jaxpr))


def _pin_variable(v: Any, scope: Scope, pins: Pins, meshes: Mapping[str, Mesh], free: frozenset[Var]) -> None:
    if isinstance(v, Literal) or v not in scope.env or v in free or _is_dead(v, scope):
        return
    shape, sharding = getattr(v.aval, "shape", ()), scope.env[v].sharding
    if shape and all(shape) and (sharding is None or not sharding.mesh_in(meshes).is_maximal):
        closed = TensorSharding.closed("mesh", len(shape)) if sharding is None else sharding.with_dims(sharding.dims[: len(shape)])
        pins.variables[v] = closed


def _is_dead(v: Var, scope: Scope) -> bool:
    """Whether the plan has left a variable out, as nothing uses it; a constraint would bring it back."""
    op = scope.env[v].defining_op
    return op is not None and op.block is None


def _as_planned(eqn: JaxprEqn, scope: Scope | None, target: Target) -> Replacement:
    """The planned shardings of the values of a group or a barrier, which nothing else constrains."""
    if scope is None or any(v not in scope.env for v in eqn.outvars):
        return lambda *xs: list(xs)
    params = [constraint_params(target.named(scope.env[v].sharding, cast(Any, v).aval.ndim)) for v in eqn.outvars]
    return lambda *xs: [jax.lax.sharding_constraint_p.bind(x, **p) for x, p in zip(xs, params, strict=True)]


def _constraint(eqn: JaxprEqn, scope: Scope | None, target: Target) -> Replacement:
    """JAX's constraint, to the planned sharding: the open dimensions of the user's have been decided."""
    v: Any = eqn.outvars[0]
    planned = None if scope is None else scope.env[v].sharding
    sharding = eqn.params["sharding"] if planned is None else planned
    params = constraint_params(target.named(sharding, v.aval.ndim))
    return lambda x: [jax.lax.sharding_constraint_p.bind(x, **params)]


def _ruled_call(eqn: JaxprEqn, scope: Scope | None, target: Target) -> Replacement:
    """The function itself, between constraints on its operands and results; where it runs on parts of a batch, partitioned here."""

    def sharding_of(v: Any) -> TensorSharding | None:
        return None if scope is None or isinstance(v, Literal) or v not in scope.env else scope.env[v].sharding

    if batched_rule(eqn) is not None and (region := in_region(eqn, sharding_of, target.named, target.partition)) is not None:
        return region

    def constrained(x: Any, v: Any) -> Any:
        sharding = sharding_of(v)
        if sharding is None or not x.ndim:
            return x
        return jax.lax.sharding_constraint_p.bind(x, **constraint_params(target.named(sharding, x.ndim)))

    def call(*xs: Any) -> list[Any]:
        operands = [constrained(x, v) for x, v in zip(xs, eqn.invars)]
        return [constrained(y, v) for y, v in zip(jaxpr_as_fun(eqn.params["call_jaxpr"])(*operands), eqn.outvars)]

    return call


_Annotation = Callable[[JaxprEqn, Scope | None, Target], Replacement]

_ANNOTATIONS: dict[str, _Annotation] = {
    "sdy_sharding_constraint": _constraint,
    "sdy_sharding_group": _as_planned,
    "sdy_propagation_barrier": _as_planned,
    "sdy_ruled_call": _ruled_call,
}


def ordered_effects(jaxpr: Jaxpr) -> Iterator[JaxprEqn]:
    """Equations with ordered effects, which JAX runs on one device only; those in bodies too."""
    for eqn in equations(jaxpr) if jaxpr.effects else ():
        if eqn.primitive.name in _ORDERED and (eqn.params.get("ordered") or "Ordered" in str(eqn.params.get("effect", ""))):
            yield eqn


_ORDERED = frozenset({"debug_callback", "debug_print"})
