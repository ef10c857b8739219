"""Calls of a jitted signature: at once, or waiting for the result; processes compare their programs before the first."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
from jax.sharding import AbstractMesh, Mesh

from shardy_py.api.agreement import Agreement
from shardy_py.backends.callback_errors import CallbackErrors
from shardy_py.backends.host_threads import must_wait
from shardy_py.backends.leaf_order import Rearranged
from shardy_py.frontends.context import is_tracing


@dataclass(frozen=True, eq=False)
class Dispatch:
    """The ways to run a signature."""

    run: Callable[[Sequence[Any], Sequence[Any]], Any]
    agreement: Agreement | None = None


def direct(jitted: Rearranged) -> Dispatch:
    """As `jax.jit` does it."""
    return Dispatch(jitted.run)


def dispatched(
    jitted: Rearranged, mesh: Mesh | AbstractMesh, agreement: Agreement | None, callback_errors: CallbackErrors | None
) -> Dispatch:
    """The way to dispatch on a mesh: `direct` in one process, with as many threads as its devices need."""
    if not isinstance(mesh, Mesh):
        return direct(jitted)
    if callback_errors is not None and agreement is None:  # of several processes only one would raise, and the others go on with zeros
        return Dispatch(functools.partial(_watching, callback_errors, jitted))
    run = functools.partial(_waiting, jitted) if must_wait(mesh.local_devices) else jitted.run
    return Dispatch(run if agreement is None else functools.partial(_counted, agreement, run), agreement)


def _counted(agreement: Agreement, run: Callable[..., Any], leaves: Sequence[Any], statics: Sequence[Any]) -> Any:
    """Counts a program, then runs it; the call blocks until the other processes run it too."""
    if is_tracing():
        return run(leaves, statics)
    peers = agreement.peers
    peers.runs += 1
    try:
        return run(leaves, statics)
    except BaseException:
        peers.runs -= 1
        raise


def _waiting(jitted: Rearranged, leaves: Sequence[Any], statics: Sequence[Any]) -> Any:
    return jax.block_until_ready(jitted.run(leaves, statics))


def _watching(callback_errors: CallbackErrors, jitted: Rearranged, leaves: Sequence[Any], statics: Sequence[Any]) -> Any:
    return jitted.run(leaves, statics) if is_tracing() else callback_errors.run(jitted.run, leaves, statics)
