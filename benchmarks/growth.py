"""How the cost of planning grows with a program: CPU seconds per stage at several sizes, and the exponent.

Each size runs in a process of its own, after a small one that takes first-use costs away. The exponent is the slope of the logarithms over
the sizes at which a stage takes 30 ms or more, the last three of them; 1.0 is linear.

    python benchmarks/growth.py
    python benchmarks/growth.py --series=uses --sizes=1000,4000,16000
"""

from __future__ import annotations

import os

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=8")

import gc
import json
import math
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from absl import app, flags

SERIES = flags.DEFINE_string("series", "layers", "`layers` of a model, `group` of so many members, or `uses` of one value.")
SIZES = flags.DEFINE_list("sizes", None, "Sizes in place of the usual ones.")
LOWERING = flags.DEFINE_string("lowering", "shard_map", "How plans run.")
POINT = flags.DEFINE_integer("point", None, "Only this size, as JSON.")

USUAL: dict[str, tuple[int, ...]] = {"layers": (12, 24, 48, 96), "group": (300, 1000, 3000), "uses": (500, 2000, 8000)}
FLOOR = 0.03
"""Seconds below which a stage says nothing of growth."""


def decorated(series: str, size: int) -> tuple[Any, tuple[Any, ...]]:
    """A program of a size, and its arguments."""
    import gpt
    import jax
    import jax.numpy as jnp
    from jax.sharding import PartitionSpec as P

    import shardy_py as sp

    def grouped(x: Any, ys: Any) -> Any:
        return sum(sp.sharding_group([x, *map(jnp.sin, ys)]))

    def used(x: Any, ys: Any) -> Any:
        return [jnp.dot(x, y) for y in ys]

    if series == "layers":
        args, specs = gpt.arguments(size, 256, scanned=False)
        return sp.auto_shard(gpt.train_step, mesh={"data": 2, "model": 4}, in_shardings=specs, lowering=LOWERING.value), args
    x = jax.ShapeDtypeStruct((64, 64), jnp.float32)
    function = {"group": grouped, "uses": used}[series]
    return sp.auto_shard(function, mesh={"x": 2, "y": 4}, in_shardings=(P("x"), None), lowering=LOWERING.value), (x, [x] * size)


def seconds(series: str, size: int) -> dict[str, float]:
    """CPU seconds of each stage; a later one has what earlier ones have worked out."""
    step, args = decorated(series, size)
    traced = step.trace(*args)
    took: dict[str, float] = {}

    def run(name: str, stage: Callable[[], Any]) -> Any:
        start = time.process_time()
        result = stage()
        took[name] = time.process_time() - start
        return result

    gc.disable()  # collections fall into any stage
    plan = run("plan", traced.plan)
    run("values", lambda: plan.values)
    run("findings", lambda: plan.findings)
    run("collectives", lambda: plan.collectives)
    run("reshards", lambda: plan.shardy_reshards)
    run("cost", lambda: plan.cost_analysis("v5p").as_text())
    run("memory", lambda: plan.memory_analysis(hardware="v5p"))
    run("text", plan.as_text)
    run("JSON", plan.to_json)
    run("explain", lambda: str(plan.explain(plan.outputs[-1])))
    if LOWERING.value == "jit" or series == "layers":
        run("lower", traced.lower)
    return took


def exponent(sizes: Sequence[int], took: Sequence[float]) -> float | None:
    """The slope of the logarithms; None where a stage is too short at all sizes but one."""
    points = [(math.log(n), math.log(s)) for n, s in zip(sizes, took, strict=True) if s >= FLOOR][-3:]
    if len(points) < 2:
        return None
    x, y = (sum(column) / len(points) for column in zip(*points, strict=True))
    return sum((a - x) * (b - y) for a, b in points) / sum((a - x) ** 2 for a, _ in points)


def main(argv: list[str]) -> None:
    if POINT.value is not None:
        seconds(SERIES.value, 2)
        print(json.dumps(seconds(SERIES.value, POINT.value)))
        return
    if SERIES.value not in USUAL:
        raise app.UsageError(f"--series={SERIES.value}: known are {', '.join(USUAL)}")
    sizes = [int(size) for size in SIZES.value] if SIZES.value else USUAL[SERIES.value]
    rows = []
    for size in sizes:
        command = [sys.executable, argv[0], f"--series={SERIES.value}", f"--lowering={LOWERING.value}", f"--point={size}"]
        rows.append(json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()[-1]))
    print(f"{SERIES.value:12s}" + "".join(f"{size:>9,}" for size in sizes) + "   exponent")
    for name in rows[0]:
        took = [row[name] for row in rows]
        slope = exponent(sizes, took)
        print(f"{name:12s}" + "".join(f"{s:9.3f}" for s in took) + ("" if slope is None else f"{slope:11.2f}"))


if __name__ == "__main__":
    app.run(main)
