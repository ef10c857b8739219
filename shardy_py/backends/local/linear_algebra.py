"""Matrix decompositions and solvers, on batches of matrices, and Fourier transforms."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from jax import lax
from jax import numpy as jnp
from jax.experimental.layout import Layout, with_layout_constraint

from shardy_py.backends.local.local_rule import (
    Array,
    Builder,
    Equation,
    Factors,
    LocalContext,
    LocalRule,
    affine,
    as_is,
    identity_fill,
    is_before,
    make_rule,
    positions,
)

_MATRICES: dict[str, tuple[int, ...]] = {
    "cholesky": (2,),
    "cholesky_update": (2, 1),
    "eig": (2,),
    "eigh": (2,),
    "geqp3": (2, 1),
    "geqrf": (2,),
    "hessenberg": (2,),
    "householder_product": (2, 1),
    "lu": (2,),
    "lu_pivots_to_permutation": (1,),
    "ormqr": (2, 1, 2),
    "qr": (2,),
    "schur": (2,),
    "svd": (2,),
    "symmetric_product": (2, 2),
    "triangular_solve": (2, 2),
    "tridiagonal": (2,),
    "tridiagonal_solve": (1, 1, 1, 2),
}
"""Primitive -> per operand, the trailing dimensions of a matrix (2) or vector (1); leading ones are batch dimensions."""


def batched(equation: Equation) -> LocalRule | None:
    """Batch dimensions and columns of right-hand sides pass through; matrices are whole."""
    shapes, outs = equation.shapes, equation.result_shapes
    cores = _MATRICES[equation.name]
    batch = shapes[0][: len(shapes[0]) - cores[0]]
    count = len(batch)
    if any(shape[:count] != batch for shape in (*shapes, *outs)) or any(len(s) != count + c for s, c in zip(shapes, cores, strict=True)):
        return None
    factors = Factors(batch)
    tensors: list[list[int]] = []
    free = _free(equation)
    side = -1
    for at, shape in enumerate((*shapes, *outs)):
        dims = list(range(count))
        for d in range(count, len(shape)):
            if free is not None and at >= len(shapes) - 1 and d == count + free:
                side = factors.new(shape[d]) if side < 0 else side
                dims.append(side)
            else:
                dims.append(factors.new(shape[d], whole=True))
        tensors.append(dims)
    sizes, whole = factors.sizes, factors.whole
    rule = make_rule(sizes, tensors[: len(shapes)], tensors[len(shapes) :], whole=whole)
    linear = ((len(shapes) - 1,),) if free is not None and jnp.issubdtype(equation.dtypes[-1], jnp.inexact) else ()
    edge = max((n for shape in shapes for n in shape[count:]), default=1)
    weight = 0.02 * edge**3 / max(1, math.prod(sizes[f] for f in whole))
    return LocalRule(rule, as_is, uneven=frozenset(range(len(sizes))) - frozenset(whole), linear=linear, weight=weight)


def _free(equation: Equation) -> int | None:
    """The dimension of a solver's right-hand sides along which they are independent."""
    if equation.name == "triangular_solve":
        return 1 if equation.params["left_side"] else 0
    return 1 if equation.name == "tridiagonal_solve" else None


@dataclass(frozen=True, eq=False)
class RaggedProduct:
    """The factors of a ragged product.

    Attributes:
        contracts: Whether the ragged dimension is one of them, so that the result has a matrix for each group.
    """

    contracted: tuple[tuple[int, int], ...]
    contracts: bool
    lhs: Mapping[int, int]
    rhs: Mapping[int, int]
    out: Sequence[int]
    group_sizes: int
    rows: int
    groups: int
    ragged: int
    group_dimensions: Sequence[int]

    @classmethod
    def of(cls, equation: Equation, factors: Factors) -> RaggedProduct:
        """Reads the dimension numbers of an equation, and numbers its factors."""
        lhs_shape, rhs_shape, (group_count,), *_ = equation.shapes
        numbers = equation.params["ragged_dot_dimension_numbers"]
        (lhs_contracted, rhs_contracted), (lhs_batch, rhs_batch) = numbers.dot_dimension_numbers
        (ragged,) = numbers.lhs_ragged_dimensions
        lhs: dict[int, int] = {}
        rhs: dict[int, int] = {}
        for a, b in (*zip(lhs_batch, rhs_batch, strict=True), *zip(lhs_contracted, rhs_contracted, strict=True)):
            lhs[a] = rhs[b] = factors.new(lhs_shape[a])
        out = [lhs[a] for a in lhs_batch]
        for shape, dims in ((lhs_shape, lhs), (rhs_shape, rhs)):
            for d, size in enumerate(shape):
                if d not in dims:
                    dims[d] = factors.new(size)
                    if dims is lhs or d not in numbers.rhs_group_dimensions:
                        out.append(dims[d])
        group, group_sizes = factors.new(group_count), factors.new(group_count)
        contracts = ragged in lhs_contracted
        if contracts:
            out.insert(0, group)
        groups = group if contracts else next((rhs[d] for d in numbers.rhs_group_dimensions), group)
        pairs = tuple(zip(lhs_contracted, rhs_contracted, strict=True))
        return cls(pairs, contracts, lhs, rhs, out, group_sizes, lhs[ragged], groups, ragged, numbers.rhs_group_dimensions)

    def run(self, local: LocalContext, arrays: list[Array]) -> list[Array]:
        """The part of the result that a device computes of its parts of the operands."""
        x, y, *rest = arrays
        for a, b in self.contracted:
            x, y = local.mask(x, a, self.lhs[a], 0), local.mask(y, b, self.rhs[b], 0)
        if not local.names(self.rows) and not local.names(self.groups):
            return local.bind(x, y, *rest)
        counts, begin = _own_rows(local, rest[0], self.rows, self.groups)
        if not local.names(self.groups):
            return local.bind(x, y, counts)
        x = _rotated(x, self.ragged, begin)
        if self.contracts:
            return local.bind(x, _rotated(y, dict(self.contracted)[self.ragged], begin), counts)
        for d in self.group_dimensions:
            y = local.mask(y, d, self.groups, 0)
        (product,) = local.bind(x, y, counts)
        dim = self.out.index(self.rows)
        own = is_before(positions(product.shape, dim), lax.reduce_sum(counts, (0,)))
        product = lax.select(own, product, lax.full(product.shape, identity_fill("add", product.dtype), product.dtype))
        return [_rotated(product, dim, lax.sub(np.int32(product.shape[dim]), begin))]


def ragged_dot_general(equation: Equation) -> LocalRule | None:
    """As `dot_general`; the rows that groups cut and the groups, which experts are as a rule, may be cut too.

    Every device counts how many of its rows belong to each of its groups. Where groups are cut, rows of a device's own come first for the
    product, and the results of the others are zeros, to which the devices that have the groups contribute.
    """
    _, _, group_shape, *offset = equation.shapes
    if len(group_shape) != 1:
        return None
    factors = Factors()
    product = RaggedProduct.of(equation, factors)
    (_, (lhs_batch, _)) = equation.params["ragged_dot_dimension_numbers"].dot_dimension_numbers
    summed = [product.lhs[a] for a, _ in product.contracted if a != product.ragged]
    whole = [product.group_sizes]
    if product.ragged in lhs_batch or offset:
        whole += [product.rows, product.groups]
    else:
        summed.append(product.rows if product.contracts else product.groups)
    others = [[factors.new(n) for n in shape] for shape in offset]
    whole += [f for dims in others for f in dims]
    lhs, rhs = ([dims[d] for d in sorted(dims)] for dims in (product.lhs, product.rhs))
    rule = make_rule(factors.sizes, [lhs, rhs, [product.group_sizes], *others], [product.out], reduction=summed, whole=whole)
    linear = ((0,), (1,)) if jnp.issubdtype(equation.result_dtypes[0], jnp.inexact) else ()
    uneven = frozenset(range(len(factors.sizes))) - frozenset(whole)
    return LocalRule(rule, product.run, uneven=uneven, linear=linear, weight=0.001 / max(1, group_shape[0]))


def _own_rows(local: LocalContext, sizes: Array, rows: int, experts: int) -> tuple[Array, Array]:
    """Number of this device's rows in each of its groups, and the first of these rows, as int32."""
    room = local.block(rows)
    ends = lax.cumsum(lax.convert_element_type(sizes, np.int32))
    ends = lax.clamp(np.int32(0), lax.sub(ends, lax.convert_element_type(affine(local.index(rows), room), np.int32)), np.int32(room))
    begins = lax.pad(lax.slice_in_dim(ends, 0, ends.size - 1, axis=0), np.int32(0), [(1, 0, 0)])
    counts, count = lax.sub(ends, begins), local.block(experts)
    if not local.names(experts):
        return counts, np.int32(0)
    more = count * local.num_shards(experts) - ends.size
    first = affine(local.index(experts), count)
    counts, begins = (
        lax.dynamic_slice(lax.pad(x, np.int32(0), [(0, more, 0)]), (first,), (count,), allow_negative_indices=False)
        for x in (counts, begins)
    )
    return counts, lax.index_in_dim(begins, 0, keepdims=False)


def _rotated(x: Array, dim: int, begin: Array) -> Array:
    """Rotates a dimension so that it begins with element `begin`."""
    starts = [begin if d == dim else np.int32(0) for d in range(x.ndim)]
    return lax.dynamic_slice(lax.concatenate([x, x], dim), starts, x.shape, allow_negative_indices=False)


def fft(equation: Equation) -> LocalRule | None:
    """Dimensions that are not transformed pass through; transformed ones are whole."""
    (shape,), (out,) = equation.shapes, equation.result_shapes
    count = len(shape) - len(equation.params["fft_lengths"])
    rank = range(count)
    transformed = range(count, len(shape))
    sizes = [*shape, *out[count:]]
    results = [*rank, *range(len(shape), len(sizes))]
    rule = make_rule(sizes, [range(len(shape))], [results], whole=range(count, len(sizes)))
    length = math.prod(shape[d] for d in transformed)
    weight = 0.02 * length * max(1, length.bit_length()) / max(1, math.prod(sizes[count:]))
    return LocalRule(rule, _run, uneven=frozenset(rank), linear=((0,),), weight=weight)


def _run(local: LocalContext, arrays: list) -> list:
    """The transform; on CPU, of an array in row-major order.

    XLA on CPU transforms no other order, and yet puts arrays in another one where a later dimension is gathered before or behind. Other
    compilers choose layouts that they can transform, and that for TPU takes no such wish of complex numbers.
    """
    if local.platform != "cpu":
        return local.bind(*arrays)
    (x,) = arrays
    (y,) = local.bind(row_major(x))
    return [row_major(y)]


def row_major(x: Array) -> Array:
    """The array, constrained to row-major order in memory."""
    return with_layout_constraint(x, Layout(tuple(range(x.ndim)))) if x.ndim > 1 else x


LOCAL_RULES: dict[str, Builder] = {
    **dict.fromkeys(_MATRICES, batched),
    "ragged_dot_general": ragged_dot_general,
    "fft": fft,
}
"""Primitive -> builder of its local rule."""
