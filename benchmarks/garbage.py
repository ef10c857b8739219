"""Garbage of another thread while plans are made: how far the process grows, and the planning time that looking for it takes.

Planning keeps Python from looking through the objects that it makes, and looks at the youngest ones where other threads run. Both halves
take turns in one process. The time is the median CPU time of the planning thread beside a thread that waits, in proportion to the same with
no collection at all; the growth is of the resident memory while the other thread drops cycles as fast as it can.

    python benchmarks/garbage.py --layers=24
"""

from __future__ import annotations

import os

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=8")

import gc
import pathlib
import resource
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import gpt
from absl import app, flags

import shardy_py as sp

LAYERS = flags.DEFINE_integer("layers", 24, "Unrolled layers of the model.", lower_bound=1)
ROUNDS = flags.DEFINE_integer("rounds", 5, "Plans of each kind; times are medians.", lower_bound=1)

CYCLE_ELEMENTS = 1000
"""Numbers in each list that the other thread drops; a list holds itself, so that only a collection frees it."""


@contextmanager
def thread(loop: Callable[[], None]) -> Iterator[None]:
    """Another thread that repeats a function."""
    end = threading.Event()

    def run() -> None:
        while not end.is_set():
            loop()

    other = threading.Thread(target=run)
    other.start()
    try:
        yield
    finally:
        end.set()
        other.join()


def drop_cycle() -> None:
    cycle: list[Any] = list(range(CYCLE_ELEMENTS))
    cycle.append(cycle)


def planning_seconds() -> float:
    """CPU seconds of this thread to plan a program that nothing remembers."""
    args, specs = gpt.arguments(LAYERS.value, 256, scanned=False)

    def step(*args: Any) -> Any:
        return gpt.train_step(*args)

    traced = sp.auto_shard(step, mesh={"data": 2, "model": 4}, in_shardings=specs).trace(*args)
    start = time.thread_time()
    _ = traced.plan().values
    return time.thread_time() - start


def without_collection() -> float:
    gc.disable()
    try:
        return planning_seconds()
    finally:
        gc.enable()
        gc.collect()


def resident_bytes() -> int:
    return int(pathlib.Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def growth_beside_garbage() -> int:
    """Bytes that the process grows by at most while a plan is made beside a thread of garbage, what the plan takes included."""
    gc.collect()
    before = most = resident_bytes()
    done = threading.Event()

    def watch() -> None:
        nonlocal most
        while not done.wait(0.01):
            most = max(most, resident_bytes())

    watcher = threading.Thread(target=watch)
    watcher.start()
    with thread(drop_cycle):
        planning_seconds()
    done.set()
    watcher.join()
    gc.collect()
    return most - before


def main(argv: list[str]) -> None:
    del argv
    planning_seconds()  # loads what the first use loads
    plain, guarded = [], []
    with thread(lambda: time.sleep(0.01)):
        for _ in range(ROUNDS.value):
            plain.append(without_collection())
            guarded.append(planning_seconds())
    growth = max(growth_beside_garbage() for _ in range(2))
    print(f"planning without collection {statistics.median(plain):.2f} s, with {statistics.median(guarded):.2f} s", end=", ")
    print(f"ratio {statistics.median(guarded) / statistics.median(plain):.2f}")
    print(f"the process grows beside garbage by {growth / 2**20:.0f} MiB")


if __name__ == "__main__":
    app.run(main)
