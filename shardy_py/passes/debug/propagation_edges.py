"""`sdy.propagation_edges`: on each op, the steps in which its rule gave axes from one of its values to others."""

from __future__ import annotations

import re
from collections.abc import Iterable

from shardy_py.dialect import AxisRef
from shardy_py.ir import Op, Program
from shardy_py.ir.attribute_text import AttributeText
from shardy_py.passes.debug.sources import axes_of, new_axes
from shardy_py.passes.propagation.log import Step
from shardy_py.passes.walk import ops_in

EDGES = "sdy.propagation_edges"

_STEP = re.compile(r"\{step-(\d+) = ")
_DETAIL = re.compile(r'\{("[^"]*"(?::\(\d+\)\d+)?) = ([a-z]+-\d+) -> \[([^\]]*)\]\}')
_MAIN = None  # the key of what function results hold


class EdgesOfOp:
    """The content of one attribute: per axis and target, the first step that brought it there, and its source."""

    def __init__(self, text: str = "") -> None:
        self.first_steps: dict[tuple[AxisRef, str], tuple[int, str]] = {}
        places = [*_STEP.finditer(text)]
        for place, following in zip(places, [*places[1:], None], strict=False):
            for detail in _DETAIL.finditer(text[place.end() : following.start() if following is not None else len(text)]):
                for target in detail[3].split(", "):
                    self.add(int(place[1]), AxisRef.parse(detail[1]), detail[2], target)

    def add(self, step: int, axis: AxisRef, source: str, target: str) -> None:
        """Notes an edge, unless the axis came to the target before."""
        self.first_steps.setdefault((axis, target), (step, source))

    @property
    def last_step(self) -> int:
        """The highest step number, -1 where there is none."""
        return max((step for step, _ in self.first_steps.values()), default=-1)

    def __str__(self) -> str:
        steps: dict[int, dict[AxisRef, tuple[str, list[str]]]] = {}
        for (axis, target), (step, source) in self.first_steps.items():
            steps.setdefault(step, {}).setdefault(axis, (source, []))[1].append(target)
        return f"#sdy.propagation_edges<[{', '.join(_step_text(step, steps[step]) for step in sorted(steps))}]>"


def _step_text(step: int, axes: dict[AxisRef, tuple[str, list[str]]]) -> str:
    details = [f"{{{axis} = {source} -> [{', '.join(sorted(targets, key=_place))}]}}" for axis, (source, targets) in _ordered(axes)]
    return f"{{step-{step} = [{', '.join(details)}]}}"


def _ordered(axes: dict[AxisRef, tuple[str, list[str]]]) -> Iterable[tuple[AxisRef, tuple[str, list[str]]]]:
    return sorted(axes.items(), key=lambda item: (item[0].name, item[0].pre_size or 1, item[0].size or float("inf")))


def _place(ref: str) -> tuple[str, int]:
    kind, _, number = ref.partition("-")
    return kind, int(number)


def write_edges(program: Program, log: list[Step]) -> None:
    """Adds the steps of a log to the attributes of the ops; those of function results go to the first result of the main function."""
    attributes: dict[Op | None, EdgesOfOp] = {}
    last = -1
    for function in program.functions:
        for op in ops_in(function.body):
            if EDGES in op.attributes:
                attributes[op] = EdgesOfOp(op.attributes[EDGES])
                last = max(last, attributes[op].last_step)
    main = next((function for function in program.functions if function is program.main), None) if program.functions else None
    if main is not None and main.result_attributes and EDGES in main.result_attributes[0]:
        attributes[_MAIN] = EdgesOfOp(main.result_attributes[0][EDGES])
        last = max(last, attributes[_MAIN].last_step)
    previous: Step | None = None
    for step in log:
        edges = _edges(step, program)
        if edges is None:
            continue
        if previous is None or step.before is not previous.before or step.op is not previous.op or not step.tensors:
            last += 1
        previous = step
        edges_of_op = attributes.setdefault(step.op, EdgesOfOp())
        for axis, source, target in edges:
            edges_of_op.add(last, axis, source, target)
    for op, edges in attributes.items():
        if not edges.first_steps:
            continue
        text = AttributeText(edges)
        if op is not None:
            op.attributes = {**op.attributes, EDGES: text}
        elif main is not None:
            main.result_attributes[0][EDGES] = text


def _edges(step: Step, program: Program) -> list[tuple[AxisRef, str, str]] | None:
    """`(axis, source, target)` of a step; None for a step that is no edge of an op."""
    if step.reason != "propagate":
        if step.op is not None and step.op.name == "sdy.sharding_constraint":
            return [(axis, "result-0", "operand-0") for axis in axes_of(step.new)]
        return None
    results = len(step.op.results) if step.op is not None else 1
    operands = len(step.tensors) - results

    def ref(i: int) -> str:
        return f"operand-{i}" if i < operands else f"result-{i - operands}"

    return [(new.axis, ref(new.source), ref(target)) for new in new_axes(step, program.meshes) for target in new.targets]
