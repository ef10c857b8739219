"""Layers of PyTorch as Flax modules: arrays are NCHW, parameters have PyTorch's names and shapes.

Every layer that behaves otherwise in training takes `train` and, where it draws random numbers,
`key`. A layer draws from `key` and its own name alone, so that a model cut into stages draws what
the whole model draws.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import lax

Pair = int | Sequence[int]


def pair(value: Pair) -> tuple[int, int]:
    """A size for both spatial dimensions, or one for each."""
    return (value, value) if isinstance(value, int) else (value[0], value[1])


def uniform(bound: float) -> Callable[..., jax.Array]:
    """PyTorch's default initializer of weights: uniform between -bound and bound."""

    def init(key: jax.Array, shape: tuple[int, ...], dtype: Any = jnp.float32) -> jax.Array:
        return jax.random.uniform(key, shape, dtype, -bound, bound)

    return init


def layer_key(key: jax.Array | None, name: str | None) -> jax.Array:
    """The key of one layer."""
    if key is None:
        raise ValueError(
            f"layer {name} draws random numbers: give the model key=jax.random.key(...)"
        )
    return jax.random.fold_in(key, zlib.crc32(str(name).encode()))


def dropout(
    x: jax.Array, p: float, train: bool, key: jax.Array | None, name: str | None
) -> jax.Array:
    """Zeroes elements with probability p in training and scales the others to keep the mean."""
    if not train or p == 0:
        return x
    if p == 1:
        return jnp.zeros_like(x)
    return jnp.where(jax.random.bernoulli(layer_key(key, name), 1 - p, x.shape), x / (1 - p), 0)


class Linear(nn.Module):
    """A product with a matrix and a bias, as torch.nn.Linear."""

    in_features: int
    out_features: int
    use_bias: bool = True

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Shape [..., in_features] to [..., out_features]."""
        init = uniform(1 / math.sqrt(self.in_features))
        weight = self.param("weight", init, (self.out_features, self.in_features))
        y = x @ weight.T
        return y + self.param("bias", init, (self.out_features,)) if self.use_bias else y


class Conv2d(nn.Module):
    """A convolution, as torch.nn.Conv2d."""

    in_channels: int
    out_channels: int
    kernel_size: Pair
    stride: Pair = 1
    padding: Pair | str = 0
    dilation: Pair = 1
    groups: int = 1
    use_bias: bool = True

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Shape [batch, in_channels, height, width] to [batch, out_channels, ...]."""
        size = (self.out_channels, self.in_channels // self.groups, *pair(self.kernel_size))
        init = uniform(1 / math.sqrt(math.prod(size[1:])))
        weight = self.param("weight", init, size)
        padding = (
            self.padding.upper()
            if isinstance(self.padding, str)
            else [(p, p) for p in pair(self.padding)]
        )
        y = lax.conv_general_dilated(
            x,
            weight,
            pair(self.stride),
            padding,
            rhs_dilation=pair(self.dilation),
            dimension_numbers=("NCHW", "OIHW", "NCHW"),
            feature_group_count=self.groups,
        )
        return (
            y + self.param("bias", init, (self.out_channels,))[:, None, None]
            if self.use_bias
            else y
        )


class BatchNorm(nn.Module):
    """Normalization of each channel, as torch.nn.BatchNorm1d and 2d."""

    num_features: int
    eps: float = 1e-5
    momentum: float | None = 0.1
    affine: bool = True
    track_running_stats: bool = True

    @nn.compact
    def __call__(self, x: jax.Array, train: bool) -> jax.Array:
        """Uses statistics of the batch in training, otherwise the running ones in `batch_stats`."""
        axes = tuple(i for i in range(x.ndim) if i != 1)
        shape = [-1 if i == 1 else 1 for i in range(x.ndim)]
        size = (self.num_features,)
        mean, var = jnp.mean(x, axes), jnp.var(x, axes)
        if self.track_running_stats:
            running_mean = self.variable("batch_stats", "mean", jnp.zeros, size)
            running_var = self.variable("batch_stats", "var", jnp.ones, size)
            # With momentum None the running statistics are the mean of all batches so far.
            count = (
                self.variable("batch_stats", "count", jnp.zeros, ())
                if self.momentum is None
                else None
            )
            if not train:
                mean, var = running_mean.value, running_var.value
            elif self.is_mutable_collection("batch_stats") and not self.is_initializing():
                step = 1 / (count.value + 1) if count is not None else self.momentum or 0.0
                n = x.size // self.num_features
                running_mean.value += step * (mean - running_mean.value)
                running_var.value += step * (var * n / max(n - 1, 1) - running_var.value)
                if count is not None:
                    count.value += 1
        y = (x - mean.reshape(shape)) * lax.rsqrt(var + self.eps).reshape(shape)
        if self.affine:
            weight = self.param("weight", nn.initializers.ones, size)
            bias = self.param("bias", nn.initializers.zeros, size)
            y = y * weight.reshape(shape) + bias.reshape(shape)
        return y


class LayerNorm(nn.Module):
    """Normalization over the last dimensions, as torch.nn.LayerNorm."""

    normalized_shape: int | Sequence[int]
    eps: float = 1e-5
    elementwise_affine: bool = True
    use_bias: bool = True

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """The shape stays."""
        size = (
            (self.normalized_shape,)
            if isinstance(self.normalized_shape, int)
            else tuple(self.normalized_shape)
        )
        axes = tuple(range(-len(size), 0))
        y = (x - jnp.mean(x, axes, keepdims=True)) * lax.rsqrt(
            jnp.var(x, axes, keepdims=True) + self.eps
        )
        if self.elementwise_affine:
            y = y * self.param("weight", nn.initializers.ones, size)
            if self.use_bias:
                y = y + self.param("bias", nn.initializers.zeros, size)
        return y


class Embedding(nn.Module):
    """Rows of a table, as torch.nn.Embedding; the row padding_idx is zeros and gets no gradient."""

    num_embeddings: int
    embedding_dim: int
    padding_idx: int | None = None

    @nn.compact
    def __call__(self, ids: jax.Array) -> jax.Array:
        """Integers of any shape to [..., embedding_dim]."""

        def init(key: jax.Array, shape: tuple[int, ...]) -> jax.Array:
            table = jax.random.normal(key, shape)
            return table if self.padding_idx is None else table.at[self.padding_idx].set(0)

        rows = jnp.take(
            self.param("weight", init, (self.num_embeddings, self.embedding_dim)), ids, axis=0
        )
        if self.padding_idx is None:
            return rows
        padding = (ids == self.padding_idx % self.num_embeddings)[..., None]
        return jnp.where(padding, lax.stop_gradient(rows), rows)


class Dropout(nn.Module):
    """Zeroes elements with probability p in training, as torch.nn.Dropout."""

    p: float = 0.5

    @nn.compact
    def __call__(self, x: jax.Array, train: bool, key: jax.Array | None) -> jax.Array:
        """The shape stays."""
        return dropout(x, self.p, train, key, self.name)


def _windows(
    sizes: Sequence[int],
    kernel: Pair,
    stride: Pair | None,
    padding: Pair,
    dilation: Pair,
    ceil: bool,
) -> list[list[int]]:
    """For each spatial dimension: window, step, padding before, padding behind, dilation."""
    kernel, padding, dilation = pair(kernel), pair(padding), pair(dilation)
    stride = kernel if stride is None else pair(stride)
    windows = []
    for size, k, s, p, d in zip(sizes, kernel, stride, padding, dilation):
        room = size + 2 * p - d * (k - 1) - 1
        count = (-(-room // s) if ceil else room // s) + 1
        # A window that starts in the padding behind the array is not one.
        if ceil and (count - 1) * s >= size + p:
            count -= 1
        windows.append([k, s, p, max((count - 1) * s + d * (k - 1) + 1 - size - p, 0), d])
    return windows


def _reduce(
    x: jax.Array, start: Any, combine: Callable[..., Any], windows: list[list[int]]
) -> jax.Array:
    k, s, before, behind, _ = zip(*windows)
    return lax.reduce_window(
        x, start, combine, (1, 1, *k), (1, 1, *s), [(0, 0), (0, 0), *zip(before, behind)]
    )


def _every(x: jax.Array, axis: int, start: int, step: int, end: int) -> jax.Array:
    return lax.slice_in_dim(x, start, end, step, axis)


def max_pool2d(
    x: jax.Array,
    kernel_size: Pair,
    stride: Pair | None = None,
    padding: Pair = 0,
    dilation: Pair = 1,
    ceil_mode: bool = False,
) -> jax.Array:
    """The greatest element of each window, as torch.nn.MaxPool2d."""
    windows = _windows(x.shape[2:], kernel_size, stride, padding, dilation, ceil_mode)
    if pair(dilation) == (1, 1):
        return _reduce(x, -jnp.inf, lax.max, windows)
    # JAX has no gradient for a maximum over dilated windows: one over shifted pictures is the same.
    (kh, sh, ph, eh, dh), (kw, sw, pw, ew, dw) = windows
    x = jnp.pad(x, ((0, 0), (0, 0), (ph, eh), (pw, ew)), constant_values=-jnp.inf)
    rows = [_every(x, 2, i * dh, sh, x.shape[2] - dh * (kh - 1 - i)) for i in range(kh)]
    shifted = [
        _every(y, 3, j * dw, sw, x.shape[3] - dw * (kw - 1 - j)) for y in rows for j in range(kw)
    ]
    return jnp.max(jnp.stack(shifted), axis=0)


def avg_pool2d(
    x: jax.Array,
    kernel_size: Pair,
    stride: Pair | None = None,
    padding: Pair = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> jax.Array:
    """The mean of each window, as torch.nn.AvgPool2d."""
    windows = _windows(x.shape[2:], kernel_size, stride, padding, 1, ceil_mode)
    sums = _reduce(x, 0.0, lax.add, windows)
    if divisor_override is not None:
        return sums / divisor_override
    (ph, pw) = pair(padding)
    ones = jnp.ones((1, 1, *x.shape[2:]), x.dtype)
    if count_include_pad:
        # Padding that was asked for counts, what ceil_mode adds does not.
        ones = jnp.pad(ones, ((0, 0), (0, 0), (ph, ph), (pw, pw)), constant_values=1)
        windows = [
            [k, s, 0, max(behind - p, 0), d] for (k, s, _, behind, d), p in zip(windows, (ph, pw))
        ]
    counts = _reduce(ones, 0.0, lax.add, windows)
    return sums / counts[:, :, : sums.shape[2], : sums.shape[3]]


def adaptive_avg_pool2d(x: jax.Array, output_size: Pair) -> jax.Array:
    """The mean of equal parts of a picture, as torch.nn.AdaptiveAvgPool2d."""
    for axis, parts in zip((2, 3), pair(output_size)):
        size = x.shape[axis]
        rows = [
            jnp.mean(
                lax.slice_in_dim(x, i * size // parts, -(-(i + 1) * size // parts), axis=axis),
                axis,
                keepdims=True,
            )
            for i in range(parts)
        ]
        x = jnp.concatenate(rows, axis)
    return x


def zero_pad2d(x: jax.Array, padding: int | Sequence[int]) -> jax.Array:
    """Zeroes left, right, above and below; a negative number cuts off, as torch.nn.ZeroPad2d."""
    left, right, top, bottom = (padding,) * 4 if isinstance(padding, int) else padding
    return lax.pad(
        x, jnp.zeros((), x.dtype), ((0, 0, 0), (0, 0, 0), (top, bottom, 0), (left, right, 0))
    )
