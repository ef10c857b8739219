"""CompiledCall: one signature of an `AutoSharded` function, planned, pinned and jitted."""

from __future__ import annotations

import functools
import itertools
import logging
import math
import pathlib
import sys
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import jax
import numpy as np
from jax import lax
from jax import numpy as jnp
from jax.core import Tracer
from jax.extend.core import ClosedJaxpr
from jax.extend.source_info_util import summarize
from jax.sharding import Mesh, NamedSharding

from shardy_py.api.agreement import Agreement, agreement_of, covering
from shardy_py.api.errors import DonationWarning, NotAvailableError, OrderedEffectError
from shardy_py.api.executable import Executable, Stage
from shardy_py.api.meshes import MeshView
from shardy_py.api.partitioning import DerivedRegions, Planned, calling, decided
from shardy_py.api.placing import Placing
from shardy_py.api.static_leaves import has_static_leaves, user_tree
from shardy_py.backends.callback_errors import CallbackErrors
from shardy_py.backends.donation import Guard
from shardy_py.backends.host_threads import must_wait
from shardy_py.backends.jit import constrained, ordered_effects
from shardy_py.backends.named_shardings import NamedShardings
from shardy_py.dialect import TensorSharding
from shardy_py.dialect.grouping import grouped
from shardy_py.errors import PlanWarning
from shardy_py.facade import Plan
from shardy_py.frontends.context import is_staged, is_tracing
from shardy_py.frontends.transforms import hoisted, used_part, with_inputs
from shardy_py.passes.collection import no_collection
from shardy_py.plan.checks.table import has_grave
from shardy_py.plan.checks.wording import NOTABLE
from shardy_py.plan.collectives import format_bytes
from shardy_py.plan.donation import Donated, arrangement
from shardy_py.plan.findings import Finding
from shardy_py.plan.paths import paths_as_one
from shardy_py.plan.values import PlannedValue

LOGGER = logging.getLogger("shardy_py")

MAX_KINDS = 3
"""Kinds of findings in a warning; it takes two lines more."""

_WARNED_ELSEWHERE = frozenset({"refused-donation"})
"""Kinds that have a warning of their own."""

_PACKAGE = str(pathlib.Path(__file__).parent.parent)


def report(planned: Planned) -> None:
    """Logs a plan before its first run, and warns of its findings or raises PlanError, as `Options.check` says."""
    plan, request = planned.plan, planned.traced.request
    check = request.settings.options.check
    name, mesh, seconds = request.location or request.name, request.view.describe(), plan.timings.total
    LOGGER.info("planned %s for %s in %.2f s: %d inputs, %d outputs", name, mesh, seconds, len(plan.inputs), len(plan.outputs))
    if check == "raise":
        plan.check(strict=True)
    elif check == "warn" and has_grave(plan):  # else no plans are made to try fixes
        grave = [f for f in plan.findings if f.severity != "info" and f.kind not in _WARNED_ELSEWHERE]
        grave = [f for f in grave if not f.bytes or f.bytes >= NOTABLE]
        if grave and jax.process_index() == 0:
            warnings.warn(warning_text(grave, name), PlanWarning, stacklevel=_callers_level())


def warning_text(findings: Sequence[Finding], location: str) -> str:
    """Findings in a few lines, one for each kind: mistakes, which are about no bytes, first.

    Example:
        >>> print(warning_text([Finding("unused-rule", "rule 0, 'a', matches nothing"), Finding("no-rule", "no rule for f")], "f.py:3"))
        the plan of f.py:3 has 2 findings:
          unused-rule: rule 0, 'a', matches nothing
          no-rule: no rule for f
        plan.check() lists them with fixes; sp.Options(check="off") turns this warning off
    """
    kinds = grouped(sorted(findings, key=lambda f: f.bytes > 0), lambda f: f.kind)
    lines = [f"  {kind}: {_line(group)}" for kind, group in itertools.islice(kinds.items(), MAX_KINDS)]
    more = len(kinds) - MAX_KINDS
    others = f"{more} more kinds; " if more > 1 else "1 more kind; " if more == 1 else ""
    count = f"{len(findings)} finding{'s' if len(findings) > 1 else ''}"
    tail = f'{others}plan.check() lists them with fixes; sp.Options(check="off") turns this warning off'
    return "\n".join([f"the plan of {location} has {count}:", *lines, tail])


def _line(group: Sequence[Finding]) -> str:
    if not group[0].bytes:
        return "; ".join(f.message for f in group[:4]) + (f"; {len(group) - 4} more" if len(group) > 4 else "")
    first, *others = group
    path = f"{paths_as_one(first.all_paths)}: " if first.path and not first.path.startswith("%") else ""
    place = f" [{first.location}]" if first.location else ""
    total = format_bytes(sum(len(f.all_paths) * f.bytes for f in group))
    more = f"; {sum(len(f.all_paths) for f in others)} more, {total} in all" if others else ""
    return f"{path}{first.message}{place}{more}"


def _callers_level() -> int:
    """The level of the first call outside of this package and of JAX, for `warnings.warn` in the caller of this function."""
    frame, level = sys._getframe(1), 1
    folders = (_PACKAGE, str(pathlib.Path(jax.__file__).parent))
    while frame.f_back is not None and frame.f_code.co_filename.startswith(folders):
        frame, level = frame.f_back, level + 1
    return level


def tangents_placed(shardings: Sequence[NamedSharding]) -> Callable[[Sequence[Any]], Sequence[Any]]:
    """A function of the arguments, or the results, of one signature: the same with derivatives by them that lie as planned."""

    @functools.cache
    def identity(moved: tuple[int, ...]) -> Callable[..., tuple[Any, ...]]:
        return _identity([shardings[i] for i in moved])

    def placed(leaves: Sequence[Any]) -> Sequence[Any]:
        moved = tuple(i for i, leaf in enumerate(leaves) if _is_differentiated(leaf))
        if not moved:
            return leaves
        out = list(leaves)
        for i, leaf in zip(moved, identity(moved)(*[leaves[i] for i in moved]), strict=True):
            out[i] = leaf
        return out

    return placed


def _is_differentiated(leaf: Any) -> bool:
    return isinstance(leaf, Tracer) and jnp.issubdtype(leaf.dtype, np.inexact) and leaf.size > 0


def _identity(shardings: Sequence[NamedSharding]) -> Callable[..., tuple[Any, ...]]:
    """Values as they are, without a copy; their tangents, and on the way back cotangents, wherever these come from, in some shardings."""

    def constrained(*tangents: Any) -> tuple[Any, ...]:
        return tuple(map(lax.with_sharding_constraint, tangents, shardings))

    place = jax.jit(constrained)

    @jax.custom_jvp
    def identity(*values: Any) -> tuple[Any, ...]:
        return values

    @identity.defjvp
    def derivative(values: tuple[Any, ...], tangents: tuple[Any, ...]) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        return identity(*values), place(*tangents)  # values may have tangents of their own, of another derivative

    return identity


EMPTY_COMES_WHOLE = jax.__version_info__ < (0, 12)
"""Whether XLA does not cut results without elements, which JAX would then take for parts, and fail to put together."""


class CompiledCall:
    """A planned and jitted signature.

    Attributes:
        is_cacheable: Whether later calls may use it; not where the function closes over values of an outer trace.
        is_reported: Whether the findings of the plan were reported.

    Args:
        abstract: Accept a mesh without devices; what is made can be lowered only.
        in_order: Keep the order of arguments and results in the compiled program, although donated arrays may get other results then.

    Raises MeshError if the mesh has no devices. Raises NotAvailableError if an input or output is unreduced. Raises OrderedEffectError if
    the function has ordered effects and the mesh several devices.
    """

    def __init__(self, planned: Planned, *, abstract: bool = False, in_order: bool = False) -> None:
        self.planned = planned
        traced, plan = planned.traced, planned.plan
        request = traced.request
        view = request.view
        self.layout = request.layout
        mesh = view.abstract if abstract else view.runnable()
        if traced.jaxpr.effects:
            _refuse_ordered(traced.jaxpr, view, request.location)
        _refuse_unreduced((*plan.inputs, *plan.outputs), request.location)
        if plan.donation:
            _warn_of_refused(plan.donation, request.location)
        devices = None if abstract or not isinstance(mesh, Mesh) else mesh
        replay = program_of(planned, mesh if isinstance(mesh, Mesh) else None)
        named = NamedShardings(mesh)
        self.agreement = None if devices is None else agreement_of(plan, traced, devices)
        ins = tuple(named(v.sharding, len(v.shape), v.memory_kind) for v in plan.inputs)
        outs = [named(None if 0 in v.shape and EMPTY_COMES_WHOLE else v.sharding, len(v.shape), v.memory_kind) for v in plan.outputs]
        order = replace(arrangement(plan.donation, plan.program, plan.outputs), is_fixed=in_order)
        self.jitted = Executable(traced, replay, order, mesh, ins, outs, self.agreement)
        self.run = self.jitted.run if devices is None else _run(self.jitted, devices, self.agreement, traced.callback_errors)
        self.placing = Placing(request, mesh, ins)
        self.tangents = None if view.explicit or not isinstance(mesh, Mesh) else (tangents_placed(ins), tangents_placed(outs))
        self.guard = Guard(bool(self.layout.donated), request.location)
        self.is_cacheable, self.has_static = not traced.closes_over_tracers, has_static_leaves(traced.result.outline.tree)
        self.is_reported = False

    @property
    def plan(self) -> Plan:
        """The plan."""
        return self.planned.plan

    def __call__(self, slots: Sequence[Any]) -> Any:
        """Runs a call; raises SignatureChanged if it does not have the signature that was planned for."""
        leaves, statics = self.jitted.flat(slots)
        if self.guard.bad(leaves):
            self.guard.explain(leaves, self._donated, self._paths)
        leaves = self.placing(leaves)
        if not self.guard.apart:
            self.guard.look_at_memory(leaves, self._donated, self._paths)
        if self.agreement is not None and not self.agreement.settled:
            self._settle(self.agreement, slots, leaves, statics)
        if self.tangents is None or not is_tracing() or is_staged():  # what is written down is sharded by what it becomes part of
            result = self.run(leaves, statics)
        else:
            of_arguments, of_results = self.tangents
            results, tree = jax.tree.flatten(self.run(of_arguments(leaves), statics))
            result = tree.unflatten(of_results(results))
        return user_tree(result) if self.has_static else result

    def _settle(self, agreement: Agreement, slots: Sequence[Any], leaves: Sequence[Any], statics: Sequence[Any]) -> None:
        """Waits for the other processes of the mesh; last, so that a failure of this process comes before they go on."""
        if is_staged():
            return  # what is written down passes a gate when it runs
        arguments, _ = self.jitted.flat(slots)
        if is_tracing():
            agreement.settle_within(arguments)
        else:
            agreement.settle(arguments, lambda: self.jitted.trace(leaves, statics).lower().compile())

    @functools.cached_property
    def _donated(self) -> list[bool]:
        """Whether each leaf belongs to a donated argument."""
        return [slot in self.layout.donated for slot in self.planned.traced.request.leaf_slots]

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

    def lower(self, **options: Any) -> Stage:
        """The `jax.stages.Lowered`."""
        request = self.planned.traced.request
        with no_collection(), covering():  # what is lowered for itself asks nobody before it runs
            return self.jitted.trace(request.structs, [request.slots[i] for i in self.layout.static]).lower(**options)


def _run(jitted: Executable, mesh: Mesh, agreement: Agreement | None, callback_errors: CallbackErrors | None) -> Callable[..., Any]:
    """What runs a program on a mesh: waiting for the result where the devices would need more threads than there are."""
    if callback_errors is not None and agreement is None:  # of several processes only one would raise, and the others go on with zeros
        return lambda leaves, statics: jitted.run(leaves, statics) if is_tracing() else callback_errors.run(jitted.run, leaves, statics)
    if must_wait(mesh.local_devices):
        return lambda leaves, statics: jax.block_until_ready(jitted.run(leaves, statics))
    return jitted.run


def program_of(planned: Planned, mesh: Mesh | None) -> Callable[..., Sequence[Any]]:
    """What runs a plan, from leaves to leaves: a region, or the traced jaxpr with constraints."""
    if planned.region is not None:
        return planned.region.calling(planned.plan, mesh)
    plan, request, view = planned.plan, planned.traced.request, planned.traced.request.view
    closed = ClosedJaxpr(planned.imported.scope.jaxpr, planned.traced.jaxpr.consts)

    with plan.timings.step("pin"), no_collection():
        platform = request.settings.options.platform_of(view.user_mesh)
        partition = DerivedRegions(view, request.settings.options, None)
        program = constrained(closed, planned.imported, view.auto_mesh, platform, partition, plan.is_assigned)
    whole = hoisted(closed)
    needed = used_part(whole, (True,) * len(whole.out_avals))
    return calling(planned.traced, plan, closed.consts, needed, lambda: with_inputs(program, needed[1]), mesh)


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
            why="JAX keeps the order of effects only on a single device",
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
                fix="reduce it first, or drop unreduced= from its spec",
            )
