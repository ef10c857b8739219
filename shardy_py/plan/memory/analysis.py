"""Computes the memory that a call of a planned function takes on one device, without compiling it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from shardy_py.cost.hardware import Hardware, HardwareError
from shardy_py.cost.hardware_table import hardware
from shardy_py.cost.liveness.estimate import Estimate
from shardy_py.cost.liveness.graph import Graph
from shardy_py.cost.liveness.live import Buffer
from shardy_py.cost.sizes import LocalSizes
from shardy_py.ir import Op, Program
from shardy_py.passes.collection import no_collection
from shardy_py.plan.analysis import Analysis
from shardy_py.plan.executed import explicit_of
from shardy_py.plan.findings import Findings
from shardy_py.plan.memory.graph import local_graph
from shardy_py.plan.memory.lifetimes import Lifetimes, LiveBuffer
from shardy_py.plan.memory.models import MemoryModel, model
from shardy_py.plan.memory.remedies import relief, remedies
from shardy_py.plan.memory.report import Contributor, MemoryAnalysis, PeakBuffer, Relief, Step
from shardy_py.plan.record import PlanRecord
from shardy_py.plan.values import PlannedValue, location_of, typed


def analyse(plan: PlanRecord, which: str | Hardware | int | None = None, compiler: str | None = None) -> MemoryAnalysis:
    """The memory that a call of a plan takes; see `Plan.memory_analysis`. A plan remembers it."""
    name, room = _room(which)
    of_compiler = _model(plan, name, compiler)
    memory = _usage(plan, of_compiler)[0]
    room_of = name or (None if room is None else "the given memory")
    return replace(memory, hardware=room_of, hardware_bytes=room, queries=_Queries(plan, of_compiler))


def lifetimes(plan: PlanRecord, which: str | Hardware | int | None = None, compiler: str | None = None) -> Lifetimes:
    """The buffers behind `analyse`, with the steps at which they are alive and the values that they hold. A plan remembers them."""
    return _usage(plan, _model(plan, _room(which)[0], compiler))[1]


def _model(plan: PlanRecord, hardware: str, compiler: str | None) -> MemoryModel:
    return model(compiler or ("accelerator" if hardware or plan.platform != "cpu" else "cpu"))


@Analysis
def _by_compiler(plan: PlanRecord) -> dict[str, tuple[MemoryAnalysis, Lifetimes]]:
    """Name of a compiler -> the analysis under its rules and the buffers behind it, filled on request."""
    return {}


def _usage(plan: PlanRecord, of_compiler: MemoryModel) -> tuple[MemoryAnalysis, Lifetimes]:
    by_compiler = _by_compiler(plan)
    if of_compiler.name not in by_compiler:
        by_compiler[of_compiler.name] = _analysed(plan, of_compiler)
    return by_compiler[of_compiler.name]


@dataclass(frozen=True, eq=False)
class _Queries:
    """Answers questions on an analysis that need the plan; see `report.Queries`."""

    plan: PlanRecord
    of_compiler: MemoryModel

    def findings(self, memory: MemoryAnalysis) -> Findings:
        return Findings(remedies(self.plan, memory, lambda variant: _usage(variant, self.of_compiler)[0]))

    def relief(self, memory: MemoryAnalysis) -> Relief:
        return relief(self.plan, memory)

    def peak_buffers(self, memory: MemoryAnalysis) -> tuple[PeakBuffer, ...]:
        usage = _usage(self.plan, self.of_compiler)[1]
        buffers = (*usage.resident, *(usage.alive(memory.peak_step) if memory.steps else ()))
        locate = _Locations(usage.running)
        return tuple(self._described(b, locate) for b in sorted(buffers, key=lambda b: -b.bytes))

    def _described(self, buffer: LiveBuffer, locate: _Locations) -> PeakBuffer:
        plan, value = self.plan, buffer.value
        if buffer.role != "temporary":
            leaf = _leaf(plan, buffer)
            return PeakBuffer(leaf.path, buffer.role, buffer.bytes, typed(leaf.type, leaf.sharding))
        path = "" if value is None else plan.names.get(value, value.name or "")
        of = "" if value is None else typed(value.type, buffer.sharding)
        return PeakBuffer(path, buffer.role, buffer.bytes, of, buffer.label, locate(buffer.reader or buffer.op))


@no_collection()
def _analysed(plan: PlanRecord, of_compiler: MemoryModel) -> tuple[MemoryAnalysis, Lifetimes]:
    graph, program = local_graph(plan, of_compiler)
    usage = of_compiler.estimate(graph)
    fixed = usage.argument + usage.output - usage.alias
    locate = _Locations(program)
    resident = tuple(_resident(plan, graph))
    parts = [*(Contributor(_leaf(plan, b).path, b.role, b.bytes) for b in resident), *_temporaries(usage, graph, locate)]
    memory = MemoryAnalysis(
        name=plan.name,
        argument_size_in_bytes=usage.argument,
        output_size_in_bytes=usage.output,
        alias_size_in_bytes=usage.alias,
        temp_size_in_bytes=usage.temp,
        peak_memory_in_bytes=fixed + usage.temp,
        host_argument_size_in_bytes=usage.host.argument,
        host_output_size_in_bytes=usage.host.output,
        host_alias_size_in_bytes=usage.host.alias,
        host_temp_size_in_bytes=usage.host.temp,
        compiler=of_compiler.name,
        peak_step=usage.fullest,
        steps=tuple(Step(fixed + more, node.label, locate(node.source)) for node, more in zip(usage.steps, usage.series)),
        contributors=tuple(sorted(parts, key=_order)),
    )
    return memory, Lifetimes(
        resident=resident,
        resident_bytes=fixed,
        series=usage.series,
        buffers=usage.buffers,
        alignment=of_compiler.alignment,
        origins={life.value: graph.origins[life.value] for b in usage.buffers for life in b.lives if life.value in graph.origins},
        sizes=LocalSizes(plan.program.meshes),
        explicit=explicit_of(plan) if plan.active_partitioner is None else None,
        program=plan.program,
        running=program,
    )


def _room(which: str | Hardware | int | None) -> tuple[str, int | None]:
    """Name and memory of the hardware that the call should fit; no name for a number of bytes."""
    if which is None:
        return "", None
    if isinstance(which, int) and not isinstance(which, bool):
        if which <= 0:
            raise HardwareError(
                f"memory is {which!r} bytes",
                where="memory_analysis",
                why="sizes are positive",
                fix="pass bytes, such as 16 << 30, or a name",
            )
        return "", which
    machine = hardware(which)  # pyright: ignore[reportArgumentType]  # which raises for anything else
    return machine.name, machine.hbm_bytes


class _Locations:
    """Source locations of ops, each looked up once."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self._locations: dict[Op, str] = {}

    def __call__(self, op: Op | None) -> str:
        if op is None:
            return ""
        location = self._locations.get(op)
        if location is None:
            location = self._locations[op] = location_of(self._program, op)
        return location


def _resident(plan: PlanRecord, graph: Graph) -> Iterable[LiveBuffer]:
    """Arguments that the compiled program has, and results that take no donated argument's memory."""
    main = plan.program.main
    for i, (number, value, leaf) in enumerate(zip(graph.main.arguments, main.arguments, plan.inputs)):
        if i not in graph.dropped and i not in graph.host_arguments:
            yield LiveBuffer(graph.bytes[number], "argument", "", value, leaf.sharding, number=i)
    taken = {d.output for d in plan.donation if d.output is not None}
    for i, (number, value, leaf) in enumerate(zip(graph.main.results, main.body.terminator.operands, plan.outputs)):
        if i not in taken and i not in graph.host_results:
            yield LiveBuffer(graph.bytes[number], "output", "", value, leaf.sharding, number=i)


def _leaf(plan: PlanRecord, buffer: LiveBuffer) -> PlannedValue:
    """The argument or result that a buffer is."""
    assert buffer.number is not None
    return (plan.inputs if buffer.role == "argument" else plan.outputs)[buffer.number]


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
        return writer.label, locate(writer.source), f"{dtype}[{','.join(map(str, shape))}]"
    return ("", "", "") if buffer.maker is None else (buffer.maker.label, locate(buffer.maker.source), "")


def _order(part: Contributor) -> tuple[int, str, str, str]:
    return -part.bytes, part.name, part.location, part.type
