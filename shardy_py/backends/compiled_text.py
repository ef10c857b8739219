"""Reads the text of a compiled program (optimized HLO): its collectives, how often each runs, and which buffers it reuses."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from shardy_py.backends.compiled_groups import groups_in, pairs_in
from shardy_py.backends.compiled_ops import NAME, NAMES, STRING, CompiledOp, op_of
from shardy_py.backends.compiled_trips import Constants, loop_constants, trips_of
from shardy_py.plan.collectives import received_bytes

Shape = tuple[str, tuple[int, ...]]
"""Element type in XLA's spelling (`f32`, `bf16`, `pred`), and dimensions."""


@dataclass(frozen=True)
class CompiledCollective:
    """One collective op of a compiled program.

    Attributes:
        groups: The devices that exchange data with each other, by position in the mesh; of a `collective_permute` the pairs of source and
            target.
        operands: One per tensor that moves. XLA makes one op of several all-reduces; the pieces of an `all_to_all`, one per device of
            the group, are put together again.
    """

    kind: str
    groups: tuple[tuple[int, ...], ...]
    operands: tuple[Shape, ...]
    trips: int | None
    op_name: str
    location: str

    @property
    def group_size(self) -> int:
        """Number of devices that exchange data with each other."""
        return max(map(len, self.groups), default=1)

    @property
    def pieces(self) -> tuple[int, ...]:
        """Bytes of each operand on one device."""
        return tuple(map(shape_bytes, self.operands))

    @property
    def operand_bytes(self) -> int:
        """Bytes of all operands on one device."""
        return sum(self.pieces)

    @property
    def received_bytes(self) -> int:
        """Bytes that a device receives each time it runs."""
        return sum(received_bytes(self.kind, self.group_size, piece) for piece in self.pieces)

    @property
    def total_bytes(self) -> int | None:
        """Bytes that a device receives in one call; None where the number of trips is unknown."""
        return None if self.trips is None else self.received_bytes * self.trips


def collectives_in(hlo_text: str) -> list[CompiledCollective]:
    """The collectives of a compiled program, bodies of loops, branches and other computations included.

    Ops are known by opcode, not by name. An op in a computation that is called from several places is listed for each of them. The
    condition of a loop runs once more than its body. Raises ValueError if the text is not a complete HLO module.
    """
    module = _Module(hlo_text)
    if module.entry is None:
        raise ValueError("this text has no ENTRY computation: pass the whole of compiled.as_text()")
    return list(module.collectives(module.entry, {}))


_KINDS = {
    "all-gather": "all_gather",
    "all-reduce": "all_reduce",
    "reduce-scatter": "reduce_scatter",
    "all-to-all": "all_to_all",
    "ragged-all-to-all": "all_to_all",
    "collective-permute": "collective_permute",
}
_HEAD = re.compile(rf"(ENTRY\s+)?{NAME}\s*\(.*\{{\s*$")
_COMMENT = re.compile(r"/\*.*?\*/")
_CHAIN = re.compile(r'\bchain_id="?(\d+)')
_STARTS = 'custom_call_target="AsyncCollectiveStart"'
_TRIPS = re.compile(r'known_trip_count\\?":\s*\{\s*\\?"n\\?":\s*\\?"(\d+)')
_SHAPE = re.compile(r"\b([a-z]\w*)\[([^\]]*)\]")
_OP_NAME = re.compile(r'\bop_name="((?:[^"\\]|\\.)*)"')
_FRAME = re.compile(r"\bstack_frame_id=(\d+)")
_SOURCE = re.compile(r'\bsource_file="((?:[^"\\]|\\.)*)"\s+source_line=(\d+)')
_PARTITIONS = re.compile(r"\bnum_partitions=(\d+)")


class _Module:
    """The computations of a module; the lines of those that are never called stay unread."""

    def __init__(self, text: str) -> None:
        self.lines: dict[str, list[str]] = {}
        self.entry: str | None = None
        self._ops: dict[str, tuple[CompiledOp, ...]] = {}
        self._collectives: dict[tuple[object, ...], tuple[CompiledCollective, ...]] = {}
        head: list[str] = []
        current = head
        for line in text.splitlines():
            if line[:1] not in ("", " ", "\t", "}") and (match := _HEAD.match(line)) and " -> " in line:
                current = self.lines[match[2]] = []
                if match[1]:
                    self.entry = match[2]
            elif line.startswith("}"):
                current = head
            else:
                current.append(line)
        count = _PARTITIONS.search(head[0] if head else "")
        self.partitions = 1 if count is None else int(count[1])
        self.frames = _frames(head)
        self.chains = _started_chains(self.lines.values())

    def collectives(self, name: str, constants: Constants, fused: bool = False) -> tuple[CompiledCollective, ...]:
        """The collectives of a computation and of all it calls, with their trips in one run of it."""
        key = (name, fused, *sorted(constants.items()))
        if key not in self._collectives:
            self._collectives[key] = tuple(self._read(self.ops(name), constants, fused))
        return self._collectives[key]

    def ops(self, name: str) -> tuple[CompiledOp, ...]:
        """The ops of a computation; none where there is no such computation."""
        if name not in self._ops:
            self._ops[name] = tuple(filter(None, map(op_of, self.lines.get(name, ()))))
        return self._ops[name]

    def _read(self, ops: Sequence[CompiledOp], constants: Constants, fused: bool) -> Iterator[CompiledCollective]:
        types = {op.name: op.type for op in ops}
        started = {name for op in ops if _STARTS in op.attributes for name in op.operand_names}
        for op in ops:
            kind = _KINDS.get(op.opcode.removesuffix("-start"))
            if kind is not None:
                if fused and kind == "all_reduce" and _keeps_a_slice(op, ops):
                    kind = "reduce_scatter"
                # Fusions that carry a collective on while they compute hold its op too: it counts where it is started.
                chain = _CHAIN.search(op.attributes)
                if chain is None or chain[1] not in self.chains or op.name in started:
                    yield self._collective(kind, op, types)
            elif not op.opcode.endswith(("-done", "-update")):
                yield from self._called(op, ops, constants)

    def _called(self, op: CompiledOp, around: Sequence[CompiledOp], constants: Constants) -> Iterator[CompiledCollective]:
        if op.opcode != "while":
            for _, name in op.called:
                yield from self.collectives(name, {}, op.opcode == "fusion")
            return
        match = _TRIPS.search(op.attributes)
        trips = trips_of(op, around, self.ops, constants) if match is None else int(match[1])
        within = loop_constants(op, around, self.ops, constants)
        for role, name in op.called:
            times = trips if trips is None or role == "body" else trips + 1
            for c in self.collectives(name, within):
                yield c if times == 1 else replace(c, trips=None if times is None or c.trips is None else c.trips * times)

    def _collective(self, kind: str, op: CompiledOp, types: dict[str, str]) -> CompiledCollective:
        attributes = STRING.sub('""', op.attributes)
        operands = _shapes(_operand_types(op.operands, types))
        if kind == "collective_permute":
            groups = pairs_in(attributes)
            if op.type.count("[") < len(operands):
                operands = operands[:1]  # the others are buffers to write to and offsets
        else:
            groups = groups_in(attributes, self.partitions)
            if kind == "all_to_all" and len(operands) > 1:
                operands = ((operands[0][0], (len(operands), *operands[0][1])),)
        name = _OP_NAME.search(op.attributes)
        return CompiledCollective(kind, groups, operands, 1, "" if name is None else _unquoted(name[1]), self._location(op.attributes))

    def _location(self, attributes: str) -> str:
        if match := _FRAME.search(attributes):
            return self.frames.get(int(match[1]), "")
        match = _SOURCE.search(attributes)
        return "" if match is None else f"{_unquoted(match[1])}:{match[2]}"


def _started_chains(computations: Iterable[Sequence[str]]) -> set[str]:
    """The chains of fusions that begin with a computation in which a collective is started."""
    return {
        chain[1]
        for lines in computations
        if any(_STARTS in line for line in lines)
        for line in lines
        if (chain := _CHAIN.search(line)) is not None
    }


def _keeps_a_slice(op: CompiledOp, computation: Sequence[CompiledOp]) -> bool:
    """Whether all that is read of an all-reduce is a slice: in a fusion, the form in which TPUs run a reduce-scatter."""
    readers = [other for other in computation if op.name in other.operand_names]
    return len(readers) == 1 and readers[0].opcode == "dynamic-slice"


def _operand_types(operands: str, types: dict[str, str]) -> str:
    """The types of operands: written before their names in some texts, else those of the ops with these names."""
    plain = _COMMENT.sub("", operands)
    return plain if _SHAPE.search(plain) else " ".join(types.get(name, "") for name in NAMES.findall(plain))


def _shapes(text: str) -> tuple[Shape, ...]:
    return tuple((dtype, tuple(int(n.lstrip("<= ")) for n in dims.split(",") if n.strip())) for dtype, dims in _SHAPE.findall(text))


def shape_bytes(shape: Shape) -> int:
    """Bytes of an array of XLA's.

    Example:
        >>> shape_bytes(("bf16", (8, 4))), shape_bytes(("pred", (3,))), shape_bytes(("f32", ()))
        (64, 3, 4)
    """
    dtype, dims = shape
    bits = re.search(r"\d+", dtype)
    return -(-math.prod(dims) * (8 if dtype == "pred" else 0 if bits is None else int(bits[0])) // 8)


def _unquoted(text: str) -> str:
    return re.sub(r"\\(.)", r"\1", text)


_ENTRY_OF_TABLE = re.compile(r"(\d+) (.*)$")


def _frames(head: list[str]) -> dict[int, str]:
    """`file:line` of the innermost place of each stack frame, from the tables before the first computation."""
    tables: dict[str, dict[int, str]] = {}
    current: dict[int, str] = {}
    for line in head:
        if match := _ENTRY_OF_TABLE.match(line):
            current[int(match[1])] = match[2]
        elif line and line.isalpha():
            current = tables.setdefault(line, {})
    files = {i: _unquoted(name.strip().removeprefix('"').removesuffix('"')) for i, name in tables.get("FileNames", {}).items()}
    places: dict[int, str] = {}
    for i, text in tables.get("FileLocations", {}).items():
        fields = dict(re.findall(r"(\w+)=(\d+)", text))
        name = files.get(int(fields.get("file_name_id", 0)), "")
        places[i] = f"{name}:{fields.get('line', 0)}" if name else ""
    locations: dict[int, str] = {}
    for i, text in tables.get("StackFrames", {}).items():
        match = re.search(r"file_location_id=(\d+)", text)
        locations[i] = "" if match is None else places.get(int(match[1]), "")
    return locations
