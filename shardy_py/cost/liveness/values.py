"""The values of a device's program that lie in memory, and what ops take beside them.

Five rules, of XLA's compilers, say which values of ops that can be computed where they are read (`FUSED`) lie in memory:

* what an op reads that computes nothing else (a product, a sort, a collective, a loop), and what is returned;
* what several ops read, unless it costs little and is made of one array at most, which then stays in memory in its place;
* constants, positions and repeated values never do: each reader that needs them in memory has an array of its own;
* what is scattered into zeros and then added to an array is scattered into that array;
* a product or a convolution that reads an array in another order has it turned, and what is turned need not lie there as it was.

On CPUs, XLA computes with bfloat16 in float32: what an op computes takes four bytes.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from shardy_py.cost.compute import POINTWISE, TRANSCENDENTALS
from shardy_py.cost.sizes import LocalSizes
from shardy_py.cost.traffic import FORWARDED, FUSED, MOVES, Origins, is_folded
from shardy_py.ir import Block, Op, Value
from shardy_py.ir.types import moves_elements
from shardy_py.passes.dataflow import COMPUTATIONS, EDGE, FUNC_EDGE, MANUAL_COMPUTATION, WHILE
from shardy_py.rules.traits import CONSTANTS, DOTS

BRANCHES = frozenset(("stablehlo.case", "stablehlo.if"))
UPDATES = frozenset(("stablehlo.dynamic_update_slice", "stablehlo.scatter"))
"""Ops that write a part of their first operand, in place where they can."""

_ELEMENTWISE = POINTWISE | TRANSCENDENTALS
_COMPUTED = FUSED | {"sdy.all_slice", "stablehlo.gather"}
_COMPUTING = _COMPUTED | {"stablehlo.reduce", "stablehlo.dynamic_update_slice"}
"""Ops that compute their operands."""

_DEAR = TRANSCENDENTALS | {"stablehlo.divide", "stablehlo.gather", "stablehlo.remainder"}
"""Ops that are not computed twice."""

_MOVING = frozenset(
    f"stablehlo.{name}"
    for name in "all_gather all_to_all broadcast_in_dim collective_permute concatenate dynamic_slice dynamic_update_slice gather pad"
    " reverse slice transpose".split()
)
"""Ops that compute nothing."""

MAX_REDUCED = 32
"""Positions of a dimension that a CPU reduction takes at once; a longer one reads its operand from memory, except results of `_REDUCED`."""

_REDUCED = frozenset(f"stablehlo.{name}" for name in "broadcast_in_dim exponential multiply".split())

_ANNOTATIONS = frozenset(("LayoutConstraint", "Sharding"))
"""Targets of custom calls that return their operand."""


class Scratch(NamedTuple):
    """Memory that an op takes beside its operands and results.

    Attributes:
        source: The value that it is a copy of; None of memory for this step alone.
        key: Equal ones of one source are one.
    """

    bytes: int
    source: Value | None = None
    key: Hashable = None


class Values(Origins):
    """The values of a function's body that lie in memory."""

    forwarding = (FORWARDED - MOVES) | {EDGE, FUNC_EDGE, "sdy.replicated_to_unreduced"}

    def __init__(self, body: Block, sizes: LocalSizes, on_cpu: bool) -> None:
        super().__init__()
        self.on_cpu = on_cpu
        self._sizes = sizes
        self._readers: dict[Value, dict[Op, None]] = {}
        self._escaping: set[Value] = set()
        self._leaves: dict[Value, dict[Value, bool]] = {}
        self._turned: dict[Op, dict[Value, Hashable]] = {}
        self._results = set(map(self.origin, body.terminator.operands)) if body.ops else set[Value]()
        self._pieces = {
            self.origin(operand): sizes.bytes(argument)
            for op in body.ops
            if op.name == MANUAL_COMPUTATION
            for argument, operand in zip(op.regions[0].arguments, op.operands)
        }
        for op in body.walk():
            self._read(op)
        for op in body.walk():
            self._place(op)

    def forwards(self, op: Op) -> bool:
        """Whether an op's results are its operands."""
        if op.name == "stablehlo.broadcast_in_dim":  # which adds dimensions of one element
            dims: Sequence[int] = op.attributes["broadcast_dimensions"]
            return op.operands[0].type.size == op.result.type.size and list(dims) == sorted(dims)
        return super().forwards(op) or (op.name == "stablehlo.custom_call" and op.attributes.get("call_target_name") in _ANNOTATIONS)

    def bytes(self, value: Value) -> int:
        """The bytes that a value takes."""
        size = self._pieces.get(value) or self._sizes.bytes(value)
        op = value.defining_op
        if not self.on_cpu or op is None or value.type.dtype != "bfloat16" or value in self._results:
            return size
        return size if op.name in _MOVING or op.regions else 2 * size

    def leaves(self, value: Value) -> Mapping[Value, bool]:
        """The values in memory that one is read or computed from, and whether each is read position by position."""
        origin = self.origin(value)
        return self._leaves.get(origin) or ({} if origin in self._leaves else {origin: True})

    def reads(self, op: Op) -> dict[Value, bool]:
        """The values in memory that an op reads, and whether its result can be written over each."""
        elementwise = op.name in _ELEMENTWISE
        reads: dict[Value, bool] = {}
        for operand in op.operands:
            for leaf, is_aligned in self.leaves(operand).items():
                reads[leaf] = elementwise and is_aligned and reads.get(leaf, True)
        over = op.operands[:1] if op.name in UPDATES else op.operands if op.name == "stablehlo.sort" else ()
        reads.update({v: True for v in map(self.origin, over) if v in reads})
        return reads

    def steps(self, block: Block) -> Iterator[Op]:
        """The ops of a block that run on their own, those of calls in their place."""
        for op in block.ops:
            if op.name in COMPUTATIONS:
                yield from self.steps(op.regions[0])
            elif not (_is_terminator(op) or self.forwards(op) or op.name in CONSTANTS):
                if op.regions and op.name in (WHILE, *BRANCHES):
                    yield op
                elif not op.results or self.origin(op.results[0]) not in self._leaves:
                    yield op

    def scratch(self, op: Op) -> Iterator[Scratch]:
        """What an op takes while it runs.

        LAPACK works on matrices by columns. Where select-and-scatter writes is found with an array of positions for each dimension.
        """
        name, turned = op.name, self._turns(op)
        for source, key in turned.items():
            maker = source.defining_op
            is_made_turned = maker is not None and maker.name in _COMPUTED and len(self._readers[source]) == 1
            if source in self._leaves or not is_made_turned:
                yield Scratch(self.bytes(source), source, key)
        if name not in _COMPUTING:
            target = self.origin(op.operands[0]) if name in UPDATES else None
            for source in dict.fromkeys(map(self.origin, op.operands)):
                if source in self._leaves and source not in turned:
                    yield Scratch(self.bytes(source), source, "written" if source is target else None)
        if name == "stablehlo.custom_call" and str(op.attributes.get("call_target_name", "")).startswith("lapack"):
            yield from (Scratch(self.bytes(v), v) for v in map(self.origin, op.operands) if v.type.rank > 1)
            yield from (Scratch(self.bytes(v)) for v in op.results if v.type.rank > 1)
        elif name == "stablehlo.select_and_scatter":
            yield from (Scratch(4 * op.result.type.rank * self._sizes.elements(v)) for v in op.operands[:2])
        elif self.on_cpu and (name in DOTS or name == "stablehlo.convolution"):
            for v in dict.fromkeys(map(self.origin, op.operands)):
                if v.type.dtype == "bfloat16" and self.bytes(v) == self._sizes.bytes(v):
                    yield Scratch(2 * self.bytes(v), v)

    def _read(self, op: Op) -> None:
        """Enters an op among the readers of its operands."""
        if self.forwards(op) or op.name in COMPUTATIONS or op.name == "sdy.return":
            return
        origins = [*map(self.origin, op.operands)]
        if op.regions or _is_terminator(op):
            self._escaping.update(origins)
        if not _is_terminator(op):
            for origin in origins:
                self._readers.setdefault(origin, {})[op] = None

    def _place(self, op: Op) -> None:
        """Decides whether the result of an op lies in memory; those of its operands are decided."""
        if self._sum_of(op) is not None:
            self._leaves[op.result] = dict.fromkeys(self.reads(op), False)
            return
        if (op.name not in _COMPUTED and not _is_outer(op)) or self.origin(op.results[0]) is not op.results[0]:
            return
        value = op.results[0]
        if op.name in CONSTANTS:
            if _is_splat(op):
                self._leaves[value] = {}
            return
        leaves = self.reads(op)
        if not self._is_repeated(op):
            readers = self._readers.get(value, ())
            if (
                value in self._escaping
                or any(self._is_scattered(v) for v in op.operands)
                or not all(self._computes(reader, op, leaves) for reader in readers)
            ):
                return
            large = sum(2 * self.bytes(leaf) >= self.bytes(value) for leaf in leaves)
            if len(readers) > 1 and (op.name in _DEAR or large > 1):
                return
        self._leaves[value] = leaves

    def _sum_of(self, op: Op) -> Op | None:
        """The addition that scatters into its other summand instead of adding what this op scatters into zeros."""
        if op.name != "stablehlo.scatter" or op.attributes.get("body") != "stablehlo.add" or len(op.results) > 1:
            return None
        target, readers = self.origin(op.operands[0]).defining_op, [*self._readers.get(op.result, ())]
        into_zeros = target is not None and target.name in CONSTANTS and _is_zero(target.attributes.get("value"))
        adds = into_zeros and len(readers) == 1 and op.result not in self._escaping and readers[0].name == "stablehlo.add"
        return readers[0] if adds else None

    def _is_scattered(self, value: Value) -> bool:
        op = self.origin(value).defining_op
        return op is not None and self._sum_of(op) is not None

    def _is_repeated(self, op: Op) -> bool:
        if op.name == "stablehlo.iota":
            return True
        repeats = op.name == "stablehlo.broadcast_in_dim" and op.operands[0].type.size < op.result.type.size
        return repeats and op.result not in self._escaping

    def _computes(self, reader: Op, op: Op, leaves: Mapping[Value, bool]) -> bool:
        """Whether a reader computes the result of an op itself."""
        value = op.results[0]
        if _block(reader) is not _block(op):
            return False
        if value in self._turns(reader):
            return sum(map(self.bytes, leaves)) <= self.bytes(value)
        if reader.name == "stablehlo.reduce" and self.on_cpu and op.name not in _REDUCED and self._is_long(reader):
            return False
        computes = reader.name in _COMPUTING or _is_outer(reader)
        return computes and not (reader.name in UPDATES and self.origin(reader.operands[0]) is value)

    def _is_long(self, op: Op) -> bool:
        shape, dims = self._sizes.shape(op.operands[0]), op.attributes["dimensions"]
        return any(n > MAX_REDUCED and d in dims for d, n in enumerate(shape))

    def _turns(self, op: Op) -> dict[Value, Hashable]:
        """The values that a product or convolution has in another order first."""
        if op.name not in DOTS and op.name != "stablehlo.convolution":
            return {}
        turned = self._turned.get(op)
        if turned is None:
            orders = () if _is_outer(op) else _of_product(op) if op.name in DOTS else _of_convolution(op)
            turned = self._turned[op] = {}
            for value, either in orders:
                source, permutation = _untransposed(value)
                shape = self._sizes.shape(source)
                if all(moves_elements(shape, tuple(permutation[d] for d in order)) for order in either):
                    turned[self.origin(value)] = (permutation, either)
        return turned


def _of_product(op: Op) -> Iterator[tuple[Value, tuple[tuple[int, ...], ...]]]:
    """The orders in which each operand of a product can be read: dimensions of the batch, rows and columns, either first."""
    summed: Sequence[int] = op.attributes.get("lhs_contracting_dimensions", ())
    if all(op.operands[0].type.shape[d] == 1 for d in summed):
        return
    for value, side in zip(op.operands, ("lhs", "rhs")):
        batch, summed = (tuple(op.attributes.get(f"{side}_{kind}_dimensions", ())) for kind in ("batching", "contracting"))
        free = tuple(d for d in range(value.type.rank) if d not in batch and d not in summed)
        yield value, ((*batch, *free, *summed), (*batch, *summed, *free))


def _of_convolution(op: Op) -> Iterator[tuple[Value, tuple[tuple[int, ...], ...]]]:
    """Images have their channels last, and kernels their outputs."""
    a = op.attributes
    orders = (
        (a["input_batch_dimension"], *a["input_spatial_dimensions"], a["input_feature_dimension"]),
        (*a["kernel_spatial_dimensions"], a["kernel_input_feature_dimension"], a["kernel_output_feature_dimension"]),
        (a["output_batch_dimension"], *a["output_spatial_dimensions"], a["output_feature_dimension"]),
    )
    yield from ((value, (order,)) for value, order in zip((*op.operands, op.result), orders))


def _untransposed(value: Value) -> tuple[Value, tuple[int, ...]]:
    """The array that transposes in front of a product read, and its dimensions in the order in which they do."""
    permutation = tuple(range(value.type.rank))
    while (op := value.defining_op) is not None and op.name == "stablehlo.transpose" and is_folded(op):
        permutation = tuple(op.attributes["permutation"][d] for d in permutation)
        value = op.operands[0]
    return value, permutation


def _is_outer(op: Op) -> bool:
    """Whether an op is a product that sums over nothing, which is a multiplication."""
    return op.name == "stablehlo.dot_general" and not op.attributes["lhs_contracting_dimensions"]


def _is_splat(op: Op) -> bool:
    value = op.attributes.get("value")
    if isinstance(value, str):  # MLIR text, as in a plan that was read from a file
        several = value.startswith("dense<[") and "," in value
        return not several and not value.startswith("dense_resource<")
    return getattr(value, "size", 1) <= 1 or getattr(value, "is_splat", False)


def _is_zero(value: Any) -> bool:
    return value.startswith("dense<0") and "," not in value if isinstance(value, str) else not getattr(value, "any", lambda: value)()


def _is_terminator(op: Op) -> bool:
    return op.name.endswith(".return")


def _block(op: Op) -> Block | None:
    """The block in which an op runs: around calls that it stands in."""
    block = op.block
    while block is not None and isinstance(block.parent, Op) and block.parent.name in COMPUTATIONS:
        block = block.parent.block
    return block
