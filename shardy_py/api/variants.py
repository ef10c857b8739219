"""Plans of a function with something changed: bodies of scans checkpointed, more arguments donated, arguments cut further."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from shardy_py.api.meshes import MESH_NAME
from shardy_py.api.tracing import TracedCall
from shardy_py.backends.recomputed import recomputed
from shardy_py.dialect.format import short_location
from shardy_py.ir.pieces import local_bytes
from shardy_py.plan.checks.specs import extended, sharding_text
from shardy_py.plan.checks.thresholds import NOTABLE
from shardy_py.plan.donation import donatable
from shardy_py.plan.record import PlanRecord, Variant

SHARE = 0.01
"""An argument that is a smaller part of the peak is not cut further, nor is one donated that is a smaller part of what can be."""


@dataclass(frozen=True, eq=False)
class TracedVariants:
    """Plans variants of a traced call.

    Attributes:
        traced: The call.
        plan_of: Plans one.
    """

    traced: TracedCall
    plan_of: Callable[[TracedCall], PlanRecord]

    def variants(self, plan: PlanRecord, peak: int) -> Iterator[Variant]:
        """See `plan.record.Variants`.

        Args:
            plan: The plan of the call.
            peak: Its peak in bytes.
        """
        yield from self._checkpointed()
        yield from self._donating(plan)
        yield from self._cut(plan, peak)

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
        for leaf, size in donatable(plan.program, plan.inputs, plan.outputs, plan.donation).items():
            saved[slot_of[leaf]] += size
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
        request = self.traced.request
        shardings, changes = list(request.shardings), list[tuple[int, str]]()
        for i, value in enumerate(plan.inputs):
            size = local_bytes(value.type, value.sharding, plan.program.meshes)
            meant = value.given is not None and value.given.is_fully_replicated and all(dim.is_closed for dim in value.given.dims)
            more = None if meant or size < max(NOTABLE, SHARE * peak) else extended(value.shape, value.sharding, plan.mesh, MESH_NAME)
            if more is not None:
                shardings[i] = more
                changes.append((size, f"{value.path} by {sharding_text(more)}"))
        if changes:
            texts = [text for _, text in sorted(changes, key=lambda change: -change[0])]
            more = f" and {len(texts) - 2} more arrays" if len(texts) > 2 else ""
            variant = self.plan_of(dataclasses.replace(self.traced, request=dataclasses.replace(request, shardings=tuple(shardings))))
            yield Variant(f"cutting {', '.join(texts[:2])}{more}", variant)
