"""Seconds of equations by the model of `plan.cost_analysis`: a roofline of the ops that they import to, given fusion."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence

from jax.extend.core import JaxprEqn, Var

from shardy_py.cost.compute import roofline_seconds
from shardy_py.cost.hardware import Hardware
from shardy_py.frontends.jaxpr import from_equations
from shardy_py.ir import Op, Program
from shardy_py.plan.cost_walk import BlockCosts


def equation_seconds(eqns: Sequence[JaxprEqn], results: Sequence[Var], hardware: Hardware) -> tuple[float, ...]:
    """Seconds of each equation of a program, where a compiler fuses it with its neighbours.

    An equation that is fused into its readers computes, and moves no bytes; its readers move what it reads.

    Returns:
        One entry per equation: the sum, over its ops, of the longer of computing and of moving bytes to and from memory. A loop of unknown
        length counts one trip, a `cond` its costliest branch.

    Example:
        >>> import jax
        >>> from shardy_py.cost.hardware_table import hardware
        >>> jaxpr = jax.make_jaxpr(lambda x: jax.numpy.sin(x) * 2.0)(jax.ShapeDtypeStruct((1000,), "float32")).jaxpr
        >>> [round(seconds * hardware("h100").hbm_bandwidth) for seconds in equation_seconds(jaxpr.eqns, jaxpr.outvars, hardware("h100"))]
        [4000, 4000]
    """
    program, ops = from_equations(eqns, results)
    position = {op: i for i, own in enumerate(ops) for op in own}
    seconds = [0.0] * len(ops)
    for op, took in op_seconds(program, hardware):
        if op in position:
            seconds[position[op]] += took
    return tuple(seconds)


def op_seconds(program: Program, hardware: Hardware) -> Iterator[tuple[Op, float]]:
    """The ops of a program on one device that cost something, with the seconds of each, all trips of loops together."""
    seconds = functools.partial(roofline_seconds, hardware=hardware)
    for run in BlockCosts(program.main.body, program.meshes, seconds).runs:
        yield run.op, seconds(run.work, run.accessed) * run.trips
