"""Progress of planning: a line on a terminal or below a notebook's cell, or calls of a user's function.

Steps of planning report where they are; nothing runs beside them, so a line stands still where a step takes long.
"""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from shardy_py.plan.cost_analysis import seconds_text

AFTER = 1.0
"""Seconds of planning before a line is shown."""

INTERVAL = 0.1
"""Seconds between two reports of the same phase."""

WORTH_TELLING = 0.01
"""The part of the objective below which a lower bound is as good as none."""

_CLEARED = "\r\x1b[2K"


@dataclass(frozen=True, slots=True)
class Progress:
    """A report of the progress of planning.

    Attributes:
        name: Of the function.
        phase: The step, in words: `propagating shardings`.
        seconds: Since planning began.
        fraction: The part of the phase that is done, from 0 to 1; None where it cannot be told.
        objective_seconds: Of the best plan that the planner has found so far; None before there is one.
        lower_bound_seconds: No plan takes less, by the planner's proof so far.

    Example:
        >>> print(Progress("step", "propagating shardings", 1.5, 0.25))
        planning step: propagating shardings 25% (2 s)
    """

    name: str
    phase: str
    seconds: float
    fraction: float | None = None
    objective_seconds: float | None = None
    lower_bound_seconds: float | None = None

    @property
    def state(self) -> str:
        """Phase, figures and seconds in one line."""
        text = self.phase
        if self.fraction is not None:
            text += f" {self.fraction:.0%}"
        if self.objective_seconds is not None:
            text += f", step {seconds_text(self.objective_seconds)}"
            if self.lower_bound_seconds is not None and self.lower_bound_seconds >= WORTH_TELLING * self.objective_seconds:
                text += f", at least {seconds_text(self.lower_bound_seconds)}"
        return f"{text} ({self.seconds:.0f} s)"

    def __str__(self) -> str:
        return f"planning {self.name}: {self.state}"


Listener = Callable[[Progress], None]
"""A function that is told of progress."""


class _Observation:
    """The progress of one plan."""

    def __init__(self, name: str, listener: Listener) -> None:
        self.name, self.listener = name, listener
        self.began = time.monotonic()
        self.phase, self.last = "", self.began

    def report(self, phase: str, fraction: float | None, objective: float | None, bound: float | None) -> None:
        now = time.monotonic()
        if phase == self.phase and now - self.last < INTERVAL:
            return
        self.phase, self.last = phase, now
        self.listener(Progress(self.name, phase, now - self.began, fraction, objective, bound))


_observation: ContextVar[_Observation | None] = ContextVar("observation", default=None)


def report(phase: str, fraction: float | None = None, objective: float | None = None, bound: float | None = None) -> None:
    """Tells whoever watches the plan that is being made; without anyone it costs nothing."""
    observation = _observation.get()
    if observation is not None:
        observation.report(phase, fraction, objective, bound)


@contextmanager
def observed(name: str, listener: Listener | bool) -> Iterator[None]:
    """Reports of what runs inside go to a listener, and on to one outside; True shows a line on a terminal, False nothing."""
    show = _line() if listener is True else None
    told: list[Progress] = []

    def tell(progress: Progress) -> None:
        if show is None and callable(listener):
            listener(progress)
        elif show is not None and progress.seconds >= AFTER:
            told.append(progress)
            show(str(progress))

    if _observation.get() is not None or not (show or callable(listener)):
        yield
        return
    token = _observation.set(_Observation(name, tell))
    try:
        yield
    finally:
        _observation.reset(token)
        if show is not None and told:
            show("")


def _line() -> Callable[[str], None] | None:
    """Writes one line that changes, in the cell of a notebook or on the terminal of standard error; None where there is neither."""
    ipython, stream = sys.modules.get("IPython"), sys.stderr
    shell = None if ipython is None else ipython.get_ipython()
    handles: list[Any] = []

    def cell(text: str) -> None:
        data = {"text/plain": text}
        if handles:
            handles[0].update(data, raw=True)
        else:
            handles.append(sys.modules["IPython.display"].display(data, raw=True, display_id=True))

    def terminal(text: str) -> None:
        stream.write(_CLEARED + text[: shutil.get_terminal_size().columns - 1])
        stream.flush()

    if getattr(shell, "kernel", None) is not None:
        return cell
    return terminal if stream is not None and stream.isatty() else None


PHASES = {
    "describe": "reading annotations",
    "read": "reading the program",
    "propagate": "propagating shardings",
    "collect": "describing the plan",
    "partition": "partitioning the program",
}
"""Step -> the words for it while it runs."""


class Timings(dict[str, float]):
    """Step to seconds, in the order in which the steps ran.

    Example:
        >>> timings = Timings()
        >>> with timings.step("propagate"):
        ...     pass
        >>> list(timings)
        ['propagate']
    """

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        """Adds the time spent inside to the step `name`."""
        if name in PHASES:
            report(PHASES[name])
        start = time.perf_counter()
        try:
            yield
        finally:
            self[name] = self.get(name, 0.0) + time.perf_counter() - start

    @property
    def total(self) -> float:
        """Seconds of all steps together."""
        return sum(self.values())
