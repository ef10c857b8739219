"""A partition: its stages, their costs, and a bound on how much better another could be."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from shardy_py.dialect.format import aligned
from shardy_py.pipedream.profiles.graph import ProfileGraph


@dataclass(frozen=True)
class LevelStage:
    """A stage on one level of machines, as PipeDream prints it, from cut `start` (0 is the beginning) to cut `end`."""

    start: int
    end: int
    seconds: float
    replication: int


@dataclass(frozen=True)
class PartitionStage:
    """The costs of one stage.

    Args:
        bytes_in: Bytes that cross the boundary before it, in one direction, each tensor once.
        in_flight: Minibatches whose activations it keeps under 1F1B, the current one included.
        memory_bytes: `in_flight` times the activations, and parameters with gradients and the two moments of Adam.
    """

    nodes: tuple[str, ...]
    replication: int
    seconds: float
    bytes_in: float
    bytes_out: float
    activation_bytes: float
    parameter_bytes: float
    in_flight: int
    memory_bytes: float


@dataclass(frozen=True, repr=False)
class Partition:
    """A graph divided into pipeline stages.

    Args:
        graph: The graph, every node with its stage id.
        stages: The stages, in order.
        pipeline_time: Seconds per minibatch in the steady state: the slowest stage.
        lower_bound: Seconds below which no partition can be; equal to `pipeline_time` if all cuts were searched.
        levels: The stages on each level of machines, outermost first.
        mode: "pipedream" or "exact".

    Example:
        >>> from shardy_py.pipedream import ProfileGraph, ProfileNode, partition
        >>> layers = tuple(ProfileNode(i, "Linear", 1.0, 2.0, (4e6,), 4e6) for i in "abcd")
        >>> found = partition(ProfileGraph(layers, (("a", "b"), ("b", "c"), ("c", "d"))), machines=[2], straight=True)
        >>> found.stage_of, found.pipeline_time
        ({'a': 0, 'b': 0, 'c': 1, 'd': 1}, 0.006)
    """

    graph: ProfileGraph
    stages: tuple[PartitionStage, ...]
    pipeline_time: float
    lower_bound: float
    levels: tuple[tuple[LevelStage, ...], ...]
    mode: str

    @property
    def stage_of(self) -> Mapping[str, int]:
        """The stage of every node, by id."""
        return {node.id: node.stage for node in self.graph.nodes if node.stage is not None}

    @property
    def num_stages(self) -> int:
        """The number of stages."""
        return len(self.stages)

    @property
    def replication(self) -> tuple[int, ...]:
        """The number of machines each stage runs on."""
        return tuple(stage.replication for stage in self.stages)

    def marked(self, function: Callable[..., Any], parameters: int | Sequence[int] = 0) -> Callable[..., Any]:
        """The function that was profiled, with these stages marked: `shardy_py.pipedream.marked`."""
        return self.graph.marked(function, parameters)

    @property
    def bubbles(self) -> tuple[float, ...]:
        """The part of the time in which the machines of each stage do not compute, in the steady state: they wait, or transfer."""
        return tuple(
            max(0.0, 1 - stage.seconds / stage.replication / self.pipeline_time) if self.pipeline_time else 0.0 for stage in self.stages
        )

    @property
    def gap(self) -> float:
        """Share of time by which this may be slower than the best partition: 0 if it is the best, 0.1 for at most a tenth."""
        return 0.0 if self.pipeline_time <= self.lower_bound else 1 - self.lower_bound / self.pipeline_time

    @property
    def single_time(self) -> float:
        """Seconds per minibatch on one machine."""
        return sum(stage.seconds for stage in self.stages)

    def as_text(self) -> str:
        """A table with one line per stage."""
        head = ("stage", "machines", "nodes", "time ms", "MB in", "MB out", "param MB", "in flight", "memory MB", "bubble")
        rows: list[tuple[str, ...]] = [head]
        for number, (stage, bubble) in enumerate(zip(self.stages, self.bubbles)):
            sizes = (stage.bytes_in, stage.bytes_out, stage.parameter_bytes)
            rows.append(
                (
                    str(number),
                    str(stage.replication),
                    str(len(stage.nodes)),
                    f"{stage.seconds * 1e3:.3f}",
                    *(f"{size / 1e6:.1f}" for size in sizes),
                    str(stage.in_flight),
                    f"{stage.memory_bytes / 1e6:.1f}",
                    f"{bubble:.1%}",
                )
            )
        return "\n".join([*aligned(rows, right=range(len(head))), self.summary()])

    def summary(self) -> str:
        """The time of the pipeline and of one machine, and whether a better partition can exist, in a line."""
        machines = sum(self.replication)
        times = f"{self.pipeline_time * 1e3:.3f} ms per minibatch on {machines} machines, {self.single_time * 1e3:.3f} ms on one"
        best = "no partition is better" if self.mode == "exact" else "PipeDream finds none that is better"
        return f"{times}; {best if not self.gap else f'none can be below {self.lower_bound * 1e3:.3f} ms (gap {self.gap:.1%})'}"

    def __str__(self) -> str:
        return self.as_text()

    def __repr__(self) -> str:
        return f"<Partition: {len(self.stages)} stages on {sum(self.replication)} machines, {self.pipeline_time * 1e3:.3f} ms>"
