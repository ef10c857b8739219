"""How calls run a jitted signature: at once, or waiting for the result; and what processes compare before the first run."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
from jax.sharding import AbstractMesh, Mesh

from shardy_py.api.agreement import Agreement, statement
from shardy_py.api.planning import Planned
from shardy_py.backends.host_threads import must_wait
from shardy_py.backends.leaf_order import Rearranged


@dataclass(frozen=True, eq=False)
class Dispatch:
    """The ways to run a signature.

    Attributes:
        run: Takes leaves that lie where they should, and the static arguments.
        agreement: With the other processes of the mesh, before the first run.
    """

    run: Callable[[Sequence[Any], Sequence[Any]], Any]
    agreement: Agreement | None = None


def direct(jitted: Rearranged) -> Dispatch:
    """As `jax.jit` does it."""
    return Dispatch(jitted.run)


def dispatched(jitted: Rearranged, planned: Planned, mesh: Mesh | AbstractMesh) -> Dispatch:
    """What the mesh needs: `direct` in one process, with as many threads as its devices need."""
    if not isinstance(mesh, Mesh):
        return direct(jitted)
    run = functools.partial(_waiting, jitted) if must_wait(mesh.local_devices) else jitted.run
    if jax.process_count() == 1:
        return Dispatch(run)
    devices = list(mesh.devices.flat)
    processes = sorted({device.process_index for device in devices})
    request = planned.traced.request
    timeout = request.settings.options.peer_timeout
    agreement = None
    if len(processes) > 1 and timeout > 0:
        state = functools.partial(statement, planned, devices)
        agreement = Agreement(processes, jax.process_index(), state, request.location, timeout)
    return Dispatch(run, agreement)


def _waiting(jitted: Rearranged, leaves: Sequence[Any], statics: Sequence[Any]) -> Any:
    return jax.block_until_ready(jitted.run(leaves, statics))
