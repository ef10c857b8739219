"""PipeDream's files: a profile of a program as a graph, the graph in stages, the stages as code.

Names are imported when they are first used: reading a profile and partitioning it need no JAX.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from shardy_py.pipedream.conversion.converting import Package as Package
    from shardy_py.pipedream.conversion.converting import convert as convert
    from shardy_py.pipedream.conversion.descriptions import ConversionError as ConversionError
    from shardy_py.pipedream.conversion.jaxprs import convert_jaxpr as convert_jaxpr
    from shardy_py.pipedream.conversion.registry import register_layer as register_layer
    from shardy_py.pipedream.conversion.weights import fuse_weights as fuse_weights
    from shardy_py.pipedream.conversion.weights import merge_weights as merge_weights
    from shardy_py.pipedream.conversion.weights import split_weights as split_weights
    from shardy_py.pipedream.conversion.whole_model import whole_model as whole_model
    from shardy_py.pipedream.partitions.cuts import antichains as antichains
    from shardy_py.pipedream.partitions.division import divide as divide
    from shardy_py.pipedream.partitions.division import marked as marked
    from shardy_py.pipedream.partitions.partition import partition as partition
    from shardy_py.pipedream.partitions.result import Partition as Partition
    from shardy_py.pipedream.profiles.branches import compress_branches as compress_branches
    from shardy_py.pipedream.profiles.branches import is_series_parallel as is_series_parallel
    from shardy_py.pipedream.profiles.graph import ProfileGraph as ProfileGraph
    from shardy_py.pipedream.profiles.graph import ProfileNode as ProfileNode
    from shardy_py.pipedream.profiles.graph_text import read_graph as read_graph
    from shardy_py.pipedream.profiles.graph_text import write_graph as write_graph
    from shardy_py.pipedream.profiles.profile import profile as profile

# Name -> module that holds it. A function must not have the name of a module here: importing that module would hide it.
_HOMES = {
    "ConversionError": "conversion.descriptions",
    "Package": "conversion.converting",
    "Partition": "partitions.result",
    "ProfileGraph": "profiles.graph",
    "ProfileNode": "profiles.graph",
    "antichains": "partitions.cuts",
    "compress_branches": "profiles.branches",
    "convert": "conversion.converting",
    "convert_jaxpr": "conversion.jaxprs",
    "divide": "partitions.division",
    "fuse_weights": "conversion.weights",
    "is_series_parallel": "profiles.branches",
    "marked": "partitions.division",
    "merge_weights": "conversion.weights",
    "partition": "partitions.partition",
    "profile": "profiles.profile",
    "read_graph": "profiles.graph_text",
    "register_layer": "conversion.registry",
    "split_weights": "conversion.weights",
    "whole_model": "conversion.whole_model",
    "write_graph": "profiles.graph_text",
}

__all__ = [*_HOMES]  # noqa: PLE0604


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(f"{__name__}.{home}"), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
