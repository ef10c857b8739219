"""Random meshes and shardings."""

from __future__ import annotations

import math
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, PartitionSpec

from tests.sweep.draw import Draw, Shape

MESHES: dict[str, tuple[tuple[str, int], ...]] = {
    "2x4": (("x", 2), ("y", 4)),
    "2x2x2": (("x", 2), ("y", 2), ("z", 2)),
    "8": (("x", 8),),
    "3x2": (("x", 3), ("y", 2)),
    "4x1x2": (("x", 4), ("one", 1), ("y", 2)),
}
"""Name -> axes; a mesh takes as many of the eight devices as it needs."""


def draw_mesh(draw: Draw) -> Mesh:
    """A mesh, sometimes with its devices in reversed order, sometimes with Explicit axes."""
    axes = MESHES[draw.one_of(("2x4", "2x4", *MESHES))]
    sizes = tuple(size for _, size in axes)
    devices = np.array(jax.devices()[: math.prod(sizes)])
    if draw.chance(15):
        devices = devices[::-1]
    kind = AxisType.Explicit if draw.chance(12) else AxisType.Auto
    return Mesh(devices.reshape(sizes), tuple(name for name, _ in axes), axis_types=(kind,) * len(axes))


def draw_spec(draw: Draw, shape: Shape, mesh: Mesh, *, uneven: bool = False) -> PartitionSpec:
    """The shardings of the dimensions of a shape.

    Args:
        draw: The choices.
        shape: What is sharded.
        mesh: Over which axes.
        uneven: Whether axes need not divide the dimensions.
    """
    axes: list[list[str]] = [[] for _ in shape]
    ways = [1] * len(shape)
    for name in draw.shuffled(mesh.axis_names):
        size = mesh.shape[name]
        fits = [d for d, n in enumerate(shape) if (uneven and n > 1) or n % (ways[d] * size) == 0]
        if fits and draw.chance(65):
            d = draw.one_of(fits)
            axes[d].append(name)
            ways[d] *= size
    return PartitionSpec(*((None if not names else names[0] if len(names) == 1 else tuple(names)) for names in axes))


def draw_input(draw: Draw, shape: Shape, mesh: Mesh) -> Any:
    """A sharding of an argument; None leaves it open."""
    return None if draw.chance(15) else draw_spec(draw, shape, mesh)


def draw_output(draw: Draw, shape: Shape, mesh: Mesh) -> Any:
    """A sharding of a result; None leaves it open."""
    return draw_spec(draw, shape, mesh) if draw.chance(45) else None
