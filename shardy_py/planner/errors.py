"""The errors for a memory budget that no plan fits: the least peak of a plan, its largest arrays, and remedies."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

from shardy_py.errors import UserError
from shardy_py.ir import Program, Type, Value
from shardy_py.plan.collectives import format_bytes
from shardy_py.plan.memory.analysis import analyse as memory_of
from shardy_py.plan.record import PlanRecord
from shardy_py.planner.memory import bytes_of
from shardy_py.planner.options import Planner
from shardy_py.planner.space import Annotations, Space


class PlannerInfeasible(UserError):
    """No plan can fit the memory budget: arguments and results alone take more, however they are sharded.

    Attributes:
        minimum_bytes: The least peak of the plans that were tried.
        budget_bytes: The budget.
        bound_bytes: No plan has a lower peak.
        contributors: The largest arrays at the least peak: name and bytes.

    Example:
        >>> import jax, jax.numpy as jnp, shardy_py as sp
        >>> double = sp.auto_shard(lambda x: x * 2, mesh={"x": 4}, planner=sp.Planner(hardware="v5e", memory_bytes=1 << 10))
        >>> try:
        ...     double.plan(jax.ShapeDtypeStruct((1024, 1024), jnp.float32))
        ... except sp.PlannerInfeasible as error:
        ...     print(error.bound_bytes >> 20, "MiB")
        2 MiB
    """

    minimum_bytes: int
    budget_bytes: int
    bound_bytes: int
    contributors: tuple[tuple[str, int], ...]

    def __init__(
        self,
        what: str,
        *,
        minimum_bytes: int = 0,
        budget_bytes: int = 0,
        bound_bytes: int = 0,
        contributors: Sequence[tuple[str, int]] = (),
        **parts: str,
    ) -> None:
        super().__init__(what, **parts)
        self.minimum_bytes = minimum_bytes
        self.budget_bytes = budget_bytes
        self.bound_bytes = bound_bytes
        self.contributors = tuple(contributors)


class PlannerBudgetError(PlannerInfeasible):
    """No plan was found that fits the memory budget, and yet there may be one.

    Example:
        >>> import jax, jax.numpy as jnp, shardy_py as sp
        >>> total = sp.auto_shard(lambda x: jnp.sum(x @ x), mesh={"x": 4}, planner=sp.Planner(hardware="h100", memory_bytes=3 << 19))
        >>> try:
        ...     total.plan(jax.ShapeDtypeStruct((1024, 1024), jnp.float32))
        ... except sp.PlannerBudgetError as error:
        ...     print(error.bound_bytes <= error.budget_bytes < error.minimum_bytes)
        True
    """


LISTED = 5
"""Arrays that the error names."""


def infeasible(plan: PlanRecord, name: str, planner: Planner, bound: int, *remedies: str) -> PlannerInfeasible:
    """The error for a budget that nothing fits: `PlannerBudgetError` where the bound does not prove it."""
    memory, budget = memory_of(plan, planner.hardware), planner.budget or 0
    least, peak, relief = memory.peak_memory_in_bytes, memory.peak, memory.relief
    largest = memory.contributors[:LISTED]
    place = f" at {peak.location}" if peak is not None and peak.location else ""
    listed = ", ".join(f"{c.title} {format_bytes(c.bytes)}" + (f" ({c.location})" if c.location else "") for c in largest)
    fixes = list(remedies)
    if relief is not None and relief.donation_bytes:
        fixes.append(f"donate what results could replace, {format_bytes(relief.donation_bytes)} (donate_argnums)")
    if relief is not None and relief.residual_bytes:
        left = f"which leaves {format_bytes(least - relief.residual_bytes)} of the smallest plan's peak"
        fixes.append(f"recompute residuals of scans (jax.checkpoint), {left}")
    if bound <= budget and memory.temp_size_in_bytes > budget - bound:
        half = format_bytes(least - memory.temp_size_in_bytes // 2)
        fixes.append(f"split the batch into microbatches of half the size, which leaves {half} if all temporaries shrink with it")
    # Arguments and results are cut over all devices in the bound; temporaries shrink at most as much.
    count = -(-(bound if bound > budget else least) * plan.mesh.size // max(budget, 1))
    fixes.append(f"use at least {count} devices instead of {plan.mesh.size}")
    smallest = f"the smallest plan found takes {format_bytes(least)}{f' ({name})' if name else ''}{place}"
    kind, what = PlannerBudgetError, f"no plan was found that fits {format_bytes(budget)} a device: {smallest}"
    if bound > budget:
        proof = f"arguments and results alone take {format_bytes(bound)}, however they are sharded"
        kind, what = PlannerInfeasible, f"no plan fits {format_bytes(budget)} a device: {proof}; {smallest}"
    return kind(
        what,
        minimum_bytes=least,
        budget_bytes=budget,
        bound_bytes=bound,
        contributors=[(c.name, c.bytes) for c in largest],
        where=f"Planner(memory_bytes=...), {plan.name} on {plan.mesh}",
        why=f"the largest arrays there are {listed}",
        fix=", or ".join(fixes),
    )


def least_bytes(program: Program, space: Space, annotations: Annotations, arguments: Collection[int], results: Collection[int]) -> int:
    """A lower bound on the peak of every plan: arguments, and results that take no argument's memory, in as many pieces as devices.

    What the user shards is as the user says.
    """
    main, pins = program.main, (*annotations.inputs, *annotations.outputs)
    ends: list[tuple[Value | int, Type, bool]] = [(a, a.type, n in arguments) for n, a in enumerate(main.arguments)]
    ends += [(n, type_, n in results) for n, type_ in enumerate(main.result_types)]
    total = 0
    for (value, type_, is_free), pin in zip(ends, pins, strict=True):
        classes = space.classes[value]
        is_pinned = pin is not None and all(len(space.strategies[c]) == 1 for c in classes)
        pieces = 1 if is_pinned else math.prod(axis.size for axis in space.mesh.axes)
        layout = tuple(space.strategies[c][0] if is_pinned else () for c in classes)
        total += 0 if is_free else bytes_of(type_, layout, space.mesh) // pieces
    return total
