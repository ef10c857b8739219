"""Inputs and outputs of a plan as a tree by path, for its text and its card."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from shardy_py.ir.pieces import local_bytes
from shardy_py.plan.checks.context import is_replicated
from shardy_py.plan.paths import path_parts
from shardy_py.plan.record import PlanRecord
from shardy_py.plan.values import PlannedValue
from shardy_py.view.text_tree import TreeNode, fitted, joined, repeated, tree_of

if TYPE_CHECKING:
    from shardy_py.ir import Value

Listed = tuple[PlannedValue, "Value"]
"""An input or output, and the value of the program that it is."""


def inputs_of(plan: PlanRecord) -> list[Listed]:
    """The inputs with their values."""
    return list(zip(plan.inputs, plan.program.main.arguments))


def outputs_of(plan: PlanRecord) -> list[Listed]:
    """The outputs with their values."""
    return list(zip(plan.outputs, plan.program.main.body.terminator.operands))


def leaf(plan: PlanRecord, value: PlannedValue, program_value: Value | None = None) -> TreeNode:
    """A line for a value, without its label."""
    # A PRNG key is stored as several numbers.
    type_ = program_value.type if program_value is not None and program_value.type.rank > value.type.rank else value.type
    size = local_bytes(type_, value.sharding, plan.program.meshes)
    return TreeNode("", value.text, size, replicated=bool(value.shape) and is_replicated(value.sharding))


def by_path(plan: PlanRecord, values: Iterable[Listed], depth: int | None = None) -> tuple[TreeNode, ...]:
    """A tree of the leaves of arguments or results, in their order; layers that are alike are one node."""
    return tree_of([(path_parts(value.path), leaf(plan, value, program_value)) for value, program_value in values], depth)


def bytes_of(nodes: Iterable[TreeNode]) -> int:
    """Bytes on one device."""
    return sum(node.bytes * node.times for node in nodes)


def shortened(nodes: Iterable[TreeNode], limit: int | None, seen: dict[tuple[TreeNode, ...], str]) -> list[TreeNode]:
    """The lines of a tree within a limit; subtrees that equal an earlier one are named after it."""
    lines = joined(list(nodes))
    return fitted(repeated(lines, seen) if limit is not None else lines, limit)
