"""Memory of a program from its graph: lifetimes of values, and the bytes alive at each step."""

from __future__ import annotations

from dataclasses import dataclass, replace

from shardy_py.cost.liveness.combine import combine
from shardy_py.cost.liveness.compilers import COMPILERS, Compiler
from shardy_py.cost.liveness.copies import insert_copies
from shardy_py.cost.liveness.fusion import fuse
from shardy_py.cost.liveness.graph import Graph, Node
from shardy_py.cost.liveness.live import Buffer, alive, lives
from shardy_py.cost.liveness.order import from_results, put_in_order
from shardy_py.cost.liveness.packing import into_outputs, packed
from shardy_py.cost.liveness.simplify import simplify
from shardy_py.cost.liveness.stacks import name_stacks


@dataclass(frozen=True, slots=True)
class Estimate:
    """Bytes on one device.

    Attributes:
        argument: Of the arguments.
        output: Of the results.
        alias: Of results that lie in donated arguments.
        temp: Of everything else that lies in memory at the fullest step, with the gaps between.
        buffers: Buffers besides arguments and results, in the order of their first use.
        steps: The nodes as they run; a loop or branch stands in front of its body and behind it.
        series: Bytes of `buffers` that are alive at each step.
    """

    argument: int
    output: int
    alias: int
    temp: int
    buffers: tuple[Buffer, ...]
    steps: tuple[Node, ...]
    series: tuple[int, ...]

    @property
    def fullest(self) -> int:
        """The step at which most is alive; the first of several."""
        return max(range(len(self.series)), key=self.series.__getitem__, default=0)


def estimate(graph: Graph, compiler: Compiler = COMPILERS["cpu"]) -> Estimate:
    """The memory that a compiled program takes.

    Equal nodes are merged, nodes are fused into their readers, loops get the copies that they need, nodes are scheduled, and buffers live
    from the node that makes them to the last that reads them.

    Args:
        graph: Is changed.
        compiler: The compiler to model.
    """
    name_stacks(graph)
    simplify(graph)
    if compiler.order != "program":
        from_results(graph)
    combine(graph)
    fuse(graph)
    insert_copies(graph)
    put_in_order(graph, compiler.order)
    lifetimes = lives(graph)
    kept = into_outputs(lifetimes.buffers)
    at, pointer = compiler.alignment, compiler.pointer
    series = alive([replace(b, bytes=_aligned(b.bytes, at)) for b in kept], len(lifetimes.steps))
    temp = max(series, default=0)
    if len(kept) <= compiler.small_program:
        temp = packed(kept, at)
    temp += sum(_aligned(pointer * entries, at) for entries in lifetimes.tables)
    main = graph.main
    results = sum(graph.bytes[v] for v in main.results) + (pointer * len(main.results) if len(main.results) != 1 else 0)
    return Estimate(
        argument=sum(graph.bytes[v] for v in main.arguments),
        output=results,
        alias=sum(graph.bytes[v] for i, v in enumerate(main.arguments) if i in graph.donated),
        temp=temp,
        buffers=tuple(kept),
        steps=tuple(lifetimes.steps),
        series=tuple(series),
    )


def _aligned(size: int, alignment: int) -> int:
    return -(-size // alignment) * alignment
