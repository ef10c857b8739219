"""Runs damaged inputs in a process of their own, with limits, and says what became of each.

A worker answers with one line of JSON per seed. It may be ended by MLIR, hang, or grow; the parent notices, and starts another one behind
the seed that was at work.
"""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import random
import resource
import select
import subprocess
import sys
import tempfile
import traceback
import warnings
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

ROOT = pathlib.Path(__file__).resolve().parents[2]

TAKEN = "taken"
REFUSED = "refused"
UNPLACED = "refused without a place"
UNREAD = "not read by MLIR"
UNVERIFIED = "not verified after a pass"
ERROR = "Python error"
UNREADABLE = "output cannot be read"
HUNG = "hung"
ENDED = "process ended"
GROWN = "memory grew"

MEANT = frozenset((TAKEN, REFUSED, UNREAD, UNVERIFIED))

PER_WORKER = 2000
"""Runs of a process, over which its memory may grow by `MOST_GROWTH`."""

WARM = 200
"""Runs after which growth is counted: by then what is loaded once is loaded."""

MOST_GROWTH = 200
"""MB."""

MOST_MEMORY = 4 << 30
"""Bytes of address space of a run, besides what the process has before the first."""

PATIENCE = 60.0
"""Seconds after which a run counts as hung."""

START = 120.0
"""Seconds in which a worker has to be ready."""

COMMAND = (sys.executable, "-m", "tests.fuzz")

SHARE_OF_PLANS = 5
"""Every fifth seed damages a plan file, the others a module."""


class Outcome(NamedTuple):
    """The outcome of a seed.

    Attributes:
        seed: The seed.
        source: `module` or `plan`.
        kind: One of the kinds above.
        text: What was wrong.
        growth: MB by which its process has grown.
    """

    seed: int
    source: str
    kind: str
    text: str
    growth: int = 0

    @property
    def is_failure(self) -> bool:
        """Whether it is none of the kinds that are meant to be."""
        return self.kind not in MEANT

    def __str__(self) -> str:
        return f"{self.source}: {self.kind}: {self.text}\n    python -m tests.fuzz --seed {self.seed}"


def source_of(seed: int) -> str:
    """Whether a seed damages a plan file or a module."""
    return "module" if seed % SHARE_OF_PLANS else "plan"


def outcome_of(seed: int) -> Outcome:
    """Makes the input of a seed and runs it, in this process."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        kind, text = _of_plan(seed) if source_of(seed) == "plan" else _of_module(seed)
    return Outcome(seed, source_of(seed), kind, text)


def _attempt(run: Callable[[], Any]) -> tuple[str, Any]:
    """Calls a function: what it gives, or the library's error, or any other."""
    from shardy_py.errors import ShardyError

    try:
        return TAKEN, run()
    except ShardyError as error:
        if "Unable to parse module" not in error.what:
            return (UNPLACED if error.where is None else REFUSED), str(error)
        return (UNREAD if error.where is None else UNVERIFIED), str(error)
    except Exception as error:
        frame = traceback.extract_tb(error.__traceback__)[-1]
        return ERROR, f"{type(error).__name__}: {str(error)[:150]!r} at {frame.filename.partition('shardy_py/')[2]}:{frame.lineno}"


def _of_module(seed: int) -> tuple[str, str]:
    from shardy_py.opt import run_passes
    from shardy_py.opt.from_mlir import from_mlir
    from tests.fuzz.modules import damaged_module
    from tests.fuzz.pipelines import draw_pipeline

    draw = random.Random(seed)
    text, pipeline = damaged_module(draw), draw_pipeline(draw, seed)
    kind, result = _attempt(lambda: run_passes(text, pipeline))
    if kind == TAKEN:
        kind, result = _attempt(lambda: from_mlir(result, keep=True))
        kind = UNREADABLE if kind in (UNREAD, REFUSED, UNPLACED, UNVERIFIED) else kind
    return kind, "" if kind == TAKEN else f"{pipeline}: {result}"


def _of_plan(seed: int) -> tuple[str, str]:
    from shardy_py.facade import Plan
    from tests.fuzz.plan_files import USES, base, damaged_plan

    number, text = damaged_plan(random.Random(seed))
    kind, result = _attempt(lambda: Plan.from_json(text))
    if kind != TAKEN:
        return kind, result
    for name, use in USES.items():
        kind, error = _attempt(lambda use=use: use(result, base(number)[0]))
        if kind == ERROR:
            return kind, f"{name}: {error}"
    return TAKEN, ""


def shown(seed: int) -> str:
    """The input of a seed, and what becomes of it."""
    from tests.fuzz.modules import damaged_module
    from tests.fuzz.pipelines import draw_pipeline
    from tests.fuzz.plan_files import damaged_plan

    draw = random.Random(seed)
    text = damaged_plan(draw)[1] if source_of(seed) == "plan" else f"{damaged_module(draw)}\n{draw_pipeline(draw, seed)}"
    return f"{text}\n{outcome_of(seed)}"


def _resident() -> int:
    """MB of memory that this process has."""
    return int(pathlib.Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() >> 20


def limit_memory() -> None:
    """Lets this process have `MOST_MEMORY` more than it has now."""
    held = int(pathlib.Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (held + MOST_MEMORY, resource.RLIM_INFINITY))


def work(first: int, count: int) -> None:
    """Runs seeds and writes their outcomes to stdout."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def answer(data: Any) -> None:
        answers.write(json.dumps(data) + "\n")
        answers.flush()

    from tests.fuzz.texts import lowered_modules, modules_of_tests

    lowered_modules()
    modules_of_tests()
    limit_memory()
    answer("ready")
    before = 0
    for number in range(count):
        outcome = outcome_of(first + number)
        if number == WARM:
            before = _resident()
        answer(outcome._replace(growth=_resident() - before if before else 0))


@dataclasses.dataclass
class _Worker:
    """A process that runs seeds."""

    process: subprocess.Popen[bytes]
    errors: Any
    unread: bytes = b""

    @classmethod
    def start(cls, first: int, count: int) -> _Worker:
        # Every thread that allocates would take a part of the address space.
        own = {"NPROC": "64", "JAX_PLATFORMS": "cpu", "XLA_FLAGS": "--xla_force_host_platform_device_count=8", "MALLOC_ARENA_MAX": "2"}
        environment = {**os.environ, **own}
        errors = tempfile.TemporaryFile("w+")
        command = [*COMMAND, "--work", "--seed", str(first), "--count", str(count)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, cwd=ROOT, env=environment)
        return cls(process, errors)

    def line(self, patience: float) -> Any:
        """The next answer; the kind of a failure where there is none."""
        stdout = self.process.stdout
        assert stdout is not None
        while b"\n" not in self.unread:
            if not select.select([stdout], [], [], patience)[0]:
                return HUNG
            read = os.read(stdout.fileno(), 1 << 16)
            if not read:
                return ENDED
            self.unread += read
        line, _, self.unread = self.unread.partition(b"\n")
        return json.loads(line)

    def last_words(self) -> str:
        self.errors.seek(0)
        return " / ".join(line.strip() for line in self.errors.readlines()[-5:])[:500]

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()
        self.errors.close()
        if self.process.stdout is not None:
            self.process.stdout.close()


def outcomes(first: int, count: int) -> Iterator[Outcome]:
    """Runs seeds one after the other, in processes of `PER_WORKER` each.

    Args:
        first: The first seed.
        count: How many.

    Yields:
        The outcome of each; after it, where its process has grown too much, another one that says so.
    """
    seed, end = first, first + count
    while seed < end:
        here = min(PER_WORKER, end - seed)
        worker = _Worker.start(seed, here)
        try:
            assert worker.line(START) == "ready", worker.last_words()
            outcome = None
            for _ in range(here):
                answer = worker.line(PATIENCE)
                if answer in (HUNG, ENDED):
                    words = f"no answer after {PATIENCE:.0f} s" if answer == HUNG else worker.last_words()
                    yield Outcome(seed, source_of(seed), answer, words)
                    seed += 1
                    break
                outcome = Outcome(*answer)
                yield outcome
                seed += 1
            if outcome is not None and outcome.growth > MOST_GROWTH:
                yield outcome._replace(kind=GROWN, text=f"by {outcome.growth} MB in {here} runs")
        finally:
            worker.stop()


def check(found: list[Outcome]) -> None:
    """Raises where an outcome is not meant to be, with the command that runs each."""
    failures = [str(outcome) for outcome in found if outcome.is_failure]
    assert not failures, "\n".join(failures)
