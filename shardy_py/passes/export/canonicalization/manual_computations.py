"""Patterns for manual computations."""

from __future__ import annotations

from shardy_py.dialect import TensorSharding
from shardy_py.ir import Block, Op, Program
from shardy_py.passes.export.canonicalization.rewriting import Pattern, erase


def drop_unused_inputs(op: Op, program: Program) -> bool:
    """Removes operands that the body does not use."""
    body = op.regions[0]
    used = [bool(argument.uses) for argument in body.arguments]
    if all(used):
        return False
    operands = [operand for operand, keep in zip(op.operands, used, strict=True) if keep]
    for i, operand in enumerate(op.operands):
        del operand.uses[op, i]
    op.operands = []
    for operand in operands:
        op.append_operand(operand)
    _drop_arguments(body, used)
    shardings: tuple[TensorSharding, ...] = op.attributes["in_shardings"] or ()
    op.attributes = {**op.attributes, "in_shardings": tuple(s for s, keep in zip(shardings, used, strict=True) if keep)}
    return True


def _drop_arguments(body: Block, used: list[bool]) -> None:
    body.arguments = [argument for argument, keep in zip(body.arguments, used, strict=True) if keep]
    for i, argument in enumerate(body.arguments):
        argument.index = i


def drop_empty(op: Op, program: Program) -> bool:
    """Removes a computation that takes, does and returns nothing."""
    if op.operands or op.results or len(op.regions[0].ops) > 1:
        return False
    erase(op)
    return True


MANUAL_PATTERNS: dict[str, tuple[Pattern, ...]] = {"sdy.manual_computation": (drop_unused_inputs, drop_empty)}
