"""The states of the processes of a mesh, and the verdicts on them: agreement as a function, without waiting or a store."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from shardy_py.dialect.grouping import grouped


@dataclass(frozen=True)
class State:
    """The entry of one process.

    Attributes:
        values: Digest of the values that it passes to the program; empty where none are compared.
        ahead: Whether it waits because the program is lowered, and will perhaps not run.
        alone: Programs that it has lowered, and used without some processes.
        left: Programs that it no longer waits for, with the ticket.
    """

    ticket: int = 0
    program: str = ""
    values: str = ""
    place: str = ""
    ahead: bool = False
    runs: int = 0
    failures: int = 0
    reasons: tuple[str, ...] = ()
    calls: bool = False
    known_failures: Mapping[str, int] = field(default_factory=dict)
    alone: tuple[str, ...] = ()
    left: Mapping[str, int] = field(default_factory=dict)
    known_departures: Mapping[str, int] = field(default_factory=dict)
    ended: str | None = None


Kind = Literal["agreed", "programs", "values", "left", "failed", "ended", "elsewhere", "missing"]


@dataclass(frozen=True)
class Verdict:
    """The verdict for a waiting process.

    Attributes:
        kind: `agreed`: all come with this program. `programs`: they come with different ones. `values`: they pass different values to it.
            `left`: another process came, and waits no longer. `failed`, `ended`: another process will not come. `elsewhere`: another
            process has started a program that this one has not, and waits in its collectives. `missing`: the time is up.
        leaves: Numbers of the arguments whose values differ; the groups are those of the first.
    """

    kind: Kind
    groups: tuple[tuple[int, ...], ...] = ()
    programs: tuple[str, ...] = ()
    leaves: tuple[int, ...] = ()
    process: int = -1
    reason: str = ""
    missing: tuple[int, ...] = ()


Values = Sequence[str | None]
"""Digests of the arguments of a call, None for those that are not compared."""


def decide(processes: Sequence[int], states: Mapping[int, State], values_of: Callable[[int], Values]) -> tuple[dict[int, Verdict], bool]:
    """The verdicts for waiting processes."""
    waiting = {p: states[p] for p in processes if p in states and states[p].program}
    certain: dict[int, Verdict] = {}
    likely: dict[int, Verdict] = {}
    for program, here in _grouped({p: state.program for p, state in waiting.items()}).items():
        absent = {p: states.get(p, ABSENT) for p in processes if p not in here}
        absent = {p: state for p, state in absent.items() if program not in state.alone}
        if not absent:
            alone = tuple(p for p in processes if p not in here)
            certain |= dict.fromkeys(here, _compared({p: waiting[p] for p in here}, values_of, alone))
            continue
        for p in here:
            own = waiting[p]
            if own.ahead:
                continue  # who lowers only, need not hear of those who do not
            reason = _left(program, own, absent) or _ended(absent) or _failed(p, own, absent, has_moved_on=True)
            if reason is not None:
                certain[p] = reason
            elif (reason := _failed(p, own, absent, has_moved_on=False) or _elsewhere(own, absent)) is not None:
                likely[p] = reason
    different = _different({p: state for p, state in waiting.items() if p not in certain})
    # Where all are here, nobody else can come; else late ones are waited for, so that they hear of it too.
    (certain if len(waiting) == len(processes) else likely).update(different)
    return (certain, True) if certain else (likely, False)


ABSENT = State()
"""The entry of a process that has not come yet."""


def _grouped(keys: Mapping[int, str]) -> dict[str, tuple[int, ...]]:
    return {key: tuple(group) for key, group in grouped(keys, lambda process: keys[process]).items()}


def _compared(here: Mapping[int, State], values_of: Callable[[int], Values], alone: tuple[int, ...]) -> Verdict:
    """The verdict if all processes come with one program."""
    passing = [p for p, state in here.items() if state.values]
    if len({here[p].values for p in passing}) < 2:
        return Verdict("agreed", missing=alone)
    by_leaf = (_grouped({p: x for p, x in zip(passing, row) if x is not None}) for row in zip(*map(values_of, passing)))
    different = {leaf: tuple(groups.values()) for leaf, groups in enumerate(by_leaf) if len(groups) > 1}
    return Verdict("values", next(iter(different.values())), leaves=tuple(different)) if different else Verdict("agreed", missing=alone)


def _left(program: str, own: State, absent: Mapping[int, State]) -> Verdict | None:
    left = (p for p, state in absent.items() if state.left.get(program, 0) > own.known_departures.get(str(p), 0))
    return next((Verdict("left", process=p) for p in left), None)


def _ended(absent: Mapping[int, State]) -> Verdict | None:
    return next((Verdict("ended", process=p, reason=state.ended) for p, state in absent.items() if state.ended is not None), None)


def _failed(process: int, own: State, absent: Mapping[int, State], *, has_moved_on: bool) -> Verdict | None:
    """The verdict on a process whose call has failed, and which waits with another program since, or has not called again."""
    for p, state in absent.items():
        # A call that failed in both processes, as with wrong arguments, is no news to either, nor is one that they were told of.
        news = state.failures + state.known_failures.get(str(process), 0) - own.failures - own.known_failures.get(str(p), 0)
        if news > 0 and (_clash(own, state) if has_moved_on else not (state.program or state.calls)):
            return Verdict("failed", process=p, reason=state.reasons[-min(news, len(state.reasons))])
    return None


def _elsewhere(own: State, absent: Mapping[int, State]) -> Verdict | None:
    ahead = (p for p, state in absent.items() if not state.program and state.runs > own.runs)
    return next((Verdict("elsewhere", process=p) for p in ahead), None)


def _different(waiting: Mapping[int, State]) -> dict[int, Verdict]:
    """Verdicts for processes that wait for each other with different programs: a deadlock."""
    stuck = {p: one.program for p, one in waiting.items() if any(_clash(one, other) for other in waiting.values())}
    groups = _grouped(stuck)
    return dict.fromkeys(stuck, Verdict("programs", tuple(groups.values()), tuple(groups)))


def _clash(one: State, other: State) -> bool:
    """Whether two processes wait for each other with different programs."""
    if not (one.program and other.program) or one.program == other.program or one.ahead != other.ahead:
        return False
    if one.program in other.alone or other.program in one.alone:
        return False
    return not one.ahead or one.place == other.place  # who lowers may be alone in it, unless another lowers the same function
