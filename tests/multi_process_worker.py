"""One of the processes of tests/test_multi_process.py: `multi_process_worker.py MODE PROCESS PROCESSES PORT LOWERING`.

Prints one line of JSON at the end of modes that end; 8 devices in all, in one process or several.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

MODE, PROCESS, PROCESSES, PORT, LOWERING = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4], sys.argv[5]
os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={8 // PROCESSES}"

import shardy_py as sp  # isort: skip  (asks for enough threads, before jax is imported)
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

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


def mismatch() -> dict[str, Any]:
    """Differences end in errors in both processes, and what agrees runs afterwards; then a process that does not come."""
    mesh = start()
    spec = P("data") if PROCESS == 0 else P(None, "data")
    factor = 2.0 + PROCESS
    x, longer = jnp.ones((16, 16)), jnp.ones((16 * (PROCESS + 1), 16))
    found: dict[str, Any] = {}

    def scaled(x: Any) -> Any:
        return jnp.sum(x * factor)

    def total(x: Any) -> Any:
        return jnp.sum(x)

    def largest(x: Any) -> Any:
        return jnp.max(x)

    found["sharding"] = error_of(lambda: decorated(total, mesh, spec)(x))
    found["number"] = error_of(lambda: decorated(scaled, mesh, P("data"))(x))
    found["shape"] = error_of(lambda: decorated(total, mesh, P("data"))(longer))
    found["function"] = error_of(lambda: decorated((total, largest)[PROCESS], mesh, P("data"))(x))
    same = decorated(total, mesh, P("data"), options=sp.Options(peer_timeout=30))
    found["same"] = float(same(x))
    same.clear_cache()
    if PROCESS == 0:  # agreed on before: nobody is asked
        found["again"] = same.plan(x).as_text()
    for late in (0, 1):
        waiting = decorated(total, mesh, P("model"), options=sp.Options(peer_timeout=1))
        started = time.monotonic()
        if PROCESS == late:
            time.sleep(7)
        found[f"late {late}"] = error_of(lambda f=waiting: f(x))
        found[f"seconds {late}"] = time.monotonic() - started
    found["after"] = float(decorated(total, mesh, P(("data", "model")), options=sp.Options(peer_timeout=30))(x))
    return found


def uneven() -> dict[str, Any]:
    """Process 1 brings a last batch of its own, while process 0 runs what was agreed on before."""
    mesh = start()
    total = decorated(lambda x: jnp.sum(x), mesh, P("data"), options=sp.Options())
    total(jnp.ones((16, 16))).block_until_ready()
    print("running", flush=True)
    return {"total": float(total(jnp.ones((16 - 8 * PROCESS, 16))))}


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
    """5,000 un-blocked steps with collectives over either axis, in one process."""
    mesh = start()
    trained = decorated(step, mesh, donate_argnums=0)
    params, batch = jax.tree.map(jnp.asarray, data())
    for _ in range(5000):
        params, loss = trained(params, batch)
    return {"loss": float(loss), "threads": os.environ.get("PJRT_NPROC")}


def late_threads() -> dict[str, Any]:
    """The same, where the devices had started before the package was asked for anything."""
    jax.devices()
    os.environ.pop("PJRT_NPROC", None)
    return many()


if __name__ == "__main__":
    modes = {"train": train, "mismatch": mismatch, "uneven": uneven, "loop": loop, "many": many, "late_threads": late_threads}
    print(json.dumps(modes[MODE]()), flush=True)
