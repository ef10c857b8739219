"""Compares many forms with their equations in one compilation; counts what is sent."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax

from shardy_py.backends.local.local_rule import Equation, LocalContext, LocalRule
from shardy_py.backends.local.table import LOCAL_RULES
from shardy_py.partition.region.reshard_steps import COLLECTIVE_LAUNCH_BYTES
from tests.backends.local.forced import SIZES, choices, equation_of, mesh, run_forced, same, spread

Case = tuple[Callable[..., Any], tuple[Any, ...]]


def check_together(name: str, cases: Sequence[Case], *, count: int = 2, tolerance: float = 0.0) -> None:
    """Compares forms of a primitive with the equations run whole, under several ways of sharding each.

    Args:
        name: The primitive.
        cases: What makes an equation, and its arguments.
        count: How many random ways of sharding to try besides each factor alone.
        tolerance: Relative and absolute; 0 where results have to be equal bit for bit.
    """
    tried = []
    for seed, (f, args) in enumerate(cases):
        equation, operands = equation_of(f, args, name)
        local_rule = LOCAL_RULES[name](equation)
        assert local_rule is not None, f"{name} has no form"
        tried.append((equation, local_rule, spread(choices(local_rule, count, seed)), operands))

    def wanted(given: Sequence[Any]) -> list[Any]:
        out = []
        for (equation, _, _, _), xs in zip(tried, given, strict=True):
            made = equation.eqn.primitive.bind(*xs, **equation.eqn.primitive.get_bind_params(equation.params))
            out.append(made if equation.eqn.primitive.multiple_results else [made])
        return out

    def forced(given: Sequence[Any]) -> list[Any]:
        return [
            run_forced(equation, local_rule, tried_axes, xs) for (equation, local_rule, tried_axes, _), xs in zip(tried, given, strict=True)
        ]

    given = [list(operands) for _, _, _, operands in tried]
    checked = 0
    for (equation, local_rule, tried_axes, _), made, want in zip(tried, jax.jit(forced)(given), jax.jit(wanted)(given), strict=True):
        for axes, got in zip(tried_axes, made, strict=True):
            checked += 1
            expected = (
                0 if local_rule.bytes_inside is None else local_rule.bytes_inside([math.prod(SIZES[a] for a in names) for names in axes])
            )
            assert cost_inside(equation, local_rule, axes) == expected, f"{name} of {equation.shapes} with {equation.params} under {axes}"
            for g, w in zip(got, want, strict=True):
                same(g, w, tolerance, f"{name} of {equation.shapes} with {equation.params} under {axes}")
    assert checked


def cost_inside(equation: Equation, local_rule: LocalRule, axes: Sequence[tuple[str, ...]]) -> int:
    """Bytes that a device receives in a form's `run`, and what starting its collectives counts as, read off its trace."""
    local = LocalContext(equation, local_rule, axes, SIZES, "cpu")
    shapes = [jax.ShapeDtypeStruct(local.operand_shape(i), d) for i, d in enumerate(equation.dtypes)]
    specs: Any = jax.sharding.PartitionSpec()

    def inside(*arrays: Any) -> list[Any]:
        return local_rule.run(local, list(arrays))

    traced = jax.make_jaxpr(jax.shard_map(inside, mesh=mesh(), in_specs=specs, out_specs=specs, check_vma=False))(*shapes)
    total = 0
    started = set()
    for eqn in eqns(traced.jaxpr):
        if eqn.primitive.name in SENDS:
            assert eqn.primitive.name in ("ppermute", "all_gather")
            (before,), (after,) = eqn.invars, eqn.outvars
            total += (after.aval.size - (before.aval.size if eqn.primitive.name == "all_gather" else 0)) * after.aval.dtype.itemsize
            alike = (eqn.primitive.name, before.aval.shape, after.aval.shape)
            if alike not in started or eqn.primitive.name == "ppermute":  # gathers of one shape are sent together
                total += COLLECTIVE_LAUNCH_BYTES
            started.add(alike)
    return total


def eqns(jaxpr: Any) -> Any:
    """All equations of a jaxpr, inner ones too."""
    for eqn in jaxpr.eqns:
        yield eqn
        for value in eqn.params.values():
            for inner in value if isinstance(value, (tuple, list)) else (value,):
                inner = getattr(inner, "jaxpr", inner)
                if hasattr(inner, "eqns"):
                    yield from eqns(inner)


SENDS = ("all_gather", "all_to_all", "ppermute", "psum", "psum_invariant", "psum_scatter", "reduce_scatter", "pmax", "pmin", "pmul")


def sent(jaxpr: Any) -> list[tuple[str, tuple[int, ...]]]:
    """The collectives of a jaxpr, with the shapes of their results."""
    return [(eqn.primitive.name, tuple(eqn.outvars[0].aval.shape)) for eqn in eqns(jaxpr) if eqn.primitive.name in SENDS]
