"""Random choices of one configuration, the same in every process and under every version of numpy."""

from __future__ import annotations

import dataclasses
import math
import random
import zlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np
from jax import numpy as jnp

T = TypeVar("T")
Shape = tuple[int, ...]
SIZES = (8, 4, 16, 6, 12, 2, 24, 3, 5, 7, 1)
"""Dimension sizes: most of them are divided by an axis of a mesh, some by none."""

FLOATS = ("float32", "float32", "float32", "bfloat16", "float16", "float64")
SMALL_FLOATS = ("float8_e4m3fn", "float8_e5m2")
INTEGERS = ("int32", "int32", "uint32", "int8", "uint8", "int16", "uint16", "int64", "uint64")
SMALL_INTEGERS = ("int4", "uint4")
COMPLEX = ("complex64", "complex128")
NUMBERS = (*FLOATS, *INTEGERS, *COMPLEX)
ANY = (*NUMBERS, "bool", *SMALL_FLOATS, *SMALL_INTEGERS)


class Case(NamedTuple):
    """A primitive with parameters and operands, before it is sharded.

    Attributes:
        function: Binds the primitive; takes the arguments.
        arguments: Arrays.
        smooth: Arguments by which the results can be differentiated.
        fixed: Arguments that must be used as they are, since the primitive demands something of their values.
    """

    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    smooth: tuple[int, ...] = ()
    fixed: tuple[int, ...] = ()


@dataclasses.dataclass
class Draw:
    """A source of choices.

    Attributes:
        random: Where they come from.
        x64: Whether 64-bit types may be drawn.
    """

    random: random.Random
    x64: bool

    @classmethod
    def of(cls, name: str, seed: int) -> Draw:
        """The choices of a configuration."""
        source = random.Random(zlib.crc32(f"{name} {seed}".encode()))
        return cls(source, source.random() < 0.3)

    def integer(self, low: int, high: int) -> int:
        """A number from low to high, both included."""
        return self.random.randint(low, high)

    def chance(self, percent: int) -> bool:
        """True in so many of 100 cases."""
        return self.random.random() * 100 < percent

    def one_of(self, options: Sequence[T]) -> T:
        return options[self.random.randrange(len(options))]

    def some_of(self, options: Iterable[T], percent: int = 50) -> list[T]:
        return [option for option in options if self.chance(percent)]

    def shuffled(self, options: Iterable[T]) -> list[T]:
        items = list(options)
        self.random.shuffle(items)
        return items

    def size(self, at_least: int = 1) -> int:
        """The size of a dimension."""
        return self.one_of([n for n in SIZES if n >= at_least])

    def shape(self, low: int = 1, high: int = 3, *, at_least: int = 1, empty: bool = True) -> Shape:
        """A shape of some rank; seldom one without elements."""
        shape = [self.size(at_least) for _ in range(self.integer(low, high))]
        while math.prod(shape) > 2048:
            shape[shape.index(max(shape))] = self.one_of((4, 3, 2)) if at_least <= 2 else at_least
        if empty and shape and self.chance(2):
            shape[self.integer(0, len(shape) - 1)] = 0
        return tuple(shape)

    def dtype(self, options: Sequence[str]) -> Any:
        """A type; 64-bit ones only where they are enabled."""
        return jnp.dtype(self.one_of([t for t in options if self.x64 or "64" not in t or t == "complex64"]))

    def array(self, shape: Shape, dtype: Any, low: int = -4, high: int = 4) -> Any:
        """An array of small whole numbers, so that sums and products are exact in most types."""
        dtype = jnp.dtype(dtype)
        if dtype == jnp.bool_:
            return np.array([self.chance(50) for _ in range(math.prod(shape))], bool).reshape(shape)
        if jnp.issubdtype(dtype, jnp.unsignedinteger):
            low = max(low, 0)
        values = np.array([self.integer(low, high) for _ in range(math.prod(shape))], np.int64).reshape(shape)
        if jnp.issubdtype(dtype, jnp.complexfloating):
            return (values + 1j * np.array(self.array(shape, "int32", low, high))).astype(dtype)
        return values.astype(np.float32 if jnp.issubdtype(dtype, jnp.floating) else np.int64).astype(dtype)

    def reals(self, shape: Shape, dtype: Any, low: float = -2.0, high: float = 2.0) -> Any:
        """An array of reals, all different."""
        dtype = jnp.dtype(dtype)
        draw = lambda: np.array([self.random.uniform(low, high) for _ in range(math.prod(shape))]).reshape(shape)  # noqa: E731
        return (draw() + 1j * draw() if jnp.issubdtype(dtype, jnp.complexfloating) else draw()).astype(dtype)

    def distinct(self, shape: Shape, dtype: Any) -> Any:
        """An array of whole numbers, all different."""
        values = list(range(math.prod(shape)))
        self.random.shuffle(values)
        return np.array(values, np.int64).reshape(shape).astype(np.float32).astype(dtype)


Generator = Callable[[Draw], Case]
"""Draws the primitive, its parameters and its operands."""
