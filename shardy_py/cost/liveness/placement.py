"""Values in the host's memory: `jax.device_put` moves them there and back, and what ops make of them stays there."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from shardy_py.ir import Block, Op, Value
from shardy_py.passes.dataflow import CASE, COMPUTATIONS, WHILE

_TARGET, _ATTRIBUTES, _PLACEMENT = "annotate_device_placement", "mhlo.frontend_attributes", "_xla_buffer_placement"
_SHAPES = frozenset(f"stablehlo.{name}" for name in "concatenate dynamic_slice gather pad reverse slice transpose".split())

Origin = Callable[[Value], Value]


def placement(kind: str) -> dict[str, Any]:
    """The attribute of a `stablehlo.custom_call` that moves its operand to a memory kind."""
    return {_ATTRIBUTES: {_PLACEMENT: kind}}


def placed_in(op: Op) -> str:
    """The memory kind that an op moves its operand to; empty of other ops."""
    if op.name != "stablehlo.custom_call" or op.attributes.get("call_target_name") != _TARGET:
        return ""
    attributes: dict[str, str] | None = op.attributes.get(_ATTRIBUTES)
    return (attributes or {}).get(_PLACEMENT, "")


def host_values(body: Block, arguments: set[Value], origin: Origin) -> set[Value]:
    """The values that lie in the host's memory: what is moved there, and what ops make of it until it is moved back.

    Args:
        body: The ops, inner blocks included.
        arguments: Values that the caller has in the host's memory.
        origin: The value that lies in memory for each.
    """
    steps = _steps(body, origin)
    host = arguments | {v for op in steps if placed_in(op).endswith("_host") for v in op.results}
    size = -1
    while host and size != len(host):
        size = len(host)
        for op in steps:
            for sources, targets in _flows(op):
                if not host.isdisjoint(map(origin, sources)):
                    host.update(targets)
    return host


def passed_on(body: Block, host: set[Value], origin: Origin) -> set[Value]:
    """The values in the host's memory that have no buffer of their own: slices on their way to the device, and updates on theirs back."""
    steps = _steps(body, origin)
    readers: dict[Value, list[Op]] = {}
    for op in steps:
        for v in map(origin, op.operands):
            readers.setdefault(v, []).append(op)

    def passes(v: Value, op: Op) -> bool:
        if op.name == "stablehlo.dynamic_update_slice":
            return v is not origin(op.operands[0])
        return op.name in _SHAPES or bool(placed_in(op))

    candidates = {v for op in steps if op.name in _SHAPES or placed_in(op) for v in op.results}
    return {v for v in host & candidates if all(passes(v, op) for op in readers.get(v, ()))}


def _steps(body: Block, origin: Origin) -> list[Op]:
    """The ops that make values which lie elsewhere than others."""
    ops = (op for op in body.walk() if op.name not in COMPUTATIONS and not op.name.endswith(".return"))
    return [op for op in ops if not op.results or origin(op.results[0]) is op.results[0]]


def _flows(op: Op) -> Iterable[tuple[Sequence[Value], Sequence[Value]]]:
    """Values of an op, and those that lie where one of them does."""
    if placed_in(op):
        return
    if op.name == WHILE:
        condition, body = op.regions
        ends = body.terminator.operands
        for operand, tested, carried, end, result in zip(op.operands, condition.arguments, body.arguments, ends, op.results):
            yield (operand, end), (tested, carried, result)
    elif op.name in (CASE, "stablehlo.if"):
        for region in op.regions:
            for end, result in zip(region.terminator.operands, op.results):
                yield (end,), (result,)
    else:
        yield op.operands, op.results
