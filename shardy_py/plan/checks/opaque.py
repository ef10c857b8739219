"""Ops that nothing propagates through: every device gets their operands whole."""

from __future__ import annotations

from collections.abc import Iterator

from shardy_py.ir import Op
from shardy_py.plan.checks.context import CheckContext, is_replicated
from shardy_py.plan.checks.thresholds import graded
from shardy_py.plan.findings import Finding
from shardy_py.plan.movements import format_bytes

KIND = "opaque"

OPAQUE = frozenset(("stablehlo.custom_call", "stablehlo.composite"))
"""Ops with contents that propagation does not see."""


def opaque(context: CheckContext) -> Iterator[Finding]:
    """Kernels, callbacks and the like without a sharding rule whose operands are sharded; one finding per source line and primitive.

    Under `lowering="shard_map"` the partitioner says what it runs whole.
    """
    if context.plan.active_partitioner is not None:
        return
    groups: dict[tuple[str, str], tuple[int, int, str]] = {}
    for op, manual in context.ops:
        if op.name not in OPAQUE or op.rule is not None or manual:
            continue
        size = sum(
            context.local(value.type, None) - context.local(value.type, value.sharding)
            for value in op.operands
            if value.type.rank and not is_replicated(value.sharding)
        )
        if size:
            place = _place(op, context)
            count, most, first = groups.get(
                place, (0, 0, next((context.described[r].path for r in op.results if r in context.described), ""))
            )
            groups[place] = (count + 1, max(most, size), first)
    reported = {finding.location for finding in context.findings if finding.kind in ("no-rule", "jit-lowering")}
    for (location, name), (count, size, path) in groups.items():
        if location and location in reported:
            continue
        more = f", {count} times on this line" if count > 1 else ""
        message = f"{name} has no sharding rule: its operands are brought to every device whole, {format_bytes(size)} to each{more}"
        fix = 'say how it propagates: @sp.sharding_rule("b i, i o -> b o"), or like= a function of JAX'
        fix = "give it the mesh that is planned for" if name == "shard_map" else fix
        yield Finding(KIND, message, path, location, graded(size), size, fix)


def _place(op: Op, context: CheckContext) -> tuple[str, str]:
    described = next((context.described[result] for result in op.results if result in context.described), None)
    name = op.primitive or str(op.attributes.get("call_target_name", op.name))
    if described is not None:
        return described.location, name
    where = context.plan.program.locate(op.location)
    return ("" if where is None else where.place), name
