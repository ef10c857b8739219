"""A plan's predicted timeline as trace events, which Perfetto (ui.perfetto.dev) and chrome://tracing open.

One track has the ops, which run one after the other; one per set of mesh axes has the collectives; a counter has the live memory. A
collective starts as early as its value is there and its links are free, and the first op that uses the value waits for it. The body of a
loop is drawn once, as long as all of its trips take. The format is Chrome's "Trace Event Format".
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from typing import Any

from shardy_py.cost.hardware import Hardware
from shardy_py.dialect.format import sizes_text
from shardy_py.ir import Block, Op, Value
from shardy_py.plan import costing
from shardy_py.plan.collectives import format_bytes
from shardy_py.plan.cost_analysis import CollectiveCost, OpCost
from shardy_py.plan.executed import Executed, executed
from shardy_py.plan.memory import analysis as memory_analysis
from shardy_py.plan.memory.analysis import MemoryAnalysis
from shardy_py.plan.record import PlanRecord

NOMINAL_MEMORY = 1e12
"""Bytes per second to and from memory, without named hardware."""

NOMINAL_LINK = 1e11
"""Bytes per second that a device receives, without named hardware."""

PROCESS = 1
OPS_TRACK = 1


def timeline(plan: PlanRecord, hardware: str | Hardware | None = None, links: Mapping[str, object] | None = None) -> dict[str, Any]:
    """The trace as plain data; times are in microseconds. Without hardware, bytes are drawn at nominal speeds."""
    analysis = costing.analyse(plan, hardware, links)
    program = executed(plan)
    scheduler = _Scheduler(program, analysis.ops, analysis.collectives)
    scheduler.block(program.block)
    for cost in scheduler.sent[None]:
        scheduler.send(cost, scheduler.clock)
    counter = _memory(memory_analysis.analyse(plan, hardware), scheduler.events)
    speed = f"nominal: {format_bytes(int(NOMINAL_MEMORY))}/s of memory, {format_bytes(int(NOMINAL_LINK))}/s of links"
    return {
        "traceEvents": [*_names(f"plan of {plan.name} on {sizes_text(plan.mesh.shape)}", scheduler.tracks), *scheduler.events, *counter],
        "displayTimeUnit": "ns",
        "otherData": {
            "hardware": speed if analysis.hardware is None else analysis.hardware.name,
            "made by": "shardy_py",
            "trips": "all trips of a loop together",
        },
    }


class _Scheduler:
    """Gives every op and collective its time; where XLA merges collectives of a region, so that the op of each is unknown, at the end."""

    def __init__(self, program: Executed, ops: tuple[OpCost, ...], collectives: tuple[CollectiveCost, ...]) -> None:
        self.names = {value: planned.path for value, planned in program.values.items()}
        self.costs = {cost.value: cost for cost in ops if cost.value}
        self.sent: dict[Op | None, list[CollectiveCost]] = defaultdict(list)
        for (_, step), cost in zip(program.transfers, collectives):
            self.sent[step].append(cost)
        self.ready: dict[Value, float] = {}
        self.free: dict[str, float] = {}
        self.clock = 0.0
        self.events: list[dict[str, Any]] = []
        self.tracks: dict[tuple[str, ...], int] = {}

    def block(self, block: Block) -> None:
        """Runs the ops of a block, each after its operands."""
        for op in block.ops:
            start = max((self.ready.get(v, 0.0) for v in op.operands), default=0.0)
            cost = self.costs.get(self.names.get(op.results[0], "")) if op.results else None
            if cost is not None and not op.regions:
                start = max(start, self.clock)
                took = cost.seconds if cost.seconds is not None else cost.bytes_accessed / NOMINAL_MEMORY
                about = {
                    "value": cost.value,
                    "module": cost.module,
                    "at": cost.location,
                    "operations": cost.flops,
                    "bytes to and from memory": cost.bytes_accessed,
                    "trips": cost.trips,
                }
                self._slice(OPS_TRACK, op.primitive or op.name, start, took, about)
                self.clock = start = start + took
            for sent in self.sent.get(op, ()):
                start = self.send(sent, start)
            for region in op.regions:
                self.ready.update((argument, start) for argument in region.arguments)
                self.block(region)
                start = max(start, self.clock)
            self.ready.update((result, start) for result in op.results)

    def send(self, cost: CollectiveCost, earliest: float) -> float:
        """Sends a collective once its links are free, and returns when it has arrived."""
        axes = cost.collective.axes or ("any devices",)
        start = max([earliest, *(self.free.get(axis, 0.0) for axis in axes)])
        took = cost.seconds if cost.seconds is not None else cost.bytes / NOMINAL_LINK
        track = self.tracks.setdefault(axes, OPS_TRACK + 1 + len(self.tracks))
        c = cost.collective
        about = {
            "value": c.value,
            "group": c.group_size,
            "bytes received": cost.bytes,
            "trips": c.trips,
            "asked for by": c.primitive,
            "at": c.location,
        }
        self._slice(track, c.kind, start, took, about)
        self.free.update((axis, start + took) for axis in axes)
        return start + took

    def _slice(self, track: int, name: str, start: float, took: float, about: dict[str, Any]) -> None:
        args = {key: entry for key, entry in about.items() if entry not in ("", None)}
        begin, end = round(start * 1e6, 3), (start + took) * 1e6
        times = {"ts": begin, "dur": round(end - begin, 3)}
        self.events.append({"ph": "X", "pid": PROCESS, "tid": track, "name": name, **times, "args": args})


def _memory(memory: MemoryAnalysis, events: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The bytes in memory while an op runs, at the time at which it starts; steps that are known by no op of the timeline are left out."""
    starts: dict[tuple[str, str], deque[float]] = defaultdict(deque)
    for event in events:
        if event["tid"] == OPS_TRACK:
            starts[event["name"], event["args"].get("at", "")].append(event["ts"])
    live: dict[float, int] = {}
    for step in memory.steps:
        waiting = starts.get((step.primitive, step.location))
        if waiting:
            at = waiting.popleft()
            live[at] = max(step.bytes, live.get(at, 0))
    return [{"ph": "C", "pid": PROCESS, "name": "live memory", "ts": at, "args": {"bytes": live[at]}} for at in sorted(live)]


def _names(process: str, tracks: Mapping[tuple[str, ...], int]) -> list[dict[str, Any]]:
    titles = {OPS_TRACK: "compute", **{track: f"collectives over {' × '.join(axes)}" for axes, track in tracks.items()}}
    named = [{"ph": "M", "pid": PROCESS, "name": "process_name", "args": {"name": process}}]
    for track, title in titles.items():
        named.append({"ph": "M", "pid": PROCESS, "tid": track, "name": "thread_name", "args": {"name": title}})
        named.append({"ph": "M", "pid": PROCESS, "tid": track, "name": "thread_sort_index", "args": {"sort_index": track}})
    return named
