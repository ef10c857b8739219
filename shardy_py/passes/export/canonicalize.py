"""Simplifies a program as MLIR's canonicalizer does with the patterns of the SDY dialect."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from shardy_py.ir import Block, Op, Program
from shardy_py.passes.base import UNUSED, Pass, option
from shardy_py.passes.export.canonicalization import collectives
from shardy_py.passes.export.canonicalization import manual_computations
from shardy_py.passes.export.canonicalization import reshards
from shardy_py.passes.export.canonicalization.rewriting import Pattern, erase
from shardy_py.passes.pipeline_text import FUNCTION
from shardy_py.passes.propagation.log import Log
from shardy_py.passes.walk import blocks_in
from shardy_py.rules import is_pure

RESHARDS = "sdy-reshard"
COLLECTIVES = "sdy-collective"

_Patterns = dict[str, tuple[Pattern, ...]]


@dataclass(frozen=True, kw_only=True)
class Canonicalize(Pass):
    """Simplifies reshards, collectives and manual computations, and removes dead ops."""

    name = "canonicalize"
    anchor = FUNCTION

    enable_patterns: tuple[str, ...] = option((), "labels of the patterns to apply; all without")
    disable_patterns: tuple[str, ...] = option((), UNUSED)
    max_iterations: int = option(10, UNUSED)
    max_num_rewrites: int = option(-1, UNUSED)
    region_simplify: str = option("normal", UNUSED, choices=("disabled", "normal", "aggressive"))
    top_down: bool = option(True, UNUSED)
    test_convergence: bool = option(False, UNUSED)
    cse_between_iterations: bool = option(False, UNUSED)

    def run(self, program: Program, log: Log | None = None) -> None:
        """Applies patterns and removes dead ops until nothing changes.

        Patterns of other dialects and the folding and merging of constants are left out.

        The patterns have the labels `sdy-reshard` and `sdy-collective`; the export pipeline takes `("sdy-collective",)`. Without labels,
        the patterns that have none apply too. Dead ops go in any case.

        Source: MLIR's Canonicalizer.cpp, and Shardy's patterns in ir/canonicalization.
        """
        tables = LABELLED.values() if not self.enable_patterns else [LABELLED[label] for label in LABELLED if label in self.enable_patterns]
        patterns = _joined(tables if self.enable_patterns else (*tables, *UNLABELLED))
        for function in program.functions:
            driver = _Driver(program, patterns)
            while driver.sweep(function.body):
                pass


class _Driver:
    def __init__(self, program: Program, patterns: _Patterns) -> None:
        self.program = program
        self.patterns = patterns

    def sweep(self, body: Block) -> bool:
        """Visits every op once, and again while it changes; returns whether anything has changed."""
        changed = False
        for block in blocks_in(body):
            for op in list(block.ops):
                if op.results and op.results[0].uses and op.name not in self.patterns:
                    continue
                while op.block is block and self.visit(op):
                    changed = True
        if changed:
            for block in blocks_in(body):
                block.ops = [op for op in block.ops if op.block is not None]
        return changed

    def visit(self, op: Op) -> bool:
        """Erases an op if it is dead, with operands that die with it; else applies the first pattern that matches."""
        if _is_dead(op):
            self.erase(op)
            return True
        operands = list(op.operands)
        if not any(pattern(op, self.program) for pattern in self.patterns.get(op.name, ())):
            return False
        for operand in operands:
            if operand.defining_op is not None and operand.defining_op.block is not None and _is_dead(operand.defining_op):
                self.erase(operand.defining_op)
        return True

    def erase(self, op: Op) -> None:
        """Erases a dead op, and what only it has used."""
        dead = [op]
        seen = {op}
        for current in dead:
            operands = [operand for inner in current.walk() for operand in inner.operands]
            erase(current)
            for operand in operands:
                definition = operand.defining_op
                if definition is not None and definition.block is not None and definition not in seen and _is_dead(definition):
                    seen.add(definition)
                    dead.append(definition)


def _is_dead(op: Op) -> bool:
    return not any(result.uses for result in op.results) and is_pure(op)


def _joined(tables: Iterable[_Patterns]) -> _Patterns:
    joined: _Patterns = {}
    for table in tables:
        for name, patterns in table.items():
            joined[name] = (*joined.get(name, ()), *patterns)
    return joined


LABELLED: Mapping[str, _Patterns] = {
    RESHARDS: reshards.LABELLED,
    COLLECTIVES: collectives.COLLECTIVE_PATTERNS,
}
"""Label -> op name -> patterns in the order in which they are tried."""

UNLABELLED: Sequence[_Patterns] = (reshards.UNLABELLED, manual_computations.MANUAL_PATTERNS)
