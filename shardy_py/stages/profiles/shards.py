"""How the values of a profiled function lie on the devices of one stage, after propagation."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
from jax.extend.core import ClosedJaxpr, JaxprEqn, Var, jaxpr_as_fun

from shardy_py.api import auto_shard
from shardy_py.stages.equation_cost import bytes_of
from shardy_py.stages.profiles.line import Line, struct_of


@dataclass(frozen=True)
class Shards:
    """Into how many parts values are cut.

    Args:
        parts: For every value the number of its parts.
        axes: For every value the axes over which it lies, with their sizes.
    """

    parts: Mapping[Var, int]
    axes: Mapping[Var, Mapping[str, int]]

    def bytes(self, v: Var) -> float:
        """Bytes of a value on one device."""
        return float(-(-bytes_of(v) // self.parts.get(v, 1)))

    def workers(self, eqn: JaxprEqn) -> int:
        """How many devices share the work of an equation: those of all axes that cut an operand or a result."""
        found: dict[str, int] = {}
        for v in (*eqn.invars, *eqn.outvars):
            if isinstance(v, Var):
                found.update(self.axes.get(v, {}))
        return math.prod(found.values())


def shards_of(line: Line, args: Sequence[Any], mesh: Any, in_shardings: Any) -> Shards:
    """Plans a function with all of its values as results, and reads off how each lies.

    Args:
        line: The function.
        args: Its arguments.
        mesh: The devices of one stage.
        in_shardings: Shardings of the arguments.
    """
    values = [v for step in line.steps for v in step.eqn.outvars if not jax.dtypes.issubdtype(struct_of(v).dtype, jax.dtypes.extended)]
    results = [*line.slices, *values]
    empty = jax.make_jaxpr(lambda: ())().jaxpr
    read = [*line.invars, *line.consts, *line.slices]
    jaxpr = empty.replace(invars=read, outvars=results, eqns=[step.eqn for step in line.steps])
    run = jaxpr_as_fun(ClosedJaxpr(jaxpr, ()))

    def everything(*arguments: Any) -> list[Any]:
        known = dict(zip(line.invars, jax.tree_util.tree_leaves(arguments)))
        known.update(line.consts)
        for row, (whole, step) in line.slices.items():
            known[row] = known[whole][step]
        return run(*(known[v] for v in read))

    plan = auto_shard(everything, mesh=mesh, in_shardings=in_shardings).plan(*args)
    parts: dict[Var, int] = {}
    axes: dict[Var, dict[str, int]] = {}
    for v, planned in (*zip(line.invars, plan.inputs), *zip(results, plan.outputs)):
        if planned.sharding is not None:
            found = {str(axis): axis.size_in(plan.mesh) for dim in planned.sharding.dims for axis in dim.axes}
            parts[v], axes[v] = math.prod(found.values()), found
    return Shards(parts, axes)
