"""Reads the text of a compiled program (optimized HLO): its collectives, how often each runs and whether it is hidden, and cycles."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import cast

from shardy_py.plan.compiled import CompiledCollective, Shape

NAME = r"%?([\w.\-]+)"
NAMES = re.compile(NAME)
STRING = re.compile(r'"(?:[^"\\]|\\.)*"')

_INSTRUCTION = re.compile(rf"\s+(ROOT\s+)?{NAME}\s*=\s*")
_OPCODE = re.compile(r"\s*([a-z][\w\-]*)\(")
_BRACKETS = re.compile(r'"(?:[^"\\]|\\.)*"|[(){}\[\]]')
COMMENT = re.compile(r"/\*.*?\*/")
_CALLED = re.compile(
    r"\b(condition|body|to_apply|calls|branch_computations|true_computation|false_computation|called_computations)=(\{[^}]*\}|%?[\w.\-]+)"
)


@dataclass(frozen=True, slots=True)
class CompiledOp:
    """One op of a computation, `%name = type opcode(operands), attributes`."""

    name: str
    type: str
    opcode: str
    operands: str
    attributes: str
    is_root: bool

    @property
    def operand_names(self) -> list[str]:
        """The ops that it reads."""
        return NAMES.findall(COMMENT.sub("", self.operands))

    @property
    def called(self) -> list[tuple[str, str]]:
        """`(role, computation)` for each called computation; `role` is the attribute that names it: `body`, `calls`, ..."""
        text = STRING.sub('""', self.attributes)
        return [(role, name) for role, names in _CALLED.findall(text) for name in NAMES.findall(names)]


def op_of(line: str) -> CompiledOp | None:
    """The op of a line; None where the line holds no op.

    Example:
        >>> op = op_of("  ROOT %sum = f32[] add(%a, %b), metadata={}")
        >>> op.name, op.opcode, op.operand_names, op.is_root
        ('sum', 'add', ['a', 'b'], True)
    """
    match = _INSTRUCTION.match(line)
    if match is None:
        return None
    start = match.end()
    end = closing(line, start) if line.startswith("(", start) else line.find(" ", start)
    opcode = _OPCODE.match(line, end) if end >= 0 else None
    if opcode is None:
        return None
    close = closing(line, opcode.end() - 1)
    return CompiledOp(match[2], line[start:end], opcode[1], line[opcode.end() : close - 1], line[close:], match[1] is not None)


def closing(text: str, start: int) -> int:
    """The position behind the bracket that closes the one at `start`; the end of the text where none does."""
    depth = 0
    for match in _BRACKETS.finditer(text, start):
        if match[0] in "([{":
            depth += 1
        elif match[0] in ")]}":
            depth -= 1
            if not depth:
                return match.end()
    return len(text)


@dataclass(frozen=True, slots=True)
class CompiledCycles:
    """What the compiler estimates that an op takes.

    Attributes:
        location: `file:line` of the user's code; empty where unknown.
    """

    cycles: int
    trips: int | None
    location: str


def collectives_in(hlo_text: str) -> list[CompiledCollective]:
    """The collectives of a compiled program, bodies of loops, branches and other computations included.

    Ops are known by opcode, not by name. An op in a computation that is called from several places is listed for each of them. The
    condition of a loop runs once more than its body. Raises ValueError if the text is not a complete HLO module.
    """
    return [item for item in contents(hlo_text) if isinstance(item, CompiledCollective)]


def contents(hlo_text: str) -> Sequence[CompiledCollective | CompiledCycles]:
    """The collectives of a compiled program, and the other ops that the compiler estimated, as TPU's does."""
    module = _Module(hlo_text)
    if module.entry is None:
        raise ValueError("this text has no ENTRY computation: pass the whole of compiled.as_text()")
    return module.contents(module.entry)


def cycles_by_line(items: Iterable[CompiledCollective | CompiledCycles]) -> dict[str, int]:
    """`file:line` -> cycles of a call, the most first; unknown numbers of trips count once."""
    total: dict[str, int] = {}
    for item in items:
        if isinstance(item, CompiledCycles):
            total[item.location] = total.get(item.location, 0) + item.cycles * (1 if item.trips is None else item.trips)
    return dict(sorted(total.items(), key=lambda entry: -entry[1]))


def aliased_parameters(hlo_text: str) -> frozenset[int]:
    """Numbers of the parameters whose memory results take.

    Example:
        >>> aliased_parameters("HloModule m, input_output_alias={ {0}: (1, {}, may-alias), {1}: (3, {}, must-alias) }, num_partitions=8")
        frozenset({1, 3})
    """
    head, key = hlo_text.partition("\n")[0], "input_output_alias="
    start = head.find(key) + len(key)
    return frozenset(map(int, re.findall(r"\((\d+),", head[start : closing(head, start)]))) if key in head else frozenset()


_KINDS = {
    "all-gather": "all_gather",
    "all-reduce": "all_reduce",
    "reduce-scatter": "reduce_scatter",
    "all-to-all": "all_to_all",
    "ragged-all-to-all": "all_to_all",
    "collective-permute": "collective_permute",
}
_HEAD = re.compile(rf"(ENTRY\s+)?{NAME}\s*\(.*\{{\s*$")
_CHAIN = re.compile(r'\bchain_id="?(\d+)')
_CYCLES = re.compile(r'"estimated_cycles":"([1-9]\d*)"')
_STARTS = 'custom_call_target="AsyncCollectiveStart"'
_ENDS = 'custom_call_target="AsyncCollectiveDone"'
_COMPUTING = ("fusion", "convolution", "dot", "while", "call", "conditional", "reduce", "sort", "scatter")
_TRIPS = re.compile(r'known_trip_count\\?":\s*\{\s*\\?"n\\?":\s*\\?"(\d+)')
_SHAPE = re.compile(r"\b([a-z]\w*)\[([^\]]*)\]")
_OP_NAME = re.compile(r'\bop_name="((?:[^"\\]|\\.)*)"')
_FRAME = re.compile(r"\bstack_frame_id=(\d+)")
_PARTITIONS = re.compile(r"\bnum_partitions=(\d+)")


class _Module:
    """The computations of a module; the lines of those that are never called stay unread."""

    def __init__(self, text: str) -> None:
        self.lines: dict[str, list[str]] = {}
        self.entry: str | None = None
        self._ops: dict[str, tuple[CompiledOp, ...]] = {}
        self._contents: dict[tuple[object, ...], tuple[CompiledCollective | CompiledCycles, ...]] = {}
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

    def contents(
        self, name: str, parameters: tuple[Value, ...] = (), fused: bool = False
    ) -> tuple[CompiledCollective | CompiledCycles, ...]:
        """The collectives of a computation and of all it calls, and estimated ops, with their trips in one run of it."""
        key = (name, fused, parameters)
        if key not in self._contents:
            self._contents[key] = tuple(self._read(self.ops(name), parameters, fused))
        return self._contents[key]

    def ops(self, name: str) -> tuple[CompiledOp, ...]:
        """The ops of a computation; none where there is no such computation."""
        if name not in self._ops:
            self._ops[name] = tuple(filter(None, map(op_of, self.lines.get(name, ()))))
        return self._ops[name]

    def _read(self, ops: Sequence[CompiledOp], parameters: tuple[Value, ...], fused: bool) -> Iterator[CompiledCollective | CompiledCycles]:
        types = {op.name: op.type for op in ops}
        started = {name for op in ops if _STARTS in op.attributes for name in op.operand_names}
        for number, op in enumerate(ops):
            kind = _KINDS.get(op.opcode.removesuffix("-start"))
            if kind is not None:
                if fused and kind == "all_reduce" and _keeps_a_slice(op, ops):
                    kind = "reduce_scatter"
                # Fusions that carry a collective on while they compute hold its op too: it counts where it is started.
                chain = _CHAIN.search(op.attributes)
                if chain is None or chain[1] not in self.chains or op.name in started:
                    yield self._collective(kind, op, types, self._is_hidden(number, ops))
            elif not op.opcode.endswith(("-done", "-update")):
                if not fused and (estimate := _CYCLES.search(op.attributes)):
                    yield CompiledCycles(int(estimate[1]), 1, self._location(op.attributes))
                for item in self._called(op, ops, parameters):
                    hidden = isinstance(item, CompiledCollective) and self._is_hidden(number, ops)
                    yield replace(item, is_hidden=True) if hidden else item

    def _is_hidden(self, number: int, ops: Sequence[CompiledOp]) -> bool:
        """Whether an op starts what ends after other ops have computed: `-start` ops, and fusions that start a collective."""
        first = ops[number]
        if not first.opcode.endswith("-start") and not self._holds(first, _STARTS):
            return False
        carried, computes = {first.name}, False
        for op in ops[number + 1 :]:
            if not carried.isdisjoint(op.operand_names):
                if op.opcode.endswith("-done") or self._holds(op, _ENDS):
                    return computes
                carried.add(op.name)
            computes = computes or op.opcode in _COMPUTING
        return computes

    def _holds(self, op: CompiledOp, custom_call: str) -> bool:
        """Whether an op is a fusion around a custom call."""
        return op.opcode == "fusion" and any(custom_call in line for _, name in op.called for line in self.lines.get(name, ()))

    def _called(
        self, op: CompiledOp, around: Sequence[CompiledOp], parameters: tuple[Value, ...]
    ) -> Iterator[CompiledCollective | CompiledCycles]:
        if op.opcode != "while":
            for _, name in op.called:
                yield from self.contents(name, fused=op.opcode == "fusion")
            return
        trips, steady = loop_of(op, around, self.ops, parameters)
        if match := _TRIPS.search(op.attributes):
            trips = int(match[1])
        for role, name in op.called:
            times = trips if trips is None or role == "body" else trips + 1
            for c in self.contents(name, (steady,)):
                yield c if times == 1 else replace(c, trips=None if times is None or c.trips is None else c.trips * times)

    def _collective(self, kind: str, op: CompiledOp, types: dict[str, str], is_hidden: bool) -> CompiledCollective:
        attributes = STRING.sub('""', op.attributes)
        operands = _shapes(" ".join(types.get(name, "") for name in op.operand_names))
        if kind == "collective_permute":
            group = 2 if "source_target_pairs={{" in attributes else 1
            if op.type.count("[") < len(operands):
                operands = operands[:1]  # the others are buffers to write to and offsets
        else:
            group = group_size_in(attributes, self.partitions)
            if kind == "all_to_all" and len(operands) > 1:
                operands = ((operands[0][0], (len(operands), *operands[0][1])),)
        name = _OP_NAME.search(op.attributes)
        title = "" if name is None else _unquoted(name[1])
        return CompiledCollective(kind, group, operands, 1, title, self._location(op.attributes), is_hidden)

    def _location(self, attributes: str) -> str:
        match = _FRAME.search(attributes)
        return "" if match is None else self.frames.get(match[1], "")


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


def _shapes(text: str) -> tuple[Shape, ...]:
    return tuple((dtype, tuple(int(n.lstrip("<= ")) for n in dims.split(",") if n.strip())) for dtype, dims in _SHAPE.findall(text))


def _unquoted(text: str) -> str:
    return re.sub(r"\\(.)", r"\1", text)


def _frames(head: Sequence[str]) -> dict[str, str]:
    """`file:line` of the innermost place of each stack frame, from the tables before the first computation."""
    parts = re.split(r"^(\w+)$", "\n".join(head), flags=re.MULTILINE)
    tables = dict(zip(parts[1::2], parts[2::2]))

    def rows(table: str, pattern: str) -> list[tuple[str, ...]]:
        return re.findall(rf"^(\d+) {pattern}", tables.get(table, ""), re.MULTILINE)

    files = {number: _unquoted(name) for number, name in rows("FileNames", r'"(.*)"$')}
    located = rows("FileLocations", r"\{.*?\bfile_name_id=(\d+).*?\bline=(\d+)")
    places = {number: f"{files[file]}:{line}" for number, file, line in located if file in files}
    return {number: places.get(place, "") for number, place in rows("StackFrames", r"\{.*?\bfile_location_id=(\d+)")}


_GROUPS = re.compile(r"\breplica_groups=(?:\{\s*\{([\d,\s]*)\}|\[\d+,(\d+)\]<=|@?mesh\[([^\]]*)\][^{]*\{([^}]*)\}|\{\s*\})")
_MESH_AXIS = re.compile(r"(?:'([^']*)'|\"([^\"]*)\"|(\w+))=(\d+)")
_AXIS = re.compile(r"(?:'([^']*)'|\"([^\"]*)\"|([A-Za-z_]\w*))(?::\(\d+\)(\d+))?")


def group_size_in(attributes: str, partitions: int) -> int:
    """Number of devices that exchange data with each other. Raises ValueError if groups are written in another way.

    Args:
        attributes: Those of the op: `replica_groups={{0,1},{2,3}}`, `replica_groups=[2,4]<=[4,2]T(1,0)` or
            `replica_groups=mesh['x'=2,'y'=4] {'y'}`, an axis with `:(2)2` where it is a part of one; all devices where there are none.

    Example:
        >>> group_size_in("replica_groups=mesh['x'=2,'y'=4] {'y'}", 8), group_size_in("replica_groups=[4,2]<=[2,4]T(1,0)", 8)
        (4, 2)
    """
    match = _GROUPS.search(attributes)
    if match is None and "replica_groups=" in attributes:
        raise ValueError(f"cannot read replica groups: {attributes[attributes.index('replica_groups=') :][:120]}")
    listed, counted, mesh, axes = match.groups() if match is not None else (None,) * 4
    if listed is not None:
        return len(re.findall(r"\d+", listed))
    if mesh is not None:
        sizes = {a or b or c: int(size) for a, b, c, size in _MESH_AXIS.findall(mesh)}
        return math.prod(int(part) if part else sizes[a or b or c] for a, b, c, part in _AXIS.findall(axes or ""))
    return partitions if counted is None else int(counted)


Value = int | str | tuple["Value", ...] | None
"""An integer, a tuple of values, the relation of two integers with their difference; None of anything else."""

_COPIES = frozenset(("bitcast", "convert", "copy", "copy-done", "copy-start", "reshape"))
_INDEX = re.compile(r"\bindex=(\d+)")
_DIRECTION = re.compile(r"\bdirection=(\w+)")


class _Integers:
    """The integers of one computation, from those that its parameters have."""

    def __init__(self, ops: Sequence[CompiledOp], find: Callable[[str], Sequence[CompiledOp]], parameters: Sequence[Value]) -> None:
        self.ops = {op.name: op for op in ops}
        self.find = find
        self.parameters = parameters
        self._values: dict[str, Value] = {}

    @property
    def result(self) -> Value:
        """The value of the root."""
        return next((self.of(op.name) for op in self.ops.values() if op.is_root), None)

    def of(self, name: str) -> Value:
        """The value of an op."""
        if name not in self._values:
            op = self.ops.get(name)
            self._values[name] = None if op is None or "[]" not in op.type else self._computed(op)
        return self._values[name]

    def _computed(self, op: CompiledOp) -> Value:
        if op.opcode == "constant":
            return int(op.operands) if re.fullmatch(r"-?\d+", op.operands) else None
        if op.opcode == "parameter":
            return self.parameters[int(op.operands)] if int(op.operands) < len(self.parameters) else None
        operands = [self.of(name) for name in op.operand_names]
        if op.opcode == "tuple":
            return tuple(operands)
        if op.opcode in _COPIES and operands:
            return operands[0]
        if op.opcode in ("call", "fusion"):
            called = (name for role, name in op.called if role in ("calls", "to_apply"))
            return next((_Integers(self.find(name), self.find, operands).result for name in called), None)
        if op.opcode == "get-tuple-element" and isinstance(operands[0], tuple) and (match := _INDEX.search(op.attributes)):
            return operands[0][int(match[1])] if int(match[1]) < len(operands[0]) else None
        if op.opcode not in ("add", "subtract", "compare") or not (isinstance(a := operands[0], int) and isinstance(b := operands[1], int)):
            return None
        if op.opcode == "compare":
            match = _DIRECTION.search(op.attributes)
            return None if match is None else (match[1], a - b)
        return a + b if op.opcode == "add" else a - b


def loop_of(
    loop: CompiledOp, around: Sequence[CompiledOp], find: Callable[[str], Sequence[CompiledOp]], parameters: Sequence[Value]
) -> tuple[int | None, Value]:
    """The trip count of a loop, and what it carries with the integers that stay the same.

    The count is None if it depends on data, or if the counter does not grow evenly over the first three states.
    """
    roles = dict(loop.called)
    states = [_Integers(around, find, parameters).of(next(iter(loop.operand_names), ""))]
    for _ in range(2):
        states.append(_Integers(find(roles.get("body", "")), find, states[-1:]).result)
    if not all(isinstance(state, tuple) for state in states):
        return None, None
    first, second, third = cast("list[tuple[Value, ...]]", states)
    steady = tuple(a if a == b == c else None for a, b, c in zip(first, second, third))
    tests = [_Integers(find(roles.get("condition", "")), find, [state]).result for state in states]
    if not all(isinstance(test, tuple) and isinstance(test[0], str) for test in tests):
        return None, steady
    (relation, a), (_, b), (_, c) = cast("list[tuple[str, int]]", tests)
    return _count(a, b - a, relation) if b - a == c - b else None, steady


def _count(first: int, step: int, relation: str) -> int | None:
    """Number of terms of `first, first + step, ...` before the first that is not in a relation to zero."""
    if relation in ("GT", "GE"):
        first, step, relation = -first, -step, {"GT": "LT", "GE": "LE"}[relation]
    if relation in ("LT", "LE"):
        first -= relation == "LE"
        return 0 if first >= 0 else -(first // step) if step > 0 else None
    return -first // step if relation == "NE" and step and first % step == 0 and first // step <= 0 else None
