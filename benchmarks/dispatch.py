"""Times one call of a decorated step beside the same step under `jax.jit`: 200 leaves, 8 CPU devices, donated.

Each function keeps its own state and they take turns, each call blocked until its results are there. The difference of
a median and that of `jax.jit` is what the decorator costs per call, with each of its lowerings.

    python benchmarks/dispatch.py --calls=400
"""

from __future__ import annotations

import os

os.environ.setdefault("NPROC", "64")
os.environ.setdefault("JAX_PLATFORMS", "cpu")

import statistics
import time
from typing import Any

import jax
import jax.numpy as jnp
from absl import app, flags
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import shardy_py as sp

CALLS = flags.DEFINE_integer("calls", 400, "Timed calls of each function.", lower_bound=10)
LEAVES = flags.DEFINE_integer("leaves", 200, "Arrays passed in, the batch included.", lower_bound=2)


def step(params: list[jax.Array], x: jax.Array) -> list[jax.Array]:
    return [p + x for p in params]


def main(argv: list[str]) -> None:
    del argv
    jax.config.update("jax_num_cpu_devices", 8)
    mesh = jax.make_mesh((2, 4), ("data", "model"), axis_types=(AxisType.Auto,) * 2)
    sharding = NamedSharding(mesh, P("data", "model"))
    x = jax.device_put(jnp.ones((8, 16)), sharding)
    functions = {
        "jax.jit": jax.jit(step, in_shardings=sharding, out_shardings=sharding, donate_argnums=0),
        "auto_shard": sp.auto_shard(step, mesh=mesh, in_shardings=sharding, out_shardings=sharding, donate_argnums=0),
        "jit": sp.auto_shard(step, mesh=mesh, in_shardings=sharding, out_shardings=sharding, donate_argnums=0, lowering="jit"),
    }
    state: dict[str, Any] = {name: jax.device_put([jnp.zeros((8, 16))] * (LEAVES.value - 1), sharding) for name in functions}
    state = {name: [p.copy() for p in params] for name, params in state.items()}
    times: dict[str, list[float]] = {name: [] for name in functions}
    warm_up = 20
    for i in range(CALLS.value + warm_up):
        for name in functions if i % 2 == 0 else reversed(functions):
            start = time.perf_counter()
            state[name] = jax.block_until_ready(functions[name](state[name], x))
            if i >= warm_up:
                times[name].append(time.perf_counter() - start)
    medians = {name: statistics.median(taken) * 1e6 for name, taken in times.items()}
    for name, median in medians.items():
        print(f"{name:12s} {median:7.0f} us per call (median of {CALLS.value})")
    for name in functions:
        if name != "jax.jit":
            print(f"{name:12s} {medians[name] - medians['jax.jit']:+7.0f} us with {LEAVES.value} leaves")


if __name__ == "__main__":
    app.run(main)
