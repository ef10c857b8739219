"""Times `Plan.explain` on a training step with unrolled layers: the first question, which indexes the log, and those after it.

python benchmarks/explain.py --layers=48
"""

from __future__ import annotations

import os

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import random
import statistics
import time
from collections.abc import Callable

import gpt
from absl import app, flags
from jax.sharding import AbstractMesh

import shardy_py as sp
from shardy_py.facade import Plan

LAYERS = flags.DEFINE_integer("layers", 48, "Blocks of the model, unrolled.", lower_bound=1)
QUESTIONS = flags.DEFINE_integer("questions", 300, "Values asked about, drawn at random.", lower_bound=1)


def plan_of(layers: int) -> Plan:
    """The plan of the training step."""
    args, specs = gpt.arguments(layers, 512, scanned=False)
    return sp.auto_shard(gpt.train_step, mesh=AbstractMesh((8, 4), ("data", "model")), in_shardings=specs).plan(*args)


def timed(question: Callable[[], object]) -> float:
    """Milliseconds of this process, so that a busy machine does not count."""
    start = time.process_time()
    question()
    return (time.process_time() - start) * 1e3


def main(argv: list[str]) -> None:
    del argv
    plan = plan_of(LAYERS.value)
    values = plan.values
    print(f"{len(values)} values, {len(plan.log)} steps of propagation")
    print(f"first question  {timed(lambda: plan.explain(values[0])):.0f} ms")
    print(f"first axis that is missing  {timed(lambda: plan.explain(values[-1], 'model')):.0f} ms")
    drawn = random.Random(0).choices(values, k=QUESTIONS.value)
    for what, axis in (("all axes", None), ("'data'", "data"), ("'model'", "model")):
        found = [timed(lambda value=value, axis=axis: plan.explain(value, axis)) for value in drawn]
        print(f"{what}  median {statistics.median(found):.1f} ms, 99 of 100 below {sorted(found)[int(0.99 * len(found))]:.1f} ms")


if __name__ == "__main__":
    app.run(main)
