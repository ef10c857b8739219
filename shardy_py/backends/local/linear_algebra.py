"""Matrix decompositions and solvers, on batches of matrices."""

from __future__ import annotations

import math

from jax import numpy as jnp

from shardy_py.backends.local.form import Builder, Equation, Form, Local, make_rule

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
"""Primitive -> of each operand, how many trailing dimensions are a matrix or a vector; those before them are a batch."""


def batched(equation: Equation) -> Form | None:
    """Batch dimensions pass through, and right-hand sides of solvers, each for itself; matrices are whole."""
    shapes, outs = equation.shapes, equation.result_shapes
    cores = _MATRICES[equation.name]
    batch = shapes[0][: len(shapes[0]) - cores[0]]
    count = len(batch)
    if any(shape[:count] != batch for shape in (*shapes, *outs)) or any(len(s) != count + c for s, c in zip(shapes, cores, strict=True)):
        return None
    sizes = list(batch)
    whole: list[int] = []
    tensors: list[list[int]] = []
    free = _free(equation)
    side = -1
    for at, shape in enumerate((*shapes, *outs)):
        dims = list(range(count))
        for d in range(count, len(shape)):
            if free is not None and at >= len(shapes) - 1 and d == count + free:
                if side < 0:
                    sizes.append(shape[d])
                    side = len(sizes) - 1
                dims.append(side)
            else:
                sizes.append(shape[d])
                whole.append(len(sizes) - 1)
                dims.append(len(sizes) - 1)
        tensors.append(dims)
    rule = make_rule(sizes, tensors[: len(shapes)], tensors[len(shapes) :], whole=whole)
    linear = ((len(shapes) - 1,),) if free is not None and jnp.issubdtype(equation.dtypes[-1], jnp.inexact) else ()
    edge = max((n for shape in shapes for n in shape[count:]), default=1)
    weight = 0.02 * edge**3 / max(1, math.prod(sizes[f] for f in whole))
    return Form(rule, _run, uneven=frozenset(range(len(sizes))) - frozenset(whole), linear=linear, weight=weight)


def _free(equation: Equation) -> int | None:
    """Which of the two dimensions of the right-hand sides numbers them."""
    if equation.name == "triangular_solve":
        return 1 if equation.params["left_side"] else 0
    return 1 if equation.name == "tridiagonal_solve" else None


def _run(local: Local, arrays: list) -> list:
    return local.bind(*arrays)


def ragged_dot_general(equation: Equation) -> Form | None:
    """As `dot_general`; the dimension that groups cut, and the groups, are whole."""
    lhs_shape, rhs_shape, groups, *offset = equation.shapes
    numbers = equation.params["ragged_dot_dimension_numbers"]
    (lhs_contracted, rhs_contracted), (lhs_batch, rhs_batch) = numbers.dot_dimension_numbers
    (ragged,) = numbers.lhs_ragged_dimensions
    if len(groups) != 1:
        return None
    sizes: list[int] = []
    lhs: dict[int, int] = {}
    rhs: dict[int, int] = {}

    def factor(size: int) -> int:
        sizes.append(size)
        return len(sizes) - 1

    for a, b in (*zip(lhs_batch, rhs_batch, strict=True), *zip(lhs_contracted, rhs_contracted, strict=True)):
        lhs[a] = rhs[b] = factor(lhs_shape[a])
    out = [lhs[a] for a in lhs_batch]
    summed = [lhs[a] for a in lhs_contracted if a != ragged]
    for shape, dims in ((lhs_shape, lhs), (rhs_shape, rhs)):
        for d, size in enumerate(shape):
            if d not in dims:
                dims[d] = factor(size)
                if dims is lhs or d not in numbers.rhs_group_dimensions:
                    out.append(dims[d])
    group = factor(groups[0])
    whole = [lhs[ragged], group, *(rhs[d] for d in numbers.rhs_group_dimensions)]
    if ragged in lhs_contracted:
        out.insert(0, group)
    others = [[factor(n) for n in shape] for shape in offset]
    whole += [f for dims in others for f in dims]
    operands = [[lhs[d] for d in sorted(lhs)], [rhs[d] for d in sorted(rhs)], [group], *others]
    rule = make_rule(sizes, operands, [out], reduction=summed, whole=whole)

    def run(local: Local, arrays: list) -> list:
        x, y, *rest = arrays
        for a, b in zip(lhs_contracted, rhs_contracted, strict=True):
            if a != ragged:
                x, y = local.mask(x, a, lhs[a], 0), local.mask(y, b, rhs[b], 0)
        return local.bind(x, y, *rest)

    linear = ((0,), (1,)) if jnp.issubdtype(equation.result_dtypes[0], jnp.inexact) else ()
    weight = 0.001 / max(1, groups[0])
    return Form(rule, run, uneven=frozenset(range(len(sizes))) - frozenset(whole), linear=linear, weight=weight)


FORMS: dict[str, Builder] = {**dict.fromkeys(_MATRICES, batched), "ragged_dot_general": ragged_dot_general}
"""Primitive -> form."""
