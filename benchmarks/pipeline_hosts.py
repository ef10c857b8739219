"""Pipelines over several processes of this machine: a step beside its simulation, CPU time per task, lists under hash seeds, a soak.

    python benchmarks/pipeline_hosts.py                  # 2 and 4 processes with tasks of 20 and 40 ms
    python benchmarks/pipeline_hosts.py --soak=300       # 4 processes train, one is killed at random, all go on from the last checkpoint
    python benchmarks/pipeline_hosts.py --models         # VGG16, ResNet-50 and GNMT as PipeDream cuts them for 2 hosts of 4 machines

What a task gives comes 20 or 40 ms later, by a callback that sleeps, so that stages do not share the cores of this machine; a step should
take at most 1.08 of its simulated time. CPU seconds are those of the thread that hands out tasks and transfers, per entry of the list;
most of them are tasks of other processes.

PipeDream's models run as its optimizer cuts them for 2 hosts of 4 machines: as many stages, each on as many machines, and a process for
each machine. In place of layers the tasks of a stage sleep, in proportion to its seconds by PipeDream's profile and cost model,
a third of them in the forward pass. The order of the configurations should be the predicted one. The profiles are looked for in `../shared`
or `$SHARDY_SHARED`.
"""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import random
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from typing import Any

os.environ.setdefault("NPROC", "64")
os.environ.setdefault("JAX_PLATFORMS", "cpu")

from absl import app, flags

STEPS = flags.DEFINE_integer("steps", 10, "Steps that are measured.", lower_bound=1)
SOAK = flags.DEFINE_integer("soak", 0, "Steps of the soak; 0 leaves it out.", lower_bound=0)
MODELS = flags.DEFINE_bool("models", False, "PipeDream's models in place of the rest.")
SAVE_EVERY = flags.DEFINE_integer("save_every", 50, "Steps between two checkpoints of the soak.", lower_bound=1)
WORKER = flags.DEFINE_string("worker", None, "What one process does; for this script itself.")
PROCESS = flags.DEFINE_integer("process", 0, "Its number.")
PROCESSES = flags.DEFINE_integer("processes", 2, "How many there are.")
PORT = flags.DEFINE_integer("port", 0, "The port of the first one.")
FOLDER = flags.DEFINE_string("folder", "", "Where the soak saves.")

FORWARD, BACKWARD, ROWS, WIDTH = 0.02, 0.04, 8, 16
SETTINGS = ((2, 4), (4, 8))
"""Processes, each a stage, and microbatches."""


def start_process() -> Any:
    import jax

    jax.config.update("jax_num_cpu_devices", 1)
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        jax.config.update("jax_cross_host_transfer_socket_address", f"127.0.0.1:{free.getsockname()[1]}")
    jax.distributed.initialize(f"127.0.0.1:{PORT.value}", PROCESSES.value, PROCESS.value, heartbeat_timeout_seconds=20)
    return jax


def sleeping(jax: Any, call: Any, seconds: float) -> Any:
    """A program whose results come so much later."""

    def wait(*values: Any) -> Any:
        time.sleep(seconds)
        return values

    @jax.jit
    def late(*values: Any) -> Any:
        return jax.pure_callback(wait, tuple(jax.ShapeDtypeStruct(x.shape, x.dtype) for x in values), *values)

    return lambda *values: late(*call(*values))


def loss_of(jax: Any) -> Any:
    import shardy_py as sp

    def loss(params: Any, x: Any) -> Any:
        for i, layer in enumerate(params):
            with sp.stage(f"stage{i}"):
                x = x + jax.numpy.tanh(x @ layer)
        return jax.numpy.mean(x**2)

    return loss


def measured(jax: Any, *, sleep: bool) -> dict[str, Any]:
    import numpy as np

    import shardy_py as sp

    count = dict(SETTINGS)[PROCESSES.value]
    mesh = jax.sharding.Mesh(np.array(jax.devices()), ("stage",))
    params = [np.full((WIDTH, WIDTH), 0.01 * (i + 1), np.float32) for i in range(PROCESSES.value)]
    x = np.ones((ROWS * count, WIDTH), np.float32)
    run = sp.pipeline(loss_of(jax), num_microbatches=count, mesh=mesh, peer_timeout=60)
    jax.block_until_ready(run(params, x))
    runner = run._runner
    assert runner is not None
    for (role, stage), task in runner.steps.items():
        if sleep and stage == PROCESS.value:
            late = sleeping(jax, task.call, FORWARD if role == "F" else BACKWARD)
            runner.steps[role, stage] = dataclasses.replace(task, call=late)
    seconds, cpu = [], []
    for _ in range(STEPS.value + 2):
        begin = time.perf_counter()
        jax.block_until_ready(run(params, x))
        seconds.append(time.perf_counter() - begin)
        cpu.append(run.statistics.dispatch_cpu_seconds / run.statistics.tasks * 1e6)
    simulated = sp.pipelines.simulate(run.schedule, forward=FORWARD, backward=BACKWARD, weight=0.0).makespan
    order = [str(entry) for entry in runner.order]
    return {"seconds": seconds[2:], "cpu": cpu[2:], "simulated": simulated, "order": order}


GRAPHS = pathlib.Path(os.environ.get("SHARDY_SHARED") or pathlib.Path(__file__).resolve().parents[2] / "shared") / "data/pipedream/graphs"
HOST, HOSTS, RATES = 4, 2, (1e10, 1e9)
"""Machines in a host, hosts, bytes per second inside of one and between them."""

MINIBATCHES, FASTEST = 48, 0.1
"""Minibatches of a step, and seconds that each takes in the fastest configuration."""

Configuration = tuple[float, list[tuple[list[int], float]]]
"""Predicted seconds per minibatch, and the machines and seconds of each stage."""


def configurations(model: str) -> dict[str, Configuration]:
    """What PipeDream's optimizer chooses, a straight pipeline, and none."""
    from shardy_py.pipedream import partition, read_graph

    graph = read_graph((GRAPHS / f"{model}.txt").read_text())
    parameters = sum(node.parameter_bytes for node in graph.nodes)
    chosen: dict[str, Configuration] = {}
    for name, straight in (("PipeDream's", False), ("straight", True)):
        cut = partition(graph, [HOST, HOSTS], RATES, "exact", activation_compression=1, straight=straight)
        hosts, left = [list(range(HOST)) for _ in range(HOSTS)], list(cut.stages)
        stages: list[tuple[list[int], float]] = []
        first = 0
        for part in cut.levels[0]:  # which some hosts share, each with a pipeline over its machines
            copies, machines = part.replication, HOST
            own = [left.pop(0)]
            while sum(stage.replication for stage in own) < copies * HOST:
                own.append(left.pop(0))
            summed = 4 * (copies - 1) * sum(stage.parameter_bytes for stage in own) / (RATES[1] * copies) / HOST
            for stage in own:
                w = stage.replication // copies
                computing = (stage.seconds + 4 * (w - 1) * stage.parameter_bytes / (RATES[0] * w)) / w
                moved = [(stage.bytes_in, stage is own[0]), (stage.bytes_out, stage is own[-1])]
                within = [2 * size / (RATES[0] * w) for size, outside in moved if not outside]
                between = [2 * size / (RATES[1] * copies) for size, outside in moved if outside]
                start, machines = HOST - machines, machines - w
                taken = [host * HOST + m for host in range(first, first + copies) for m in hosts[host][start : start + w]]
                stages.append((taken, max((max(computing, *within, 0.0) + summed) / copies, *between, 0.0)))
            first += copies
        chosen[name] = cut.pipeline_time, stages
    inside = (sum(node.time_ms for node in graph.nodes) / 1e3 + 4 * (HOST - 1) * parameters / (RATES[0] * HOST)) / HOST
    whole = (inside + 4 * (HOSTS - 1) * parameters / (RATES[1] * HOSTS) / HOST) / HOSTS
    chosen["data parallel"] = whole, [(list(range(HOST * HOSTS)), whole)]
    return chosen


def asleep(jax: Any, call: Any, mesh: Any, seconds: float) -> Any:
    """A program on several devices whose results come so much later on each."""
    wait = lambda *values: (time.sleep(seconds), values)[1]  # noqa: E731
    late: list[Any] = []

    def body(*values: Any) -> Any:
        return jax.pure_callback(wait, tuple(jax.ShapeDtypeStruct(x.shape, x.dtype) for x in values), *values)

    def run(*values: Any) -> Any:
        results = call(*values)
        if not late:
            specs = tuple(x.sharding.spec for x in results)
            late.append(jax.jit(jax.shard_map(body, mesh=mesh, in_specs=specs, out_specs=specs, check_vma=False)))
        return late[0](*results)

    return run


def modelled(jax: Any) -> dict[str, Any]:
    import numpy as np

    import shardy_py as sp

    measured: dict[str, Any] = {}
    for model in ("vgg16", "resnet50", "gnmt"):
        all_of = configurations(model)
        scale = FASTEST / min(seconds for seconds, _ in all_of.values())
        for name, (predicted, stages) in all_of.items():
            devices = [[jax.devices()[i] for i in machines] for machines, _ in stages]
            meshes = [jax.sharding.Mesh(np.array(each, dtype=object), ("data",)) for each in devices]
            params = [np.full((WIDTH, WIDTH), 0.01, np.float32) for _ in stages]
            x = np.ones((ROWS * MINIBATCHES, WIDTH), np.float32)
            run = sp.pipeline(loss_of(jax), num_microbatches=MINIBATCHES, num_stages=len(stages), mesh=meshes, peer_timeout=600)
            run(params, x)
            runner = run._runner
            assert runner is not None
            for (role, s), task in runner.steps.items():
                if runner.places.is_here(s):
                    late = asleep(jax, task.call, runner.places.mesh(s), scale * stages[s][1] * (1 if role == "F" else 2) / 3)
                    runner.steps[role, s] = dataclasses.replace(task, call=late)
            took = []
            for _ in range(1 if predicted * scale * MINIBATCHES > 30 else 2):  # as many in every process
                begin = time.perf_counter()
                jax.block_until_ready(run(params, x))
                took.append(time.perf_counter() - begin)
            times = [seconds for _, seconds in stages]
            costs = {"forward": [t / 3 for t in times], "backward": [2 * t / 3 for t in times], "weight": 0.0}
            simulated = sp.pipelines.simulate(run.schedule, **costs).makespan / MINIBATCHES
            shown = "-".join(str(len(machines)) for machines, _ in stages)
            measured.setdefault(model, []).append((name, shown, predicted, simulated, min(took) / MINIBATCHES / scale))
    return {"models": measured}


def soaked(jax: Any) -> dict[str, Any]:
    import numpy as np

    import shardy_py as sp

    loss = loss_of(jax)

    def step(params: Any, x: Any) -> Any:
        value, gradients = jax.value_and_grad(loss)(params, x)
        return jax.tree.map(lambda p, g: p - 0.01 * g, params, gradients), value

    def init(key: Any) -> Any:
        return [jax.random.normal(each, (WIDTH, WIDTH)) / 8 for each in jax.random.split(key, PROCESSES.value)]

    key, x = jax.random.key(0), np.sin(np.arange(4 * ROWS * WIDTH, dtype=np.float32)).reshape(-1, WIDTH)
    mesh = jax.sharding.Mesh(np.array(jax.devices()), ("stage",))
    run = sp.pipeline(step, num_microbatches=4, mesh=mesh, donate_argnums=0, peer_timeout=30)
    run.build(jax.eval_shape(init, key), x)
    first = max(run.saved_steps(FOLDER.value), default=0)
    params = run.restore(FOLDER.value) if first else run.init(init, key)
    alone, value = init(key), 0.0
    for _ in range(first):
        alone, _ = jax.jit(step)(alone, x)
    worst = 0.0
    for number in range(first + 1, SOAK.value + 1):
        params, value = run(params, x)
        alone, expected = jax.jit(step)(alone, x)
        worst = max(worst, abs(float(value) - float(expected)))
        if number % SAVE_EVERY.value == 0:
            run.save(FOLDER.value, params, step=number)
            pages = pathlib.Path("/proc/self/statm").read_text().split()[1]
            print(f"memory {int(pages) * os.sysconf('SC_PAGE_SIZE') >> 20}")
        print(f"step {number}", flush=True)
    return {"first": first, "worst": worst, "loss": float(value)}


def launched(worker: str, processes: int, folder: pathlib.Path, kill_after: int = 0, **environment: str) -> list[dict[str, Any]]:
    """What the processes say; with `kill_after` one of them is killed once it has done so many steps."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    own = [f"--{f.name}={f.value}" for f in (STEPS, SOAK, SAVE_EVERY)]
    common = [sys.executable, __file__, f"--worker={worker}", f"--processes={processes}", f"--port={port}", f"--folder={folder}", *own]
    outputs = [folder.parent / f"out{i}" for i in range(processes)]
    started = []
    for i, out in enumerate(outputs):
        with out.open("w") as to:
            environ = {**os.environ, **environment}
            started.append(subprocess.Popen([*common, f"--process={i}"], stdout=to, stderr=subprocess.STDOUT, env=environ))
    victim = random.randrange(processes)
    while any(process.poll() is None for process in started):
        time.sleep(0.2)
        if kill_after and f"step {kill_after}\n" in outputs[victim].read_text():
            begin = time.monotonic()
            started[victim].send_signal(signal.SIGKILL)
            survivors = [out for i, out in enumerate(outputs) if i != victim]
            while not all("PeerFailedError" in out.read_text() for out in survivors) and time.monotonic() - begin < 30:
                time.sleep(0.05)
            told = sum(f"process {victim} " in out.read_text() for out in survivors)
            print(
                f"killed process {victim} after step {kill_after}: {told} of {len(survivors)} named it in {time.monotonic() - begin:.1f} s"
            )
            for process in started:
                process.kill()
                process.wait()
            return [{"memory": memory_of(out.read_text())} for out in outputs]
    texts = [out.read_text() for out in outputs]
    results = [[line[7:] for line in text.splitlines() if line.startswith("RESULT ")] for text in texts]
    for text, lines in zip(texts, results):
        if not lines:
            raise SystemExit(text[-3000:])
    return [{**json.loads(line), "memory": memory_of(text)} for text, (line,) in zip(texts, results)]


def memory_of(text: str) -> list[int]:
    """MiB at each checkpoint, as a process prints them."""
    return [int(line[7:]) for line in text.splitlines() if line.startswith("memory ")]


def main(argv: list[str]) -> None:
    del argv
    if WORKER.value:
        jax = start_process()
        work = {"sleeping": lambda: measured(jax, sleep=True), "idle": lambda: measured(jax, sleep=False), "soak": lambda: soaked(jax)}
        work["models"] = lambda: modelled(jax)
        print("RESULT " + json.dumps(work[WORKER.value]()), flush=True)
        return
    folder = pathlib.Path(tempfile.mkdtemp()) / "checkpoints"
    try:
        if SOAK.value:
            before = launched(
                "soak", 4, folder, kill_after=random.randrange(SAVE_EVERY.value, max(SOAK.value - SAVE_EVERY.value, SAVE_EVERY.value + 1))
            )
            results = launched("soak", 4, folder)
            worst = max(result["worst"] for result in results)
            print(f"went on from step {results[0]['first']} to {SOAK.value}, losses within {worst:.1e} of one device")
            for i, (first, second) in enumerate(zip(before, results)):
                print(f"process {i}: MiB at each checkpoint {first['memory']}, then {second['memory']}")
            return
        if MODELS.value:
            for model, rows in launched("models", HOST * HOSTS, folder)[0]["models"].items():
                ordered = [[row[0] for row in sorted(rows, key=lambda row: row[column])] for column in (2, 4)]
                print(f"{model}: {'in the predicted order' if ordered[0] == ordered[1] else 'in ANOTHER order than predicted'}")
                for name, shown, *seconds in rows:
                    predicted, simulated, took = (each * 1e3 for each in seconds)
                    print(
                        f"  {name:13} {shown:15} predicted {predicted:6.1f} ms per minibatch, simulated {simulated:6.1f}, took {took:6.1f}"
                    )
            return
        print(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
        for processes, count in SETTINGS:
            runs = [launched("sleeping", processes, folder, PYTHONHASHSEED=seed) for seed in ("1", "2")]
            orders = {tuple(result["order"]) for run in runs for result in run}
            seconds = [max(step) for step in zip(*(result["seconds"] for result in runs[0]))]
            simulated, median = runs[0][0]["simulated"], statistics.median(seconds)
            print(
                f"{processes} stages, {count} microbatches, 20 and 40 ms: step {median * 1e3:.0f} ms ({min(seconds) * 1e3:.0f} at best), "
                f"simulated {simulated * 1e3:.0f}: {median / simulated:.3f} ({min(seconds) / simulated:.3f}); "
                f"{len(orders)} list under two hash seeds"
            )
            cpu = [statistics.median(result["cpu"]) for result in launched("idle", processes, folder)]
            print(f"  CPU us per entry of the list, in each process: {', '.join(f'{each:.0f}' for each in cpu)}", flush=True)
    finally:
        shutil.rmtree(folder.parent)


if __name__ == "__main__":
    app.run(main)
