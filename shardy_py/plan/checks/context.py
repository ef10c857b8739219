"""The context of checks: a plan with sizes and tables that several checks share, each computed once."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass

from shardy_py.cost.sizes import LocalSizes
from shardy_py.dialect import Mesh, TensorSharding
from shardy_py.ir import Op, Value
from shardy_py.passes.dataflow import MANUAL_COMPUTATION, NAMED_COMPUTATION
from shardy_py.plan.checks.fixes import Proposal, key_of
from shardy_py.plan.findings import Finding
from shardy_py.plan.record import PlanRecord
from shardy_py.plan.values import PlannedValue


@dataclass(eq=False)
class CheckContext:
    """A plan with the tables that checks share."""

    plan: PlanRecord
    findings: list[Finding]

    def __post_init__(self) -> None:
        self.meshes = self.plan.program.meshes
        self.proposals: dict[object, Proposal] = {}
        self.local = LocalSizes(self.meshes).bytes_of
        self.described = self.plan.described

    def propose(self, finding: Finding, proposal: Proposal) -> None:
        """Adds fixes of a finding, which are tried when all findings are known."""
        self.proposals[key_of(finding)] = proposal

    @property
    def mesh(self) -> Mesh:
        """The mesh that is planned for."""
        return self.plan.mesh

    def bytes_of(self, value: PlannedValue) -> int:
        """Bytes of a device's piece of a value of the plan."""
        return self.local(value.type, value.sharding)

    @functools.cached_property
    def ops(self) -> tuple[tuple[Op, bool], ...]:
        """All ops of the program, an op before its regions, and whether each stands in a manual computation, where types are of shards."""
        ops: list[tuple[Op, bool]] = []
        manual: set[Op] = set()
        for op in self.plan.program.main.body.walk():
            parent = op.parent
            inside = parent is not None and (parent.name == MANUAL_COMPUTATION or parent in manual)
            if inside and op.regions:
                manual.add(op)
            ops.append((op, inside))
        return tuple(ops)

    @functools.cached_property
    def read(self) -> set[Value]:
        """Values that the results of the program depend on; no device computes others."""
        read: set[Value] = set()
        for op, _ in reversed(self.ops):
            call = op if op.name == NAMED_COMPUTATION else op.parent
            if call is not None and call.name == NAMED_COMPUTATION and (op is call or not op.results):
                ends = call.regions[0].arguments if op is call else call.results
                read.update(operand for operand, end in zip(op.operands, ends) if end in read)
            elif not op.results or op.name == "stablehlo.custom_call" or not read.isdisjoint(op.results):
                read.update(op.operands)
        return read

    def cut_values(self, reason: str) -> Iterator[tuple[PlannedValue, TensorSharding]]:
        """Arguments and results that a pass after the propagation cut down, each with its sharding before.

        The log of the propagation records them, so that a plan without provenance has none.
        """
        main = self.plan.program.main
        arguments = dict(zip(main.arguments, self.plan.inputs))
        results: dict[Value, list[PlannedValue]] = {}
        for value, output in zip(main.body.terminator.operands, self.plan.outputs):
            results.setdefault(value, []).append(output)
        for step in self.plan.log:
            if step.reason == reason and step.old is not None:
                is_argument = step.op is None and step.target in arguments
                for value in [arguments[step.target]] if is_argument else results.get(step.target, []):
                    yield value, step.old


def is_replicated(sharding: TensorSharding | None) -> bool:
    """Whether every device has the whole value."""
    return sharding is None or (sharding.is_fully_replicated and not sharding.unreduced)
