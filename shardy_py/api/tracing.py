"""Tracing a call to a jaxpr, under the mesh with all axes Auto."""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
from jax.core import Tracer
from jax.extend.core import ClosedJaxpr
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec

from shardy_py.api.logical_axes import AxisNames, axis_names, in_flax_context
from shardy_py.api.meshes import planning
from shardy_py.api.request import PlanRequest
from shardy_py.api.specs import as_planned, broadcast_specs
from shardy_py.api.static_leaves import static_tree, user_tree
from shardy_py.backends.callback_errors import CallbackErrors, watched
from shardy_py.dialect import TensorSharding
from shardy_py.errors import SpecError
from shardy_py.frontends.context import explicit_sharding
from shardy_py.frontends.leaves import Leaves, trace_leaves
from shardy_py.frontends.mesh_context import on_a_mesh_or_none, traced_on
from shardy_py.frontends.untyped import spec_of, states_shardings, untyped
from shardy_py.passes.collection import no_collection
from shardy_py.plan.record import PlanRecord

_Traced = tuple[ClosedJaxpr, Leaves]


@dataclass(frozen=True, eq=False)
class TracedCall:
    """A call's jaxpr and the structure of its result; `callback_errors` is None without callbacks that have results."""

    request: PlanRequest
    jaxpr: ClosedJaxpr
    result: Leaves
    out_specs: tuple[object, ...]
    out_names: tuple[AxisNames | None, ...]
    callback_errors: CallbackErrors | None = None
    out_types: tuple[PartitionSpec | None, ...] | None = None

    @property
    def out_info(self) -> Any:
        """The result, of `ShapeDtypeStruct`s."""
        return user_tree(self.result.tree())

    def eagerly(self, *leaves: Any) -> list[Any]:
        """Runs the undecorated function eagerly, op by op."""
        request = self.request
        view = request.view.auto if self.out_types is None else request.view

        def placed(leaf: Any) -> Any:
            sharding = explicit_sharding(leaf)
            return leaf if sharding is None else jax.device_put(leaf, NamedSharding(view.runnable(), sharding.spec))

        args, kwargs = jax.tree.unflatten(request.in_tree, map(placed, leaves))
        run = functools.partial(_bound(request.settings.fun, request), *args, **kwargs)
        return jax.tree.leaves(static_tree(on_a_mesh_or_none(run, view.context, mesh_first=request.is_on_mesh)))

    @property
    def closes_over_tracers(self) -> bool:
        """Whether constants belong to an outer trace, so that nothing of this call may be kept."""
        return any(isinstance(const, Tracer) for const in self.jaxpr.consts)


def trace(request: PlanRequest) -> TracedCall:
    """As `jax.make_jaxpr`, of the call's function on its types.

    It is traced on a mesh where `jax.jit` would do so, on the Auto mesh, so that the jaxpr can be replayed in any context. What cannot be
    traced without one, such as a constraint by a `PartitionSpec`, finds it as well.
    """
    layout, view = request.layout, request.view
    bound = _bound(request.settings.fun, request)
    out_specs: list[object] = []
    out_names: list[AxisNames | None] = []

    @functools.wraps(bound)
    def with_specs(*args: Any, **kwargs: Any) -> Any:
        result = static_tree(bound(*args, **kwargs))
        out_specs[:] = _out_specs(request, result)
        out_names[:] = axis_names(result)
        return result

    args, kwargs = layout.dynamic_arguments(request.slots)
    with no_collection(), planning(view):
        run = functools.partial(trace_leaves, with_specs, *args, **kwargs)
        on_auto = functools.partial(on_a_mesh_or_none, run, functools.partial(traced_on, view.auto_mesh), mesh_first=request.is_on_mesh)
        if not view.explicit or request.settings.options.axis_types == "auto":
            (jaxpr, result), types = on_auto(), None
        else:
            (jaxpr, result), types = _on_explicit_axes(request, with_specs, on_auto)
    jaxpr, callback_errors = watched(jaxpr)
    return TracedCall(request, jaxpr, result, tuple(out_specs), tuple(out_names), callback_errors, types)


def _on_explicit_axes(
    request: PlanRequest, fun: Callable[..., Any], on_auto: Callable[[], _Traced]
) -> tuple[_Traced, tuple[PartitionSpec | None, ...] | None]:
    """Traces on the user's Explicit axes, and keeps that where the code states shardings there, or does not run without.

    Any other code is traced on Auto axes, as on every mesh: nothing is refused there for want of a sharding, and what no annotation shards
    is left to propagation.
    """
    view = request.view
    mesh = view.abstract
    types = iter([_typed(struct, sharding, mesh) for struct, sharding in zip(request.structs, request.shardings, strict=True)])
    args, kwargs = jax.tree.map(lambda _: next(types), request.layout.dynamic_arguments(request.slots))
    is_chosen = request.settings.options.axis_types == "explicit"
    try:
        with traced_on(mesh):
            jaxpr, result = trace_leaves(fun, *args, **kwargs)
    except Exception as error:  # whatever the user's code, or JAX, says about types
        if is_chosen:
            raise
        try:
            return on_auto(), None
        except Exception:
            raise error from None
    if not is_chosen and not states_shardings(jaxpr.jaxpr):
        with contextlib.suppress(Exception):  # such as an assertion about a type
            return on_auto(), None
    return (untyped(jaxpr, view.auto_mesh), result), _result_types(request, jaxpr, result)


def _typed(struct: jax.ShapeDtypeStruct, sharding: TensorSharding | None, mesh: AbstractMesh) -> jax.ShapeDtypeStruct:
    """An argument with its sharding over the Explicit axes of a mesh in its type, whole where it has none, as `jax.jit` sees it."""
    explicit = {name for name, kind in zip(mesh.axis_names, mesh.axis_types) if kind is AxisType.Explicit}
    dims = () if sharding is None else sharding.dims[: len(struct.shape)]
    entries = [tuple(axis.name for axis in dim.axes if axis.name in explicit and axis.size is None) or None for dim in dims]
    return struct.update(sharding=NamedSharding(mesh, PartitionSpec(*entries)))


def _result_types(request: PlanRequest, jaxpr: ClosedJaxpr, result: Leaves) -> tuple[PartitionSpec | None, ...]:
    """The shardings in the types of results. Raises SpecError if one is yet to be summed."""
    types = tuple(map(spec_of, jaxpr.out_avals))
    for key, spec in zip(result.outline.keys, types, strict=True):
        if spec is not None and spec.unreduced:
            raise SpecError(
                f"the result is yet to be summed over {', '.join(map(repr, sorted(spec.unreduced)))}",
                where=f"result{key}, {request.location}",
                why="a function under auto_shard returns sums, not the partial sums of each device",
                fix="sum it before returning it: jax.reshard(x, P(...)) without unreduced=",
            )
    return types


def _out_specs(request: PlanRequest, result: Any) -> list[object]:
    """The entry of out_shardings for each leaf of a result."""
    settings = request.settings
    out_specs = settings.out_shardings
    if out_specs is None and isinstance(settings.in_shardings, PlanRecord):
        out_specs = as_planned(settings.in_shardings.outputs, "out_shardings")
    if out_specs is None:
        return [None] * jax.tree.structure(result).num_leaves
    return broadcast_specs(out_specs, result, "out_shardings", lambda path: "result" + path, request.location)


def _bound(fun: Callable[..., Any], request: PlanRequest) -> Callable[..., Any]:
    """The function with its static arguments filled in; keeps the names of the others for JAX's messages."""
    layout, slots = request.layout, request.slots
    if request.settings.logical_axis_rules is not None:
        fun = in_flax_context(fun, request.settings.logical_axis_rules)
    if not layout.static:
        return fun
    static_names = {layout.keywords[i - layout.positional] for i in layout.static if i >= layout.positional}
    static_kwargs = {layout.keywords[i - layout.positional]: slots[i] for i in layout.static if i >= layout.positional}

    @functools.wraps(fun)
    def bound(*args: Any, **kwargs: Any) -> Any:
        dynamic = iter(args)
        positional = [slots[i] if i in layout.static else next(dynamic) for i in range(layout.positional)]
        return fun(*positional, **kwargs, **static_kwargs)

    try:
        parameters = list(inspect.signature(fun).parameters.values())
    except (ValueError, TypeError):
        return bound
    kept = [p for i, p in enumerate(parameters) if i not in layout.static and p.name not in static_names]
    try:
        bound.__signature__ = inspect.Signature(kept)  # type: ignore[attr-defined]
    except ValueError:  # a default before a parameter without one
        pass
    return bound
