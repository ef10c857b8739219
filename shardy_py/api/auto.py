"""AutoSharded: a function that is planned once per input signature and then runs as `jax.jit` runs it."""

from __future__ import annotations

import dataclasses
import functools
import sys
import threading
import time
import types
import weakref
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar, overload

import jax
from jax.extend.core import ClosedJaxpr
from jax.sharding import AbstractMesh, Mesh

from shardy_py.api import nnx_modules
from shardy_py.api.calls import Settings, UserCall
from shardy_py.api.errors import ArgumentTypeError
from shardy_py.api.executable import SignatureChanged
from shardy_py.api.logical_axes import check_logical_rules
from shardy_py.api.meshes import MeshView, view_of
from shardy_py.api.name_rules import check_rules
from shardy_py.api.options import Options
from shardy_py.api.partitioning import LOWERINGS, Planned, RegionBuilder
from shardy_py.api.peers import report_failures, tell_end
from shardy_py.api.planning import make_plan
from shardy_py.api.request import PlanRequest, is_on_mesh, request
from shardy_py.api.running import CompiledCall, report
from shardy_py.api.signature import Arguments, ArgumentSlots
from shardy_py.api.specs import mesh_of
from shardy_py.api.static_leaves import of_trees, static_tree, user_tree
from shardy_py.api.tracing import TracedCall, trace
from shardy_py.api.verifying import Verification, verify
from shardy_py.backends import host_threads
from shardy_py.backends.shard_map import fits_inside
from shardy_py.cost.hardware import platform_named
from shardy_py.dialect.format import sizes_text
from shardy_py.errors import MeshError, SpecError
from shardy_py.facade import Plan
from shardy_py.frontends.context import api_boundary, is_tracing
from shardy_py.frontends.leaves import Leaves
from shardy_py.frontends.mesh_context import no_mesh, on_a_mesh_or_none
from shardy_py.plan.progress import observed
from shardy_py.planner.errors import PlannerInfeasible
from shardy_py.planner.meshes import ShapeSearch, named, shapes
from shardy_py.planner.options import Planner


def check_devices(devices: int, planner: Planner | None) -> None:
    """Raises MeshError if a number of devices is not positive, or if there is no planner to choose the mesh's shape."""
    if devices < 1 or isinstance(devices, bool):
        raise MeshError(f"mesh is {devices}", where="mesh=", why="a number of devices must be positive", fix="write mesh=8")
    if planner is None:
        raise MeshError(
            f"mesh is {devices}, a number of devices without a shape",
            where="mesh=",
            why="without a planner nothing chooses the axes of a mesh",
            fix='write mesh={"data": 4, "model": 2} or mesh=jax.make_mesh((4, 2), ("data", "model")), or pass planner=sp.Planner(...)',
        )


def searched_shapes(devices: int, call: UserCall, *, runs: bool = False) -> ShapeSearch:
    """The steps of all shapes: each is searched in its share of the time, and what others have left of theirs.

    The plan of the best shape, made afterwards, has a share too. Raises PlannerInfeasible if no plan of any shape fits its memory budget.
    """
    candidates, settings = shapes(devices), call.settings
    failures = report_failures(call.view, call.location) if runs else nullcontext()
    assert settings.planner is not None
    infeasible: list[PlannerInfeasible] = []
    steps: dict[tuple[int, ...], tuple[float, float] | None] = {}
    began = time.monotonic()
    share = settings.planner.time_limit_s / (len(candidates) + 1)
    with failures, observed(getattr(settings.fun, "__name__", "the function"), settings.options.progress):
        for number, shape in enumerate(candidates):
            spent = time.monotonic() - began - number * share
            searching = replace(settings, planner=replace(settings.planner, time_limit_s=share), spent=spent)
            try:
                shaped = replace(call, settings=searching, view=view_of(named(shape)))
                plan = make_plan(trace(request(shaped, runs=runs)), runs=runs).plan
            except PlannerInfeasible as error:
                infeasible.append(error)
                steps[shape] = None
                continue
            assert plan.search is not None
            steps[shape] = plan.search.objective_seconds, plan.search.lower_bound_seconds
        if len(infeasible) == len(candidates):
            raise min(infeasible, key=lambda error: error.minimum_bytes)
    return ShapeSearch(steps)


FUNCTIONS: weakref.WeakSet[AutoSharded[..., Any]] = weakref.WeakSet()
"""All decorated functions."""


def clear_caches() -> None:
    """Forgets plans and compiled programs of all decorated functions, and all that is remembered of ops, layouts and programs.

    Answers stay the same. `jax.clear_caches()` does the same for JAX, which remembers what was traced and compiled.

    Example:
        >>> import jax, shardy_py as sp
        >>> sp.clear_caches()
        >>> jax.clear_caches()
    """
    for function in list(FUNCTIONS):
        function.clear_cache()
    for name, module in list(sys.modules.items()):
        if name.startswith("shardy_py."):
            for value in list(vars(module).values()):  # caches are functions of modules
                if getattr(value, "__module__", None) == name and hasattr(value, "cache_clear"):
                    value.cache_clear()


P = ParamSpec("P")
Q = ParamSpec("Q")
R = TypeVar("R")
S = TypeVar("S")
Self = TypeVar("Self", bound="AutoSharded[..., Any]")

_HITS_BEFORE_FAST = 16


class Traced:
    """A traced call, as `jax.stages.Traced`.

    Attributes:
        jaxpr: The traced function.
        in_tree: Structure of `(args, kwargs)` without static arguments.
        out_tree: Structure of the result.
        fun_name: The function's name.

    Example:
        >>> import jax, jax.numpy as jnp, shardy_py as sp
        >>> from jax.sharding import PartitionSpec as P
        >>> double = sp.auto_shard(lambda x: x * 2, mesh={"data": 4}, in_shardings=P("data"))
        >>> traced = double.trace(jax.ShapeDtypeStruct((8, 8), jnp.float32))
        >>> [eqn.primitive.name for eqn in traced.jaxpr.jaxpr.eqns], traced.plan().mesh.axis_names
        (['mul'], ('data',))
    """

    def __init__(self, call: TracedCall, settings: Settings) -> None:
        self._call = call
        self._settings = settings
        self.jaxpr: ClosedJaxpr = call.jaxpr
        self.in_tree = call.request.in_tree
        self.out_tree = call.result.outline.tree
        self.fun_name = call.request.name

    @property
    def out_info(self) -> Any:
        """The result, of `jax.ShapeDtypeStruct`s."""
        return self._call.out_info

    @functools.cached_property
    def _planned(self) -> Planned:
        return make_plan(self._call)

    @property
    def _planned_here(self) -> Planned:
        """The plan for the devices that run it; `plan()` may be for other hardware."""
        call = self._call
        settings = self._settings.on(call.request.view, runs=True)
        if settings.options == call.request.settings.options:
            return self._planned
        return make_plan(replace(call, request=replace(call.request, settings=settings)))

    @api_boundary
    def plan(self) -> Plan:
        """The plan; made on the first call, the same object afterwards."""
        return self._planned.plan

    @api_boundary
    def lower(self, *, lowering_platforms: Sequence[str] | None = None, _private_parameters: Any = None) -> Any:
        """The `jax.stages.Lowered` of the planned function: `.compile()`, `.as_text()`, ...

        Args:
            lowering_platforms: As in `jax.stages.Traced.lower`, and `gpu` for `cuda`; with it, an `AbstractMesh` will do.
            _private_parameters: Passed by `jax.export.export`, whose programs are called with leaves in the user's order.
        """
        explicit = {
            "lowering_platforms": lowering_platforms and tuple(map(platform_named, lowering_platforms)),
            "_private_parameters": _private_parameters,
        }
        options = {name: value for name, value in explicit.items() if value is not None}
        planned = self._planned_here if lowering_platforms is None else self._planned
        entry = CompiledCall(planned, abstract=lowering_platforms is not None, in_order=_private_parameters is not None)
        return entry.lower(**options)


class AutoSharded(Generic[P, R]):
    """A function decorated by `auto_shard`, to be called as the function itself.

    Attributes:
        plan_count: Number of plans that calls of this function have made.

    Example:
        >>> import jax, jax.numpy as jnp, shardy_py as sp
        >>> from jax.sharding import PartitionSpec as P
        >>> double = sp.auto_shard(lambda x: x * 2, mesh={"data": 4}, in_shardings=P("data"))
        >>> print(double.plan(jax.ShapeDtypeStruct((8, 8), jnp.float32)).outputs[0])
        result: float32[8@data,8]
    """

    __name__: str
    __qualname__: str
    __wrapped__: Callable[P, R]

    def __init__(self, settings: Settings) -> None:
        functools.update_wrapper(self, settings.fun)
        self.__wrapped__ = settings.fun
        self.plan_count = 0
        self._settings = settings
        self._arguments = Arguments(
            settings.fun, settings.static_argnums, settings.static_argnames, settings.donate_argnums, settings.donate_argnames
        )
        self._entries: dict[tuple[Any, ...], CompiledCall] = {}
        self._alike: dict[tuple[Any, ...], list[CompiledCall]] = {}
        self._last: CompiledCall | None = None
        self._last_keyed: CompiledCall | None = None
        self._shapes: ShapeSearch | None = None
        self._keyed_hits = 0
        self._misses = 0
        self._lock = threading.RLock()
        FUNCTIONS.add(self)

    @api_boundary
    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Runs the function as planned; plans and compiles on the first call of a signature."""
        last = self._last
        attempt = None
        if last is not None and not kwargs and last.layout.positional == len(args) and not last.layout.keywords and self._is_for_here(last):
            if not last.is_reported and not is_tracing():
                report(last.planned)
                last.is_reported = True
            try:
                return last(args)
            except (SignatureChanged, ValueError, TypeError) as error:
                self._misses += 1
                attempt = (last, error)
        if nnx_modules.present(args, kwargs):
            return nnx_modules.call(self._settings, self._run, args, kwargs)
        return self._run(self._settings, args, kwargs, attempt)

    def _is_for_here(self, entry: CompiledCall) -> bool:
        """Whether an entry was planned for the mesh of `jax.set_mesh`; always true where the decorator names a mesh."""
        call = entry.planned.traced.request
        if call.is_on_mesh is not is_on_mesh(call):
            return False
        return self._settings.mesh is not None or call.view is view_of(None)

    def _run(
        self, settings: Settings, args: tuple[Any, ...], kwargs: dict[str, Any], attempt: tuple[CompiledCall, Exception] | None
    ) -> Any:
        call = self._call(settings, args, kwargs, runs=True)
        with report_failures(call.view, call.location):
            return self._run_on(call, attempt)

    def _call(self, settings: Settings, args: tuple[Any, ...], kwargs: dict[str, Any], *, runs: bool = False) -> UserCall:
        """A call for its mesh; of a number of devices the shape is chosen for the first call that is planned, and kept."""
        layout = self._arguments.layout(len(args), kwargs)
        slots = [*args, *(kwargs[name] for name in layout.keywords)]
        trees = [static_tree(slot) if i in layout.dynamic else slot for i, slot in enumerate(slots)]
        if any(tree is not slot for tree, slot in zip(trees, slots)):
            settings = dataclasses.replace(settings, fun=of_trees(settings.fun))
        mesh = settings.mesh
        call = UserCall(settings, layout, trees, view_of(named(shapes(mesh)[0]) if isinstance(mesh, int) else mesh))
        if not isinstance(mesh, int):
            return call
        with self._lock:
            spent = 0.0
            if self._shapes is None:
                began = time.monotonic()
                self._shapes = searched_shapes(mesh, call, runs=runs and not is_tracing())
                spent = time.monotonic() - began
        assert self._shapes.best is not None
        settings = dataclasses.replace(call.settings, shapes=self._shapes, spent=spent)
        return dataclasses.replace(call, settings=settings, view=view_of(named(self._shapes.best)))

    def _run_on(self, call: UserCall, attempt: tuple[CompiledCall, Exception] | None) -> Any:
        settings, view = call.settings, call.view
        if _is_manual(view, getattr(settings.fun, "__name__", "the function")):
            return _run_inside(call)  # inside a shard_map over this mesh only the axes that it leaves over can be sharded
        if jax.config.jax_disable_jit:  # pyright: ignore[reportAttributeAccessIssue]
            return on_a_mesh_or_none(call.run, view.context, mesh_first=is_on_mesh(call))
        plan_request = request(call, runs=True)
        key = (settings.fun, plan_request.key)
        with self._lock:
            entry = self._entries.get(key)
            if entry is None:
                alike = self._alike.setdefault(plan_request.signature, [])
                serving = next((entry for entry in alike if entry.serves(plan_request.shardings)), None)
                entry = self._planned(plan_request) if serving is None else serving
                if entry.is_cacheable:
                    self._entries[key] = entry
                    if serving is None:
                        alike.append(entry)
            elif attempt is not None and attempt[0] is entry and not isinstance(attempt[1], SignatureChanged):
                raise attempt[1]
        if not entry.is_reported and not is_tracing():  # what is only transformed, such as differentiated, is not run as it was planned
            report(entry.planned)
            entry.is_reported = True
        result = entry(call.slots)
        self._remember(entry, call.layout)  # only now: where a first call fails, the next one is a first call again
        return result

    def _planned(self, plan_request: PlanRequest) -> CompiledCall:
        self.plan_count += 1
        return CompiledCall(make_plan(trace(plan_request), runs=not is_tracing()))

    def _remember(self, entry: CompiledCall, layout: ArgumentSlots) -> None:
        """Lets the next call try this entry first; not while signatures alternate, for a wrong try costs more than a key."""
        if not entry.is_cacheable or layout.keywords:
            return
        self._keyed_hits = self._keyed_hits + 1 if entry is self._last_keyed else 0
        self._last_keyed = entry
        self._last = entry if self._misses < 4 or self._keyed_hits >= _HITS_BEFORE_FAST else None

    @api_boundary
    def trace(self, *args: Any, **kwargs: Any) -> Traced:
        """Traces a call; arguments are arrays or `jax.ShapeDtypeStruct`s, whose shardings count as annotations.

        Raises:
            SpecError: A spec does not fit.
        """
        call = self._call(*nnx_modules.as_pure(self._settings, args, kwargs))
        return Traced(trace(request(call)), call.settings)

    @api_boundary
    def plan(self, *args: Any, **kwargs: Any) -> Plan:
        """The plan of a call; needs no devices."""
        return self.trace(*args, **kwargs).plan()

    @api_boundary
    def lower(self, *args: Any, **kwargs: Any) -> Any:
        """The `jax.stages.Lowered` of a call as planned: `.compile()`, `.as_text()`."""
        return self.trace(*args, **kwargs).lower()

    @api_boundary
    def eval_shape(self, *args: Any, **kwargs: Any) -> Any:
        """As `jax.eval_shape`, but the structs have their planned shardings."""
        traced = self.trace(*args, **kwargs)
        result = traced._call.result
        shardings = jax.tree.leaves(traced.plan().output_shardings)
        structs = [
            jax.ShapeDtypeStruct(s.shape, s.dtype, sharding=n, weak_type=s.weak_type) for s, n in zip(result.values, shardings, strict=True)
        ]
        return user_tree(Leaves(result.outline, structs).tree())

    @api_boundary
    def verify(
        self,
        *args: Any,
        rtol: float | None = None,
        atol: float | None = None,
        every_op: bool | None = None,
        plain_xla: bool = True,
        **kwargs: Any,
    ) -> Verification:
        """Runs a call as planned and on one device, and compares: every output, and every op on the operands that it had.

        Arguments are neither donated nor changed. The function runs several times, so that callbacks are called several times.

        Args:
            args: As in a call.
            rtol: Relative tolerance of the outputs; by default the tolerance of the shortest float type that a value passed through.
                Integers, booleans and PRNG keys have to be equal in any case.
            atol: Absolute tolerance of the outputs; by default a noise floor, by the largest element of the output.
            every_op: Compare ops one by one: True always, False where outputs differ, None where they differ or the results of all
                ops are less than a gibibyte.
            plain_xla: Look at what `jax.jit` alone makes of the same annotations, too.
            kwargs: As in a call.

        Raises:
            ArgumentTypeError: An argument has no values.
        """
        call = self._call(*nnx_modules.as_pure(self._settings, args, kwargs), runs=True)
        with report_failures(call.view, call.location):
            planned = make_plan(trace(request(call, runs=True)), runs=True)
            return verify(planned, call.slots, rtol, atol, every_op, plain_xla)

    @property
    def options(self) -> Options:
        """The options of propagation."""
        return self._settings.options

    @api_boundary
    def replace(
        self, *, mesh: Any = None, lowering: str | None = None, options: Options | None = None, planner: Planner | None = None
    ) -> AutoSharded[P, R]:
        """The same function with the same annotations over another mesh, or otherwise lowered or propagated; it has plans of its own.

        Args:
            mesh: As in `auto_shard`; None is the mesh it has.
            lowering: As in `auto_shard`; None as it is.
            options: As in `auto_shard`; None as they are.
            planner: As in `auto_shard`; None as it is.

        Raises:
            MeshError: `mesh` is not a mesh.
            SpecError: There is no such lowering.

        Example:
            >>> import jax, jax.numpy as jnp, shardy_py as sp
            >>> step = sp.auto_shard(jnp.sin, mesh={"data": 4}, in_shardings=jax.P("data"))
            >>> print(step.replace(mesh={"data": 1024}).plan(jax.ShapeDtypeStruct((4096,), jnp.float32)).mesh)
            #sdy.mesh<["data"=1024]>
        """
        changes = {"mesh": mesh, "lowering": lowering, "options": options, "planner": planner}
        changes = {name: value for name, value in changes.items() if value is not None}
        return decorate(dataclasses.replace(self._settings, **changes), self.__wrapped__)

    def clear_cache(self) -> None:
        """Forgets all plans and compiled programs."""
        with self._lock:
            self._entries.clear()
            self._alike.clear()
            self._last = None

    def __deepcopy__(self, memo: dict[int, Any]) -> AutoSharded[P, R]:
        """Itself, as for any function."""
        return self

    def __reduce__(self) -> str:
        """By name, as any function."""
        return getattr(self.__wrapped__, "__qualname__", repr(self))

    @overload
    def __get__(self: Self, instance: None, owner: type | None = None) -> Self: ...

    @overload
    def __get__(self: AutoSharded[Concatenate[S, Q], R], instance: S, owner: type | None = None) -> BoundAutoSharded[Q, R]: ...

    def __get__(self: AutoSharded[..., Any], instance: Any, owner: type | None = None) -> Any:
        """Binds a method, with its stages."""
        return self if instance is None else BoundAutoSharded(self, instance)

    def __repr__(self) -> str:
        return f"<AutoSharded function {getattr(self.__wrapped__, '__qualname__', self.__wrapped__)}>"


class BoundAutoSharded(Generic[Q, R]):
    """A method under `auto_shard`, bound to its instance, which is the first argument of each of its stages."""

    trace: Callable[..., Traced]
    plan: Callable[..., Plan]
    lower: Callable[..., Any]
    eval_shape: Callable[..., Any]
    verify: Callable[..., Verification]

    def __init__(self, function: AutoSharded[..., R], instance: Any) -> None:
        functools.update_wrapper(self, function.__wrapped__)
        self.__wrapped__ = types.MethodType(function.__wrapped__, instance)  # so that its signature has no self
        self.__func__ = function
        self.__self__ = instance
        for name in ("trace", "plan", "lower", "eval_shape", "verify"):
            setattr(self, name, functools.partial(getattr(function, name), instance))
        self.clear_cache = function.clear_cache

    @api_boundary
    def __call__(self, *args: Q.args, **kwargs: Q.kwargs) -> R:
        """Calls the method."""
        return self.__func__(self.__self__, *args, **kwargs)

    @property
    def plan_count(self) -> int:
        """See `AutoSharded`; of all instances."""
        return self.__func__.plan_count


def _run_inside(call: UserCall) -> Any:
    """Runs the function; unless under `lowering="jit"` in a region over the axes that are left, where the plan uses only those."""
    view = call.view
    context = jax.sharding.get_abstract_mesh()
    sizes = {name: size for name, size in view.sizes.items() if name not in context.manual_axes and size > 1}
    if call.settings.lowering == "jit" or not sizes or dict(context.shape) != view.sizes:
        return call.run()
    plan_request = request(call, runs=True)
    with no_mesh():
        planned = make_plan(trace(plan_request))
    plan = planned.plan
    inputs, outputs = ([v.sharding for v in values] for values in (plan.inputs, plan.outputs))
    by_planner = planned.region is not None and planned.region.by_planner
    region = RegionBuilder(planned.imported, planned.traced, context, by_planner=by_planner)
    if not fits_inside(planned.imported, context, inputs, outputs) or not region.is_run(plan):
        return call.run()
    results = region.calling(plan, None)(*jax.tree.leaves(call.layout.dynamic_arguments(call.slots)))
    return user_tree(jax.tree.unflatten(planned.traced.result.outline.tree, results))


def _is_manual(view: MeshView, name: str) -> bool:
    """Whether the call stands in a shard_map over axes of the mesh; raises MeshError in one over another mesh."""
    context = jax.sharding.get_abstract_mesh()
    if context is None or not context.manual_axes:
        return False
    if not set(context.manual_axes) & set(view.sizes):
        around = sizes_text(context.shape)
        raise MeshError(
            f"{name} is planned for {view.describe()} and called inside of a shard_map over another mesh, {around}",
            where=f"call of {name}",
            why="jax.pmap is a shard_map over a mesh of its own, each of whose devices runs its part alone",
            fix=f"call {name} on the whole arrays, without jax.pmap, or map {name}.__wrapped__",
        )
    return True


@api_boundary
def decorate(settings: Settings, fun: Callable[P, R]) -> AutoSharded[P, R]:
    """Checks the arguments of `auto_shard` and decorates a function; see there."""
    mesh = settings.mesh
    _check(fun, settings.options, settings.planner, settings.lowering)
    host_threads.provide()
    tell_end()
    if mesh is None:
        mesh = mesh_of((settings.in_shardings, settings.out_shardings))
    if isinstance(mesh, int):
        check_devices(mesh, settings.planner)
    elif mesh is not None:
        view_of(mesh)
    rules, logical = check_rules(settings.rules), check_logical_rules(settings.logical_axis_rules)
    settings = dataclasses.replace(settings, fun=fun, mesh=mesh, rules=rules, logical_axis_rules=logical)
    return AutoSharded(dataclasses.replace(settings, options=settings.options or Options(), lowering=str(settings.lowering)))


def _check(fun: object, options: object, planner: object, lowering: object) -> None:
    if not callable(fun) or isinstance(fun, (Mesh, AbstractMesh)):
        raise ArgumentTypeError(
            f"auto_shard got a {type(fun).__name__}, not a function",
            where="auto_shard(fun, ...)",
            why="the only positional argument is the function; everything else is a keyword",
            fix="write @auto_shard(mesh=..., in_shardings=...)",
        )
    try:
        hash(fun)
    except TypeError as error:
        name = type(fun).__name__
        raise ArgumentTypeError(
            f"auto_shard got a {name}, which has no hash",
            where="auto_shard(fun, ...)",
            why=f"calls are cached by the function's hash, as under jax.jit ({error})",
            fix=f"pass the {name} as an argument if it is a pytree, auto_shard(lambda f, x: f(x), ...)(f, x), so that its arrays are "
            "sharded; or close over it, auto_shard(lambda x: f(x), ...), which replicates them as constants",
        ) from error
    for name, value, kind, why, fix in (
        ("options", options, Options, "options must be an sp.Options", "pass sp.Options(...)"),
        ("planner", planner, Planner, "planner must be an sp.Planner, which names the hardware", 'pass sp.Planner(hardware="h100")'),
    ):
        if value is not None and not isinstance(value, kind):
            raise ArgumentTypeError(f"{name} is a {type(value).__name__}", where=f"auto_shard({name}=...)", why=why, fix=fix)
    if lowering not in LOWERINGS:
        raise SpecError(
            f"lowering is {lowering!r}",
            where="auto_shard(lowering=...)",
            why="lowering is 'auto', 'jit' or 'shard_map'",
            fix='use lowering="auto", lowering="jit" or lowering="shard_map"',
        )
