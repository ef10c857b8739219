"""A plan with something changed: values cut otherwise, bodies of scans checkpointed, arguments donated; as code to paste; compiled."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from jax.extend.core import ClosedJaxpr

from shardy_py.api.compiling import compiled
from shardy_py.api.constraining import constrained
from shardy_py.api.meshes import MESH_NAME, MeshView
from shardy_py.api.partitioning import Planned, RegionBuilder, decided
from shardy_py.api.pasting import Writer
from shardy_py.api.tracing import TracedCall
from shardy_py.backends.recomputed import recomputed
from shardy_py.cost.hardware import Hardware
from shardy_py.dialect import TensorSharding
from shardy_py.dialect.format import short_location
from shardy_py.errors import ShardyError
from shardy_py.facade import Plan
from shardy_py.frontends.jaxpr import Imported, lowered
from shardy_py.ir import Value
from shardy_py.ir.types import local_bytes
from shardy_py.plan.checks.specs import extended, spec_text
from shardy_py.plan.checks.wording import NOTABLE
from shardy_py.plan.code import Code, Style
from shardy_py.plan.compiled import CompiledProgram
from shardy_py.plan.donation import undonated
from shardy_py.plan.feeding import Feeding
from shardy_py.plan.record import PlanRecord, Variant
from shardy_py.planner.propagated import Variable

SHARE = 0.01
"""An argument that is a smaller part of the peak is not cut further, nor is one donated that is a smaller part of what can be."""


@dataclass(frozen=True, eq=False)
class TracedVariants:
    """Plans variants of a traced call."""

    traced: TracedCall
    plan_of: Callable[[TracedCall], PlanRecord]
    imported: Imported

    def variants(self, plan: PlanRecord, peak: int) -> Iterator[Variant]:
        """See `plan.record.Variants`."""
        yield from self._checkpointed()
        yield from self._donating(plan)
        yield from self._cut(plan, peak)

    def with_shardings(self, plan: PlanRecord, shardings: Mapping[str, TensorSharding]) -> PlanRecord | None:
        """See `plan.record.Variants`."""
        request = self.traced.request
        inputs, outputs, pins = list(request.shardings), list(self.traced.out_specs), dict[int, TensorSharding]()
        for path, sharding in shardings.items():
            value, planned = plan.by_path[path]
            if isinstance(value, int):
                outputs[value] = sharding
            elif planned.kind == "input":
                inputs[value.index] = sharding
            else:  # of an op that is several in the program, the next with a name in the user's code that has its line and type
                line, values = (planned.location, planned.type), dict(plan.intermediates)
                later = itertools.islice(values.items(), list(values).index(value), None)
                named = (v for v, each in later if v in self._sites and (v is value or (each.location, each.type) == line))
                if (holder := next(named, None)) is None:
                    return None
                pins[self._sites[holder]] = sharding
        jaxpr = constrained(lowered(self.traced.jaxpr), pins, request.view.auto_mesh).closed if pins else self.traced.jaxpr
        request = dataclasses.replace(request, shardings=tuple(inputs))
        try:
            return self.plan_of(dataclasses.replace(self.traced, request=request, jaxpr=jaxpr, out_specs=tuple(outputs)))
        except ShardyError:  # something else that the user says contradicts it
            return None

    def code(self, plan: PlanRecord, style: Style) -> Code:
        """See `plan.record.Variants`."""
        seeds = PropagatedSeeds(self, plan)
        return Writer(seeds, seeds.closed, plan, self.traced.request).code(style)

    def compiled(self, plan: PlanRecord, topology: str | None, hardware: str | Hardware | int | None) -> CompiledProgram:
        """See `plan.record.Variants`."""
        return compiled(functools.partial(self._planned, plan), self.traced.request.view, topology, hardware)

    def _planned(self, plan: PlanRecord, view: MeshView, platform: str) -> Planned:
        """The plan if it is for a mesh and a platform, else it is made again for these."""
        request, variants = self.traced.request, self
        if plan.platform != platform or view is not request.view:
            options = dataclasses.replace(request.settings.options, platform=platform)
            request = dataclasses.replace(request, view=view, settings=dataclasses.replace(request.settings, options=options))
            plan = self.plan_of(dataclasses.replace(self.traced, request=request))
            assert isinstance(plan.variants, TracedVariants)
            variants = plan.variants
        assert isinstance(plan, Plan)
        region = plan.partitioner if isinstance(plan.partitioner, RegionBuilder) else None
        return Planned(plan, variants.imported, variants.traced, region)

    @functools.cached_property
    def _sites(self) -> dict[Value, int]:
        """The values that have a name in the user's code -> the number of the place where each may be constrained."""
        copy = constrained(lowered(self.traced.jaxpr), {}, self.traced.request.view.auto_mesh)
        variables = enumerate(copy.variables(self.imported.scope))
        return {v.value: n for n, v in variables if v is not None and v.value is v.holder and v.operand is None and not v.is_unnamed}

    def _checkpointed(self) -> Iterator[Variant]:
        variant = recomputed(self.traced.jaxpr)
        if variant is not None:
            first, *others = variant.places
            more = "".join(f" and that at {short_location(place)}" for place in others)
            plan = self.plan_of(dataclasses.replace(self.traced, jaxpr=variant.jaxpr))
            yield Variant(f"jax.checkpoint around its body{more}", plan, first, of_residuals=True)

    def _donating(self, plan: PlanRecord) -> Iterator[Variant]:
        request = self.traced.request
        layout, slot_of = request.layout, request.leaf_slots
        saved = dict.fromkeys(layout.dynamic, 0)
        for leaf, _ in undonated(plan.program, plan.inputs, plan.outputs, plan.donation):
            saved[slot_of[leaf.index]] += leaf.bytes
        slots = [slot for slot, size in saved.items() if size > SHARE * sum(saved.values())]
        if slots:
            names = ", ".join(layout.labels[slot] for slot in slots)
            numbers = tuple(slots) if len(slots) > 1 else slots[0]
            yield Variant(f"donating {names} (donate_argnums={numbers})", self._donated((*layout.donated, *slots)))

    def _donated(self, slots: Sequence[int]) -> PlanRecord:
        """The plan with these arguments donated."""
        request = self.traced.request
        layout = dataclasses.replace(request.layout, donated=tuple(sorted(slots)))
        return self.plan_of(dataclasses.replace(self.traced, request=dataclasses.replace(request, layout=layout)))

    def _cut(self, plan: PlanRecord, peak: int) -> Iterator[Variant]:
        shardings, changes = dict[str, TensorSharding](), list[tuple[int, str]]()
        for value in plan.inputs:
            size = local_bytes(value.type, value.sharding, plan.program.meshes)
            meant = value.given is not None and value.given.is_fully_replicated and all(dim.is_closed for dim in value.given.dims)
            more = None if meant or size < max(NOTABLE, SHARE * peak) else extended(value.shape, value.sharding, plan.mesh, MESH_NAME)
            if more is not None and (text := spec_text(more)) is not None:
                shardings[value.path] = more
                changes.append((size, f"{value.path} by {text}"))
        variant = self.with_shardings(plan, shardings) if changes else None
        if variant is not None:
            texts = [text for _, text in sorted(changes, key=lambda change: -change[0])]
            more = f" and {len(texts) - 2} more arrays" if len(texts) > 2 else ""
            yield Variant(f"cutting {', '.join(texts[:2])}{more}", variant)


class PropagatedSeeds:
    """Plans propagated from a part of the shardings of a plan."""

    def __init__(self, variants: TracedVariants, plan: PlanRecord, feeding: Feeding | None = None) -> None:
        self.variants = variants
        self.feeding = feeding
        self.inputs, self.outputs = (
            tuple(decided(value.sharding, len(value.shape)) for value in values) for values in (plan.inputs, plan.outputs)
        )

    @functools.cached_property
    def closed(self) -> ClosedJaxpr:
        """The jaxpr that was planned."""
        return lowered(self.variants.traced.jaxpr)

    def variables(self) -> Sequence[Variable | None]:
        """The variables that may be constrained, in the plan's own program."""
        return constrained(self.closed, {}, self.variants.traced.request.view.auto_mesh).variables(self.variants.imported.scope)

    def plan(self, pins: Mapping[int, TensorSharding], *, results: bool = True) -> tuple[PlanRecord, Sequence[Variable | None]]:
        """See `planner.propagated.Seeds`."""
        traced = self.variants.traced
        copy = constrained(self.closed, pins, traced.request.view.auto_mesh)
        seeded = seeded_call(traced, "jit", self.inputs, self.outputs if results else traced.out_specs)
        plan = self.variants.plan_of(dataclasses.replace(seeded, jaxpr=copy.closed))
        assert isinstance(plan.variants, TracedVariants)
        return dataclasses.replace(plan, stated_feeding=self.feeding, partitioner=None), copy.variables(plan.variants.imported.scope)


def seeded_call(traced: TracedCall, lowering: str, inputs: Sequence[TensorSharding], out_specs: Sequence[object]) -> TracedCall:
    """A call as if these shardings were the user's, and there were no planner."""
    request = traced.request
    settings = dataclasses.replace(request.settings, planner=None, lowering=lowering)
    request = dataclasses.replace(request, settings=settings, shardings=tuple(inputs))
    return dataclasses.replace(traced, request=request, out_specs=tuple(out_specs))
