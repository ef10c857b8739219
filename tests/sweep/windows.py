"""Configurations of convolutions, pooling, and other sums over windows."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from jax import lax
from jax import numpy as jnp

from tests.sweep.draw import Case, Draw, Generator

FLOATS = ("float32", "float32", "float32", "bfloat16", "float64")


def _convolution(draw: Draw) -> Case:
    spatial = draw.one_of((1, 1, 2))
    groups = draw.one_of((1, 1, 1, 2, 4))
    batch_groups = draw.one_of((1, 1, 1, 2)) if groups == 1 else 1
    features_in = groups * draw.one_of((1, 2, 3, 4))
    features_out = groups * batch_groups * draw.one_of((1, 2, 4))
    batch = batch_groups * draw.one_of((1, 2, 4, 8))
    image = [draw.one_of((4, 6, 8, 12, 16, 5, 7) if spatial == 1 else (4, 6, 8)) for _ in range(spatial)]
    kernel = [draw.integer(1, 4) for _ in range(spatial)]
    strides = [draw.one_of((1, 1, 2, 3)) for _ in range(spatial)]
    dilation = [draw.one_of((1, 1, 2)) for _ in range(spatial)]
    base = [draw.one_of((1, 1, 1, 2)) for _ in range(spatial)]
    padding: Any = draw.one_of(("SAME", "VALID", None))
    if padding is None or max(base) > 1 or any((n - 1) * b + 1 < (k - 1) * r + 1 for n, k, r, b in zip(image, kernel, dilation, base)):
        padding = [((k - 1) * r - draw.integer(0, 1), draw.integer(0, 3)) for k, r in zip(kernel, dilation)]
    names = "HW"[:spatial]
    lhs, rhs, out = ("".join(draw.shuffled(s)) if draw.chance(50) else s for s in (f"N{names}C", f"{names}IO", f"N{names}C"))
    sizes = {**dict(zip(names, image)), "N": batch, "C": features_in}
    kernel_sizes = {**dict(zip(names, kernel)), "I": features_in // groups, "O": features_out}
    dtype = draw.dtype(FLOATS)
    arguments = draw.array(tuple(sizes[c] for c in lhs), dtype, -2, 2), draw.array(tuple(kernel_sizes[c] for c in rhs), dtype, -2, 2)

    def function(x: jax.Array, k: jax.Array) -> jax.Array:
        return lax.conv_general_dilated(
            x, k, strides, padding, lhs_dilation=base, rhs_dilation=dilation, dimension_numbers=(lhs, rhs, out),
            feature_group_count=groups, batch_group_count=batch_groups,
        )  # fmt: skip

    return Case(function, arguments, (0, 1))


def _window(draw: Draw, shape: tuple[int, ...]) -> dict[str, Any]:
    size = tuple(draw.integer(1, min(3, n)) if draw.chance(70) else 1 for n in shape)
    strides = tuple(draw.one_of((1, 1, k)) for k in size)
    padding: Any = draw.one_of(("SAME", "VALID"))
    if draw.chance(30):
        padding = [(draw.integer(0, k - 1), draw.integer(0, k - 1)) for k in size]
    return {"window_dimensions": size, "window_strides": strides, "padding": padding}


def _pool(start: float, combine: Any, *, dilated: bool) -> Generator:
    def generate(draw: Draw) -> Case:
        shape, dtype = draw.shape(1, 3, empty=False), draw.dtype((*FLOATS, "int32"))
        options = _window(draw, shape)
        if dilated and draw.chance(20):
            options["base_dilation"] = tuple(draw.one_of((1, 2)) for _ in shape)
        if dilated and draw.chance(20) and options["padding"] == "VALID":
            options["window_dilation"] = tuple(2 if 2 * (k - 1) + 1 <= n else 1 for k, n in zip(options["window_dimensions"], shape))
        floating = jnp.issubdtype(dtype, jnp.floating)
        first = np.asarray(
            start if floating or abs(start) < 9 else (np.iinfo(np.int32).max if start > 0 else np.iinfo(np.int32).min), dtype
        )
        array = draw.distinct(shape, dtype) if draw.chance(60) else draw.array(shape, dtype)
        plain = "base_dilation" not in options and "window_dilation" not in options
        return Case(lambda x: lax.reduce_window(x, first, combine, **options), (array,), (0,) if floating and plain else ())

    return generate


def _reduce_window(draw: Draw) -> Case:
    shape = draw.shape(1, 3, empty=False)
    options = _window(draw, shape)
    return Case(
        lambda x: lax.reduce_window(x, np.float32(0), lambda a, b: a + b + a * b, **options), (draw.reals(shape, "float32", -0.3, 0.3),)
    )


def _select_and_scatter_add(draw: Draw) -> Case:
    """The gradient of max pooling, by its input."""
    shape = draw.shape(1, 3, empty=False)
    options = _window(draw, shape)
    pool = lambda x: lax.reduce_window(x, np.float32(-np.inf), lax.max, **options)  # noqa: E731
    out = jax.eval_shape(pool, jax.ShapeDtypeStruct(shape, jnp.float32)).shape
    return Case(lambda x, g: jax.vjp(pool, x)[1](g), (draw.distinct(shape, "float32"), draw.array(out, "float32")), (1,))


def _select_and_gather_add(draw: Draw) -> Case:
    """The tangent of max pooling."""
    shape = draw.shape(1, 3, empty=False)
    options = _window(draw, shape)
    pool = lambda x: lax.reduce_window(x, np.float32(-np.inf), lax.max, **options)  # noqa: E731
    return Case(lambda x, t: jax.jvp(pool, (x,), (t,)), (draw.distinct(shape, "float32"), draw.array(shape, "float32")))


GENERATORS: dict[str, Generator] = {
    "conv_general_dilated": _convolution,
    "reduce_window": _reduce_window,
    "reduce_window_sum": _pool(0.0, lax.add, dilated=True),
    "reduce_window_max": _pool(-np.inf, lax.max, dilated=True),
    "reduce_window_min": _pool(np.inf, lax.min, dilated=True),
    "select_and_scatter_add": _select_and_scatter_add,
    "select_and_gather_add": _select_and_gather_add,
}
