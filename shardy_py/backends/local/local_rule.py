"""LocalRule: the implementation of one equation on local arrays."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jax import lax
from jax import numpy as jnp
from jax.extend.core import JaxprEqn

from shardy_py.dialect import OpShardingRule
from shardy_py.frontends.context import is_extended_dtype

Array = Any
Dim = int | Sequence[int]
Combine = str
"""The reduction of partial results: `add`, `max`, `min`, `mul`, `and`, `or`, `xor`."""


class Equation:
    """An equation with the facts that local rules read.

    Attributes:
        is_empty: Whether no result has elements, PRNG keys aside, and there are no effects.
        cache: Facts that equal equations share: their local rule and strategies.
    """

    __slots__ = ("cache", "dtypes", "eqn", "is_empty", "name", "params", "result_dtypes", "result_shapes", "shapes", "used")

    def __init__(self, eqn: JaxprEqn, used: Sequence[bool] | None = None) -> None:
        self.eqn = eqn
        self.name = eqn.primitive.name
        self.params = eqn.params
        self.shapes, self.dtypes = _types(eqn.invars)
        self.result_shapes, self.result_dtypes = _types(eqn.outvars)
        self.used: tuple[bool, ...] = (True,) * len(eqn.outvars) if used is None else tuple(used)
        self.is_empty = not (eqn.effects or any(map(math.prod, self.result_shapes)) or any(map(is_key, self.result_dtypes)))
        self.cache: dict[Any, Any] = {}


def _types(variables: Sequence[Any]) -> tuple[list[tuple[int, ...]], list[Any]]:
    avals = [v.aval for v in variables]
    return [getattr(aval, "shape", ()) for aval in avals], [getattr(aval, "dtype", None) for aval in avals]


@dataclass(frozen=True)
class LocalRule:
    """An implementation of an equation on local arrays.

    Attributes:
        rule: The sharding rule. Pass-through factors may be sharded freely; reduction factors may be, and leave partial results; factors
            that need replication may not be; permutation factors may be, if `run` exchanges the data itself.
        run: Computes the local results of a `LocalContext` and the local operands, whose layouts follow from the rule and the axes.
        uneven: Factors that may be sharded unevenly; padding has arbitrary contents, which `run` masks where they matter.
        linear: Groups of operands in which the results are linear: all of a group may be partial sums over the same axes while the others
            are not, and the results are partial sums then.
        bytes_inside: Bytes that a device receives inside `run`, and `COLLECTIVE_LAUNCH_BYTES` for each collective that cannot be sent
            together with another, given the number of shards of each factor; for permutation factors.
        weight: Cost of one point of the iteration space, in bytes that could be sent meanwhile.
    """

    rule: OpShardingRule
    run: Callable[[LocalContext, list[Array]], list[Array]]
    combine: Combine = "add"
    uneven: frozenset[int] = frozenset()
    linear: tuple[tuple[int, ...], ...] = ()
    bytes_inside: Callable[[Sequence[int]], int] | None = None
    weight: float = 0.05
    alternatives: tuple[LocalRule, ...] = ()


Builder = Callable[[Equation], LocalRule | None]
"""Builds the local rule of an equation; None if it has to run whole."""


def make_rule(
    sizes: Sequence[int],
    operands: Sequence[Sequence[Dim]],
    results: Sequence[Sequence[Dim]],
    *,
    reduction: Iterable[int] = (),
    whole: Iterable[int] = (),
    permutation: Iterable[int] = (),
) -> OpShardingRule:
    """A rule from the factors of every dimension."""

    def tensors(tensor_dims: Sequence[Sequence[Dim]]) -> tuple[tuple[tuple[int, ...], ...], ...]:
        return tuple([tuple([_factors(d) for d in dims]) for dims in tensor_dims])

    return OpShardingRule(tuple(sizes), tensors(operands), tensors(results), tuple(reduction), tuple(whole), tuple(permutation))


def _factors(dim: Dim) -> tuple[int, ...]:
    if type(dim) is int:
        return (dim,)
    return tuple(dim) if isinstance(dim, Sequence) else (int(dim),)


class Factors:
    """The factors of a rule that is being made."""

    def __init__(self, sizes: Iterable[int] = ()) -> None:
        self.sizes = list(sizes)
        self.whole: list[int] = []

    def new(self, size: int, *, whole: bool = False) -> int:
        """A further factor."""
        self.sizes.append(size)
        if whole:
            self.whole.append(len(self.sizes) - 1)
        return len(self.sizes) - 1

    def matching(self, shape: Sequence[int], factors: Iterable[int]) -> list[int]:
        """The factors of a tensor: the given ones for dimensions of their size, new ones for dimensions of another size."""
        return [f if n == self.sizes[f] else self.new(n, whole=True) for n, f in zip(shape, factors)]


class LocalContext:
    """An equation and the axes of its factors, major to minor, for `LocalRule.run`."""

    __slots__ = ("axes", "equation", "local_rule", "platform", "sizes")

    def __init__(
        self, equation: Equation, local_rule: LocalRule, axes: Sequence[tuple[str, ...]], sizes: dict[str, int], platform: str
    ) -> None:
        self.equation = equation
        self.local_rule = local_rule
        self.axes = axes
        self.sizes = sizes
        self.platform = platform

    @property
    def eqn(self) -> JaxprEqn:
        """The equation of the global program."""
        return self.equation.eqn

    @property
    def params(self) -> dict[str, Any]:
        """Its parameters."""
        return self.equation.params

    @property
    def rule(self) -> OpShardingRule:
        """The rule."""
        return self.local_rule.rule

    def names(self, factor: int) -> tuple[str, ...]:
        """The mesh axes that a factor is sharded over, major to minor."""
        return self.axes[factor]

    def num_shards(self, factor: int) -> int:
        """Number of blocks of a factor."""
        return math.prod(self.sizes[name] for name in self.axes[factor])

    def index(self, factor: int) -> Array:
        """The index of this device's block: an int32 scalar, or 0 for an unsharded factor."""
        return block_index(self.axes[factor])

    def block(self, factor: int) -> int:
        """Elements in a block."""
        return -(-self.rule.factor_sizes[factor] // self.num_shards(factor))

    def is_padded(self, factor: int) -> bool:
        """Whether the last blocks hold fewer elements than they have room for."""
        return self.rule.factor_sizes[factor] % self.num_shards(factor) != 0

    def operand_shape(self, i: int) -> tuple[int, ...]:
        """The local shape of an operand."""
        return self._shape(self.rule.operand_mappings[i], self.equation.shapes[i])

    def result_shape(self, i: int) -> tuple[int, ...]:
        """The local shape of a result."""
        return self._shape(self.rule.result_mappings[i], self.equation.result_shapes[i])

    def _shape(self, mapping: Sequence[Sequence[int]], shape: Sequence[int]) -> tuple[int, ...]:
        return tuple(-(-n // math.prod(self.num_shards(f) for f in dim)) for n, dim in zip(shape, mapping, strict=True))

    def mask(self, x: Array, dim: int, factor: int, fill: Any) -> Array:
        """Replaces the padding of a dimension, if it has any."""
        if not self.is_padded(factor):
            return x
        position = positions(x.shape, dim, affine(self.index(factor), x.shape[dim]))
        return lax.select(is_before(position, self.rule.factor_sizes[factor]), x, lax.full(x.shape, fill, x.dtype))

    def bind(self, *arrays: Array, **params: Any) -> list[Array]:
        """Binds the equation's primitive on other arrays, with some parameters replaced."""
        return bind(self.eqn, arrays, {**self.params, **params} if params else self.params)


def as_is(local: LocalContext, arrays: list[Array]) -> list[Array]:
    """The `run` of equations that apply unchanged to local arrays."""
    return local.bind(*arrays)


def bind(eqn: JaxprEqn, arrays: Sequence[Array], params: dict[str, Any]) -> list[Array]:
    """Binds an equation's primitive; always a list."""
    results = eqn.primitive.bind(*arrays, **eqn.primitive.get_bind_params(_without_shardings(params)))
    return list(results) if eqn.primitive.multiple_results else [results]


def _without_shardings(params: dict[str, Any]) -> dict[str, Any]:
    """Parameters without shardings of the global program, which do not exist inside of a region."""
    for name in _SHARDING_PARAMS:
        if params.get(name) is not None:
            return {name: None if name in _SHARDING_PARAMS else value for name, value in params.items()}
    return params


_SHARDING_PARAMS = frozenset({"sharding", "out_sharding"})
"""Parameters that name shardings of the global program."""


# Arithmetic on local arrays is written as primitives, which take scalars too: an operator of a traced array, and any function of jnp, is a
# call of its own, traced and inlined each time.


def block_index(names: tuple[str, ...]) -> Array:
    """The index of this device's block along axes, major to minor: an int32 scalar, or 0 without axes."""
    if not names:
        return 0
    last = lax.axis_index(names[-1])
    return lax.add(affine(block_index(names[:-1]), lax.axis_size(names[-1])), last) if names[:-1] else last


def affine(index: Array, step: int, start: int = 0) -> Array:
    """`start + step * index`."""
    if isinstance(index, int):
        return start + step * index
    if start:
        return lax.add(affine(index, step), np.int32(start))
    return index if step == 1 else lax.mul(index, np.int32(step))


_INT32 = np.dtype("int32")


def positions(shape: tuple[int, ...], dim: int, start: Array = 0, dtype: Any = _INT32) -> Array:
    """Positions along a dimension whose first element has position `start`, as an array of a shape."""
    counted = lax.broadcasted_iota(dtype, shape, dim)
    if isinstance(start, int) and not start:
        return counted
    return lax.add(counted, lax.convert_element_type(start, dtype))


def is_before(position: Array, stop: Array) -> Array:
    """`position < stop` for each of an array of positions, all int32."""
    return lax.lt(position, np.int32(stop) if isinstance(stop, int) else stop)


def all_gathered(x: Array, names: tuple[str, ...], dim: int, platform: str) -> Array:
    """All blocks of a dimension one behind the other.

    On CPU they are gathered along the outermost dimension, and put where they belong afterwards: XLA gathers along that one only there, so
    it would copy each block for that first, and the copy behind the gather is as a rule part of what reads it.
    """
    if not dim or is_key(x.dtype) or platform != "cpu":
        return lax.all_gather(x, names, axis=dim, tiled=True)
    blocks = lax.all_gather(x, names, axis=0, tiled=True)
    blocks = lax.reshape(blocks, (math.prod(map(lax.axis_size, names)), *x.shape))
    blocks = lax.transpose(blocks, (*range(1, dim + 1), 0, *range(dim + 1, blocks.ndim)))
    return lax.reshape(blocks, (*x.shape[:dim], blocks.shape[dim] * x.shape[dim], *x.shape[dim + 1 :]))


def unsharded_along(x: Array, names: tuple[str, ...], dim: int, size: int, platform: str) -> Array:
    """All blocks of a dimension in order, without the padding of the last ones."""
    if not x.size:
        return lax.reshape(x, tuple(size if d == dim else n for d, n in enumerate(x.shape)))
    gathered = all_gathered(x, names, dim, platform)
    return lax.slice_in_dim(gathered, 0, size, axis=dim) if gathered.shape[dim] != size else gathered


@functools.lru_cache(maxsize=4096)
def identity_fill(combine: Combine, dtype: Any) -> Any:
    """The identity of a reduction: the lowest value for `max`, ...; -0.0 for `add`, as adding 0.0 turns -0.0 into 0.0."""
    if combine in ("add", "or", "xor"):
        return False if dtype == jnp.bool_ else -0.0 if jnp.issubdtype(dtype, jnp.floating) else 0
    dtype = jnp.dtype(dtype)
    if combine == "mul":
        return 1
    if combine == "and":
        return True if dtype == jnp.bool_ else -1 if jnp.issubdtype(dtype, jnp.signedinteger) else jnp.iinfo(dtype).max
    if dtype == jnp.bool_:
        return combine == "min"
    if jnp.issubdtype(dtype, jnp.integer):
        return jnp.iinfo(dtype).min if combine == "max" else jnp.iinfo(dtype).max
    return -jnp.inf if combine == "max" else jnp.inf


def is_key(dtype: Any) -> bool:
    """Whether an element type is that of PRNG keys."""
    return dtype is not None and is_extended_dtype(dtype)


def is_inexact(dtype: Any) -> bool:
    """Whether an element type is of floats or complex numbers, whose sums may be taken in any order."""
    return dtype is not None and jnp.issubdtype(dtype, jnp.inexact)


@functools.lru_cache(maxsize=256)
def bits_of(dtype: Any) -> int:
    """Bits of an element; a PRNG key counts as two words."""
    return 64 if dtype is None or is_key(dtype) else dtype.itemsize * 8
