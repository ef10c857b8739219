"""A plan as a short JSON report, for scripts; `Plan.save` keeps all of it."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from shardy_py.cli.progress import progress
from shardy_py.ir.types import local_bytes
from shardy_py.plan.executed import remark_on
from shardy_py.plan.search import Search
from shardy_py.plan.values import PlannedValue, typed

if TYPE_CHECKING:
    from shardy_py.facade import Plan
    from shardy_py.plan.compiled import CompiledProgram

VERSION = 1


def dumped(data: Any) -> str:
    """The JSON text that commands print."""
    return json.dumps(data, indent=1) + "\n"


def compiled_for(plan: Plan, topology: str | None, hardware: str | None) -> CompiledProgram | None:
    """The compiled program of a plan where a topology, or `here`, is named."""
    if topology is None:
        return None
    with progress(f"compiling {plan.name} for {topology}"):
        return plan.compile_for(None if topology == "here" else topology, hardware=hardware)


def plan_report(plan: Plan) -> dict[str, Any]:
    """Name, mesh, lowering, inputs, outputs, collectives, reshards, donation, findings, and the planner's search where there was one."""

    def value(planned: PlannedValue) -> dict[str, Any]:
        size = local_bytes(planned.type, planned.sharding, plan.program.meshes)
        return {"path": planned.path, "type": typed(planned.type, planned.sharding), "bytes_per_device": size}

    return {
        "format": "shardy_py.report",
        "version": VERSION,
        "name": plan.name,
        "mesh": dict(plan.mesh.shape),
        "lowering": plan.lowering,
        "remark": remark_on(plan),
        "inputs": [value(v) for v in plan.inputs],
        "outputs": [value(v) for v in plan.outputs],
        "collectives": [{**asdict(c), "received_bytes": c.received_bytes, "total_bytes": c.total_bytes} for c in plan.collectives],
        "reshards": [
            {
                "value": r.value,
                "before": typed(r.type, r.source),
                "after": typed(r.type, r.target),
                "collectives": [c.title for c in r.collectives],
                "bytes_per_device": r.bytes_per_device,
                "trips": r.trips,
                "reason": r.reason,
                "location": r.location,
            }
            for r in plan.reshards
        ],
        "donation": [
            {"path": d.path, "aliased": d.aliased, "reason": d.reason, "bytes_per_device": d.bytes_per_device} for d in plan.donation
        ],
        "findings": list(map(asdict, plan.findings)),
        **({} if plan.search is None else {"search": _search(plan.search)}),
    }


def _search(search: Search) -> dict[str, Any]:
    """A planner's search: its figures, and the alternatives with their prices."""
    numbers = ("hardware", "objective_seconds", "lower_bound_seconds", "peak_bytes", "budget_bytes", "margin_bytes", "status")
    names = (*numbers, "shards_values", "annotations", "space")
    alternative, price = ("name", "objective_seconds", "peak_bytes", "inputs"), ("path", "spec", "seconds")
    return {
        **{name: getattr(search, name) for name in names},
        "constraint_prices": [{name: getattr(each, name) for name in price} for each in search.constraint_prices],
        "alternatives": [{name: getattr(each, name) for name in alternative} for each in search.alternatives],
    }
