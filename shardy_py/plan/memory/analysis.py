"""Computes the memory that a call of a planned function takes on one device, without compiling it."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from dataclasses import replace

from shardy_py.cost.hardware import Hardware, HardwareError
from shardy_py.cost.hardware_table import hardware
from shardy_py.cost.liveness.compilers import Compiler
from shardy_py.cost.liveness.compilers import compiler as compiler_named
from shardy_py.cost.liveness.estimate import Estimate, estimate
from shardy_py.cost.liveness.graph import Graph, Node
from shardy_py.cost.liveness.live import Buffer
from shardy_py.ir import Op, Program
from shardy_py.passes.collection import no_collection
from shardy_py.plan.analysis import Analysis
from shardy_py.plan.memory.graph import local_graph
from shardy_py.plan.memory.remedies import remedies
from shardy_py.plan.memory.report import Contributor, MemoryAnalysis, Step
from shardy_py.plan.record import PlanRecord
from shardy_py.plan.values import location_of


def analyse(plan: PlanRecord, which: str | Hardware | int | None = None, compiler: str | None = None) -> MemoryAnalysis:
    """The memory that a call of a plan takes; see `Plan.memory_analysis`. A plan remembers it.

    Args:
        plan: The plan.
        which: The hardware whose memory it should fit.
        compiler: Name of the compiler to model.
    """
    name, room = _room(which)
    rules = compiler_named(compiler or ("accelerator" if name or plan.platform != "cpu" else "cpu"))
    analyses = _by_compiler(plan)
    if rules.name not in analyses:
        analyses[rules.name] = _analysed(plan, rules)
    memory = replace(analyses[rules.name], hardware=name or (None if room is None else "the given memory"), hardware_bytes=room)
    memory.__dict__["_advisor"] = functools.partial(remedies, plan, analysed=functools.partial(_analysed, rules=rules))
    return memory


@Analysis
def _by_compiler(plan: PlanRecord) -> dict[str, MemoryAnalysis]:
    """Name of a compiler -> the analysis under its rules, filled on request."""
    return {}


@no_collection()
def _analysed(plan: PlanRecord, rules: Compiler) -> MemoryAnalysis:
    graph, program = local_graph(plan, rules)
    names = dict(graph.names)
    usage = estimate(graph, rules)
    fixed = usage.argument + usage.output - usage.alias
    locate = _Locations(program)
    parts = (*_fixed(plan, graph.bytes, graph.main.arguments, graph.main.results, names), *_temporaries(usage, graph, locate))
    return MemoryAnalysis(
        name=plan.name,
        argument_size_in_bytes=usage.argument,
        output_size_in_bytes=usage.output,
        alias_size_in_bytes=usage.alias,
        temp_size_in_bytes=usage.temp,
        peak_memory_in_bytes=fixed + usage.temp,
        compiler=rules.name,
        peak_step=usage.fullest,
        steps=tuple(Step(fixed + more, node.label, locate(node)) for node, more in zip(usage.steps, usage.series)),
        contributors=tuple(sorted(parts, key=_order)),
    )


def _room(which: str | Hardware | int | None) -> tuple[str, int | None]:
    """Name and memory of the hardware that the call should fit; no name for a number of bytes."""
    if which is None:
        return "", None
    if isinstance(which, int) and not isinstance(which, bool):
        if which <= 0:
            raise HardwareError(f"memory is {which!r} bytes", why="sizes are positive", fix="pass bytes, such as 16 << 30, or a name")
        return "", which
    machine = hardware(which)  # pyright: ignore[reportArgumentType]  # which raises for anything else
    return machine.name, machine.hbm_bytes


class _Locations:
    """Source locations of nodes, each op looked up once."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self._locations: dict[Op, str] = {}

    def __call__(self, node: Node) -> str:
        op: Op | None = node.source
        if op is None:
            return ""
        location = self._locations.get(op)
        if location is None:
            location = self._locations[op] = location_of(self._program, op)
        return location


def _fixed(plan: PlanRecord, sizes: list[int], arguments: list[int], results: list[int], names: dict[int, str]) -> Iterable[Contributor]:
    for value in arguments:
        yield Contributor(names.get(value, ""), "argument", sizes[value])
    taken = {d.output for d in plan.donation if d.output is not None}
    for i, (value, output) in enumerate(zip(results, plan.outputs)):
        if i not in taken:
            yield Contributor(output.path, "output", sizes[value])


def _temporaries(usage: Estimate, graph: Graph, locate: _Locations) -> Iterable[Contributor]:
    """Temporaries alive at the peak; those of one kind and source line are added up.

    An array that a loop fills step by step has the name of the op that makes its elements, not of the loop.
    """
    at = usage.fullest
    sums: dict[tuple[str, str, str], tuple[int, int]] = {}
    for buffer in usage.buffers:
        if buffer.start <= at <= buffer.end and buffer.bytes:
            key = _maker(buffer, graph, locate)
            count, total = sums.get(key, (0, 0))
            sums[key] = count + 1, total + buffer.bytes
    for (primitive, location, kind), (count, total) in sums.items():
        yield Contributor(primitive, "temporary", total, count, location, kind)


def _maker(buffer: Buffer, graph: Graph, locate: _Locations) -> tuple[str, str, str]:
    """Primitive and location of the op that makes a buffer, and the buffer's type where a loop fills it."""
    if buffer.written is not None:
        writer = graph.writers[buffer.written]
        shape, dtype = graph.array_types[buffer.written]
        return writer.label, locate(writer), f"{dtype}[{','.join(map(str, shape))}]"
    return ("", "", "") if buffer.maker is None else (buffer.maker.label, locate(buffer.maker), "")


def _order(part: Contributor) -> tuple[int, str, str, str]:
    return -part.bytes, part.name, part.location, part.type
