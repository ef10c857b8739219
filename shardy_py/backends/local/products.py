"""Local rules of contractions and convolutions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from jax import numpy as jnp

from shardy_py.backends.local.local_rule import Builder, Equation, Factors, LocalContext, LocalRule, is_inexact, make_rule
from shardy_py.backends.local.windows import LocalWindow, Windowed


def dot_general(equation: Equation) -> LocalRule | None:
    """Batch and free dimensions pass through; contracted ones leave partial sums."""
    (lhs_contracted, rhs_contracted), (lhs_batch, rhs_batch) = equation.params["dimension_numbers"]
    lhs_shape, rhs_shape = equation.shapes
    factors = Factors()
    factor = factors.new
    lhs: dict[int, int] = {}
    rhs: dict[int, int] = {}
    out: list[int] = []
    for a, b in zip(lhs_batch, rhs_batch, strict=True):
        lhs[a] = rhs[b] = factor(lhs_shape[a])
        out.append(lhs[a])
    reduction = []
    for a, b in zip(lhs_contracted, rhs_contracted, strict=True):
        lhs[a] = rhs[b] = factor(lhs_shape[a])
        reduction.append(lhs[a])
    for shape, dims in ((lhs_shape, lhs), (rhs_shape, rhs)):
        for d, size in enumerate(shape):
            if d not in dims:
                dims[d] = factor(size)
                out.append(dims[d])
    rule = make_rule(factors.sizes, [[lhs[d] for d in sorted(lhs)], [rhs[d] for d in sorted(rhs)]], [out], reduction=reduction)

    def run(local: LocalContext, arrays: list) -> list:
        x, y = arrays
        for a, b in zip(lhs_contracted, rhs_contracted, strict=True):
            x = local.mask(x, a, lhs[a], 0)
            y = local.mask(y, b, rhs[b], 0)
        return local.bind(x, y)

    dtype = equation.result_dtypes[0]
    combine = "or" if dtype == jnp.bool_ else "add"  # a product of truth values is whether any pair is true
    linear = ((0,), (1,)) if is_inexact(dtype) else ()
    return LocalRule(rule, run, combine, frozenset(range(len(factors.sizes))), linear, weight=0.002)


Array = Any


@dataclass(frozen=True, slots=True)
class _Spatial:
    """One spatial dimension of a convolution."""

    size: int
    kernel: int
    count: int
    stride: int
    base_dilation: int
    kernel_dilation: int
    padding: tuple[int, int]

    @property
    def is_pointwise(self) -> bool:
        """Whether each element of the result depends on the element of the operand at its place."""
        return self.kernel == 1 and (self.stride, self.padding[0], self.base_dilation, self.size) == (1, 0, 1, self.count)

    @property
    def slides_over_kernel(self) -> bool:
        """Whether the kernel is cut, as in weight gradients, whose kernels are the longer sides."""
        return self.kernel > self.count

    @property
    def window(self) -> LocalWindow:
        """The elements of the operand that a block of the kernel, or of the result, reads."""
        low, base = self.padding[0], self.base_dilation
        if self.slides_over_kernel:
            return LocalWindow(self.size, self.kernel, self.kernel_dilation, low, (self.count - 1) * self.stride + 1, base)
        return LocalWindow(self.size, self.count, self.stride, low, (self.kernel - 1) * self.kernel_dilation + 1, base)


class _ConvolutionFactors(Factors):
    """The factors of a convolution.

    Attributes:
        inner: The factor of input features in a group.
        summed: Dimensions of the kernel that are summed over in parts, with their factors.
    """

    def __init__(self, equation: Equation) -> None:
        lhs_shape, rhs_shape = equation.shapes
        (out_shape,) = equation.result_shapes
        params = equation.params
        lhs_spec, rhs_spec, out_spec = (getattr(params["dimension_numbers"], name) for name in ("lhs_spec", "rhs_spec", "out_spec"))
        features, batches = params["feature_group_count"], params["batch_group_count"]
        groups = features * batches
        super().__init__()
        self.group = self.new(groups) if groups > 1 else None
        batch = self.new(out_shape[out_spec[0]])
        output = self.new(rhs_shape[rhs_spec[0]] // groups)
        self.inner = self.new(rhs_shape[rhs_spec[1]])
        self.lhs: dict[int, tuple[int, ...]] = {
            lhs_spec[0]: self.grouped(batch, batches > 1),
            lhs_spec[1]: self.grouped(self.inner, features > 1),
        }
        self.rhs: dict[int, tuple[int, ...]] = {rhs_spec[0]: self.grouped(output), rhs_spec[1]: (self.inner,)}
        self.out: dict[int, tuple[int, ...]] = {out_spec[0]: (batch,), out_spec[1]: self.grouped(output)}
        self.windows: dict[int, LocalWindow] = {}
        self.slid: list[int] = []
        self.summed: list[tuple[int, int]] = []
        options = ("window_strides", "lhs_dilation", "rhs_dilation", "padding")
        for i, (d, k, o) in enumerate(zip(lhs_spec[2:], rhs_spec[2:], out_spec[2:], strict=True)):
            self.add_spatial(d, k, o, _Spatial(lhs_shape[d], rhs_shape[k], out_shape[o], *(params[name][i] for name in options)))

    def grouped(self, rest: int, is_grouped: bool = True) -> tuple[int, ...]:
        """The factors of a dimension of groups of `rest`."""
        if self.group is None or not is_grouped:
            return (rest,)
        return (self.group, rest) if self.sizes[rest] > 1 else (self.group,)

    def add_spatial(self, d: int, k: int, o: int, spatial: _Spatial) -> None:
        """Adds the factors of dimensions of the operand, the kernel and the result."""
        if spatial.is_pointwise:
            self.lhs[d] = self.out[o] = (self.new(spatial.size),)
            self.rhs[k] = (self.new(1, whole=True),)
            return
        self.windows[d] = spatial.window
        if spatial.slides_over_kernel:
            self.lhs[d] = self.rhs[k] = (self.new(spatial.kernel),)
            self.out[o] = (self.new(spatial.count, whole=True),)
            self.summed.append((k, self.rhs[k][0]))
        else:
            self.lhs[d] = self.out[o] = (self.new(spatial.size),)
            self.rhs[k] = (self.new(spatial.kernel, whole=True),)
            self.slid.append(self.lhs[d][0])


def conv_general_dilated(equation: Equation) -> LocalRule | None:
    """Batch and output features pass through, input features leave partial sums, groups are shared by all.

    A spatial dimension is cut together with the same dimension of the result; or, where the kernel is longer than the result as in the
    gradient of a kernel, together with the kernel's, which leaves partial sums.
    """
    lhs_shape, rhs_shape = equation.shapes
    if 0 in (*lhs_shape, *rhs_shape, *equation.result_shapes[0]):
        return None
    params = equation.params
    lhs_spec, rhs_spec = params["dimension_numbers"].lhs_spec, params["dimension_numbers"].rhs_spec
    features, batches = params["feature_group_count"], params["batch_group_count"]
    of = _ConvolutionFactors(equation)
    group, inner, summed = of.group, of.inner, of.summed
    tables = [[table[d] for d in sorted(table)] for table in (of.lhs, of.rhs, of.out)]
    rule = make_rule(of.sizes, tables[:2], tables[2:], reduction=[inner, *(f for _, f in summed)], whole=of.whole, permutation=of.slid)
    operand = Windowed(tuple(tables[0]), lhs_shape, jnp.dtype(equation.dtypes[0]).itemsize, tuple(of.windows.items()))
    spatial = lhs_spec[2:]

    def run(local: LocalContext, arrays: list[Array]) -> list[Array]:
        x, kernel = arrays
        if of.lhs[lhs_spec[1]] == (inner,):
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
    uneven = frozenset(range(len(of.sizes))) - compound - ({group} if group is not None else set())
    linear = ((0,), (1,)) if equation.result_dtypes[0].kind in "fcV" else ()
    return LocalRule(rule, run, uneven=uneven, linear=linear, bytes_inside=operand.bytes_inside if of.windows else None, weight=0.001)


LOCAL_RULES: dict[str, Builder] = {
    "dot_general": dot_general,
    "conv_general_dilated": conv_general_dilated,
}
"""Primitive -> builder of its local rule."""
