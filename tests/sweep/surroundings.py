"""Surroundings of a primitive: makers of its operands, readers of its results, and transformations of the function."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax import lax
from jax import numpy as jnp
from jax.sharding import AxisType, Mesh, NamedSharding

from tests.sweep.draw import Case, Draw
from tests.sweep.shardings import draw_spec

Function = Callable[..., tuple[Any, ...]]
"""Takes what constrains a value to a spec, `constraint(mesh)` or `unconstrained`, and the arguments."""


def with_operands(draw: Draw, case: Case, around: list[str]) -> tuple[Function, tuple[Any, ...]]:
    """Operands that are computed, or shortened so that no axis divides them, instead of arguments."""
    arguments, steps = list(case.arguments), []
    for i, x in enumerate(case.arguments):
        if not hasattr(x, "shape") or not np.ndim(x) or i in case.fixed:
            steps.append(None)
            continue
        kind = draw.integer(0, 9)
        if kind < 2:
            steps.append(lambda x: jnp.logical_not(jnp.logical_not(x)) if x.dtype == bool else x + jnp.zeros((), x.dtype))
            around.append(f"operand {i} computed")
        elif kind < 5:
            d = draw.integer(0, x.ndim - 1)
            n = x.shape[d]
            more = -n % draw.one_of((2, 4, 8)) or draw.one_of((1, 8))
            first = draw.one_of((0, 0, more))
            tail = np.broadcast_to(np.asarray(draw.array((), x.dtype, 2, 4)), (*x.shape[:d], more, *x.shape[d + 1 :]))
            arguments[i] = np.concatenate((tail, x) if first else (x, tail), d)
            steps.append(lambda x, d=d, n=n, first=first: lax.slice_in_dim(x, first, first + n, axis=d))
            around.append(f"operand {i} is {n} of {n + more} elements of dimension {d} from {first}")
        else:
            steps.append(None)

    def function(constrain: Any, *xs: Any) -> tuple[Any, ...]:
        xs = tuple(x if step is None else step(x) for x, step in zip(xs, steps))
        return tuple(r for r in jax.tree.leaves(case.function(*xs)))

    return function, tuple(arguments)


def with_results(draw: Draw, function: Function, arguments: tuple[Any, ...], mesh: Mesh, around: list[str]) -> Function:
    """Results that are constrained, weighted by what is cut, shortened or summed."""
    kind = draw.integer(0, 9)
    if kind < 4:
        return function
    types = jax.eval_shape(lambda *args: function(unconstrained, *args), *arguments)
    if kind < 6 and mesh.axis_types[0] is AxisType.Auto:
        specs = [draw_spec(draw, t.shape, mesh, uneven=draw.chance(40)) for t in types]
        around.append(f"results constrained to {specs}")
        return lambda constrain, *args: tuple(constrain(r, s) for r, s in zip(function(constrain, *args), specs))
    if kind < 8:
        cuts = []
        for t in types:
            d = draw.integer(0, max(len(t.shape) - 1, 0))
            n = t.shape[d] if t.shape else 0
            start = draw.integer(0, min(2, max(n - 1, 0)))
            cuts.append((d, start, max(n - draw.integer(0, 1), start)))
        around.append(f"results cut to {cuts}")
        cut = lambda r, c: lax.slice_in_dim(r, c[1], c[2], axis=c[0]) if jnp.ndim(r) else r  # noqa: E731
        return lambda constrain, *args: tuple(cut(r, c) for r, c in zip(function(constrain, *args), cuts))
    if any(not jnp.issubdtype(t.dtype, jnp.number) or jnp.dtype(t.dtype).itemsize < 2 for t in types):
        return function
    around.append("results and twice the results reversed")
    return lambda constrain, *args: tuple(x for r in function(constrain, *args) for x in (r, jnp.flip(r) + r))


def transformed(draw: Draw, case: Case, function: Function, arguments: tuple[Any, ...], around: list[str]) -> Function:
    """The function, its gradient, its tangents, or the function in a loop, in a call or under `vmap`."""
    kind = draw.integer(0, 99)
    small = bool(arguments) and np.ndim(arguments[0]) > 0 and math.prod(np.shape(arguments[0])) < 512
    if case.smooth and kind < 30:
        name, other = f"gradient by {case.smooth}", _gradient(function, case.smooth)
    elif case.smooth and kind < 38:
        name, other = f"tangents by {case.smooth}", _tangents(function, case.smooth)
    elif kind < 50:
        name, other = "in a scan", _looped(function)
    elif kind < 56:
        name, other = "in a jit", _called(function)
    elif kind < 64 and small and 0 not in case.fixed:
        name, other = "under vmap", _batched(function)
    else:
        return function
    if not _runs(other, arguments):
        return function
    around.append(name)
    return other


def _gradient(function: Function, by: tuple[int, ...]) -> Function:
    def loss(constrain: Any, *args: Any) -> Any:
        total = jnp.zeros((), jnp.float32)
        for r in function(constrain, *args):
            if jnp.issubdtype(r.dtype, jnp.inexact):
                weights = (np.arange(r.size) % 5 - 1).astype(np.float32).reshape(r.shape)
                total += jnp.sum(jnp.real(r).astype(jnp.float32) * weights)
        return total

    return lambda constrain, *args: jax.grad(lambda *args: loss(constrain, *args), by)(*args)


def _tangents(function: Function, by: tuple[int, ...]) -> Function:
    def tangents(constrain: Any, *args: Any) -> tuple[Any, ...]:
        def of_some(*xs: Any) -> Any:
            full = list(args)
            for i, x in zip(by, xs):
                full[i] = x
            return function(constrain, *full)

        xs = tuple(jnp.asarray(args[i]) for i in by)
        return tuple(jax.tree.leaves(jax.jvp(of_some, xs, tuple(jnp.flip(x) for x in xs))))

    return tangents


def _looped(function: Function) -> Function:
    return lambda constrain, *args: lax.scan(lambda c, _: (c, function(constrain, *args)), 0, None, length=2)[1]


def _called(function: Function) -> Function:
    return lambda constrain, *args: jax.jit(lambda *args: function(constrain, *args))(*args)


def _batched(function: Function) -> Function:
    """Over the first argument, as it is and reversed; nothing is constrained, for a constraint would have another rank."""

    def batched(constrain: Any, *args: Any) -> tuple[Any, ...]:
        return jax.vmap(lambda x: function(unconstrained, x, *args[1:]))(jnp.stack([args[0], jnp.flip(args[0], 0)]))

    return batched


def _runs(function: Function, arguments: tuple[Any, ...]) -> bool:
    try:
        jax.eval_shape(lambda *args: function(unconstrained, *args), *arguments)
    except (NotImplementedError, TypeError, ValueError):
        return False
    return True


def constraint(mesh: Mesh) -> Callable[[Any, Any], Any]:
    """A function that constrains a value to a spec on a mesh."""
    return lambda x, spec: lax.with_sharding_constraint(x, NamedSharding(mesh, spec))


def unconstrained(x: Any, spec: Any) -> Any:
    """Leaves a value as it is."""
    return x
