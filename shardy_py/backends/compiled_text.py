"""Reads the text of a compiled program (optimized HLO): its collectives, how often each runs and whether it is hidden, and cycles."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from shardy_py.dialect import AxisRef, Mesh
from shardy_py.dialect.devices import device_groups
from shardy_py.plan.compiled import CompiledCollective, Shape

NAME = r"%?([\w.\-]+)"
NAMES = re.compile(NAME)
STRING = re.compile(r'"(?:[^"\\]|\\.)*"')

_INSTRUCTION = re.compile(rf"\s+(ROOT\s+)?{NAME}\s*=\s*")
_OPCODE = re.compile(r"\s*([a-z][\w\-]*)\(")
_BRACKETS = re.compile(r'"(?:[^"\\]|\\.)*"|[(){}\[\]]')
COMMENT = re.compile(r"/\*.*?\*/")
_TYPED = re.compile(r"\S+\[[^\]]*\]\S*\s+")
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
        return NAMES.findall(_TYPED.sub("", COMMENT.sub("", self.operands)))

    @property
    def called(self) -> list[tuple[str, str]]:
        """`(role, computation)` for each called computation; `role` is the attribute that names it: `body`, `calls`, ..."""
        text = STRING.sub('""', self.attributes)
        return [(role, name) for role, names in _CALLED.findall(text) for name in NAMES.findall(names)]


def op_of(line: str) -> CompiledOp | None:
    """The op of a line; None where the line holds no op.

    Example:
        >>> op = op_of("  ROOT %sum = f32[] add(%a, f32[] %b), metadata={}")
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
    return module.contents(module.entry, {})


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

    def contents(self, name: str, constants: Constants, fused: bool = False) -> tuple[CompiledCollective | CompiledCycles, ...]:
        """The collectives of a computation and of all it calls, and estimated ops, with their trips in one run of it."""
        key = (name, fused, *sorted(constants.items()))
        if key not in self._contents:
            self._contents[key] = tuple(self._read(self.ops(name), constants, fused))
        return self._contents[key]

    def ops(self, name: str) -> tuple[CompiledOp, ...]:
        """The ops of a computation; none where there is no such computation."""
        if name not in self._ops:
            self._ops[name] = tuple(filter(None, map(op_of, self.lines.get(name, ()))))
        return self._ops[name]

    def _read(self, ops: Sequence[CompiledOp], constants: Constants, fused: bool) -> Iterator[CompiledCollective | CompiledCycles]:
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
                for item in self._called(op, ops, constants):
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

    def _called(self, op: CompiledOp, around: Sequence[CompiledOp], constants: Constants) -> Iterator[CompiledCollective | CompiledCycles]:
        if op.opcode != "while":
            for _, name in op.called:
                yield from self.contents(name, {}, fused=op.opcode == "fusion")
            return
        match = _TRIPS.search(op.attributes)
        trips = trips_of(op, around, self.ops, constants) if match is None else int(match[1])
        within = loop_constants(op, around, self.ops, constants)
        for role, name in op.called:
            times = trips if trips is None or role == "body" else trips + 1
            for c in self.contents(name, within):
                yield c if times == 1 else replace(c, trips=None if times is None or c.trips is None else c.trips * times)

    def _collective(self, kind: str, op: CompiledOp, types: dict[str, str], is_hidden: bool) -> CompiledCollective:
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
        title = "" if name is None else _unquoted(name[1])
        return CompiledCollective(kind, groups, operands, 1, title, self._location(op.attributes), is_hidden)

    def _location(self, attributes: str) -> str:
        match = _FRAME.search(attributes)
        return "" if match is None else self.frames.get(int(match[1]), "")


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
    plain = COMMENT.sub("", operands)
    return plain if _SHAPE.search(plain) else " ".join(types.get(name, "") for name in NAMES.findall(plain))


def _shapes(text: str) -> tuple[Shape, ...]:
    return tuple((dtype, tuple(int(n.lstrip("<= ")) for n in dims.split(",") if n.strip())) for dtype, dims in _SHAPE.findall(text))


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


Groups = tuple[tuple[int, ...], ...]

_LISTED = re.compile(r"\breplica_groups=\{((?:\s*\{[\d,\s]*\}\s*,?)*)\s*\}")
_COUNTED = re.compile(r"\breplica_groups=\[([\d,]+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?")
_MESH = re.compile(r"\breplica_groups=@?mesh\[([^\]]*)\](?:,\s*device_ids=\(([^()]*(?:\([\d,\s]*\))?)\))?\s*\{([^}]*)\}")
_MESH_AXIS = re.compile(r"(?:'([^']*)'|\"([^\"]*)\"|(\w+))=(\d+)")
_AXIS = re.compile(r"(?:'([^']*)'|\"([^\"]*)\"|([A-Za-z_]\w*))(?::\((\d+)\)(\d+))?")
_PAIRS = re.compile(r"\bsource_target_pairs=\{((?:\s*\{[\d,\s]*\}\s*,?)*)\s*\}")
_INNER = re.compile(r"\{([^}]*)\}")


def groups_in(attributes: str, partitions: int) -> Groups:
    """The groups of devices that exchange data with each other. Raises ValueError if groups are written in another way.

    Args:
        attributes: Those of the op: `replica_groups={{0,1},{2,3}}`, `replica_groups=[2,4]<=[4,2]T(1,0)` or
            `replica_groups=mesh['x'=2,'y'=4] {'y'}`, the mesh with `, device_ids=([4,2]T(1,0))` where its devices are in another order,
            and an axis with `:(2)2` where it is a part of one.

    Example:
        >>> groups_in("replica_groups=mesh['x'=2,'y'=4] {'y'}", 8)
        ((0, 1, 2, 3), (4, 5, 6, 7))
        >>> groups_in("replica_groups=[2,2]<=[2,2]T(1,0)", 4)
        ((0, 2), (1, 3))
    """
    return _groups(attributes) or (tuple(range(partitions)),)


def pairs_in(attributes: str) -> Groups:
    """The (source, target) pairs of a collective-permute.

    Example:
        >>> pairs_in("channel_id=1, source_target_pairs={{0,1},{1,0}}")
        ((0, 1), (1, 0))
    """
    match = _PAIRS.search(attributes)
    return () if match is None else tuple(map(_numbers, _INNER.findall(match[1])))


def _groups(attributes: str) -> Groups:
    if match := _LISTED.search(attributes):
        return tuple(map(_numbers, _INNER.findall(match[1])))
    if match := _COUNTED.search(attributes):
        ids = _iota(_numbers(match[2]), _numbers(match[3] or ""))
        return _rows(ids.reshape(_numbers(match[1])))
    if match := _MESH.search(attributes):
        return _mesh_groups(match[1], match[2] or "", match[3])
    if "replica_groups=" in attributes:
        raise ValueError(f"cannot read replica groups: {attributes[attributes.index('replica_groups=') :][:120]}")
    return ()


def _mesh_groups(mesh: str, devices: str, axes: str) -> Groups:
    sizes = {quoted or double or bare: int(size) for quoted, double, bare, size in _MESH_AXIS.findall(mesh)}
    if counted := re.match(r"\s*\[([\d,]+)\](?:<=\[[\d,]+\])?(?:T\(([\d,]+)\))?", devices):
        ids = _iota(_numbers(counted[1]), _numbers(counted[2] or ""))
    else:
        ids = np.array(_numbers(devices)) if devices else np.arange(math.prod(sizes.values()))
    refs = (AxisRef(a or b or c, *((int(before), int(size)) if size else ())) for a, b, c, before, size in _AXIS.findall(axes))
    return device_groups(tuple(refs), Mesh(sizes, ids))


def _iota(dims: tuple[int, ...], order: tuple[int, ...]) -> np.ndarray:
    ids = np.arange(math.prod(dims)).reshape(dims)
    return (ids.transpose(order) if order else ids).reshape(-1)


def _rows(ids: np.ndarray) -> Groups:
    return tuple(tuple(int(i) for i in row) for row in ids)


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", text)))


Computation = Sequence[CompiledOp]
Constants = Mapping[int, int]
"""Element of the tuple that a loop carries -> its value, where that is the same integer in every trip."""

_COPIES = frozenset(("bitcast", "convert", "copy", "copy-done", "copy-start", "reshape"))
_INDEX = re.compile(r"\bindex=(\d+)")
_DIRECTION = re.compile(r"\bdirection=(\w+)")
_MIRRORED = {"LT": "GT", "GT": "LT", "LE": "GE", "GE": "LE", "NE": "NE", "EQ": "EQ"}
_DEEPEST = 64
"""Ops between a value and what it comes from, at most: more is not a counter."""


@dataclass(frozen=True, slots=True)
class Carried:
    """An integer in terms of what a loop carries."""

    element: int | None
    offset: int


class _Values:
    """Integers in one computation."""

    def __init__(
        self,
        computation: Computation,
        find: Callable[[str], Computation],
        constants: Constants,
        parameters: Sequence[Carried | None] | None = None,
    ) -> None:
        self.ops = {op.name: op for op in computation}
        self.find = find
        self.constants = constants
        self.parameters = parameters

    def of(self, name: str, depth: int = 0) -> Carried | None:
        """The constant that an op computes; None where it is unknown."""
        op = self.ops.get(name)
        if op is None or depth > _DEEPEST:
            return None
        names = op.operand_names
        if op.opcode == "constant":
            return Carried(None, int(op.operands)) if re.fullmatch(r"-?\d+", op.operands) else None
        if op.opcode == "parameter":
            number = int(op.operands)
            return self.parameters[number] if self.parameters is not None and number < len(self.parameters) else None
        if op.opcode == "get-tuple-element":
            return self._element(op, depth)
        if op.opcode in _COPIES and names:
            return self.of(names[0], depth + 1)
        if op.opcode in ("add", "subtract"):
            a, b = (self.of(operand, depth + 1) for operand in names)
            return _sum(a, b if op.opcode == "add" or b is None else _negated(b))
        return self._called(op, None, depth) if op.opcode in ("call", "fusion") else None

    def _element(self, op: CompiledOp, depth: int) -> Carried | None:
        match, source = _INDEX.search(op.attributes), self.ops.get(op.operand_names[0])
        if match is None or source is None:
            return None
        index = int(match[1])
        if source.opcode == "parameter" and self.parameters is None:
            constant = self.constants.get(index)
            return Carried(index, 0) if constant is None else Carried(None, constant)
        if source.opcode == "tuple":
            return self.of(source.operand_names[index], depth + 1)
        return self._called(source, index, depth) if source.opcode in ("call", "fusion") else None

    def inside(self, op: CompiledOp, depth: int = 0) -> tuple[_Values, CompiledOp] | None:
        """The values of the computation that an op calls, and its root."""
        called = [name for role, name in op.called if role in ("calls", "to_apply")]
        body = self.find(called[0]) if called else ()
        root = next((inner for inner in body if inner.is_root), None)
        if root is None:
            return None
        return _Values(body, self.find, {}, [self.of(operand, depth + 1) for operand in op.operand_names]), root

    def _called(self, op: CompiledOp, index: int | None, depth: int) -> Carried | None:
        inner = self.inside(op, depth)
        if inner is None:
            return None
        values, root = inner
        if index is None:
            return values.of(root.name, depth + 1)
        return values.of(root.operand_names[index], depth + 1) if root.opcode == "tuple" else None


def _negated(value: Carried) -> Carried | None:
    return Carried(None, -value.offset) if value.element is None else None


def _sum(a: Carried | None, b: Carried | None) -> Carried | None:
    if a is None or b is None or (a.element is not None and b.element is not None):
        return None
    return Carried(b.element if a.element is None else a.element, a.offset + b.offset)


def loop_constants(loop: CompiledOp, around: Computation, find: Callable[[str], Computation], constants: Constants) -> dict[int, int]:
    """The integers that a loop carries unchanged."""
    first = _carried_tuple(loop, around)
    body = find(dict(loop.called).get("body", ""))
    values, last = _Values(around, find, constants), next((op for op in body if op.is_root), None)
    if first is None or last is None or last.opcode != "tuple":
        return {}
    inner = _Values(body, find, {})
    steady = [i for i, name in enumerate(last.operand_names) if inner.of(name) == Carried(i, 0)]
    initial = {i: values.of(first[i]) for i in steady if i < len(first)}
    return {i: value.offset for i, value in initial.items() if value is not None and value.element is None}


def _carried_tuple(loop: CompiledOp, around: Computation) -> list[str] | None:
    """The ops that make the elements with which a loop begins."""
    names = loop.operand_names
    source = next((op for op in around if op.name in names), None)
    return source.operand_names if source is not None and source.opcode == "tuple" else None


def trips_of(loop: CompiledOp, around: Computation, find: Callable[[str], Computation], constants: Constants) -> int | None:
    """Trip count of a loop; None if it depends on data, or cannot be derived from the text."""
    roles, first = dict(loop.called), _carried_tuple(loop, around)
    condition, body = find(roles.get("condition", "")), find(roles.get("body", ""))
    test = next((op for op in condition if op.is_root), None)
    last = next((op for op in body if op.is_root), None)
    if first is None or test is None or last is None or last.opcode != "tuple":
        return None
    steady = loop_constants(loop, around, find, constants)
    values = _Values(condition, find, steady)
    if test.opcode == "fusion" and (inner := values.inside(test)) is not None:
        values, test = inner
    direction = _DIRECTION.search(test.attributes)
    if test.opcode != "compare" or direction is None:
        return None
    counter, bound = (values.of(name) for name in test.operand_names)
    relation = direction[1]
    if counter is None or bound is None:
        return None
    if counter.element is None:
        counter, bound, relation = bound, counter, _MIRRORED[relation]
    if counter.element is None or bound.element is not None or counter.element >= min(len(first), len(last.operand_names)):
        return None
    initial = _Values(around, find, constants).of(first[counter.element])
    step = _Values(body, find, steady).of(last.operand_names[counter.element])
    if initial is None or initial.element is not None or step is None or step.element != counter.element:
        return None
    return _count(initial.offset + counter.offset, step.offset, bound.offset, relation)


def _count(start: int, step: int, bound: int, relation: str) -> int | None:
    """Number of terms of `start, start + step, ...` before the first that is not in a relation to a bound."""
    if relation in ("GT", "GE"):
        start, step, bound, relation = -start, -step, -bound, _MIRRORED[relation]
    if relation == "LE":
        bound, relation = bound + 1, "LT"
    if relation == "LT":
        return 0 if start >= bound else -(-(bound - start) // step) if step > 0 else None
    if relation == "NE" and step and (bound - start) % step == 0 and (bound - start) // step >= 0:
        return (bound - start) // step
    return None
