"""Shapes and bytes of the pieces of values that a device has, in tiles where its memory is tiled."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from shardy_py.dialect import Mesh, TensorSharding
from shardy_py.dialect.axis import Axes
from shardy_py.ir import TensorType, Type, Value
from shardy_py.ir.types import element_bits, local_bytes, local_shape


class LocalSizes:
    """Shapes and bytes of the pieces of values that one device has; the largest piece where a size does not divide.

    Args:
        tile: Rows and lanes of the tiles that arrays fill, see `tiled_bytes`; None where they take the bytes of their elements.

    Example:
        >>> from shardy_py.ir import TensorType
        >>> sizes = LocalSizes({"mesh": Mesh([("x", 4)])})
        >>> sizes.shape_of(TensorType((10, 3), "float32"), TensorSharding("mesh", [["x"], []]))
        (3, 3)
    """

    def __init__(self, meshes: Mapping[str, Mesh], tile: tuple[int, int] | None = None) -> None:
        self.meshes = meshes
        self.tile = tile
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
            if self.tile is not None and isinstance(type, TensorType):
                count = tiled_bytes(self.shape_of(type, sharding), element_bits(type.dtype), self.tile)
            else:
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


def tiled_bytes(shape: Sequence[int], bits: int, tile: tuple[int, int]) -> int:
    """The bytes of an array in tiles: of the orders of its dimensions, in the one that takes the fewest, as TPU's compiler lays it out.

    The last dimension is padded to the lanes of a tile, the one before it to its rows: to a power of two where it has fewer than these, but
    at least to the number of elements that share a word of 32 bits.

    Args:
        bits: Of an element.
        tile: Rows and lanes.

    Example:
        >>> tiled_bytes((200, 4), 32, (8, 128)), tiled_bytes((9, 128), 16, (8, 128)), tiled_bytes((5,), 8, (8, 128))
        (4096, 4096, 512)
    """
    most, lanes = tile

    def rows(n: int) -> int:
        unit = min(most, max(32 // bits, 1 << (n - 1).bit_length()))
        return -(-n // unit) * unit

    if 0 in shape:
        return 0
    if len(shape) < 2:
        return rows(-(-math.prod(shape) // lanes)) * lanes * bits // 8
    size = math.prod(shape)
    elements = min(size // (a * b) * rows(a) * (-(-b // lanes) * lanes) for i, a in enumerate(shape) for j, b in enumerate(shape) if i != j)
    return elements * bits // 8
