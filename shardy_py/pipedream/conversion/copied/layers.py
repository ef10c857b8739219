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

# The words of annotations say which values a layer takes.
Pair = Padding = int | Sequence[int]
Index = int


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
    padding: Padding | str = 0
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
    momentum: float = 0.1
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
            if not train:
                mean, var = running_mean.value, running_var.value
            elif self.is_mutable_collection("batch_stats") and not self.is_initializing():
                n = x.size // self.num_features
                running_mean.value += self.momentum * (mean - running_mean.value)
                running_var.value += self.momentum * (var * n / max(n - 1, 1) - running_var.value)
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
    padding_idx: Index | None = None

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
    x: jax.Array,
    start: Any,
    combine: Callable[..., Any],
    kernel: Pair,
    stride: Pair | None,
    padding: Padding,
    ceil: bool,
) -> jax.Array:
    """Each window made one element; `ceil` adds windows that reach beyond the padding."""
    sizes, strides = pair(kernel), pair(kernel if stride is None else stride)
    padded = []
    for size, k, s, p in zip(x.shape[2:], sizes, strides, pair(padding)):
        count = (-(-(size + 2 * p - k) // s) if ceil else (size + 2 * p - k) // s) + 1
        # A window that starts in the padding behind the array is not one.
        if ceil and (count - 1) * s >= size + p:
            count -= 1
        padded.append((p, max((count - 1) * s + k - size - p, 0)))
    return lax.reduce_window(
        x, start, combine, (1, 1, *sizes), (1, 1, *strides), [(0, 0), (0, 0), *padded]
    )


def max_pool2d(
    x: jax.Array,
    kernel_size: Pair,
    stride: Pair | None = None,
    padding: Padding = 0,
    ceil_mode: bool = False,
) -> jax.Array:
    """The greatest element of each window, as torch.nn.MaxPool2d."""
    return _windows(x, -jnp.inf, lax.max, kernel_size, stride, padding, ceil_mode)


def avg_pool2d(
    x: jax.Array, kernel_size: Pair, stride: Pair | None = None, padding: Padding = 0
) -> jax.Array:
    """The mean of each window, padding included, as torch.nn.AvgPool2d."""
    sums = _windows(x, 0.0, lax.add, kernel_size, stride, padding, False)
    return sums / math.prod(pair(kernel_size))


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
