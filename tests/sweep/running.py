"""Runs configurations on eight devices and on one, in processes of their own, since XLA may end the process.

A worker reads one JSON text per line, a name and a number and lowerings, and answers with one line per lowering.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import json
import os
import pathlib
import queue
import select
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

ROOT = pathlib.Path(__file__).resolve().parents[2]
LOWERINGS = ("jit", "shard_map")
UNSHARDED = "unsharded"
"""In place of a lowering: the run without shardings alone, which others are compared with."""

RIGHT = "right"
WRONG = "wrong numbers"
REFUSED = "refused"
ERROR = "unclear error"
ENDED = "process ended"
HUNG = "hung"
INVALID = "no program"

PROGRAM = "random program"
"""The name of a program of `tests.random_programs`, which is no configuration of a primitive but runs here too."""

PLANNED = "planned random program"
"""The same, sharded by the planner instead of by what is annotated on arguments and results."""

PER_WORKER = 250
"""After so many configurations a worker is replaced: compiled programs stay in its memory."""

PATIENCE = 180.0
"""Seconds after which a configuration counts as hung."""


class Outcome(NamedTuple):
    """The outcome of a configuration under a lowering.

    Attributes:
        name: Of the configuration.
        seed: Its number.
        lowering: The lowering.
        kind: One of the kinds above.
        text: What was wrong.
    """

    name: str
    seed: int
    lowering: str
    kind: str
    text: str

    def __str__(self) -> str:
        command = f"python -m tests.sweep --seed {self.seed} --only {self.name!r} --lowering {self.lowering}"
        return f"{self.kind}: {self.text}\n    {command}"


def outcomes_here(name: str, seed: int, lowerings: Iterable[str]) -> Iterable[Outcome]:
    """Runs a configuration, or a random program, in this process, which XLA may end."""
    if name in (PROGRAM, PLANNED):
        from tests.random_numbers import difference as difference_of_program
        from tests.random_numbers import planner_of_seed, text_of_seed

        text, planner = text_of_seed(seed), planner_of_seed(seed) if name == PLANNED else None
        for lowering in lowerings:
            run = () if lowering == UNSHARDED else (lowering,)
            yield _outcome(name, seed, lowering, functools.partial(difference_of_program, text, run, planner))
        return
    yield from _configured(name, seed, lowerings)


def _outcome(name: str, seed: int, lowering: str, difference: Callable[[], str]) -> Outcome:
    import shardy_py

    try:
        text = difference()
        return Outcome(name, seed, lowering, WRONG if text else RIGHT, text)
    except shardy_py.ShardyError as error:
        return Outcome(name, seed, lowering, REFUSED if error.fix or error.why else ERROR, _text_of(error))
    except Exception as error:
        return Outcome(name, seed, lowering, ERROR, _text_of(error))


def _configured(name: str, seed: int, lowerings: Iterable[str]) -> Iterable[Outcome]:
    import jax
    import numpy as np

    import shardy_py
    from tests.comparing import difference
    from tests.sweep.configurations import configuration_of
    from tests.sweep.surroundings import constraint, unconstrained

    try:
        configuration = configuration_of(name, seed)
    except Exception as error:
        yield from (Outcome(name, seed, lowering, INVALID, _text_of(error)) for lowering in lowerings)
        return
    arguments = configuration.arguments
    with jax.enable_x64(configuration.x64):
        try:
            wanted = jax.tree.map(np.asarray, jax.jit(functools.partial(configuration.function, unconstrained))(*arguments))
        except Exception as error:
            yield from (Outcome(name, seed, lowering, INVALID, _text_of(error)) for lowering in lowerings)
            return
        function = functools.partial(configuration.function, constraint(configuration.mesh))

        def difference_under(lowering: str) -> str:
            if lowering == UNSHARDED:
                return ""
            sharded = shardy_py.auto_shard(
                function, mesh=configuration.mesh, in_shardings=configuration.in_shardings, out_shardings=configuration.out_shardings,
                lowering=lowering,
            )  # fmt: skip
            got = jax.tree.map(np.asarray, sharded(*arguments))
            texts = [f"result {i}: {text}" for i, (g, w) in enumerate(zip(got, wanted, strict=True)) if (text := difference(g, w))]
            return texts[0] if texts else ""

        for lowering in lowerings:
            yield _outcome(name, seed, lowering, functools.partial(difference_under, lowering))


def _text_of(error: Exception) -> str:
    lines = [line.strip() for line in f"{type(error).__name__}: {error}".splitlines() if line.strip()]
    return " / ".join(lines[:4])[:400]


@dataclasses.dataclass
class Worker:
    """A process that runs configurations one after the other."""

    process: subprocess.Popen[str]
    errors: Any
    count: int = 0

    @classmethod
    def start(cls) -> Worker:
        """A fresh process, with eight devices."""
        flags = os.environ.get("XLA_FLAGS", "")
        if "xla_force_host_platform_device_count" not in flags:
            flags = f"{flags} --xla_force_host_platform_device_count=8".strip()
        environment = {**os.environ, "NPROC": "64", "JAX_PLATFORMS": "cpu", "XLA_FLAGS": flags}
        errors = tempfile.TemporaryFile("w+")
        command = [sys.executable, "-m", "tests.sweep", "--work"]
        pipe = subprocess.PIPE
        return cls(subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=errors, text=True, cwd=ROOT, env=environment), errors)

    def outcomes(self, name: str, seed: int, lowerings: Sequence[str]) -> list[Outcome]:
        """Outcomes under each lowering, up to the one on which the process ends or hangs."""
        stdin, stdout = self.process.stdin, self.process.stdout
        assert stdin is not None
        assert stdout is not None
        self.count += 1
        stdin.write(json.dumps([name, seed, lowerings]) + "\n")
        stdin.flush()
        out = []
        for lowering in lowerings:
            if not select.select([stdout], [], [], PATIENCE)[0]:
                return [*out, Outcome(name, seed, lowering, HUNG, f"no answer after {PATIENCE:.0f} s")]
            line = stdout.readline()
            if not line:
                return [*out, Outcome(name, seed, lowering, ENDED, self._last_words())]
            out.append(Outcome(*json.loads(line)))
        return out

    def _last_words(self) -> str:
        code = self.process.wait()
        self.errors.seek(0)
        lines = [line.strip() for line in self.errors if "heck failed" in line or "atal" in line or "F0" in line[:2]]
        return f"exit code {code}. {lines[0][:300] if lines else ''}"

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout, self.errors):
            stream.close()


def sweep(
    configurations: Iterable[tuple[str, int]], lowerings: Sequence[str] = LOWERINGS, *, workers: int = 2, report: Any = None
) -> list[Outcome]:
    """Runs configurations in several processes.

    Args:
        configurations: Names and numbers.
        lowerings: Under which lowerings.
        workers: How many processes.
        report: Called with each outcome as it comes.

    Returns:
        All outcomes, in the order of the configurations.
    """
    waiting: queue.SimpleQueue[tuple[int, str, int]] = queue.SimpleQueue()
    for i, (name, seed) in enumerate(configurations):
        waiting.put((i, name, seed))
    done: dict[int, list[Outcome]] = collections.defaultdict(list)
    lock = threading.Lock()

    def drain() -> None:
        worker = Worker.start()
        try:
            while True:
                try:
                    i, name, seed = waiting.get_nowait()
                except queue.Empty:
                    return
                left = list(lowerings)
                while left:
                    outcomes = worker.outcomes(name, seed, left)
                    left = left[len(outcomes) :]
                    if outcomes[-1].kind in (ENDED, HUNG) or worker.count >= PER_WORKER:
                        worker.stop()
                        worker = Worker.start()
                    if outcomes[-1].kind == ENDED and _ends_unsharded(name, seed):
                        outcomes[-1] = outcomes[-1]._replace(kind=INVALID)
                    with lock:
                        done[i] += outcomes
                        if report is not None:
                            for outcome in outcomes:
                                report(outcome)
        finally:
            worker.stop()

    threads = [threading.Thread(target=drain) for _ in range(workers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [outcome for i in sorted(done) for outcome in done[i]]


def _ends_unsharded(name: str, seed: int) -> bool:
    """Whether XLA ends the process on the program without shardings too."""
    worker = Worker.start()
    try:
        return worker.outcomes(name, seed, [UNSHARDED])[-1].kind == ENDED
    finally:
        worker.stop()


def allowed(outcome: Outcome) -> bool:
    """Whether an outcome is one of those that are meant to be."""
    return outcome.kind == RIGHT or (outcome.kind == REFUSED and outcome.name.endswith("/complex"))


def check(outcomes: list[Outcome]) -> None:
    """Raises where a configuration is not right, with the commands that run those that are not."""
    kinds = collections.Counter((o.lowering, o.kind) for o in outcomes)
    wrong = [str(o) for o in outcomes if not allowed(o)]
    assert not wrong, "\n".join([str(dict(kinds)), *wrong])


def work() -> None:
    """Answers requests read from stdin."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        name, seed, lowerings = json.loads(line)
        for outcome in outcomes_here(name, seed, lowerings):
            answers.write(json.dumps(outcome) + "\n")
            answers.flush()
