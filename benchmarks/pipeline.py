"""Pipelines on 8 CPU devices beside one device: numbers, programs, activations in flight, time to hand out a task; schedules on paper.

    python benchmarks/pipeline.py --models=gpt,encoder-decoder --steps=20
    python benchmarks/pipeline.py --models= --schedules

Loss and gradients are compared at every step, at the parameters that training on one device comes to. The time per task is that in which
one thread hands programs and transfers to the devices, by the clock, the median over steps. Beside it stands how much of that the
thread itself computes, and how much it waits: for a core, where there are fewer than devices, and, where the devices of a stage exchange
data, for the threads on which JAX starts a program of several CPU devices. CPU seconds are those of the thread. Programs of a few hundred
operations run in the thread that hands them out, so that both times hold their work.

"With a core of its own" are the same two figures in steps in which that thread has one core to itself and all other threads share the
rest. Devices that compute by themselves behave so; on a host whose cores are the devices the thread otherwise takes turns with
them. It needs two cores, and nothing else running.

CPU seconds per step are those of all threads, devices included. Bytes held are the activations of `report`, of all microbatches in flight,
on the stage with the most; results are those of forward programs, the most of any stage. Values that cross count once per stage that reads
them, forwards and back. Arrays are what is left of them where small values share buffers.
"""

from __future__ import annotations

import os

os.environ.setdefault("NPROC", "64")
os.environ.setdefault("JAX_PLATFORMS", "cpu")

import contextlib
import math
import statistics
import threading
import time
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
from absl import app, flags
from pipeline_models import MODELS, Model

import shardy_py as sp

STEPS = flags.DEFINE_integer("steps", 20, "Steps of each run.", lower_bound=1)
MODEL_NAMES = flags.DEFINE_list("models", list(MODELS), "Which models.")
SETTINGS = flags.DEFINE_list(
    "settings", ["2", "4", "8", "2x2", "4x2", "8x2"], "Stages, and devices in each; 8x2 has two stages on each of four meshes."
)
SCHEDULES = flags.DEFINE_bool("schedules", False, "Print makespans of schedules.")
MICROBATCHES = flags.DEFINE_integer("microbatches", 8, "Microbatches of each run.", lower_bound=1)


def largest_gap(got: Any, wanted: Any) -> float:
    return max(float(np.max(np.abs(np.asarray(a) - np.asarray(b)))) for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(wanted)))


def crossing(programs: Any) -> tuple[int, int]:
    """Number and bytes of the values that a microbatch sends between stages."""
    made = {v: s for (_, s), program in programs.items() for v in program.outputs}
    sent = dict.fromkeys((v, t) for (_, t), program in programs.items() for v in program.inputs if made.get(v, t) != t)
    return len(sent), sum(math.prod(v.aval.shape) * v.aval.dtype.itemsize for v, _ in sent)


def run_model(name: str, model: Model, setting: str) -> None:
    stages, _, ways = setting.partition("x")
    count, inside = int(stages), int(ways or 1)
    virtual = max(1, count * inside // 8)
    mesh = {"stage": count // virtual, "data": inside} if inside > 1 else None
    schedule = "1f1b" if virtual == 1 else "circular"
    run = sp.pipeline(model.gradients, num_stages=count, num_microbatches=MICROBATCHES.value, mesh=mesh, virtual=virtual, schedule=schedule)
    alone, train = jax.jit(model.gradients), jax.jit(model.step)
    state = model.state
    start = time.perf_counter()
    jax.block_until_ready(run(state["params"], model.batch(0)))
    first = time.perf_counter() - start
    worst, per_step = 0.0, []
    busy, alone_on_core = Dispatch(), Dispatch()
    for number in range(STEPS.value):
        batch = model.batch(number)
        before = time.process_time()
        got = jax.block_until_ready(run(state["params"], batch))
        per_step.append(time.process_time() - before)
        busy.add(run.statistics)
        worst = max(worst, largest_gap(got, alone(state["params"], batch)))
        with own_core():
            jax.block_until_ready(run(state["params"], batch))
        alone_on_core.add(run.statistics)
        state, _ = train(state, batch)
    programs = run.build(state["params"], model.batch(0)).programs
    results = max(len(program.outputs) for (role, _), program in programs.items() if role == "F")
    sent, size = crossing(programs)
    runner = run._runner
    assert runner is not None
    handed = runner.programs
    arrays = max(len(program.outputs) for (role, _), program in handed.items() if role == "F")
    held = max(row.in_flight * row.activation_bytes for row in run.report().rows)
    print(
        f"{name:16s} {setting:4s} {schedule:9s} loss and gradients within {worst:.1e} over {STEPS.value} steps, "
        f"{max(run.programs_per_stage)} programs per stage, per task {busy}; with a core of its own {alone_on_core}; "
        f"{statistics.median(per_step) * 1e3:.1f} ms of CPU per step, {results} results forwards in {arrays} arrays, "
        f"{held / 1024:.0f} KiB held, "
        f"{sent} values of {size / 1024:.0f} KiB sent per microbatch in {crossing(handed)[0]} arrays, "
        f"in flight {list(run.statistics.in_flight)}, first call {first:.1f} s",
        flush=True,
    )


class Dispatch:
    """Microseconds per task of several steps, by the clock and of the CPU."""

    def __init__(self) -> None:
        self.clock: list[float] = []
        self.cpu: list[float] = []

    def add(self, found: Any) -> None:
        self.clock.append(found.dispatch_seconds / found.tasks * 1e6)
        self.cpu.append(found.dispatch_cpu_seconds / found.tasks * 1e6)

    def __str__(self) -> str:
        clock, cpu = statistics.median(self.clock), statistics.median(self.cpu)
        waits = 1 - sum(self.cpu) / sum(self.clock)
        return f"{clock:.0f} us by the clock ({min(self.clock):.0f} at best), {cpu:.0f} of CPU, {waits:.0%} waiting"


@contextlib.contextmanager
def own_core() -> Iterator[None]:
    """Leaves one core to this thread and the others to all other threads, as it is where devices are no cores of the host."""
    cores = sorted(os.sched_getaffinity(0))
    own = threading.get_native_id()

    def place(first: set[int], others: set[int]) -> None:
        for task in os.listdir("/proc/self/task"):
            with contextlib.suppress(ProcessLookupError):
                os.sched_setaffinity(int(task), first if int(task) == own else others)

    if len(cores) > 1:
        place({cores[0]}, set(cores[1:]))
    try:
        yield
    finally:
        place(set(cores), set(cores))


def print_schedules() -> None:
    names = ("gpipe", "1f1b", "eager-1f1b", "zb-h1", "zb-h2", "auto")
    print(f"{'F = B = W = 1':24s}" + "".join(f"{name:>14s}" for name in names))
    for stages, count, transfer in ((4, 8, 0.0), (8, 16, 0.0), (4, 32, 0.0), (4, 32, 1.0)):
        row = [sp.pipelines.simulate(sp.pipelines.schedule(name, stages, count, transfer=transfer), transfer=transfer) for name in names]
        cells = "".join(f"{f'{r.makespan:g} / {max(r.in_flight)}':>14s}" for r in row)
        print(f"{f'S{stages} M{count} transfer {transfer:g}':24s}{cells}")


def main(argv: list[str]) -> None:
    del argv
    jax.config.update("jax_num_cpu_devices", 8)
    if SCHEDULES.value:
        print_schedules()
    for name in MODEL_NAMES.value:
        if name:
            for setting in SETTINGS.value:
                run_model(name, MODELS[name](), setting)


if __name__ == "__main__":
    app.run(main)
