"""Values that XLA shards differently from the plan where it decides conflicts under `lowering="jit"`."""

from __future__ import annotations

from collections.abc import Iterator

from shardy_py.ir import Value
from shardy_py.plan.checks.context import CheckContext
from shardy_py.plan.checks.thresholds import NOTABLE
from shardy_py.plan.findings import Finding
from shardy_py.plan.jit_program import jit_program_of
from shardy_py.plan.values import typed

KIND = "left-to-xla"


def left_to_xla(context: CheckContext) -> Iterator[Finding]:
    """The largest value that XLA will shard differently from the plan, and how many more there are; see `plan/jit_program`.

    There are none where the plan is run: under `lowering="shard_map"`, without conflicts, or where holding XLA to it moves notably less.
    """
    if context.plan.active_partitioner is not None or jit_program_of(context.plan).follows_plan:
        return
    described = context.described
    differing: dict[Value, Value] = {}
    for as_run, planned in jit_program_of(context.plan).lineage.values.items():
        if planned in described and _cuts(as_run) != _cuts(planned):
            differing.setdefault(planned, as_run)
    sizes = {v: max(context.local(v.type, v.sharding), context.local(v.type, w.sharding)) for v, w in differing.items()}
    largest = max(sizes, key=sizes.__getitem__, default=None)
    if largest is None or sizes[largest] < NOTABLE:
        return
    value, as_run = described[largest], differing[largest]
    more = f"; {len(differing) - 1} more values differ" if len(differing) > 1 else ""
    message = (
        f"planned as {typed(value.type, value.sharding)}, and XLA is expected to run it as {typed(value.type, as_run.sharding)}: shardings"
        f" conflict there, and holding XLA to the plan would not move notably less{more}"
    )
    fix = "" if context.plan.partitioner is not None else "lowering='shard_map' runs what is planned"
    yield Finding(KIND, message, value.path, value.location, "info", sizes[largest], fix)


def _cuts(value: Value) -> tuple[object, ...]:
    rank = getattr(value.type, "rank", 0)
    dims = () if value.sharding is None else tuple(dim.axes for dim in value.sharding.dims)
    return (*dims, *[()] * (rank - len(dims)))
