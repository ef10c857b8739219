"""Dividing a profile graph into pipeline stages."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from shardy_py.cost.quantity import quantity
from shardy_py.errors import ShardyError
from shardy_py.pipedream.partitions.cuts import Cuts, crossing_bytes, masks_as_rows, optimized_part
from shardy_py.pipedream.partitions.levels import PARAMETER_COPIES, CutSolution, Machines, Rules, solve
from shardy_py.pipedream.partitions.result import LevelStage, Partition, PartitionStage
from shardy_py.pipedream.partitions.search import search
from shardy_py.pipedream.profiles.graph import ProfileGraph, positions

MODES = ("pipedream", "exact")


class PartitionError(ShardyError):
    """A graph that cannot be divided as asked: more stages than ops, or a stage that does not fit in memory."""


def partition(
    graph: ProfileGraph,
    machines: int | Sequence[int] = (4,),
    bandwidths: float | Sequence[float] = (1e9,),
    mode: str = "pipedream",
    activation_compression: float | None = None,
    straight: bool = False,
    use_fewer_machines: bool = False,
    memory_bytes: float | str | None = None,
) -> Partition:
    """Divides a profile graph into the pipeline stages whose slowest is fastest.

    Mode "pipedream" answers as PipeDream's optimizer_graph_hierarchical.py does, to the last digit of the predicted time,
    faults included. Mode "exact" keeps its cost model and mends it: a tensor that crosses a boundary counts once, also what the
    first stage sends takes time, parameter sums between servers share the machines of a server everywhere, memory is that of
    1F1B with gradients and Adam's moments, and all cuts are tried also of graphs with several sources. Of equally fast
    partitions both take the one that sends the fewest bytes.

    Graphs with too many cuts to try them all are searched within bounds; `Partition.gap` says how far off the answer may be.

    Args:
        graph: The profile; times in milliseconds, sizes in bytes. Nodes described as `Input...` go first, whatever they cost.
        machines: Number of machines on each level, innermost first: `[4, 2]` is 4 GPUs in each of 2 servers. One number for one level.
        bandwidths: Bytes per second between the machines of each level.
        mode: "pipedream" or "exact".
        activation_compression: Divisor of the bytes of activations when they are sent. 1 counts them as they are; None, as
            PipeDream's default, leaves their transfer out of the time.
        straight: Whether no stage may be replicated.
        use_fewer_machines: Whether machines may be left unused.
        memory_bytes: Bytes of memory of one machine, a number or `"80GiB"`; None for no limit.

    Returns:
        The partition: `pipeline_time` in seconds per minibatch, `stage_of`, `replication`, `graph` with stage ids.

    Raises:
        PartitionError: If there are more stages than ops, or no partition fits in memory.
        ShardyError: If an argument is out of range.
        TypeError: If an argument is of another type.

    Example:
        >>> from shardy_py.pipedream import ProfileGraph, ProfileNode
        >>> layers = tuple(ProfileNode(id, "Linear", 1.0, 2.0, (4e6,), 4e6) for id in "abcd")
        >>> graph = ProfileGraph(layers, (("a", "b"), ("b", "c"), ("c", "d")))
        >>> print(partition(graph, machines=[2], mode="exact", activation_compression=1, straight=True))
        stage  machines  nodes  time ms  MB in  MB out  param MB  in flight  memory MB  bubble
            0         1      2    6.000    0.0     4.0       8.0          2       48.0   25.0%
            1         1      2    6.000    4.0     0.0       8.0          1       40.0   25.0%
        8.000 ms per minibatch on 2 machines, 12.000 ms on one; no partition is better
    """
    if not isinstance(graph, ProfileGraph):
        raise TypeError(f"partition takes a ProfileGraph, not {type(graph).__name__}; read one with `read_graph(text)`")
    hardware = _machines(machines, bandwidths)
    if mode not in MODES:
        raise ShardyError(f"unknown mode {mode!r}", where="argument mode", fix='use "pipedream" or "exact"')
    _positive(activation_compression, "activation_compression", "a divisor of bytes, or None to leave transfers out")
    memory_bytes = None if memory_bytes is None else quantity(memory_bytes, "argument memory_bytes")
    _positive(memory_bytes, "memory_bytes", "bytes of one machine, or None for no limit")
    part = optimized_part(graph)
    if not len(part):
        raise PartitionError("there is nothing to divide", where=f"a graph of {len(graph)} nodes, all of them inputs", fix="add an op")
    if straight and not use_fewer_machines and hardware.total > len(part):
        raise PartitionError(
            f"{hardware.total} stages, but only {len(part)} ops",
            where="a straight pipeline, which has one stage per machine",
            fix="use fewer machines, pass use_fewer_machines=True, or allow replication",
        )
    rules = Rules(mode == "exact", activation_compression, straight, use_fewer_machines, memory_bytes)
    result = _searched(graph, part, rules, hardware)
    for number, stage in enumerate(result.stages):
        # PipeDream asks nothing of its last stage; no one can run what has no room for its weights.
        if memory_bytes is not None and stage.parameter_bytes > memory_bytes:
            raise _does_not_fit(number, stage, stage.parameter_bytes, memory_bytes, "for its weights alone")
    return result


def _searched(graph: ProfileGraph, part: ProfileGraph, rules: Rules, machines: Machines) -> Partition:
    solution, lowest = search(part, rules, machines)
    if math.isinf(solution.seconds):
        raise _too_big(part, solution.cuts, rules, machines) if rules.memory is not None else _no_pipeline(part, machines)
    return _result(graph, part, solution, lowest, "exact" if rules.exact else "pipedream")


def _machines(machines: int | Sequence[int], bandwidths: float | Sequence[float]) -> Machines:
    machines = machines if isinstance(machines, Sequence | np.ndarray) else (machines,)
    bandwidths = bandwidths if isinstance(bandwidths, Sequence | np.ndarray) else (bandwidths,)
    try:
        counts = tuple(0 if isinstance(count, bool) else operator.index(count) for count in machines)
    except TypeError:
        counts = (0,) * len(machines)
    for rate in bandwidths:
        _positive(rate, "bandwidths", "bytes per second")
    rates = tuple(map(float, bandwidths))
    if not counts or len(counts) != len(rates):
        raise ShardyError(f"{len(counts)} levels of machines, but {len(rates)} bandwidths", fix="give one bandwidth for each level")
    if min(counts) < 1:
        raise ShardyError(f"{list(machines)} are not numbers of machines", where="argument machines", fix="use integers from 1")
    return Machines(counts, rates)


def _positive(value: float | None, name: str, what: str) -> None:
    if value is not None and not isinstance(value, int | float | np.number):
        raise TypeError(f"{name} is a number, not {type(value).__name__}: {what}")
    if value is not None and not (math.isfinite(value) and value > 0):
        raise ShardyError(f"{name} is {value}", where=f"argument {name}", why=f"it is {what}: positive and finite")


def _result(graph: ProfileGraph, part: ProfileGraph, solution: CutSolution, lowest: float, mode: str) -> Partition:
    placed: dict[str, int] = {}
    replication: list[int] = []
    for segment, copies in zip(solution.levels[-1], solution.replication):
        new = [id for id in part.ids(solution.cuts.downsets[segment.end]) if id not in placed]
        if new:
            placed.update(dict.fromkeys(new, len(replication)))
            replication.append(copies)
    stage_of = _complete(graph, placed)
    divided = graph.with_stages(stage_of)
    seconds = [0.0, *map(float, solution.cuts.seconds)]
    levels = tuple(
        tuple(LevelStage(s.start, s.end + 1, seconds[s.end + 1] - seconds[s.start], s.width) for s in level) for level in solution.levels
    )
    stages = _stages(part, [divided[node.id].stage or 0 for node in part.nodes], tuple(replication), divided)
    return Partition(divided, stages, solution.seconds, min(lowest, solution.seconds), levels, mode)


def _complete(graph: ProfileGraph, placed: dict[str, int]) -> dict[str, int]:
    """Stages of all nodes: inputs go first, and nodes that the optimizer left out to their operands."""
    stage_of: dict[str, int] = {}
    for node in graph.order:
        id = graph.nodes[node].id
        before = max((stage_of[graph.nodes[operand].id] for operand in graph.operands[node]), default=0)
        stage_of[id] = placed.get(id, before)
    return stage_of


def _stages(part: ProfileGraph, stage_of: Sequence[int], replication: tuple[int, ...], divided: ProfileGraph) -> tuple[PartitionStage, ...]:
    masks = [sum(1 << node for node, stage in enumerate(stage_of) if stage <= number) for number in range(len(replication))]
    crossing = [0.0, *(float(size) for size in crossing_bytes(part, masks_as_rows(masks, len(part))))]
    members = [[node.id for node in divided.nodes if node.stage == number] for number in range(len(replication))]
    stages = []
    for number, copies in enumerate(replication):
        nodes = [part.nodes[i] for i in positions(masks[number] & ~(masks[number - 1] if number else 0))]
        activations = sum(node.activation_bytes for node in nodes)
        parameters = sum(node.parameter_bytes for node in nodes)
        flight = -(-sum(replication[number + 1 :]) // copies) + 1
        memory = flight * activations + PARAMETER_COPIES * parameters
        seconds = math.fsum(node.time_ms for node in nodes) / 1000.0
        bytes_in, bytes_out = crossing[number], crossing[number + 1]
        stages.append(PartitionStage(tuple(members[number]), copies, seconds, bytes_in, bytes_out, activations, parameters, flight, memory))
    return tuple(stages)


def _too_big(part: ProfileGraph, cuts: Cuts, rules: Rules, machines: Machines) -> PartitionError:
    """Names the stage that is too big in the partition that needs the least memory."""
    memory = rules.memory or 0.0
    least = _least(cuts, rules, machines)
    roomy = solve(cuts, replace(rules, memory=least), machines)
    if math.isinf(roomy.seconds):
        return _no_pipeline(part, machines)
    stages = _result(part, part, roomy, 0.0, "exact").stages
    # PipeDream's rule asks for nothing but what is kept for minibatches in flight in later stages.
    theirs = [(stage.in_flight - 1) * (stage.activation_bytes + stage.parameter_bytes) for stage in stages]
    needed = [stage.memory_bytes for stage in stages] if rules.exact else theirs
    worst = needed.index(max(needed))
    return _does_not_fit(worst, stages[worst], max(least, needed[worst]), memory, "in the partition that needs the least")


def _least(cuts: Cuts, rules: Rules, machines: Machines) -> float:
    """The fewest bytes with which there is a partition, to seven digits."""
    most = (machines.total + 1) * float(cuts.activations[-1]) + PARAMETER_COPIES * float(cuts.parameters[-1])
    low, high = min(rules.memory or 0.0, most), most
    while high > low * (1 + 1e-7):
        middle = math.sqrt(low * high)
        if math.isinf(solve(cuts, replace(rules, memory=middle), machines).seconds):
            low = middle
        else:
            high = middle
    return high


def _does_not_fit(number: int, stage: PartitionStage, needed: float, memory: float, when: str) -> PartitionError:
    ends = " to ".join(map(repr, dict.fromkeys((stage.nodes[0], stage.nodes[-1]))))
    return PartitionError(
        f"stage {number} does not fit in memory: it needs {needed / 1e9:.3f} GB {when}, a machine has {memory / 1e9:.3f} GB, "
        f"{(needed - memory) / 1e9:.3f} GB too few",
        where=f"stage {number} with {len(stage.nodes)} nodes, {ends}, on {stage.replication} machine{'s' * (stage.replication > 1)}",
        why=f"{stage.activation_bytes / 1e9:.3f} GB of activations per minibatch, {stage.in_flight} in flight, "
        f"{stage.parameter_bytes / 1e9:.3f} GB of parameters",
        fix="use more machines or smaller minibatches",
    )


def _no_pipeline(part: ProfileGraph, machines: Machines) -> PartitionError:
    return PartitionError(
        f"no pipeline of {len(part)} ops uses exactly {machines.total} machines as asked",
        fix="pass use_fewer_machines=True, or allow replication",
    )
