"""Rendezvous: the processes of a mesh wait for each other, through the key-value store of `jax.distributed`.

Every process keeps one entry in the store, its `State`: for which program it waits, or that its last call failed, or that it has ended.
One of those that wait, the first in order, reads the entries of all and tells each waiting process its `Verdict`; which one that is
follows from `decide`, a function of the entries alone. The others look at one key, so that the work per process does not grow with their
number. Programs are known by digest, not by number, so a process may lower one that others never see.

Nobody is given up while it lives: that a process has died, `jax.distributed` says itself, and ends the others.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import logging
import math
import threading
import time
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

from shardy_py.api.peer_states import ABSENT, State, Values, Verdict, decide

logger = logging.getLogger("shardy_py")

PATIENCE = 5.0
"""Seconds for which what may still change has to stay before it becomes a verdict: a failure may be caught, and the call made again."""

REPORT = 5.0
"""Seconds between the reports of a running process on how many programs it has started."""

NOTICE = 30.0
"""Seconds after which a waiting process says for whom it waits."""

_SHORTEST, _LONGEST = 0.005, 0.25
"""Seconds between two looks of the process that decides, in the beginning and later."""

_FOLLOWER = 1.0
"""The same for the others, in the beginning: they are told, and look only in case nobody decides."""

_REASONS = 8
"""Number of failures of a process that are kept."""

_CHUNK = 1 << 20
_ENDED = "shardy_py/ended/"


class Store(Protocol):
    """The part of `jax.distributed`'s client that is used."""

    def key_value_set(self, key: str, value: str, allow_overwrite: bool = False) -> None:
        """Sets a key; raises where it is set and must not be overwritten."""
        ...

    def key_value_set_bytes(self, key: str, value: bytes, allow_overwrite: bool = False) -> None:
        """Sets a key."""
        ...

    def key_value_try_get(self, key: str) -> str:
        """The value of a key; raises where there is none."""
        ...

    def key_value_dir_get(self, key: str) -> list[tuple[str, str]]:
        """Keys below a key, and their values."""
        ...

    def key_value_delete(self, key: str) -> None:
        """Deletes a key and all keys below it."""
        ...

    def blocking_key_value_get(self, key: str, timeout_in_ms: int) -> str:
        """The value of a key, once it is there."""
        ...

    def blocking_key_value_get_bytes(self, key: str, timeout_in_ms: int) -> bytes:
        """The value of a key, once it is there."""
        ...


class Rendezvous:
    """The agreement of a process with others of its mesh; `runs` counts the programs of the mesh that it has started."""

    def __init__(self, store: Store, processes: Sequence[int], own: int) -> None:
        self._store = store
        self._processes = tuple(processes)
        self.own = own
        self._root = f"shardy_py/{digest(repr(self._processes))}"
        self._lock = threading.RLock()
        self._state = State()
        self._stopped = threading.Event()
        self._reporter: threading.Thread | None = None
        self.runs = 0
        self.agreed: set[str] = set()

    @property
    def processes(self) -> tuple[int, ...]:
        """The processes, in order."""
        return self._processes

    def wait(self, program: str, values: Values, place: str, *, timeout: float | None = None, ahead: bool = False) -> Verdict:
        """Waits until it is known whether all processes come with this program and values; with `ahead`, others need not come."""
        with self._lock:
            self._report_regularly()
            before = self._state
            ticket = before.ticket + 1
            text = " ".join(value or "-" for value in values)
            if text:
                self._store.key_value_set(f"{self._root}/values/{self.own}", text, allow_overwrite=True)
            state = replace(before, ticket=ticket, program=program, place=place, ahead=ahead, left=_without(before.left, program))
            self._say(replace(state, values=digest(text) if text else "", calls=True))
            self._forget(self._mailbox(before.ticket))
            try:
                verdict = self._await_verdict(ticket, place, timeout) or self._give_up(ticket)
            except BaseException:  # Ctrl-C, or the store is gone
                self._say(self._leaving())
                raise
            if verdict.kind != "missing":
                self._say(self._going_on(program, verdict))
            return verdict

    def _give_up(self, ticket: int) -> Verdict:
        missing = self._missing(self._states())
        self._say(self._leaving())
        text = self._get(self._mailbox(ticket), 0.0)  # the others go by what this process was told, if it was by now
        return Verdict("missing", missing=tuple(missing)) if text is None else _read_verdict(text)

    def _leaving(self) -> State:
        """The state of a process that waits no longer, without a verdict."""
        state, program = replace(self._state, program="", values="", ahead=False), self._state.program
        if self._state.ahead:
            return replace(state, alone=(*state.alone, program))
        return replace(state, left={**state.left, program: state.ticket})

    def _going_on(self, program: str, verdict: Verdict) -> State:
        """The state of a process that has a verdict."""
        state = replace(self._state, program="", values="", ahead=False, left=_without(self._state.left, program))
        if verdict.kind == "agreed" and verdict.missing:  # who has gone on alone may ask for the program later
            return replace(state, alone=(*state.alone, program))
        if verdict.kind == "agreed":
            return replace(state, failures=0, reasons=(), known_failures={})
        blamed = str(verdict.process)
        if verdict.kind == "failed":
            return replace(state, known_failures={**state.known_failures, blamed: state.known_failures.get(blamed, 0) + 1})
        if verdict.kind == "left":
            left = self._states().get(verdict.process, ABSENT).left
            return replace(state, known_departures={**state.known_departures, blamed: left.get(program, 0)})
        return state

    def _mailbox(self, ticket: int) -> str:
        return f"{self._root}/verdicts/{self.own}/{ticket}"

    def _await_verdict(self, ticket: int, place: str, timeout: float | None) -> Verdict | None:
        """The verdict, computed here if this is the first waiting process; None if it does not come in time."""
        begin = noticed = time.monotonic()
        pause, longest = (_SHORTEST, _LONGEST) if self.own == self._processes[0] else (_FOLLOWER, 3 * _FOLLOWER)
        doubt: tuple[dict[int, Verdict], float] = {}, begin
        while True:
            left = math.inf if timeout is None else begin + timeout - time.monotonic()
            text = self._get(self._mailbox(ticket), min(pause, left))
            if text is not None:
                return _read_verdict(text)
            if left <= 0:
                return None
            pause = min(2 * pause, longest)
            if not self._decides():
                continue
            states, now = self._states(), time.monotonic()
            verdicts, certain = decide(self._processes, states, self._values)
            if verdicts != doubt[0]:
                doubt = verdicts, now
            if verdicts and (certain or now - doubt[1] >= PATIENCE):
                self._tell(verdicts, states)
            elif verdicts:
                pause = min(pause, _FOLLOWER)
            elif now - noticed >= NOTICE:
                noticed = now
                missing = listed(self._missing(states))
                logger.warning("process %d has waited %.0f s for %s at the first call of %s", self.own, now - begin, missing, place)

    def _values(self, process: int) -> Values:
        text = self._get(f"{self._root}/values/{process}", 0.0) or ""
        return [None if value == "-" else value for value in text.split()]

    def _decides(self) -> bool:
        """Whether this process publishes the verdicts: the first waiting one does."""
        first = self._processes[0]
        if self.own == first:
            return True
        text = self._get(f"{self._root}/state/{first}", 0.0)
        if text is not None and _read(text).program:
            return False
        return self.own == min(p for p, state in {**self._states(), self.own: self._state}.items() if state.program)

    def _tell(self, verdicts: Mapping[int, Verdict], states: Mapping[int, State]) -> None:
        boxes = {p: f"{self._root}/verdicts/{p}/{states[p].ticket}" for p in verdicts}
        others = {v.process for v in verdicts.values() if states.get(v.process, ABSENT).program} - set(boxes)
        looked_at = [*boxes.values(), *(f"{self._root}/verdicts/{p}/{states[p].ticket}" for p in others)]
        if any(verdict.kind != "agreed" for verdict in verdicts.values()) and any(self._get(box, 0.0) for box in looked_at):
            return  # somebody was told already and has not looked yet: its entry says nothing any more
        for p, verdict in verdicts.items():
            with contextlib.suppress(RuntimeError, ValueError):  # another process has just told it
                self._store.key_value_set(boxes[p], json.dumps(dataclasses.asdict(verdict)))

    def _missing(self, states: Mapping[int, State]) -> list[int]:
        program, others = self._state.program, [(p, states.get(p, ABSENT)) for p in self._processes if p != self.own]
        return [p for p, state in others if program not in (state.program, *state.alone)]

    def failed(self, reason: str) -> None:
        """Tells the other processes that a call of this one failed before it ran."""
        with self._lock:
            failures, reasons = self._state.failures + 1, (*self._state.reasons, reason)[-_REASONS:]
            self._say(replace(self._state, failures=failures, reasons=reasons, calls=False))

    def calls(self) -> None:
        """Says that this process goes on after a failure."""
        if self._state.failures and not self._state.calls:
            with self._lock:
                self._say(replace(self._state, calls=True))

    def stop(self) -> None:
        """Ends the reports."""
        self._stopped.set()

    def send(self, key: str, text: str) -> None:
        """Publishes a long text."""
        packed = zlib.compress(text.encode())
        chunks = [packed[i : i + _CHUNK] for i in range(0, len(packed), _CHUNK)]
        for i, chunk in enumerate(chunks):
            self._store.key_value_set_bytes(f"{self._root}/text/{key}/{i}", chunk, allow_overwrite=True)
        self._store.key_value_set(f"{self._root}/text/{key}/chunks", str(len(chunks)), allow_overwrite=True)

    def receive(self, key: str, seconds: float = 10.0) -> str | None:
        """A text that another process publishes; None if it does not come in time."""
        chunks = self._get(f"{self._root}/text/{key}/chunks", seconds)
        if chunks is None:
            return None
        try:
            parts = [self._store.blocking_key_value_get_bytes(f"{self._root}/text/{key}/{i}", 10_000) for i in range(int(chunks))]
        except (RuntimeError, ValueError, KeyError):
            return None
        return zlib.decompress(b"".join(parts)).decode()

    def _say(self, state: State) -> None:
        self._state = replace(state, runs=self.runs)
        text = json.dumps(dataclasses.asdict(self._state))
        self._store.key_value_set(f"{self._root}/state/{self.own}", text, allow_overwrite=True)

    def _states(self) -> dict[int, State]:
        states = {int(key.rpartition("/")[2]): _read(text) for key, text in self._store.key_value_dir_get(f"{self._root}/state/")}
        for key, reason in self._store.key_value_dir_get(_ENDED):
            process = int(key.rpartition("/")[2])
            states[process] = replace(states.get(process, ABSENT), program="", ended=reason)
        return states

    def _get(self, key: str, seconds: float) -> str | None:
        """The value of a key, waited for so long; None where it does not come."""
        begin = time.monotonic()
        try:
            if seconds <= 0:
                return self._store.key_value_try_get(key)
            return self._store.blocking_key_value_get(key, max(1, int(seconds * 1000)))
        except (RuntimeError, ValueError, KeyError):  # NOT_FOUND, DEADLINE_EXCEEDED, or the store itself is gone
            time.sleep(max(0.0, seconds - (time.monotonic() - begin)))
            return None

    def _forget(self, key: str) -> None:
        with contextlib.suppress(RuntimeError, ValueError):
            self._store.key_value_delete(key)

    def _report_regularly(self) -> None:
        if self._reporter is None:
            self._reporter = threading.Thread(target=self._report, name="shardy_py-rendezvous", daemon=True)
            self._reporter.start()

    def _report(self) -> None:
        while not self._stopped.wait(REPORT):
            # While this process waits, its entry says what it had started before.
            if self._state.runs == self.runs or not self._lock.acquire(blocking=False):
                continue
            try:
                self._say(self._state)
            except (RuntimeError, ValueError):
                return
            finally:
                self._lock.release()


def say_ended(store: Store, own: int, reason: str) -> None:
    """Tells the processes of all meshes that this one ends."""
    with contextlib.suppress(RuntimeError, ValueError):
        store.key_value_set(f"{_ENDED}{own}", reason, allow_overwrite=True)


def _read_verdict(text: str) -> Verdict:
    return Verdict(**{name: _as_tuples(value) for name, value in json.loads(text).items()})


def _as_tuples(value: Any) -> Any:
    return tuple(map(_as_tuples, value)) if isinstance(value, list) else value


def _read(text: str) -> State:
    state = State(**json.loads(text))
    return replace(state, alone=tuple(state.alone), reasons=tuple(state.reasons))


def _without(left: Mapping[str, int], program: str) -> dict[str, int]:
    return {name: ticket for name, ticket in left.items() if name != program}


def digest(text: str) -> str:
    """A name for a text: equal for equal texts."""
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def listed(processes: Sequence[int]) -> str:
    """`processes 0, 1 and 4 more`."""
    shown = ", ".join(map(str, processes[:8])) + (f" and {len(processes) - 8} more" if len(processes) > 8 else "")
    return f"process{'es' if len(processes) > 1 else ''} {shown}"
