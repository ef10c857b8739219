"""How large stored plans are, and how long it takes to write, read and compare them.

python benchmarks/store.py --layers=24
"""

from __future__ import annotations

import os

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import gzip
import time
from collections.abc import Callable
from typing import Any

import gpt
from absl import app, flags

import shardy_py as sp

LAYERS = flags.DEFINE_multi_integer("layers", [1, 24, 240], "Depths of the models, their layers one after the other.", lower_bound=1)


def timed(run: Callable[[], Any]) -> tuple[Any, float]:
    start = time.perf_counter()
    made = run()
    return made, time.perf_counter() - start


def main(argv: list[str]) -> None:
    del argv
    print(f"{'layers':>6}  {'ops':>7}  {'JSON':>8}  {'packed':>8}  {'write':>7}  {'read':>7}  {'diff':>7}")
    for layers in LAYERS.value:
        args, specs = gpt.arguments(layers, 256, scanned=False)
        plan = sp.auto_shard(gpt.train_step, mesh={"data": 2, "model": 4}, in_shardings=specs).plan(*args)
        text, write = timed(plan.to_json)
        read, took = timed(lambda text=text: sp.Plan.from_json(text))
        for p in (plan, read):
            p.findings, p.collectives  # noqa: B018
        diff, compare = timed(lambda plan=plan, read=read: plan.diff(read))
        assert not diff
        ops = sum(1 for _ in plan.program.walk())
        packed = len(gzip.compress(text.encode(), 6))
        sizes = f"{len(text) / 1e6:>5.2f} MB  {packed / 1e6:>5.2f} MB"
        print(f"{layers:>6}  {ops:>7,}  {sizes}  {write:>5.2f} s  {took:>5.2f} s  {compare:>5.2f} s")


if __name__ == "__main__":
    app.run(main)
