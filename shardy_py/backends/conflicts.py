"""Where a plan had to choose, so that the form of the program and the order in which ops are visited decide.

XLA propagates through another form of a program than the one that JAX makes. Where shardings do not conflict, that gives the same result;
where they do, another. So the values around a conflict are constrained to a plan that is worth it (`plan/as_run`).
"""

from __future__ import annotations

from collections.abc import Mapping

from jax.extend.core import Jaxpr, JaxprEqn, Literal, Var

from shardy_py.backends.rewriting import ENTERED, Pins, bodies, scopes_of
from shardy_py.dialect import Mesh, TensorSharding
from shardy_py.frontends.jaxpr import Scope
from shardy_py.ir import Op
from shardy_py.plan.prediction.conflicts import Seen, conflicts


def pin_conflicts(scope: Scope, pins: Pins, meshes: Mapping[str, Mesh]) -> None:
    """Pins the operands and results of ops whose shardings conflict.

    Args:
        scope: Of a plan.
        pins: Where pins are added.
        meshes: Where named meshes are looked up.
    """
    _pin(scope, pins, meshes, {}, frozenset())


def _pin(scope: Scope, pins: Pins, meshes: Mapping[str, Mesh], seen: Seen, free: frozenset[Var]) -> None:
    given = {*scope.jaxpr.invars, *scope.jaxpr.constvars, *free}
    for index, eqn in enumerate(scope.jaxpr.eqns):
        if any((op := _maker(v, scope)) is not None and conflicts(op, meshes, seen) for v in eqn.outvars):
            for v in (*eqn.outvars, *eqn.invars):
                if not isinstance(v, Literal) and v in scope.env and v not in given and all(shape := _shape(v)) and shape:
                    sharding = scope.env[v].sharding
                    if sharding is None or not sharding.mesh_in(meshes).is_maximal:
                        pins.variables[v] = wanted(scope, v)
        if eqn.primitive.name in ENTERED:
            for k, inner in enumerate(scopes_of(scope, index, bodies(eqn))):
                if inner is not None:
                    _pin(inner, pins.child(index, k), meshes, seen, only_results(eqn, inner.jaxpr))


def _maker(v: Var, scope: Scope) -> Op | None:
    value = scope.env.get(v)
    op = None if value is None else value.defining_op
    return None if op is None or op.rule is None or op.regions else op


def _shape(v: Var) -> tuple[int, ...]:
    return getattr(v.aval, "shape", ())


def only_results(eqn: JaxprEqn, body: Jaxpr) -> frozenset[Var]:
    """The result of a branch that has only one: XLA refuses branches whose only results are constrained in different ways."""
    if eqn.primitive.name != "cond" or len(eqn.outvars) != 1:
        return frozenset()
    return frozenset(v for v in body.outvars if isinstance(v, Var))


def wanted(scope: Scope, v: Var) -> TensorSharding:
    """What a variable is constrained to."""
    sharding = scope.env[v].sharding
    rank = len(_shape(v))
    return TensorSharding.closed("mesh", rank) if sharding is None else sharding.with_dims(sharding.dims[:rank])
