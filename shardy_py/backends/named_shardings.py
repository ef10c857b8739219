"""Shardings of the dialect as `jax.sharding.NamedSharding`.

A `PartitionSpec` has no sub-axes, so a sharding that uses some reaches JAX over a refined mesh: axis `x` of size 8 that is cut at 2
becomes `x_0` of size 2 and `x_1` of size 4, over the same devices in the same order.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable
from typing import Any

import numpy as np
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec

from shardy_py.dialect import AxisRef, TensorSharding

AnyMesh = Mesh | AbstractMesh


def coordinates_of(mesh: AnyMesh | None) -> list[tuple[int, ...]]:
    """Where a mesh's devices stand on their torus; empty where these do not have a place each, as TPUs of one slice have."""
    devices: list[Any] = list(mesh.devices.flat) if isinstance(mesh, Mesh) else []
    coordinates = [tuple(getattr(device, "coords", ())) for device in devices]
    return coordinates if len(set(coordinates)) >= max(len(devices), 2) else []


class NamedShardings:
    """Turns shardings of one mesh into `NamedSharding`s, each distinct one once."""

    def __init__(self, mesh: AnyMesh, *, open_dims: bool = False) -> None:
        self.mesh = mesh
        self.open_dims = open_dims
        self.replicated = NamedSharding(mesh, PartitionSpec())
        self._cache: dict[tuple[TensorSharding, int], NamedSharding] = {}

    def __call__(self, sharding: TensorSharding | None, rank: int, memory_kind: str = "") -> NamedSharding:
        """The sharding of a value of that rank; None is fully replicated.

        A sharding of a PRNG key has one dimension more than the key, which is never sharded and left out here.
        """
        if memory_kind:
            return self(sharding, rank).with_memory_kind(memory_kind)
        if sharding is None:
            return self.replicated
        key = (sharding, rank)
        named = self._cache.get(key)
        if named is None:
            named = self._cache[key] = self._make(sharding, rank)
        return named

    def _make(self, sharding: TensorSharding, rank: int) -> NamedSharding:
        cuts = cuts_of(axis for dim in sharding.dims for axis in dim.axes)
        mesh, parts = (self.mesh, None) if cuts is None else refine(self.mesh, cuts)
        entries = []
        for dim in sharding.dims[:rank]:
            names = parts_of(dim.axes, parts)
            if not names and self.open_dims and not dim.is_closed:
                entries.append(PartitionSpec.UNCONSTRAINED)
            else:
                entries.append(None if not names else names[0] if len(names) == 1 else names)
        while entries and entries[-1] is None:
            entries.pop()
        return NamedSharding(mesh, PartitionSpec(*entries))


def parts_of(axes: Iterable[AxisRef], parts: dict[str, list[tuple[int, int, str]]] | None) -> tuple[str, ...]:
    """The names of axes, parts of axes under the names that `refine` gave them."""
    names: list[str] = []
    for axis in axes:
        if parts is None or axis.name not in parts:
            names.append(axis.name)
            continue
        pieces = parts[axis.name]
        total = pieces[-1][1]
        low = 1 if axis.pre_size is None else axis.pre_size
        high = total if axis.size is None else low * axis.size
        names += [name for start, end, name in pieces if low <= start and end <= high]
    return tuple(names)


def cuts_of(axes: Iterable[AxisRef]) -> dict[str, tuple[int, ...]] | None:
    """The cuts of axes after which every part in use is an axis of its own; None if all are used whole."""
    cuts: dict[str, set[int]] = {}
    for axis in axes:
        if axis.pre_size is not None and axis.size is not None:
            cuts.setdefault(axis.name, set()).update((axis.pre_size, axis.pre_size * axis.size))
    return {name: tuple(sorted(at)) for name, at in cuts.items()} or None


def refine(mesh: AnyMesh, cuts: dict[str, tuple[int, ...]]) -> tuple[AnyMesh, dict[str, list[tuple[int, int, str]]]]:
    """Splits axes of a mesh at the given products, over the same devices in the same order.

    Args:
        cuts: Axis name to the products of sizes, major to minor, at which it is cut.

    Returns:
        The refined mesh, and for every cut axis its pieces as `(product before, product after, new name)`.
    """
    taken = set(mesh.axis_names)
    names: list[str] = []
    sizes: list[int] = []
    types = []
    pieces: dict[str, list[tuple[int, int, str]]] = {}
    for name, kind in zip(mesh.axis_names, mesh.axis_types):
        total = mesh.shape[name]
        bounds = sorted({1, *cuts.get(name, ()), total})
        if len(bounds) < 3:
            names.append(name)
            sizes.append(total)
            types.append(kind)
            continue
        fresh = (candidate for i in itertools.count() if (candidate := f"{name}_{i}") not in taken)
        for low, high in itertools.pairwise(bounds):
            part = next(fresh)
            pieces.setdefault(name, []).append((low, high, part))
            names.append(part)
            sizes.append(high // low)
            types.append(kind)
        taken.update(names)
    if isinstance(mesh, Mesh):
        return Mesh(np.asarray(mesh.devices).reshape(sizes), tuple(names), axis_types=tuple(types)), pieces
    return AbstractMesh(tuple(sizes), tuple(names), axis_types=tuple(types)), pieces


def num_shards(sharding: NamedSharding, dim: int) -> int:
    """Into how many parts a dimension is cut."""
    if dim >= len(sharding.spec):
        return 1
    entry = sharding.spec[dim]
    if entry is None or entry is PartitionSpec.UNCONSTRAINED:
        return 1
    return math.prod(sharding.mesh.shape[name] for name in (entry if isinstance(entry, tuple) else (entry,)))
