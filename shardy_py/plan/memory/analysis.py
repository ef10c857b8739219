"""Computes the memory that a call of a planned function takes on one device, without compiling it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from shardy_py.cost.hardware import Hardware, HardwareError
from shardy_py.cost.hardware_table import hardware
from shardy_py.cost.liveness.live import Buffer, Liveness, liveness
from shardy_py.cost.sizes import LocalSizes
from shardy_py.dialect.format import short_location
from shardy_py.ir import Op, Program, Value
from shardy_py.ir.pieces import local_shape
from shardy_py.passes.collection import no_collection
from shardy_py.plan.checks.wording import GRAVE
from shardy_py.plan.collectives import format_bytes
from shardy_py.plan.donation import donatable
from shardy_py.plan.executed import explicit_of
from shardy_py.plan.findings import Finding, Findings
from shardy_py.plan.memory.lifetimes import Lifetimes, LiveBuffer, label_of
from shardy_py.plan.memory.report import Contributor, MemoryAnalysis, PeakBuffer, Relief, Step
from shardy_py.plan.record import Analysis, PlanRecord, Variant
from shardy_py.plan.values import PlannedValue, location_of, typed

ERROR = 0.2
"""The part by which peaks were at most below those of compiled programs, by docs/memory.md."""

ADDRESS = 8
"""Bytes of each entry of the table through which a function on CPUs returns several results."""


def analyse(plan: PlanRecord, which: str | Hardware | int | None = None) -> MemoryAnalysis:
    """The memory that a call of a plan takes; see `Plan.memory_analysis`. A plan remembers it."""
    name, room = _room(which)
    on_cpu = _is_on_cpu(plan, name)
    memory = _usage(plan, on_cpu)[0]
    room_of = name or (None if room is None else "the given memory")
    return replace(memory, hardware=room_of, hardware_bytes=room, queries=_Queries(plan, on_cpu))


def lifetimes(plan: PlanRecord, which: str | Hardware | int | None = None) -> Lifetimes:
    """The buffers behind `analyse`, with the steps at which they are alive and the values that they hold. A plan remembers them."""
    return _usage(plan, _is_on_cpu(plan, _room(which)[0]))[1]


def _is_on_cpu(plan: PlanRecord, hardware: str) -> bool:
    return not hardware and plan.platform == "cpu"


@Analysis
def _by_platform(plan: PlanRecord) -> dict[bool, tuple[MemoryAnalysis, Lifetimes]]:
    """Whether on CPUs -> the analysis there and the buffers behind it, filled on request."""
    return {}


def _usage(plan: PlanRecord, on_cpu: bool) -> tuple[MemoryAnalysis, Lifetimes]:
    by_platform = _by_platform(plan)
    if on_cpu not in by_platform:
        by_platform[on_cpu] = _analysed(plan, on_cpu)
    return by_platform[on_cpu]


@dataclass(frozen=True, eq=False)
class _Queries:
    """Answers questions on an analysis that need the plan; see `report.Queries`."""

    plan: PlanRecord
    on_cpu: bool

    def findings(self, memory: MemoryAnalysis) -> Findings:
        return Findings(remedies(self.plan, memory, lambda variant: _usage(variant, self.on_cpu)[0]))

    def relief(self, memory: MemoryAnalysis) -> Relief:
        return relief(self.plan, memory)

    def peak_buffers(self, memory: MemoryAnalysis) -> tuple[PeakBuffer, ...]:
        usage = _usage(self.plan, self.on_cpu)[1]
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
def _analysed(plan: PlanRecord, on_cpu: bool) -> tuple[MemoryAnalysis, Lifetimes]:
    running = explicit_of(plan).program if plan.active_partitioner is None else plan.active_partitioner.local_program(plan)
    donated = {d.input: d.output for d in plan.donation if d.output is not None}
    on_device, in_host, resident = _resident(plan, donated)
    host_arguments = [] if plan.platform == "cpu" else [i for i, value in enumerate(plan.inputs) if value.memory_kind]
    usage = liveness(running.main, LocalSizes(running.meshes), donated, host_arguments, on_cpu)
    outputs = on_device["output"] + (ADDRESS * len(plan.outputs) if on_cpu and len(plan.outputs) != 1 else 0)
    fixed = on_device["argument"] + outputs - on_device["alias"]
    locate = _Locations(running)
    parts = [*(Contributor(_leaf(plan, b).path, b.role, b.bytes) for b in resident), *_temporaries(usage, running, locate)]
    temporary = max(usage.series, default=0)
    memory = MemoryAnalysis(
        name=plan.name,
        compiler="cpu" if on_cpu else "accelerator",
        argument_size_in_bytes=on_device["argument"],
        output_size_in_bytes=outputs,
        alias_size_in_bytes=on_device["alias"],
        temp_size_in_bytes=temporary,
        peak_memory_in_bytes=fixed + temporary,
        host_argument_size_in_bytes=in_host["argument"],
        host_output_size_in_bytes=in_host["output"],
        host_alias_size_in_bytes=in_host["alias"],
        host_temp_size_in_bytes=usage.host,
        peak_step=usage.fullest,
        steps=tuple(Step(fixed + more, label_of(op), locate(op)) for op, more in zip(usage.steps, usage.series)),
        contributors=tuple(sorted(parts, key=_order)),
    )
    return memory, Lifetimes(
        resident=resident,
        resident_bytes=fixed,
        series=usage.series,
        buffers=usage.buffers,
        sizes=LocalSizes(plan.program.meshes),
        explicit=explicit_of(plan) if plan.active_partitioner is None else None,
        program=plan.program,
        running=running,
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


def _resident(plan: PlanRecord, donated: Mapping[int, int]) -> tuple[dict[str, int], dict[str, int], tuple[LiveBuffer, ...]]:
    """Bytes of arguments, results and results in donated arguments on the device and in the host's memory, and the device's buffers.

    Arguments are those that the compiled program has, buffers of results those that take no donated argument's memory.
    """
    main, sizes = plan.program.main, LocalSizes(plan.program.meshes)
    on_device, in_host = ({"argument": 0, "output": 0, "alias": 0} for _ in range(2))
    has_host = plan.platform != "cpu"  # whose devices have one memory
    buffers: list[LiveBuffer] = []
    taken = set(donated.values())
    roles: Sequence[tuple[Literal["argument", "output"], Sequence[Value], Sequence[PlannedValue]]] = (
        ("argument", main.arguments, plan.inputs),
        ("output", main.body.terminator.operands, plan.outputs),
    )
    for role, values, leaves in roles:
        for i, (value, leaf) in enumerate(zip(values, leaves)):
            if role == "argument" and i in plan.dropped:
                continue
            size = sizes.bytes_of(value.type, leaf.sharding)
            is_in_host = has_host and bool(leaf.memory_kind)
            (in_host if is_in_host else on_device)[role] += size
            if role == "argument" and i in donated:
                (in_host if is_in_host else on_device)["alias"] += size
            if not is_in_host and not (role == "output" and i in taken):
                buffers.append(LiveBuffer(size, role, "", value, leaf.sharding, number=i))
    return on_device, in_host, tuple(buffers)


def _leaf(plan: PlanRecord, buffer: LiveBuffer) -> PlannedValue:
    """The argument or result that a buffer is."""
    assert buffer.number is not None
    return (plan.inputs if buffer.role == "argument" else plan.outputs)[buffer.number]


def _temporaries(usage: Liveness, running: Program, locate: _Locations) -> Iterable[Contributor]:
    """Temporaries alive at the peak; those of one kind and source line are added up.

    An array that a loop fills step by step has the name of the op that makes its elements, not of the loop.
    """
    sizes = LocalSizes(running.meshes)
    sums: dict[tuple[str, str, str], tuple[int, int]] = {}
    for buffer in usage.buffers:
        if buffer.start <= usage.fullest <= buffer.end and buffer.bytes:
            key = _maker(buffer, usage, sizes, locate)
            count, total = sums.get(key, (0, 0))
            sums[key] = count + 1, total + buffer.bytes
    for (primitive, location, kind), (count, total) in sums.items():
        yield Contributor(primitive, "temporary", total, count, location, kind)


def _maker(buffer: Buffer, usage: Liveness, sizes: LocalSizes, locate: _Locations) -> tuple[str, str, str]:
    """Primitive and location of the op that makes a buffer, and the buffer's type where a loop fills it."""
    if buffer.written is not None:
        writer, value = usage.writers[buffer.written], buffer.written
        return label_of(writer), locate(writer), f"{value.type.dtype}[{','.join(map(str, sizes.shape(value)))}]"
    return ("", "", "") if buffer.maker is None else (label_of(buffer.maker), locate(buffer.maker), "")


def _order(part: Contributor) -> tuple[int, str, str, str]:
    return -part.bytes, part.name, part.location, part.type


KIND = "smaller-peak"

MIN_SAVING = 0.05
"""A variant whose peak is lower by a smaller part is no remedy: estimates differ from compiled programs by as much."""

DOMINANT_SHARE = 0.5
"""Residuals dominate where they are this part of the peak."""

MAX_OPS = 50_000
"""Ops of a program from which on no variants are planned: each takes as long as the plan itself."""


def remedies(plan: PlanRecord, memory: MemoryAnalysis, analysed: Callable[[PlanRecord], MemoryAnalysis]) -> tuple[Finding, ...]:
    """Variants with a smaller peak, where the plan does not fit, or where residuals of scans are most of its peak; the best first."""
    peak, residuals = memory.peak_memory_in_bytes, _residual_bytes(plan, memory)
    dominated = residuals >= max(GRAVE, DOMINANT_SHARE * peak)
    if plan.variants is None or not (dominated or memory.fits is False) or sum(1 for _ in plan.program.walk()) > MAX_OPS:
        return ()
    smaller: list[tuple[int, Finding]] = []
    for variant in plan.variants.variants(plan, peak):
        after = analysed(variant.plan).peak_memory_in_bytes
        if after > (1 - MIN_SAVING) * peak:
            continue
        room = memory.hardware_bytes
        fits = "" if memory.fits is not False or room is None else ", which fits" if after <= room else ", which does not fit either"
        about = f"residuals of {_scans(variant)} are {format_bytes(residuals)} of {format_bytes(peak)}; " if variant.of_residuals else ""
        of = "" if variant.of_residuals else f" of {format_bytes(peak)}"
        message = f"{about}{variant.change} leaves {format_bytes(after)}{of}{fits}"
        severity = "warning" if memory.fits is False else "info"
        smaller.append((after, Finding(KIND, message, "", variant.location, severity, peak - after)))
    return tuple(finding for _, finding in sorted(smaller, key=lambda entry: entry[0]))


def relief(plan: PlanRecord, memory: MemoryAnalysis) -> Relief:
    """The bytes at the peak of a plan that checkpoints and further donation could free."""
    return Relief(_residual_bytes(plan, memory), sum(donatable(plan.program, plan.inputs, plan.outputs, plan.donation).values()))


def _scans(variant: Variant) -> str:
    where = short_location(variant.location)
    return f"the scan at {where}" if where else "scans"


def _residual_bytes(plan: PlanRecord, memory: MemoryAnalysis) -> int:
    """Bytes at the peak of arrays that loops fill, except types of both an argument and a result, such as stacked gradients."""
    ends = ({_local_type(plan, value) for value in values} for values in (plan.inputs, plan.outputs))
    gradients = set.intersection(*ends)
    return sum(part.bytes for part in memory.contributors if part.type and part.type not in gradients)


def _local_type(plan: PlanRecord, value: PlannedValue) -> str:
    shape = local_shape(value.type, value.sharding, plan.program.meshes)
    return f"{value.dtype}[{','.join(map(str, shape))}]"
