"""Meshes in the replica groups of StableHLO collectives, which a program keeps as MLIR text."""

from __future__ import annotations

import re
from collections.abc import Callable

from shardy_py.dialect import Mesh

MESH_AXES = "#stablehlo.replica_group_mesh_axes<"
"""The beginning of the text of replica groups that are axes of a mesh."""

_MESH = re.compile(
    r'mesh = (?:@(?:"(?P<quoted>[^"]*)"|(?P<name>[\w.$-]+))'
    r"|#stablehlo\.mesh<axes ?= ?\[(?P<axes>[^\]]*)\](?:, device_ids ?= ?dense<\[?(?P<ids>[^\]>]*)\]?> : tensor<[^>]*>)?>)"
)
_AXIS = re.compile(r'<name = "([^"]*)", size = (\d+)>')


def replace_meshes(text: str, name_of: Callable[[str | Mesh], str]) -> str:
    """The text with every mesh of a replica group replaced by a reference.

    Example:
        >>> inlined = 'mesh = #stablehlo.mesh<axes=[<name = "x", size = 4>]>'
        >>> replace_meshes(MESH_AXES + inlined + ", axes = []>", lambda mesh: "m")
        '#stablehlo.replica_group_mesh_axes<mesh = @m, axes = []>'
    """
    parts = text.split(MESH_AXES)
    return MESH_AXES.join([parts[0], *(_MESH.sub(lambda match: f"mesh = @{name_of(_read(match))}", part, count=1) for part in parts[1:])])


def _read(match: re.Match[str]) -> str | Mesh:
    if match["axes"] is None:
        return match["name"] or match["quoted"]
    ids = tuple(map(int, match["ids"].split(","))) if match["ids"] else ()
    return Mesh(tuple((name, int(size)) for name, size in _AXIS.findall(match["axes"])), ids)
