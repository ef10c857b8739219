"""Form: how one equation runs on local arrays."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import lax
from jax import numpy as jnp
from jax.extend.core import JaxprEqn

from shardy_py.backends.local import ops
from shardy_py.backends.local.collectives import all_gather
from shardy_py.backends.local.once import once
from shardy_py.dialect import OpShardingRule
from shardy_py.frontends.context import axis_sizes, local_type, recorded

Array = Any
Dim = int | Sequence[int]
Combine = str
"""How partial results are combined: `add`, `max`, `min`, `mul`, `and`, `or`, `xor`."""


class Equation:
    """An equation with what forms ask of it at hand.

    Attributes:
        eqn: The equation.
        name: Its primitive's name.
        params: Its parameters.
        shapes: Global shapes of its operands.
        dtypes: Their element types.
        result_shapes: Global shapes of its results.
        result_dtypes: Their element types.
        used: Which of its results anything uses, as far as is known.
        is_empty: Whether no result has elements, PRNG keys aside, and nothing else happens.
        known: What was found out about it and its equals, for whoever reads them again.
    """

    __slots__ = ("dtypes", "eqn", "is_empty", "known", "name", "params", "result_dtypes", "result_shapes", "shapes", "used")

    def __init__(self, eqn: JaxprEqn, used: Sequence[bool] | None = None) -> None:
        self.eqn = eqn
        self.name = eqn.primitive.name
        self.params = eqn.params
        self.shapes, self.dtypes = _types(eqn.invars)
        self.result_shapes, self.result_dtypes = _types(eqn.outvars)
        self.used: tuple[bool, ...] = (True,) * len(eqn.outvars) if used is None else tuple(used)
        self.is_empty = not (eqn.effects or any(map(math.prod, self.result_shapes)) or any(map(is_key, self.result_dtypes)))
        self.known: dict[Any, Any] = {}


def _types(variables: Sequence[Any]) -> tuple[list[tuple[int, ...]], list[Any]]:
    avals = [v.aval for v in variables]
    return [getattr(aval, "shape", ()) for aval in avals], [getattr(aval, "dtype", None) for aval in avals]


@dataclass(frozen=True)
class Form:
    """How an equation runs on local arrays.

    Attributes:
        rule: Factors of its operands and results. Pass-through factors may be sharded freely; reduction factors may, and leave partial
            results; factors that need replication may not; permutation factors may, where `run` itself sees to the exchange.
        run: Given a `Local` and the local operands, laid out as the rule says under the chosen axes, the local results.
        combine: How results that are partial along sharded reduction factors are combined.
        uneven: Factors that may be cut unevenly; what lies behind the end of a dimension is arbitrary, and `run` masks it where it matters.
        linear: Groups of operands in which the results are linear: all of a group may be partial sums over the same axes while the others
            are not, and the results are partial sums then.
        moved: Bytes that a device receives inside `run`, and `STARTING` for each collective that cannot go with another, given the
            ways every factor is cut; for permutation factors.
        alternatives: Other ways to run the equation, of which the cheapest is taken.
        weight: How much one point of the iteration space costs, in bytes that could be sent meanwhile.
    """

    rule: OpShardingRule
    run: Callable[[Local, list[Array]], list[Array]]
    combine: Combine = "add"
    uneven: frozenset[int] = frozenset()
    linear: tuple[tuple[int, ...], ...] = ()
    moved: Callable[[Sequence[int]], int] | None = None
    weight: float = 0.05
    alternatives: tuple[Form, ...] = ()


Builder = Callable[[Equation], Form | None]
"""Makes the form of an equation; None where it has to run whole."""


def make_rule(
    sizes: Sequence[int],
    operands: Sequence[Sequence[Dim]],
    results: Sequence[Sequence[Dim]],
    *,
    reduction: Iterable[int] = (),
    whole: Iterable[int] = (),
    permutation: Iterable[int] = (),
) -> OpShardingRule:
    """A rule from the factors of every dimension.

    Args:
        sizes: Size of each factor.
        operands: Per operand and dimension its factor, or its factors from major to minor.
        results: The same for results.
        reduction: Factors that are reduced over.
        whole: Factors that must not be sharded.
        permutation: Factors along which `run` exchanges data itself.
    """

    def tensors(given: Sequence[Sequence[Dim]]) -> tuple[tuple[tuple[int, ...], ...], ...]:
        return tuple([tuple([_factors(d) for d in dims]) for dims in given])

    return OpShardingRule(tuple(sizes), tensors(operands), tensors(results), tuple(reduction), tuple(whole), tuple(permutation))


def _factors(dim: Dim) -> tuple[int, ...]:
    if type(dim) is int:
        return (dim,)
    return tuple(dim) if isinstance(dim, Sequence) else (int(dim),)


class Local:
    """One equation under chosen axes, as its form's `run` sees it.

    Attributes:
        equation: The equation.
        form: Its form.
        axes: Names of the mesh axes of each factor, major to minor.
        sizes: Size of every mesh axis, in the order of the mesh.
        platform: What is compiled for.
        applied: How the equation's primitive was recorded, of what and what came of it.
    """

    __slots__ = ("applied", "axes", "equation", "form", "platform", "sizes")

    def __init__(self, equation: Equation, form: Form, axes: Sequence[tuple[str, ...]], sizes: dict[str, int], platform: str) -> None:
        self.equation = equation
        self.form = form
        self.axes = axes
        self.sizes = sizes
        self.platform = platform
        self.applied: list[tuple[Recorded, Sequence[Array], list[Array]]] = []

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
        return self.form.rule

    def names(self, factor: int) -> tuple[str, ...]:
        """The mesh axes a factor is cut over, major to minor."""
        return self.axes[factor]

    def ways(self, factor: int) -> int:
        """Into how many blocks a factor is cut."""
        return math.prod(self.sizes[name] for name in self.axes[factor])

    def index(self, factor: int) -> Array:
        """Which block this device has: an int32 scalar, or 0 where the factor is whole."""
        return block_index(self.axes[factor])

    def block(self, factor: int) -> int:
        """Elements in a block."""
        return -(-self.rule.factor_sizes[factor] // self.ways(factor))

    def is_padded(self, factor: int) -> bool:
        """Whether the last blocks hold fewer elements than they have room for."""
        return self.rule.factor_sizes[factor] % self.ways(factor) != 0

    def operand_shape(self, i: int) -> tuple[int, ...]:
        """The local shape of an operand."""
        return self._shape(self.rule.operand_mappings[i], self.equation.shapes[i])

    def result_shape(self, i: int) -> tuple[int, ...]:
        """The local shape of a result."""
        return self._shape(self.rule.result_mappings[i], self.equation.result_shapes[i])

    def _shape(self, mapping: Sequence[Sequence[int]], shape: Sequence[int]) -> tuple[int, ...]:
        return tuple(-(-n // math.prod(self.ways(f) for f in dim)) for n, dim in zip(shape, mapping, strict=True))

    def mask(self, x: Array, dim: int, factor: int, fill: Any) -> Array:
        """`x` with what lies behind the end of a dimension replaced, where there is such.

        Args:
            x: A local array, one of whose dimensions is the factor's.
            dim: That dimension.
            factor: The factor.
            fill: What to put there.
        """
        if not self.is_padded(factor):
            return x
        position = positions(x.shape, dim, line(self.index(factor), x.shape[dim]))
        return ops.select(before(position, self.rule.factor_sizes[factor]), x, ops.full(x.shape, fill, x.dtype))

    def apply(self, *arrays: Array, **params: Any) -> list[Array]:
        """The equation's primitive on its operands as they lie, with some parameters replaced; results lie as the rule says."""
        known, key = self.equation.known, ("types", id(self.form), tuple(self.axes))
        types = known.get(key)
        if types is None:
            types = known[key] = [local_type(v.aval, self.result_shape(i)) for i, v in enumerate(self.eqn.outvars)]
        way = Recorded(params, types)
        made = way.run(self.eqn, arrays)
        if made is None:
            return self.bind(*arrays, **params)
        self.applied.append((way, arrays, made))
        return made

    def only(self, arrays: Sequence[Array], made: list[Array]) -> Recorded | None:
        """How the equation was recorded, where nothing else was done to arrays to make others of them."""
        if len(self.applied) != 1:
            return None
        way, given, results = self.applied[0]
        return way if results is made and len(given) == len(arrays) and all(x is y for x, y in zip(given, arrays)) else None

    def bind(self, *arrays: Array, **params: Any) -> list[Array]:
        """The equation's primitive on other arrays, with some parameters replaced."""
        return bind(self.eqn, arrays, {**self.params, **params} if params else self.params)


def as_is(local: Local, arrays: list[Array]) -> list[Array]:
    """The `run` of forms whose equations run on local arrays as they are."""
    return local.apply(*arrays)


class Recorded(NamedTuple):
    """An equation on local arrays that is its own primitive, on the operands as they lie.

    Attributes:
        params: The parameters that are not the equation's.
        types: The types of the results.
    """

    params: dict[str, Any]
    types: Sequence[Any]

    def run(self, eqn: JaxprEqn, arrays: Sequence[Array], source: Any = None) -> list[Array] | None:
        """Records it; None where it cannot be, and has to be bound.

        Args:
            eqn: The equation, or one alike.
            arrays: The local operands.
            source: Its source info; that of here where nothing is said.
        """
        params = _without_places({**eqn.params, **self.params} if self.params else eqn.params)
        return recorded(eqn.primitive, arrays, params, self.types, source)


def bind(eqn: JaxprEqn, arrays: Sequence[Array], params: dict[str, Any]) -> list[Array]:
    """Binds an equation's primitive; always a list."""
    made = eqn.primitive.bind(*arrays, **eqn.primitive.get_bind_params(_without_places(params)))
    return list(made) if eqn.primitive.multiple_results else [made]


def _without_places(params: dict[str, Any]) -> dict[str, Any]:
    """Parameters as they are inside of a region, where there are no shardings of the global program."""
    for name in _PLACES:
        if params.get(name) is not None:
            return {name: None if name in _PLACES else value for name, value in params.items()}
    return params


_PLACES = frozenset({"sharding", "out_sharding"})
"""Parameters that name shardings of the global program."""


# Arithmetic on local arrays is written as primitives, which take scalars too: an operator of a traced array, and any function of jnp, is a
# call of its own, traced and inlined each time.


@once
def block_index(names: tuple[str, ...]) -> Array:
    """Which block of what is cut over axes, major to minor, this device has: an int32 scalar, or 0 where there are no axes."""
    if not names:
        return 0
    last = lax.axis_index(names[-1])
    return ops.add(line(block_index(names[:-1]), *axis_sizes(names[-1:])), last) if names[:-1] else last


@once
def line(index: Array, step: int, start: int = 0) -> Array:
    """`start + step * index`."""
    if isinstance(index, int):
        return start + step * index
    if start:
        return ops.add(line(index, step), np.int32(start))
    return index if step == 1 else ops.mul(index, np.int32(step))


_INT32 = np.dtype("int32")


@once
def positions(shape: tuple[int, ...], dim: int, start: Array = 0, dtype: Any = _INT32) -> Array:
    """What stands where along a dimension whose first element stands at `start`, for an array of a shape."""
    counted = ops.broadcasted_iota(dtype, shape, dim)
    if isinstance(start, int) and not start:
        return counted
    return ops.add(counted, ops.convert_element_type(start, dtype))


@once
def before(position: Array, stop: Array) -> Array:
    """`position < stop` for each of an array of positions, all int32."""
    return ops.lt(position, np.int32(stop) if isinstance(stop, int) else stop)


def all_gathered(x: Array, names: tuple[str, ...], dim: int, platform: str) -> Array:
    """All blocks of a dimension one behind the other.

    On CPU they are gathered along the outermost dimension, and put where they belong afterwards: XLA gathers along that one only there, so
    it would copy each block for that first, and the copy behind the gather is as a rule part of what reads it.

    Args:
        x: This device's block.
        names: The mesh axes that the dimension is cut over, major to minor.
        dim: The dimension.
        platform: What is compiled for.
    """
    if not dim or is_key(x.dtype) or platform != "cpu":
        return all_gather(x, names, dim, tiled=True)
    blocks = all_gather(x, names, 0, tiled=True)
    blocks = ops.reshape(blocks, (math.prod(axis_sizes(names)), *x.shape))
    blocks = ops.transpose(blocks, (*range(1, dim + 1), 0, *range(dim + 1, blocks.ndim)))
    return ops.reshape(blocks, (*x.shape[:dim], blocks.shape[dim] * x.shape[dim], *x.shape[dim + 1 :]))


def unsharded_along(x: Array, names: tuple[str, ...], dim: int, size: int, platform: str) -> Array:
    """All blocks of a dimension in order, without the padding of the last ones."""
    if not x.size:
        return ops.reshape(x, tuple(size if d == dim else n for d, n in enumerate(x.shape)))
    gathered = all_gathered(x, names, dim, platform)
    return ops.slice_in_dim(gathered, 0, size, axis=dim) if gathered.shape[dim] != size else gathered


@functools.lru_cache(maxsize=4096)
def identity_fill(combine: Combine, dtype: Any) -> Any:
    """What leaves a reduction as it is: 0 for `add`, the lowest value for `max`, ..."""
    dtype = jnp.dtype(dtype)
    if combine in ("add", "or", "xor"):
        return False if dtype == jnp.bool_ else 0
    if combine == "mul":
        return 1
    if combine == "and":
        return True if dtype == jnp.bool_ else -1 if jnp.issubdtype(dtype, jnp.signedinteger) else jnp.iinfo(dtype).max
    if dtype == jnp.bool_:
        return combine == "min"
    if jnp.issubdtype(dtype, jnp.integer):
        return jnp.iinfo(dtype).min if combine == "max" else jnp.iinfo(dtype).max
    return -jnp.inf if combine == "max" else jnp.inf


def zero_of_sums(dtype: Any) -> Any:
    """What leaves every number as it is when it is added; a positive zero makes a negative one positive."""
    return False if dtype == jnp.bool_ else -0.0 if jnp.issubdtype(dtype, jnp.floating) else 0


def is_key(dtype: Any) -> bool:
    """Whether an element type is that of PRNG keys."""
    return dtype is not None and jax.dtypes.issubdtype(dtype, jax.dtypes.extended)


def is_inexact(dtype: Any) -> bool:
    """Whether an element type is of floats or complex numbers, whose sums may be taken in any order."""
    return dtype is not None and jnp.issubdtype(dtype, jnp.inexact)


@functools.lru_cache(maxsize=256)
def bits_of(dtype: Any) -> int:
    """Bits of an element; a PRNG key counts as two words."""
    return 64 if dtype is None or is_key(dtype) else dtype.itemsize * 8
