"""How calls run a jitted signature: at once; waiting for the result; or, with several processes, with host arrays cut first."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax.sharding import AbstractMesh, Mesh, NamedSharding

from shardy_py.api.agreement import Agreement, statement
from shardy_py.api.errors import SpecError
from shardy_py.api.planning import Planned
from shardy_py.api.trees import Leaf
from shardy_py.backends.executable import SignatureChanged
from shardy_py.backends.host_threads import must_wait


@dataclass(frozen=True, eq=False)
class Dispatch:
    """The ways to run a signature.

    Attributes:
        run: Takes slots that are as they should be.
        again: Takes the slots of a later call; raises `SignatureChanged` where they have to be looked at.
        agreement: With the other processes of the mesh, before the first run.
        several_processes: Whether `jax.jit` would refuse host arrays that are to be sharded.
    """

    run: Callable[..., Any]
    again: Callable[..., Any]
    agreement: Agreement | None = None
    several_processes: bool = False


def direct(jitted: Callable[..., Any]) -> Dispatch:
    """As `jax.jit` does it."""
    return Dispatch(jitted, jitted)


def dispatched(jitted: Callable[..., Any], planned: Planned, mesh: Mesh | AbstractMesh) -> Dispatch:
    """What the mesh needs: `direct` in one process, with as many threads as its devices need."""
    if not isinstance(mesh, Mesh):
        return direct(jitted)
    run = functools.partial(_waiting, jitted) if must_wait(mesh.local_devices) else jitted
    if jax.process_count() == 1:
        return Dispatch(run, run)
    devices = list(mesh.devices.flat)
    processes = sorted({device.process_index for device in devices})
    request = planned.traced.request
    timeout = request.settings.options.peer_timeout
    agreement = None
    if len(processes) > 1 and timeout > 0:
        state = functools.partial(statement, planned, devices)
        agreement = Agreement(processes, jax.process_index(), state, request.location, timeout)
    return Dispatch(run, functools.partial(_looked_at, run), agreement, several_processes=True)


def _waiting(jitted: Callable[..., Any], *slots: Any) -> Any:
    return jax.block_until_ready(jitted(*slots))


def _looked_at(run: Callable[..., Any], *slots: Any) -> Any:
    if any(isinstance(leaf, np.ndarray) for leaf in jax.tree.leaves(slots)):
        raise SignatureChanged
    return run(*slots)


def cut_host_array(leaf: Any, sharding: NamedSharding, asked: bool, described: Leaf, location: str) -> Any:
    """A numpy array as an array with its sharding, where `jax.jit` does not take it; everything else as it is.

    With several processes `jax.jit` takes numpy arrays for replicated values, equal in every process, and refuses to shard them: they
    could be each process's part as well. Where nobody asked for a sharding, or where each process has all of it, they can only be the
    former.

    Raises:
        SpecError: The user asked for the sharding, so that it is not known which is meant.
    """
    if not isinstance(leaf, np.ndarray) or sharding.is_fully_replicated:
        return leaf
    if asked and not _is_whole_here(sharding, leaf.shape):
        raise SpecError(
            "a numpy array cannot be sharded over several processes",
            where=f"{described}, argument of {location}",
            why=f"its sharding, {sharding.spec}, was asked for, and a numpy array may be the whole value or the part of this process",
            fix="make it global before: jax.make_array_from_process_local_data(sharding, part) with this process's part, or "
            "jax.make_array_from_callback(whole.shape, sharding, lambda index: whole[index]) with the whole; plan.input_shardings has "
            "the sharding",
        )
    return cut_for_processes(leaf, sharding)


def cut_for_processes(leaf: Any, sharding: NamedSharding) -> Any:
    """A value that every process has, as one global array; PRNG keys are left to `jax.jit`."""
    if jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.extended):
        return leaf
    whole = np.asarray(leaf)
    return jax.make_array_from_callback(whole.shape, sharding, lambda index: whole[index])


def _is_whole_here(sharding: NamedSharding, shape: tuple[int, ...]) -> bool:
    """Whether the devices of this process hold every part of an array."""
    here = sharding.addressable_devices_indices_map(shape).values()
    return {str(index) for index in here} == {str(index) for index in sharding.devices_indices_map(shape).values()}
