"""The whole graph as one Flax model, which generated stages must equal."""

from __future__ import annotations

import importlib
from typing import Any

import flax.linen as nn

from shardy_py.pipedream.conversion.cutting import cut
from shardy_py.pipedream.conversion.expressions import evaluate, named_values
from shardy_py.pipedream.conversion.program import Program, Step, read_program
from shardy_py.pipedream.profiles.graph import ProfileGraph


class WholeModel(nn.Module):
    """Runs the nodes of a graph one by one, without any generated code."""

    program: Program

    @nn.compact
    def __call__(self, *inputs: Any, train: bool = False, key: Any = None) -> Any:
        """The results of the graph for its inputs, in the order of their numbers; `key` is for dropout in training."""
        program = self.program
        if len(inputs) != len(program.inputs):
            raise TypeError(f"the model takes {len(program.inputs)} inputs and is given {len(inputs)}")
        values: dict[str, Any] = dict(zip(program.inputs, inputs))
        states = cut(program).states
        for step in program.steps:
            if not step.is_input:
                gives = [program.by_id[id].gives for id in step.operands]
                operands = [values[id] for id in step.operands]
                values[step.id] = _run(step, operands, gives, states.get(step.id, 0), {"train": train, "key": key})
        results = tuple(values[id] for id in program.results)
        return results[0] if len(results) == 1 else results


def whole_model(graph: ProfileGraph) -> WholeModel:
    """The unconverted graph as one Flax model.

    Args:
        graph: The graph; stages do not matter.

    Returns:
        A module whose parameters are named by node. `split_weights` moves them to stages.

    Raises:
        ConversionError: If a node cannot be run.
    """
    return WholeModel(read_program(graph))


def _run(step: Step, operands: list[Any], gives: list[str], states: int, training: dict[str, Any]) -> Any:
    kind = step.call.kind
    if not kind.module:
        return evaluate(step.call, operands, gives, states)
    own = kind.module in ("layers", "recurrent")
    target = getattr(
        importlib.import_module(f"shardy_py.pipedream.conversion.copied.{kind.module}" if own else kind.module), kind.attribute
    )
    training_arguments = {word: training[word] for word in kind.training}
    if kind.layer:
        return target(*step.call.positional, **step.call.named, name=step.name)(*operands, **training_arguments)
    if kind.arguments is None:
        return target(*operands, *step.call.positional, **step.call.named, **training_arguments)
    return target(*operands, **named_values(step.call), **training_arguments)
