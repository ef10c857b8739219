"""Bytes that are alive at each step of a program, from the lifetimes of its buffers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from shardy_py.cost.liveness.graph import Graph, Node
from shardy_py.cost.liveness.live import Buffer, Lives, alive, lives


@dataclass(frozen=True, slots=True)
class HostBytes:
    """Bytes in the host's memory for one device: of arguments, results, results in donated arguments, and temporaries where most lie."""

    argument: int
    output: int
    alias: int
    temp: int


@dataclass(frozen=True, slots=True)
class Estimate:
    """Bytes on one device.

    Attributes:
        argument: Of the arguments that the compiled program has. What lies in the host's memory counts in `host` alone.
        alias: Of results that lie in donated arguments.
        temp: Of everything else that lies in memory at the fullest step, with the gaps between.
        steps: The nodes as they run; a loop or branch stands in front of its body and behind it.
    """

    argument: int
    output: int
    alias: int
    temp: int
    buffers: tuple[Buffer, ...]
    steps: tuple[Node, ...]
    series: tuple[int, ...]
    host: HostBytes

    @property
    def fullest(self) -> int:
        """The step at which most is alive; the first of several."""
        return max(range(len(self.series)), key=self.series.__getitem__, default=0)


def liveness(graph: Graph) -> Estimate:
    """The memory that a program takes if it runs in order, each value in memory from the node that makes it to the last that reads it."""
    lifetimes = lives(graph)
    return estimated(graph, lifetimes, [b for b in lifetimes.buffers if b.role == "temporary"])


def estimated(
    graph: Graph, lifetimes: Lives, temporaries: Sequence[Buffer], temp: int | None = None, alignment: int = 1, pointer: int = 0
) -> Estimate:
    """The figures of buffers with lifetimes; `pointer` bytes are an address in a table of a node's results, 0 without tables."""
    main, host_arguments, host_results = graph.main, graph.host_arguments, graph.host_results
    arguments = [(i, graph.bytes[v]) for i, v in enumerate(main.arguments) if i not in graph.dropped]
    results = [(i, graph.bytes[v]) for i, v in enumerate(main.results)]
    aliased = [(i, size) for i, size in arguments if i in graph.donated]
    in_host = alive([b for b in lifetimes.buffers if b.role == "host"], len(lifetimes.steps))
    series = alive([replace(b, bytes=aligned(b.bytes, alignment)) for b in temporaries], len(lifetimes.steps))
    tables = sum(aligned(pointer * entries, alignment) for entries in lifetimes.tables)
    return Estimate(
        argument=sum(size for i, size in arguments if i not in host_arguments),
        output=sum(size for i, size in results if i not in host_results) + (pointer * len(results) if len(results) != 1 else 0),
        alias=sum(size for i, size in aliased if i not in host_arguments),
        temp=(max(series, default=0) if temp is None else temp) + tables,
        buffers=tuple(temporaries),
        steps=tuple(lifetimes.steps),
        series=tuple(series),
        host=HostBytes(
            argument=sum(size for i, size in arguments if i in host_arguments),
            output=sum(size for i, size in results if i in host_results),
            alias=sum(size for i, size in aliased if i in host_arguments),
            temp=max(in_host, default=0),
        ),
    )


def aligned(size: int, alignment: int) -> int:
    """The multiple of an alignment that a size takes."""
    return -(-size // alignment) * alignment
