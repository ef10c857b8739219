"""`shardy-py pipedream run`."""

from __future__ import annotations

import argparse
import os
import socket
import subprocess
import sys
from pathlib import Path

from shardy_py.cli.errors import CommandError
from shardy_py.cli.options import add_output
from shardy_py.cli.output import Output
from shardy_py.cli.pipedream.tables import VERSION
from shardy_py.cli.report import dumped
from shardy_py.cli.targets import lookup


def add(parser: argparse.ArgumentParser) -> None:
    """The options of the command."""
    parser.add_argument("directory", metavar="DIRECTORY", help="a package of Flax modules, as `pipedream convert` writes")
    parser.add_argument("data", metavar="MODULE:FUNCTION", help="gives the batch of a step, by its number: a tuple of inputs and targets")
    parser.add_argument("--loss", metavar="MODULE:FUNCTION", help="of outputs and targets; by default cross entropy with class numbers")
    parser.add_argument("--conf", metavar="NAME", help="hybrid, mp or dp: its configuration; by default hybrid where there is one, else mp")
    parser.add_argument("--steps", type=int, default=10, metavar="N", help="training steps; by default 10")
    parser.add_argument("--microbatches", type=int, default=4, metavar="N", help="parts of a batch; by default 4")
    parser.add_argument("--schedule", default="1f1b", metavar="NAME", help="their order: 1f1b (default), gpipe, zb-h1, ...")
    parser.add_argument("--learning-rate", type=float, default=0.01, metavar="R", help="of gradient descent; by default 0.01")
    group = parser.add_argument_group("processes, all on CPU devices of this machine unless --process says which one this is")
    group.add_argument("--processes", type=int, default=1, metavar="N", help="how many share the ranks; by default 1")
    group.add_argument("--process", type=int, metavar="I", help="the number of this one; the same command starts each of the others")
    group.add_argument("--coordinator", metavar="HOST:PORT", help="an address of process 0 with a free port")
    add_output(parser)


def run(options: argparse.Namespace, out: Output) -> int:
    """Trains a converted model, in processes that this one starts or as one of several."""
    names = [options.conf] if options.conf else ["hybrid", "mp"]
    files = [Path(options.directory) / f"{name}_conf.json" for name in names]
    conf = next((file for file in files if file.is_file()), None)
    if conf is None:
        raise CommandError(f"{files[-1]} does not exist", fix="convert a graph with stage ids first: shardy-py pipedream convert")
    if options.processes > 1 and options.process is None:
        return _spread(options)
    if options.processes > 1 and options.coordinator is None:
        raise CommandError("--coordinator is missing", why="the processes meet there", fix="write an address of process 0, host:1234")
    return _trained(options, out, conf)


def _spread(options: argparse.Namespace) -> int:
    """Starts the processes on this machine and waits for them; the first one prints."""
    own = [f"--coordinator={_address('127.0.0.1:80')}", *options.words[2:]]
    command = [sys.executable, "-m", "shardy_py", *options.words[:2]]
    environment = {**os.environ, "JAX_PLATFORMS": "cpu"}
    started = [subprocess.Popen([*command, f"--process={i}", *own], env=environment) for i in range(options.processes)]
    try:
        return max(abs(process.wait()) for process in started)
    finally:
        for process in started:
            process.kill()


def _address(other: str) -> str:
    """Where the process at an address reaches this one: a host, and a port that is free."""
    host, _, port = other.rpartition(":")
    with socket.socket(type=socket.SOCK_DGRAM) as towards, socket.socket() as free:
        towards.connect((host, int(port)))
        free.bind((towards.getsockname()[0], 0))
        return "{}:{}".format(*free.getsockname())


def _trained(options: argparse.Namespace, out: Output, conf: Path) -> int:
    import jax
    import numpy as np
    from jax.sharding import Mesh

    from shardy_py.backends.host_threads import provide
    from shardy_py.frontends.context import devices_started
    from shardy_py.pipedream.conversion.training import cross_entropy, read_conf, training
    from shardy_py.pipelines.pipelining import pipeline

    modules, ranks = read_conf(conf)
    count, own = sum(map(len, ranks)), options.process or 0
    if not devices_started():
        jax.config.update("jax_num_cpu_devices", max(1, len(range(own, count, options.processes))))
        provide()
    if options.processes > 1:
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
        jax.config.update("jax_cross_host_transfer_socket_address", _address(options.coordinator))
        jax.distributed.initialize(options.coordinator, options.processes, own, heartbeat_timeout_seconds=20, shutdown_timeout_seconds=20)
    devices = jax.devices()
    if len(devices) < count:
        raise CommandError(f"there are {len(devices)} devices", why=f"{conf} has {count} ranks", fix="use more processes")
    data, loss = lookup(options.data, options.flags), lookup(options.loss, options.flags) if options.loss else cross_entropy
    init, step = training(Path(options.directory), modules, loss, options.learning_rate)
    meshes = [Mesh(np.array([devices[rank] for rank in each], dtype=object), ("data",)) for each in ranks]
    train = pipeline(
        step, num_microbatches=options.microbatches, num_stages=len(ranks), mesh=meshes, schedule=options.schedule,
        batch_statistics="microbatch", donate_argnums=0,
    )  # fmt: skip
    key, batch, losses = jax.random.key(0), data(0), []
    train.build(jax.eval_shape(init, key, batch), batch)
    state, report = train.init(init, key, batch), str(train.report())
    if not own and not options.json:
        out.show(report)
    for number in range(options.steps):
        state, value = train(state, data(number))
        losses.append(float(value))
        if not own and not options.json:
            out.show(f"step {number + 1}: loss {losses[-1]:.6g}")
            out.stream.flush()
    if not own and options.json:
        out.plain(dumped({"format": "shardy_py.stages.training", "version": VERSION, "ranks": ranks, "report": report, "losses": losses}))
    return 0
