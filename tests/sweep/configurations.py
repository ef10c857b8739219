"""All configurations, each drawn from a name and a number.

A configuration is a primitive with parameters and operands, with other ops around it, on a mesh, with shardings.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import lax
from jax import numpy as jnp
from jax.sharding import AxisType, Mesh, NamedSharding

from shardy_py.ir.tables import merge_tables
from tests.sweep import algebra, control, harnesses, indexing, pointwise, reductions, shapes, windows
from tests.sweep.draw import Case, Draw, Generator
from tests.sweep.shardings import draw_input, draw_mesh, draw_output, draw_spec

FAMILIES = {algebra: 1, control: 1, harnesses: 40, indexing: 3, pointwise: 1, reductions: 2, shapes: 3, windows: 3}
"""Module with generators -> weight: more goes wrong where elements move, and in windows, than elsewhere."""

GENERATORS: Mapping[str, Generator] = merge_tables(tuple(family.GENERATORS for family in FAMILIES))
"""Name, which begins with a primitive's -> generator."""

ORDER = [name for family, weight in FAMILIES.items() for name in family.GENERATORS for _ in range(weight)]
random.Random(0).shuffle(ORDER)


class Configuration(NamedTuple):
    """A program to run with and without shardings.

    Attributes:
        function: Takes the arguments, and a function that constrains values by their numbers, or leaves them.
        arguments: Arrays.
        mesh: Where it runs.
        in_shardings: Of the arguments.
        out_shardings: Of the results, in one tuple.
        x64: Whether 64-bit types are enabled, as they must be where it runs.
        around: What stands around the primitive, for messages.
    """

    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    mesh: Mesh
    in_shardings: tuple[Any, ...]
    out_shardings: tuple[Any, ...]
    x64: bool
    around: tuple[str, ...]


def name_of(number: int) -> str:
    """The name of a configuration in a sweep; each name comes up as often as its weight says."""
    return ORDER[number % len(ORDER)]


def configuration_of(name: str, seed: int) -> Configuration:
    """The configuration of a name and a number; the same in every process."""
    draw = Draw.of(name, seed)
    with jax.enable_x64(draw.x64):
        return _drawn(name, draw)


def _drawn(name: str, draw: Draw) -> Configuration:
    case = GENERATORS[name](draw)
    mesh = draw_mesh(draw)
    around: list[str] = []
    function, arguments = _with_operands(draw, case, around)
    function = _with_results(draw, function, arguments, mesh, around)
    function = _transformed(draw, case, function, arguments, around)
    results = jax.eval_shape(lambda *args: function(unconstrained, *args), *arguments)
    ins = tuple(draw_input(draw, np.shape(a), mesh) for a in arguments)
    outs = tuple(draw_output(draw, r.shape, mesh) for r in results)
    return Configuration(function, arguments, mesh, ins, outs, draw.x64, tuple(around))


def _with_operands(draw: Draw, case: Case, around: list[str]) -> tuple[Callable[..., Any], tuple[Any, ...]]:
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


def _with_results(
    draw: Draw, function: Callable[..., Any], arguments: tuple[Any, ...], mesh: Mesh, around: list[str]
) -> Callable[..., Any]:
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
        cut = lambda r, c: lax.slice_in_dim(r, c[1], c[2], axis=c[0]) if r.ndim else r  # noqa: E731
        return lambda constrain, *args: tuple(cut(r, c) for r, c in zip(function(constrain, *args), cuts))
    if any(not jnp.issubdtype(t.dtype, jnp.number) or jnp.dtype(t.dtype).itemsize < 2 for t in types):
        return function
    around.append("results and twice the results reversed")
    return lambda constrain, *args: tuple(x for r in function(constrain, *args) for x in (r, jnp.flip(r) + r))


def _transformed(draw: Draw, case: Case, function: Callable[..., Any], arguments: tuple[Any, ...], around: list[str]) -> Callable[..., Any]:
    """The function, its gradient, its tangents, or the function in a scan or under vmap."""
    kind = draw.integer(0, 99)
    if case.smooth and kind < 30:
        by = tuple(case.smooth)

        def loss(constrain: Any, *args: Any) -> Any:
            total = jnp.zeros((), jnp.float32)
            for r in function(constrain, *args):
                if jnp.issubdtype(r.dtype, jnp.inexact):
                    weights = (np.arange(r.size) % 5 - 1).astype(np.float32).reshape(r.shape)
                    total += jnp.sum(jnp.real(r).astype(jnp.float32) * weights)
            return total

        def gradient(constrain: Any, *args: Any) -> tuple[Any, ...]:
            return jax.grad(lambda *args: loss(constrain, *args), by)(*args)

        if _runs(gradient, arguments):
            around.append(f"gradient by {by}")
            return gradient
    elif case.smooth and kind < 38:
        by = tuple(case.smooth)

        def tangent(constrain: Any, *args: Any) -> tuple[Any, ...]:
            def inner(*xs: Any) -> Any:
                full = list(args)
                for i, x in zip(by, xs):
                    full[i] = x
                return function(constrain, *full)

            xs = tuple(jnp.asarray(args[i]) for i in by)
            return tuple(jax.tree.leaves(jax.jvp(inner, xs, tuple(jnp.flip(x) for x in xs))))

        if _runs(tangent, arguments):
            around.append(f"tangents by {by}")
            return tangent
    elif kind < 50:

        def looped(constrain: Any, *args: Any) -> tuple[Any, ...]:
            return lax.scan(lambda c, _: (c, function(constrain, *args)), 0, None, length=2)[1]

        around.append("in a scan")
        return looped
    elif kind < 56:

        def jitted(constrain: Any, *args: Any) -> tuple[Any, ...]:
            return jax.jit(lambda *args: function(constrain, *args))(*args)

        around.append("in a jit")
        return jitted
    elif kind < 64 and all(np.ndim(a) for a in arguments[:1]) and math.prod(np.shape(arguments[0])) < 512:

        def batched(constrain: Any, *args: Any) -> tuple[Any, ...]:
            return jax.vmap(lambda x: function(unconstrained, x, *args[1:]))(jnp.stack([args[0], jnp.flip(args[0], 0)]))

        if 0 not in case.fixed and _runs(batched, arguments):
            around.append("under vmap")
            return batched
    return function


def _runs(function: Callable[..., Any], arguments: tuple[Any, ...]) -> bool:
    try:
        jax.eval_shape(lambda *args: function(unconstrained, *args), *arguments)
    except (NotImplementedError, TypeError, ValueError):
        return False
    return True


def constraint(mesh: Mesh) -> Callable[[Any, Any], Any]:
    """What constrains a value to a spec on a mesh."""
    return lambda x, spec: lax.with_sharding_constraint(x, NamedSharding(mesh, spec))


def unconstrained(x: Any, spec: Any) -> Any:
    """Leaves a value as it is."""
    return x
