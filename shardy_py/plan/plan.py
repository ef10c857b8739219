"""Plan: what planning decided, for people and for programs to read."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from shardy_py.dialect import Mesh, TensorSharding
from shardy_py.errors import ShardyError
from shardy_py.ir import Op, Program, Value
from shardy_py.plan.collectives import Collective
from shardy_py.plan.donation import Donated
from shardy_py.plan.explain import Explanation, chain_of
from shardy_py.plan.findings import Finding
from shardy_py.plan.predicted import predicted
from shardy_py.plan.reshards import Reshard, find_reshards
from shardy_py.plan.timings import Timings
from shardy_py.plan.values import PlannedValue, intermediates, location_of, typed


class PlanError(ShardyError):
    """`Plan.check` found something that should be put right."""


class ShardingTrees(Protocol):
    """Gives a plan's shardings in the form of the framework it was made for."""

    def inputs(self, plan: Plan) -> Any:
        """The input shardings, in the structure of the arguments."""
        ...

    def outputs(self, plan: Plan) -> Any:
        """The output shardings, in the structure of the result."""
        ...


class CollectiveSource(Protocol):
    """Partitions a plan that is run by explicit collectives, when it is first asked for what came of that."""

    def collectives(self, plan: Plan) -> tuple[Collective, ...]:
        """In the order in which they run."""
        ...

    def findings(self, plan: Plan) -> tuple[Finding, ...]:
        """What could not be partitioned."""
        ...


@dataclass(frozen=True, eq=False, repr=False)
class Plan:
    """The shardings of a function's inputs, outputs and intermediates, and how they came about.

    Attributes:
        name: The function's name.
        mesh: Axes and sizes.
        inputs: One per leaf of the arguments, in order.
        outputs: One per leaf of the result, in order.
        noted: What planning found: rules not used, primitives without a rule, ...
        timings: Seconds per step of planning.
        program: The program after all passes.
        log: The steps of the propagation.
        donation: One per donated leaf of the arguments: the output that reuses its memory, or why none does.
    """

    name: str
    mesh: Mesh
    inputs: tuple[PlannedValue, ...]
    outputs: tuple[PlannedValue, ...]
    noted: tuple[Finding, ...]
    program: Program
    log: Sequence[Any] = ()
    timings: Timings = field(default_factory=Timings)
    trees: ShardingTrees | None = None
    donation: tuple[Donated, ...] = ()
    source: CollectiveSource | None = None

    @property
    def input_shardings(self) -> Any:
        """A pytree of `NamedSharding` of the structure of the tuple of arguments; with keyword arguments `(args, kwargs)`."""
        return None if self.trees is None else self.trees.inputs(self)

    @property
    def output_shardings(self) -> Any:
        """A pytree of `NamedSharding` of the structure of the result."""
        return None if self.trees is None else self.trees.outputs(self)

    @functools.cached_property
    def _intermediates(self) -> tuple[tuple[Value, PlannedValue], ...]:
        return tuple(intermediates(self.program))

    @functools.cached_property
    def values(self) -> tuple[PlannedValue, ...]:
        """Every value: inputs, intermediates in program order, outputs."""
        return (*self.inputs, *(planned for _, planned in self._intermediates), *self.outputs)

    @functools.cached_property
    def reshards(self) -> tuple[Reshard, ...]:
        """Where data moves, in program order: values that change their sharding, and sums over devices.

        Found when first asked for. They are what Shardy makes explicit for the plan's shardings; under `lowering="jit"` XLA's
        partitioner may move data otherwise.
        """
        return find_reshards(self.program, self._names, tuple(output.path for output in self.outputs))

    @functools.cached_property
    def collectives(self) -> tuple[Collective, ...]:
        """The collectives that a call runs, with bytes and trips.

        Under `lowering="shard_map"` those of the partitioned program, which is made when they are first asked for; under
        `lowering="jit"` those that the `reshards` predict.
        """
        return predicted(self.reshards) if self.source is None else self.source.collectives(self)

    @functools.cached_property
    def findings(self) -> tuple[Finding, ...]:
        """Remarks: rules not used, primitives without a rule, ...

        Under `lowering="shard_map"` what runs whole on every device too, for which the program is partitioned when they are first asked
        for.
        """
        return self.noted if self.source is None else (*self.noted, *self.source.findings(self))

    @functools.cached_property
    def _names(self) -> dict[Value, str]:
        names = {value: described.path for value, described in self._intermediates}
        names.update((value, described.path) for value, described in zip(self.program.main.arguments, self.inputs))
        return names

    def check(self, strict: bool = False) -> tuple[Finding, ...]:
        """The findings; raises where one is an error.

        Args:
            strict: Raise for warnings too.

        Raises:
            PlanError: There are such findings.
        """
        bad = [f for f in self.findings if f.severity == "error" or (strict and f.severity == "warning")]
        if bad:
            listed = "\n".join(f"  {finding}" for finding in bad)
            raise PlanError(f"the plan of {self.name} has {len(bad)} finding{'s' if len(bad) > 1 else ''}\n{listed}")
        return self.findings

    def explain(self, target: str | PlannedValue, axis: str | None = None) -> Explanation:
        """Why a value has the sharding it has, back to the annotations.

        Args:
            target: A path (`params['w']`, `result[0]`), the name of an intermediate (`%12`), one of `plan.values`, or
                `file.py:line`, which means the last value made there.
            axis: Only this mesh axis.

        Raises:
            PlanError: There is no such value or axis.
        """
        if axis is not None and axis not in self.mesh.shape:
            raise PlanError(
                f"unknown mesh axis {axis!r}",
                where=f"plan of {self.name}",
                why=f"the mesh has {', '.join(f'{name}={size}' for name, size in self.mesh.shape.items())}",
                fix=f"use one of {', '.join(map(repr, self.mesh.shape))}",
            )
        holder, planned = self._find(target)

        def name(value: Any) -> str:
            index = getattr(value, "index", 0)
            known = self._names.get(value)
            if known is not None:
                return known
            if isinstance(value, Value):
                owner = value.defining_op
                return value.name or (f"a value of {owner.primitive or owner.name}" if owner is not None else f"argument {index} of a body")
            return self.outputs[index].path if index < len(self.outputs) else f"result {index}"

        sharding: TensorSharding | None = planned.sharding
        chains = [
            chain_of(holder, d, a, self.log, name, self._locate)
            for d, dim in enumerate(() if sharding is None else sharding.dims)
            for a in dim.axes
            if axis is None or a.name == axis
        ]
        return Explanation(planned.path, typed(planned.type, sharding), tuple(chains), axis)

    def _locate(self, op: Op) -> str:
        return location_of(self.program, op)

    def _find(self, target: str | PlannedValue) -> tuple[Any, PlannedValue]:
        if isinstance(target, PlannedValue):
            target = target.path
        for value, planned in zip(self.program.main.arguments, self.inputs):
            if planned.path == target:
                return value, planned
        for i, planned in enumerate(self.outputs):
            if planned.path == target:
                return self._result_holder(i), planned
        for value, planned in reversed(self._intermediates):
            if planned.path == target or (planned.location and (planned.location == target or planned.location.endswith("/" + target))):
                return value, planned
        near = [v.path for v in self.values if target in v.path][:5]
        raise PlanError(
            f"the plan has no value {target!r}",
            where=f"plan of {self.name}",
            why="it is neither a path of an input or output, nor the name of a value, nor a source line",
            fix=f"one of {', '.join(near)}" if near else "plan.values lists all of them",
        )

    def _result_holder(self, index: int) -> Any:
        for step in reversed(self.log):
            if not isinstance(step.target, Value) and step.target.index == index:
                return step.target
        return self.program.main.body.terminator.operands[index]

    def as_text(self, *, values: bool = True) -> str:
        """The plan as text; the same plan gives the same text in every process.

        Args:
            values: Whether to list the intermediates too.
        """
        from shardy_py.view.text import plan_text

        return plan_text(self, values=values)

    def __str__(self) -> str:
        return self.as_text()

    def __repr__(self) -> str:
        axes = ", ".join(f"{name}={size}" for name, size in self.mesh.shape.items())
        known = self.__dict__.get("findings", self.noted)  # without partitioning for it
        grave = sum(finding.severity != "info" for finding in known)
        found = f"{grave} findings, {len(known) - grave} notes"
        return f"<Plan of {self.name} on {axes}: {len(self.inputs)} inputs, {len(self.outputs)} outputs, {found}>"
