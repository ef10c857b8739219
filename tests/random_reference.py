"""A random program under JAX and the Shardy inside jaxlib, in a process of its own.

A failed check in the C++ passes ends the process, so it must not be the one that runs the tests.
"""

from __future__ import annotations

import functools
import json
import os
import pathlib
import subprocess
import sys
from typing import Any, NamedTuple

from shardy_py.dialect import TensorSharding
from shardy_py.ir import Program

ROOT = pathlib.Path(__file__).resolve().parent.parent

Axes = tuple[tuple[str, ...], ...]
"""The axes of every dimension, as text."""


class Rejected(Exception):
    """JAX does not accept the program, or jaxlib ended on it."""


class Answer(NamedTuple):
    """Axes of what can be seen of a plan: inputs and outputs."""

    inputs: list[Axes]
    outputs: list[Axes]


def axes_of(sharding: TensorSharding | None, rank: int) -> Axes:
    """The axes of a sharding; None is replicated."""
    return ((),) * rank if sharding is None else tuple(tuple(map(str, dim.axes)) for dim in sharding.dims)


def sides_of(program: Program) -> tuple[list[Axes], list[Axes]]:
    """Axes of the arguments and results of `main`."""
    main = program.main
    inputs = [axes_of(v.sharding, v.type.rank) for v in main.arguments]
    return inputs, [axes_of(s, t.rank) for s, t in zip(main.result_shardings, main.result_types, strict=True)]


def compute(text: str) -> Answer:
    """The reference's answer for a program; to be called in a process that may end."""
    from shardy_py.opt.from_mlir import from_mlir
    from tests.random_programs import load
    from tests.reference import lower, run_pipeline

    loaded = load(text)
    module = lower(loaded.program, *loaded.arguments, in_shardings=loaded.in_shardings, out_shardings=loaded.out_shardings)
    return Answer(*sides_of(from_mlir(run_pipeline(module))))


@functools.cache
def _worker() -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.random_reference"]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, cwd=ROOT)


def stop_worker() -> None:
    """Ends the process that runs the reference; the next request starts a new one."""
    if _worker.cache_info().currsize:
        worker = _worker()
        _worker.cache_clear()
        assert worker.stdin is not None
        assert worker.stdout is not None
        worker.stdin.close()
        worker.wait(30)
        worker.stdout.close()


def send(text: str) -> None:
    """Asks for the answer of a program; `receive` gives it, so that the two sides can work at the same time."""
    stdin = _worker().stdin
    assert stdin is not None
    stdin.write(json.dumps(text) + "\n")
    stdin.flush()


def receive() -> Answer:
    """The answer to the last program sent.

    Raises:
        Rejected: There is none.
    """
    stdout = _worker().stdout
    assert stdout is not None
    line = stdout.readline()
    if not line:
        stop_worker()
        raise Rejected("jaxlib ended on this program")
    answer = json.loads(line)
    if "error" in answer:
        raise Rejected(answer["error"])
    return Answer(*(list(map(_axes, answer[name])) for name in Answer._fields))


def _axes(dims: list[Any]) -> Axes:
    return tuple(map(tuple, dims))


def main() -> None:
    """Answers programs read from stdin, one JSON text per line, one JSON answer per line."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        try:
            answer = compute(json.loads(line))._asdict()
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
