"""The choice behind `lowering="auto"`: a plan runs as one region of local arrays unless something stands against that."""

from __future__ import annotations

from collections.abc import Callable

from shardy_py.backends.shard_map import Partitioned
from shardy_py.errors import ShardyError
from shardy_py.plan.checks.phrases import more_text
from shardy_py.plan.checks.thresholds import NOTABLE
from shardy_py.plan.findings import Finding

LOWERINGS = ("auto", "jit", "shard_map")

KIND = "jit-lowering"


def obstacle(partition: Callable[[], Partitioned]) -> Finding | None:
    """Why XLA's partitioner gets a program under `lowering="auto"`; None where its region runs.

    The choice depends on the program, the mesh and the platform only, so it is the same in every process.
    """
    try:
        region = partition()
    except (ShardyError, NotImplementedError) as error:
        return Finding(KIND, f"lowering='jit' runs the plan: {_first_line(error)}", severity="info")
    except Exception as error:  # XLA's partitioner can run what ours fails on; the user is told, and no program ends for it.
        message = f"lowering='jit' runs the plan, for its partitioning failed: {type(error).__name__}: {_first_line(error)}"
        return Finding(KIND, message, fix="report it; lowering='shard_map' shows the traceback")
    whole = [f for f in region.findings if f.kind == "runs-whole" and f.bytes >= NOTABLE]
    if not whole:
        return None
    largest = max(whole, key=lambda finding: finding.bytes)
    message = f"lowering='jit' runs the plan: as a region, {largest.message}{more_text(len(whole), 'like it')}"
    return Finding(KIND, message, largest.path, largest.location, largest.severity, largest.bytes, largest.fix)


def _first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), "")
