"""The processes of a mesh: their rendezvous, and their reports of failures and exits."""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import jax
from jax.sharding import Mesh

from shardy_py.api.errors import PeerMissingError, PlanMismatchError
from shardy_py.api.meshes import MeshView
from shardy_py.api.rendezvous import Rendezvous, say_ended
from shardy_py.frontends.context import coordination_client, coordination_number

_MOST_TEXT = 2000
"""Characters of another process's error that are shown."""


_PEERS: dict[tuple[int, ...], tuple[Any, Rendezvous]] = {}
"""The processes of meshes -> the client of `jax.distributed`, and where they meet."""


def peers_of(devices: Iterable[Any]) -> Rendezvous | None:
    """The rendezvous of the processes of a mesh; None in a single process, or one outside the mesh."""
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
        say_ended(client, coordination_number(), "" if error is None else _error_text(error))


@contextmanager
def report_failures(view: MeshView, where: str) -> Iterator[None]:
    """Tells the other processes of a mesh if what is inside fails."""
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
            peers.failed(f"{_error_text(error)}\n  in its call of {where}")
        raise


def _error_text(error: BaseException) -> str:
    text = f"{type(error).__name__}: {error}"
    return text if len(text) <= _MOST_TEXT else f"{text[:_MOST_TEXT]} ..."
