"""Values of options of `pipedream`, and profiles, partitions and simulations as lines, and as data for JSON."""

from __future__ import annotations

import math
from dataclasses import asdict
from pathlib import Path
from typing import Any

from shardy_py.cli.errors import CommandError
from shardy_py.cli.progress import progress
from shardy_py.dialect.format import aligned
from shardy_py.errors import ShardyError
from shardy_py.pipedream.partitions.result import Partition
from shardy_py.pipedream.profiles.graph import ProfileGraph, read_graph
from shardy_py.pipelines.simulation import Simulation
from shardy_py.plan.collectives import format_bytes
from shardy_py.plan.cost_analysis import seconds_text


def crossing_of(graph: ProfileGraph) -> list[float]:
    """Bytes that cross the boundary behind each stage but the last, in one direction, each tensor once."""
    from shardy_py.pipedream.partitions.cuts import crossing_bytes, masks_as_rows

    masks = [graph.mask(node.id for node in graph.nodes if (node.stage or 0) <= stage) for stage in range(graph.num_stages - 1)]
    return [float(size) for size in crossing_bytes(graph, masks_as_rows(masks, len(graph)))] if masks else []


def counts(text: str, option: str) -> list[int]:
    """Numbers of things, with commas between.

    Example:
        >>> counts("4,2", "--machines")
        [4, 2]
    """
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and part.isascii() and len(part) < 10 for part in parts):
        raise CommandError(f"{text!r} is no list of whole numbers", where=option, fix=f"write {option} 4,2")
    return [int(part) for part in parts]


def times(text: str | None, option: str) -> float | list[float] | None:
    """One time, or one per stage with commas between; None stays None.

    Example:
        >>> times("2", "--forward"), times("1,2.5", "--forward")
        (2.0, [1.0, 2.5])
    """
    if text is None:
        return None
    try:
        numbers = [float(part) for part in text.split(",")]
    except ValueError:
        raise CommandError(f"{text!r} is no time", where=option, fix=f"write {option} 1.5, or one number per stage: 1,2,1.5") from None
    if not all(math.isfinite(value) and value >= 0 for value in numbers):
        raise CommandError(f"{text!r} holds what is no time", where=option, why="a time is finite and not negative")
    return numbers[0] if len(numbers) == 1 else numbers


def graph_of(file: str) -> ProfileGraph:
    """The graph in a file. Raises CommandError if it is not a graph, OSError if it cannot be read."""
    with progress(f"reading {file}"):
        try:
            text = Path(file).read_text(encoding="utf-8")
        except UnicodeDecodeError:
            raise CommandError(f"{file} is no text", fix="give a graph.txt, as `shardy-py pipedream profile` writes") from None
        try:
            return read_graph(text)
        except ShardyError as error:
            where = ", ".join(filter(None, (file, error.where)))
            raise CommandError(error.what, where=where, why=error.why, fix=error.fix) from error


VERSION = 1


_PROFILE = ("node", "what", "forward", "backward", "output", "parameters")


def profile_text(graph: ProfileGraph, limit: int | None) -> str:
    """A profile as lines, one per node in file order; of more than `limit` those that take longest."""
    nodes = list(graph.nodes)
    if limit is not None and len(nodes) > limit:
        longest = sorted(range(len(nodes)), key=lambda i: (-nodes[i].time_ms, i))[:limit]
        nodes = [nodes[i] for i in sorted(longest)]
    rows = [
        (
            node.id,
            node.description,
            *(seconds_text(time / 1e3) for time in (node.forward_ms, node.backward_ms)),
            *(format_bytes(int(size)) for size in (node.activation_bytes, node.parameter_bytes)),
        )
        for node in nodes
    ]
    more = [] if len(rows) == len(graph) else [f"... and {len(graph) - len(rows):,} nodes that take less"]
    forward, backward = (sum(values) / 1e3 for values in zip(*((n.forward_ms, n.backward_ms) for n in graph.nodes)))
    size = format_bytes(int(sum(node.parameter_bytes for node in graph.nodes)))
    total = f"{len(graph):,} nodes, {seconds_text(forward)} forward, {seconds_text(backward)} backward, {size} of parameters"
    return "\n".join([*aligned([_PROFILE, *rows], right=range(2, len(_PROFILE))), *more, total])


_NODE = ("id", "description", "forward_ms", "backward_ms", "activations", "parameter_bytes")


def profile_data(graph: ProfileGraph, file: str) -> dict[str, Any]:
    """A profile as data."""
    return {
        "format": "shardy_py.stages.profile",
        "version": VERSION,
        "file": file,
        "nodes": [{name: getattr(node, name) for name in _NODE} for node in graph.nodes],
        "edges": [list(edge) for edge in graph.edges],
    }


def partition_data(partition: Partition) -> dict[str, Any]:
    """A partition as data."""
    return {
        "format": "shardy_py.stages.partition",
        "version": VERSION,
        "mode": partition.mode,
        "pipeline_seconds": partition.pipeline_time,
        "lower_bound_seconds": partition.lower_bound,
        "gap": partition.gap,
        "single_seconds": partition.single_time,
        "stages": [{**asdict(stage), "bubble": bubble} for stage, bubble in zip(partition.stages, partition.bubbles)],
        "stage_of": dict(partition.stage_of),
    }


_MESHES = ("mesh", "busy ms", "bubble", "in flight", "until W", "memory")


def simulation_text(result: Simulation, width: int) -> str:
    """A simulation as lines: the picture, and a line per mesh with its busy time, idle share, and the activations that it holds."""
    rows = []
    for mesh in range(result.schedule.meshes):
        busy = sum(span.end - span.start for span in result.spans if span.mesh == mesh)
        idle = 1 - busy / result.makespan if result.makespan else 0.0
        memory = () if result.memory is None else (format_bytes(int(result.memory[mesh])),)
        rows.append((str(mesh), f"{busy:g}", f"{idle:.1%}", str(result.in_flight[mesh]), str(result.stashed[mesh]), *memory))
    return "\n".join([picture(result, width), *aligned([_MESHES[: len(rows[0])], *rows], right=range(len(_MESHES)))])


def picture(result: Simulation, width: int) -> str:
    """The picture, in lines of at most `width` characters."""
    meshes, most = result.schedule.meshes - 1, max(result.in_flight)
    return result.as_text(max(1, width - len(f"mesh {meshes} || in flight {most}")))


def simulation_data(result: Simulation) -> dict[str, Any]:
    """A simulation as data."""
    schedule = result.schedule
    return {
        "format": "shardy_py.stages.simulation",
        "version": VERSION,
        "schedule": schedule.name,
        "meshes": schedule.meshes,
        "microbatches": schedule.microbatches,
        "virtual": schedule.virtual,
        "makespan": result.makespan,
        "bubble": result.bubble,
        "in_flight": list(result.in_flight),
        "stashed": list(result.stashed),
        "memory_bytes": None if result.memory is None else list(result.memory),
        "tasks": [
            {"mesh": s.mesh, "kind": s.task.kind, "stage": s.task.stage, "microbatch": s.task.microbatch, "start": s.start, "end": s.end}
            for s in result.spans
        ],
    }
