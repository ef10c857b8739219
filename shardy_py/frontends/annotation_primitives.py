"""The primitives behind the annotations: constraint, group, barrier and ruled call.

The jaxpr front end reads them as SDY ops. Anywhere else (a plain `jax.jit`, eager code) they do what JAX itself can express: a
constraint is `jax.lax.with_sharding_constraint`, groups and barriers are the SDY ops of the same name, a ruled call is inlined.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from typing import Any

import jax
from jax.experimental import checkify, jet
from jax.extend.core import JaxprEqn, Primitive, Var, jaxpr_as_fun, new_jaxpr_eqn, no_effects
from jax.interpreters import ad, batching, mlir
from jax.sharding import AbstractMesh, NamedSharding, PartitionSpec
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import sdy

from shardy_py.dialect import DimensionSharding, OpShardingRule, PropagationDirection, TensorSharding
from shardy_py.frontends.transforms import checked_jaxpr, register_checks

sharding_constraint_p = Primitive("sdy_sharding_constraint")
"""One operand; `sharding` (TensorSharding, with priorities and open dimensions), `named` (what JAX can say of it), `jaxpr`, and `origin`,
the primitive that the user called, or whose result has the sharding in its type."""

sharding_group_p = Primitive("sdy_sharding_group")
"""Any number of operands, given back; `group` is a name shared between equations, or None for a group of its own."""
sharding_group_p.multiple_results = True

propagation_barrier_p = Primitive("sdy_propagation_barrier")
"""One operand; `allowed_direction` says which way shardings pass."""

ruled_call_p = Primitive("sdy_ruled_call")
"""A call of `call_jaxpr` that propagates by `rule`, or as `like_jaxpr` would where that is given."""
ruled_call_p.multiple_results = True


def _same(x: Any, **_: Any) -> Any:
    return x


# Constraint.

sharding_constraint_p.def_abstract_eval(_same)


def constrain(x: Any, sharding: TensorSharding, named: NamedSharding) -> Any:
    """Binds the primitive on a traced value."""
    aval = jax.typeof(x)
    jaxpr = None if isinstance(named.mesh, AbstractMesh) else _constraint_jaxpr(tuple(aval.shape), aval.dtype, named)
    return sharding_constraint_p.bind(x, sharding=sharding, named=named, jaxpr=jaxpr, origin="sharding_constraint")


def constraint_equation(old: Any, new: Var, sharding: TensorSharding, named: NamedSharding, origin: str, source: Any = None) -> JaxprEqn:
    """`new = constrain(old)`."""
    params = {"sharding": sharding, "named": named, "jaxpr": None, "origin": origin}
    return new_jaxpr_eqn([old], [new], sharding_constraint_p, params, no_effects, source)


@functools.lru_cache(maxsize=4096)
def _constraint_jaxpr(shape: tuple[int, ...], dtype: Any, named: NamedSharding) -> Any:
    # jax.jit looks for the devices to compile for in the shardings of the jaxpr, those of inner jaxprs included.
    return jax.make_jaxpr(lambda x: jax.lax.with_sharding_constraint(x, named))(jax.ShapeDtypeStruct(shape, dtype))


def _as_jax(x: Any, *, named: NamedSharding, **_: Any) -> Any:
    return jax.lax.with_sharding_constraint(x, named)


sharding_constraint_p.def_impl(_as_jax)
mlir.register_lowering(sharding_constraint_p, mlir.lower_fun(_as_jax, multiple_results=False))
jet.deflinear(sharding_constraint_p)
if jax.lax.sharding_constraint_p not in jet.jet_rules:  # what lowering="jit" makes of constraints
    jet.deflinear(jax.lax.sharding_constraint_p)
ad.deflinear2(sharding_constraint_p, lambda ct, _, **params: [sharding_constraint_p.bind(ct, **params)])


def _batch_constraint(
    args: Sequence[Any], dims: Sequence[int], *, sharding: TensorSharding, named: NamedSharding, jaxpr: Any, origin: str
) -> tuple[Any, int]:
    (x,), (d,) = args, dims
    entries = [*named.spec, *(None for _ in range(x.ndim - 1 - len(named.spec)))]
    entries.insert(d, PartitionSpec.UNCONSTRAINED)
    grown = [*sharding.dims]
    grown.insert(d, DimensionSharding((), False))
    return constrain(x, sharding.with_dims(grown), NamedSharding(named.mesh, PartitionSpec(*entries))), d


batching.primitive_batchers[sharding_constraint_p] = _batch_constraint


# Group.

sharding_group_p.def_abstract_eval(lambda *xs, **_: list(xs))
sharding_group_p.def_impl(lambda *xs, **_: list(xs))


def _group_jvp(primals: Sequence[Any], tangents: Sequence[Any], **params: Any) -> tuple[Any, Any]:
    return sharding_group_p.bind(*primals, **params), list(tangents)


ad.primitive_jvps[sharding_group_p] = _group_jvp


jet.deflinear(sharding_group_p)


def _batch_group(args: Sequence[Any], dims: Sequence[int | None], **params: Any) -> tuple[Any, Any]:
    size = next(x.shape[d] for x, d in zip(args, dims) if d is not None)
    moved = [batching.bdim_at_front(x, d, size) for x, d in zip(args, dims)]
    return sharding_group_p.bind(*moved, **params), [0] * len(moved)


batching.primitive_batchers[sharding_group_p] = _batch_group

_group_ids = itertools.count()


@functools.lru_cache(maxsize=4096)
def _id_of_group(name: str) -> int:
    return next(_group_ids)


def _lower_group(ctx: Any, *values: Any, group: str | None) -> Any:
    number = next(_group_ids) if group is None else _id_of_group(group)
    for value in values:
        sdy.ShardingGroupOp(value, ir.IntegerAttr.get(ir.IntegerType.get_signless(64), number))
    return list(values)


mlir.register_lowering(sharding_group_p, _lower_group)


# Barrier.

propagation_barrier_p.def_abstract_eval(_same)
propagation_barrier_p.def_impl(_same)

_MIRRORED = {PropagationDirection.FORWARD: PropagationDirection.BACKWARD, PropagationDirection.BACKWARD: PropagationDirection.FORWARD}


def _transpose_barrier(ct: Any, _: Any, *, allowed_direction: PropagationDirection) -> list[Any]:
    # A cotangent runs the other way, so what may pass from operand to result passes from result to operand.
    return [propagation_barrier_p.bind(ct, allowed_direction=_MIRRORED.get(allowed_direction, allowed_direction))]


jet.deflinear(propagation_barrier_p)
ad.deflinear2(propagation_barrier_p, _transpose_barrier)


def _batch_barrier(args: Sequence[Any], dims: Sequence[int], **params: Any) -> tuple[Any, int]:
    return propagation_barrier_p.bind(args[0], **params), dims[0]


batching.primitive_batchers[propagation_barrier_p] = _batch_barrier


def _lower_barrier(ctx: Any, value: Any, *, allowed_direction: PropagationDirection) -> Any:
    direction = ir.IntegerAttr.get(ir.IntegerType.get_signless(32), int(allowed_direction))
    return [sdy.PropagationBarrierOp(value, direction).result]


mlir.register_lowering(propagation_barrier_p, _lower_barrier)


# Ruled call.


def _inline(*args: Any, call_jaxpr: Any, **_: Any) -> list[Any]:
    return list(jaxpr_as_fun(call_jaxpr)(*args))


ruled_call_p.def_impl(_inline)
ruled_call_p.def_effectful_abstract_eval(lambda *_, call_jaxpr, **__: (call_jaxpr.out_avals, call_jaxpr.effects))
mlir.register_lowering(ruled_call_p, mlir.lower_fun(_inline, multiple_results=True))


def _ruled_jvp(primals: Sequence[Any], tangents: Sequence[Any], **params: Any) -> tuple[Any, Any]:
    # The primal keeps its rule; the tangent is that of the function's body.
    out = ruled_call_p.bind(*primals, **params)
    dense = [ad.instantiate_zeros(t) for t in tangents]
    _, out_tangents = jax.jvp(functools.partial(_inline, **params), list(primals), dense)
    return out, out_tangents


ad.primitive_jvps[ruled_call_p] = _ruled_jvp


def _ruled_jet(primals: Sequence[Any], series: Sequence[Sequence[Any]], **params: Any) -> tuple[Any, Any]:
    # As for tangents.
    out = ruled_call_p.bind(*primals, **params)
    return out, jet.jet(functools.partial(_inline, **params), tuple(primals), tuple(map(list, series)), factorial_scaled=False)[1]


def _check_ruled(context: tuple[Any, ...], error: Any, enabled: Any, args: Sequence[Any], params: dict[str, Any]) -> tuple[Any, Any]:
    # As for tangents: errors come from the function's body.
    body = params["call_jaxpr"]
    checked, leaves, tree = checked_jaxpr(body, context, error, enabled, args)
    error, _ = tree.unflatten(jaxpr_as_fun(checked)(*leaves, *args))
    unchecked = jax.make_jaxpr(lambda *xs: checkify.checkify(jaxpr_as_fun(body), errors=enabled)(*xs)[1])(*body.in_avals)
    return error, ruled_call_p.bind(*args, **dict(params, call_jaxpr=unchecked, fun=None))


register_checks(ruled_call_p, _check_ruled)
jet.jet_rules[ruled_call_p] = _ruled_jet


def _batch_ruled(
    args: Sequence[Any], dims: Sequence[int | None], *, call_jaxpr: Any, like_jaxpr: Any, rule: Any, name: str, fun: Any
) -> tuple[Any, Any]:
    axes = [None if d is None else 0 for d in dims]
    moved = [x if d is None else jax.numpy.moveaxis(x, d, 0) for x, d in zip(args, dims)]

    def grown(closed: Any) -> Any:
        if closed is None:
            return None
        avals = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in moved]
        return jax.make_jaxpr(jax.vmap(jaxpr_as_fun(closed), in_axes=axes))(*avals)

    size = next(x.shape[0] for x, axis in zip(moved, axes) if axis == 0)
    new_rule = None if rule is None else batched_rule(rule, size, tuple(axis == 0 for axis in axes))
    jaxprs = {"call_jaxpr": grown(call_jaxpr), "like_jaxpr": grown(like_jaxpr)}
    out = ruled_call_p.bind(*moved, **jaxprs, rule=new_rule, name=name, fun=None if fun is None else jax.vmap(fun, axes))
    return out, [0] * len(out)


def batched_rule(rule: OpShardingRule, size: int, mapped: Sequence[bool]) -> OpShardingRule:
    """The rule of the op mapped over a new leading dimension of the operands that are `mapped`, and of all results."""
    factor = (len(rule.factor_sizes),)
    return OpShardingRule(
        (*rule.factor_sizes, size),
        tuple((factor, *dims) if is_mapped else dims for dims, is_mapped in zip(rule.operand_mappings, mapped)),
        tuple((factor, *dims) for dims in rule.result_mappings),
        rule.reduction,
        rule.need_replication,
        rule.permutation,
        rule.blocked_propagation,
        rule.is_custom,
    )


batching.primitive_batchers[ruled_call_p] = _batch_ruled
