"""Annotations inside a function: constraints, groups, barriers, named and manual computations."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, ParamSpec, Required, TypedDict, TypeVar, Unpack, overload

import jax
from jax.core import Tracer
from jax.extend import source_info_util
from jax.sharding import AbstractMesh, Mesh, NamedSharding

from shardy_py.api.meshes import MeshView, check_planned_devices, context_mesh, view_of
from shardy_py.api.specs import broadcast_specs, host_kind, to_tensor_sharding
from shardy_py.api.static_leaves import of_trees, static_tree
from shardy_py.api.trees import Leaf, location_of
from shardy_py.backends.named_shardings import NamedShardings
from shardy_py.dialect import DimensionSharding, PropagationDirection, TensorSharding
from shardy_py.errors import MeshError, ShardyError, SpecError
from shardy_py.frontends.annotation_primitives import constrain, propagation_barrier_p, ruled_call_p, sharding_group_p
from shardy_py.frontends.context import api_boundary, is_tracing
from shardy_py.frontends.leaves import Leaves, trace_leaves
from shardy_py.rules.einsum import RuleSpec, parse_einsum_rule

_SOURCE = "with_sharding_constraint"


P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


@api_boundary
def with_sharding_constraint(x: T, shardings: Any, *, priority: int | None = None) -> T:
    """As `jax.lax.with_sharding_constraint`, and more: `None` leaves, open dimensions and priorities.

    Inside a function under `auto_shard` it is an annotation that propagates, from its priority on. Under a plain `jax.jit` it is
    JAX's own constraint. On concrete arrays it moves them, as `jax.device_put`.

    Args:
        x: A pytree of arrays.
        shardings: A prefix of `x`: `PartitionSpec`, `NamedSharding`, `TensorSharding`, or None for no constraint. `P.UNCONSTRAINED`
            leaves a dimension open.
        priority: Round of propagation, 0 the first, for every dimension that the shardings give none.

    Returns:
        `x` with the constraints.

    Raises:
        SpecError: A sharding does not fit its value or the mesh.
        MeshError: A `PartitionSpec` needs a mesh, and none is set.

    Example:
        >>> import numpy as np, shardy_py as sp
        >>> from jax.sharding import PartitionSpec as P
        >>> @sp.auto_shard(mesh={"data": 4, "model": 2})
        ... def double(x):
        ...     return sp.with_sharding_constraint(x * 2, P("data", P.UNCONSTRAINED), priority=1)
        >>> print(double.plan(np.ones((8, 8), "float32")).inputs[0])
        x: float32[8@data,8]
    """
    specs = broadcast_specs(shardings, x, "shardings", lambda path: "x" + path)
    pairs, tree = jax.tree_util.tree_flatten_with_path(x)
    out = []
    for (path, value), spec in zip(pairs, specs):
        out.append(value if spec is None else _constrained(value, spec, "x" + jax.tree_util.keystr(path), priority))
    return jax.tree.unflatten(tree, out)


def _constrained(value: Any, spec: Any, path: str, priority: int | None) -> Any:
    aval = jax.typeof(value)
    leaf = Leaf(path, tuple(aval.shape), str(aval.dtype))
    view = _view_for(spec)
    if isinstance(spec, NamedSharding) and host_kind(spec):
        raise SpecError(
            f"memory kind {spec.memory_kind!r}",
            where=f"{_SOURCE} of {leaf}, {_user_line()}",
            why="a constraint says which part of a value each device has, not in which memory; jax.jit drops the kind",
            fix="move it there: jax.device_put(x, jax.memory.Space.Host)",
        )
    sharding = to_tensor_sharding(spec, view, leaf, _SOURCE, uneven=True, location=_user_line)
    assert sharding is not None
    if priority is not None:
        sharding = with_priority(sharding, priority)
    if not isinstance(value, Tracer) and not is_tracing():
        return jax.device_put(value, NamedShardings(view.runnable())(sharding, aval.ndim))
    context = jax.sharding.get_abstract_mesh()
    if context is not None and context.manual_axes:
        return _inside_manual(value, sharding, context, leaf)
    mesh = view.user_mesh if isinstance(view.user_mesh, Mesh) and not view.explicit else view.auto_mesh
    if view.explicit and isinstance(view.user_mesh, Mesh) and (context is None or context.empty):
        mesh = view.auto.user_mesh
    return constrain(value, sharding, NamedShardings(mesh, open_dims=True)(sharding, aval.ndim))


def _view_for(spec: Any) -> MeshView:
    if isinstance(spec, NamedSharding):
        if context_mesh() is None:
            return view_of(spec.mesh, _SOURCE)
        if isinstance(spec.mesh, Mesh):
            try:
                check_planned_devices(spec.mesh)
            except MeshError as error:
                raise error.at(f"{_SOURCE}, {_user_line()}") from None
    return view_of(None, _SOURCE)


def _user_line() -> str:
    return source_info_util.summarize(source_info_util.current())


def _inside_manual(value: Any, sharding: TensorSharding, context: AbstractMesh, leaf: Leaf) -> Any:
    manual = [axis.name for dim in sharding.dims for axis in dim.axes if axis.name in context.manual_axes]
    if manual:
        raise SpecError(
            f"mesh axis {manual[0]!r} is manual here",
            where=f"{_SOURCE} of {leaf}",
            why="inside shard_map the function sees one shard along its axes; they cannot be constrained",
            fix="constrain over the axes that are not in axis_names",
        )
    return jax.lax.with_sharding_constraint(value, NamedShardings(context, open_dims=True)(sharding, value.ndim))


def with_priority(sharding: TensorSharding, priority: int) -> TensorSharding:
    """The sharding with a priority on every dimension that has none; open dimensions without axes cannot have one."""
    if not isinstance(priority, int) or isinstance(priority, bool) or priority < 0:
        raise SpecError(
            f"priority is {priority!r}", where=_SOURCE, why="a priority is 0 or more; 0 propagates first", fix="pass priority=0"
        )
    return sharding.with_dims(
        d if d.priority is not None or (d.is_empty and d.is_open) else DimensionSharding(d.axes, d.is_closed, priority)
        for d in sharding.dims
    )


@overload
def sharding_group(tree: T, /, *, name: str | None = None) -> T: ...


@overload
def sharding_group(first: T, second: T, /, *rest: T, name: str | None = None) -> tuple[T, ...]: ...


@overload
def sharding_group(*trees: Any, name: str | None = None) -> Any: ...


@api_boundary
def sharding_group(*trees: Any, name: str | None = None) -> Any:
    """Makes all leaves have one sharding, as `jax.experimental.shard_alike` does for two arrays.

    Args:
        trees: Pytrees of arrays; all leaves of one shape.
        name: Leaves of calls with the same name are in one group.

    Returns:
        The trees, for one tree the tree itself; use them in place of the arguments.

    Raises:
        SpecError: Leaves differ in shape.

    Example:
        >>> import numpy as np, shardy_py as sp
        >>> from jax.sharding import PartitionSpec as P
        >>> group = sp.auto_shard(lambda x, y: sp.sharding_group(x, y), mesh={"data": 4}, in_shardings=(P("data"), None))
        >>> print(group.plan(np.ones(8, "float32"), np.ones(8, "float32")).inputs[1])
        y: float32[8@data]
    """
    leaves, tree = jax.tree_util.tree_flatten_with_path(trees)
    paths = [f"trees{jax.tree_util.keystr(path)}" for path, _ in leaves]
    values = [value for _, value in leaves]
    shapes = [tuple(jax.typeof(value).shape) for value in values]
    for path, shape in zip(paths, shapes):
        if shape != shapes[0]:
            raise SpecError(
                "the members of a sharding group differ in shape",
                where=f"sharding_group{f' {name!r}' if name else ''}: {paths[0]} and {path}",
                why=f"{paths[0]} has shape {list(shapes[0])}, {path} has {list(shape)}; members share one sharding, dimension by dimension",
                fix="make one group per shape",
            )
    if values and any(isinstance(value, Tracer) for value in values):
        values = sharding_group_p.bind(*values, group=name)
    out = jax.tree.unflatten(tree, values)
    return out[0] if len(trees) == 1 else out


_DIRECTIONS = {
    "forward": PropagationDirection.FORWARD,
    "backward": PropagationDirection.BACKWARD,
    "none": PropagationDirection.NONE,
}


@api_boundary
def propagation_barrier(x: T, allowed_direction: Literal["forward", "backward", "none"] = "none") -> T:
    """Lets shardings pass in one direction only, or not at all; the values do not change.

    Args:
        x: A pytree of arrays.
        allowed_direction: `forward` lets the shardings of `x` reach the uses of the result, `backward` the other way.

    Returns:
        `x`; use it in place of the argument.

    Raises:
        SpecError: Another direction is named.

    Example:
        >>> import numpy as np, shardy_py as sp
        >>> from jax.sharding import PartitionSpec as P
        >>> stop = sp.auto_shard(lambda x: sp.propagation_barrier(x) * 2, mesh={"data": 4}, in_shardings=P("data"))
        >>> print(stop.plan(np.ones(8, "float32")).outputs[0])
        result: float32[8]
    """
    direction = _DIRECTIONS.get(allowed_direction)
    if direction is None:
        raise SpecError(
            f"allowed_direction is {allowed_direction!r}",
            where="propagation_barrier",
            why="a barrier lets shardings pass forward, backward or not at all",
            fix='use "forward", "backward" or "none"',
        )

    def barrier(leaf: Any) -> Any:
        return propagation_barrier_p.bind(leaf, allowed_direction=direction) if isinstance(leaf, Tracer) else leaf

    return jax.tree.map(barrier, x)


@overload
def named_computation(fn: Callable[P, R], *, name: str | None = None) -> Callable[P, R]: ...


@overload
def named_computation(*, name: str | None = None) -> Callable[[Callable[P, R]], Callable[P, R]]: ...


def named_computation(fn: Callable[..., Any] | None = None, *, name: str | None = None) -> Any:
    """A function that stands in the plan under a name of its own; it propagates as if it were inlined.

    Arguments that are not arrays, such as strings and functions, are taken as they are.

    Args:
        fn: The function; without it, a decorator is returned.
        name: The name; the function's own by default.

    Example:
        >>> import numpy as np, shardy_py as sp
        >>> scale = sp.named_computation(lambda x: x * 2, name="scale")
        >>> float(scale(np.float32(2)))
        4.0
    """
    if fn is None:
        return functools.partial(named_computation, name=name)

    @functools.wraps(fn)
    def named(*args: Any, **kwargs: Any) -> Any:
        return fn(*args, **kwargs)

    named.__name__ = named.__qualname__ = name or getattr(fn, "__name__", "named_computation")
    jitted = jax.jit(of_trees(named))

    @api_boundary
    @functools.wraps(named)
    def call(*args: Any, **kwargs: Any) -> Any:
        args, kwargs = static_tree((args, kwargs))
        return jitted(*args, **kwargs)

    return call


class ManualOptions(TypedDict, total=False):
    """The keyword arguments of `manual_computation`."""

    in_specs: Required[Any]
    out_specs: Required[Any]
    manual_axes: str | Sequence[str] | None
    mesh: Mesh | AbstractMesh | Mapping[str, int] | None
    check_vma: bool


@overload
def manual_computation(fn: Callable[P, R], **options: Unpack[ManualOptions]) -> Callable[P, R]: ...


@overload
def manual_computation(**options: Unpack[ManualOptions]) -> Callable[[Callable[P, R]], Callable[P, R]]: ...


def manual_computation(
    fn: Callable[..., Any] | None = None,
    *,
    in_specs: Any,
    out_specs: Any,
    manual_axes: str | Sequence[str] | None = None,
    mesh: Mesh | AbstractMesh | Mapping[str, int] | None = None,
    check_vma: bool = True,
) -> Any:
    """A function that runs on shards, with explicit collectives: `jax.shard_map` over the mesh of the plan.

    Args:
        fn: The function; without it, a decorator is returned.
        in_specs: A prefix of the arguments, `PartitionSpec`s over the manual axes.
        out_specs: A prefix of the result.
        manual_axes: The axes that are manual inside; all by default. The others stay with the propagation.
        mesh: By default the mesh that `auto_shard` plans for.
        check_vma: As in `jax.shard_map`.

    Example:
        >>> import jax, numpy as np, shardy_py as sp
        >>> from jax.sharding import PartitionSpec as P
        >>> total = sp.manual_computation(lambda x: jax.lax.psum(x, "data"), in_specs=P("data"), out_specs=P())
        >>> print(sp.auto_shard(total, mesh={"data": 4}).plan(np.ones(8, "float32")).inputs[0])
        x: float32[8@data]
    """
    if fn is None:
        return functools.partial(
            manual_computation, in_specs=in_specs, out_specs=out_specs, manual_axes=manual_axes, mesh=mesh, check_vma=check_vma
        )

    axes = (manual_axes,) if isinstance(manual_axes, str) else manual_axes

    @api_boundary
    @functools.wraps(fn)
    def manual(*args: Any) -> Any:
        view = view_of(mesh, "manual_computation")
        unknown = [name for name in axes or () if name not in view.sizes]
        if unknown:
            raise SpecError(f"unknown mesh axis {unknown[0]!r}", where="manual_axes", why=f"the mesh has {view.describe()}",
                            fix="name axes of the mesh")  # fmt: skip
        context = context_mesh()
        over = context if mesh is None else None
        if over is None:
            over = view.runnable() if view.from_mapping else view.auto.user_mesh if isinstance(view.user_mesh, Mesh) else view.user_mesh
        mapped = jax.shard_map(
            fn,
            mesh=over,
            in_specs=in_specs,
            out_specs=out_specs,
            axis_names=frozenset(view.sizes if axes is None else axes),
            check_vma=check_vma,
        )
        return mapped(*args)

    return manual


@api_boundary
def sharding_rule(
    rule: str | None = None,
    *,
    reduction: str | Iterable[str] = (),
    need_replication: str | Iterable[str] = (),
    permutation: str | Iterable[str] = (),
    blocked_propagation: str | Iterable[str] = (),
    like: Callable[..., Any] | None = None,
    **factor_sizes: int,
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Decorates a function that propagation should not look into: a kernel, a callback, a foreign call.

    As the `sharding_rule` of `jax.experimental.custom_partitioning`, without a partition callback, and differentiable and
    vmappable as the function itself is. A kernel of Pallas or a `jax.ffi.ffi_call` in it runs on parts of a batch: the function is traced
    with their sizes where the rule has dimensions at the front of all results and operands (weights aside) that are free.
    Positional arguments are pytrees of arrays, one factor pattern per leaf; keyword arguments are static.

    Args:
        rule: Factors of operands and results: `"i k, k j -> i j"`, `"... i -> ..."`, `"(h d) -> h d"`.
        reduction: Factors that the function sums over.
        need_replication: Factors that must not be sharded.
        permutation: Factors along which neighbours exchange data.
        blocked_propagation: Factors along which shardings do not pass.
        like: Instead of a rule, a function of plain JAX ops with the same signature; the plan treats the call as its ops.
        factor_sizes: Sizes of factors that stand in compound dimensions only.

    Raises:
        ShardingRuleError: The rule cannot be read; a caret shows where.

    Example:
        >>> import jax, numpy as np, shardy_py as sp
        >>> from jax.sharding import PartitionSpec as P
        >>> @sp.sharding_rule("i k, k j -> i j", reduction="k")
        ... def matmul(x, y):
        ...     return jax.pure_callback(np.matmul, jax.ShapeDtypeStruct((x.shape[0], y.shape[1]), x.dtype), x, y)
        >>> step = sp.auto_shard(matmul, mesh={"data": 4}, in_shardings=(P("data"), None))
        >>> print(step.plan(np.ones((8, 4), "float32"), np.ones((4, 2), "float32")).outputs[0])
        result: float32[8@data,2]
    """
    if (rule is None) == (like is None):
        raise SpecError(
            "sharding_rule takes a rule or like=, one of them",
            where="sharding_rule",
            why="a call propagates by a rule or as another function does",
            fix='write sharding_rule("i k, k j -> i j", reduction="k") or sharding_rule(like=fn)',
        )
    spec = None
    if rule is not None:
        spec = parse_einsum_rule(
            rule,
            reduction=reduction,
            need_replication=need_replication,
            permutation=permutation,
            blocked_propagation=blocked_propagation,
            factor_sizes=factor_sizes,
        )

    def decorate(fn: Callable[P, R]) -> Callable[P, R]:
        @api_boundary
        @functools.wraps(fn)
        def ruled(*args: Any, **static: Any) -> Any:
            leaves, tree = jax.tree.flatten(args)
            if not any(isinstance(leaf, Tracer) for leaf in leaves):
                return fn(*args, **static)
            return _bind(fn, spec, like, leaves, tree, static)

        return ruled

    return decorate


def _bind(
    fn: Callable[..., Any], spec: RuleSpec | None, like: Callable[..., Any] | None, leaves: list[Any], tree: Any, static: dict[str, Any]
) -> Any:
    name = getattr(fn, "__name__", "function")
    avals = [jax.ShapeDtypeStruct(a.shape, a.dtype, weak_type=a.weak_type) for a in map(jax.typeof, leaves)]

    def trace(call: Callable[..., Any]) -> tuple[Any, Leaves]:
        closed, out = trace_leaves(lambda *flat: call(*jax.tree.unflatten(tree, flat), **static), *avals)
        if any(isinstance(const, Tracer) for const in closed.consts):
            raise SpecError(
                f"{name} closes over a traced array",
                where=location_of(call),
                why="the operands of a function with a sharding rule are its arguments",
                fix="pass the array as an argument",
            )
        return closed, out

    closed, out = trace(fn)
    like_closed = None if like is None else trace(like)[0]
    if like_closed is not None and [(a.shape, a.dtype) for a in like_closed.out_avals] != [(a.shape, a.dtype) for a in closed.out_avals]:
        raise SpecError(
            f"like= returns different results from {name}",
            where=location_of(fn),
            why=f"{name} gives {list(map(str, closed.out_avals))}, like= gives {list(map(str, like_closed.out_avals))}",
            fix="pass a function with the same results",
        )
    try:
        rule = None if spec is None else spec.bind([a.shape for a in avals], [a.shape for a in closed.out_avals])
    except ShardyError as error:
        raise error.at(f"sharding_rule of {location_of(fn)}") from None

    def on_leaves(*flat: Any) -> list[Any]:
        return jax.tree.leaves(fn(*jax.tree.unflatten(tree, flat), **static))

    results = ruled_call_p.bind(*leaves, call_jaxpr=closed, like_jaxpr=like_closed, rule=rule, name=name, fun=on_leaves)
    return Leaves(out.outline, results).tree()
