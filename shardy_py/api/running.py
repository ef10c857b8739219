"""Entry: one signature of an `AutoSharded` function, planned, pinned and jitted."""

from __future__ import annotations

import functools
import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
from jax.core import Tracer
from jax.extend.core import ClosedJaxpr, jaxpr_as_fun
from jax.extend.source_info_util import summarize
from jax.sharding import AbstractMesh, Mesh, NamedSharding

from shardy_py.api.dispatch import Dispatch, cut_for_processes, cut_host_array, direct, dispatched
from shardy_py.api.errors import DeletedBufferError, DonationError, DonationWarning, NotAvailableError, OrderedEffectError
from shardy_py.api.meshes import MeshView
from shardy_py.api.partitioning import Partitioning
from shardy_py.api.planning import Planned
from shardy_py.api.propagating import decided, propagated
from shardy_py.api.signature import Layout, configuration
from shardy_py.api.trees import argument_paths, location_of
from shardy_py.backends.donation import Guard
from shardy_py.backends.executable import Signature, executable
from shardy_py.backends.jit import Pinned, left_to_xla, ordered_effects, pinned
from shardy_py.backends.named_shardings import NamedShardings
from shardy_py.dialect import TensorSharding
from shardy_py.frontends.context import is_tracing
from shardy_py.frontends.jaxpr import Imported
from shardy_py.passes.collection import no_collection
from shardy_py.plan.donation import Donated, arrangement
from shardy_py.plan.plan import Plan
from shardy_py.plan.values import PlannedValue


@dataclass(frozen=True)
class BufferErrors:
    """The errors of the donation guard, with paths and the user's function."""

    layout: Layout
    fun: Callable[..., Any]

    def paths(self, slots: Sequence[Any]) -> list[str]:
        """One path per leaf of the slots."""
        return argument_paths(self.layout.labels, slots, {})

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


def guard_of(layout: Layout, fun: Callable[..., Any]) -> tuple[Guard, BufferErrors]:
    """The guard of a layout's calls."""
    return Guard(layout.donated), BufferErrors(layout, fun)


@dataclass(frozen=True, eq=False)
class Entry:
    """A planned and jitted signature.

    Attributes:
        plan: The plan.
        jitted: Takes slots.
        dispatch: How calls run it; see `dispatch.Dispatch`.
        placements: Where the leaves of the dynamic slots belong.
        in_shardings: The same; None where `jax.jit` is to place them (Explicit axes).
        layout: The slots.
        guard: Looks at buffers before dispatch.
        may_be_kept: Whether later calls may use it; not where the function closes over values of an outer trace.
        closed_over: Whether the function is a closure made for one call.
    """

    planned: Planned
    _pinned: Pinned | None
    jitted: Any
    dispatch: Dispatch
    placements: tuple[NamedSharding, ...]
    in_shardings: tuple[NamedSharding, ...] | None
    layout: Layout
    guard: Guard
    errors: BufferErrors
    may_be_kept: bool
    closed_over: bool = False

    @property
    def plan(self) -> Plan:
        """The plan."""
        return self.planned.plan

    @property
    def pinned(self) -> Pinned:
        """What runs."""
        if self._pinned is not None:
            return self._pinned
        assert self.planned.partitioning is not None
        return Pinned(self.planned.partitioning.made(self.plan).jaxpr, 0, True)

    def __call__(self, slots: Sequence[Any]) -> Any:
        """Runs, with uncommitted arrays that are donated put where the plan wants them.

        `jax.jit` would place them too, but donate nothing, and compile once more when the next call brings the results of this one.
        """
        dispatch = self.dispatch
        if dispatch.agreement is not None:
            dispatch.agreement.settle()
        slots = self._cut(slots) if dispatch.several_processes and not is_tracing() else slots
        if self.in_shardings is None or not self.layout.donated:
            self._look_once(slots)
            return dispatch.run(*slots)
        placed = list(slots)
        wanted = iter(self.in_shardings)
        for i in self.layout.dynamic:
            leaves, tree = jax.tree.flatten(slots[i])
            shardings = [next(wanted) for _ in leaves]
            if i in self.layout.donated:
                placed[i] = jax.tree.unflatten(tree, [_put(leaf, sharding) for leaf, sharding in zip(leaves, shardings)])
        self._look_once(placed)
        return dispatch.run(*placed)

    def _look_once(self, slots: Sequence[Any]) -> None:
        if not self.guard.apart:
            self.guard.look_at_memory(slots, functools.partial(self.errors.paths, slots), self.errors)

    def _cut(self, slots: Sequence[Any]) -> list[Any]:
        request = self.planned.traced.request
        leaves, tree = jax.tree.flatten(tuple(slots[i] for i in self.layout.dynamic))
        asked = [sharding is not None for sharding in request.shardings]
        cut = [
            cut_host_array(leaf, sharding, given, described, request.location)
            for leaf, sharding, given, described in zip(leaves, self.placements, asked, request.leaves)
        ]
        made = list(slots)
        for i, slot in zip(self.layout.dynamic, jax.tree.unflatten(tree, cut)):
            made[i] = slot
        return made

    @functools.cached_property
    def _placed(self) -> list[TensorSharding]:
        return _closed(self.plan.inputs)

    def serves(self, shardings: Sequence[TensorSharding | None]) -> bool:
        """Whether arguments that are known to be sharded so need no plan of their own: as planned for, or as planned.

        The results of one call come back as arguments of the next, committed to what was planned.
        """
        planned_for = self.planned.traced.request.shardings
        return all(now is then or now is placed for now, then, placed in zip(shardings, planned_for, self._placed))

    def check(self, slots: Sequence[Any]) -> None:
        """Raises where a buffer may not be passed."""
        self.guard.explain(slots, functools.partial(self.errors.paths, slots), self.errors)
        self._look_once(slots)

    def lower(self, platforms: tuple[str, ...] | None = None) -> Any:
        """The `jax.stages.Lowered`, for other platforms than this machine's where they are named."""
        slots = self.planned.traced.request.slots
        with no_collection():
            return self.jitted.lower(*slots) if platforms is None else self.jitted.trace(*slots).lower(lowering_platforms=platforms)


def _put(leaf: Any, sharding: NamedSharding) -> Any:
    if not isinstance(leaf, jax.Array) or isinstance(leaf, Tracer) or leaf.committed:
        return leaf
    if not sharding.is_fully_addressable:
        return cut_for_processes(leaf, sharding)
    return jax.device_put(leaf, sharding)


def make_entry(planned: Planned, *, abstract: bool = False) -> Entry:
    """Pins a plan and jits it.

    Args:
        planned: The plan.
        abstract: Accept a mesh without devices; what is made can be lowered only.

    Raises:
        MeshError: The mesh has no devices.
        NotAvailableError: An input or output is unreduced.
        OrderedEffectError: The function has ordered effects and the mesh several devices.
    """
    traced = planned.traced
    request = traced.request
    view, layout, plan = request.view, request.layout, planned.plan
    mesh = view.given if abstract else view.runnable()
    _refuse_ordered(traced.jaxpr, view, request.location)
    _refuse_unreduced((*plan.inputs, *plan.outputs), request.location)
    _warn_of_refused(plan.donation, request.location)

    pins, replay = _pinned(planned) if planned.partitioning is None else (None, _partitioned(planned, planned.partitioning, mesh))
    named = NamedShardings(mesh)
    tree = jax.tree.structure(tuple(request.slots[i] for i in layout.dynamic))
    types, statics = request.key[2], request.key[4]
    in_shardings = tuple(named(v.sharding, len(v.shape)) for v in plan.inputs)
    jitted = executable(
        request.name,
        layout.labels,
        replay,
        traced.out_tree,
        Signature(tree, types, statics, configuration()),
        mesh=mesh,
        explicit=view.explicit,
        in_shardings=in_shardings,
        out_shardings=[named(v.sharding, len(v.shape)) for v in plan.outputs],
        static_slots=layout.static,
        arrangement=arrangement(plan.donation, plan.program, plan.outputs),
        configuration=configuration,
    )
    guard, errors = guard_of(layout, request.settings.fun)
    placed = None if view.explicit else in_shardings
    dispatch = direct(jitted) if abstract else dispatched(jitted, planned, mesh)
    return Entry(planned, pins, jitted, dispatch, in_shardings, placed, layout, guard, errors, not traced.closes_over_tracers)


def _pinned(planned: Planned) -> tuple[Pinned, Callable[..., Sequence[Any]]]:
    """The traced jaxpr with constraints that pin the plan, as far as it is run, and a function that runs it."""
    plan, request = planned.plan, planned.traced.request
    closed = _closed(plan.inputs), _closed(plan.outputs)

    def again(copy: ClosedJaxpr) -> Imported:
        return propagated(copy, request.view, request.settings.options, *closed, plan.timings)

    with plan.timings.step("pin"):
        platform = request.settings.options.platform_of(request.view.given)
        if not plan._as_run.planned:
            made = left_to_xla(planned.traced.jaxpr, planned.imported, request.view.twin, platform)
            return made, jaxpr_as_fun(made.jaxpr)
        made = pinned(planned.traced.jaxpr, planned.imported, request.view.twin, again, platform)
    return made, jaxpr_as_fun(made.jaxpr)


def _partitioned(planned: Planned, partitioning: Partitioning, mesh: Mesh | AbstractMesh) -> Callable[..., Sequence[Any]]:
    """A function that calls the region of a plan."""
    return partitioning.calling(planned.plan, mesh if isinstance(mesh, Mesh) else None)


def _closed(values: Sequence[PlannedValue]) -> list[TensorSharding]:
    """What `in_shardings` and `out_shardings` of the jitted function say: the plan, every dimension closed."""
    return [decided(value.sharding, len(value.shape)) for value in values]


def _warn_of_refused(donated: Sequence[Donated], location: str) -> None:
    """As JAX warns, but with names and reasons."""
    refused = [str(leaf) for leaf in donated if leaf.kind not in ("aliased", "unused", "off")]
    if refused:
        listed = "\n".join(f"  {line}" for line in refused)
        warnings.warn(f"donated buffers of {location} that no output can take:\n{listed}", DonationWarning, stacklevel=2)


def _refuse_ordered(jaxpr: ClosedJaxpr, view: MeshView, location: str) -> None:
    if math.prod(view.twin.axis_sizes) == 1:
        return
    for eqn in ordered_effects(jaxpr.jaxpr):
        raise OrderedEffectError(
            f"{eqn.primitive.name} is ordered and the mesh has {math.prod(view.twin.axis_sizes)} devices",
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
