"""Pipelines on 8 CPU devices beside one device: numbers, programs, activations in flight, time to hand out a task; schedules on paper.

    python benchmarks/pipeline.py --models=gpt,encoder-decoder --steps=20
    python benchmarks/pipeline.py --models= --schedules

Loss and gradients are compared at every step, at the parameters that training on one device comes to. The time per task is that in which
Python hands programs and transfers to the devices, the median over steps; small programs of a CPU run in the thread that hands them out,
so that it holds their work as well. On a busy machine the thread waits, too; its own CPU time stands beside.
"""

from __future__ import annotations

import os

os.environ.setdefault("NPROC", "64")
os.environ.setdefault("JAX_PLATFORMS", "cpu")

import itertools
import statistics
import time
from typing import Any

import jax
import numpy as np
from absl import app, flags
from pipeline_models import MODELS, Model, gpt

import shardy_py as sp

STEPS = flags.DEFINE_integer("steps", 20, "Steps of each run.", lower_bound=1)
MODEL_NAMES = flags.DEFINE_list("models", list(MODELS), "Which models.")
SETTINGS = flags.DEFINE_list(
    "settings", ["2", "4", "8", "2x2", "4x2", "8x2"], "Stages, and devices in each; 8x2 has two stages on each of four meshes."
)
SCHEDULES = flags.DEFINE_bool("schedules", False, "Print makespans of schedules, and how well the formula orders configurations.")
MICROBATCHES = flags.DEFINE_integer("microbatches", 8, "Microbatches of each run.", lower_bound=1)


def largest_gap(got: Any, wanted: Any) -> float:
    return max(float(np.max(np.abs(np.asarray(a) - np.asarray(b)))) for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(wanted)))


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
    worst, spent, computed = 0.0, [], []
    for number in range(STEPS.value):
        batch = model.batch(number)
        got = jax.block_until_ready(run(state["params"], batch))
        spent.append(run.statistics.dispatch_seconds / run.statistics.tasks * 1e6)
        computed.append(run.statistics.dispatch_cpu_seconds / run.statistics.tasks * 1e6)
        worst = max(worst, largest_gap(got, alone(state["params"], batch)))
        state, _ = train(state, batch)
    same = run.statistics.in_flight == sp.stages.simulate(run.schedule).in_flight
    print(
        f"{name:16s} {setting:4s} {schedule:9s} loss and gradients within {worst:.1e} over {STEPS.value} steps, "
        f"{max(run.programs_per_stage)} programs per stage, "
        f"{statistics.median(spent):.0f} us per task ({min(computed):.0f} of CPU at best), "
        f"in flight {list(run.statistics.in_flight)}{' as simulated' if same else ' NOT as simulated'}, first call {first:.1f} s",
        flush=True,
    )


def print_schedules() -> None:
    names = ("gpipe", "1f1b", "eager-1f1b", "zb-h1", "zb-h2", "auto")
    print(f"{'F = B = W = 1':24s}" + "".join(f"{name:>14s}" for name in names))
    for stages, count, transfer in ((4, 8, 0.0), (8, 16, 0.0), (4, 32, 0.0), (4, 32, 1.0)):
        row = [sp.stages.simulate(sp.stages.schedule(name, stages, count, transfer=transfer), transfer=transfer) for name in names]
        cells = "".join(f"{f'{r.makespan:g} / {max(r.in_flight)}':>14s}" for r in row)
        print(f"{f'S{stages} M{count} transfer {transfer:g}':24s}{cells}")
    settings = [
        (2, 4, "1f1b", 1), (2, 16, "gpipe", 1), (4, 4, "1f1b", 1), (4, 8, "zb-h1", 1), (4, 16, "eager-1f1b", 1),
        (4, 16, "zb-h2", 1), (8, 8, "1f1b", 1), (8, 16, "interleaved", 2), (8, 32, "zb-h1", 1), (4, 8, "circular", 2),
    ]  # fmt: skip
    model = gpt(layers=8, width=64, vocabulary=256, length=32, rows=64)
    times = []
    for stages, count, schedule, virtual in settings:
        run = sp.pipeline(model.gradients, num_stages=stages, num_microbatches=count, schedule=schedule, virtual=virtual)
        found = run.report(model.state["params"], model.batch(0))
        times.append((found.predicted_seconds, found.simulation.makespan))
    pairs = list(itertools.combinations(times, 2))
    agree = sum((a[0] < b[0]) == (a[1] < b[1]) for a, b in pairs)
    print(f"ten configurations of a GPT: the formula orders {agree} of {len(pairs)} pairs as the simulator does")


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
