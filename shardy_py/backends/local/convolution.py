"""Convolutions: batch, features and groups as factors, spatial dimensions by fetching the borders of blocks."""

from __future__ import annotations

from typing import Any

from jax import numpy as jnp

from shardy_py.backends.local.local_rule import Builder, Equation, LocalContext, LocalRule, make_rule
from shardy_py.backends.local.windows import Window, Windowed

Array = Any


def conv_general_dilated(equation: Equation) -> LocalRule | None:
    """Batch and output features pass through, input features leave partial sums, groups are shared by all.

    A spatial dimension is cut together with that of the result; or, where the kernel is longer than the result as in the gradient of a
    kernel, together with the kernel's, which leaves partial sums.
    """
    lhs_shape, rhs_shape = equation.shapes
    (out_shape,) = equation.result_shapes
    if 0 in (*lhs_shape, *rhs_shape, *out_shape):
        return None
    params = equation.params
    numbers = params["dimension_numbers"]
    lhs_spec, rhs_spec, out_spec = numbers.lhs_spec, numbers.rhs_spec, numbers.out_spec
    features, batches = params["feature_group_count"], params["batch_group_count"]
    groups = features * batches
    sizes: list[int] = []

    def factor(size: int) -> int:
        sizes.append(size)
        return len(sizes) - 1

    def grouped(group: int | None, rest: int) -> tuple[int, ...]:
        return (rest,) if group is None else (group, rest) if sizes[rest] > 1 else (group,)

    group = factor(groups) if groups > 1 else None
    batch = factor(out_shape[out_spec[0]])
    output = factor(rhs_shape[rhs_spec[0]] // groups)
    inner = factor(rhs_shape[rhs_spec[1]])
    lhs: dict[int, tuple[int, ...]] = {
        lhs_spec[0]: grouped(group if batches > 1 else None, batch),
        lhs_spec[1]: grouped(group if features > 1 else None, inner),
    }
    rhs: dict[int, tuple[int, ...]] = {rhs_spec[0]: grouped(group, output), rhs_spec[1]: (inner,)}
    out: dict[int, tuple[int, ...]] = {out_spec[0]: (batch,), out_spec[1]: grouped(group, output)}
    windows: list[tuple[int, Window]] = []
    whole: list[int] = []
    slid: list[int] = []
    summed: list[tuple[int, int]] = []
    for i, (d, k, o) in enumerate(zip(lhs_spec[2:], rhs_spec[2:], out_spec[2:], strict=True)):
        n, length, count = lhs_shape[d], rhs_shape[k], out_shape[o]
        stride, low = params["window_strides"][i], params["padding"][i][0]
        base, spread = params["lhs_dilation"][i], params["rhs_dilation"][i]
        if length == 1 and (stride, low, base, n) == (1, 0, 1, count):
            lhs[d] = out[o] = (factor(n),)
            rhs[k] = (factor(1),)
            whole.append(rhs[k][0])
        elif length > count:
            lhs[d] = rhs[k] = (factor(length),)
            out[o] = (factor(count),)
            whole.append(out[o][0])
            summed.append((k, rhs[k][0]))
            windows.append((d, Window(n, length, spread, low, (count - 1) * stride + 1, base)))
        else:
            lhs[d] = out[o] = (factor(n),)
            rhs[k] = (factor(length),)
            whole.append(rhs[k][0])
            slid.append(lhs[d][0])
            windows.append((d, Window(n, count, stride, low, (length - 1) * spread + 1, base)))
    tables = [[table[d] for d in sorted(table)] for table in (lhs, rhs, out)]
    rule = make_rule(sizes, tables[:2], tables[2:], reduction=[inner, *(f for _, f in summed)], whole=whole, permutation=slid)
    operand = Windowed(tuple(tables[0]), lhs_shape, jnp.dtype(equation.dtypes[0]).itemsize, tuple(windows))
    spatial = lhs_spec[2:]

    def run(local: LocalContext, arrays: list[Array]) -> list[Array]:
        x, kernel = arrays
        if lhs[lhs_spec[1]] == (inner,):
            x = local.mask(x, lhs_spec[1], inner, 0)
        kernel = local.mask(kernel, rhs_spec[1], inner, 0)
        for k, f in summed:
            kernel = local.mask(kernel, k, f, 0)
        pads, base = [(0, 0)] * x.ndim, [1] * x.ndim
        for i, d in enumerate(spatial):
            pads[d], base[d] = tuple(params["padding"][i]), params["lhs_dilation"][i]
        at = operand.opened(local, x, 0, pads, base)
        num_shards = 1 if group is None else local.num_shards(group)
        return local.bind(
            at.array,
            kernel,
            padding=tuple(at.padding[d] for d in spatial),
            lhs_dilation=tuple(at.dilation[d] for d in spatial),
            feature_group_count=features // num_shards if features > 1 else 1,
            batch_group_count=batches // num_shards if batches > 1 else 1,
        )

    compound = {f for table in tables for dim in table if len(dim) > 1 for f in dim}
    uneven = frozenset(range(len(sizes))) - compound - ({group} if group is not None else set())
    linear = ((0,), (1,)) if equation.result_dtypes[0].kind in "fcV" else ()
    return LocalRule(rule, run, uneven=uneven, linear=linear, bytes_inside=operand.bytes_inside if windows else None, weight=0.001)


LOCAL_RULES: dict[str, Builder] = {"conv_general_dilated": conv_general_dilated}
"""Primitive -> builder of its local rule."""
