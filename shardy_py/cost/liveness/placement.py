"""Values in the host's memory: `jax.device_put` moves them there and back, and what ops make of them stays there."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from shardy_py.cost.liveness.graph import Kind, Node
from shardy_py.ir import Op

_TARGET, _ATTRIBUTES, _PLACEMENT = "annotate_device_placement", "mhlo.frontend_attributes", "_xla_buffer_placement"


def placement(kind: str) -> dict[str, Any]:
    """The attribute of a `stablehlo.custom_call` that moves its operand to a memory kind."""
    return {_ATTRIBUTES: {_PLACEMENT: kind}}


def placed_in(op: object) -> str:
    """The memory kind that an op moves its operand to; empty of other ops."""
    if not isinstance(op, Op) or op.name != "stablehlo.custom_call" or op.attributes.get("call_target_name") != _TARGET:
        return ""
    attributes: dict[str, str] | None = op.attributes.get(_ATTRIBUTES)
    return (attributes or {}).get(_PLACEMENT, "")


def host_values(nodes: Iterable[Node], arguments: Iterable[int]) -> set[int]:
    """The values that lie in the host's memory: what is moved there, and what ops make of it until it is moved back.

    Args:
        nodes: All nodes, those of bodies included.
        arguments: Values that the caller has in the host's memory.
    """
    steps, host = list(nodes), set(arguments)
    for node in steps:
        if placed_in(node.source).endswith("_host"):
            host.update(node.results)
    size = -1
    while host and size != len(host):
        size = len(host)
        for node in steps:
            for sources, targets in _flows(node):
                if not host.isdisjoint(sources):
                    host.update(targets)
    return host


def passed_on(nodes: Iterable[Node], host: set[int]) -> set[int]:
    """The values in the host's memory that have no buffer of their own: slices on their way to the device, and updates on theirs back."""
    steps = list(nodes)
    readers: dict[int, list[Node]] = {}
    for node in steps:
        for v in node.operands:
            readers.setdefault(v, []).append(node)

    def passes(v: int, node: Node) -> bool:
        if node.kind is Kind.UPDATE:
            return v != node.operands[0]
        return node.kind in (Kind.BARRIER, Kind.VIEW, Kind.SHAPE) or bool(placed_in(node.source))

    candidates = {v for node in steps if node.kind in (Kind.BARRIER, Kind.VIEW, Kind.SHAPE) or placed_in(node.source) for v in node.results}
    return {v for v in host & candidates if all(passes(v, node) for node in readers.get(v, ()))}


def _flows(node: Node) -> Iterable[tuple[Sequence[int], Sequence[int]]]:
    """Values of a node, and those that lie where one of them does."""
    if placed_in(node.source):
        return
    if node.kind is Kind.LOOP:
        condition, body = node.regions
        for operand, tested, carried, end, result in zip(node.operands, condition.arguments, body.arguments, body.results, node.results):
            yield (operand, end), (tested, carried, result)
    elif node.kind is Kind.BRANCH:
        for region in node.regions:
            for operand, argument in zip(node.operands[len(node.operands) - len(region.arguments) :], region.arguments):
                yield (operand,), (argument,)
            for end, result in zip(region.results, node.results):
                yield (end,), (result,)
    elif node.kind is Kind.BARRIER:
        for operand, result in zip(node.operands, node.results):
            yield (operand,), (result,)
    else:
        yield node.operands, node.results
