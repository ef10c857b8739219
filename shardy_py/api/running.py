"""CompiledCall: one signature of an `AutoSharded` function, planned, pinned and jitted."""

from __future__ import annotations

import dataclasses
import functools
import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
from jax.extend.core import ClosedJaxpr
from jax.extend.source_info_util import summarize
from jax.sharding import Mesh

from shardy_py.api.agreement import AgreedStage, Agreement, agreement_of, covering, gated
from shardy_py.api.errors import DeletedBufferError, DonationError, DonationWarning, NotAvailableError, OrderedEffectError
from shardy_py.api.meshes import MeshView
from shardy_py.api.partitioning import DerivedRegions, calling
from shardy_py.api.placing import Placing
from shardy_py.api.planning import Planned
from shardy_py.api.propagating import decided, import_and_propagate
from shardy_py.api.reporting import report
from shardy_py.api.signature import ArgumentSlots, configuration
from shardy_py.api.static_leaves import has_static_leaves, user_tree
from shardy_py.api.tangents import Tangents, is_differentiated_here
from shardy_py.api.trees import argument_paths, location_of
from shardy_py.backends.callback_errors import CallbackErrors
from shardy_py.backends.donation import Guard
from shardy_py.backends.executable import Signature, executable
from shardy_py.backends.host_threads import must_wait
from shardy_py.backends.jit import Pinned, left_to_xla, ordered_effects, pinned
from shardy_py.backends.leaf_order import Rearranged
from shardy_py.backends.named_shardings import NamedShardings
from shardy_py.dialect import TensorSharding
from shardy_py.facade import Plan
from shardy_py.frontends.context import is_staged, is_tracing
from shardy_py.frontends.jaxpr import Imported
from shardy_py.frontends.transforms import hoisted, used_part, with_inputs
from shardy_py.passes.collection import no_collection
from shardy_py.passes.propagation.log import only_grows
from shardy_py.plan.checks.thresholds import NOTABLE
from shardy_py.plan.donation import Arrangement, Donated, arrangement
from shardy_py.plan.jit_program import jit_program_of
from shardy_py.plan.values import PlannedValue

EMPTY_COMES_WHOLE = jax.__version_info__ < (0, 12)
"""Whether XLA does not cut results without elements, which JAX would then take for parts, and fail to put together."""


@dataclass(frozen=True)
class BufferErrors:
    """The errors of the donation guard, with paths and the user's function."""

    fun: Callable[..., Any]

    def deleted(self, path: str, leaf: Any) -> Exception:
        """The leaf's buffer is gone."""
        return DeletedBufferError(
            f"the buffer of {path} has been deleted",
            where=f"{path} {leaf.dtype}[{','.join(map(str, leaf.shape))}], argument of {location_of(self.fun)}",
            why="the array was donated to an earlier call (donate_argnums), which may have reused its memory",
            fix="use the result of that call instead, or do not donate the argument",
        )

    def twice(self, path: str, first: str, leaf: Any, same: bool = True) -> Exception:
        """One buffer stands at two paths."""
        return DonationError(
            f"{first} and {path} are one array, and it is donated" if same else f"{first} and {path} share memory, and it is donated",
            where=f"{path} {leaf.dtype}[{','.join(map(str, leaf.shape))}], argument of {location_of(self.fun)}",
            why="a donated buffer may be overwritten while the other argument still needs it",
            fix=f"pass a copy, jnp.copy(...), for one of them, or do not donate {path.partition('[')[0].partition('.')[0]}",
        )


def check_buffers(layout: ArgumentSlots, slots: Sequence[Any], fun: Callable[..., Any]) -> None:
    """Raises if arguments may not be passed: their buffers were deleted, or are donated twice."""
    arguments = [jax.tree.leaves(slots[i]) for i in layout.dynamic]
    leaves = [leaf for argument in arguments for leaf in argument]
    if Guard(bool(layout.donated)).bad(leaves):
        donated = [i in layout.donated for i, argument in zip(layout.dynamic, arguments) for _ in argument]
        paths = argument_paths([layout.labels[i] for i in layout.dynamic], [slots[i] for i in layout.dynamic], {})
        Guard(bool(layout.donated)).explain(leaves, donated, paths, BufferErrors(fun))


@dataclass(frozen=True, eq=False)
class CompiledCall:
    """A planned and jitted signature.

    Attributes:
        is_cacheable: Whether later calls may use it; not where the function closes over values of an outer trace.
    """

    planned: Planned
    _pinned: Pinned | None
    jitted: Rearranged
    run: Callable[[Sequence[Any], Sequence[Any]], Any]
    agreement: Agreement | None
    placing: Placing
    tangents: tuple[Tangents, Tangents] | None
    layout: ArgumentSlots
    guard: Guard
    errors: BufferErrors
    is_cacheable: bool
    has_static: bool
    closed_over: bool = False

    @property
    def plan(self) -> Plan:
        """The plan."""
        return self.planned.plan

    @property
    def pinned(self) -> Pinned:
        """The program that runs."""
        if self._pinned is not None:
            return self._pinned
        assert self.planned.region is not None
        return Pinned(self.planned.region.partitioned(self.plan).jaxpr, 0, True)

    def __call__(self, slots: Sequence[Any]) -> Any:
        """Runs a call; raises SignatureChanged if it does not have the signature that was planned for."""
        leaves, statics = self.jitted.inputs.flat(slots)
        if self.guard.bad(leaves):
            self.guard.explain(leaves, self._donated, self._paths, self.errors)
        leaves = self.placing(leaves)
        if not self.guard.apart:
            self.guard.look_at_memory(leaves, self._donated, self._paths, self.errors)
        if self.agreement is not None and not self.agreement.settled:
            self._settle(self.agreement, slots, leaves, statics)
        if self.tangents is None or not is_differentiated_here():
            result = self.run(leaves, statics)
        else:
            of_arguments, of_results = self.tangents
            results, tree = jax.tree.flatten(self.run(of_arguments.placed(leaves), statics))
            result = tree.unflatten(of_results.placed(results))
        return user_tree(result) if self.has_static else result

    @property
    def is_reported(self) -> bool:
        """Whether it has been said what deserves a look in the plan."""
        return "_reported" in self.__dict__

    def report(self) -> None:
        """Says what deserves a look in the plan, once; under `Options(check="raise")` raises each time."""
        if not self.is_reported:
            report(self.planned)
            self.__dict__["_reported"] = True

    def _settle(self, agreement: Agreement, slots: Sequence[Any], leaves: Sequence[Any], statics: Sequence[Any]) -> None:
        """Waits for the other processes of the mesh; last, so that a failure of this process comes before they go on."""
        if is_staged():
            return  # what is written down passes a gate when it runs
        arguments, _ = self.jitted.inputs.flat(slots)
        if is_tracing():
            agreement.settle_within(arguments)
        else:
            agreement.settle(arguments, lambda: self.jitted.trace(leaves, statics).lower().compile())

    @functools.cached_property
    def _donated(self) -> list[bool]:
        """Whether each leaf belongs to a donated argument."""
        outlines = self.planned.traced.request.outlines
        return [i in self.layout.donated for i, outline in zip(self.layout.dynamic, outlines) for _ in outline.paths]

    @functools.cached_property
    def _paths(self) -> list[str]:
        return [leaf.path for leaf in self.planned.traced.request.leaves]

    @functools.cached_property
    def _placed(self) -> list[TensorSharding]:
        return _closed(self.plan.inputs)

    def serves(self, shardings: Sequence[TensorSharding | None]) -> bool:
        """Whether this call serves arguments of some shardings: those that it was planned for, or those that the plan gives them.

        The results of one call come back as arguments of the next, committed to what was planned.
        """
        planned_for = self.planned.traced.request.shardings
        return all(now is then or now is placed for now, then, placed in zip(shardings, planned_for, self._placed))

    def lower(self, **options: Any) -> Any:
        """The `jax.stages.Lowered`."""
        request = self.planned.traced.request
        with no_collection(), covering():  # what is lowered for itself asks nobody before it runs
            lowered = self.jitted.trace(request.structs, [request.slots[i] for i in self.layout.static]).lower(**options)
        return lowered if self.agreement is None else AgreedStage(lowered, self.agreement)


def compiled_call(planned: Planned, *, abstract: bool = False, in_order: bool = False) -> CompiledCall:
    """Pins a plan and jits it.

    Raises MeshError if the mesh has no devices. Raises NotAvailableError if an input or output is unreduced. Raises OrderedEffectError if
    the function has ordered effects and the mesh several devices.

    Args:
        abstract: Accept a mesh without devices; what is made can be lowered only.
        in_order: Keep the order of arguments and results in the compiled program, although donated arrays may get other results then.
    """
    traced = planned.traced
    request = traced.request
    view, layout, plan = request.view, request.layout, planned.plan
    mesh = view.user_mesh if abstract else view.runnable()
    _refuse_ordered(traced.jaxpr, view, request.location)
    _refuse_unreduced((*plan.inputs, *plan.outputs), request.location)
    _warn_of_refused(plan.donation, request.location)

    devices = mesh if isinstance(mesh, Mesh) else None
    pins, replay = _pinned(planned, devices) if planned.region is None else (None, planned.region.calling(plan, devices))
    named = NamedShardings(mesh)
    agreement = None if abstract or devices is None else agreement_of(plan, traced, devices)
    types, statics = request.key[2], request.key[4]
    in_shardings = tuple(named(v.sharding, len(v.shape), v.memory_kind) for v in plan.inputs)
    out_shardings = [named(None if 0 in v.shape and EMPTY_COMES_WHOLE else v.sharding, len(v.shape), v.memory_kind) for v in plan.outputs]
    order = arrangement(plan.donation, plan.program, plan.outputs)
    jitted = executable(
        request.name,
        layout.labels,
        replay,
        traced.eagerly,
        traced.result.outline,
        Signature(request.in_tree, request.outlines, types, statics, configuration()),
        mesh=mesh,
        explicit=view.explicit,
        in_shardings=in_shardings,
        out_shardings=out_shardings,
        static_slots=layout.static,
        arrangement=Arrangement(order.slots) if in_order else order,
        configuration=configuration,
        gate=None if agreement is None else functools.partial(gated, agreement),
        keywords=dataclasses.asdict(request.settings.jit),
    )
    guard, errors = Guard(bool(layout.donated)), BufferErrors(request.settings.fun)
    run = jitted.run if abstract or devices is None else _run(jitted, devices, agreement, traced.callback_errors)
    placing = Placing(request, mesh, in_shardings)
    tangents = None if view.explicit or devices is None else (Tangents(in_shardings), Tangents(out_shardings))
    is_cacheable, has_static = not traced.closes_over_tracers, has_static_leaves(traced.out_tree)
    return CompiledCall(planned, pins, jitted, run, agreement, placing, tangents, layout, guard, errors, is_cacheable, has_static)


def _run(jitted: Rearranged, mesh: Mesh, agreement: Agreement | None, callback_errors: CallbackErrors | None) -> Callable[..., Any]:
    """What runs a program on a mesh: waiting for the result where the devices would need more threads than there are."""
    if callback_errors is not None and agreement is None:  # of several processes only one would raise, and the others go on with zeros
        return lambda leaves, statics: jitted.run(leaves, statics) if is_tracing() else callback_errors.run(jitted.run, leaves, statics)
    if must_wait(mesh.local_devices):
        return lambda leaves, statics: jax.block_until_ready(jitted.run(leaves, statics))
    return jitted.run


def _pinned(planned: Planned, mesh: Mesh | None) -> tuple[Pinned, Callable[..., Sequence[Any]]]:
    """The traced jaxpr with the constraints that pin the plan, and a function that runs it."""
    plan, request, view = planned.plan, planned.traced.request, planned.traced.request.view
    sides = _closed(plan.inputs), _closed(plan.outputs)
    closed = ClosedJaxpr(planned.imported.scope.jaxpr, planned.traced.jaxpr.consts)

    def import_copy(copy: ClosedJaxpr) -> Imported:
        return import_and_propagate(copy, view, request.settings.options, *sides, plan.timings)

    with plan.timings.step("pin"), no_collection():
        platform = request.settings.options.platform_of(view.user_mesh)
        partition = DerivedRegions(view, request.settings.options, None, lambda: None)
        if jit_program_of(plan).follows_plan:
            grows = bool(plan.log) and only_grows(plan.log)
            program = pinned(closed, planned.imported, view.auto_mesh, import_copy, platform, partition, grows)
        else:
            program = left_to_xla(closed, planned.imported, view.auto_mesh, platform, partition)
    whole = hoisted(closed)
    needed = used_part(whole, (True,) * len(whole.out_avals))
    return program, calling(planned.traced, plan, closed.consts, needed, lambda: with_inputs(program.jaxpr, needed[1]), mesh)


def _closed(values: Sequence[PlannedValue]) -> list[TensorSharding]:
    """The `in_shardings` and `out_shardings` of the jitted function: the plan, every dimension closed."""
    return [decided(value.sharding, len(value.shape)) for value in values]


def _warn_of_refused(donated: Sequence[Donated], location: str) -> None:
    """As JAX warns, but with names and reasons, and of arrays of `NOTABLE` bytes and more only."""
    refused = [str(leaf) for leaf in donated if leaf.kind not in ("aliased", "unused", "off") and leaf.bytes_per_device >= NOTABLE]
    if refused:
        listed = "\n".join(f"  {line}" for line in refused)
        warnings.warn(f"donated buffers of {location} that no output can take:\n{listed}", DonationWarning, stacklevel=2)


def _refuse_ordered(jaxpr: ClosedJaxpr, view: MeshView, location: str) -> None:
    if math.prod(view.auto_mesh.axis_sizes) == 1:
        return
    for eqn in ordered_effects(jaxpr.jaxpr):
        raise OrderedEffectError(
            f"{eqn.primitive.name} is ordered and the mesh has {math.prod(view.auto_mesh.axis_sizes)} devices",
            where=f"{summarize(eqn.source_info)}, in {location}",
            why="JAX keeps the order of effects on a single device only",
            fix="pass ordered=False, or run it outside the sharded function",
        )


def _refuse_unreduced(values: Sequence[PlannedValue], location: str) -> None:
    for value in values:
        if value.sharding is not None and value.sharding.unreduced:
            axes = ", ".join(axis.name for axis in value.sharding.unreduced)
            raise NotAvailableError(
                f"{value.path} is unreduced over {axes}, which can be planned but not run",
                where=f"{value.kind} {value.path} of {location}",
                why="jax.jit takes unreduced arrays on Explicit axes only, and a plan runs on Auto axes",
                fix="reduce it before, or drop unreduced= from its spec",
            )
