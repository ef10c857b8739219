"""Pieces of values: the part of a tensor that one device has, the largest where a size does not divide."""

from __future__ import annotations

import math
from collections.abc import Mapping

from shardy_py.dialect import Mesh, TensorSharding
from shardy_py.dialect.axis import num_shards
from shardy_py.ir.types import TensorType, Type, element_bits


def local_shape(type_: Type, sharding: TensorSharding | None, meshes: Mapping[str, Mesh]) -> tuple[int, ...]:
    """The shape of a piece; all of a value on the only device that a maximal sharding names.

    Args:
        sharding: Its sharding; None is replicated. Dimensions beyond the type's are those of PRNG keys.
    """
    shape = type_.shape
    if sharding is None:
        return shape
    mesh = sharding.mesh_in(meshes)
    cut = (-(-n // num_shards(dim.axes, mesh)) for n, dim in zip(shape, sharding.dims, strict=False))
    return (*cut, *shape[sharding.rank :])  # a maximal sharding has no dimensions


def local_bytes(type_: Type, sharding: TensorSharding | None, meshes: Mapping[str, Mesh]) -> int:
    """The bytes of a piece; 0 of a value without a shape. A sharding of None is replicated."""
    if not isinstance(type_, TensorType):
        return 0
    return -(-math.prod(local_shape(type_, sharding, meshes)) * element_bits(type_.dtype) // 8)
