"""Attribution of the costs of a program to the steps of a line: numbers in name stacks lead from its ops to the equations they come from.

So a profile divides what `plan.cost_analysis` adds up. A loop over layers costs what it costs as a loop, with the residuals that it stacks
for its backward pass; every layer has an equal share.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Var

from shardy_py.backends.local.jaxpr_rewriting import Rewritten, copy_equations, rewrite_by_name
from shardy_py.backends.local.passes import optimize_region
from shardy_py.cost.hardware import Hardware
from shardy_py.frontends.jaxpr import from_equations, lowered
from shardy_py.frontends.locations import name_stack_of
from shardy_py.ir import Op
from shardy_py.pipedream.profiles.line import Step
from shardy_py.pipedream.profiles.numbering import numbers_in
from shardy_py.pipelines.equation_cost import op_seconds
from shardy_py.pipelines.jaxprs import closed


class Attribution:
    """The steps that each equation of a numbered function became."""

    def __init__(self, steps: Sequence[Step]) -> None:
        self.root = _Equation()
        for step in steps:
            node = self.root
            node.steps.append(step)
            for number in step.source:
                node = node.inner.setdefault(number, _Equation())
                node.steps.append(step)

    def seconds(self, traced: ClosedJaxpr, hardware: Hardware) -> dict[Step, float]:
        """Modelled seconds of the steps: of the function, or of what they became in a transformation of it such as a gradient."""
        seconds = dict.fromkeys(self.root.steps, 0.0)
        for op, took in _executed_ops(traced, hardware):
            node = self.root
            for number in _source_of(op):
                node = node.inner.get(number, node)
            for step in node.steps:
                seconds[step] += took / len(node.steps)
        return seconds


class _Equation:
    """An equation of a numbered function: the steps that it became, and the equations of its body by their numbers."""

    def __init__(self) -> None:
        self.steps: list[Step] = []
        self.inner: dict[int, _Equation] = {}


def _executed_ops(traced: ClosedJaxpr, hardware: Hardware) -> Iterator[tuple[Op, float]]:
    """The ops that one device executes for a jaxpr, with the seconds of each, all trips together: as `plan.cost_analysis` has them.

    The jaxpr is put in order as that of a region is. It is not planned, for it may name meshes of more devices.
    """
    jaxpr = optimize_region(_without_calls(lowered(traced).jaxpr), {}, "gpu")
    program, _ = from_equations(jaxpr.eqns, [v for v in jaxpr.outvars if isinstance(v, Var)])
    return op_seconds(program, hardware)


def _without_calls(jaxpr: Jaxpr) -> Jaxpr:
    """The jaxpr with the equations of calls in their place, in bodies too, as a region has them."""
    return rewrite_by_name(jaxpr, {}, dict.fromkeys(("jit", "remat2"), _in_place))


def _in_place(call: JaxprEqn, _: Mapping[str, int]) -> Rewritten | None:
    """The equations of a call; None for those that a backward pass computes again, which are not merged with what they repeat."""
    body = closed(call.params["jaxpr"])
    if body.consts or call.params.get("differentiated"):
        return None
    return copy_equations(_without_calls(body.jaxpr), call, call.invars)


def _source_of(op: Op) -> tuple[int, ...]:
    """The numbers of the equations that an op stands in, outermost first."""
    numbers: list[int] = []
    inner: object = op
    while isinstance(inner, Op):
        numbers[:0] = numbers_in(name_stack_of(inner.location))
        inner = None if inner.block is None else inner.block.parent
    return tuple(numbers)
