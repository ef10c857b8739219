"""A converted package in training: its first state, and its step with the stages of a configuration marked."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from shardy_py.pipedream.conversion.converting import Package
from shardy_py.pipedream.conversion.descriptions import ConversionError
from shardy_py.pipelines.markers import marker_of, stage


def read_conf(conf: Path) -> tuple[list[int], list[list[int]]]:
    """The stage of every module and the ranks of every stage, by a configuration such as mp_conf.json."""
    try:
        maps = json.loads(conf.read_text())
        modules, ranks = maps["module_to_stage_map"], [maps["stage_to_rank_map"][str(i)] for i in range(len(maps["stage_to_rank_map"]))]
        every = sorted(rank for each in ranks for rank in each)
        if not all(ranks) or every != list(range(len(every))) or {*modules} != {*range(len(ranks))}:
            raise ValueError("stages and ranks are numbered from 0, and every stage has ranks of its own")
    except (KeyError, TypeError, ValueError) as error:
        raise ConversionError(f"{conf} does not configure stages", why=str(error), fix="convert the graph again") from None
    return modules, ranks


def training(directory: Path, modules: Sequence[int], loss: Callable[[Any, Any], Any], rate: float) -> tuple[Any, Any]:
    """The first state of a package's model, and its training step by stochastic gradient descent, with `modules[i]` the stage of module i.

    Returns:
        `init(key, batch)` and `step(state, batch)`, whose batch holds the inputs of the model and, last, what it should give.
    """
    model = Package(directory, directory.name, (), 0).load().full_model()
    if not isinstance(model, nn.Module):
        raise ConversionError(f"{directory} has functions of a jaxpr", fix="train Flax modules, which `convert` writes from a graph")

    def marked(call: Callable[..., Any], args: Any, kwargs: Any, context: Any) -> Any:
        named = re.fullmatch(r"Stage(\d+)", type(context.module).__name__)
        if named is None:
            return call(*args, **kwargs)
        with stage(marker_of(modules[int(named[1])])):
            return call(*args, **kwargs)

    def init(key: Any, batch: Sequence[Any]) -> Any:
        variables = dict(model.init(key, *batch[:-1]))
        return {"params": variables.pop("params", {}), "statistics": variables, "key": key}

    def step(state: Any, batch: Sequence[Any]) -> Any:
        key, draw = jax.random.split(state["key"])

        def loss_of(params: Any) -> Any:
            variables, mutable = {"params": params, **state["statistics"]}, list(state["statistics"])
            with nn.intercept_methods(marked):
                outputs, statistics = model.apply(variables, *batch[:-1], train=True, key=draw, mutable=mutable)
            return loss(outputs, batch[-1]), statistics

        (value, statistics), gradients = jax.value_and_grad(loss_of, has_aux=True)(state["params"])
        params = jax.tree.map(lambda p, g: p - rate * g, state["params"], gradients)
        return {"params": params, "statistics": statistics, "key": key}, value

    return init, step


def cross_entropy(logits: Any, labels: Any) -> Any:
    """The mean cross entropy of classes along the last dimension with their numbers."""
    return -jnp.mean(jnp.take_along_axis(jax.nn.log_softmax(logits), labels[..., None], -1))
