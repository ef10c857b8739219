"""Trains one MLP as a pipeline over several processes: a stage in each, with data parallelism inside.

Start one command per process; on several machines --coordinator names the first of them, and --host this one.

    python examples/pipeline_hosts.py --process=0 & python examples/pipeline_hosts.py --process=1; wait
    srun --ntasks=2 python examples/pipeline_hosts.py --cluster

No process holds the whole model. At the end each trains it on one of its own devices, and the losses have to agree. With --checkpoints
the state is saved every few steps; the same command, with as many processes or others, goes on from the last checkpoint.
"""

from __future__ import annotations

import os
import socket

# Threads for steps that overlap, read when JAX starts its devices: see train_lm.py.
os.environ.setdefault("NPROC", "64")
os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import jax.numpy as jnp
import numpy as np
from absl import app, flags
from jax.sharding import Mesh

import shardy_py as sp

PROCESS = flags.DEFINE_integer("process", 0, "Number of this process, from 0.", lower_bound=0)
PROCESSES = flags.DEFINE_integer("processes", 2, "Number of processes, and of stages.", lower_bound=1)
COORDINATOR = flags.DEFINE_string("coordinator", "127.0.0.1:12356", "Address of process 0 and a free port there.")
CLUSTER = flags.DEFINE_bool("cluster", False, "Let JAX find the processes: SLURM, Open MPI, Kubernetes and Cloud TPU say which there are.")
HOST = flags.DEFINE_string("host", "127.0.0.1", "Address at which the other processes reach this one.")
DEVICES = flags.DEFINE_integer("devices", 2, "CPU devices of each process; divides a microbatch.", lower_bound=1)
STEPS = flags.DEFINE_integer("steps", 20, "Training steps.", lower_bound=1)
LAYERS = flags.DEFINE_integer("layers", 8, "Layers of the model.", lower_bound=1)
WIDTH = flags.DEFINE_integer("width", 64, "Hidden width.", lower_bound=8)
MICROBATCHES = flags.DEFINE_integer("microbatches", 4, "Microbatches of 8 rows.", lower_bound=1)
SCHEDULE = flags.DEFINE_string("schedule", "1f1b", "Order of the microbatches: 1f1b, gpipe, zb-h1, auto, ...")
CHECKPOINTS = flags.DEFINE_string("checkpoints", None, "Folder to save the state in, and to go on from; it needs orbax-checkpoint.")
SAVE_EVERY = flags.DEFINE_integer("save_every", 10, "Steps between two checkpoints.", lower_bound=1)

Params = list[jax.Array]
Batch = dict[str, np.ndarray]


def start_process() -> None:
    """Before anything that starts JAX's devices. On GPU and TPU only the last line is needed."""
    jax.config.update("jax_num_cpu_devices", DEVICES.value)
    if PROCESSES.value == 1 and not CLUSTER.value:
        return
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    with socket.socket() as free:  # a port of its own for each process, not 0
        free.bind((HOST.value, 0))
        jax.config.update("jax_cross_host_transfer_socket_address", f"{HOST.value}:{free.getsockname()[1]}")
    stated = (
        {} if CLUSTER.value else {"coordinator_address": COORDINATOR.value, "num_processes": PROCESSES.value, "process_id": PROCESS.value}
    )
    jax.distributed.initialize(**stated, heartbeat_timeout_seconds=20)


def train_step(params: Params, batch: Batch) -> tuple[Params, jax.Array]:
    def loss_of(params: Params) -> jax.Array:
        hidden = jnp.asarray(batch["x"])
        for layer in params:
            hidden = hidden + jnp.tanh(hidden @ layer)
        return jnp.mean((hidden - batch["y"]) ** 2)

    loss, grads = jax.value_and_grad(loss_of)(params)
    return jax.tree.map(lambda p, g: p - 0.5 * g, params, grads), loss


def first_params(key: jax.Array) -> Params:
    return [jax.random.normal(each, (WIDTH.value, WIDTH.value)) / WIDTH.value for each in jax.random.split(key, LAYERS.value)]


def main(argv: list[str]) -> None:
    del argv
    start_process()
    process, processes = jax.process_index(), jax.process_count()
    mesh = Mesh(np.array(jax.devices()).reshape(processes, DEVICES.value), ("stage", "data"))
    run = sp.pipeline(
        train_step,
        num_stages=processes,
        num_microbatches=MICROBATCHES.value,
        mesh=mesh,
        schedule=SCHEDULE.value,
        donate_argnums=0,
        peer_timeout=60,
    )
    x = np.sin(np.outer(np.arange(8 * MICROBATCHES.value), np.arange(1, WIDTH.value + 1))).astype(np.float32)
    batch = {"x": x, "y": np.roll(x, 1, axis=1)}
    key = jax.random.key(0)
    run.build(jax.eval_shape(first_params, key), batch)
    if process == 0:
        print(run.report(), flush=True)
    folder = CHECKPOINTS.value
    first = max(run.saved_steps(folder), default=0) if folder else 0
    params = run.restore(folder) if first else run.init(first_params, key)
    losses = []
    for step in range(first + 1, STEPS.value + 1):
        params, loss = run(params, batch)
        losses.append(float(loss))
        if folder and step % SAVE_EVERY.value == 0:
            run.save(folder, params, step=step)
    where = f"process {process} of {processes}"
    held = sum(len(layer.addressable_shards) > 0 for layer in params)
    print(f"{where}: holds {held} of {len(params)} layers, programs of its stages {run.programs_per_stage}", flush=True)
    print(f"{where}: loss {losses[0]:.4f} to {losses[-1]:.4f} in steps {first + 1} to {STEPS.value}", flush=True)

    alone, expected = first_params(key), []
    for _ in range(STEPS.value):
        alone, loss = jax.jit(train_step)(alone, batch)
        expected.append(float(loss))
    np.testing.assert_allclose(losses, expected[first:], rtol=1e-4)
    print(f"{where}: unsharded loss {expected[-1]:.4f}, largest difference {np.abs(np.subtract(losses, expected[first:])).max():.1e}")


if __name__ == "__main__":
    app.run(main)
