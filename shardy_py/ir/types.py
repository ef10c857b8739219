"""Types of values: a ranked tensor with a static shape, or something without one (a token); and the piece that one device has."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, final

from shardy_py.dialect import Mesh, TensorSharding
from shardy_py.dialect.axis import num_shards

_TENSOR_TYPES: dict[tuple[tuple[int, ...], str], TensorType] = {}

_BITS = {"bool": 8, "float0": 0, "token": 0, "key<fry>": 64, "key<rbg>": 128, "key<urbg>": 128}


@final
class TensorType:
    """A static shape and an element type, as `jax.core.ShapedArray` without weak types.

    Equal types are one object, so that `is` compares them and hashing is free.

    Example:
        >>> str(TensorType((8, 16), "float32"))
        'float32[8,16]'
    """

    __slots__ = ("dtype", "rank", "shape", "size")

    shape: tuple[int, ...]
    dtype: str
    rank: int
    size: int

    def __new__(cls, shape: tuple[int, ...], dtype: str) -> TensorType:  # noqa: D102
        key = (shape, dtype)
        interned = _TENSOR_TYPES.get(key)
        if interned is not None:
            return interned
        type_ = object.__new__(cls)
        object.__setattr__(type_, "shape", tuple(int(n) for n in shape))
        object.__setattr__(type_, "dtype", dtype)
        object.__setattr__(type_, "rank", len(shape))
        object.__setattr__(type_, "size", math.prod(shape))
        return _TENSOR_TYPES.setdefault((type_.shape, dtype), type_)

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError("TensorType is immutable")

    def __reduce__(self) -> tuple[Any, ...]:
        return (TensorType, (self.shape, self.dtype))

    def __repr__(self) -> str:
        return f"{self.dtype}[{','.join(map(str, self.shape))}]"

    @property
    def bytes(self) -> int:
        """Bytes of the whole tensor, sub-byte elements packed."""
        return -(-self.size * element_bits(self.dtype) // 8)


@final
class OpaqueType:
    """A type without a shape, such as a token; it never carries a tiled sharding."""

    __slots__ = ("text",)

    def __init__(self, text: str) -> None:
        self.text = text

    shape: tuple[int, ...] = ()
    dtype = "token"
    rank = 0
    size = 0
    bytes = 0

    def __repr__(self) -> str:
        return self.text


TOKEN = OpaqueType("token")
Type = TensorType | OpaqueType


def element_bits(dtype: str) -> int:
    """Bits of one element in memory; types below a byte are packed."""
    bits = _BITS.get(dtype)
    if bits is None:
        digits = ""
        for char in dtype:
            if char.isdigit():
                digits += char
            elif digits:
                break
        bits = _BITS[dtype] = int(digits) if digits else 32
    return bits


def moves_elements(shape: Sequence[int], permutation: Sequence[int]) -> bool:
    """Whether a transpose changes the order of elements in memory, rather than only the order of dimensions of size 1.

    Example:
        >>> moves_elements((1, 8, 4), (1, 0, 2)), moves_elements((2, 8, 4), (1, 0, 2))
        (False, True)
    """
    order = [d for d in permutation if shape[d] != 1]
    return order != sorted(order)


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
