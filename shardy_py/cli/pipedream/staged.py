"""The stages of a graph with stage ids."""

from __future__ import annotations

from shardy_py.pipedream.profiles.graph import ProfileGraph, ProfileNode


def members_of(graph: ProfileGraph) -> list[list[ProfileNode]]:
    """The nodes of each stage, in file order; raises GraphError if only some nodes have a stage id, or a number is missing."""
    return [[node for node in graph.nodes if node.stage == stage] for stage in range(graph.num_stages)]


def crossing_of(graph: ProfileGraph) -> list[float]:
    """Bytes that cross the boundary behind each stage but the last, in one direction, each tensor once."""
    from shardy_py.pipedream.partitions.cuts import crossing_bytes, masks_as_rows

    members = members_of(graph)
    masks = [graph.mask(node.id for nodes in members[: stage + 1] for node in nodes) for stage in range(len(members) - 1)]
    return [float(size) for size in crossing_bytes(graph, masks_as_rows(masks, len(graph)))] if masks else []
