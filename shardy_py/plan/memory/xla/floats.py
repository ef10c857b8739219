"""Floats of two bytes in XLA for CPUs, which computes in float32, with conversions around each op."""

from __future__ import annotations

import functools
import importlib.metadata
import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from shardy_py.cost.traffic import RESHARDING
from shardy_py.ir import Block, Op, Program, Type, Value
from shardy_py.ir.types import TensorType
from shardy_py.passes.clone import clone_program, op_like
from shardy_py.passes.dataflow import DATA_FLOW_OPS
from shardy_py.rules.traits import CONSTANTS

WIDE = "float32"

_CONVERT = "stablehlo.convert"
_TRANSPOSE = "stablehlo.transpose"
_UPDATE = "stablehlo.dynamic_update_slice"

NORMALIZED = "bfloat16"
"""Ops on this type run in float32 (`FloatNormalization`), even those that only move data: scattered updates and collectives take twice the
bytes."""

PRODUCTS: Mapping[str, frozenset[str]] = {
    name: frozenset(("stablehlo.convolution", "stablehlo.dot_general")) for name in ("bfloat16", "float16")
}
"""Element type -> the ops for which there are no kernels (`ChangeOpDataType`)."""

_KEPT = frozenset(
    (
        "stablehlo.bitcast_convert",
        "stablehlo.constant",
        _CONVERT,
        "stablehlo.custom_call",
        "sdy.constant",
        _UPDATE,
    )
)
"""Ops that take floats of two bytes. An update of a slice is fused with its conversions, and writes the array in place."""

_MOVED = frozenset(("stablehlo.broadcast_in_dim", "stablehlo.reshape", _TRANSPOSE))
"""Ops that conversions are moved through (`AlgebraicSimplifier`): they run in the type that their readers need."""

_MOVING = frozenset(
    f"stablehlo.{name}"
    for name in "abs clamp concatenate dynamic_slice gather maximum minimum negate pad reverse scatter select sign slice sort".split()
)
"""Ops whose results are elements of their operands, up to the sign."""


@dataclass(frozen=True, slots=True)
class Support:
    """The ops of bfloat16 that XLA for CPUs runs without conversions."""

    kept: frozenset[str]
    multiplies: bool
    updates: bool


def support(version: tuple[int, ...]) -> Support:
    """The support in the XLA of a version of JAX.

    Example:
        >>> support((0, 10, 2)).multiplies, "stablehlo.slice" in support((0, 12, 0)).kept
        (False, True)
    """
    return Support(_KEPT | _MOVING, True, True) if version >= (0, 11) else Support(_KEPT, False, False)


@functools.cache
def installed() -> Support:
    """The support in the XLA of the installed JAX; in the newest where none is installed, as where plans are only read."""
    try:
        version = importlib.metadata.version("jax")
    except importlib.metadata.PackageNotFoundError:
        return support((0, 11))
    return support(tuple(int(part) for part in version.split(".")[:2]))


def rounds(op: Op) -> bool:
    """Whether an op rounds to bfloat16, which is never duplicated, as most processors have no instruction for it."""
    if op.result.type.dtype != NORMALIZED:
        return False
    if op.name == _CONVERT:
        return op.operands[0].type.dtype.startswith("float")
    return op.name == _UPDATE and not installed().updates


def _in_library(op: Op) -> bool:
    """Whether a library runs a product: the rows of the first matrix are contiguous, or are copied to be so."""
    a, ranks = op.attributes, [v.type.rank for v in op.operands]
    batch, contracted = a["lhs_batching_dimensions"], a["lhs_contracting_dimensions"]
    free = [
        [
            n
            for d, n in enumerate(v.type.shape)
            if d not in a[f"{side}_batching_dimensions"] and d not in a[f"{side}_contracting_dimensions"]
        ]
        for v, side in zip(op.operands, ("lhs", "rhs"))
    ]
    if any(math.prod(sizes) == 1 for sizes in free):
        return False
    if len(contracted) > 1 or len(free[0]) > 1 or len(free[1]) > 1:
        return True
    is_transposed = any(rank == 2 and v.defining_op is not None and v.defining_op.name == _TRANSPOSE for v, rank in zip(op.operands, ranks))
    return not is_transposed and tuple(contracted) == (ranks[0] - 1,) and tuple(batch) == tuple(range(len(batch)))


def widened(program: Program) -> tuple[Program, Mapping[Value, Value] | None]:
    """A program in which ops without kernels for 2-byte floats run in float32, and the value of `program` (or None) that each value is."""
    if not any(_element(v) in PRODUCTS for op in program.walk() for v in (*op.operands, *op.results)):
        return program, None
    copy, copies = clone_program(program)
    originals = {copied: value for value, copied in copies.items()}
    for function in copy.functions:
        _Widener(installed(), originals).block(function.body, {}, {})
    return copy, originals


def _element(value: Value) -> str:
    return value.type.dtype if isinstance(value.type, TensorType) else ""


def _wide(kind: Type) -> Type:
    return TensorType(kind.shape, WIDE)


class _Widener:
    """Changes blocks."""

    def __init__(self, support: Support, originals: dict[Value, Value]) -> None:
        self.support = support
        self.originals = originals

    def block(self, block: Block, wide: Mapping[Value, Value], exact: Mapping[Value, Value]) -> None:
        """Changes the ops of a block; `exact` maps values rounded from float32 to those before rounding."""
        wide, exact = dict(wide), dict(exact)
        out: list[Op] = []
        for op in block.ops:
            if op.name == _CONVERT:
                self.convert(op, wide, exact, out)
            elif op.name in DATA_FLOW_OPS:
                for inner in op.regions:
                    self.block(inner, wide, exact)
                out.append(op)
            elif (elements := self.changed(op)) is not None:
                self.widen(op, elements, wide, exact, out)
            else:
                out.append(op)
        block.set_ops(out)

    def changed(self, op: Op) -> frozenset[str] | None:
        """The element types that are widened for an op; None if it runs without conversions."""
        if not (op.name.startswith(("stablehlo.", "chlo.")) or op.name in RESHARDING) or not op.results:
            return None
        types = {_element(v) for v in (*op.operands, *op.results)}
        if op.name == "stablehlo.dot_general" and types == {NORMALIZED, WIDE}:
            return None  # a library multiplies these without conversions
        if op.name == "stablehlo.dot_general" and types == {NORMALIZED} and self.support.multiplies and _in_library(op):
            return None
        elements = {e for e in types if e in PRODUCTS and op.name in PRODUCTS[e]}
        if NORMALIZED in types and op.name not in self.support.kept and op.name not in _MOVED:
            elements.add(NORMALIZED)
        return frozenset(elements) or None

    def convert(self, op: Op, wide: dict[Value, Value], exact: dict[Value, Value], out: list[Op]) -> None:
        """A conversion of the program; one back to float32 returns the value before rounding."""
        source = op.operands[0]
        if _element(op.result) == WIDE and source in exact:
            op.result.replace_uses(exact[source])
            op.drop_uses()
            return
        if _element(op.result) == WIDE and _element(source) == NORMALIZED:
            wide.setdefault(source, op.result)
        out.append(op)

    def widen(self, op: Op, elements: frozenset[str], wide: dict[Value, Value], exact: dict[Value, Value], out: list[Op]) -> None:
        """Puts conversions around an op."""
        operands = [self.widened(v, wide, out, op) if _element(v) in elements else v for v in op.operands]
        kinds = [_wide(v.type) if _element(v) in elements else v.type for v in op.results]
        wide_op = op_like(op, operands, kinds)
        out.append(wide_op)
        for old, new in zip(op.results, wide_op.results):
            new.sharding = old.sharding
            if new.type == old.type:
                self.replace(old, new)
                continue
            rounded = _converted(new, old.type, op)
            out.append(rounded)
            self.replace(old, rounded.result)
            if _element(old) == NORMALIZED:
                exact[rounded.result] = new
        op.drop_uses()

    def replace(self, old: Value, new: Value) -> None:
        """Replaces every use of a value."""
        old.replace_uses(new)
        if old in self.originals:
            self.originals[new] = self.originals[old]

    def widened(self, value: Value, wide: dict[Value, Value], out: list[Op], reader: Op) -> Value:
        """A value in float32."""
        copy = wide.get(value)
        if copy is not None:
            return copy
        maker = value.defining_op
        if maker is not None and maker.name in _MOVED:
            op = op_like(maker, [self.widened(maker.operands[0], wide, out, reader)], [_wide(value.type)])
        elif maker is not None and maker.name in CONSTANTS:
            number = maker.attributes["value"]
            if isinstance(number, np.ndarray | np.generic):
                number = number.astype(WIDE)
            op = op_like(maker, [], [_wide(value.type)], attributes={**maker.attributes, "value": number})
        else:
            op = _converted(value, _wide(value.type), reader if maker is None else maker)
        op.result.sharding = value.sharding
        out.append(op)
        wide[value] = op.result
        return op.result


def _converted(value: Value, kind: Type, op: Op) -> Op:
    convert = Op(_CONVERT, [value], [kind], rule_decided=True, location=op.location, primitive="convert_element_type")
    convert.result.sharding = value.sharding
    return convert
