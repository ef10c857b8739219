"""The whole graph as one Flax model, and its weights in stages."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import flax.linen as nn

from shardy_py.pipedream.conversion.converting import convert
from shardy_py.pipedream.conversion.descriptions import ConversionError
from shardy_py.pipedream.conversion.program import cut, read_program
from shardy_py.pipedream.profiles.graph import ProfileGraph


def whole_model(graph: ProfileGraph) -> nn.Module:
    """The graph as one Flax model, which is run from a package of one stage; its results are in the order of the graph.

    Args:
        graph: The graph; stages do not matter.

    Returns:
        A module whose parameters are named by node. `split_weights` moves them to stages.

    Raises:
        ConversionError: If a node cannot be run.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from shardy_py.pipedream import ProfileGraph, ProfileNode
        >>> nodes = ProfileNode("x", "Input"), ProfileNode("a", "Linear(2, 3)"), ProfileNode("b", "ReLU")
        >>> model = whole_model(ProfileGraph(nodes, (("x", "a"), ("a", "b"))))
        >>> model.init_with_output(jax.random.key(0), jnp.ones((4, 2)))[0].shape
        (4, 3)
    """
    if not isinstance(graph, ProfileGraph):
        raise TypeError(f"whole_model takes a ProfileGraph, not {type(graph).__name__}; `read_graph(text)` makes one")
    with tempfile.TemporaryDirectory() as directory:
        unstaged = graph.with_nodes(lambda node: replace(node, stage=None))
        return convert(unstaged, directory, arch="whole", model_name="WholeModel").load().full_model()


Variables = dict[str, dict[str, Any]]


def split_weights(variables: Mapping[str, Any], graph: ProfileGraph) -> tuple[Variables, ...]:
    """Deals the weights of a whole model out to stages.

    Args:
        variables: Collections, `{"params": {node: ...}, "batch_stats": {node: ...}}`, as `init` of `whole_model(graph)` gives them;
            those of a generated whole module, with `stage0`, `stage1`, ... between, are taken as well.
        graph: The graph with stages.

    Returns:
        For each stage what its module's `apply` takes.

    Raises:
        ConversionError: If a name among the weights is that of no layer.

    Example:
        >>> from shardy_py.pipedream import ProfileGraph, ProfileNode
        >>> nodes = ProfileNode("x", "Input", stage=0), ProfileNode("a", "Linear(2, 2)", stage=0), ProfileNode("b", "Linear(2, 2)", stage=1)
        >>> split_weights({"params": {"a": 1, "b": 2}}, ProfileGraph(nodes, (("x", "a"), ("a", "b"))))
        ({'params': {'a': 1}}, {'params': {'b': 2}})
    """
    stages = cut(read_program(graph)).stages
    stage_of_layer = {step.name: stage.index for stage in stages for step in stage.steps}
    parts: tuple[Variables, ...] = tuple({} for _ in stages)
    for collection, layers in variables.items():
        for part in parts:
            part[collection] = {}
        fused = len(stages) > 1 and set(layers) <= {f"stage{stage.index}" for stage in stages} and not set(layers) & set(stage_of_layer)
        flat = {name: weights for stage in layers.values() for name, weights in stage.items()} if fused else layers
        for name, weights in flat.items():
            if name not in stage_of_layer:
                raise ConversionError(
                    f"no layer is called {name!r}", where=f"collection {collection!r}", fix=f"known are {', '.join(stage_of_layer)}"
                )
            parts[stage_of_layer[name]][collection][name] = weights
    return tuple({collection: layers for collection, layers in part.items() if layers or collection == "params"} for part in parts)


def merge_weights(stages: Sequence[Mapping[str, Any]]) -> Variables:
    """Merges the weights of stages into the weights of the whole model; the inverse of `split_weights`.

    Args:
        stages: The variables of each stage.

    Returns:
        The variables of `whole_model(graph)`.

    Raises:
        ConversionError: If two stages have a layer of one name.

    Example:
        >>> merge_weights([{"params": {"a": 1}}, {"params": {"b": 2}}])
        {'params': {'a': 1, 'b': 2}}
    """
    variables: Variables = {}
    for number, stage in enumerate(stages):
        for collection, layers in stage.items():
            merged = variables.setdefault(collection, {})
            for name, weights in layers.items():
                if name in merged:
                    raise ConversionError(f"two stages have a layer {name!r}", where=f"stage {number}, collection {collection!r}")
                merged[name] = weights
    return variables


def fuse_weights(stages: Sequence[Mapping[str, Any]]) -> Variables:
    """Merges the weights of stages into the weights of the generated module that holds all stages, `full_model()`.

    Args:
        stages: The variables of each stage.

    Returns:
        The variables of `full_model()`; those of one stage stay as they are.

    Example:
        >>> fuse_weights([{"params": {"a": 1}}, {"params": {"b": 2}}])
        {'params': {'stage0': {'a': 1}, 'stage1': {'b': 2}}}
    """
    if len(stages) == 1:
        return {collection: dict(layers) for collection, layers in stages[0].items()}
    variables: Variables = {}
    for number, stage in enumerate(stages):
        for collection, layers in stage.items():
            if layers:
                variables.setdefault(collection, {})[f"stage{number}"] = dict(layers)
    return variables
