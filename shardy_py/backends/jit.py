"""Runs a plan through `jax.jit`: the traced jaxpr with the user's constraints as planned, and workarounds for XLA's wrong numbers.

Inputs and outputs have the planned shardings by `in_shardings` and `out_shardings`. Constraints, groups and barriers are constraints to
what is planned, and so are the operands and results of ops that XLA may get wrong. XLA decides the rest. The shardings of a planner's plan,
which no propagation would find, hold everywhere: the copy is propagated, and the first values that differ from the plan are constrained.
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
from shardy_py.backends.rewriting import ENTERED, Copied, Copier, Pins, Replacement, constraint_params, only_results, op_of, scopes_of
from shardy_py.backends.xla_workarounds import Target, workaround
from shardy_py.dialect import Mesh, TensorSharding
from shardy_py.frontends.jaxpr import Imported, Scope
from shardy_py.frontends.jaxprs import bodies, open_jaxpr
from shardy_py.frontends.mesh_context import traced_on
from shardy_py.partition.mispartitioned import OPS, Parts, cut_in_any_way, is_mispartitioned

PER_REGION = (1, 1, 2, 4, 16, None, None)
"""Numbers of values to pin in each region of differing ones, per propagation of the copy; None pins all."""


def constrained(
    closed: ClosedJaxpr,
    planned: Imported,
    auto_mesh: AbstractMesh,
    platform: str,
    partition: Partitioner,
    propagate: Callable[[ClosedJaxpr], Imported] | None = None,
) -> ClosedJaxpr:
    """The copy of a traced jaxpr that `jax.jit` runs as planned.

    Args:
        propagate: Propagates a copy, where all values are to lie as planned.
    """
    target = Target(NamedShardings(auto_mesh), planned.program.meshes, platform, partition)

    def replace(eqn: JaxprEqn, scope: Scope | None) -> Replacement | None:
        own = _ANNOTATIONS.get(eqn.primitive.name)
        return workaround(eqn, scope, target) if own is None else own(eqn, scope, target)

    copier = Copier(target.named, replace)
    pins = Pins()
    _pin_mispartitioned(planned.scope, pins, planned.program.meshes, cut_in_any_way(planned.program.meshes))
    copied = _copied(copier, closed, pins, planned, auto_mesh)
    for per_region in PER_REGION:
        if propagate is None:
            break
        rerun = propagate(ClosedJaxpr(copied.jaxpr, closed.consts))
        if not _pin_differences(planned.scope, rerun.scope, copied, pins, per_region):
            break
        copied = _copied(copier, closed, pins, planned, auto_mesh)
    return ClosedJaxpr(copied.jaxpr, closed.consts)


def _copied(copier: Copier, closed: ClosedJaxpr, pins: Pins, planned: Imported, auto_mesh: AbstractMesh) -> Copied:
    with traced_on(auto_mesh):
        return copier.copy(closed.jaxpr, pins, planned.scope)


def _pin_mispartitioned(scope: Scope, pins: Pins, meshes: Mapping[str, Mesh], parts: Parts, free: frozenset[Var] = frozenset()) -> None:
    """Pins the operands and results of ops that XLA may get wrong."""
    for index, eqn in enumerate(scope.jaxpr.eqns):
        results = [v for v in eqn.outvars if v in scope.env]
        name = OPS.get(eqn.primitive.name)
        op = None if name is None or (results and all(_is_dead(v, scope) for v in results)) else op_of(eqn, scope, name)
        if op is not None and is_mispartitioned(op, parts):
            for v in (*eqn.outvars, *eqn.invars):
                if isinstance(v, Literal) or v not in scope.env or v in free or _is_dead(v, scope):
                    continue
                shape, sharding = getattr(v.aval, "shape", ()), scope.env[v].sharding
                if shape and all(shape) and (sharding is None or not sharding.mesh_in(meshes).is_maximal):
                    pins.variables[v] = _pinned_sharding(scope, v)
        if eqn.primitive.name in ENTERED:
            for k, inner in enumerate(scopes_of(scope, index, bodies(eqn))):
                if inner is not None:
                    _pin_mispartitioned(inner, pins.child(index, k), meshes, parts, only_results(eqn, inner.jaxpr))


def _is_dead(v: Var, scope: Scope) -> bool:
    """Whether the plan has left a variable out, as nothing uses it; a constraint would bring it back."""
    op = scope.env[v].defining_op
    return op is not None and op.block is None


def _pinned_sharding(scope: Scope, v: Any) -> TensorSharding:
    sharding, rank = scope.env[v].sharding, len(getattr(v.aval, "shape", ()))
    return TensorSharding.closed("mesh", rank) if sharding is None else sharding.with_dims(sharding.dims[:rank])


def _pin_differences(
    plan: Scope, run: Scope, copied: Copied, pins: Pins, per_region: int | None, free: frozenset[Var] = frozenset()
) -> bool:
    """Pins the first few values of each region (None: all) whose shardings differ together; returns whether any differs."""
    regions: dict[Var, list[Var]] = {}
    differs = False
    first = [v for v in (*plan.jaxpr.constvars, *plan.jaxpr.invars) if v not in free and _differs(v, plan, run, pins)]
    for v in first:
        regions[v] = [v]
    for index, eqn in enumerate(plan.jaxpr.eqns):
        differing = [v for v in eqn.outvars if v not in free and _differs(v, plan, run, pins)]
        if differing:
            _join([v for v in eqn.invars if not isinstance(v, Literal) and v in regions], differing, regions)
        for k, inner in _inner(plan, run, copied, index, eqn):
            differs |= _pin_differences(*inner, pins.child(index, k), per_region, only_results(eqn, inner[0].jaxpr))
    for members in {id(members): members for members in regions.values()}.values():
        differs = True
        for v in members[:per_region]:
            pins.variables[v] = _pinned_sharding(plan, v)
    return differs


def _join(old: list[Var], new: list[Var], regions: dict[Var, list[Var]]) -> None:
    """Puts variables, and the regions of the operands they come from, into one region; in program order."""
    into = regions[old[0]] if old else []
    for v in old[1:]:
        other = regions[v]
        if other is not into:
            into += other
            for member in other:
                regions[member] = into
    into += new
    for v in new:
        regions[v] = into


def _inner(plan: Scope, run: Scope, copied: Copied, index: int, eqn: JaxprEqn) -> Iterator[tuple[int, tuple[Scope, Scope, Copied]]]:
    at = copied.position.get(index)
    if eqn.primitive.name not in ENTERED or at is None:
        return
    old = bodies(eqn)
    new = bodies(copied.jaxpr.eqns[at])
    for k, (a, b) in enumerate(zip(scopes_of(plan, index, old), scopes_of(run, at, new))):
        if a is not None and b is not None:
            yield k, (a, b, copied.children[index, k])


def _differs(v: Any, plan: Scope, run: Scope, pins: Pins) -> bool:
    planned = plan.env.get(v)
    if planned is None or v in pins.variables or not getattr(v.aval, "shape", ()) or 0 in v.aval.shape:
        return False
    ran = run.env.get(v)
    if ran is None or not planned.uses or not ran.uses:
        return False
    target, actual = planned.sharding, ran.sharding
    if target is actual or target is None:
        return target is None and actual is not None and not actual.is_fully_replicated
    return not target.is_equivalent(actual)


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
    if not jaxpr.effects:
        return
    for eqn in jaxpr.eqns:
        if eqn.primitive.name in _ORDERED and (eqn.params.get("ordered") or "Ordered" in str(eqn.params.get("effect", ""))):
            yield eqn
        for _, _, body in bodies(eqn):
            yield from ordered_effects(open_jaxpr(body))


_ORDERED = frozenset({"debug_callback", "debug_print"})
