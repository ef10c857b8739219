"""Agreement: before the processes of a mesh run a signature for the first time, they compare what they are about to run.

Processes that run different programs on one mesh wait in each other's collectives for ever, and those that pass different values for one
array go on with a mixture of them. So each states its program: versions, mesh, signature, and the program with its shardings, its
constants by content; and the values of arguments that every process has to have. `rendezvous` compares the statements by digest; their
texts travel only where they differ.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import jax
from jax.sharding import Mesh

from shardy_py.api.errors import PeerFailedError, PeerMissingError, PlanMismatchError, ValueMismatchError
from shardy_py.api.meshes import MeshView
from shardy_py.api.peer_states import Verdict
from shardy_py.api.planning import Planned
from shardy_py.api.rendezvous import Rendezvous, digest, listed, say_ended
from shardy_py.api.statement import passed_values, preview, statement
from shardy_py.frontends.context import coordination_client, coordination_number

AHEAD = 10.0
"""Seconds that a process waits for the others where a program is lowered and need not run: it may be the only one that looks at it."""

_MOST_TEXT = 2000
"""Characters of another process's error that are shown."""


class Agreement:
    """Compares one signature's statement with those of the other processes, once.

    Args:
        peers: The processes.
        planned: The plan.
        devices: Those of the mesh, in its order.

    Attributes:
        peers: The processes.
        settled: Whether the processes have agreed to run it by itself, and so as part of another program too.
    """

    def __init__(self, peers: Rendezvous, planned: Planned, devices: Sequence[Any]) -> None:
        self.peers = peers
        self._planned = planned
        self._devices = tuple(devices)
        self._lock = threading.Lock()
        self._settled_within = False
        self.settled = False

    def settle(self, leaves: Sequence[Any], prepare: Callable[[], Any]) -> None:
        """Returns when all processes are about to run the program by itself; at once after the first time.

        Args:
            leaves: The arguments of the call.
            prepare: The rest of the work before the program can run, such as compiling it; nobody runs before it is done everywhere.

        Raises:
            PlanMismatchError: Some process is about to run something else; raised in every process.
            ValueMismatchError: Some process passes other values for an argument; raised in every process.
            PeerFailedError: Some process has failed or ended, or has gone on without this one.
            PeerMissingError: Some process did not come in time.
        """
        if _COVERED.programs:
            return
        with self._lock:
            text = self._text(_BY_ITSELF)
            if not self.settled and digest(text) not in self.peers.agreed:  # forgetting a plan and making it again asks nobody
                self._heed(self._wait(text, passed_values(leaves), self._timeout), text, leaves)
                with covering():
                    prepare()
                self._heed(self._wait(f"{text}\nready to run", (), None), text, ())
                self.peers.agreed.add(digest(text))
            self.settled = True

    def settle_within(self, leaves: Sequence[Any] = (), *, ahead: bool = False) -> None:
        """As `settle`, for a program that runs as a part of another one, or of a derivative.

        Args:
            leaves: The arguments of the call; nothing where they are not known.
            ahead: The other program is only lowered and need not run: where others do not come soon, they are not waited for.
        """
        if _COVERED.programs:
            return
        with self._lock:
            if self.settled or self._settled_within:
                return
            text = self._text(_WITHIN)
            if digest(text) not in self.peers.agreed:
                verdict = self._wait(text, passed_values(leaves), AHEAD if ahead else self._timeout, ahead=ahead)
                if ahead and verdict.kind == "missing":
                    return
                self._heed(verdict, text, leaves)
                self.peers.agreed.add(digest(text))
            self._settled_within = True

    def _text(self, called: str) -> str:
        return f"called {called}\n{statement(self._planned, self._devices)}"

    @property
    def _timeout(self) -> float | None:
        return self._planned.traced.request.settings.options.peer_timeout

    def _wait(self, text: str, values: Sequence[str | None], timeout: float | None, *, ahead: bool = False) -> Verdict:
        try:
            return self.peers.wait(digest(text), values, self._where, timeout=timeout, ahead=ahead)
        except (RuntimeError, ValueError) as error:
            raise PeerMissingError(
                "the key-value store of jax.distributed does not answer",
                where=f"first call of {self._where}",
                why=f"process 0, which keeps it, may have ended: {error}",
                fix="look at its output for an earlier error",
            ) from error

    @property
    def _where(self) -> str:
        return self._planned.traced.request.location

    def _heed(self, verdict: Verdict, text: str, leaves: Sequence[Any]) -> None:
        """Raises what a verdict calls for."""
        where = f"first call of {self._where}"
        if verdict.kind == "programs":
            raise _different_programs(self.peers, verdict, text, where)
        if verdict.kind == "values":
            raise self._different_values(verdict, digest(text), leaves, where)
        if verdict.kind == "failed" or verdict.kind == "ended":
            raise _failed(verdict, where)
        if verdict.kind == "elsewhere":
            raise PeerMissingError(
                f"process {verdict.process} did not come: it runs a program that this process has not started",
                where=where,
                why="it waits in the collectives of that program, and this process waits for it here; neither can go on",
                fix="call the same functions in the same order in every process, with arguments of the same shapes; a last batch that is "
                "shorter in one process is the usual reason",
            )
        if verdict.kind == "left":
            raise PeerMissingError(
                "the other processes have given up waiting for this one",
                where=where,
                why=f"process {verdict.process} waited to compare plans with it, until it was interrupted or its time was up",
                fix="start them again; raise Options(peer_timeout=...) if this process takes longer than the others until it gets here",
            )
        if verdict.kind == "missing":
            raise PeerMissingError(
                f"{listed(verdict.missing) if verdict.missing else 'a process'} did not come within {self._timeout:g} s",
                where=where,
                why="the processes of a mesh compare plans before they run one for the first time; the missing ones wait elsewhere, or "
                "are slow",
                fix="look at the output of the missing ones for an earlier error; call the same functions in the same order in every "
                "process; raise Options(peer_timeout=...), or leave it out, if they are only slow",
            )

    def _different_values(self, verdict: Verdict, program: str, leaves: Sequence[Any], where: str) -> ValueMismatchError:
        all_leaves, own, first = self._planned.traced.request.leaves, self.peers.own, verdict.leaves[0]
        groups = verdict.groups[:8]
        if any(own == group[0] for group in groups):
            self.peers.send(f"{program}/{first}/{own}", preview(leaves[first]))
        said = [f"{listed(group)}: {self.peers.receive(f'{program}/{first}/{group[0]}') or 'unknown'}" for group in groups]
        paths = [all_leaves[leaf].path for leaf in verdict.leaves]
        others = f" and {len(paths) - 6} more" if len(paths) > 6 else ""
        return ValueMismatchError(
            f"{', '.join(paths[:6])}{others} {'has' if len(paths) == 1 else 'have'} other values in {listed(groups[1])} than in "
            f"{listed(groups[0])}",
            where=f"{all_leaves[first]}, argument of the {where}, in process {own}",
            why=f"{'; '.join(said)}; an argument that is no global array is taken for one value that every process has, and each would go "
            "on with its own",
            fix="make it equal everywhere: the same seed, the same file, or jax.experimental.multihost_utils.broadcast_one_to_all(value); "
            "if every process has a part of it, jax.make_array_from_process_local_data(sharding, part)",
        )


def _failed(verdict: Verdict, where: str) -> PeerFailedError:
    reason = f": {verdict.reason}" if verdict.reason else ""
    return PeerFailedError(
        f"process {verdict.process} has {'failed' if verdict.kind == 'failed' else 'ended'}{reason}",
        where=where,
        why="every process of a mesh has to run its programs, and this one waited for that process to come with the same program",
        fix=f"look at the output of process {verdict.process}",
    )


def _different_programs(peers: Rendezvous, verdict: Verdict, text: str, where: str) -> PlanMismatchError:
    groups, programs, own = verdict.groups, verdict.programs, peers.own
    mine = next((i for i, group in enumerate(groups) if own in group), 0)
    i, j = (0, mine) if mine else (0, 1)
    if own in (group[0] for group in groups):
        peers.send(programs[mine], text)
    other = peers.receive(programs[j if mine == i else i])
    first, second = listed(groups[i]), listed(groups[j])
    why = "every process of a mesh has to run the same program, or their collectives wait for each other for ever"
    if other is not None:
        why = f"{_difference(first, *((text, second, other) if mine == i else (other, second, text)))}; {why}"
    return PlanMismatchError(
        f"{first} and {second} are about to run different programs",
        where=f"{where}, in process {own}",
        why=why,
        fix="give every process the same code, shapes, shardings, options, settings of JAX and versions, call the same functions in the "
        "same order, and let nothing of it depend on jax.process_index() or on the order of a set",
    )


def _difference(first: str, one: str, second: str, other: str) -> str:
    """The first line that two statements do not share."""
    ours, theirs = one.splitlines(), other.splitlines()
    for mine, its in zip(ours, theirs):
        if mine != its:
            return f"{first}: `{mine.strip()}`, {second}: `{its.strip()}`"
    longer, rest = (first, ours[len(theirs) :]) if len(ours) > len(theirs) else (second, theirs[len(ours) :])
    return f"only {longer}: `{rest[0].strip() if rest else ''}`"


_BY_ITSELF, _WITHIN = "by itself", "within another program or a derivative"


def agreement_of(planned: Planned, mesh: Mesh) -> Agreement | None:
    """The agreement of the processes of a mesh; None where nothing is to be compared.

    Args:
        planned: The plan.
        mesh: The mesh.
    """
    if planned.traced.request.settings.options.peer_timeout == 0:
        return None
    devices = tuple(mesh.devices.flat)
    peers = peers_of(devices)
    return None if peers is None else Agreement(peers, planned, devices)


class _Covered(threading.local):
    programs = 0
    """Number of agreed programs being lowered; programs lowered meanwhile are part of them."""


_COVERED = _Covered()


@contextmanager
def covering() -> Iterator[None]:
    """A context without comparisons: calls and lowerings in it are part of a program that was compared, or will be."""
    _COVERED.programs += 1
    try:
        yield
    finally:
        _COVERED.programs -= 1


_PEERS: dict[tuple[int, ...], tuple[Any, Rendezvous]] = {}
"""The processes of meshes -> the client of `jax.distributed`, and where they meet."""


def peers_of(devices: Iterable[Any]) -> Rendezvous | None:
    """The rendezvous of the processes of a mesh; None in a single process, or one outside the mesh.

    Args:
        devices: The devices of the mesh.
    """
    client = coordination_client()
    if client is None:
        return None
    processes, own = tuple(sorted({device.process_index for device in devices})), jax.process_index()
    if len(processes) < 2 or own not in processes:
        return None
    tell_end()
    entry = _PEERS.get(processes)
    if entry is None or entry[0] is not client:
        entry = _PEERS[processes] = client, Rendezvous(client, processes, own)
    return entry[1]


@functools.cache
def _at_exit(pid: int) -> None:
    ending = threading.Event()
    # The store may be gone, so that it is asked from a thread; when Python ends it is too late to start one.
    thread = threading.Thread(target=_say_end, args=(ending,), name="shardy_py-end", daemon=True)
    thread.start()
    atexit.register(_end, pid, ending, thread)


def tell_end() -> None:
    """Once this process ends, tells those that wait for it; nothing before `jax.distributed.initialize`."""
    if coordination_client() is not None:
        # Functions are called in reverse order: this one before that of `jax.distributed`, which waits for all processes.
        _at_exit(os.getpid())


def _end(pid: int, ending: threading.Event, thread: threading.Thread) -> None:
    if os.getpid() == pid:  # a fork ends, not the process
        ending.set()
        thread.join(2.0)


def _say_end(ending: threading.Event) -> None:
    ending.wait()
    for _, peers in _PEERS.values():
        peers.stop()
    client = coordination_client()
    if client is not None:
        error = getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)
        say_ended(client, coordination_number(), "" if error is None else _told(error))


@contextmanager
def failures_told(view: MeshView, where: str) -> Iterator[None]:
    """Tells the other processes of a mesh if what is inside fails.

    Args:
        view: The mesh.
        where: The function, and where it is.
    """
    peers = None
    if coordination_client() is not None:
        with contextlib.suppress(ValueError):  # an abstract mesh
            mesh = view.runnable()
            peers = peers_of(mesh.devices.flat) if isinstance(mesh, Mesh) else None
    if peers is None:
        yield
        return
    with contextlib.suppress(RuntimeError):
        peers.calls()
    try:
        yield
    except (PlanMismatchError, PeerMissingError):
        raise
    except BaseException as error:
        with contextlib.suppress(RuntimeError):
            peers.failed(f"{_told(error)}\n  in its call of {where}")
        raise


def _told(error: BaseException) -> str:
    text = f"{type(error).__name__}: {error}"
    return text if len(text) <= _MOST_TEXT else f"{text[:_MOST_TEXT]} ..."
