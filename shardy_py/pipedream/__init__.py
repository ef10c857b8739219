"""PipeDream's files: a profile of a program as a graph, the graph in stages, the stages as code.

Names are imported when they are first used: reading a profile and partitioning it need no JAX.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardy_py.lazy import names_of

if TYPE_CHECKING:
    from shardy_py.pipedream.conversion.converting import Package as Package
    from shardy_py.pipedream.conversion.converting import convert as convert
    from shardy_py.pipedream.conversion.descriptions import ConversionError as ConversionError
    from shardy_py.pipedream.conversion.jaxprs import convert_jaxpr as convert_jaxpr
    from shardy_py.pipedream.conversion.kinds import register_layer as register_layer
    from shardy_py.pipedream.conversion.whole_model import fuse_weights as fuse_weights
    from shardy_py.pipedream.conversion.whole_model import merge_weights as merge_weights
    from shardy_py.pipedream.conversion.whole_model import split_weights as split_weights
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
    from shardy_py.pipedream.profiles.graph import read_graph as read_graph
    from shardy_py.pipedream.profiles.graph import write_graph as write_graph
    from shardy_py.pipedream.profiles.profile import profile as profile

__all__, __getattr__, __dir__ = names_of(__name__)
