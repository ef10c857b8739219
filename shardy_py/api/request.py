"""PlanRequest: the description of one call's arguments by paths, types, and annotated shardings."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import jax
from jax.core import Tracer
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec, SingleDeviceSharding

from shardy_py.api.errors import SpecError, did_you_mean
from shardy_py.api.logical_axes import AxisNames, axis_names, by_axis_names, unruled_names
from shardy_py.api.meshes import AnyMesh, MeshView, same_axes
from shardy_py.api.name_rules import OWN, Annotated, by_rules, refines, with_proposals
from shardy_py.api.options import Options
from shardy_py.api.signature import ArgumentSlots, abstract, configuration, static_key
from shardy_py.api.specs import (
    as_planned,
    broadcast_specs,
    call_specs,
    host_kind,
    is_spec_function,
    is_spec_leaf,
    to_fitting_sharding,
    to_tensor_sharding,
)
from shardy_py.api.trees import Leaf, location_of
from shardy_py.dialect import TensorSharding
from shardy_py.frontends.context import explicit_sharding, is_tracing
from shardy_py.frontends.leaves import Leaves, Outline
from shardy_py.plan.checks.specs import sharding_text
from shardy_py.plan.findings import Finding
from shardy_py.plan.record import PlanRecord
from shardy_py.planner.meshes import ShapeSearch
from shardy_py.planner.options import Planner


@dataclass(frozen=True)
class Settings:
    """The arguments of `auto_shard`, checked once it decorates a function.

    Attributes:
        jit: Keywords that are passed to `jax.jit`.
        shapes: The search for the shape of the mesh, where the user states the number of devices only.
        spent: The seconds of the planner's time limit that are gone when planning begins; negative where others have left some.
    """

    fun: Any
    mesh: AnyMesh | int | None
    in_shardings: Any
    out_shardings: Any
    rules: Any
    logical_axis_rules: Any
    options: Any
    planner: Planner | None
    lowering: str
    static_argnums: int | Sequence[int] | None = None
    static_argnames: str | Iterable[str] | None = None
    donate_argnums: int | Sequence[int] | None = None
    donate_argnames: str | Iterable[str] | None = None
    jit: Mapping[str, Any] = field(default_factory=dict)
    shapes: ShapeSearch | None = None
    spent: float = 0.0

    def on(self, view: MeshView, *, runs: bool) -> Settings:
        """The same for the platform of a mesh: one without devices has those of the planner's hardware, or of this machine where it runs.

        Where `in_shardings` are a plan, it has those that the plan is for: else it would have other figures than the plan.

        Args:
            runs: Whether the plan runs here. A plan to look at must not depend on what this machine is, and has started.
        """
        if self.planner is not None:
            named = self.planner.machine.platform
        elif isinstance(self.in_shardings, PlanRecord):
            named = self.in_shardings.platform
        else:
            return self
        if self.options.platform is not None or isinstance(view.user_mesh, Mesh):
            return self
        here = (view.expected if is_tracing() else view.runnable()) if runs and view.from_mapping else view.user_mesh
        platform = self.options.platform_of(here) if isinstance(here, Mesh) else named
        return replace(self, options=replace(self.options, platform=platform))


@dataclass(frozen=True)
class UserCall:
    """A call of a function, its arguments in slots."""

    settings: Settings
    layout: ArgumentSlots
    slots: Sequence[Any]

    def run(self) -> Any:
        """Runs the function as it is."""
        return self.layout.call(self.settings.fun, self.slots)


@dataclass(frozen=True)
class PlanRequest:
    """A call, ready to be traced and planned.

    Attributes:
        name: The function's name; that of the function inside a `functools.partial`.
        location: `file:line (name)` of the user's function.
        is_on_mesh: Whether `jax.jit` would trace the call on a mesh, so that code which looks for one finds one.
        key: Equal for calls that one plan serves.
    """

    settings: Settings
    name: str
    location: str
    view: MeshView
    layout: ArgumentSlots
    slots: tuple[Any, ...]
    in_tree: Any
    leaves: tuple[Leaf, ...]
    structs: tuple[jax.ShapeDtypeStruct, ...]
    shardings: tuple[TensorSharding | None, ...]
    findings: tuple[Finding, ...]
    sources: tuple[str, ...]
    is_on_mesh: bool
    key: tuple[Any, ...]
    axis_names: tuple[AxisNames | None, ...] = ()

    @property
    def signature(self) -> tuple[Any, ...]:
        """The key without shardings."""
        return (self.settings.fun, *self.key[:3], *self.key[4:])

    @property
    def outlines(self) -> tuple[Outline, ...]:
        """The structure of each dynamic slot."""
        return tuple(self.slots[i].outline for i in self.layout.dynamic)

    @property
    def leaf_slots(self) -> tuple[int, ...]:
        """The slot that each leaf belongs to."""
        return tuple(slot for slot, outline in zip(self.layout.dynamic, self.outlines) for _ in range(outline.tree.num_leaves))

    @property
    def labels(self) -> tuple[str, ...]:
        """Names of the arguments that are not static, those of keyword arguments last."""
        return tuple(self.layout.labels[i] for i in self.layout.dynamic)

    @property
    def names(self) -> tuple[str, ...]:
        """Those of positional arguments."""
        return tuple(self.layout.labels[i] for i in self.layout.dynamic if i < self.layout.positional)


def request(call: UserCall, view: MeshView, *, runs: bool = False) -> PlanRequest:
    """Describes a call.

    Raises SpecError if a spec does not fit its value. Raises ArgumentTypeError if a dynamic argument is not an array. Raises
    StaticArgumentError if a static one has no hash.
    """
    settings, layout, slots = call.settings, call.layout, call.slots
    statics = static_key(layout, slots, settings.fun) if layout.static else ()
    args, kwargs = layout.dynamic_arguments(slots)
    in_tree = jax.tree.structure((args, kwargs))
    labels = [layout.labels[i] for i in layout.dynamic if i < layout.positional]
    values: list[Any] = []
    structs: list[jax.ShapeDtypeStruct] = []
    leaves: list[Leaf] = []
    abstract_slots = list(slots)
    for i in layout.dynamic:
        argument = Leaves.of(slots[i])
        values += argument.values
        for value, key in zip(argument.values, argument.outline.keys, strict=True):
            path = layout.labels[i] + key
            shape, dtype, weak = abstract(value, path, settings.fun, layout.labels[i])
            structs.append(jax.ShapeDtypeStruct(shape, dtype, weak_type=weak))
            leaves.append(Leaf(path, shape, str(dtype)))
        abstract_slots[i] = Leaves(argument.outline, structs[len(structs) - len(argument.values) :])
    location = location_of(settings.fun)
    if view.from_mapping:
        view = view.holding(values)
    options = settings.options
    specs = _specs(settings.in_shardings, layout, labels, args, kwargs, location, "in_shardings")
    if any(map(callable, specs)):
        specs = call_specs(specs, leaves, structs)
    shardings: list[TensorSharding | None] = []
    findings: list[Finding] = []
    kinds: list[str] = []
    for value, spec, leaf in zip(values, specs, leaves, strict=True):
        sharding, dropped = to_fitting_sharding(spec, view, leaf, "in_shardings", options.indivisible, location)
        shardings.append(_merged(sharding, value, view, leaf, options, location))
        findings += dropped
        kinds.append(_memory_kind(spec, value, leaf, options, location))
    if any(kinds):
        leaves = [replace(leaf, memory_kind=kind) for leaf, kind in zip(leaves, kinds)]
        structs = [_in_memory(struct, kind, view) for struct, kind in zip(structs, kinds)]
        rest = iter(structs)
        abstract_slots = [
            Leaves(each.outline, [next(rest) for _ in each.values]) if isinstance(each, Leaves) else each for each in abstract_slots
        ]
    sources = ["" if sharding is None else OWN if spec is None else "in_shardings" for sharding, spec in zip(shardings, specs)]
    names = axis_names((args, kwargs))
    annotated = by_all_rules(settings, leaves, names, Annotated(shardings, sources, findings), view, location)
    types = tuple((s.shape, s.dtype, s.weak_type) for s in structs)
    on_mesh = is_on_mesh(settings, view)
    key = (layout, in_tree, types, (*annotated.shardings, *kinds), statics, view, on_mesh, configuration())
    described = tuple(abstract_slots), in_tree, tuple(leaves), tuple(structs), tuple(annotated.shardings), tuple(annotated.findings)
    if settings.planner is not None or isinstance(settings.in_shardings, PlanRecord):
        settings = settings.on(view, runs=runs)
    fun = settings.fun
    while isinstance(fun, functools.partial):
        fun = fun.func
    name = getattr(fun, "__name__", type(fun).__name__)
    return PlanRequest(settings, name, location, view, layout, *described, tuple(annotated.sources), on_mesh, key, tuple(names))


def by_all_rules(
    settings: Settings,
    leaves: Sequence[Leaf],
    names: Sequence[AxisNames | None],
    annotated: Annotated,
    view: MeshView,
    location: str,
    *,
    results: bool = False,
) -> Annotated:
    """Annotations of arguments or `results` with shardings by names of dimensions and by rules. Raises SpecError if they disagree."""
    logical, options = settings.logical_axis_rules, settings.options
    if logical is not None:
        proposals = by_axis_names(logical, leaves, names, view, options, location)
        annotated = with_proposals(proposals, leaves, annotated, view, options, location)
    elif any(names):
        annotated = replace(annotated, findings=[*annotated.findings, *unruled_names(leaves, names, annotated, location)])
    if settings.rules:
        proposals = by_rules(settings.rules, leaves, annotated, view, options, location, results=results)
        annotated = with_proposals(proposals, leaves, annotated, view, options, location)
    return annotated


def is_on_mesh(settings: Settings, view: MeshView) -> bool:
    """Whether the function finds a mesh: that of `jax.jit`, or one for `logical_axis_rules`, which Flax drops without a mesh."""
    return view.explicit or settings.logical_axis_rules is not None or not jax.sharding.get_abstract_mesh().empty


def leaf_shardings(request: PlanRequest, in_shardings: Any, source: str) -> tuple[TensorSharding | None, ...]:
    """The sharding of each leaf of a call under other input shardings than its own. Raises SpecError if a spec does not fit its value."""
    args, kwargs = jax.tree.unflatten(request.in_tree, request.structs)
    specs = _specs(in_shardings, request.layout, list(request.names), args, kwargs, request.location, source)
    specs = call_specs(specs, request.leaves, request.structs)
    return tuple(
        to_tensor_sharding(spec, request.view, leaf, source, location=request.location)
        for spec, leaf in zip(specs, request.leaves, strict=True)
    )


def _specs(
    in_shardings: Any, layout: ArgumentSlots, labels: list[str], args: tuple[Any, ...], kwargs: dict[str, Any], location: str, source: str
) -> list[object]:
    if isinstance(in_shardings, PlanRecord):
        in_shardings = as_planned(in_shardings.inputs, source)
    if in_shardings is None:
        return [None] * jax.tree.structure((args, kwargs)).num_leaves

    def root(path: str) -> str:
        head, bracket, rest = path.partition("]")
        number = head[1:]
        return labels[int(number)] + rest if bracket and number.isdigit() and int(number) < len(labels) else path

    if type(in_shardings) not in (dict, list, tuple) and (is_spec_leaf(in_shardings) or is_spec_function(in_shardings)):
        return [in_shardings] * jax.tree.structure((args, kwargs)).num_leaves
    specs = tuple(in_shardings) if isinstance(in_shardings, list) else in_shardings
    specs, by_name = _by_parameter(specs, layout, labels, kwargs, location, source)
    named: list[object] = []
    for name, value in sorted(kwargs.items()):
        named += broadcast_specs(by_name.get(name), value, source, lambda path, name=name: name + path, location)
    return broadcast_specs(specs, args, source, root, location) + named


def _by_parameter(
    specs: Any, layout: ArgumentSlots, labels: list[str], kwargs: dict[str, Any], location: str, source: str
) -> tuple[Any, dict[str, Any]]:
    """Splits in_shardings into a tuple for the positional arguments and a mapping for the others.

    A tuple stands for the parameters in the order of the signature, however they are passed; those with a default may be missing from the
    call. A dict names parameters; those it does not name are left to propagation.
    """
    if type(specs) is dict:
        names = [*dict.fromkeys((*labels, *layout.parameters, *kwargs))]
        for name in specs:
            if name not in names:
                raise SpecError(
                    f"{source} names {name!r}, which is not an argument",
                    where=f"{source}, {location}",
                    why=f"the arguments are {', '.join(map(repr, names)) or 'none'}",
                    fix=did_you_mean(str(name), names),
                )
        return tuple(specs.get(label) for label in labels), specs
    if not isinstance(specs, tuple) or not len(labels) <= len(specs) <= len(layout.parameters):
        return specs, {}
    return specs[: len(labels)], dict(zip(layout.parameters, specs))


def _merged(
    annotation: TensorSharding | None, value: Any, view: MeshView, leaf: Leaf, options: Options, location: str
) -> TensorSharding | None:
    """The sharding of a leaf by its spec and by its own sharding, which counts if the leaf is committed to the mesh."""
    is_array = isinstance(value, jax.Array) and not isinstance(value, Tracer)
    moves = options.misplaced == "move" and is_array
    if moves and annotation is not None:
        return annotation
    own = getattr(value, "sharding", None) if isinstance(value, jax.ShapeDtypeStruct) or (is_array and value.committed) else None
    if isinstance(value, Tracer) and annotation is None:
        own = explicit_sharding(value)
    if isinstance(own, SingleDeviceSharding) and isinstance(value, jax.Array) and math.prod(view.auto_mesh.axis_sizes) > 1 and not moves:
        raise SpecError(
            "the argument is committed to a single device",
            where=f"{leaf}, argument of {location}",
            why=f"it was put on {next(iter(own.device_set))}; the function runs on {view.describe()}; JAX moves uncommitted arrays only",
            fix="put it where the plan wants it, jax.device_put(x, plan.input_shardings[i]) or plan.place((x, ...)), pass numpy or"
            f" uncommitted arrays, or {_MOVE}",
        )
    if not isinstance(own, NamedSharding) or own.mesh.empty:
        return annotation
    if not same_axes(view, own.mesh):
        if annotation is not None and own.is_fully_replicated:
            return annotation
        if moves:
            return None
        raise SpecError(
            f"the argument is sharded over another mesh: {own.spec}",
            where=f"{leaf}, argument of {location}",
            why=f"its mesh has {', '.join(f'{n}={s}' for n, s in own.mesh.shape.items())}; the mesh of the function has {view.describe()}",
            fix=f"move it with jax.device_put, plan for its mesh, or {_MOVE}",
        )
    if isinstance(value, jax.Array) and isinstance(view.user_mesh, Mesh) and not view.explicit and AxisType.Explicit in own.mesh.axis_types:
        raise SpecError(
            "the argument lies on a mesh with Explicit axes",
            where=f"{leaf}, argument of {location}",
            why="the axes of the function's mesh are Auto, and JAX does not mix the two; jax.make_mesh makes Explicit axes by default",
            fix="pass the argument's mesh as mesh=, or make it with axis_types=(AxisType.Auto,) * number of axes",
        )
    own_sharding = to_tensor_sharding(own.spec if moves else own, view, leaf, "the argument's own sharding", location=location)
    if annotation is None or own_sharding is None or annotation is own_sharding:
        return own_sharding
    if refines(annotation, own_sharding, view.dialect_mesh):
        return annotation if refines(own_sharding, annotation, view.dialect_mesh) else own_sharding
    raise SpecError(
        "the argument has another sharding than in_shardings says",
        where=f"{leaf}, argument of {location}",
        why=f"in_shardings says {sharding_text(annotation)}, the argument has {sharding_text(own_sharding)}",
        fix="if your own function creates it, annotate it there as well, in out_shardings or rules (otherwise constants, such as zeros,"
        f" come out replicated); or {_MOVE}; or pass None for it in in_shardings, or move it with jax.device_put",
    )


def _memory_kind(spec: object, value: Any, leaf: Leaf, options: Options, location: str) -> str:
    """The memory kind of a leaf: that of its annotation, or of the array itself where the annotation has none."""
    own = host_kind(value)
    if not isinstance(spec, NamedSharding) or own == host_kind(spec):
        return own
    kind = host_kind(spec)
    if isinstance(value, jax.Array) and not isinstance(value, Tracer) and value.committed and options.misplaced != "move":
        raise SpecError(
            "the argument is in another memory than in_shardings says",
            where=f"{leaf}, argument of {location}",
            why=f"in_shardings says {kind or 'device'}, the argument is in {own or 'device'} memory",
            fix=f"move it with jax.device_put, or {_MOVE}",
        )
    return kind


def _in_memory(struct: jax.ShapeDtypeStruct, kind: str, view: MeshView) -> jax.ShapeDtypeStruct:
    """The type of an argument, in the host's memory where it has a kind: traced so, `jax.device_put` brings it to the device."""
    return struct.update(sharding=NamedSharding(view.auto_mesh, PartitionSpec(), memory_kind=kind)) if kind else struct


_MOVE = 'have it moved in each call, options=sp.Options(misplaced="move")'
