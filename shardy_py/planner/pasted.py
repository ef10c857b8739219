"""A planner's plan as code to paste, so that the planner need not run."""

from __future__ import annotations

from collections.abc import Sequence

from shardy_py.plan.checks.specs import sharding_text
from shardy_py.plan.cost_analysis import seconds_text
from shardy_py.plan.record import PlanRecord
from shardy_py.plan.search import Constraint
from shardy_py.plan.values import PlannedValue, typed
from shardy_py.planner.judge import objective
from shardy_py.planner.options import Planner
from shardy_py.planner.pins import TOLERANCE
from shardy_py.planner.seeds import Seeds


def pasted(plan: PlanRecord, constraints: Sequence[Constraint], seeds: Seeds, planner: Planner, *, is_region: bool) -> str:
    """The plan as code; see `Search.as_in_shardings`."""

    def propagated(some: Sequence[Constraint], *, results: bool) -> PlanRecord:
        return seeds.plan({each.number: each.sharding for each in some}, results=results)[0]

    written = [each for each in constraints if each.location]
    free = propagated(constraints, results=False)
    planned = objective(plan, planner)
    results = objective(free, planner) > planned * (1 + TOLERANCE) or _specs(free.outputs) != _specs(plan.outputs)
    alone = seconds_text(objective(propagated((), results=results), planner))
    runner = ' under lowering="jit"' if is_region else ""
    remark = f"# The planned step takes {seconds_text(planned)}{runner}; propagation from these shardings gives one of {alone}"
    if written:
        remark += f", with the constraints below of {seconds_text(objective(propagated(written, results=results), planner))}"
    imports = ["import jax"] if written else []
    lines = [f"{remark}.", *imports, "from jax.sharding import PartitionSpec as P", *_table("SHARDINGS", "in_shardings", plan.inputs)]
    lines += _table("RESULTS", "out_shardings", plan.outputs) if results else []
    if len(written) < len(constraints):
        lines.append(
            f"# Of {len(constraints)} constraints, {len(constraints) - len(written)} are of values that no line of the code makes."
        )
    lines += [*_CONSTRAIN, *map(_line, written)] if written else []
    return "\n".join(lines)


def _specs(values: Sequence[PlannedValue]) -> list[str]:
    """The sharding of each value as code; those of PRNG keys have dimensions that keys do not."""
    return ["P()" if v.sharding is None else sharding_text(v.sharding.with_dims(v.sharding.dims[: len(v.shape)])) for v in values]


def _table(name: str, argument: str, values: Sequence[PlannedValue]) -> list[str]:
    rows = [f"    {value.path!r}: {spec}," for value, spec in zip(values, _specs(values))]
    return [f"{name} = {{", *rows, "}", f"{argument} = lambda path, leaf: {name}[path]"]


_CONSTRAIN = (
    "# A function for constraints: that of JAX shards the cotangent of the value alike, which the plan may have otherwise.",
    "constrain = jax.custom_jvp(jax.lax.with_sharding_constraint, nondiff_argnums=(1,))",
    "constrain.defjvp(lambda spec, primals, tangents: (constrain(*primals, spec), *tangents))",
)


def _line(constraint: Constraint) -> str:
    """A constraint as a line to paste at its place."""
    reader = f", in front of the {constraint.primitive}" if constraint.is_in_front else ""
    maker = "" if constraint.is_in_front else f" of {constraint.primitive}"
    value = f"{constraint.value}, {typed(constraint.type, None)}{maker}"
    return f"# {constraint.location}{reader}: x = constrain(x, {constraint.spec}), where x is {value}"
