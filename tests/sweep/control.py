"""Configurations of loops, branches, calls and what else holds a jaxpr."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax import lax
from jax import numpy as jnp

from tests.sweep.draw import Case, Draw, Generator


def _step(draw: Draw) -> Callable[[Any], Any]:
    """A function from an array to one of its shape."""
    return draw.one_of((
        lambda x: x * 0.5 + 1, lambda x: x + jnp.max(x), lambda x: jnp.flip(x, 0), lambda x: jnp.roll(x, 1, 0),
        lambda x: x - jnp.mean(x, 0), lambda x: lax.cumsum(x, 0) * 0.1, lambda x: x.at[:1].add(1.0), lambda x: jnp.zeros_like(x),
        lambda x: x + jnp.arange(x.size, dtype=x.dtype).reshape(x.shape), lambda x: jnp.sort(x, 0), lambda x: x,
        lambda x: jnp.concatenate([x[1:], x[:1]]), lambda x: jnp.sin(x) @ jnp.eye(x.shape[-1], dtype=x.dtype),
        lambda x: lax.dynamic_update_slice_in_dim(x, x[:1] * 2, 3, 0),
    ))  # fmt: skip


def _scan(draw: Draw) -> Case:
    shape, length = draw.shape(1, 2, empty=False), draw.one_of((1, 2, 4, 8, 3))
    step, other, reverse = _step(draw), _step(draw), draw.chance(30)
    kind = draw.integer(0, 3)
    unroll = draw.one_of((1, 1, 1, 2))
    xs = draw.array((length, *shape), "float32")

    def body(c: Any, x: Any) -> tuple[Any, Any]:
        c = step(c) + x if kind else step(c)
        if kind == 2:
            return c, (other(x), None)
        if kind == 3:
            return c, jnp.float32(3)
        return c, other(c)

    if kind == 3 and draw.chance(50):  # over nothing, with what it is counted by
        return Case(lambda c: lax.scan(lambda c, i: (step(c) + i, c), c, jnp.arange(length)), (draw.array(shape, "float32"),), (0,))
    return Case(lambda c, xs: lax.scan(body, c, xs, reverse=reverse, unroll=unroll), (draw.array(shape, "float32"), xs), (0, 1))


def _while(draw: Draw) -> Case:
    shape, count = draw.shape(1, 2, empty=False), draw.integer(0, 3)
    step, kind = _step(draw), draw.integer(0, 2)
    x = draw.array(shape, "float32")
    if kind == 0:
        return Case(lambda n, x: lax.fori_loop(0, n, lambda i, c: step(c) + i, x), (np.int32(count), x), (), (0,))
    if kind == 1:
        small = lambda s: jnp.logical_and(s[0] < 3, jnp.sum(jnp.abs(s[1])) < 500)  # noqa: E731
        return Case(lambda x: lax.while_loop(small, lambda s: (s[0] + 1, step(s[1])), (0, x)), (x,))
    return Case(lambda x: lax.fori_loop(0, count, lambda i, c: step(c), x), (x,), (0,))


def _cond(draw: Draw) -> Case:
    shape, count = draw.shape(1, 2, empty=False), draw.integer(2, 3)
    branches = [_step(draw) for _ in range(count)]
    which = np.int32(draw.integer(-1, count))
    return Case(lambda i, x: lax.switch(i, branches, x), (which, draw.array(shape, "float32")), (1,), (0,))


def _jit(draw: Draw) -> Case:
    shape, step = draw.shape(1, 2, empty=False), _step(draw)
    inner = jax.jit(lambda x, y: (step(x), y, x + y))
    return Case(lambda x, y: (inner(x, y), inner(y, x)), (draw.array(shape, "float32"), draw.array(shape, "float32")), (0, 1))


def _remat(draw: Draw) -> Case:
    shape, step = draw.shape(1, 2, empty=False), _step(draw)
    return Case(lambda x: jnp.cos(jax.checkpoint(lambda x: jnp.sin(step(x)))(x)), (draw.array(shape, "float32"),), (0,))


def _custom_vjp(draw: Draw) -> Case:
    shape, step = draw.shape(1, 2, empty=False), _step(draw)
    told = jax.custom_vjp(step)
    told.defvjp(lambda x: (step(x), x), lambda x, g: (g * x + 2,))
    return Case(told, (draw.array(shape, "float32"),), (0,))


def _linear_call(draw: Draw) -> Case:
    shape = draw.shape(1, 2, empty=False)
    call = lambda x: jax.custom_derivatives.linear_call(lambda r, x: x / r, lambda r, t: t / r, jnp.float32(2), x)  # noqa: E731
    return Case(call, (draw.array(shape, "float32"),), (0,))


def _custom_vmap(draw: Draw) -> Case:
    shape, step = draw.shape(1, 2, empty=False), _step(draw)
    call = jax.custom_batching.custom_vmap(lambda x: step(x))
    call.def_vmap(lambda size, batched, x: (jax.vmap(step)(x), True))
    return Case(call, (draw.array(shape, "float32"),))


def _composite(draw: Draw) -> Case:
    shape, step = draw.shape(1, 2, empty=False), _step(draw)
    return Case(lax.composite(step, "tests.step"), (draw.array(shape, "float32"),))


def _callback(draw: Draw) -> Case:
    shape = draw.shape(1, 2, empty=False)
    same = jax.ShapeDtypeStruct(shape, jnp.float32)
    return Case(lambda x: jax.pure_callback(lambda x: np.asarray(x) * 2, same, x), (draw.array(shape, "float32"),))


def _effects(draw: Draw) -> Case:
    shape, step = draw.shape(1, 2, empty=False), _step(draw)
    nothing = lambda *_: None  # noqa: E731

    def function(x: Any) -> Any:
        jax.debug.callback(nothing, x)
        y = step(x)
        jax.debug.callback(nothing, y.sum(), x)
        return y, jnp.float32(2)

    return Case(function, (draw.array(shape, "float32"),))


def _results(draw: Draw) -> Case:
    """Literals, arguments and one value several times as results; arguments that nothing uses."""
    shape, step = draw.shape(1, 2, empty=False), _step(draw)

    def function(x: Any, unused: Any, k: Any) -> Any:
        y = step(x)
        return y, 3.0, x, y, 1 + k, np.int32(2), jnp.zeros((2, 4))

    return Case(function, (draw.array(shape, "float32"), draw.array(draw.shape(), "float32"), np.float32(2)))


GENERATORS: dict[str, Generator] = {
    "scan": _scan,
    "while": _while,
    "cond": _cond,
    "jit": _jit,
    "jit/results": _results,
    "remat2": _remat,
    "custom_vjp_call": _custom_vjp,
    "linear_call": _linear_call,
    "custom_vmap_call": _custom_vmap,
    "composite": _composite,
    "pure_callback": _callback,
    "debug_callback": _effects,
}
