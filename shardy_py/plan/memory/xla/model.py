"""The model of XLA's memory: the program as XLA's steps, and their buffers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from shardy_py.cost.liveness.estimate import Estimate
from shardy_py.cost.liveness.graph import Graph
from shardy_py.cost.liveness.xla.compilers import Compiler
from shardy_py.cost.liveness.xla.estimate import estimate
from shardy_py.ir import Program
from shardy_py.plan.memory.xla.expansions import EXPANSIONS
from shardy_py.plan.memory.xla.floats import widened
from shardy_py.plan.memory.xla.reader import XlaReader


@dataclass(frozen=True, slots=True)
class Xla:
    """XLA's use of memory; see `plan.memory.models.MemoryModel`."""

    compiler: Compiler

    @property
    def name(self) -> str:
        """The compiler's name."""
        return self.compiler.name

    @property
    def title(self) -> str:
        """The compiler's name in texts."""
        return f"as compiled for {self.compiler.title}"

    @property
    def alignment(self) -> int:
        """Of the start of buffers, in bytes."""
        return self.compiler.alignment

    @property
    def error(self) -> float:
        """The part by which peaks were at most below those of compiled programs."""
        return self.compiler.error

    def read(self, program: Program, sums: Sequence[tuple[str, ...]]) -> tuple[Graph, Program]:
        """The graph of what XLA carries out: floats of two bytes are widened, and ops are expanded into steps."""
        originals = None
        if self.compiler.widens:
            program, originals = widened(program)
        graph = XlaReader(program, sums, EXPANSIONS, self.compiler.widens).read()
        if originals is not None:
            graph.origins = {number: originals[value] for number, value in graph.origins.items() if value in originals}
        return graph, program

    def estimate(self, graph: Graph) -> Estimate:
        """Fuses, copies, orders and places the values of a graph as XLA does."""
        return estimate(graph, self.compiler)
