"""Plans a training step of Llama 3 405B for 8,192 devices that are not there, and says how long each stage takes.

126 layers, scanned and unrolled, Adam, AbstractMesh with axes "data", "fsdp" and "model". Times are CPU seconds of this process, which a
busy machine does not change much; each stage is asked for once, in this order, so that what a later one needs from an earlier one is
there. The exit status is 1 where a limit is passed.

    python benchmarks/llama405b.py
    python benchmarks/llama405b.py --noscanned --hardware=h100 --text
"""

from __future__ import annotations

import os

os.environ.setdefault("NPROC", "64")
os.environ.setdefault("JAX_PLATFORMS", "cpu")

import functools
import json
import pathlib
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

from absl import app, flags

SCANNED = flags.DEFINE_bool("scanned", None, "Only the scanned model, or only the unrolled one; if left out both, in two processes.")
LAYERS = flags.DEFINE_integer("layers", 126, "Layers.", lower_bound=1)
HARDWARE = flags.DEFINE_string("hardware", "v5p", "For which accelerator.")
TEXT = flags.DEFINE_bool("text", False, "Print the cost and the memory too.")

MESH = {"data": 16, "fsdp": 64, "model": 8}
LIMITS = {"scanned": 10.0, "unrolled": 60.0}
"""CPU seconds."""
LIMIT_GIB = 4.0


class Stages:
    """CPU seconds per stage, and the most memory used so far."""

    def __init__(self) -> None:
        self.rows: list[tuple[str, float, float]] = []

    def run(self, name: str, stage: Callable[[], Any]) -> Any:
        """Runs a stage and prints what it took."""
        start = time.process_time()
        result = stage()
        used = peak_memory() / (1 << 20)
        self.rows.append((name, time.process_time() - start, used))
        print(f"  {name:28s} {self.rows[-1][1]:8.2f} s {used:8.2f} GiB", flush=True)
        return result


def peak_memory() -> int:
    """Peak of resident memory in KiB; the one of `getrusage` starts from what the process that started this one held."""
    status = pathlib.Path("/proc/self/status")
    if status.exists():
        return int(status.read_text().split("VmHWM:")[1].split()[0])
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def one(scanned: bool) -> bool:
    """Whether it stays within the limits."""
    kind = "scanned" if scanned else "unrolled"
    print(f"Llama 3 405B, {LAYERS.value} layers, {kind}, {' x '.join(f'{k}={n}' for k, n in MESH.items())} of {HARDWARE.value}")
    print(f"  {'stage':28s} {'CPU':>10s} {'peak RSS':>12s}")
    stages = Stages()
    jax, llama, sp = stages.run("import jax, optax, shardy_py", _imports)
    config = llama.Config(layers=LAYERS.value)
    args, specs = llama.arguments(config, scanned=scanned)
    mesh = jax.sharding.AbstractMesh(tuple(MESH.values()), tuple(MESH))
    step = sp.auto_shard(functools.partial(llama.train_step, c=config), mesh=mesh, in_shardings=specs, donate_argnums=(0, 1))
    traced = stages.run("trace", lambda: step.trace(*args))
    plan = stages.run("plan", traced.plan)
    stages.run("values", lambda: plan.values)
    stages.run("findings", lambda: plan.findings)
    stages.run("collectives", lambda: plan.collectives)
    stages.run("reshards", lambda: plan.shardy_reshards)
    cost = stages.run("cost", lambda: _read(plan.cost_analysis(HARDWARE.value)))
    memory = None
    if hasattr(plan, "memory_analysis"):
        memory = stages.run("memory", lambda: plan.memory_analysis(hardware=HARDWARE.value))
    text = stages.run("text", plan.as_text)
    stages.run("JSON", lambda: json.dumps(plan.to_json()))
    total, peak = sum(seconds for _, seconds, _ in stages.rows), stages.rows[-1][2]
    print(f"  {'all':28s} {total:8.2f} s {peak:8.2f} GiB   limits {LIMITS[kind]:g} s, {LIMIT_GIB:g} GiB")
    ops = sum(1 for _ in plan.program.walk())
    print(f"  {llama.parameters(config) / 1e9:.1f} billion parameters, {ops:,} ops, {len(plan.values):,} values")
    print(f"  {len(plan.collectives):,} collectives, {len(text.splitlines()):,} lines of text; a step takes {cost.step_seconds}")
    print(f"  planning: {', '.join(f'{name} {seconds:.2f} s' for name, seconds in plan.timings.items())}")
    if TEXT.value:
        print(cost.as_text())
        if memory is not None:
            print(memory)
    return total <= LIMITS[kind] and peak <= LIMIT_GIB


def _imports() -> tuple[Any, Any, Any]:
    import jax
    import llama

    import shardy_py as sp

    return jax, llama, sp


def _read(cost: Any) -> Any:
    """Works out what is worked out when it is first asked for."""
    cost.as_text()
    return cost


def main(argv: list[str]) -> None:
    if SCANNED.value is None:
        for flag in ("--scanned", "--noscanned"):
            subprocess.run([sys.executable, *argv[:1], flag, *sys.argv[1:]], check=True)
    elif not one(SCANNED.value):
        sys.exit(1)


if __name__ == "__main__":
    app.run(main)
