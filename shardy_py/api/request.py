"""PlanRequest: the description of one call's arguments by paths, types, and annotated shardings."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
from jax.core import Tracer
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec, SingleDeviceSharding

from shardy_py.api.calls import UserCall
from shardy_py.api.logical_axes import AxisNames, axis_names, by_axis_names, unruled_names
from shardy_py.api.meshes import MeshView, same_axes
from shardy_py.api.name_rules import OWN, Annotated, by_rules, refines, with_proposals
from shardy_py.api.signature import abstract, configuration, static_key
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
from shardy_py.api.trees import Leaf
from shardy_py.dialect import TensorSharding
from shardy_py.errors import SpecError, did_you_mean
from shardy_py.frontends.context import explicit_sharding
from shardy_py.frontends.leaves import Leaves, Outline
from shardy_py.plan.checks.specs import sharding_text
from shardy_py.plan.findings import Finding
from shardy_py.plan.record import PlanRecord


@dataclass(frozen=True)
class PlanRequest(UserCall):
    """A call, ready to be traced and planned.

    Attributes:
        name: The function's name; of a `functools.partial`, the name of the function inside.
        is_on_mesh: Whether `jax.jit` would trace the call on a mesh, so that code which looks for one finds one.
        key: Equal for calls that one plan serves.
    """

    name: str
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


def request(call: UserCall, *, runs: bool = False) -> PlanRequest:
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
    if call.view.from_mapping:
        call = replace(call, view=call.view.holding(values))
    view = call.view
    specs = _specs(settings.in_shardings, call, labels, args, kwargs, "in_shardings")
    if any(map(callable, specs)):
        specs = call_specs(specs, leaves, structs)
    shardings: list[TensorSharding | None] = []
    findings: list[Finding] = []
    kinds: list[str] = []
    for value, spec, leaf in zip(values, specs, leaves, strict=True):
        sharding, dropped = to_fitting_sharding(spec, leaf, "in_shardings", call)
        shardings.append(_merged(sharding, value, leaf, call))
        findings += dropped
        kinds.append(_memory_kind(spec, value, leaf, call))
    if any(kinds):
        leaves = [replace(leaf, memory_kind=kind) for leaf, kind in zip(leaves, kinds)]
        structs = [_in_memory(struct, kind, view) for struct, kind in zip(structs, kinds)]
        rest = iter(structs)
        abstract_slots = [
            Leaves(each.outline, [next(rest) for _ in each.values]) if isinstance(each, Leaves) else each for each in abstract_slots
        ]
    sources = ["" if sharding is None else OWN if spec is None else "in_shardings" for sharding, spec in zip(shardings, specs)]
    names = axis_names((args, kwargs))
    annotated = by_all_rules(call, leaves, names, Annotated(shardings, sources, findings))
    types = tuple((s.shape, s.dtype, s.weak_type) for s in structs)
    on_mesh = is_on_mesh(call)
    key = (layout, in_tree, types, (*annotated.shardings, *kinds), statics, view, on_mesh, configuration())
    described = in_tree, tuple(leaves), tuple(structs), tuple(annotated.shardings), tuple(annotated.findings), tuple(annotated.sources)
    if settings.planner is not None or isinstance(settings.in_shardings, PlanRecord):
        settings = settings.on(view, runs=runs)
    fun = settings.fun
    while isinstance(fun, functools.partial):
        fun = fun.func
    name = getattr(fun, "__name__", type(fun).__name__)
    return PlanRequest(settings, layout, abstract_slots, view, name, *described, on_mesh, key, tuple(names))


def by_all_rules(
    call: UserCall, leaves: Sequence[Leaf], names: Sequence[AxisNames | None], annotated: Annotated, *, results: bool = False
) -> Annotated:
    """Annotations of arguments or `results` with shardings by names of dimensions and by rules. Raises SpecError if they disagree."""
    rules, logical = call.settings.rules, call.settings.logical_axis_rules
    if logical is not None:
        annotated = with_proposals(by_axis_names(logical, leaves, names, call), leaves, annotated, call)
    elif any(names):
        annotated = replace(annotated, findings=[*annotated.findings, *unruled_names(leaves, names, annotated, call.place)])
    return with_proposals(by_rules(rules, leaves, annotated, call, results=results), leaves, annotated, call) if rules else annotated


def is_on_mesh(call: UserCall) -> bool:
    """Whether the function finds a mesh: that of `jax.jit`, or one for `logical_axis_rules`, which Flax drops without a mesh."""
    return call.view.explicit or call.settings.logical_axis_rules is not None or not jax.sharding.get_abstract_mesh().empty


def leaf_shardings(request: PlanRequest, in_shardings: Any, source: str) -> tuple[TensorSharding | None, ...]:
    """The sharding of each leaf of a call under other input shardings than its own. Raises SpecError if a spec does not fit its value."""
    args, kwargs = jax.tree.unflatten(request.in_tree, request.structs)
    specs = _specs(in_shardings, request, list(request.names), args, kwargs, source)
    specs = call_specs(specs, request.leaves, request.structs)
    return tuple(
        to_tensor_sharding(spec, request.view, leaf, source, location=request.location)
        for spec, leaf in zip(specs, request.leaves, strict=True)
    )


def _specs(
    in_shardings: Any, call: UserCall, labels: list[str], args: tuple[Any, ...], kwargs: dict[str, Any], source: str
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
    specs, by_name = _by_parameter(specs, call, labels, kwargs, source)
    named: list[object] = []
    for name, value in sorted(kwargs.items()):
        named += broadcast_specs(by_name.get(name), value, source, lambda path, name=name: name + path, call.location)
    return broadcast_specs(specs, args, source, root, call.location) + named


def _by_parameter(specs: Any, call: UserCall, labels: list[str], kwargs: dict[str, Any], source: str) -> tuple[Any, dict[str, Any]]:
    """Splits in_shardings into a tuple for the positional arguments and a mapping for the others.

    A tuple stands for the parameters in the order of the signature, however they are passed; those with a default may be missing from the
    call. A dict names parameters; those it does not name are left to propagation.
    """
    if type(specs) is dict:
        names = [*dict.fromkeys((*labels, *call.layout.parameters, *kwargs))]
        for name in specs:
            if name not in names:
                raise SpecError(
                    f"{source} names {name!r}, which is not an argument",
                    where=f"{source}, {call.location}",
                    why=f"the arguments are {', '.join(map(repr, names)) or 'none'}",
                    fix=did_you_mean(str(name), names),
                )
        return tuple(specs.get(label) for label in labels), specs
    if not isinstance(specs, tuple) or not len(labels) <= len(specs) <= len(call.layout.parameters):
        return specs, {}
    return specs[: len(labels)], dict(zip(call.layout.parameters, specs))


def _merged(annotation: TensorSharding | None, value: Any, leaf: Leaf, call: UserCall) -> TensorSharding | None:
    """The sharding of a leaf by its spec and by its own sharding, which counts if the leaf is committed to the mesh."""
    is_array = isinstance(value, jax.Array) and not isinstance(value, Tracer)
    view, where = call.view, f"{leaf}, argument of {call.location}"
    moves = call.settings.options.misplaced == "move" and is_array
    if moves and annotation is not None:
        return annotation
    own = getattr(value, "sharding", None) if isinstance(value, jax.ShapeDtypeStruct) or (is_array and value.committed) else None
    if isinstance(value, Tracer) and annotation is None:
        own = explicit_sharding(value)
    if isinstance(own, SingleDeviceSharding) and isinstance(value, jax.Array) and math.prod(view.auto_mesh.axis_sizes) > 1 and not moves:
        raise SpecError(
            "the argument is committed to a single device",
            where=where,
            why=f"it was put on {next(iter(own.device_set))}; the function runs on {view.describe()}; JAX moves only uncommitted arrays",
            fix="move it to its planned sharding, jax.device_put(x, plan.input_shardings[i]) or plan.place((x, ...)), pass numpy or"
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
            where=where,
            why=f"its mesh has {', '.join(f'{n}={s}' for n, s in own.mesh.shape.items())}; the mesh of the function has {view.describe()}",
            fix=f"move it with jax.device_put, plan for its mesh, or {_MOVE}",
        )
    if isinstance(value, jax.Array) and isinstance(view.user_mesh, Mesh) and not view.explicit and AxisType.Explicit in own.mesh.axis_types:
        raise SpecError(
            "the argument is on a mesh with Explicit axes",
            where=where,
            why="the axes of the function's mesh are Auto, and JAX does not mix the two; jax.make_mesh makes Explicit axes by default",
            fix="pass the argument's mesh as mesh=, or make it with axis_types=(AxisType.Auto,) * number of axes",
        )
    own_sharding = to_tensor_sharding(own.spec if moves else own, view, leaf, "the argument's own sharding", location=call.location)
    if annotation is None or own_sharding is None or annotation is own_sharding:
        return own_sharding
    if refines(annotation, own_sharding, view.dialect_mesh):
        return annotation if refines(own_sharding, annotation, view.dialect_mesh) else own_sharding
    raise SpecError(
        "the argument's sharding differs from in_shardings",
        where=where,
        why=f"in_shardings says {sharding_text(annotation)}, the argument has {sharding_text(own_sharding)}",
        fix="if your own function creates it, annotate it there as well, in out_shardings or rules (otherwise constants, such as zeros,"
        f" come out replicated); or {_MOVE}; or pass None for it in in_shardings, or move it with jax.device_put",
    )


def _memory_kind(spec: object, value: Any, leaf: Leaf, call: UserCall) -> str:
    """The memory kind of a leaf: from its annotation, or from the array itself where the annotation has none."""
    own = host_kind(value)
    if not isinstance(spec, NamedSharding) or own == host_kind(spec):
        return own
    kind = host_kind(spec)
    if isinstance(value, jax.Array) and not isinstance(value, Tracer) and value.committed and call.settings.options.misplaced != "move":
        raise SpecError(
            "the argument's memory differs from in_shardings",
            where=f"{leaf}, argument of {call.location}",
            why=f"in_shardings says {kind or 'device'}, the argument is in {own or 'device'} memory",
            fix=f"move it with jax.device_put, or {_MOVE}",
        )
    return kind


def _in_memory(struct: jax.ShapeDtypeStruct, kind: str, view: MeshView) -> jax.ShapeDtypeStruct:
    """The type of an argument, in the host's memory where it has a kind: traced so, `jax.device_put` brings it to the device."""
    return struct.update(sharding=NamedSharding(view.auto_mesh, PartitionSpec(), memory_kind=kind)) if kind else struct


_MOVE = 'have it moved in each call, options=sp.Options(misplaced="move")'
