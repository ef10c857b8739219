"""One of the processes of tests/test_multi_process.py: `multi_process_worker.py MODE PROCESS PROCESSES PORT LOWERING`.

Prints one line of JSON at the end of modes that end; 8 devices in all, in one process or several.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import re
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any
from unittest import mock

MODE, PROCESS, PROCESSES, PORT, LOWERING = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4], sys.argv[5]
os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = re.sub(r"(?<=device_count=)\d+", str(8 // PROCESSES), os.environ["XLA_FLAGS"])

import shardy_py as sp  # isort: skip  (asks for enough threads, before jax is imported)
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from shardy_py.api import agreement
from shardy_py.planner.search import Searcher

BATCH, WIDTH, STEPS = 32, 64, 300


def start() -> Any:
    if PROCESSES > 1:
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
        jax.distributed.initialize(
            f"127.0.0.1:{PORT}", PROCESSES, PROCESS,
            initialization_timeout=60, heartbeat_timeout_seconds=15, shutdown_timeout_seconds=20,
        )  # fmt: skip
    return jax.make_mesh((2, 4), ("data", "model"), axis_types=(AxisType.Auto,) * 2)


def step(params: Any, batch: Any) -> Any:
    """Collectives over each axis and, for the loss, over both."""

    def loss_of(params: Any) -> Any:
        hidden = jnp.tanh(batch["x"] @ params["up"])
        return jnp.mean((hidden @ params["down"] - batch["y"]) ** 2)

    loss, grads = jax.value_and_grad(loss_of)(params)
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), loss


SPECS = ({"up": P(None, "model"), "down": None}, {"x": P("data"), "y": None})


def data() -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    random = np.random.default_rng(0)
    params = {"up": random.normal(size=(WIDTH, 2 * WIDTH)) / 8, "down": random.normal(size=(2 * WIDTH, WIDTH)) / 8}
    batch = {"x": random.normal(size=(BATCH, WIDTH)), "y": random.normal(size=(BATCH, WIDTH))}
    return jax.tree.map(lambda a: a.astype(np.float32), (params, batch))


def decorated(fun: Callable[..., Any], mesh: Any, in_shardings: Any = SPECS, **keywords: Any) -> Any:
    keywords.setdefault("options", sp.Options(peer_timeout=120))
    return sp.auto_shard(fun, mesh=mesh, in_shardings=in_shardings, lowering=LOWERING, **keywords)


def everywhere(whole: Any, shardings: Any) -> Any:
    """Global arrays of values that every process has."""
    return jax.tree.map(lambda a, s: jax.make_array_from_callback(a.shape, s, lambda index: a[index]), whole, shardings)


def own_part(whole: np.ndarray, sharding: NamedSharding) -> Any:
    """A global array of the rows that belong to this process."""
    rows = whole.shape[0] // PROCESSES
    return jax.make_array_from_process_local_data(sharding, whole[PROCESS * rows : (PROCESS + 1) * rows])


def error_of(call: Callable[[], Any]) -> list[str]:
    try:
        jax.block_until_ready(call())
    except Exception as error:
        return [*(kind.__name__ for kind in type(error).__mro__ if kind.__module__.startswith(("shardy_py", "builtins"))), str(error)]
    return []


def train() -> dict[str, Any]:
    """Un-blocked steps with donation; what a process gives in different forms gives the same numbers."""
    mesh = start()
    trained = decorated(step, mesh, donate_argnums=0)
    whole = data()
    plan = trained.plan(*whole)
    placed = plan.input_shardings
    params = everywhere(whole[0], placed[0])
    batch = {"x": own_part(whole[1]["x"], placed[1]["x"]), "y": everywhere(whole[1]["y"], placed[1]["y"])}
    first, losses = params, []
    for _ in range(STEPS):
        params, loss = trained(params, batch)
        losses.append(loss)
    found: dict[str, Any] = {"deleted": [a.is_deleted() for a in jax.tree.leaves(first)], "plans": trained.plan_count}
    found |= {"losses": [float(loss) for loss in losses], "plan": plan.as_text()}
    found["digests"] = [hashlib.sha256(t.encode()).hexdigest() for t in (plan.as_text(), trained.lower(*whole).as_text())]
    found["reused"] = error_of(lambda: trained(first, batch))

    kept = decorated(step, mesh)
    local = jax.make_mesh((len(jax.local_devices()),), ("model",), axis_types=(AxisType.Auto,), devices=jax.local_devices())
    asarrays = jax.tree.map(jnp.asarray, whole)
    undecided = decorated(step, mesh, ({"up": P(None, "model"), "down": None}, None))
    calls: dict[str, Callable[[], Any]] = {
        "uncommitted": lambda: kept(*asarrays),
        "uncommitted, donated": lambda: trained(*asarrays),
        "global": lambda: kept(*everywhere(whole, placed)),
        "numpy where nothing was asked": lambda: kept(asarrays[0], {"x": batch["x"], "y": whole[1]["y"]}),
        "numpy, again": lambda: kept(asarrays[0], {"x": batch["x"], "y": whole[1]["y"]}),
        "numpy params": lambda: undecided({"up": asarrays[0]["up"], "down": whole[0]["down"]}, whole[1]),
        "mapping": lambda: decorated(step, {"data": 2, "model": 4})(*asarrays),
        "own devices": lambda: decorated(step, local, ({"up": P(None, "model"), "down": None}, None))(*whole),
        "under jit": lambda: jax.jit(lambda params, batch: kept(params, batch))(*everywhere(whole, placed)),
    }
    found["calls"] = {name: float(call()[1]) for name, call in calls.items()}
    here = jax.device_put(whole[1]["x"], jax.local_devices()[0])
    found["errors"] = {
        "numpy": error_of(lambda: kept(*whole)),
        "one device": error_of(lambda: kept(asarrays[0], {"x": here, "y": asarrays[1]["y"]})),
    }
    return found


def total(x: Any) -> Any:
    return jnp.sum(x)


def largest(x: Any) -> Any:
    return jnp.max(x)


def mismatch() -> dict[str, Any]:
    """Differences end in errors in both processes, and what agrees runs afterwards."""
    mesh = start()
    spec = P("data") if PROCESS == 0 else P(None, "data")
    factor, table = 2.0 + PROCESS, np.full(1 << 23, 1.0 + PROCESS, np.float32)
    x, longer = jnp.ones((16, 16)), jnp.ones((16 * (PROCESS + 1), 16))

    def scaled(x: Any) -> Any:
        return jnp.sum(x * factor)

    def averaged(x: Any) -> Any:
        return jnp.sum(x) + jnp.mean(jnp.asarray(table))

    def updated(params: Any, x: Any, rate: Any) -> Any:
        return jax.tree.map(lambda p: p - rate * jnp.mean(x), params)

    params, own = data()[0], jax.tree.map(lambda a: a + PROCESS, data()[0])
    updates = functools.partial(decorated, updated, mesh, (None, P("data"), None))
    found: dict[str, Any] = {
        "sharding": error_of(lambda: decorated(total, mesh, spec)(x)),
        "number": error_of(lambda: decorated(scaled, mesh, P("data"))(x)),
        "shape": error_of(lambda: decorated(total, mesh, P("data"))(longer)),
        "function": error_of(lambda: decorated((total, largest)[PROCESS], mesh, P("data"))(x)),
        "constant": error_of(lambda: decorated(averaged, mesh, P("data"))(x)),
        "sharding, jit": error_of(lambda: jax.jit(decorated(total, mesh, spec))(x)),
        "number, grad": error_of(lambda: jax.grad(decorated(scaled, mesh, P("data")))(x)),
        "number, jit of grad": error_of(lambda: jax.jit(jax.grad(decorated(scaled, mesh, P("data"))))(x)),
        "number, vmap": error_of(lambda: jax.vmap(decorated(scaled, mesh, P("data")))(x[None])),
        "sharding, compiled": error_of(lambda: decorated(total, mesh, spec).lower(x).compile()(x)),
        "sharding, jit lowered": error_of(lambda: jax.jit(decorated(total, mesh, spec)).lower(x).compile()(x)),
        "values": error_of(lambda: updates()(own, x, 0.1)),
        "values, donated": error_of(lambda: updates(donate_argnums=0)(jax.tree.map(jnp.asarray, own), x, 0.1)),
        "rate": error_of(lambda: updates()(params, x, 0.1 * (PROCESS + 1))),
        "rate, compiled": error_of(lambda: updates().lower(params, x, 0.1).compile()(params, x, 0.1 * (PROCESS + 1))),
        "key": error_of(lambda: decorated(lambda x, key: x + jax.random.normal(key), mesh, (P("data"), None))(x, jax.random.key(PROCESS))),
    }
    with jax.default_matmul_precision(("default", "highest")[PROCESS]):
        found["setting"] = error_of(lambda: decorated(total, mesh, P("data"))(x))
    rows = everywhere(np.arange(256.0, dtype=np.float32).reshape(16, 16), NamedSharding(mesh, P("data")))
    found["same"] = [float(decorated(total, mesh, P("data"))(x)), float(updates()(params, rows, 0.1)["up"][0, 0])]
    stages = {"stage": 4, "data": 2}
    weights = [jnp.ones((8, 8))] * 4
    pipelined = sp.pipeline(lambda w, x: jnp.mean(functools.reduce(jnp.matmul, w, x)), num_stages=4, num_microbatches=2, mesh=stages)
    found["pipeline"] = error_of(lambda: pipelined(weights, jnp.ones((4, 8))))
    return found


def waiting() -> dict[str, Any]:
    """Processes that look alone, come late, fail, or have none of a mesh's devices."""
    agreement.AHEAD = 1.0
    mesh, x, found = start(), jnp.ones((16, 16)), {}
    same = decorated(total, mesh, P("data"), options=sp.Options(peer_timeout=60))
    if PROCESS == 0:  # looks for itself
        same.plan(x)
        jax.make_jaxpr(same)(x)
        same.lower(x).compile().memory_analysis()
        jax.jit(same).lower(x).as_text()
    found["same"] = [float(jax.jit(same)(x)), float(same(x))]
    same.clear_cache()
    if PROCESS == 0:  # agreed on before: nobody is asked
        found["again"] = same.plan(x).as_text()
    for late, seconds in ((0, 5), (1, 8)):
        waits = decorated(total, mesh, P("model"), options=sp.Options(peer_timeout=1))
        started = time.monotonic()
        if PROCESS == late:
            time.sleep(seconds)
        found[f"late {late}"] = error_of(lambda f=waits: f(x))
        found[f"seconds {late}"] = time.monotonic() - started
    found["after"] = float(decorated(total, mesh, P(("data", "model")))(x))

    def failing(x: Any) -> Any:
        if PROCESS == 1:
            raise KeyError("no part-3")
        return jnp.sum(x) + 1

    found["traced"] = error_of(lambda: decorated(failing, mesh, P("data"))(x))
    found["traced, jit"] = error_of(lambda: jax.jit(decorated(failing, mesh, P("data")))(x))
    with mock.patch.object(jax.stages.Lowered, "compile", side_effect=RuntimeError("no memory")) if PROCESS == 1 else nullcontext():
        found["compiled"] = error_of(lambda: decorated(lambda x: jnp.sum(x) + 2, mesh, P("data"))(x))
    found["both"] = error_of(lambda: decorated(total, mesh, P("data"))(object()))
    if PROCESS == 1:
        time.sleep(7)  # longer than a failure is doubted
    found["caught"] = float(decorated(lambda x: jnp.sum(x) + 3, mesh, P("data"))(x))
    own = jax.make_mesh((4,), ("data",), devices=jax.devices()[:4], axis_types=(AxisType.Auto,))
    found["idle"] = error_of(lambda: decorated(total, own, P("data"))(x))
    found["verified"] = str(decorated(total, own, P("data")).verify(x))
    return found


def planned() -> dict[str, Any]:
    """Process 0 searches for both; what it finds, and what it does not, reaches the other."""
    mesh, (params, batch), found = start(), data(), {}
    ample, tight = sp.Planner(hardware="h100"), sp.Planner(hardware="h100", memory_bytes=1 << 10)
    kept = mock.patch.object(Searcher, "run", autospec=True, side_effect=Searcher.run if PROCESS == 0 else AssertionError("searches"))
    with kept as run:
        trained = decorated(step, mesh, None, planner=ample, donate_argnums=0)
        if PROCESS == 0:  # looks for itself: nobody is waited for
            trained.plan(params, batch)
        found["loss"] = float(trained(params, batch)[1])
        plan = trained.plan(params, batch)
        shaped = decorated(step, 8, None, planner=ample)
        found["shaped"] = float(shaped(params, batch)[1])
        found["texts"] = [plan.to_json(), shaped.plan(params, batch).to_json()]
        found["figures"] = [plan.search.objective_seconds, dict(plan.search.timings)]
        found["infeasible"] = error_of(lambda: decorated(step, mesh, None, planner=tight)(params, batch))
        found["searches"] = run.call_count
    with mock.patch.object(Searcher, "run", side_effect=RuntimeError("no solver")):
        found["failed"] = error_of(lambda: decorated(jnp.sum, mesh, None, planner=ample)(batch["x"]))
    found["different"] = error_of(lambda: decorated((total, largest)[PROCESS], mesh, None, planner=ample)(batch["x"]))
    return found


def ending() -> dict[str, Any]:
    """Process 1 fails while it reads its data, before it calls anything; its last words are those of Python."""
    mesh, x = start(), jnp.ones((16, 16))
    called = decorated(total, mesh, P("data"))
    started = time.monotonic()
    if PROCESS == 1:
        time.sleep(2)
        raise OSError("no part-3")
    return {"error": error_of(lambda: called(x)), "seconds": time.monotonic() - started}


def slow() -> dict[str, Any]:
    """Process 1 comes later than anybody could wait who has lost patience."""
    mesh = start()
    called = decorated(total, mesh, P("data"), options=sp.Options())
    started = time.monotonic()
    time.sleep(35 * PROCESS)
    return {"total": float(called(jnp.ones((16, 16)))), "seconds": time.monotonic() - started}


def loop() -> dict[str, Any]:
    """Steps without end; says when they run."""
    mesh = start()
    trained = decorated(step, mesh, donate_argnums=0)
    params, batch = jax.tree.map(jnp.asarray, data())
    for i in range(10**9):
        params, loss = trained(params, batch)
        if i % 50 == 20:
            jax.block_until_ready(loss)
        if i == 20:
            print(f"running as {os.getpid()}", flush=True)
    return {}


def many() -> dict[str, Any]:
    """1,000 un-blocked steps with collectives over either axis, in one process."""
    mesh = start()
    trained = decorated(step, mesh, donate_argnums=0)
    params, batch = jax.tree.map(jnp.asarray, data())
    for _ in range(1000):
        params, loss = trained(params, batch)
    return {"loss": float(loss), "threads": os.environ.get("PJRT_NPROC")}  # pyright: ignore[reportPossiblyUnboundVariable]


def late_threads() -> dict[str, Any]:
    """The same, where the devices had started before the package was asked for anything."""
    jax.devices()
    os.environ.pop("PJRT_NPROC", None)
    return many()


if __name__ == "__main__":
    modes = {f.__name__: f for f in (train, mismatch, waiting, planned, ending, slow, loop, many, late_threads)}
    print(json.dumps(modes[MODE]()), flush=True)
