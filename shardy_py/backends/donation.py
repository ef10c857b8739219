"""Donated buffers: checks of arguments before a call, and the inputs that can be donated.

On several devices jaxlib does not survive a deleted buffer, nor a donated one that is passed twice, so every call is looked at before it
is dispatched. The look costs about 0.1 microseconds per array.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax
from jax.core import Tracer

from shardy_py.errors import DeletedBufferError, DonationError
from shardy_py.frontends.context import is_extended_dtype


class Guard:
    """Checks the arguments of calls; `apart` says whether the last look at their memory found nothing shared, None before the first.

    Args:
        donates: Whether some arguments are donated.
        place: Where the function is defined, for errors.
    """

    __slots__ = ("_donates", "_place", "apart")

    def __init__(self, donates: bool, place: str) -> None:
        self._place = place
        self.apart: bool | None = None if donates else True
        self._donates = donates

    def bad(self, leaves: Sequence[Any]) -> bool:
        """Whether some leaf may be bad; `explain` tells."""
        try:
            deleted = any(map(type(leaves[0]).is_deleted, leaves))  # most calls pass arrays of one class, whose method is quick
        except (AttributeError, IndexError, TypeError):
            deleted = any(isinstance(leaf, jax.Array) and not isinstance(leaf, Tracer) and leaf.is_deleted() for leaf in leaves)
        return deleted or self.apart is False or (self._donates and len(set(map(id, leaves))) != len(leaves))

    def explain(self, leaves: Sequence[Any], donated: Sequence[bool], paths: Sequence[str]) -> None:
        """Raises for a bad leaf; returns where there is none after all."""
        seen: dict[int, tuple[str, bool]] = {}
        for leaf, is_donated, path in zip(leaves, donated, paths, strict=True):
            if not isinstance(leaf, jax.Array) or isinstance(leaf, Tracer):
                continue
            if leaf.is_deleted():
                raise DeletedBufferError(
                    f"the buffer of {path} has been deleted",
                    where=f"{_described(path, leaf)}, argument of {self._place}",
                    why="the array was donated to an earlier call (donate_argnums), which may have reused its memory",
                    fix="use the result of that call instead, or do not donate the argument",
                )
            first, was_donated = seen.setdefault(id(leaf), (path, is_donated))
            if first != path and (is_donated or was_donated):
                raise self._donated_twice(path, leaf, f"{first} and {path} are one array")

    def look_at_memory(self, leaves: Sequence[Any], donated: Sequence[bool], paths: Sequence[str]) -> None:
        """Raises if a donated array shares memory with another one, as two results of `jax.device_put` on one array may.

        It takes tens of microseconds per array, so it is for first calls, and those after one that did not pass.
        """
        seen: dict[tuple[Any, int], tuple[str, bool]] = {}
        for leaf, is_donated, path in zip(leaves, donated, paths, strict=True):
            for place in _places(leaf):
                first, was_donated = seen.setdefault(place, (path, is_donated))
                if first != path and (is_donated or was_donated):
                    self.apart = False
                    raise self._donated_twice(path, leaf, f"{first} and {path} share memory")
        self.apart = True

    def _donated_twice(self, path: str, leaf: Any, how: str) -> DonationError:
        return DonationError(
            f"{how}, and it is donated",
            where=f"{_described(path, leaf)}, argument of {self._place}",
            why="a donated buffer may be overwritten while the other argument still needs it",
            fix=f"pass a copy, jnp.copy(...), for one of them, or do not donate {path.partition('[')[0].partition('.')[0]}",
        )


def _described(path: str, leaf: Any) -> str:
    return f"{path} {leaf.dtype}[{','.join(map(str, leaf.shape))}]"


def _places(leaf: Any) -> list[tuple[Any, int]]:
    """The device and address of each piece of an array that may be overwritten in place.

    None on a single device, where JAX itself refuses what is passed twice; none of an array in the memory of a numpy array either.
    """
    if not isinstance(leaf, jax.Array) or isinstance(leaf, Tracer) or is_extended_dtype(leaf.dtype):
        return []
    if len(leaf.sharding.device_set) == 1 or not leaf.nbytes:
        return []
    try:
        places = [(shard.device, shard.index, shard.data.unsafe_buffer_pointer()) for shard in leaf.addressable_shards]
    except (RuntimeError, NotImplementedError):  # A platform that does not tell.
        return []
    if _in_host_memory(leaf, [(index, address) for _, index, address in places]):
        return []
    return [(device, address) for device, _, address in places]


def _in_host_memory(array: jax.Array, pieces: Sequence[tuple[Any, int]]) -> bool:
    """Whether pieces lie as in one row-major array of the whole.

    On CPUs `jax.device_put` may leave a numpy array where it is, and cut it without a copy. XLA never writes there: what is donated is
    copied. Buffers of its own are allocated one by one, so that two are neither the same nor next to each other.
    """
    if len(pieces) < 2 or next(iter(array.devices())).platform != "cpu":
        return False
    strides = [array.dtype.itemsize * math.prod(array.shape[dim + 1 :]) for dim in range(array.ndim)]
    starts = {address - sum((part.start or 0) * s for part, s in zip(index, strides)) for index, address in pieces}
    return len(starts) == 1


def why_off() -> str:
    """The JAX setting that disables donation; empty if donation is enabled."""
    if jax.config.jax_debug_nans:  # pyright: ignore[reportAttributeAccessIssue]
        return "jax_debug_nans is set, with which JAX donates nothing, to run again what made a NaN"
    return ""
