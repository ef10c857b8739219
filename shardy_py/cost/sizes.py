"""Shapes and bytes of the pieces of values that a device has."""

from __future__ import annotations

import math
from collections.abc import Mapping

from shardy_py.dialect import Mesh, TensorSharding
from shardy_py.dialect.axis import Axes
from shardy_py.ir import Type, Value
from shardy_py.ir.types import local_bytes, local_shape


class LocalSizes:
    """Shapes and bytes of the pieces of values that one device has; the largest piece where a size does not divide.

    Example:
        >>> from shardy_py.ir import TensorType
        >>> sizes = LocalSizes({"mesh": Mesh([("x", 4)])})
        >>> sizes.shape_of(TensorType((10, 3), "float32"), TensorSharding("mesh", [["x"], []]))
        (3, 3)
    """

    def __init__(self, meshes: Mapping[str, Mesh]) -> None:
        self.meshes = meshes
        self._shapes: dict[tuple[Type, TensorSharding | None], tuple[int, ...]] = {}
        self._bytes: dict[tuple[Type, TensorSharding | None], int] = {}

    def axes(self, value: Value) -> tuple[Axes, ...]:
        """The axes of each dimension of a value."""
        sharding, rank = value.sharding, value.type.rank
        cut = () if sharding is None else tuple(dim.axes for dim in sharding.dims[:rank])
        return (*cut, *((),) * (rank - len(cut)))

    def shape_of(self, type: Type, sharding: TensorSharding | None) -> tuple[int, ...]:
        """The shape of a piece."""
        shape = self._shapes.get((type, sharding))
        if shape is None:
            shape = local_shape(type, sharding, self.meshes)
            self._shapes[type, sharding] = shape
        return shape

    def bytes_of(self, type: Type, sharding: TensorSharding | None) -> int:
        """The bytes of a piece; those of a token, 0."""
        key = (type, sharding)
        count = self._bytes.get(key)
        if count is None:
            count = local_bytes(type, sharding, self.meshes)
            self._bytes[key] = count
        return count

    def shape(self, value: Value) -> tuple[int, ...]:
        """The shape of a device's piece of a value."""
        return self.shape_of(value.type, value.sharding)

    def elements(self, value: Value) -> int:
        """The elements of a device's piece of a value."""
        return math.prod(self.shape_of(value.type, value.sharding))

    def bytes(self, value: Value) -> int:
        """The bytes of a device's piece of a value."""
        return self.bytes_of(value.type, value.sharding)
