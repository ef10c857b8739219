"""The choice behind `lowering="auto"`: a plan runs as one region of local arrays unless something stands against that."""

from __future__ import annotations

from collections.abc import Callable

from shardy_py.backends.shard_map import Partitioned
from shardy_py.errors import ShardyError
from shardy_py.plan.checks.phrases import more_text
from shardy_py.plan.checks.thresholds import NOTABLE
from shardy_py.plan.cost_analysis import seconds_text
from shardy_py.plan.findings import Finding
from shardy_py.plan.movements import format_bytes

LOWERINGS = ("auto", "jit", "shard_map")

KIND = "jit-lowering"


def obstacle(partition: Callable[[], Partitioned]) -> Finding | None:
    """Why XLA's partitioner gets a program under `lowering="auto"`; None where its region runs.

    The choice depends on the program, the mesh and the platform only, so it is the same in every process.

    Args:
        partition: Makes the region.
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


def dearer_region(seconds: tuple[float, float], peaks: tuple[int, int]) -> Finding:
    """Why XLA's partitioner gets a planner's plan under `lowering="auto"`: its program costs less, or is the one that fits.

    Args:
        seconds: Of a step as a region, and by XLA's partitioner, for which the planner chose the shardings.
        peaks: The peaks of both.
    """
    region, xla = (f"takes {seconds_text(step)} and peaks at {format_bytes(peak)}" for step, peak in zip(seconds, peaks, strict=True))
    more = f", {seconds[0] / seconds[1] - 1:.2%} more" if seconds[0] > seconds[1] > 0 else ""
    message = (
        f"lowering='jit' runs the plan: the planner chose it for XLA's partitioner, by which a step {xla}; as a region it {region}{more}"
    )
    return Finding(KIND, message, severity="info", fix="lowering='shard_map' lets the planner choose for a region")


def _first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), "")
