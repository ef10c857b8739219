"""Shardings of the values of a profiled function on the devices of one stage, after propagation."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
from jax.extend.core import JaxprEqn, Var, jaxpr_as_fun

from shardy_py.api import auto_shard
from shardy_py.pipedream.profiles.line import Line
from shardy_py.pipelines.jaxprs import bytes_of, closed_jaxpr, dtype_of, is_extended_dtype


@dataclass(frozen=True)
class Shards:
    """The number of parts of each value, and the axes, with their sizes, that shard it."""

    parts: Mapping[Var, int]
    axes: Mapping[Var, Mapping[str, int]]

    def bytes(self, v: Var) -> float:
        """Bytes of a value on one device."""
        return float(-(-bytes_of(v) // self.parts.get(v, 1)))

    def workers(self, eqn: JaxprEqn) -> int:
        """Number of devices that share the work of an equation: those of all axes that cut an operand or a result."""
        sizes: dict[str, int] = {}
        for v in (*eqn.invars, *eqn.outvars):
            if isinstance(v, Var):
                sizes.update(self.axes.get(v, {}))
        return math.prod(sizes.values())


def shards_of(line: Line, args: Sequence[Any], mesh: Any, in_shardings: Any) -> Shards:
    """Plans a function with all of its values as results, and reads off how each lies."""
    values = [v for step in line.steps for v in step.eqn.outvars if not is_extended_dtype(dtype_of(v))]
    results = [*line.slices, *values]
    inputs = [*line.invars, *line.consts, *line.slices]
    run = jaxpr_as_fun(closed_jaxpr([step.eqn for step in line.steps], inputs, results))

    def everything(*arguments: Any) -> list[Any]:
        env = dict(zip(line.invars, jax.tree_util.tree_leaves(arguments)))
        env.update(line.consts)
        for row, (whole, step) in line.slices.items():
            env[row] = env[whole][step]
        return run(*(env[v] for v in inputs))

    plan = auto_shard(everything, mesh=mesh, in_shardings=in_shardings).plan(*args)
    parts: dict[Var, int] = {}
    axes: dict[Var, dict[str, int]] = {}
    for v, planned in (*zip(line.invars, plan.inputs), *zip(results, plan.outputs)):
        if planned.sharding is not None:
            axes[v] = {str(axis): axis.size_in(plan.mesh) for dim in planned.sharding.dims for axis in dim.axes}
            parts[v] = math.prod(axes[v].values())
    return Shards(parts, axes)
