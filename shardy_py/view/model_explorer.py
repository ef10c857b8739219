"""A plan as a graph for Model Explorer (github.com/google-ai-edge/model-explorer), which opens it as a `.json` file.

Layers are modules, and the bodies of loops, branches and computations; every op has its sharding, its source line and its reshards as
attributes.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from shardy_py.dialect import TensorSharding
from shardy_py.ir import Op, Type, Value
from shardy_py.ir.pieces import local_bytes
from shardy_py.plan.executed_reshards import reshards_at
from shardy_py.plan.movements import format_bytes
from shardy_py.plan.record import PlanRecord
from shardy_py.plan.reshards import Reshard
from shardy_py.plan.values import PlannedValue, typed

_PASSED_ON = frozenset(("stablehlo.while", "sdy.named_computation", "sdy.manual_computation"))
"""Ops whose bodies take their operands, in order, as arguments."""


def graph(plan: PlanRecord) -> dict[str, Any]:
    """A collection of one graph as plain data."""
    return {"label": f"plan of {plan.name}", "graphs": [{"id": plan.name, "nodes": _Nodes(plan).all()}]}


def graph_json(plan: PlanRecord) -> str:
    """`graph` as the text of a file."""
    return json.dumps(graph(plan), separators=(",", ":")) + "\n"


class _Nodes:
    def __init__(self, plan: PlanRecord) -> None:
        self.plan = plan
        self.meshes = plan.program.meshes
        self.from_where: dict[Value, tuple[str, str]] = {}
        self.reshards = reshards_at(plan)

    def all(self) -> list[dict[str, Any]]:
        """Inputs, ops in program order, outputs."""
        plan = self.plan
        nodes: list[dict[str, Any]] = []
        main = plan.program.main
        for value, planned in zip(main.arguments, plan.inputs):
            nodes.append(self._leaf(planned, "inputs", (), self.reshards.get(value, ())))
            self.from_where[value] = (planned.path, "0")
        described: dict[Op, list[PlannedValue]] = {}
        for value, planned in plan.intermediates:
            owner = value.owner
            if isinstance(owner, Op):
                described.setdefault(owner, []).append(planned)
        bodies: dict[Op, str] = {}
        for op, planned in described.items():
            inside = "" if op.parent is None else bodies.get(op.parent, "")
            node = self._op(op, planned, inside)
            nodes.append(node)
            self.from_where.update((value, (node["id"], str(i))) for i, value in enumerate(op.results))
            if op.regions:
                bodies[op] = _joined(node["namespace"], f"{node['label']} {node['id']}")
                if op.name in _PASSED_ON:
                    for region in op.regions:
                        self._pass_on(op.operands, region.arguments)
        for i, planned in enumerate(plan.outputs):
            nodes.append(self._leaf(planned, "outputs", main.body.terminator.operands[i : i + 1], prefix="output "))
        self._close(described, nodes, len(plan.inputs))
        return nodes

    def _pass_on(self, operands: Iterable[Value], arguments: Iterable[Value]) -> None:
        for operand, argument in zip(operands, arguments):
            if operand in self.from_where:
                self.from_where[argument] = self.from_where[operand]

    def _close(self, described: dict[Op, list[PlannedValue]], nodes: list[dict[str, Any]], first: int) -> None:
        """Edges from the results of a body to the op that has the body."""
        for n, op in enumerate(described, first):
            at = len(op.operands)
            for region in op.regions:
                ends = region.terminator.operands
                nodes[n]["incomingEdges"] += self._edges(ends, at)
                at += len(ends)

    def _op(self, op: Op, planned: list[PlannedValue], inside: str) -> dict[str, Any]:
        first = planned[0]
        module = first.module
        attributes = {"primitive": first.primitive, "op": op.name, "at": first.location}
        attributes.update(_moves(reshard for value in op.results for reshard in self.reshards.get(value, ())))
        return {
            "id": first.path,
            "label": first.primitive,
            "namespace": _joined(inside, module) if not inside or not module.startswith(inside) else module,
            "attrs": _pairs(attributes),
            "incomingEdges": self._edges(op.operands),
            "outputsMetadata": [self._metadata(i, v.path, v.type, v.sharding) for i, v in enumerate(planned)],
        }

    def _leaf(
        self, planned: PlannedValue, namespace: str, operands: Iterable[Value], reshards: Iterable[Reshard] = (), prefix: str = ""
    ) -> dict[str, Any]:
        return {
            "id": prefix + planned.path,
            "label": planned.path,
            "namespace": namespace,
            "attrs": _pairs({"sharding": typed(planned.type, planned.sharding), **_moves(reshards)}),
            "incomingEdges": self._edges(operands),
            "outputsMetadata": [self._metadata(0, planned.path, planned.type, planned.sharding)],
        }

    def _edges(self, operands: Iterable[Value], first: int = 0) -> list[dict[str, str]]:
        edges = []
        for i, operand in enumerate(operands, first):
            if operand in self.from_where:
                node, output = self.from_where[operand]
                edges.append({"sourceNodeId": node, "sourceNodeOutputId": output, "targetNodeInputId": str(i)})
        return edges

    def _metadata(self, i: int, name: str, type_: Type, sharding: TensorSharding | None) -> dict[str, Any]:
        local = format_bytes(local_bytes(type_, sharding, self.meshes))
        return {"id": str(i), "attrs": _pairs({"name": name, "tensor_shape": typed(type_, sharding), "bytes per device": local})}


def _moves(reshards: Iterable[Reshard]) -> dict[str, str]:
    return {f"moves {n}": str(reshard) for n, reshard in enumerate(reshards)}


def _joined(*parts: str) -> str:
    return "/".join(part for part in parts if part)


def _pairs(attributes: dict[str, str]) -> list[dict[str, str]]:
    return [{"key": key, "value": text} for key, text in attributes.items() if text]
