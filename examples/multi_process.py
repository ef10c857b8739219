"""Trains one MLP in several processes, each with devices of its own and its own part of the data.

Start one command per process; on several machines --coordinator names the first of them.

    python examples/multi_process.py --process=0 & python examples/multi_process.py --process=1; wait

Every process runs the same script. They compare their plans before the first step, so that a difference is an error in each of
them; at the end each runs the same steps unsharded on one of its own devices, and the losses have to agree.
"""

from __future__ import annotations

import hashlib
import os

# Threads for steps that overlap, read when JAX starts its devices: see train_lm.py.
os.environ.setdefault("NPROC", "64")
os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import jax.numpy as jnp
import numpy as np
from absl import app, flags
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

import shardy_py as sp

PROCESS = flags.DEFINE_integer("process", 0, "Number of this process, from 0.", lower_bound=0)
PROCESSES = flags.DEFINE_integer("processes", 2, "Number of processes; divides the devices and the batch.", lower_bound=1)
COORDINATOR = flags.DEFINE_string("coordinator", "127.0.0.1:12355", "Address of process 0 and a free port there.")
DEVICES = flags.DEFINE_integer("devices", 8, "CPU devices of all processes together.", lower_bound=2)
STEPS = flags.DEFINE_integer("steps", 50, "Training steps.", lower_bound=1)
BATCH = flags.DEFINE_integer("batch", 64, "Rows per step, of all processes together.", lower_bound=1)
WIDTH = flags.DEFINE_integer("width", 128, "Hidden width.", lower_bound=8)
LOWERING = flags.DEFINE_enum("lowering", "auto", ["auto", "jit", "shard_map"], "How the plan runs.")

Params = dict[str, jax.Array]
Batch = dict[str, jax.Array]


def start_process() -> None:
    """Before anything that starts JAX's devices."""
    jax.config.update("jax_num_cpu_devices", DEVICES.value // PROCESSES.value)
    if PROCESSES.value == 1:
        return
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    # By default JAX notices after 100 seconds that a process has died, and waits 300 seconds for it when it ends itself.
    jax.distributed.initialize(
        COORDINATOR.value,
        PROCESSES.value,
        PROCESS.value,
        initialization_timeout=60,
        heartbeat_timeout_seconds=20,
        shutdown_timeout_seconds=20,
    )


def train_step(params: Params, batch: Batch) -> tuple[Params, jax.Array]:
    def loss_of(params: Params) -> jax.Array:
        hidden = jnp.tanh(batch["x"] @ params["up"])
        return jnp.mean((hidden @ params["down"] - batch["y"]) ** 2)

    loss, grads = jax.value_and_grad(loss_of)(params)
    return jax.tree.map(lambda p, g: p - 0.5 * g, params, grads), loss


def first_params() -> Params:
    """The same numbers in every process."""
    up, down = jax.random.split(jax.random.key(0))
    return {"up": jax.random.normal(up, (32, WIDTH.value)) / 6, "down": jax.random.normal(down, (WIDTH.value, 16)) / 12}


def rows(start: int, stop: int) -> dict[str, np.ndarray]:
    """Rows of the data set, as one process would read them from its own files."""
    x = np.sin(np.outer(np.arange(start, stop), np.arange(1, 33))).astype(np.float32)
    return {"x": x, "y": np.roll(x, 1, axis=1)[:, :16]}


def main(argv: list[str]) -> None:
    del argv
    start_process()
    # The outer axis goes over processes: "data" then is what moves between machines.
    data = max(PROCESSES.value, 2)
    mesh = jax.make_mesh((data, DEVICES.value // data), ("data", "model"), axis_types=(AxisType.Auto,) * 2)
    step = sp.auto_shard(
        train_step,
        mesh=mesh,
        in_shardings=({"up": P(None, "model"), "down": None}, P("data")),
        donate_argnums=0,
        lowering=LOWERING.value,
    )
    plan = step.plan(jax.eval_shape(first_params), jax.eval_shape(lambda: rows(0, BATCH.value)))
    where = f"process {PROCESS.value} of {PROCESSES.value}"
    print(f"{where}: plan {hashlib.sha256(plan.as_text().encode()).hexdigest()[:16]}", flush=True)
    if PROCESS.value == 0:
        print(repr(plan), *(f"  {value}" for value in (*plan.inputs, *plan.outputs)), sep="\n", flush=True)

    params_sharding, batch_sharding = plan.input_shardings
    params = jax.device_put(first_params(), params_sharding)
    each = BATCH.value // PROCESSES.value
    mine = rows(PROCESS.value * each, (PROCESS.value + 1) * each)
    batch = {name: jax.make_array_from_process_local_data(batch_sharding[name], part) for name, part in mine.items()}
    losses = []
    for _ in range(STEPS.value):
        params, loss = step(params, batch)
        losses.append(loss)
    losses = [float(loss) for loss in losses]
    print(f"{where}: loss {losses[0]:.4f} to {losses[-1]:.4f} in {STEPS.value} steps", flush=True)

    alone, unsharded, whole = first_params(), [], rows(0, BATCH.value)
    for _ in range(STEPS.value):
        alone, loss = jax.jit(train_step)(alone, whole)
        unsharded.append(float(loss))
    np.testing.assert_allclose(losses, unsharded, rtol=1e-3)
    print(f"{where}: unsharded loss {unsharded[-1]:.4f}, largest difference {np.abs(np.subtract(losses, unsharded)).max():.1e}")


if __name__ == "__main__":
    app.run(main)
