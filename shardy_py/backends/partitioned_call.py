"""A call of a jaxpr that is partitioned when it runs, and transformed as a whole before: `grad`, `vmap` and the like see global arrays.

A shard_map region is a poor thing to differentiate: rules of `jax.custom_vjp` inside it would get local arrays where they were written
for global ones, and sums over devices would be transposed to more sums. So a call holds the global jaxpr. Every transformation makes
another global jaxpr, in the way JAX's rules for `jit` do, and only what is left in the end is partitioned. Shardings that are
decided go along: tangents and cotangents are to be laid out as their values, residuals as the first part of a call leaves them.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import jax
from jax.core import eval_jaxpr
from jax.experimental import jet
from jax.extend.core import ClosedJaxpr, JaxprEqn, Literal, Primitive, jaxpr_as_fun, new_jaxpr_eqn
from jax.interpreters import ad, batching, mlir, partial_eval
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from shardy_py.backends.local.jaxpr_rewriting import without_calls
from shardy_py.dialect import DimensionSharding, TensorSharding
from shardy_py.frontends.context import is_staged, no_context_devices
from shardy_py.frontends.jaxpr_cache import with_jaxpr
from shardy_py.frontends.mesh_context import no_mesh
from shardy_py.frontends.transforms import (
    batch_jaxpr,
    checked_jaxpr,
    checkpoint_rule,
    hoisted,
    jet_jaxpr,
    jvp_jaxpr,
    register_checks,
    split_jaxpr,
    transpose_jaxpr,
    used_part,
)

Shardings = tuple[TensorSharding | None, ...]
T = TypeVar("T")


PlannedCall = tuple[tuple[Shardings, Shardings], Callable[[], ClosedJaxpr]]
"""The shardings that the inputs and the results of a call get, and what makes its program of local arrays, with the same inputs."""


class Partitioner(Hashable, Protocol):
    """Plans jaxprs of global arrays; `devices` is None where programs run wherever their arguments are."""

    @property
    def devices(self) -> Mesh | None: ...  # noqa: D102

    @property
    def memory(self) -> dict[Hashable, Any]: ...  # noqa: D102

    def plan(self, jaxpr: ClosedJaxpr, in_shardings: Shardings, out_shardings: Shardings) -> PlannedCall:
        """A call of a jaxpr with what is said about its shardings."""
        ...


partitioned_call_p = Primitive("partitioned_call")
"""A call of `jaxpr`, which has no constants.

`partition` is a `Partitioner`, `in_seeds` and `out_seeds` are what its shardings are worked out from, `name` is for profiles, and `devices`
is a jaxpr that names the devices, None where any devices do.
"""
partitioned_call_p.multiple_results = True


def partitioned_call(
    jaxpr: ClosedJaxpr, leaves: Sequence[Any], partition: Partitioner, in_shardings: Shardings, out_shardings: Shardings, name: str
) -> list[Any]:
    """Calls a jaxpr on global arrays, partitioned (equal partitions behave the same), as if `jax.jit` had been called."""
    _register_sparse()
    return _bind(leaves, jaxpr, in_shardings, out_shardings, partition=partition, name=name, devices=_naming(partition.devices))


def _bind(args: Iterable[Any], jaxpr: ClosedJaxpr, in_seeds: Seeds, out_seeds: Seeds, **rest: Any) -> list[Any]:
    args, params = _call(args, jaxpr, in_seeds, out_seeds, rest)
    return partitioned_call_p.bind(*args, **params)


def _call(
    args: Iterable[Any], jaxpr: ClosedJaxpr, in_seeds: Seeds, out_seeds: Seeds, rest: dict[str, Any]
) -> tuple[list[Any], dict[str, Any]]:
    """Operands and parameters, with the constants of the jaxpr as operands."""
    seeds = (None,) * len(jaxpr.consts) + tuple(in_seeds)
    return [*jaxpr.consts, *args], dict(rest, jaxpr=hoisted(jaxpr), in_seeds=seeds, out_seeds=tuple(out_seeds))


@functools.lru_cache(maxsize=64)
def _naming(devices: Mesh | None) -> ClosedJaxpr | None:
    # jax.jit finds the devices to compile for in its arguments and in the shardings of its jaxpr, those of inner jaxprs included.
    if devices is None:
        return None
    replicated = NamedSharding(devices.update(axis_types=(AxisType.Auto,) * len(devices.axis_names)), PartitionSpec())
    with no_mesh():
        traced = jax.make_jaxpr(lambda x: jax.lax.with_sharding_constraint(x, replicated))(jax.ShapeDtypeStruct((), "float32"))
    # With the axis types of the arguments: where there are callbacks, JAX wants one mesh everywhere. Explicit axes can't be constrained.
    (constraint,) = traced.jaxpr.eqns
    named = constraint.replace(params={**constraint.params, "sharding": NamedSharding(devices, PartitionSpec())})
    return ClosedJaxpr(traced.jaxpr.replace(eqns=[named]), traced.consts)


# Seeds: shardings, some of which are decided only when another call is planned. Most derived calls are themselves derived from, and never
# run, so nothing is planned before a call runs or is lowered.


class _Call:
    """A call, planned when its shardings or its program are needed; equal calls are one object."""

    def __init__(self, partition: Partitioner, jaxpr: ClosedJaxpr, in_seeds: Seeds, out_seeds: Seeds) -> None:
        self._call = (jaxpr, _resolved, in_seeds, out_seeds)
        self._partition = partition

    @functools.cached_property
    def _planned(self) -> PlannedCall:
        jaxpr, resolved, in_seeds, out_seeds = self._call
        return self._partition.plan(jaxpr, resolved(in_seeds), resolved(out_seeds))

    @functools.cached_property
    def shardings(self) -> Shardings:
        """The shardings of inputs, then of results."""
        (ins, outs), _ = self._planned
        return (*ins, *outs)

    @functools.cached_property
    def program(self) -> ClosedJaxpr:
        """The program that runs on the devices."""
        assert self.shardings is not None  # all that is needed of the plan once the program is there
        program = without_calls(self._planned[1]())
        del self._planned
        return program


@dataclass(frozen=True, slots=True)
class _Planned:
    """The sharding that an input or result of a call gets."""

    call: _Call
    index: int

    def resolve(self) -> TensorSharding | None:
        return self.call.shardings[self.index]


@dataclass(frozen=True, slots=True)
class _Mapped:
    """A sharding with a dimension inserted."""

    seed: _Planned | _Mapped
    dim: int
    axes: tuple[str, ...]

    def resolve(self) -> TensorSharding | None:
        return with_mapped_dim(self.seed.resolve(), self.dim, self.axes)


Seed = TensorSharding | _Planned | _Mapped | None
Seeds = Sequence[Seed]


def _resolved(seeds: Seeds) -> Shardings:
    return tuple(seed.resolve() if isinstance(seed, _Planned | _Mapped) else seed for seed in seeds)


def _planned(jaxpr: ClosedJaxpr, partition: Partitioner, in_seeds: Seeds, out_seeds: Seeds) -> tuple[Seeds, Seeds]:
    """Seeds for calls derived from a call: the planned shardings of its own seeds; seeds that an earlier plan decides stay."""
    call = _once(_Call, partition, jaxpr, tuple(in_seeds), tuple(out_seeds))
    seeds = [s if isinstance(s, _Planned | _Mapped) else _Planned(call, i) for i, s in enumerate((*in_seeds, *out_seeds))]
    return tuple(seeds[: len(in_seeds)]), tuple(seeds[len(in_seeds) :])


def with_mapped_dim(sharding: TensorSharding | None, dim: int, axes: Sequence[str] = ()) -> TensorSharding | None:
    """The sharding of an array with a mapped dimension, as `jax.vmap` makes it, from the sharding of a slice."""
    if sharding is None:
        return None
    return sharding.with_dims([*sharding.dims[:dim], DimensionSharding(axes, bool(axes)), *sharding.dims[dim:]])


# Running and lowering.


REMEMBERED = 256
"""Results of all kinds that are remembered for each partition, the last ones."""


def _once(make: Callable[..., T], partition: Partitioner, *key: Hashable) -> T:
    """A result for a call, cached with its partition, which lives as long as calls under it do."""
    memory = partition.memory
    result = memory.get((make, *key))
    if result is None:
        result = make(partition, *key)
        while len(memory) >= REMEMBERED:
            memory.pop(next(iter(memory)), None)
        memory[make, *key] = result
    return result


def _run(*args: Any, jaxpr: ClosedJaxpr, partition: Partitioner, in_seeds: Seeds, out_seeds: Seeds, **_: Any) -> list[Any]:
    return jaxpr_as_fun(_once(_Call, partition, jaxpr, in_seeds, out_seeds).program)(*args)


def _jitted(partition: Partitioner, *rest: tuple[str, Any]) -> Callable[..., Any]:
    params = dict(rest, partition=partition)

    def call(*args: Any) -> list[Any]:
        if not is_staged():  # under jax_debug_nans and jax_debug_infs, JAX looks for the op that the number came from
            return eval_jaxpr(params["jaxpr"].jaxpr, (), *args)
        return partitioned_call_p.bind(*args, **params)

    call.__name__ = call.__qualname__ = params["name"]
    return jax.jit(call)


def _eagerly(*args: Any, partition: Partitioner, **rest: Any) -> list[Any]:
    if jax.config.jax_disable_jit:  # pyright: ignore[reportAttributeAccessIssue]
        return _run(*args, partition=partition, **rest)
    return _once(_jitted, partition, *rest.items())(*args)  # jax.jit finds the devices where arguments do not tell


partitioned_call_p.def_impl(_eagerly)
partitioned_call_p.def_effectful_abstract_eval(lambda *_, jaxpr, **__: (jaxpr.out_avals, jaxpr.effects))


def _lower(
    ctx: mlir.LoweringRuleContext,
    *args: Any,
    jaxpr: ClosedJaxpr,
    partition: Partitioner,
    in_seeds: Seeds,
    out_seeds: Seeds,
    name: str,
    devices: ClosedJaxpr | None,
) -> Any:
    # In place, not behind calls: partitioning and inlining would go over all that is called once for each.
    with no_context_devices():
        whole = _once(_Call, partition, jaxpr, in_seeds, out_seeds).program
        module = ctx.module_context if ctx.platforms is None else ctx.module_context.replace(platforms=ctx.platforms)
        lowered_consts = ctx.const_lowering
        consts = [
            mlir.ir_constants(c, const_lowering=lowered_consts, aval=v.aval)
            for c, v in zip(whole.consts, whole.jaxpr.constvars, strict=True)
        ]
        results, tokens = mlir.jaxpr_subcomp(
            module,
            whole.jaxpr,
            ctx.name_stack.extend(f"jit({name})"),
            ctx.tokens_in,
            [c[0] if len(c) == 1 else c for c in consts],
            *args,
            dim_var_values=ctx.dim_var_values,
            const_lowering=lowered_consts,
            outer_traceback=None,
        )
    ctx.set_tokens_out(tokens)
    return results


mlir.register_lowering(partitioned_call_p, _lower, cacheable=False)


# Forward derivatives. Reverse ones are made by JAX from these, by the division below into what does not depend on tangents and what does.


def _jvp(
    primals: Sequence[Any],
    tangents: Sequence[Any],
    *,
    jaxpr: ClosedJaxpr,
    partition: Partitioner,
    in_seeds: Seeds,
    out_seeds: Seeds,
    **rest: Any,
) -> tuple[list[Any], list[Any]]:
    nonzero = [type(t) is not ad.Zero and jax.typeof(t).dtype != jax.dtypes.float0 for t in tangents]
    derived, has_tangent = jvp_jaxpr(jaxpr, nonzero)
    ins, outs = _planned(jaxpr, partition, in_seeds, out_seeds)
    args = [*primals, *_where(tangents, nonzero)]
    results = iter(_bind(args, derived, (*ins, *_where(ins, nonzero)), (*outs, *_where(outs, has_tangent)), partition=partition, **rest))
    out = [next(results) for _ in jaxpr.out_avals]
    return out, [next(results) if nz else ad.Zero(aval.to_tangent_aval()) for aval, nz in zip(jaxpr.out_avals, has_tangent)]


ad.primitive_jvps[partitioned_call_p] = _jvp


def _partial_eval(
    trace: Any, *tracers: Any, jaxpr: ClosedJaxpr, partition: Partitioner, in_seeds: Seeds, out_seeds: Seeds, **rest: Any
) -> list[Any]:
    rest["partition"] = partition
    unknown = [not t.is_known() for t in tracers]
    if all(unknown) or not any(unknown):
        params = dict(rest, jaxpr=jaxpr, in_seeds=in_seeds, out_seeds=out_seeds)
        return trace.default_process_primitive(partitioned_call_p, tracers, params)
    first, second, late, forwarded = split_jaxpr(jaxpr, unknown)
    early_args = [t.pval.get_known() for t in _where(tracers, unknown, False)]
    early_seeds = _where(in_seeds, unknown, False)
    out_early = _where(out_seeds, late, False)
    first, places = _without_repeats(first, len(out_early))
    count = len(first.out_avals)
    result_seeds = (*out_early, *(None for _ in range(count - len(out_early))))
    args, params = _call(early_args, first, early_seeds, result_seeds, rest)
    computed = partitioned_call_p.bind(*args, **params) if count or first.effects else []
    _, result_seeds = _planned(params["jaxpr"], partition, params["in_seeds"], params["out_seeds"])
    results, seeds = [computed[p] for p in places], [result_seeds[p] for p in places]
    residuals, residual_seeds = iter(results[len(out_early) :]), iter(seeds[len(out_early) :])
    late_args = [next(residuals) if f is None else early_args[f] for f in forwarded]
    late_seeds = [next(residual_seeds) if f is None else early_seeds[f] for f in forwarded]
    args, params = _call(
        [*late_args, *_where(tracers, unknown)],
        second,
        (*late_seeds, *_where(in_seeds, unknown)),
        _where(out_seeds, late),
        rest,
    )
    later = iter(trace.default_process_primitive(partitioned_call_p, args, params) if any(late) or second.effects else [])
    sooner = iter(results)
    return [next(later) if is_late else next(sooner) for is_late in late]


@with_jaxpr
def _without_repeats(jaxpr: ClosedJaxpr, results: int) -> tuple[ClosedJaxpr, tuple[int, ...]]:
    """The jaxpr without residuals that are results or other residuals as well, and the place of each; residuals follow the results."""
    distinct = list(jaxpr.jaxpr.outvars[:results])
    place_of = {v: i for i, v in enumerate(distinct) if not isinstance(v, Literal)}
    places = list(range(results))
    for v in jaxpr.jaxpr.outvars[results:]:
        place = len(distinct) if isinstance(v, Literal) else place_of.setdefault(v, len(distinct))
        distinct += [v] if place == len(distinct) else []
        places.append(place)
    if len(distinct) == len(places):
        return jaxpr, tuple(places)
    info = jaxpr.jaxpr.debug_info.with_unknown_names()
    return ClosedJaxpr(jaxpr.jaxpr.replace(outvars=distinct, debug_info=info), jaxpr.consts), tuple(places)


partial_eval.custom_partial_eval_rules[partitioned_call_p] = _partial_eval


def _divide(
    unknown_in: Sequence[bool],
    used_late: Sequence[bool],
    known_results: Sequence[bool],
    late_results: Sequence[bool],
    residuals: int,
    residuals_in: int,
    early: dict[str, Any],
    late: dict[str, Any],
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Parameters of the two calls into which `jax.checkpoint` divides a call: the saved part and the recomputed part."""
    in_seeds, out_seeds = early["in_seeds"], early["out_seeds"]
    early = dict(early, in_seeds=_where(in_seeds, unknown_in, False), out_seeds=_where(out_seeds, known_results) + (None,) * residuals)
    saved: Seeds = (None,) * residuals_in
    if residuals == residuals_in:
        _, planned = _planned(early["jaxpr"], early["partition"], early["in_seeds"], early["out_seeds"])
        saved = planned[len(planned) - residuals :]
    return early, dict(late, in_seeds=(*saved, *_where(in_seeds, used_late)), out_seeds=_where(out_seeds, late_results))


partial_eval.partial_eval_jaxpr_custom_rules[partitioned_call_p] = checkpoint_rule(_divide)


def _transpose(cotangents: Sequence[Any], *args: Any, jaxpr: ClosedJaxpr, in_seeds: Seeds, out_seeds: Seeds, **rest: Any) -> list[Any]:
    linear = [ad.is_undefined_primal(x) for x in args]
    nonzero = [type(ct) is not ad.Zero for ct in cotangents]
    derived, has_cotangent = transpose_jaxpr(jaxpr, linear, nonzero)
    seeds = (*_where(in_seeds, linear, False), *_where(out_seeds, nonzero))
    operands = [*_where(args, linear, False), *_where(cotangents, nonzero)]
    cotangent_seeds = _where(_where(in_seeds, linear), has_cotangent)
    results = iter(_bind(operands, derived, seeds, cotangent_seeds, **rest) if any(has_cotangent) or derived.effects else [])
    is_result = iter(has_cotangent)
    return [
        None if not is_linear else next(results) if next(is_result) else ad.Zero(aval.to_ct_aval())
        for aval, is_linear in zip(jaxpr.in_avals, linear)
    ]


ad.primitive_transposes[partitioned_call_p] = _transpose


# Checks, Taylor polynomials, sparse arrays.


def _check(
    context: tuple[Any, ...], error: Any, enabled: Any, operands: Sequence[Any], params: dict[str, Any]
) -> tuple[Any, Sequence[Any]]:
    rest = dict(params)
    jaxpr, in_seeds, out_seeds = (rest.pop(name) for name in ("jaxpr", "in_seeds", "out_seeds"))
    derived, leaves, tree = checked_jaxpr(jaxpr, context, error, enabled, operands)
    error_seeds = (None,) * (len(derived.out_avals) - len(out_seeds))
    return tree.unflatten(_bind([*leaves, *operands], derived, ((None,) * len(leaves) + in_seeds), (*error_seeds, *out_seeds), **rest))


register_checks(partitioned_call_p, _check)


def _jet(
    primals: Sequence[Any], series: Sequence[Sequence[Any]], *, jaxpr: ClosedJaxpr, in_seeds: Seeds, out_seeds: Seeds, **rest: Any
) -> Any:
    derived, tree = jet_jaxpr(jaxpr, primals, series)
    order = len(series[0])

    def of_all(seeds: Seeds) -> Seeds:
        return *seeds, *(seed for seed in seeds for _ in range(order))

    operands = [*primals, *(term for terms in series for term in terms)]
    return tree.unflatten(_bind(operands, derived, of_all(in_seeds), of_all(out_seeds), **rest))


jet.jet_rules[partitioned_call_p] = _jet


def _sparse(env: Any, *values: Any, jaxpr: ClosedJaxpr, in_seeds: Seeds, out_seeds: Seeds, **rest: Any) -> Any:
    """The rule for sparse arrays; only dense operands and results are sharded as planned."""
    sparse = sys.modules["jax.experimental.sparse"]
    leaves, tree = jax.tree.flatten(sparse.transform.spvalues_to_arrays(env, values))
    run = sparse.sparsify(jaxpr_as_fun(jaxpr))
    with no_mesh():
        derived, shape = jax.make_jaxpr(lambda *leaves: run(*tree.unflatten(leaves)), return_shape=True)(*leaves)
    ins = [seed for seed, part in zip(in_seeds, tree.children(), strict=True) for seed in _seeds_of_parts(seed, part)]
    outs = [seed for seed, x in zip(out_seeds, shape, strict=True) for seed in _seeds_of_parts(seed, jax.tree.structure(x))]
    results = _bind(leaves, derived, ins, outs, **rest)
    return sparse.transform.arrays_to_spvalues(env, jax.tree.unflatten(jax.tree.structure(shape), results))


def _seeds_of_parts(seed: Seed, tree: Any) -> list[Seed]:
    """The seed of an array, or one for each array of a sparse one, without a sharding."""
    return [seed] if jax.tree_util.treedef_is_leaf(tree) else [None] * tree.num_leaves


def _register_sparse() -> None:
    """Adds the rule where users have imported `jax.experimental.sparse`, which takes half a second."""
    transform = sys.modules.get("jax.experimental.sparse.transform")
    if transform is not None:
        for rules in (transform.sparse_rules_bcoo, transform.sparse_rules_bcsr):
            rules[partitioned_call_p] = _sparse


# Mapping and leaving out.


def _batch(
    axis: Any, args: Sequence[Any], dims: Sequence[Any], *, jaxpr: ClosedJaxpr, in_seeds: Seeds, out_seeds: Seeds, **rest: Any
) -> tuple[list[Any], Sequence[Any]]:
    derived, out_dims = batch_jaxpr(jaxpr, axis, dims)
    axes = tuple(axis.spmd_name or ())

    def mapped(seed: Seed, dim: Any) -> Seed:
        if seed is None or dim is None:
            return seed
        return with_mapped_dim(seed, dim, axes) if isinstance(seed, TensorSharding) else _Mapped(seed, dim, axes)

    seeds = map(mapped, in_seeds, dims)
    return _bind(args, derived, tuple(seeds), tuple(map(mapped, out_seeds, out_dims)), **rest), out_dims


batching.fancy_primitive_batchers[partitioned_call_p] = _batch


def _leave_out(used: list[bool], *rest: Any) -> tuple[list[bool], JaxprEqn | None]:
    eqn: JaxprEqn = rest[-1]  # jax >= 0.12 also says which inputs are live
    if not any(used) and not eqn.effects:
        return [False] * len(eqn.invars), None
    part, inputs = used_part(eqn.params["jaxpr"], tuple(used))
    if part is eqn.params["jaxpr"]:
        return list(inputs), eqn
    seeds = {"in_seeds": _where(eqn.params["in_seeds"], inputs), "out_seeds": _where(eqn.params["out_seeds"], used)}
    params = dict(eqn.params, jaxpr=part, **seeds)
    invars, outvars = _where(eqn.invars, inputs), _where(eqn.outvars, used)
    return list(inputs), new_jaxpr_eqn(list(invars), list(outvars), eqn.primitive, params, part.effects, eqn.source_info, eqn.ctx)


partial_eval.dce_rules[partitioned_call_p] = _leave_out


def _where(values: Iterable[Any], flags: Iterable[bool], keep: bool = True) -> tuple[Any, ...]:
    return tuple(value for value, flag in zip(values, flags) if bool(flag) is keep)
