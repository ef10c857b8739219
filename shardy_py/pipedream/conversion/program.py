"""A profile graph as a program: checked calls in topological order, with the sort of each result."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from shardy_py.pipedream.conversion.descriptions import ConversionError, parse_description
from shardy_py.pipedream.conversion.kinds import Call, bind, is_name
from shardy_py.pipedream.profiles.graph import ProfileGraph

# Names that a layer cannot have: they mean something else in a Flax module.
_RESERVED = frozenset({"name", "parent", "scope", "setup", "params", "batch_stats", "init", "apply", "bind", "path", "variables"})


@dataclass(frozen=True)
class ModelStep:
    """One node of the graph, as a call in the generated code."""

    id: str
    name: str
    call: Call
    operands: tuple[str, ...]
    gives: str
    stage: int
    description: str

    @property
    def is_input(self) -> bool:
        """Whether it stands for an input of the model."""
        return self.call.kind.name == "Input"


@dataclass(frozen=True)
class GraphModel:
    """The steps of a graph that its results depend on, operands first; `inputs` are ids, in the order in which the model takes them."""

    steps: tuple[ModelStep, ...]
    inputs: tuple[str, ...]
    results: tuple[str, ...]
    num_stages: int

    @cached_property
    def by_id(self) -> Mapping[str, ModelStep]:
        """The steps by the id of their node."""
        return {step.id: step for step in self.steps}


def read_program(graph: ProfileGraph) -> GraphModel:
    """Checks every node of a graph and orders them.

    Parts that nobody uses of a result that has other users, as the final state of an LSTM, are left out, as PipeDream does; so
    are sizes that nobody uses. Raises ConversionError if a node cannot be written; it names the node and its line. Raises GraphError if
    only some nodes have a stage id.

    Returns:
        Its program. Inputs are ordered by the number in their description, then by place in the file.
    """
    if not isinstance(graph, ProfileGraph):
        raise TypeError(f"convert takes a ProfileGraph or a Partition, not {type(graph).__name__}; `read_graph(text)` makes one")
    if not graph.nodes:
        raise ConversionError("the graph has no nodes")
    num_stages = graph.num_stages
    calls = [_call(graph, i) for i in range(len(graph))]
    names = _layer_names(graph)
    live = _live(graph, calls)
    gives: dict[int, str] = {}
    steps = []
    for i in graph.order:
        if i in live:
            gives[i] = _gives(calls[i], [gives[operand] for operand in graph.operands[i]])
            _check_operands(graph, i, calls[i], [gives[operand] for operand in graph.operands[i]])
            node = graph.nodes[i]
            operands = tuple(graph.nodes[operand].id for operand in graph.operands[i])
            steps.append(ModelStep(node.id, names[i], calls[i], operands, gives[i], node.stage or 0, node.description))
    inputs = sorted((i for i in live if calls[i].kind.name == "Input"), key=lambda i: (_number(graph.nodes[i].description), i))
    used = {operand for step in steps for operand in step.operands}
    results = tuple(step.id for step in steps if step.id not in used and not step.is_input)
    if not results:
        raise ConversionError("the graph has no layers", why="only inputs, sizes and states are in it")
    return GraphModel(tuple(steps), tuple(graph.nodes[i].id for i in inputs), results, num_stages)


def place(graph: ProfileGraph, position: int) -> str:
    """The place of a node for errors: its id, and the line on which `write_graph` puts it."""
    return f"node {graph.nodes[position].id!r}, line {position + 1}"


def _call(graph: ProfileGraph, position: int) -> Call:
    text = graph.nodes[position].description
    if re.fullmatch(r"Branch \d+", text):
        raise ConversionError(
            f"{text!r} is a compressed branch",
            where=place(graph, position),
            why="it stands for several layers",
            fix="convert before compression",
        )
    try:
        return bind(parse_description(text))
    except ConversionError as error:
        raise error.at(place(graph, position)) from None


def _layer_names(graph: ProfileGraph) -> list[str]:
    """A name for each layer; it depends on the node's id alone, so that it is the same in every stage map."""
    names: dict[str, int] = {}
    for i, node in enumerate(graph.nodes):
        name = node.id if is_name(node.id) and not node.id.startswith("_") and node.id not in _RESERVED else f"node_{node.id}"
        if not is_name(name):
            raise ConversionError(
                f"the id {node.id!r} cannot be a name in code", where=place(graph, i), why="names have letters, digits and _ only"
            )
        if name in names:
            raise ConversionError(
                f"the layers of two nodes are called {name!r}", where=f"{place(graph, names[name])} and {place(graph, i)}"
            )
        names[name] = i
    return list(names)


def _live(graph: ProfileGraph, calls: list[Call]) -> set[int]:
    live = set(range(len(graph)))
    for i in reversed(graph.order):
        if any(user in live for user in graph.uses[i]):
            continue
        kind = calls[i].kind
        # A state or size is no result; nor is a part while other parts are used.
        if kind.gives in ("size", "state"):
            live.discard(i)
        elif kind.name == "__getitem__":
            siblings = [user for operand in graph.operands[i] for user in graph.uses[operand] if user != i]
            if any(calls[user].kind.name != "__getitem__" or any(u in live for u in graph.uses[user]) for user in siblings):
                live.discard(i)
    return live


def _number(description: str) -> int:
    match = re.match(r"\s*Input(\d+)", description)
    return int(match[1]) if match else 0


def _gives(call: Call, operands: list[str]) -> str:
    kind = call.kind.name
    if kind == "Size":
        return "size" if call.positional or call.named else "shape"
    if kind in ("Add", "Mul") and operands and all(each == "size" for each in operands):
        return "size"
    if kind == "__getitem__" and operands:
        return {"shape": "size", "state": "state", "parts": "parts"}.get(operands[0], "array")
    return call.kind.gives


def _check_operands(graph: ProfileGraph, position: int, call: Call, gives: list[str]) -> None:
    kind = call.kind
    if len(gives) < kind.fewest or (kind.most is not None and len(gives) > kind.most):
        least, most = kind.fewest, kind.most
        takes = f"{least} or more" if most is None else str(least) if least == most else f"{least} to {most}"
        raise ConversionError(f"{kind.name} has {len(gives)} operands and takes {takes}", where=place(graph, position))
    arrays = sum(each not in ("size", "shape") for each in gives)
    if kind.name == "View" and arrays != 1:
        raise ConversionError(f"View has {arrays} arrays among its operands", where=place(graph, position), why="it reshapes one array")
    if kind.name not in ("View", "Add", "Mul", "__getitem__") and arrays < len(gives):
        raise ConversionError(f"{kind.name} is given a size", where=place(graph, position), why="it takes arrays")
    if kind.name in ("Add", "Mul", "Concat") and any(each in ("state", "shape") for each in gives):
        raise ConversionError(f"{kind.name} is given a state or a shape", where=place(graph, position))


@dataclass(frozen=True)
class ModelStage:
    """One stage: its steps, and the ids of the values that it takes (inputs of the model first) and gives."""

    index: int
    steps: tuple[ModelStep, ...]
    takes: tuple[str, ...]
    gives: tuple[str, ...]


@dataclass(frozen=True)
class StagedModel:
    """A program cut into stages. Hidden states that start as None are in none."""

    program: GraphModel
    stages: tuple[ModelStage, ...]
    names: Mapping[str, str]


def cut(program: GraphModel) -> StagedModel:
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
        stages.append(ModelStage(stage, tuple(sorted(own, key=lambda step: order[step.id])), (*inputs, *others), tuple(gives[stage])))
    return StagedModel(program, tuple(stages), names)


def _stages_of_steps(program: GraphModel) -> dict[str, int]:
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


def _inputs_of(program: GraphModel, stage_of: Mapping[str, int], stage: int) -> tuple[list[str], set[str]]:
    """Ids of the values that a stage is given, and of the steps it computes again."""
    by_id = program.by_id
    repeated: set[str] = set()
    foreign: dict[str, None] = {}
    for id in (operand for step in program.steps if stage_of.get(step.id) == stage for operand in step.operands):
        if by_id[id].gives != "state" and stage_of.get(id) != stage:
            foreign[id] = None
    arrays = {id for id in foreign if by_id[id].gives not in ("size", "shape")}
    for id in list(foreign):
        step = by_id[id]
        if step.call.kind.name == "Size" and (step.operands[0] in arrays or by_id[step.operands[0]].is_input):
            del foreign[id]
            repeated.add(id)
            foreign[step.operands[0]] = None
    return list(foreign), repeated
