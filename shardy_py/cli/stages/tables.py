"""Profiles, partitions and simulations as tables for a terminal, as lines, and as data for JSON."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from rich.console import RenderableType
from rich.text import Text

from shardy_py.cli.output import table
from shardy_py.cli.stages.staged import crossing_of, members_of
from shardy_py.dialect.format import aligned
from shardy_py.plan.cost_analysis import seconds_text
from shardy_py.plan.movements import format_bytes
from shardy_py.stages.partitions.result import Partition
from shardy_py.stages.profiles.graph import ProfileGraph
from shardy_py.stages.schedules.simulation import Simulation

VERSION = 1

_PICTURE = {"cyan": r"\d", "yellow": "[a-j]", "green": "w", "dim": r"\."}
# Stages that idle longer than these are red and yellow.
_LONG, _SOME = 0.5, 0.25
# Terminals with fewer columns show less of a partition.
_WIDE = 92


_PROFILE = ("node", "what", "forward", "backward", "output", "parameters")


def profile_rows(graph: ProfileGraph, limit: int | None) -> list[tuple[str, ...]]:
    """A line per node, in file order; of more than `limit` those that take longest."""
    nodes = list(graph.nodes)
    if limit is not None and len(nodes) > limit:
        longest = sorted(range(len(nodes)), key=lambda i: (-nodes[i].time_ms, i))[:limit]
        nodes = [nodes[i] for i in sorted(longest)]
    return [
        (
            node.id,
            node.description,
            seconds_text(node.forward_ms / 1e3),
            seconds_text(node.backward_ms / 1e3),
            format_bytes(int(node.activation_bytes)),
            format_bytes(int(node.parameter_bytes)),
        )
        for node in nodes
    ]


def profile_total(graph: ProfileGraph) -> str:
    """All of a profile in a line."""
    forward, backward = (sum(values) / 1e3 for values in zip(*((n.forward_ms, n.backward_ms) for n in graph.nodes)))
    size = format_bytes(int(sum(node.parameter_bytes for node in graph.nodes)))
    return f"{len(graph):,} nodes, {seconds_text(forward)} forward, {seconds_text(backward)} backward, {size} of parameters"


def profile_text(graph: ProfileGraph, limit: int | None) -> str:
    """A profile as lines."""
    rows = profile_rows(graph, limit)
    more = [] if len(rows) == len(graph) else [f"... and {len(graph) - len(rows):,} nodes that take less"]
    return "\n".join([*aligned([_PROFILE, *rows], right=range(2, len(_PROFILE))), *more, profile_total(graph)])


def profile_table(graph: ProfileGraph, title: str, limit: int) -> Iterator[RenderableType]:
    """A profile for a terminal."""
    rows = profile_rows(graph, limit)
    yield table(title, ("node", "what*", "forward>", "backward>", "output>", "parameters>"), rows)
    if len(rows) < len(graph):
        yield Text(f"... and {len(graph) - len(rows):,} nodes that take less", "dim")
    yield profile_total(graph)


def profile_data(graph: ProfileGraph, file: str) -> dict[str, Any]:
    """A profile as data."""
    return {
        "format": "shardy_py.stages.profile",
        "version": VERSION,
        "file": file,
        "nodes": [
            {
                "id": node.id,
                "description": node.description,
                "forward_ms": node.forward_ms,
                "backward_ms": node.backward_ms,
                "activations": list(node.activations),
                "parameter_bytes": node.parameter_bytes,
            }
            for node in graph.nodes
        ],
        "edges": [list(edge) for edge in graph.edges],
    }


_STAGES = ("stage", "nodes", "forward", "backward", "in", "out", "parameters")


def stage_rows(graph: ProfileGraph) -> list[tuple[str, ...]]:
    """A line per stage of a graph with stage ids: times, bytes in and out, parameters."""
    members = members_of(graph)
    crossing = [0.0, *crossing_of(graph), 0.0]
    rows = []
    for stage, nodes in enumerate(members):
        times = (sum(node.forward_ms for node in nodes), sum(node.backward_ms for node in nodes))
        sizes = (crossing[stage], crossing[stage + 1], sum(node.parameter_bytes for node in nodes))
        figures = (*(seconds_text(time / 1e3) for time in times), *(format_bytes(int(size)) for size in sizes))
        rows.append((str(stage), str(len(nodes)), *figures))
    return rows


def stage_text(graph: ProfileGraph) -> str:
    """The stages of a graph as lines."""
    return "\n".join(aligned([_STAGES, *stage_rows(graph)], right=range(len(_STAGES))))


def stage_table(graph: ProfileGraph, title: str) -> RenderableType:
    """The stages of a graph for a terminal."""
    return table(title, [f"{head}>" for head in _STAGES], stage_rows(graph))


def partition_table(partition: Partition, title: str, width: int) -> Iterator[RenderableType]:
    """A partition for a terminal of `width` columns; stages that idle much stand out."""
    rows: list[tuple[str | Text, ...]] = []
    for number, (stage, bubble) in enumerate(zip(partition.stages, partition.bubbles)):
        sizes = (stage.bytes_in, stage.bytes_out, stage.parameter_bytes, stage.memory_bytes)
        moved_in, moved_out, parameters, memory = (format_bytes(int(size)) for size in sizes)
        style = "bold red" if bubble > _LONG else "yellow" if bubble > _SOME else "green"
        nodes = (str(len(stage.nodes)),) if width >= _WIDE else ()
        cells = (str(number), str(stage.replication), *nodes, seconds_text(stage.seconds), moved_in, moved_out, parameters)
        rows.append((*cells, str(stage.in_flight), memory, Text(f"{bubble:.1%}", style)))
    heads = ("time>", "in>", "out>", "params>", "held>", "memory>", "bubble>")
    yield table(title, ("stage>", "on>", *(("nodes>",) if width >= _WIDE else ()), *heads), rows, tight=width < _WIDE)
    yield partition.summary()


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


def mesh_rows(result: Simulation) -> list[tuple[str, ...]]:
    """A line per mesh: busy time, idle share, activations that it holds."""
    rows = []
    for mesh in range(result.schedule.meshes):
        busy = sum(span.end - span.start for span in result.spans if span.mesh == mesh)
        idle = 1 - busy / result.makespan if result.makespan else 0.0
        memory = () if result.memory is None else (format_bytes(int(result.memory[mesh])),)
        rows.append((str(mesh), f"{busy:g}", f"{idle:.1%}", str(result.in_flight[mesh]), str(result.stashed[mesh]), *memory))
    return rows


def simulation_text(result: Simulation, width: int) -> str:
    """A simulation as lines: the picture, and a line per mesh."""
    rows = mesh_rows(result)
    return "\n".join([picture(result, width), *aligned([_MESHES[: len(rows[0])], *rows], right=range(len(_MESHES)))])


def simulation_table(result: Simulation, width: int) -> Iterator[RenderableType]:
    """A simulation for a terminal."""
    head, _, lines = picture(result, width).partition("\n")
    yield Text(head, "bold")
    for line in lines.splitlines():
        before, bar, rest = line.partition("|")
        drawn, _, behind = rest.partition("|")
        coloured = Text(drawn)
        for style, letters in _PICTURE.items():
            coloured.highlight_regex(letters, style)
        yield Text.assemble(f"{before}{bar}", coloured, f"|{behind}")
    yield Text("digits: forward, letters: backward, w: gradients of weights, by microbatch", "dim")
    yield ""
    rows = mesh_rows(result)
    yield table("meshes", [f"{head}>" for head in _MESHES[: len(rows[0])]], rows)


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
