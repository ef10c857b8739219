"""The processes of a mesh: before they run a program for the first time, they come together and compare what they are about to run.

Each process keeps one entry in the key-value store of `jax.distributed`: the calls that it has made since all agreed last. It adds the
digest of what it is about to run, and goes on once the entries of all have that. Texts travel only where digests differ. Entries are not
taken back when a call ends in an error, so that every process finds the same difference, whenever it looks.

Nobody is given up while it lives: that a process has died, `jax.distributed` says itself, and ends the others.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import hashlib
import json
import logging
import math
import os
import sys
import threading
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent import futures
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple, NoReturn

import jax
from jax.sharding import Mesh

from shardy_py.api.errors import PeerFailedError, ValueMismatchError
from shardy_py.api.meshes import MeshView
from shardy_py.api.trees import Leaf
from shardy_py.dialect.grouping import grouped
from shardy_py.errors import PeerMissingError, PlanMismatchError, ShardyError
from shardy_py.frontends.context import coordination_client, coordination_number

logger = logging.getLogger("shardy_py")

PATIENCE = 5.0
"""Seconds for which a failure has to stay before others hear of it: it may be caught, and the call made again."""

NOTICE = 30.0
"""Seconds after which a waiting process says for whom it waits."""

_SHORTEST, _LONGEST = 0.01, 0.25
"""Seconds between two looks at the entries, in the beginning and later; of many processes, each looks less often."""

_MOST_TEXT, _REASONS, _CHUNK = 2000, 8, 1 << 20
"""Characters of an error, and errors of a process, that others can read; bytes of a text below one key."""

_ENDED = "shardy_py/ended/"


class PeerCall(NamedTuple):
    """A call as others see it: digests of program and values; why it did not run, None where it waits, empty where it was compared."""

    program: str
    values: str = ""
    failure: str | None = None


@dataclass(frozen=True)
class ProcessState:
    """What a process says of itself.

    Attributes:
        rounds: Number of programs that all processes have agreed on.
        calls: Its calls since, in order.
        lowered: Programs that it has lowered ahead, with the places of their functions: it may run them without asking.
    """

    rounds: int = 0
    calls: tuple[PeerCall, ...] = ()
    lowered: tuple[tuple[str, str], ...] = ()

    @staticmethod
    def read(text: str) -> ProcessState:
        """An entry from JSON."""
        rounds, calls, lowered = json.loads(text).values()
        return ProcessState(rounds, tuple(PeerCall(*call) for call in calls), tuple((program, place) for program, place in lowered))

    def call_beside(self, own: ProcessState) -> PeerCall | None:
        """The call that stands beside the latest one of this process."""
        position = len(own.calls) - 1
        return self.calls[position] if self.rounds == own.rounds and 0 <= position < len(self.calls) else None

    def comes_with(self, program: str, own: ProcessState) -> bool:
        """Whether the process is about to run a program, or was when another one differed."""
        beside = self.call_beside(own)
        waits = bool(self.calls) and self.calls[-1].program == program and self.calls[-1].failure is None
        return waits or (beside is not None and beside.program == program and not beside.failure)


Values = Sequence[tuple[Leaf, str | None]]
"""Each argument with the digest and a preview of its value; None where processes may pass it differently."""


class Peers:
    """This process and the others of a mesh."""

    def __init__(self, store: Any, processes: Sequence[int], own: int) -> None:
        self.store = store
        self.processes = tuple(processes)
        self.own = own
        self.entry = ProcessState()
        self.root = f"shardy_py/{digest(repr(self.processes))}"
        self._agreed: set[str] = set()
        self._lock = threading.RLock()

    def agree(self, text: str, place: str, values: Values = (), *, timeout: float | None = None, ahead: bool = False) -> bool:
        """Returns once all processes come with the same text and values, raises where they do not; whether they had to be asked.

        Args:
            timeout: Seconds to wait; None waits as long as the others live.
            ahead: The program is lowered and need not run: processes that do not come in time are not an error.
        """
        program = digest(text)
        with self._lock:
            if program in self._agreed:  # forgetting a plan and making it again asks nobody
                return False
            try:
                if _Wait(self, program, text, values, place, ahead).until(timeout):
                    self._agreed.add(program)
            except ShardyError:
                raise
            except (RuntimeError, ValueError) as error:
                raise PeerMissingError(
                    "the key-value store of jax.distributed does not answer",
                    where=f"first call of {place}",
                    why=f"process 0, which keeps it, may have ended: {error}",
                    fix="look at its output for an earlier error",
                ) from error
            except BaseException as error:  # Ctrl-C
                if not ahead:
                    self.end_call(_error_text(error))
                raise
            return True

    @contextmanager
    def reporting(self, place: str) -> Iterator[None]:
        """Tells the other processes if what is inside fails."""
        before = self.entry.rounds, len(self.entry.calls)
        try:
            yield
        except BaseException as error:
            entry = self.entry
            if not (entry.calls and (entry.rounds, len(entry.calls)) > before):  # else they see the call that was compared
                with contextlib.suppress(RuntimeError), self._lock:
                    self.begin_call(PeerCall("", "", f"{_error_text(error)}\n  in its call of {place}"))
            raise

    def begin_call(self, call: PeerCall) -> None:
        """Says what comes next; of many calls that failed, the first lose their reasons."""
        old, new = self.entry.calls[: 1 - _REASONS], self.entry.calls[1 - _REASONS :]
        self.say(calls=(*(each._replace(failure=each.failure and "an error") for each in old), *new, call))

    def end_call(self, failure: str) -> None:
        """Says why the latest call does not run."""
        *calls, last = self.entry.calls
        self.say(calls=(*calls, last._replace(failure=failure)))

    def say(self, **changes: Any) -> None:
        """Changes the entry of this process."""
        self.entry = replace(self.entry, **changes)
        self.store.key_value_set(f"{self.root}/entry/{self.own}", json.dumps(asdict(self.entry)), allow_overwrite=True)

    def entries(self) -> tuple[dict[int, ProcessState], dict[int, str]]:
        """What the processes say, and those that have ended with the reasons."""

        def read(directory: str) -> dict[int, str]:
            return {int(key.rpartition("/")[2]): text for key, text in self.store.key_value_dir_get(directory)}

        ended = read(_ENDED)  # before the entries: a process that has agreed says so before it ends
        said = read(f"{self.root}/entry/")
        return {p: ProcessState.read(said[p]) if p in said else ProcessState() for p in self.processes}, ended

    def all_agreed(self, program: str) -> None:
        """Says that all have come with a program, and begins anew."""
        rounds = self.entry.rounds
        self.say(rounds=rounds + 1, calls=())
        with contextlib.suppress(RuntimeError, ValueError):  # another process has just done it
            self.store.key_value_set(f"{self.root}/agreed/{rounds}/{program}", "")
            self.store.key_value_delete(f"{self.root}/agreed/{rounds - 1}")

    def send(self, key: str, text: str) -> None:
        """Publishes a long text."""
        packed = zlib.compress(text.encode())
        chunks = [packed[i : i + _CHUNK] for i in range(0, len(packed), _CHUNK)]
        for i, chunk in enumerate(chunks):
            self.store.key_value_set_bytes(f"{self.root}/text/{key}/{i}", chunk, allow_overwrite=True)
        self.store.key_value_set(f"{self.root}/text/{key}/chunks", str(len(chunks)), allow_overwrite=True)

    def receive(self, key: str, seconds: float = 10.0) -> str | None:
        """A text that another process publishes; None if it does not come in time."""
        chunks = self.get(f"text/{key}/chunks", seconds)
        if chunks is None:
            return None
        try:
            parts = [self.store.blocking_key_value_get_bytes(f"{self.root}/text/{key}/{i}", 10_000) for i in range(int(chunks))]
        except (RuntimeError, ValueError, KeyError):
            return None
        return zlib.decompress(b"".join(parts)).decode()

    def get(self, key: str, seconds: float) -> str | None:
        """The value of a key, waited for so long; None where it does not come."""
        begin = time.monotonic()
        try:
            if seconds <= 0:
                return self.store.key_value_try_get(f"{self.root}/{key}")
            return self.store.blocking_key_value_get(f"{self.root}/{key}", max(1, int(seconds * 1000)))
        except (RuntimeError, ValueError, KeyError):  # NOT_FOUND, DEADLINE_EXCEEDED, or the store itself is gone
            time.sleep(max(0.0, seconds - (time.monotonic() - begin)))
            return None


@dataclass(frozen=True)
class _Wait:
    """A process waits for the others with one program."""

    peers: Peers
    program: str
    text: str
    values: Values
    place: str
    ahead: bool

    def until(self, timeout: float | None) -> bool:
        """Whether all have come; see `Peers.agree`."""
        peers, program, begin = self.peers, self.program, time.monotonic()
        if self.ahead:
            peers.say(lowered=(*peers.entry.lowered, (program, self.place)))
        else:
            peers.begin_call(PeerCall(program, digest(self._passed) if any(value for _, value in self.values) else ""))
        rounds, noticed, pause, longest = peers.entry.rounds, begin, _SHORTEST, max(_LONGEST, len(peers.processes) / 50)
        doubt: tuple[Any, float] = None, begin
        while True:
            entries, ended = peers.entries()
            absent = [p for p, entry in entries.items() if p != peers.own and (p in ended or not self._has_come(entry))]
            if not self.ahead and any(entry.rounds > rounds for entry in entries.values()):
                return self._go_on({})  # all were here when another process looked
            if not absent:
                self._compare_values(entries)
                return self._go_on(entries)
            now = time.monotonic()
            stuck = self._different(entries) or self._failed(entries, ended, absent)
            if stuck is not None:
                reason, is_certain, fail = stuck
                doubt = doubt if doubt[0] == reason else (reason, now)
                if is_certain or now - doubt[1] >= PATIENCE:
                    fail()
            elif now - noticed >= NOTICE:
                noticed = now
                logger.warning("process %d has waited %.0f s for %s at the %s", peers.own, now - begin, listed(absent), self._where)
            left = math.inf if timeout is None else begin + timeout - now
            if left <= 0:
                return self._give_up(absent, timeout)
            if peers.get(f"agreed/{rounds}/{program}", min(pause, left)) is not None:
                return self._go_on({})
            pause = min(2 * pause, longest)

    @property
    def _where(self) -> str:
        return f"first call of {self.place}"

    @property
    def _passed(self) -> str:
        return "\n".join(value or "" for _, value in self.values)

    def _lowered_by(self, entry: ProcessState) -> bool:
        return any(program == self.program for program, _ in entry.lowered)

    def _has_come(self, entry: ProcessState) -> bool:
        return self._lowered_by(entry) or entry.comes_with(self.program, self.peers.entry)

    def _go_on(self, entries: Mapping[int, ProcessState]) -> bool:
        own, peers = self.peers.entry, self.peers
        if not self.ahead and any(map(self._lowered_by, entries.values())):  # who has lowered it need not ask again: this is no call of all
            peers.say(calls=own.calls[:-1], lowered=(*own.lowered, (self.program, self.place)))
        elif not self.ahead:
            peers.all_agreed(self.program)
        return True

    def _give_up(self, absent: Sequence[int], timeout: float | None) -> bool:
        if self.ahead:
            return False
        what = f"{listed(absent)} did not come within {timeout:g} s"
        self.peers.end_call(what)
        raise PeerMissingError(
            what,
            where=self._where,
            why="the processes of a mesh compare plans before they run one for the first time; the missing ones are waiting elsewhere, "
            "already run another program, or are slow",
            fix="look at the output of the missing ones for an earlier error; call the same functions in the same order in every process, "
            "with arguments of the same shapes (a last batch that is shorter in one is the usual reason); raise Options(peer_timeout=...), "
            "or leave it out, if they are only slow",
        )

    def _failed(self, entries: Mapping[int, ProcessState], ended: Mapping[int, str], absent: Sequence[int]) -> _Stuck | None:
        """A process that will not come; one that only lowers its program need not hear of it."""
        if self.ahead:
            return None
        calls = {p: entries[p].call_beside(self.peers.entry) for p in absent}
        failures = {p: (call.program, call.failure) for p, call in calls.items() if call is not None and call.failure}
        if over := [p for p in absent if p in ended]:
            return over, True, functools.partial(self._raise_failed, over[0], "ended", ended[over[0]])
        if failures:
            first = min(failures, key=lambda p: failures[p][0] != "")  # others have failed because it had
            is_certain = entries[first].calls[-1].failure is None or failures[first][0] == self.program  # it went on, or gave up waiting
            return first, is_certain, functools.partial(self._raise_failed, first, "failed", failures[first][1])
        return None

    def _raise_failed(self, process: int, how: str, reason: str) -> NoReturn:
        what = f"process {process} has {how}" + (f": {reason}" if reason else "")
        self.peers.end_call(what[:_MOST_TEXT])
        raise PeerFailedError(
            what,
            where=self._where,
            why="every process of a mesh has to run its programs, and this one waited for that process to reach the same program",
            fix=f"look at the output of process {process}",
        )

    def _different(self, entries: Mapping[int, ProcessState]) -> _Stuck | None:
        """Processes that wait for each other with different programs."""
        own = self.peers.entry
        if self.ahead:  # who lowers may be alone in it, unless another has lowered the same function, and not so
            lowered = {p: [program for program, place in e.lowered if place == self.place] for p, e in entries.items()}
            mine = lowered[self.peers.own]
            others = {p: [program for program in theirs if program not in mine] for p, theirs in lowered.items()}
            programs = {p: theirs[-1] for p, theirs in others.items() if theirs and self.program not in lowered[p]}
        else:
            calls = {p: e.call_beside(own) for p, e in entries.items() if not self._lowered_by(e)}
            waiting = {p: call.program for p, call in calls.items() if call is not None and not call.failure}
            programs = {p: program for p, program in waiting.items() if program not in dict(own.lowered)}
        programs[self.peers.own] = self.program
        groups = grouped(sorted(programs), lambda p: programs[p])
        return None if len(groups) < 2 else (groups, not self.ahead, functools.partial(self._raise_different, groups))

    def _raise_different(self, groups: Mapping[str, Sequence[int]]) -> NoReturn:
        peers, mine = self.peers, self.program
        theirs = next(program for program in groups if program != mine)
        peers.send(mine, self.text)
        other = peers.receive(theirs)
        if not self.ahead:
            peers.end_call("")
        pair = [program for program in groups if program in (mine, theirs)]
        first, second = (listed(groups[program]) for program in pair)
        why = "every process of a mesh has to run the same program, or their collectives wait for each other forever"
        if other is not None:
            texts = {mine: self.text, theirs: other}
            why = f"{_difference(first, texts[pair[0]], second, texts[pair[1]])}; {why}"
        raise PlanMismatchError(
            f"{first} and {second} are about to run different programs",
            where=f"{self._where}, in process {peers.own}",
            why=why,
            fix="give every process the same code, shapes, shardings, options, settings of JAX and versions, call the same functions in "
            "the same order, and let nothing of it depend on jax.process_index() or on the order of a set",
        )

    def _compare_values(self, entries: Mapping[int, ProcessState]) -> None:
        """Raises where two processes pass other values for an argument."""
        calls = {p: e.call_beside(self.peers.entry) or e.calls[-1] for p, e in entries.items() if e.calls}
        groups = grouped((p for p, call in calls.items() if call.values), lambda p: calls[p].values)
        if self.ahead or len(groups) < 2:
            return
        self.peers.send(digest(self._passed), self._passed)
        texts = {p: (self.peers.receive(values) or "").split("\n") for values, group in groups.items() for p in group}
        different = list[tuple[Leaf, str, str, str]]()
        for (leaf, _), row in zip(self.values, zip(*texts.values())):
            same = grouped(((p, value) for p, value in sorted(zip(texts, row)) if value), lambda item: item[1])
            if len(same) > 1:
                first, second, *_ = names = [listed([p for p, _ in group]) for group in same.values()]
                shown = (f"{name}: {value.partition(' ')[2]}" for name, value in zip(names[:8], same))
                different.append((leaf, first, second, "; ".join(shown)))
        if different:
            self.peers.end_call("")
            self._raise_values([leaf.path for leaf, *_ in different], *different[0])

    def _raise_values(self, paths: Sequence[str], leaf: Leaf, first: str, second: str, previews: str) -> NoReturn:
        others = f" and {len(paths) - 6} more" if len(paths) > 6 else ""
        raise ValueMismatchError(
            f"{', '.join(paths[:6])}{others} {'has' if len(paths) == 1 else 'have'} other values in {second} than in {first}",
            where=f"{leaf}, argument of the {self._where}, in process {self.peers.own}",
            why=f"{previews}; an argument that is not a global array must be equal in every process; each would go on with its own value",
            fix="make it equal everywhere: the same seed, the same file, or jax.experimental.multihost_utils.broadcast_one_to_all(value); "
            "if every process has a part of it, jax.make_array_from_process_local_data(sharding, part)",
        )


_Stuck = tuple[Any, bool, Callable[[], NoReturn]]
"""Why no agreement is in sight, whether that is certain, and what raises the error."""


class Watch:
    """Waits for what several processes compute together, and says in each of them which one failed first.

    A process whose wait fails says so and listens for a second: those who are silent have died, or wait elsewhere. What it finds out
    first is what all raise, then and ever after: their transfers do not pair any more.
    """

    def __init__(self, peers: Peers, place: str, timeout: float | None) -> None:
        self.peers, self.place, self.timeout = peers, place, timeout
        self._root = f"{peers.root}/run"

    @contextmanager
    def running(self, task: Callable[[], str]) -> Iterator[None]:
        """Tells the others if what is inside fails; `task` says where."""
        try:
            yield
        except PeerMissingError:
            raise
        except Exception as error:
            own = f"process {self.peers.own} has failed in {task()}: {_error_text(error)}"
            is_late = isinstance(error, jax.errors.JaxRuntimeError)  # may be what comes of another one's failure
            first = self._verdict(own, is_late)
            if first == own:
                raise
            self._raise(first, error)

    def wait(self, arrays: Iterable[Any]) -> None:
        """Until arrays have been computed; raises what another process failed of, or where it takes longer than the timeout."""
        begin, pause, look = time.monotonic(), 5e-5, time.monotonic() + _LONGEST
        for array in arrays:
            while not array.is_ready():
                time.sleep(pause)
                pause, now = min(2 * pause, 1e-3), time.monotonic()
                if now >= look:
                    look = now + _LONGEST
                    self._look(now - begin)
            jax.block_until_ready(array)

    def result(self, work: Callable[[], Any]) -> Any:
        """What a function gives in which the processes wait for each other, as `wait` does."""
        future = Future[Any]()

        def run() -> None:
            try:
                future.set_result(work())
            except BaseException as error:
                future.set_exception(error)

        begin = time.monotonic()
        threading.Thread(target=run, daemon=True).start()  # where it waits in vain, Python does not wait for it to end
        while not futures.wait([future], _LONGEST).done:
            self._look(time.monotonic() - begin)
        return future.result()

    def _look(self, seconds: float) -> None:
        said, ended = self._said(), self.peers.entries()[1]
        # One that has ended without an error may have done its last step, and still gives what others fetch from it.
        over = [p for p in self.peers.processes if ended.get(p)]
        if over:
            self._raise(self._first(f"process {over[0]} has ended: {ended[over[0]]}"))
        if said:
            self._raise(self._verdict(f"process {self.peers.own} waits", is_late=True))
        if self.timeout is not None and seconds > self.timeout:
            slow = f"no process has failed, and none has finished its step within {self.timeout:g} s"
            self._raise(self._verdict(slow, is_late=True))

    def _said(self) -> dict[str, str]:
        return {key.rpartition("/")[2]: text for key, text in self.peers.store.key_value_dir_get(f"{self._root}/")}

    def _verdict(self, own: str, is_late: bool) -> str:
        """What failed first: what was found out before, else a process that does not answer, else this failure."""
        store, me = self.peers.store, str(self.peers.own)
        store.key_value_set(f"{self._root}/{me}", own, allow_overwrite=True)
        deadline = time.monotonic() + 4 * _LONGEST
        while is_late and "first" not in (said := self._said()) and time.monotonic() < deadline:
            if all(str(p) in said for p in self.peers.processes):
                break
            time.sleep(_SHORTEST)
        silent = [p for p in self.peers.processes if str(p) not in self._said()] if is_late else ()
        failed = [text for key, text in sorted(self._said().items()) if " has failed in " in text]
        if silent:
            return self._first(f"{listed(silent)} did not answer when a wait failed or took too long ({own})")
        return self._first(own if not is_late else (failed or [own])[0])

    def _first(self, text: str) -> str:
        with contextlib.suppress(RuntimeError, ValueError):  # another process was faster
            self.peers.store.key_value_set(f"{self._root}/first", text)
        return self._said()["first"]

    def _raise(self, first: str, cause: Exception | None = None) -> NoReturn:
        raise PeerFailedError(
            first,
            where=f"step of {self.place}, in process {self.peers.own}",
            why="every process runs its part of each step, and waits for data from the others",
            fix="look at the output of that process, then start all of them again, from the last checkpoint",
        ) from cause


def _difference(first: str, one: str, second: str, other: str) -> str:
    """The first line that two texts do not share."""
    ours, theirs = one.splitlines(), other.splitlines()
    for mine, its in zip(ours, theirs):
        if mine != its:
            return f"{first}: `{mine.strip()}`, {second}: `{its.strip()}`"
    longer, rest = (first, ours[len(theirs) :]) if len(ours) > len(theirs) else (second, theirs[len(ours) :])
    return f"only {longer}: `{rest[0].strip() if rest else ''}`"


def digest(text: str) -> str:
    """A name for a text: equal for equal texts."""
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def listed(processes: Sequence[int]) -> str:
    """`processes 0, 1 and 4 more`."""
    shown = ", ".join(map(str, processes[:8])) + (f" and {len(processes) - 8} more" if len(processes) > 8 else "")
    return f"process{'es' if len(processes) > 1 else ''} {shown}"


_PEERS: dict[tuple[int, ...], tuple[Any, Peers]] = {}
"""The processes of meshes -> the client of `jax.distributed`, and where they meet."""


def peers_of(devices: Iterable[Any]) -> Peers | None:
    """The processes of a mesh; None in a single process, or one outside the mesh."""
    client = coordination_client()
    if client is None:
        return None
    processes, own = tuple(sorted({device.process_index for device in devices})), jax.process_index()
    if len(processes) < 2 or own not in processes:
        return None
    tell_end()
    if _PEERS.get(processes, (None,))[0] is not client:
        _PEERS[processes] = client, Peers(client, processes, own)
    return _PEERS[processes][1]


def tell_end() -> None:
    """Once this process ends, tells those that wait for it; nothing before `jax.distributed.initialize`."""
    if coordination_client() is not None:
        # Functions are called in reverse order: this one before that of `jax.distributed`, which waits for all processes.
        _at_exit(os.getpid())


@functools.cache
def _at_exit(pid: int) -> None:
    ending = threading.Event()
    # The store may be gone, so that it is asked from a thread; when Python ends it is too late to start one.
    thread = threading.Thread(target=_say_ended, args=(ending,), name="shardy_py-end", daemon=True)
    thread.start()

    def end() -> None:
        if os.getpid() == pid:  # a fork ends, not the process
            ending.set()
            thread.join(2.0)

    atexit.register(end)


def _say_ended(ending: threading.Event) -> None:
    ending.wait()
    client = coordination_client()
    if client is not None:
        error = getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)
        with contextlib.suppress(RuntimeError, ValueError):
            reason = "" if error is None else _error_text(error)
            client.key_value_set(f"{_ENDED}{coordination_number()}", reason, allow_overwrite=True)


def report_failures(view: MeshView, place: str) -> contextlib.AbstractContextManager[None]:
    """Tells the other processes of a mesh if what is inside fails."""
    peers = None
    if coordination_client() is not None:
        with contextlib.suppress(ValueError):  # an abstract mesh
            mesh = view.runnable()
            peers = peers_of(mesh.devices.flat) if isinstance(mesh, Mesh) else None
    return contextlib.nullcontext() if peers is None else peers.reporting(place)


def _error_text(error: BaseException) -> str:
    text = f"{type(error).__name__}: {error}"
    return text if len(text) <= _MOST_TEXT else f"{text[:_MOST_TEXT]} ..."
