"""Detects conflicts in a plan, in which the shape of the program and the order of visits decide.

XLA propagates through another form of a program than the one that JAX makes. Where shardings do not conflict, that gives the same result;
where they do, another. So the values around a conflict are constrained to a plan that is worth it (`plan/jit_program`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from jax.extend.core import Jaxpr, JaxprEqn, Literal, Var

from shardy_py.backends.rewriting import ENTERED, Pins, op_of, scopes_of
from shardy_py.dialect import Mesh, TensorSharding
from shardy_py.frontends.jaxpr import Scope
from shardy_py.frontends.jaxprs import bodies
from shardy_py.ir import Op
from shardy_py.partition.mispartitioned import OPS, cut_in_any_way, is_mispartitioned
from shardy_py.plan.prediction.conflicts import ConflictCache, conflicts


def pin_conflicts(scope: Scope, pins: Pins, meshes: Mapping[str, Mesh]) -> None:
    """Pins the operands and results of ops whose shardings conflict."""
    cache: ConflictCache = {}

    def is_pinned(eqn: JaxprEqn, scope: Scope) -> bool:
        return any((op := _maker(v, scope)) is not None and conflicts(op, meshes, cache) for v in eqn.outvars)

    _pin(scope, pins, meshes, is_pinned, entering=False)


def pin_mispartitioned(scope: Scope, pins: Pins, meshes: Mapping[str, Mesh]) -> None:
    """Pins the operands and results of ops that XLA may get wrong."""
    parts = cut_in_any_way(meshes)

    def is_pinned(eqn: JaxprEqn, scope: Scope) -> bool:
        name = OPS.get(eqn.primitive.name)
        op = None if name is None else op_of(eqn, scope, name)
        return op is not None and is_mispartitioned(op, parts)

    _pin(scope, pins, meshes, is_pinned, entering=True)


def _pin(
    scope: Scope,
    pins: Pins,
    meshes: Mapping[str, Mesh],
    is_pinned: Callable[[JaxprEqn, Scope], bool],
    free: frozenset[Var] = frozenset(),
    *,
    entering: bool,
) -> None:
    arguments = free if entering else {*scope.jaxpr.invars, *scope.jaxpr.constvars, *free}
    for index, eqn in enumerate(scope.jaxpr.eqns):
        results = [v for v in eqn.outvars if v in scope.env]
        if not (results and all(_is_dead(v, scope) for v in results)) and is_pinned(eqn, scope):
            for v in (*eqn.outvars, *eqn.invars):
                if isinstance(v, Literal) or v not in scope.env or v in arguments or _is_dead(v, scope):
                    continue
                if all(shape := _shape(v)) and shape:
                    sharding = scope.env[v].sharding
                    if sharding is None or not sharding.mesh_in(meshes).is_maximal:
                        pins.variables[v] = pinned_sharding(scope, v)
        if eqn.primitive.name in ENTERED:
            for k, inner in enumerate(scopes_of(scope, index, bodies(eqn))):
                if inner is not None:
                    _pin(inner, pins.child(index, k), meshes, is_pinned, only_results(eqn, inner.jaxpr), entering=entering)


def _is_dead(v: Var, scope: Scope) -> bool:
    """Whether the plan has left a variable out, as nothing uses it; a constraint would bring it back."""
    op = scope.env[v].defining_op
    return op is not None and op.block is None


def _maker(v: Var, scope: Scope) -> Op | None:
    value = scope.env.get(v)
    op = None if value is None else value.defining_op
    return None if op is None or op.block is None or op.rule is None or op.regions else op


def _shape(v: Var) -> tuple[int, ...]:
    return getattr(v.aval, "shape", ())


def only_results(eqn: JaxprEqn, body: Jaxpr) -> frozenset[Var]:
    """The result of a branch that has only one: XLA refuses branches whose only results are constrained in different ways."""
    if eqn.primitive.name != "cond" or len(eqn.outvars) != 1:
        return frozenset()
    return frozenset(v for v in body.outvars if isinstance(v, Var))


def pinned_sharding(scope: Scope, v: Var) -> TensorSharding:
    """The sharding that a pinned variable is constrained to."""
    sharding = scope.env[v].sharding
    rank = len(_shape(v))
    return TensorSharding.closed("mesh", rank) if sharding is None else sharding.with_dims(sharding.dims[:rank])
