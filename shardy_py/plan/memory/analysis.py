"""The memory that a call of a planned function takes on one device, computed without compiling it: figures, their text, remedies."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

from shardy_py.cost.hardware import Hardware, HardwareError
from shardy_py.cost.hardware_table import TILES, hardware
from shardy_py.cost.liveness.live import Buffer, Liveness, liveness
from shardy_py.cost.sizes import LocalSizes
from shardy_py.dialect.format import printable, short_location
from shardy_py.ir import Op, Program, Value
from shardy_py.ir.types import local_shape
from shardy_py.passes.collection import no_collection
from shardy_py.plan.checks.wording import GRAVE
from shardy_py.plan.collectives import format_bytes
from shardy_py.plan.donation import undonated
from shardy_py.plan.executed import explicit_of
from shardy_py.plan.findings import Finding, Findings
from shardy_py.plan.memory.lifetimes import Lifetimes, LiveBuffer, label_of
from shardy_py.plan.record import Analysis, PlanRecord, Variant
from shardy_py.plan.report import LISTED, Report, table
from shardy_py.plan.values import PlannedValue, location_of, typed

FORMAT = "shardy_py.memory"
VERSION = 2


@dataclass(frozen=True, slots=True)
class Contributor:
    """Arrays in memory at the peak, under one name.

    Attributes:
        name: Path of an argument or result; of temporaries the primitive that makes them.
        role: `argument`, `output` (one that takes no donated argument's memory) or `temporary`.
        type: Element type and shape on a device, of arrays that a loop fills step by step, such as the residuals of a scan; empty of
            others.
    """

    name: str
    role: Literal["argument", "output", "temporary"]
    bytes: int
    count: int = 1
    location: str = ""
    type: str = ""

    @property
    def title(self) -> str:
        """The name, with the type if there is one."""
        return f"{self.name} {self.type}" if self.type else self.name


@dataclass(frozen=True, slots=True)
class Step:
    """One step of the program; ops that are computed where they are read are part of their readers.

    Attributes:
        primitive: The JAX primitive of the (last) op.
    """

    bytes: int
    primitive: str
    location: str


@dataclass(frozen=True, slots=True)
class PeakBuffer:
    """One array in memory at the peak.

    Attributes:
        path: As `plan.values` names the value that it holds; empty where it holds none of them, as scratch memory of a library call.
        role: `argument`, `output` (one that takes no donated argument's memory) or `temporary`.
        bytes: On one device.
        type: Element type, shape and the layout in which the value lies there; empty where it holds none.
        primitive: The JAX primitive that makes it; of a value that is brought to another layout the collective.
        location: `file:line` of the user's code that makes it, of a collective that it is made for; empty for arguments and results.

    Example:
        >>> import jax.numpy as jnp, shardy_py as sp
        >>> from jax.sharding import PartitionSpec as P
        >>> step = sp.auto_shard(lambda x, w: jnp.sin(x) @ w, mesh={"x": 4}, in_shardings=P("x"), lowering="jit")
        >>> for buffer in step.plan(jnp.ones((64, 64)), jnp.ones((64, 64))).memory_analysis("h100").peak_buffers[:2]:
        ...     print(buffer.bytes, buffer.role, buffer.path or buffer.primitive)
        16384 temporary all_gather
        4096 argument x
    """

    path: str
    role: Literal["argument", "output", "temporary"]
    bytes: int
    type: str = ""
    primitive: str = ""
    location: str = ""

    def __str__(self) -> str:
        parts = (format_bytes(self.bytes), self.role, self.path, self.type, self.primitive, short_location(self.location))
        return printable("  ".join(filter(None, parts)))


@dataclass(frozen=True, slots=True)
class Relief:
    """Bytes at the peak that a change of the function would free; see `MemoryAnalysis.findings` for the peaks that are left.

    Attributes:
        residual_bytes: Of residuals that scans keep for their backward passes, which `jax.checkpoint` recomputes.
        donation_bytes: Of results that could lie in arguments that are not donated.

    Example:
        >>> import jax, jax.numpy as jnp, shardy_py as sp
        >>> x = jax.ShapeDtypeStruct((64, 64), jnp.float32)
        >>> sp.auto_shard(lambda x: x + 1, mesh={"x": 4}, in_shardings=jax.P("x")).plan(x).memory_analysis().relief
        Relief(residual_bytes=0, donation_bytes=4096)
    """

    residual_bytes: int
    donation_bytes: int


@dataclass(frozen=True, repr=False)
class MemoryAnalysis(Report):
    """Bytes on one device, under the names of `jax.stages.Compiled.memory_analysis()`.

    Arguments and results have memory of their own during the whole call, as XLA runs programs; temporaries share the rest, and make the
    peak.

    Attributes:
        name: The function's name.
        platform: Whose compiler places arrays: `"cpu"` for a plan for CPUs with no hardware named, `"tpu"`, else `"gpu"`.
        argument_size_in_bytes: Of the arguments, with those that nothing uses: the caller holds them, though jaxlib leaves them out.
        output_size_in_bytes: Of the results.
        alias_size_in_bytes: Of results that lie in donated arguments.
        temp_size_in_bytes: Of temporaries, at the step at which they need most.
        peak_memory_in_bytes: Arguments, results that are not aliased, and temporaries. (jaxlib's figure of this name leaves temporaries
            out on CPU.)
        host_argument_size_in_bytes: Of the arguments in the host's memory, which are in no figure above; so are those that follow.
        host_output_size_in_bytes: Of the results there.
        host_alias_size_in_bytes: Of results that lie in donated arguments there.
        host_temp_size_in_bytes: Of temporaries there, at the step at which they need most.
        generated_code_size_in_bytes: Unknown to a plan, and 0 on CPU in jaxlib too.
        peak_step: The number in `steps` of the one at which most is alive.
        steps: In the order in which they run, with the bytes in memory; a loop's body once, between two steps of the loop.
        contributors: Arrays in memory at the peak, largest first. They add up to the peak, except gaps between arrays.
        hardware: The hardware it should fit; None without.
        hardware_bytes: Its memory.
        plan: The plan, from which findings and buffers are computed; no part of the figures.

    Example:
        >>> import jax, jax.numpy as jnp, shardy_py as sp
        >>> plan = sp.auto_shard(jnp.dot, mesh={"x": 4}, in_shardings=(jax.P(None, "x"), jax.P("x"))).plan(jnp.eye(8), jnp.eye(8))
        >>> memory = plan.memory_analysis("h100")
        >>> memory.argument_size_in_bytes, memory.peak_memory_in_bytes, memory.fits
        (128, 640, True)
    """

    name: str
    platform: Literal["cpu", "tpu", "gpu"]
    argument_size_in_bytes: int
    output_size_in_bytes: int
    alias_size_in_bytes: int
    temp_size_in_bytes: int
    peak_memory_in_bytes: int
    peak_step: int
    steps: tuple[Step, ...]
    contributors: tuple[Contributor, ...]
    hardware: str | None = None
    hardware_bytes: int | None = None
    host_argument_size_in_bytes: int = 0
    host_output_size_in_bytes: int = 0
    host_alias_size_in_bytes: int = 0
    host_temp_size_in_bytes: int = 0
    generated_code_size_in_bytes: int = 0
    plan: PlanRecord | None = field(default=None, repr=False, compare=False)

    @property
    def compiler(self) -> Literal["cpu", "accelerator"]:
        """The rules that were followed: four facts hold of XLA for CPUs only."""
        return "cpu" if self.platform == "cpu" else "accelerator"

    @property
    def peak(self) -> Step | None:
        """The step at which most is alive; None of a function that does nothing."""
        return self.steps[self.peak_step] if self.steps else None

    @property
    def series(self) -> tuple[int, ...]:
        """Bytes in memory at each step."""
        return tuple(step.bytes for step in self.steps)

    @property
    def headroom_in_bytes(self) -> int | None:
        """Memory of the hardware less the peak, negative where it does not fit; None without hardware."""
        return None if self.hardware_bytes is None else self.hardware_bytes - self.peak_memory_in_bytes

    @property
    def fits(self) -> bool | None:
        """Whether the peak fits the hardware's memory; None without hardware."""
        room = self.headroom_in_bytes
        return None if room is None else room >= 0

    @functools.cached_property
    def findings(self) -> Findings:
        """Variants with a smaller peak, where it does not fit or residuals of scans are most of it, the best first.

        Variants of the function are planned when this is first read, as where the analysis is printed: with the bodies of scans
        checkpointed, more arguments donated, large arguments cut further.
        """
        return Findings() if self.plan is None else Findings(_remedies(self.plan, self))

    @functools.cached_property
    def peak_buffers(self) -> tuple[PeakBuffer, ...]:
        """The single arrays in memory at the peak, the largest first, each with its value and layout."""
        return () if self.plan is None else _peak_buffers(self.plan, self)

    @functools.cached_property
    def relief(self) -> Relief | None:
        """Bytes at the peak that `jax.checkpoint` and further donation could free; None of an analysis without its plan."""
        plan = self.plan
        if plan is None:
            return None
        donation = sum(one.bytes for one, _ in undonated(plan.program, plan.inputs, plan.outputs, plan.donation))
        return Relief(_residual_bytes(plan, self), donation)

    def as_text(self, limit: int = LISTED) -> str:
        """Sizes, the peak with its contributors, and whether it fits.

        Args:
            limit: Number of contributors to list.
        """
        lines = table(_title(self), summary_rows(self)) + table("at the peak", contributor_rows(self, limit), [0])
        if self.findings:
            lines += ["what would take less memory", *(f"  {finding.message}" for finding in self.findings)]
        return printable("\n".join(lines))

    def to_dict(self) -> dict[str, Any]:
        """Everything as dicts, lists, strings and numbers, with a version."""
        derived = {"fits": self.fits, "headroom_in_bytes": self.headroom_in_bytes, "findings": [asdict(f) for f in self.findings]}
        figures = asdict(replace(self, plan=None))
        del figures["plan"]
        return {"format": FORMAT, "version": VERSION, **figures, **derived}


def summary_rows(memory: MemoryAnalysis) -> list[tuple[str, str]]:
    """Title and figure of each size."""
    rows = [("arguments", format_bytes(memory.argument_size_in_bytes)), ("results", format_bytes(memory.output_size_in_bytes))]
    if memory.alias_size_in_bytes:
        rows.append(("  of them in donated arguments", format_bytes(memory.alias_size_in_bytes)))
    rows.append(("temporaries", format_bytes(memory.temp_size_in_bytes)))
    rows.append(("peak", format_bytes(memory.peak_memory_in_bytes)))
    if memory.peak is not None and memory.temp_size_in_bytes:
        where = short_location(memory.peak.location)
        rows.append(("  at", ", ".join(filter(None, (memory.peak.primitive, where, f"step {memory.peak_step} of {len(memory.steps)}")))))
    host = memory.host_argument_size_in_bytes + memory.host_output_size_in_bytes - memory.host_alias_size_in_bytes
    if host or memory.host_temp_size_in_bytes:
        parts = (format_bytes(host), format_bytes(memory.host_temp_size_in_bytes))
        rows.append(("in the host's memory", "{} of arguments and results, {} of temporaries".format(*parts)))
    room = memory.headroom_in_bytes
    if room is not None:
        margin = f"{format_bytes(room)} left" if room >= 0 else f"{format_bytes(-room)} too much"
        rows.append(("fits" if room >= 0 else "does not fit", f"{format_bytes(memory.hardware_bytes or 0)} of {memory.hardware}: {margin}"))
    return rows


def contributor_rows(memory: MemoryAnalysis, limit: int) -> list[tuple[str, ...]]:
    """Bytes, role, name, place of the largest contributors."""
    rows = [_row(part) for part in memory.contributors[:limit]]
    rest = memory.contributors[limit:]
    if rest:
        rows.append((format_bytes(sum(part.bytes for part in rest)), "", f"{len(rest)} more", ""))
    return rows


def _row(part: Contributor) -> tuple[str, ...]:
    many = f" x{part.count}" if part.count > 1 else ""
    return format_bytes(part.bytes), part.role, part.title + many, short_location(part.location)


def _title(memory: MemoryAnalysis) -> str:
    return f"memory of {memory.name} per device, on {'a cpu' if memory.compiler == 'cpu' else 'an accelerator'}"


ERROR = 0.2
"""The part by which peaks were at most below those of compiled programs, by docs/memory.md."""

ADDRESS = 8
"""Bytes of each entry of the table through which a function on CPUs returns several results."""


def analyse(plan: PlanRecord, which: str | Hardware | int | None = None) -> MemoryAnalysis:
    """The memory that a call of a plan takes; see `Plan.memory_analysis`. A plan remembers it."""
    name, room = capacity_of(which)
    memory = _USAGE[platform_of(plan, which)](plan)[0]
    if not isinstance(which, int | None) and 2 * memory.temp_size_in_bytes <= hardware(which).vmem_bytes:
        memory = _in_vmem(memory)
    room_of = name or (None if room is None else "the given memory")
    return replace(memory, hardware=room_of, hardware_bytes=room, plan=plan)


def _in_vmem(memory: MemoryAnalysis) -> MemoryAnalysis:
    """The analysis of a program all of whose temporaries lie in VMEM."""
    fixed = memory.peak_memory_in_bytes - memory.temp_size_in_bytes
    parts = tuple(part for part in memory.contributors if part.role != "temporary")
    steps = tuple(replace(step, bytes=fixed) for step in memory.steps)
    return replace(memory, temp_size_in_bytes=0, peak_memory_in_bytes=fixed, peak_step=0, steps=steps, contributors=parts)


def lifetimes(plan: PlanRecord, which: str | Hardware | int | None = None) -> Lifetimes:
    """The buffers behind `analyse`, with the steps at which they are alive and the values that they hold. A plan remembers them."""
    return _USAGE[platform_of(plan, which)](plan)[1]


def platform_of(plan: PlanRecord, which: str | Hardware | int | None) -> Literal["cpu", "tpu", "gpu"]:
    """The platform whose compiler places arrays: the hardware's, else the plan's."""
    is_named = not isinstance(which, int | None)
    platform = hardware(which).platform if is_named else plan.platform
    return "tpu" if platform == "tpu" else "cpu" if platform == "cpu" and not is_named else "gpu"


def _peak_buffers(plan: PlanRecord, memory: MemoryAnalysis) -> tuple[PeakBuffer, ...]:
    usage = _USAGE[memory.platform](plan)[1]
    buffers = (*usage.resident, *(usage.alive(memory.peak_step) if memory.temp_size_in_bytes else ()))
    return tuple(_described(plan, usage, b) for b in sorted(buffers, key=lambda b: -b.bytes))


def _described(plan: PlanRecord, usage: Lifetimes, buffer: LiveBuffer) -> PeakBuffer:
    value, op = buffer.value, buffer.reader or buffer.op
    if (leaf := buffer.leaf) is not None:
        return PeakBuffer(leaf.path, buffer.role, buffer.bytes, typed(leaf.type, leaf.sharding))
    path = "" if value is None else plan.names.get(value, value.name or "")
    of = "" if value is None else typed(value.type, buffer.sharding)
    return PeakBuffer(path, buffer.role, buffer.bytes, of, buffer.label, "" if op is None else location_of(usage.running, op))


@no_collection()
def _analysed(plan: PlanRecord, platform: Literal["cpu", "tpu", "gpu"]) -> tuple[MemoryAnalysis, Lifetimes]:
    running = explicit_of(plan).program if plan.active_partitioner is None else plan.active_partitioner.local_program(plan)
    donated = {d.input: d.output for d in plan.donation if d.output is not None}
    on_cpu, tile = platform == "cpu", TILES.get(platform)
    on_device, in_host, resident = _resident(plan, donated, tile)
    host_arguments = [] if plan.platform == "cpu" else [i for i, value in enumerate(plan.inputs) if value.memory_kind]
    sizes = LocalSizes(running.meshes, tile)
    usage = liveness(running.main, sizes, donated, host_arguments, on_cpu)
    outputs = on_device["output"] + (ADDRESS * len(plan.outputs) if on_cpu and len(plan.outputs) != 1 else 0)
    fixed = on_device["argument"] + outputs - on_device["alias"]
    locate = functools.cache(functools.partial(location_of, running))
    parts = [*(Contributor(b.leaf.path, b.role, b.bytes) for b in resident if b.leaf), *_temporaries(usage, running, locate)]
    temporary = max(usage.series, default=0)
    memory = MemoryAnalysis(
        name=plan.name,
        platform=platform,
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
    return memory, Lifetimes(plan, running, usage, resident, fixed, sizes)


_USAGE = {platform: Analysis(functools.partial(_analysed, platform=platform)) for platform in ("cpu", "tpu", "gpu")}
"""The analysis by whose compiler places arrays, and the buffers behind it."""


def capacity_of(which: str | Hardware | int | None) -> tuple[str, int | None]:
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


def _resident(
    plan: PlanRecord, donated: Mapping[int, int], tile: tuple[int, int] | None
) -> tuple[dict[str, int], dict[str, int], tuple[LiveBuffer, ...]]:
    """Bytes of arguments, results and results in donated arguments on the device and in the host's memory, and the device's buffers.

    Arguments are those that the compiled program has, buffers of results those that take no donated argument's memory.
    """
    main, sizes = plan.program.main, LocalSizes(plan.program.meshes, tile)
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
                buffers.append(LiveBuffer(size, role, "", value, leaf.sharding, leaf=leaf))
    return on_device, in_host, tuple(buffers)


def _temporaries(usage: Liveness, running: Program, locate: Callable[[Op], str]) -> Iterable[Contributor]:
    """Temporaries alive at the peak; those of one kind and source line are added up.

    An array that a loop fills step by step has the name of the op that makes its elements, not of the loop.
    """
    sizes = LocalSizes(running.meshes)
    sums: dict[tuple[str, str, str], tuple[int, int]] = {}
    fullest = usage.fullest
    for buffer in usage.buffers:
        if buffer.start <= fullest <= buffer.end and buffer.bytes:
            key = _maker(buffer, usage, sizes, locate)
            count, total = sums.get(key, (0, 0))
            sums[key] = count + 1, total + buffer.bytes
    for (primitive, location, kind), (count, total) in sums.items():
        yield Contributor(primitive, "temporary", total, count, location, kind)


def _maker(buffer: Buffer, usage: Liveness, sizes: LocalSizes, locate: Callable[[Op], str]) -> tuple[str, str, str]:
    """Primitive and location of the op that makes a buffer, and the buffer's type where a loop fills it."""
    if buffer.written is not None:
        writer, value = usage.writers[buffer.written], buffer.written
        return label_of(writer), locate(writer), f"{value.type.dtype}[{','.join(map(str, sizes.shape(value)))}]"
    return ("", "", "") if buffer.maker is None else (label_of(buffer.maker), locate(buffer.maker), "")


def _order(part: Contributor) -> tuple[int, str, str, str]:
    return -part.bytes, part.name, part.location, part.type


MIN_SAVING = 0.05
"""A variant whose peak is lower by a smaller part is no remedy: estimates differ from compiled programs by as much."""

DOMINANT_SHARE = 0.5
"""Residuals dominate where they are this part of the peak."""

MAX_OPS = 50_000
"""Ops of a program from which on no variants are planned: each takes as long as the plan itself."""


def _remedies(plan: PlanRecord, memory: MemoryAnalysis) -> tuple[Finding, ...]:
    """Variants with a smaller peak, where the plan does not fit, or where residuals of scans are most of its peak; the best first."""
    peak, residuals = memory.peak_memory_in_bytes, _residual_bytes(plan, memory)
    dominated = residuals >= max(GRAVE, DOMINANT_SHARE * peak)
    if plan.variants is None or not (dominated or memory.fits is False) or sum(1 for _ in plan.program.walk()) > MAX_OPS:
        return ()
    smaller: list[tuple[int, Finding]] = []
    for variant in plan.variants.variants(plan, peak):
        after = _USAGE[memory.platform](variant.plan)[0].peak_memory_in_bytes
        if after > (1 - MIN_SAVING) * peak:
            continue
        room = memory.hardware_bytes
        fits = "" if memory.fits is not False or room is None else ", which fits" if after <= room else ", which does not fit either"
        about = f"residuals of {_scans(variant)} are {format_bytes(residuals)} of {format_bytes(peak)}; " if variant.of_residuals else ""
        of = "" if variant.of_residuals else f" of {format_bytes(peak)}"
        message = f"{about}{variant.change} leaves {format_bytes(after)}{of}{fits}"
        severity = "warning" if memory.fits is False else "info"
        smaller.append((after, Finding("smaller-peak", message, "", variant.location, severity, peak - after)))
    return tuple(finding for _, finding in sorted(smaller, key=lambda entry: entry[0]))


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
