"""The figures of the memory that a call of a planned function takes on one device, and their text."""

from __future__ import annotations

import functools
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal, Protocol

from shardy_py.dialect.format import aligned, printable, short_location
from shardy_py.plan.collectives import format_bytes
from shardy_py.plan.findings import Findings
from shardy_py.plan.report import LISTED, Report, html_report, html_rows

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
        ...     print(buffer.bytes, buffer.role, buffer.path, buffer.type)
        16384 temporary w float32[64,64]
        4096 argument x float32[64@x,64]
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
    """

    residual_bytes: int
    donation_bytes: int


class Queries(Protocol):
    """Answers questions on an analysis that need the plan."""

    def findings(self, memory: MemoryAnalysis) -> Findings:
        """See `MemoryAnalysis.findings`."""
        ...

    def peak_buffers(self, memory: MemoryAnalysis) -> tuple[PeakBuffer, ...]:
        """See `MemoryAnalysis.peak_buffers`."""
        ...

    def relief(self, memory: MemoryAnalysis) -> Relief:
        """See `MemoryAnalysis.relief`."""
        ...


@dataclass(frozen=True, repr=False)
class MemoryAnalysis(Report):
    """Bytes on one device, under the names of `jax.stages.Compiled.memory_analysis()`.

    Arguments and results have memory of their own during the whole call, as XLA runs programs; temporaries share the rest, and make the
    peak.

    Attributes:
        name: The function's name.
        compiler: `"cpu"` where four facts of XLA for CPUs hold (a plan for CPUs, with no hardware named), else `"accelerator"`.
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
        queries: Answers what needs the plan; no part of the figures.
    """

    name: str
    compiler: Literal["cpu", "accelerator"]
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
    queries: Queries | None = field(default=None, repr=False, compare=False)

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
        return Findings() if self.queries is None else self.queries.findings(self)

    @functools.cached_property
    def peak_buffers(self) -> tuple[PeakBuffer, ...]:
        """The single arrays in memory at the peak, the largest first, each with its value and layout."""
        return () if self.queries is None else self.queries.peak_buffers(self)

    @functools.cached_property
    def relief(self) -> Relief | None:
        """Bytes at the peak that `jax.checkpoint` and further donation could free; None of an analysis without its plan."""
        return None if self.queries is None else self.queries.relief(self)

    def as_text(self, limit: int = LISTED) -> str:
        """Sizes, the peak with its contributors, and whether it fits.

        Args:
            limit: Number of contributors to list.
        """
        return printable(memory_text(self, limit))

    def to_dict(self) -> dict[str, Any]:
        """Everything as dicts, lists, strings and numbers, with a version."""
        derived = {"fits": self.fits, "headroom_in_bytes": self.headroom_in_bytes, "findings": [asdict(f) for f in self.findings]}
        figures = asdict(replace(self, queries=None))
        del figures["queries"]
        return {"format": FORMAT, "version": VERSION, **figures, **derived}

    def _repr_html_(self) -> str:
        return html_report(_title(self), summary_rows(self), (), (("at the peak", html_rows(contributor_rows(self, LISTED))),))


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


def memory_text(memory: MemoryAnalysis, limit: int) -> str:
    """See `MemoryAnalysis.as_text`."""
    lines = [_title(memory), *(f"  {line}" for line in aligned(summary_rows(memory)))]
    parts = contributor_rows(memory, limit)
    if parts:
        lines += ["at the peak", *(f"  {line}" for line in aligned(parts, right=[0]))]
    if memory.findings:
        lines += ["what leaves less", *(f"  {finding.message}" for finding in memory.findings)]
    return "\n".join(lines)


def _title(memory: MemoryAnalysis) -> str:
    return f"memory of {memory.name} per device, on {'a cpu' if memory.compiler == 'cpu' else 'an accelerator'}"
