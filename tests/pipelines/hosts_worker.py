"""One of the processes of test_hosts.py: `hosts_worker.py MODE PROCESS PROCESSES PORT`; prints one line of JSON. 8 devices in all."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import os
import re
import signal
import socket
import sys
import time
from typing import Any
from unittest import mock

MODE, PROCESS, PROCESSES, PORT = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
EACH = 8 // PROCESSES
os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = re.sub(r"(?<=device_count=)\d+", str(EACH), os.environ["XLA_FLAGS"])

import shardy_py as sp  # isort: skip  (asks for enough threads, before jax is imported)
import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as ocp
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from shardy_py.pipelines import runner as runners
from shardy_py.pipelines.planned import StagePlanner

ADAM = optax.adam(1e-2, eps=1e-3)  # so that it does not magnify rounding of small gradients


def start() -> list[Any]:
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        jax.config.update("jax_cross_host_transfer_socket_address", f"127.0.0.1:{free.getsockname()[1]}")
    jax.distributed.initialize(
        f"127.0.0.1:{PORT}", PROCESSES, PROCESS, initialization_timeout=60, heartbeat_timeout_seconds=60, shutdown_timeout_seconds=20
    )
    return jax.devices()


def mesh_of(devices: list[Any], *shape: int) -> Mesh:
    return Mesh(np.array(devices, dtype=object).reshape(shape), ("stage", "data"))


def drawn(shapes: dict[str, tuple[int, ...]], seed: int = 0) -> dict[str, np.ndarray]:
    draw = np.random.default_rng(seed)
    return {name: (draw.normal(size=shape) / 4).astype("float32") for name, shape in shapes.items()}


LAYERS = 8
MLP = drawn({"in": (8, 16), "out": (16, 8), **{f"layer{i}": (16, 16) for i in range(LAYERS)}})
ROWS = drawn({"x": (32, 8), "y": (32, 8)}, 1)


def mlp(params: Any, batch: Any) -> Any:
    h = jnp.tanh(batch["x"] @ params["in"])
    for i in range(LAYERS):
        h = h + jnp.tanh(h @ params[f"layer{i}"])
    return jnp.mean((h @ params["out"] - batch["y"]) ** 2)


def mlp_step(params: Any, batch: Any) -> Any:
    loss, gradients = jax.value_and_grad(mlp)(params, batch)
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, gradients), loss


GPT = drawn({"embedding": (32, 16), **{f"{name}{i}": (16, 16) for i in range(4) for name in "qkvo"}, "scale": (16,)})
TOKENS = np.random.default_rng(2).integers(0, 32, (16, 9))


def gpt(params: Any, tokens: Any) -> Any:
    """One head, tied embedding."""
    x = params["embedding"][tokens[:, :-1]]
    for i in range(4):
        q, k, v = (x @ params[f"{name}{i}"] for name in "qkv")
        scores = jnp.where(jnp.tril(jnp.ones((8, 8), bool)), q @ k.swapaxes(1, 2), -1e9)
        x = x + jax.nn.softmax(scores) @ v @ params[f"o{i}"]
    logits = (x * params["scale"]) @ params["embedding"].T
    return -jnp.mean(jnp.take_along_axis(jax.nn.log_softmax(logits), tokens[:, 1:, None], 2))


def adam_step(loss_of: Any) -> Any:
    def step(state: Any, batch: Any) -> Any:
        params, moments = state
        loss, gradients = jax.value_and_grad(loss_of)(params, batch)
        updates, moments = ADAM.update(gradients, moments, params)
        return (optax.apply_updates(params, updates), moments), {"loss": loss, "norm": optax.global_norm(gradients)}

    return step


gpt_step = adam_step(gpt)

RESNET = drawn({"in": (3, 3, 3, 8), **{f"{name}{i}": (3, 3, 8, 8) for i in range(4) for name in "ab"}, "out": (8, 4)}, 3)
IMAGES = {**drawn({"image": (16, 6, 6, 3)}, 4), "label": np.arange(16) % 4}


def resnet(params: Any, batch: Any) -> Any:
    """Four residual blocks, each example normalized by itself."""
    layout = {"window_strides": (1, 1), "padding": "SAME", "dimension_numbers": ("NHWC", "HWIO", "NHWC")}
    convolved = functools.partial(jax.lax.conv_general_dilated, **layout)
    x = convolved(batch["image"], params["in"])
    for i in range(4):
        y = jax.nn.relu(jax.nn.standardize(convolved(x, params[f"a{i}"]), (1, 2, 3)))
        x = jax.nn.relu(x + convolved(y, params[f"b{i}"]))
    return jnp.mean(optax.softmax_cross_entropy_with_integer_labels(x.mean((1, 2)) @ params["out"], batch["label"]))


STACKED = drawn({"layers": (8, 8, 8)})


def scanned(params: Any, batch: Any) -> Any:
    h, _ = jax.lax.scan(lambda h, w: (h + jnp.tanh(h @ w), None), batch["x"], params["layers"])
    return jnp.mean((h - batch["y"]) ** 2)


def scanned_step(params: Any, batch: Any) -> Any:
    loss, gradients = jax.value_and_grad(scanned)(params, batch)
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, gradients), (loss, jnp.abs(batch["x"]).sum(1))


def noisy(params: Any, batch: Any, key: Any) -> Any:
    """Keys differ between microbatches, and loss per token is known beforehand."""
    h = jnp.tanh(batch["x"] @ params["in"])
    for i in range(LAYERS):
        h = h + 0 * jax.random.normal(key, h.shape) + jnp.tanh(h @ params[f"layer{i}"])
    weight = batch["x"] > 0
    return jnp.sum(jnp.where(weight, (h @ params["out"] - batch["y"]) ** 2, 0)) / jnp.sum(weight)


def gap(got: Any, wanted: Any) -> float:
    """The largest difference of what this process holds, relative to the largest element where that is above 1."""
    worst = 0.0
    for x, whole in zip(jax.tree.leaves(got), jax.tree.leaves(wanted), strict=True):
        for shard in x.addressable_shards:
            off = np.max(np.abs(np.asarray(shard.data) - np.asarray(whole)[shard.index]), initial=0.0)
            worst = max(worst, float(off / np.max(np.abs(whole), initial=1.0)))
    return worst


def trained(step: Any, state: Any, batch: Any, steps: int = 3, batch_of: Any = lambda batch: batch, **keywords: Any) -> dict[str, Any]:
    """Differences from the same steps on one device, and where everything is."""
    compiled: list[int] = []

    def counted(program: Any, places: Any, donate: Any) -> Any:
        compiled.append(program.stage)
        return compile_program(program, places, donate)

    compile_program = runners.compile_program
    run = sp.pipeline(step, num_microbatches=4, donate_argnums=0, **keywords)
    alone = jax.jit(step)
    own, results, worst = state, None, 0.0
    with mock.patch.object(runners, "compile_program", counted):
        for _ in range(steps):
            own, aux = alone(own, batch)
            state, results = run(state, batch_of(batch))
            worst = max(worst, gap((state, results), (own, aux)))
    scalars = [float(x) for x in jax.tree.leaves(results) if not x.shape]
    counts, report = run.statistics, run.report()
    shards = sorted({s for shard in jax.tree.leaves(state) for s in [len(shard.addressable_shards)]})
    return {
        "worst": worst, "scalars": scalars, "compiled": sorted(set(compiled)), "per_stage": run.programs_per_stage,
        "sent": counts.sent_bytes, "shared": counts.shared_bytes, "tasks": counts.tasks, "shards": shards,
        "reported": 4 * report.crossing_bytes, "simulated": repr(report.simulation.spans),
    }  # fmt: skip


def initialized(mesh: Mesh) -> dict[str, Any]:
    """A state that no process holds as a whole."""

    def init(key: Any) -> Any:
        return {name: jax.random.normal(jax.random.fold_in(key, i), a.shape) for i, (name, a) in enumerate(MLP.items())}

    key = jax.random.key(1)
    run = sp.pipeline(mlp_step, num_microbatches=4, num_stages=2, mesh=mesh)
    run.build(jax.eval_shape(init, key), ROWS)
    state = run.init(init, key)
    assert {name: x.sharding for name, x in state.items()} == run.shardings()[0]
    worst = gap(state, jax.jit(init)(key))
    state, loss = run(state, ROWS)
    return {"worst": max(worst, gap((state, loss), jax.jit(mlp_step)(jax.jit(init)(key), ROWS)))}


def numbers() -> dict[str, Any]:
    """Layouts and schedules: stages across processes, data across processes, neither even."""
    devices = start()
    wide = mesh_of(devices, PROCESSES, EACH)
    across = Mesh(np.array(devices, dtype=object).reshape(PROCESSES, EACH).T[:2], ("stage", "data"))
    adam = (GPT, ADAM.init(GPT))
    found = {"gpt": trained(gpt_step, adam, TOKENS, 5, num_stages=PROCESSES, mesh=wide)}
    if PROCESSES == 4:
        for name in ("gpipe", "zb-h1", "eager-1f1b"):
            found[name] = trained(mlp_step, MLP, ROWS, num_stages=4, mesh=wide, schedule=name)
        found["interleaved"] = trained(mlp_step, MLP, ROWS, num_stages=8, virtual=2, mesh=wide, schedule="interleaved")
        return found
    found["gpipe"] = trained(mlp_step, MLP, ROWS, num_stages=2, mesh=wide, schedule="gpipe")
    found["resnet"] = trained(adam_step(resnet), (RESNET, ADAM.init(RESNET)), IMAGES, 5, num_stages=2, mesh=wide)
    found["across"] = trained(gpt_step, adam, TOKENS, num_stages=2, mesh=across)
    found["scanned"] = trained(scanned_step, STACKED, ROWS, num_stages=2, mesh=wide)
    uneven = [Mesh(np.array(part, dtype=object), ("data",)) for part in (devices[:1], devices[1:3], devices[3:7], devices[7:])]
    found["uneven"] = trained(mlp_step, MLP, ROWS, num_stages=4, mesh=uneven)
    whole = NamedSharding(wide, P("data"))
    last = NamedSharding(mesh_of(devices[-2:], 1, 2), P("data"))
    for name, sharding in (("everywhere", whole), ("last", last)):
        place = lambda batch, sharding=sharding: jax.tree.map(  # noqa: E731
            lambda a: jax.make_array_from_callback(a.shape, sharding, lambda index: a[index], dtype=a.dtype), batch
        )
        found[f"batch {name}"] = trained(mlp_step, MLP, ROWS, 2, place, num_stages=PROCESSES, mesh=wide)
    run = sp.pipeline(noisy, num_microbatches=4, num_stages=PROCESSES, mesh=wide, batch_argnums=1)
    expected = jax.jit(jax.value_and_grad(noisy))(MLP, ROWS, jax.random.key(0))
    found["verified"] = {"worst": sp.pipeline(mlp_step, num_microbatches=4, num_stages=2, mesh=wide).verify(MLP, ROWS)}
    found["init"] = initialized(wide)
    found["noisy"] = {"worst": gap(run(MLP, ROWS, jax.random.key(0)), expected)}
    return found


def initial(key: Any) -> Any:
    params = {name: jax.random.normal(jax.random.fold_in(key, i), a.shape) / 4 for i, (name, a) in enumerate(MLP.items())}
    return {"params": params, "moments": ADAM.init(params), "key": key}


def keyed_step(state: Any, batch: Any) -> Any:
    loss, gradients = jax.value_and_grad(mlp)(state["params"], batch)
    updates, moments = ADAM.update(gradients, state["moments"], state["params"])
    return {"params": optax.apply_updates(state["params"], updates), "moments": moments, "key": state["key"]}, loss


def resumed() -> dict[str, Any]:
    """Goes on from the last checkpoint of a folder, or from the beginning; cut otherwise for every number of processes."""
    devices = start() if PROCESSES > 1 else jax.devices()
    run = sp.pipeline(
        keyed_step, num_microbatches=4, num_stages=PROCESSES, mesh=mesh_of(devices, PROCESSES, EACH), donate_argnums=0, peer_timeout=10
    )
    folder, key = os.environ["FOLDER"], jax.random.key(3)
    run.build(jax.eval_shape(initial, key), ROWS)
    before = run.saved_steps(folder)
    state, losses = run.restore(folder) if before else run.init(initial, key), []
    for _ in range(3):
        state, loss = run(state, ROWS)
        losses.append(float(loss))
    step = run.save(folder, state)
    twice, missing = error_of(lambda: run.save(folder, state, step=step)), error_of(lambda: run.restore(folder, step=99))
    alone, expected = initial(key), []
    for _ in range(3 * len(before) + 3):
        alone, loss = jax.jit(keyed_step)(alone, ROWS)
        expected.append(float(loss))
    held = sum(bool(x.addressable_shards) for x in jax.tree.leaves(state["params"]))
    found = {
        "losses": losses, "expected": expected[-3:], "before": before, "step": step, "twice": twice, "missing": missing, "held": held,
        "worst": gap((state["params"], state["moments"]), (alone["params"], alone["moments"])),
    }  # fmt: skip
    if "KILLED" in os.environ:
        process, when = os.environ["KILLED"].split(" ", 1)
        if PROCESS == int(process):
            print(json.dumps(found), flush=True)
            if when == "between steps":
                killed()
            ocp.type_handlers.ArrayHandler.serialize = killed
        found["killed"] = error_of(lambda: run(state, ROWS) if when == "between steps" else run.save(folder, state))
    return found


def killed(*_: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def planned() -> dict[str, Any]:
    """Stages by a planner, which the first process asks for all."""
    mesh = len(start())
    planner = sp.Planner(hardware="h100", time_limit_s=20)
    options = {"num_stages": 2, "mesh": mesh, "planner": planner}
    run = sp.pipeline(mlp_step, num_microbatches=4, **options)
    with contextlib.nullcontext() if PROCESS == 0 else mock.patch.object(StagePlanner, "_chosen", side_effect=AssertionError):
        run.build(MLP, ROWS)
    worst = gap(run(MLP, ROWS), jax.jit(mlp_step)(MLP, ROWS))
    tight = sp.pipeline(mlp_step, num_microbatches=4, **{**options, "planner": dataclasses.replace(planner, memory_bytes=100)})
    report, tight_error = run.report(), error_of(lambda: tight(MLP, ROWS))
    return {
        "worst": worst, "search": str(run.search), "report": str(report), "seconds": report.simulation.makespan, "tight": tight_error,
    }  # fmt: skip


def error_of(call: Any) -> list[str]:
    try:
        call()
    except Exception as error:
        return [type(error).__name__, str(error)]
    return []


def refused() -> dict[str, Any]:
    """What cannot run says why before it is compiled, in every process."""
    with mock.patch.object(socket.socket, "getsockname", return_value=("", 0)):  # port 0
        devices = start()
    wide = mesh_of(devices, PROCESSES, EACH)
    run = sp.pipeline(mlp, num_stages=2, num_microbatches=4, mesh=wide)
    found = {"port": error_of(lambda: run(MLP, ROWS))}
    other = mesh_of(devices[:2], 2, 1)
    found["part"] = error_of(lambda: sp.pipeline(mlp, num_stages=2, num_microbatches=4, mesh=other)(MLP, ROWS))
    across = Mesh(np.array(devices, dtype=object).reshape(PROCESSES, EACH).T[:2], ("stage", "data"))
    run = sp.pipeline(mlp, num_stages=2, num_microbatches=4 if PROCESS else 8, mesh=across)
    found["different"] = error_of(lambda: run(MLP, ROWS))
    run = sp.pipeline(mlp, num_stages=2, num_microbatches=4, mesh=across, schedule="gpipe")
    found["values"] = error_of(lambda: run(jax.tree.map(lambda a: a + PROCESS, MLP), ROWS))
    return found


def failing() -> dict[str, Any]:
    """In the second step process 1 raises in a task, is killed in one, or stays away, as the environment says."""
    devices, how = start(), os.environ["HOW"]
    run = sp.pipeline(mlp_step, num_stages=PROCESSES, num_microbatches=4, mesh=mesh_of(devices, PROCESSES, EACH), peer_timeout=3)
    state, _ = run(MLP, ROWS)
    if PROCESS == 1 and how == "stays away":
        time.sleep(13)
    elif PROCESS == 1:
        runner = run._runner
        assert runner is not None
        call = killed if how == "killed" else mock.Mock(side_effect=OSError("no part-3"))
        runner.steps["B", 1] = dataclasses.replace(runner.steps["B", 1], call=call)
    begin = time.monotonic()
    error = error_of(lambda: run(state, ROWS))
    return {"error": error, "seconds": time.monotonic() - begin}


if __name__ == "__main__":
    modes = {f.__name__: f for f in (numbers, refused, failing, resumed, planned)}
    print(json.dumps(modes[MODE]()), flush=True)
    if MODE == "failing" or "KILLED" in os.environ:
        time.sleep(20)  # until it is ended: leaving would end the others too
