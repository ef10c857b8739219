"""Donation: the output that reuses the memory of each donated input, or the reason why none does.

XLA pairs a donated input with an output of as many bytes per device, whatever else they are; JAX says which by their order
(`_set_up_aliases` in its lowering). So pairs are chosen here, and `Arrangement` says how a jitted function has to be laid
out for JAX to make the same ones.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from shardy_py.dialect import TensorSharding
from shardy_py.dialect.grouping import grouped
from shardy_py.ir import Program, Type
from shardy_py.ir.types import local_bytes, local_shape
from shardy_py.plan.checks.wording import NOTABLE
from shardy_py.plan.collectives import format_bytes
from shardy_py.plan.findings import Finding
from shardy_py.plan.in_place import origins
from shardy_py.plan.paths import names_of
from shardy_py.plan.values import PlannedValue, typed

Kind = Literal["aliased", "unused", "shape", "dtype", "sharding", "taken", "off"]


@dataclass(frozen=True, slots=True)
class Donated:
    """A donated leaf of the arguments.

    Attributes:
        path: `params['w']`.
        type: Shape and element type.
        sharding: None is replicated.
        aliased: Path of the output that takes its memory; None where none does, and the array stays alive.
        reason: The ground for the pair, or the reason why there is none.
        bytes_per_device: Bytes of its largest piece.
        kind: `aliased`, or why not: the function does not use it (`unused`); no output has its `shape`; one has, but another `dtype` or
            `sharding`, so that it takes another number of bytes; each output of its size is `taken` by another argument; a setting of JAX
            turns donation `off`.
        fix: Advice where it is not reused.
        input: Its number among the leaves of the arguments.
        output: The number of the output among the leaves of the result.
        parameter: The number of the input among the parameters that the compiled program keeps; None where it is unused.

    Example:
        >>> import jax, jax.numpy as jnp, shardy_py as sp
        >>> from jax.sharding import PartitionSpec as P
        >>> step = sp.auto_shard(lambda w: w * 2, mesh={"data": 4}, in_shardings=P("data"), donate_argnums=0)
        >>> (donated,) = step.plan(jax.ShapeDtypeStruct((8, 8), jnp.float32)).donation
        >>> donated.path, donated.aliased, donated.kind
        ('w', 'result', 'aliased')
    """

    path: str
    type: Type
    sharding: TensorSharding | None
    aliased: str | None
    reason: str
    bytes_per_device: int
    kind: Kind
    fix: str
    input: int
    output: int | None
    parameter: int | None

    def __str__(self) -> str:
        described = f"{self.path}: {typed(self.type, self.sharding)}"
        if self.aliased is None:
            return f"{described} is not reused: {self.reason}"
        return f"{described} -> {self.aliased}  {format_bytes(self.bytes_per_device)}  {self.reason}"


def donations(
    program: Program,
    inputs: Sequence[PlannedValue],
    outputs: Sequence[PlannedValue],
    donated: Sequence[bool],
    used: Sequence[bool],
    off: str = "",
) -> tuple[Donated, ...]:
    """Pairs donated inputs with the outputs that reuse their memory."""
    ins, outs = _buffers(inputs, program), _buffers(outputs, program)
    usable = [b for b in ins if donated[b.index] and used[b.index] and not off]
    paired = {one.index: (other.index, ground) for one, other, ground in pairs(usable, outs, _origins(program))}
    takers = {output: inputs[number].path for number, (output, _) in paired.items()}
    entries = []
    for buffer, value, is_donated in zip(ins, inputs, donated):
        if not is_donated:
            continue
        kind: Kind
        output = None
        if buffer.index in paired:
            kind, fix = "aliased", ""
            output, reason = paired[buffer.index]
        elif not used[buffer.index]:
            kind, reason, fix = "unused", "the function does not use it", f"do not donate {value.path}, or drop the argument"
        elif off:
            kind, reason, fix = "off", off, "turn the setting off"
        else:
            kind, reason, fix = _refusal(buffer, value, outs, outputs, takers)
        aliased = None if output is None else outputs[output].path
        parameter = sum(used[: buffer.index]) if used[buffer.index] else None
        entries.append(
            Donated(value.path, value.type, value.sharding, aliased, reason, buffer.bytes, kind, fix, buffer.index, output, parameter)
        )
    return tuple(entries)


def handed_on(
    program: Program, inputs: Sequence[PlannedValue], outputs: Sequence[PlannedValue], donated: Sequence[Donated]
) -> tuple[tuple[int, int], ...]:
    """Undonated inputs, each with the result of its type and name, which replaces it in the next call."""
    named = ((one.index, other.index, same_end(one.names[1:], other.names)) for one, other in undonated(program, inputs, outputs, donated))
    return tuple(
        (input, output)
        for input, output, end in named
        if inputs[input].type == outputs[output].type and not all(name.isdigit() for name in end)
    )


def undonated(
    program: Program, inputs: Sequence[PlannedValue], outputs: Sequence[PlannedValue], donated: Sequence[Donated]
) -> list[tuple[DonatedBuffer, DonatedBuffer]]:
    """Undonated inputs, each with a result that could reuse its memory."""
    excluded, reusing = {d.input for d in donated}, {d.output for d in donated}
    ins = [b for b in _buffers(inputs, program) if b.index not in excluded and program.main.arguments[b.index].uses]
    outs = [b for b in _buffers(outputs, program) if b.index not in reusing]
    return [(one, other) for one, other, _ in pairs(ins, outs, _origins(program))]


def _origins(program: Program) -> Callable[[int], dict[int, int]]:
    """The arguments that a result depends on position by position, by their numbers, with the ops between."""
    results, arguments = program.main.body.terminator.operands, {value: number for number, value in enumerate(program.main.arguments)}
    return lambda output: origins(results[output], arguments)


def _buffers(values: Sequence[PlannedValue], program: Program) -> list[DonatedBuffer]:
    buffers = []
    for number, value in enumerate(values):
        shape = local_shape(value.type, value.sharding, program.meshes)
        size = local_bytes(value.type, value.sharding, program.meshes)
        buffers.append(DonatedBuffer(number, names_of(value.path), shape, value.dtype, size, value.memory_kind))
    return buffers


def _refusal(
    buffer: DonatedBuffer, value: PlannedValue, outs: Sequence[DonatedBuffer], outputs: Sequence[PlannedValue], takers: Mapping[int, str]
) -> tuple[Kind, str, str]:
    """Kind, reason, and advice for an input that no output takes."""
    drop = f"do not donate {value.path}"
    fitting = [out for out in outs if out.room == buffer.room]
    alike = [out for out in outs if outputs[out.index].shape == value.shape and out not in fitting and out.index not in takers]
    if fitting and not alike:
        shown = ", ".join(f"{outputs[out.index].path} takes {takers[out.index]}" for out in fitting[:2])
        more = f", and {len(fitting) - 2} more are taken" if len(fitting) > 2 else ""
        return "taken", f"no output of its size is left: {shown}{more}", drop
    if not alike:
        return "shape", f"no output has the shape {typed(value.type, None)}", drop
    alike.sort(key=lambda out: (out.dtype != buffer.dtype, -len(same_end(out.names, buffer.names)), out.index))
    out = outputs[alike[0].index]
    sizes = f"{format_bytes(buffer.bytes)} and {format_bytes(alike[0].bytes)} per device"
    both = f"it is {typed(value.type, value.sharding)}, {out.path} is {typed(out.type, out.sharding)}: {sizes}"
    if out.dtype != value.dtype:
        return "dtype", f"the element types differ: {both}", f"return {out.path} as {value.dtype}, or {drop}"
    if out.memory_kind != value.memory_kind:
        kinds = f"it is in {value.memory_kind or 'device'} memory, {out.path} in {out.memory_kind or 'device'} memory"
        return "sharding", f"the memories differ: {kinds}", f"give {out.path} the memory kind of {value.path} in out_shardings, or {drop}"
    return "sharding", f"the shardings differ: {both}", f"give {out.path} the sharding of {value.path} in out_shardings, or {drop}"


def refusals(donated: Sequence[Donated], location: str = "") -> tuple[Finding, ...]:
    """Findings for donated leaves that no output takes: warnings from `NOTABLE` bytes on, else notes."""
    return tuple(
        Finding(
            "refused-donation",
            f"{typed(d.type, d.sharding)} is donated but not reused: {d.reason}",
            d.path,
            location,
            "warning" if d.bytes_per_device >= NOTABLE else "info",
            d.bytes_per_device,
            fix=d.fix,
        )
        for d in donated
        if d.aliased is None
    )


@dataclass(frozen=True, slots=True)
class Arrangement:
    """Order of arguments and results of a jitted function for which JAX pairs donated inputs with outputs as planned.

    Attributes:
        donated: The leaves of the arguments that are donated, in their order.
        outputs: The order of the leaves of the result; None as they are.
        is_fixed: Whether arguments and results keep their order, although donated arrays may get other results then.
    """

    donated: tuple[int, ...] = ()
    outputs: tuple[int, ...] | None = None
    is_fixed: bool = False


def arrangement(donated: Sequence[Donated], program: Program, outputs: Sequence[PlannedValue]) -> Arrangement:
    """The arrangement that yields the planned pairs: paired outputs in the order of their inputs, then the others.

    Pairs of equal pieces come first: JAX would give an input that takes an output of another type one of its own type instead.
    """
    pieces = [(local_shape(value.type, value.sharding, program.meshes), value.dtype) for value in outputs]
    donors = [(d.input, d.output, (local_shape(d.type, d.sharding, program.meshes), d.type.dtype)) for d in donated if d.output is not None]
    donors.sort(key=lambda donor: (pieces[donor[1]] != donor[2], donor[0]))
    order = dict.fromkeys((*(output for _, output, _ in donors), *range(len(outputs))))
    return Arrangement(tuple(input for input, _, _ in donors), None if list(order) == sorted(order) else tuple(order))


@dataclass(frozen=True, slots=True)
class DonatedBuffer:
    """A leaf of the arguments or of the result, as a device sees it."""

    index: int
    names: tuple[str, ...]
    shape: tuple[int, ...]
    dtype: str
    bytes: int
    memory_kind: str = ""

    @property
    def room(self) -> Hashable:
        """What two have in common of which one could reuse the memory of the other."""
        return math.prod(self.shape), self.bytes, self.memory_kind

    @property
    def piece(self) -> Hashable:
        """What two have in common whose pieces are equal."""
        return self.shape, self.dtype, self.memory_kind


Pair = tuple[DonatedBuffer, DonatedBuffer, str]
"""A donated input, the output that reuses its memory, and the ground."""


IS_RETURNED, UPDATED, SAME_NAME, SAME_PLACE, SAME_SIZE = (
    "it is this output",
    "the output is an update of it",
    "the names agree",
    "the places agree",
    "the sizes agree",
)
"""Grounds for a pair, the best first."""


def pairs(inputs: Sequence[DonatedBuffer], outputs: Sequence[DonatedBuffer], origins: Callable[[int], dict[int, int]]) -> list[Pair]:
    """As many inputs and outputs as sizes allow, in order of inputs.

    Pieces of the same shape and element type are paired first, then those of as many elements and bytes. Among candidates an input
    that is returned goes to that output, then to one that is computed from it position by position, then to one with the same end of
    its path, and so on; ties go by order.
    """
    paired: list[Pair] = []
    for key in (lambda b: b.piece, lambda b: b.room):
        taken = {id(buffer) for pair in paired for buffer in pair[:2]}
        left_in, left_out = (grouped((b for b in buffers if id(b) not in taken), key) for buffers in (inputs, outputs))
        for group, candidates in left_in.items():
            paired += _matched(candidates, left_out.get(group, ()), origins)
    return sorted(paired, key=lambda pair: pair[0].index)


def _matched(inputs: Sequence[DonatedBuffer], outputs: Sequence[DonatedBuffer], origins: Callable[[int], dict[int, int]]) -> list[Pair]:
    """Pairs of the unpaired inputs and outputs of one size."""
    free, free_outputs = {b.index: b for b in inputs}, {b.index: b for b in outputs}
    paired: list[Pair] = []

    def take(input: int, output: int, reason: str) -> None:
        if input in free and output in free_outputs:
            paired.append((free.pop(input), free_outputs.pop(output), reason))

    candidates: list[tuple[tuple[int, ...], int, int]] = []
    for output in outputs:
        for index, steps in origins(output.index).items():
            if index in free:
                shared = len(same_end(free[index].names, output.names))
                candidates.append(((int(steps > 0), -shared, steps, index, output.index), index, output.index))
    for (updated, *_), index, output_index in sorted(candidates):
        take(index, output_index, UPDATED if updated else IS_RETURNED)
    for reason in (SAME_NAME, SAME_PLACE):  # of paths that end in the same components, the longest ends first
        for length in range(max((len(b.names) for b in free.values()), default=0), 0, -1):
            ends = grouped((b for b in reversed(free_outputs.values()) if len(b.names) >= length), lambda b, n=length: b.names[-n:])
            for buffer in list(free.values()):
                end = buffer.names[-length:]
                if len(end) == length and ends.get(end) and (reason == SAME_PLACE or not all(part.isdigit() for part in end)):
                    take(buffer.index, ends[end].pop().index, reason)
    for index, output_index in zip(list(free), list(free_outputs)):
        take(index, output_index, SAME_SIZE)
    return paired


def same_end(a: tuple[str, ...], b: tuple[str, ...]) -> tuple[str, ...]:
    """The trailing components that two paths share."""
    count = 0
    for x, y in zip(reversed(a), reversed(b)):
        if x != y:
            break
        count += 1
    return a[len(a) - count :]
