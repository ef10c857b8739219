"""The computation, inputs and outputs of each stage.

Values that are cheap and known while tracing do not cross between stages where a stage has them otherwise: states that start as None are
made where they are used, sizes are read again off an array that is there, and parts of a result are taken where it is made. A
size that must cross does so as the shape of an array without elements, so that it stays known while tracing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from shardy_py.pipedream.conversion.descriptions import ConversionError
from shardy_py.pipedream.conversion.program import Program, Step


@dataclass(frozen=True)
class Stage:
    """One stage: its steps, and the ids of the values that it takes (inputs of the model first) and gives."""

    index: int
    steps: tuple[Step, ...]
    takes: tuple[str, ...]
    gives: tuple[str, ...]


@dataclass(frozen=True)
class Cut:
    """A program cut into stages.

    Args:
        states: For each `hidden`, how many states are taken from it.
    """

    program: Program
    stages: tuple[Stage, ...]
    names: Mapping[str, str]
    states: Mapping[str, int]


def cut(program: Program) -> Cut:
    """Cuts a program along the stages of its nodes. Raises ConversionError if a stage needs a value that a later stage makes."""
    stage_of = _stages_of_steps(program)
    count = max(program.num_stages, 1)
    takes, extra = zip(*(_inputs_of(program, stage_of, stage) for stage in range(count)))
    order = {step.id: i for i, step in enumerate(program.steps)}
    outputs = {id for values in takes for id in values} | set(program.results)
    gives = [[s.id for s in program.steps if stage_of.get(s.id) == stage and s.id in outputs] for stage in range(count)]
    names = {id: f"input{i}" for i, id in enumerate(program.inputs)}
    names |= {id: f"out{i}" for i, id in enumerate(id for stage_gives in gives for id in stage_gives)}
    stages = []
    for stage in range(count):
        own = [step for step in program.steps if stage_of.get(step.id) == stage or step.id in extra[stage]]
        inputs = [id for id in program.inputs if id in takes[stage]]
        others = sorted((id for id in takes[stage] if id not in program.inputs), key=lambda id: int(names[id][3:]))
        stages.append(Stage(stage, tuple(sorted(own, key=lambda step: order[step.id])), (*inputs, *others), tuple(gives[stage])))
    return Cut(program, tuple(stages), names, _states(program))


def _stages_of_steps(program: Program) -> dict[str, int]:
    """The stage that makes each value; inputs and states have none."""
    stage_of: dict[str, int] = {}
    layers = [0] * max(program.num_stages, 1)
    for step in program.steps:
        if step.call.kind.module or step.call.kind.name in ("Add", "Mul", "Concat", "View", "Transpose"):
            layers[step.stage] += 1
    for step in program.steps:
        if step.is_input or step.gives == "state":
            continue
        stage_of[step.id] = step.stage
        if step.call.kind.name == "__getitem__":
            operand = program.by_id[step.operands[0]]
            # Unless nothing else is in the stage, which would be empty then.
            if operand.gives == "parts" and layers[step.stage]:
                stage_of[step.id] = stage_of[operand.id]
        for operand in step.operands:
            if stage_of.get(operand, 0) > stage_of[step.id]:
                raise ConversionError(
                    f"node {step.id!r} of stage {stage_of[step.id]} needs node {operand!r} of stage {stage_of[operand]}",
                    why="a stage is given values by earlier stages only",
                    fix="give every node a stage that is not below those of its operands",
                )
    return stage_of


def _inputs_of(program: Program, stage_of: Mapping[str, int], stage: int) -> tuple[list[str], set[str]]:
    """Ids of the values that a stage is given, and of the steps it computes again."""
    by_id = program.by_id
    repeated: set[str] = set()
    foreign: dict[str, None] = {}
    waiting = [operand for step in program.steps if stage_of.get(step.id) == stage for operand in step.operands]
    for id in waiting:
        if by_id[id].gives == "state":
            repeated.add(id)
            waiting.extend(by_id[id].operands)
        elif stage_of.get(id) != stage:
            foreign[id] = None
    arrays = {id for id in foreign if by_id[id].gives not in ("size", "shape")}
    for id in list(foreign):
        step = by_id[id]
        if step.call.kind.name == "Size" and (step.operands[0] in arrays or by_id[step.operands[0]].is_input):
            del foreign[id]
            repeated.add(id)
            foreign[step.operands[0]] = None
    return list(foreign), repeated


def _states(program: Program) -> dict[str, int]:
    states = {}
    for step in program.steps:
        if step.call.kind.name == "hidden":
            keys = [user.call.positional[0] for user in program.users[step.id] if user.call.kind.name == "__getitem__"]
            states[step.id] = 1 + max((key for key in keys if isinstance(key, int)), default=0)
    return states
