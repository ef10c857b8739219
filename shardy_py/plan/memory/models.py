"""Models of the use that compilers make of memory.

All stand on one floor: the graph of one device (`reader`, `cost/liveness/graph`), and lifetimes on it (`cost/liveness/live`). A model says
which nodes a compiler makes of the ops of a program, and what it does to them before it runs them. `Liveness` is the floor alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from shardy_py.cost.liveness.estimate import Estimate, liveness
from shardy_py.cost.liveness.graph import Graph
from shardy_py.cost.liveness.xla.compilers import COMPILERS
from shardy_py.errors import ShardyError
from shardy_py.ir import Program
from shardy_py.plan.memory.reader import Reader
from shardy_py.plan.memory.xla.model import Xla


class CompilerError(ShardyError):
    """An unknown compiler."""


class MemoryModel(Protocol):
    """A compiler's use of memory."""

    @property
    def name(self) -> str:
        """The name for `Plan.memory_analysis(compiler=)`."""
        ...

    @property
    def title(self) -> str:
        """The model in texts, as in `memory of f per device, as compiled for a cpu`."""
        ...

    @property
    def alignment(self) -> int:
        """Of the start of buffers, in bytes."""
        ...

    @property
    def error(self) -> float:
        """The part by which peaks were at most below those of compiled programs, by docs/memory.md."""
        ...

    def read(self, program: Program, sums: Sequence[tuple[str, ...]]) -> tuple[Graph, Program]:
        """The graph of what one device carries out, and the program that its nodes come from."""
        ...

    def estimate(self, graph: Graph) -> Estimate:
        """The memory that a graph takes."""
        ...


@dataclass(frozen=True, slots=True)
class Liveness:
    """Every op a node, every value in memory from the op that makes it to the last that reads it, in program order.

    Compilers fuse, which takes less, and copy, which takes more; this is common to all, and each buffer is a value of the program.
    """

    name: str = "liveness"
    title: str = "by liveness alone"
    alignment: int = 1
    error: float = 0.2

    def read(self, program: Program, sums: Sequence[tuple[str, ...]]) -> tuple[Graph, Program]:
        """See `MemoryModel.read`."""
        return Reader(program, sums).read(), program

    def estimate(self, graph: Graph) -> Estimate:
        """See `MemoryModel.estimate`."""
        return liveness(graph)


_ALL: tuple[MemoryModel, ...] = (*map(Xla, COMPILERS.values()), Liveness())
MODELS: Mapping[str, MemoryModel] = {model.name: model for model in _ALL}
"""Name -> model; that of another compiler is one more."""


def model(name: str) -> MemoryModel:
    """A model by name. Raises CompilerError if there is none of that name.

    Example:
        >>> model("cpu").title
        'as compiled for a cpu'
    """
    match = MODELS.get(name)
    if match is None:
        raise CompilerError(
            f"unknown compiler {name!r}", where="memory_analysis", why=f"known are {', '.join(MODELS)}", fix="use one of these names"
        )
    return match
