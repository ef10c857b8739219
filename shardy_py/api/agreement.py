"""Agreement: before the processes of a mesh run a signature for the first time, they compare what they are about to run.

Processes that run different programs on one mesh wait in each other's collectives for ever. So each states its plan: versions, mesh,
signature, and the program with its shardings. The statements are compared through the key-value store of `jax.distributed`, by digest;
their texts travel only where they differ. One process, the first of the mesh, compares for all, so that the work per process does not
grow with their number.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import re
import threading
import time
import zlib
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import jax
import jaxlib
import numpy as np
from jax.core import Tracer

from shardy_py.api.errors import PeerMissingError, PlanMismatchError
from shardy_py.api.planning import Planned
from shardy_py.api.signature import configuration
from shardy_py.frontends.context import coordination_client, is_tracing
from shardy_py.ir.printer import print_program

_GRACE = 4.0
"""Seconds that the other processes wait longer than the one that compares, so that they hear from it who is missing."""

_CHUNK = 1 << 20
_LARGEST_CONSTANT = 1 << 22
_GONE = "gone"


class Store(Protocol):
    """The part of `jax.distributed`'s client that is used."""

    def key_value_set(self, key: str, value: str, allow_overwrite: bool = False) -> None:
        """Sets a key."""
        ...

    def key_value_set_bytes(self, key: str, value: bytes, allow_overwrite: bool = False) -> None:
        """Sets a key."""
        ...

    def key_value_try_get(self, key: str) -> str:
        """The value of a key; raises where there is none."""
        ...

    def key_value_delete(self, key: str) -> None:
        """Forgets a key, or those below it."""
        ...

    def blocking_key_value_get(self, key: str, timeout_in_ms: int) -> str:
        """The value of a key, once it is there."""
        ...

    def blocking_key_value_get_bytes(self, key: str, timeout_in_ms: int) -> bytes:
        """The value of a key, once it is there."""
        ...


def statement(planned: Planned, devices: Sequence[Any]) -> str:
    """What a process is about to run, one fact per line; equal in every process that runs the same."""
    request, plan = planned.traced.request, planned.plan
    layout = request.layout
    ids = " ".join(f"{device.process_index}:{device.id}" for device in devices)
    lines = [
        f"function {request.name}",
        f"jax {jax.__version__}, jaxlib {jaxlib.__version__}",
        f"lowering {plan.lowering}",
        f"mesh {request.view.describe()}",
        f"devices {ids}",
        f"settings {configuration()}",
        f"donated {', '.join(layout.labels[i] for i in layout.donated) or 'nothing'}",
        *(f"input {value}" for value in plan.inputs),
        *(f"output {value}" for value in plan.outputs),
        print_program(plan.program),
        *(f"closed over {_constant(value)}" for value in planned.traced.jaxpr.consts),
    ]
    # Names of callables may hold their addresses, which differ between processes.
    return re.sub(r" at 0x[0-9a-f]+", "", "\n".join(lines))


def _constant(value: Any) -> str:
    """Type and digest of a closed-over array; without the digest where it would be dear or is not to be had here."""
    kind = f"{getattr(value, 'dtype', type(value).__name__)}{list(getattr(value, 'shape', ()))}"
    known = isinstance(value, np.ndarray) or (isinstance(value, jax.Array) and not isinstance(value, Tracer) and value.is_fully_addressable)
    if not known or value.size > _LARGEST_CONSTANT:
        return kind
    if jax.dtypes.issubdtype(value.dtype, jax.dtypes.extended):
        value = jax.random.key_data(value)
    return f"{kind} {hashlib.sha256(np.ascontiguousarray(value).tobytes()).hexdigest()}"


class Agreement:
    """Compares one signature's statement with those of the other processes, once.

    Args:
        processes: The processes of the mesh, in order.
        own: This process.
        state: Gives the statement.
        what: The function and where it is, for messages.
        timeout: Seconds to wait for the others.
    """

    def __init__(self, processes: Sequence[int], own: int, state: Callable[[], str], what: str, timeout: float) -> None:
        self._processes = tuple(processes)
        self._own = own
        self._state = state
        self._what = what
        self._timeout = timeout
        self._settled = False
        self._lock = threading.Lock()

    def settle(self) -> None:
        """Returns when all processes are about to run the same; at once after the first time, and under an outer trace.

        Raises:
            PlanMismatchError: Some process is about to run something else; raised in every process.
            PeerMissingError: Some process did not come in time.
        """
        if self._settled or is_tracing():
            return
        with self._lock:
            client = coordination_client()
            if client is not None and not self._settled:
                text = self._state()
                digest = _digest(text)
                if (self._processes, digest) not in _AGREED:
                    number = _ROUNDS[self._processes] = _ROUNDS.get(self._processes, 0) + 1
                    compare(client, number, self._processes, self._own, text, what=self._what, timeout=self._timeout)
                    _AGREED.add((self._processes, digest))
            self._settled = True


_AGREED: set[tuple[tuple[int, ...], str]] = set()
"""What was agreed on before; forgetting a plan and making it again asks nobody."""

_ROUNDS: dict[tuple[int, ...], int] = {}
"""How many times these processes have compared; every process counts alike, for they run the same programs in the same order."""


def compare(client: Store, number: int, processes: tuple[int, ...], own: int, text: str, *, what: str, timeout: float) -> None:
    """One comparison among processes; see `Agreement.settle`.

    Args:
        client: The store.
        number: How many times these processes have compared.
        processes: The processes.
        own: This one.
        text: Its statement.
        what: The function and where it is, for messages.
        timeout: Seconds to wait for the others.
    """
    digest = _digest(text)
    group = hashlib.sha256(repr(processes).encode()).hexdigest()[:16]
    place = f"shardy_py/{group}/{number}"
    started = time.monotonic()
    fail = functools.partial(_missing, what=what, timeout=timeout)
    client.key_value_set(f"{place}/from/{own}", digest, allow_overwrite=True)
    if own == processes[0]:
        verdict = _verdict(client, place, processes, own, digest, started + timeout)
        client.key_value_set(f"{place}/verdict", json.dumps(dataclasses.asdict(verdict)))
        if not (verdict.missing or verdict.gone):
            client.key_value_delete(f"shardy_py/{group}/{number - 1}")
    else:
        heard = _get(client, f"{place}/verdict", started + timeout + _GRACE)
        if heard is None:
            client.key_value_set(f"{place}/from/{own}", _GONE, allow_overwrite=True)
            heard = _get(client, f"{place}/verdict", 0.0)
        if heard is None:
            came = [process for process in processes if _get(client, f"{place}/from/{process}", 0.0) is not None]
            raise fail([process for process in processes if process not in came])
        verdict = Verdict(**json.loads(heard))
    if verdict.missing or verdict.gone:
        late = own in verdict.missing or not verdict.missing
        raise fail([process for process in verdict.missing if process != own], late=late)
    if len(verdict.groups) > 1:
        raise _mismatch(client, place, verdict.groups, own, text, what)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


@dataclasses.dataclass(frozen=True)
class Verdict:
    """What the process that compares found.

    Attributes:
        groups: The processes, those with equal statements together, in order of the first.
        missing: Those that did not come in time.
        gone: Those that gave up waiting.
    """

    groups: list[list[int]]
    missing: list[int]
    gone: list[int]


def _verdict(client: Store, place: str, processes: Sequence[int], own: int, digest: str, deadline: float) -> Verdict:
    groups: dict[str, list[int]] = {}
    missing, gone = [], []
    for process in processes:
        said = digest if process == own else _get(client, f"{place}/from/{process}", deadline)
        if said is None:
            missing.append(process)
        elif said == _GONE:
            gone.append(process)
        else:
            groups.setdefault(said, []).append(process)
    return Verdict(list(groups.values()), missing, gone)


def _get(client: Store, key: str, deadline: float) -> str | None:
    """The value of a key, waited for until the deadline; None where it does not come."""
    left = deadline - time.monotonic()
    try:
        return client.key_value_try_get(key) if left <= 0 else client.blocking_key_value_get(key, max(1, int(left * 1000)))
    except (RuntimeError, ValueError, KeyError):  # NOT_FOUND, DEADLINE_EXCEEDED, or the store itself is gone
        return None


def _listed(processes: Sequence[int]) -> str:
    shown = ", ".join(map(str, processes[:8])) + (f" and {len(processes) - 8} more" if len(processes) > 8 else "")
    return f"process{'es' if len(processes) > 1 else ''} {shown}"


def _missing(missing: Sequence[int], *, what: str, timeout: float, late: bool = False) -> PeerMissingError:
    if late:
        return PeerMissingError(
            "the other processes have given up waiting for this one",
            where=f"first call of {what}",
            why=f"they waited {timeout:g} s to compare plans with it",
            fix="start them again; raise Options(peer_timeout=...) if this process takes longer than the others until it gets here",
        )
    return PeerMissingError(
        f"{_listed(missing) if missing else 'the process that compares'} did not come within {timeout:g} s",
        where=f"first call of {what}",
        why="the processes of a mesh compare plans before they run one for the first time; the missing ones have ended, wait elsewhere, or "
        "are slow",
        fix="look at the output of the missing ones for an earlier error; call the same functions in the same order in every process; "
        "raise Options(peer_timeout=...) if they are only slow",
    )


def _mismatch(client: Store, place: str, groups: list[list[int]], own: int, text: str, what: str) -> PlanMismatchError:
    first, second = groups[0], next((group for group in groups[1:] if own in group), groups[1])
    if own in (first[0], *(group[0] for group in groups[1:])):
        _send(client, f"{place}/text/{own}", text)
    other = _receive(client, f"{place}/text/{second[0] if own in first else first[0]}")
    why = "every process of a mesh has to run the same program, or their collectives wait for each other for ever"
    if other is not None:
        mine, theirs = (text, other) if own in first else (other, text)
        why = f"{_difference(_listed(first), mine, _listed(second), theirs)}; {why}"
    return PlanMismatchError(
        f"{_listed(first)} and {_listed(second)} are about to run different programs",
        where=f"first call of {what}, in process {own}",
        why=why,
        fix="give every process the same code, shapes, shardings, options and versions, call the same functions in the same order, and let "
        "nothing of it depend on jax.process_index() or on the order of a set",
    )


def _difference(first: str, one: str, second: str, other: str) -> str:
    """The first line that two statements do not share."""
    ours, theirs = one.splitlines(), other.splitlines()
    for mine, its in zip(ours, theirs):
        if mine != its:
            return f"{first}: `{mine.strip()}`, {second}: `{its.strip()}`"
    longer, rest = (first, ours[len(theirs) :]) if len(ours) > len(theirs) else (second, theirs[len(ours) :])
    return f"only {longer}: `{rest[0].strip() if rest else ''}`"


def _send(client: Store, key: str, text: str) -> None:
    packed = zlib.compress(text.encode())
    chunks = [packed[i : i + _CHUNK] for i in range(0, len(packed), _CHUNK)]
    for i, chunk in enumerate(chunks):
        client.key_value_set_bytes(f"{key}/{i}", chunk, allow_overwrite=True)
    client.key_value_set(f"{key}/chunks", str(len(chunks)), allow_overwrite=True)


def _receive(client: Store, key: str) -> str | None:
    chunks = _get(client, f"{key}/chunks", time.monotonic() + 10)
    if chunks is None:
        return None
    try:
        parts = [client.blocking_key_value_get_bytes(f"{key}/{i}", 10_000) for i in range(int(chunks))]
    except (RuntimeError, ValueError, KeyError):
        return None
    return zlib.decompress(b"".join(parts)).decode()
