"""Constant folding of splats (arrays whose elements are one number), which compilers do before they assign memory."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence

from shardy_py.ir import Op

Number = int | float | bool

COMPARISONS: Mapping[str, Callable[[Number, Number], bool]] = {
    "eq": operator.eq,
    "ge": operator.ge,
    "gt": operator.gt,
    "le": operator.le,
    "lt": operator.lt,
    "ne": operator.ne,
}
"""JAX primitive -> comparison."""

WHOLE_NUMBERS: Mapping[str, Callable[[int, int], int]] = {
    "stablehlo.add": operator.add,
    "stablehlo.and": operator.and_,
    "stablehlo.maximum": max,
    "stablehlo.minimum": min,
    "stablehlo.multiply": operator.mul,
    "stablehlo.or": operator.or_,
    "stablehlo.subtract": operator.sub,
    "stablehlo.xor": operator.xor,
}
"""Op -> its function on integers, before overflow."""

SAME = frozenset(f"stablehlo.{name}" for name in ("broadcast_in_dim", "reshape", "reverse", "slice", "transpose"))


def folded(op: Op, operands: Sequence[Number | None]) -> Number | None:
    """The number that all elements of an op's result equal; None where it is unknown."""
    dtype = op.result.type.dtype
    if op.name == "stablehlo.multiply" and _bits(dtype) and 0 in operands:
        return 0
    if any(n is None for n in operands):
        return None
    numbers = [n for n in operands if n is not None]
    if op.name in SAME:
        return numbers[0]
    if op.name == "stablehlo.convert":
        return _converted(numbers[0], dtype)
    if op.name == "stablehlo.compare":
        compare = COMPARISONS.get(op.primitive or "")
        return None if compare is None else compare(*numbers)
    if op.name == "stablehlo.remainder" and dtype.startswith("uint") and numbers[1]:
        return int(numbers[0]) % int(numbers[1])
    apply = WHOLE_NUMBERS.get(op.name)
    if apply is None or len(numbers) != 2 or not (_bits(dtype) or dtype == "bool"):
        return None
    if dtype == "bool":
        return bool(apply(int(numbers[0]), int(numbers[1])) & 1) if op.name in ("stablehlo.and", "stablehlo.or", "stablehlo.xor") else None
    return _wrapped(apply(int(numbers[0]), int(numbers[1])), dtype)


def chosen(op: Op, operands: Sequence[Number | None]) -> int | None:
    """Index of the operand that an op returns: of a select by a constant, of a product with one; None of other ops."""
    if op.name == "stablehlo.multiply" and 1 in operands:
        return 1 - operands.index(1)
    if op.name != "stablehlo.select" or operands[0] is None or len(op.operands) != 3:
        return None
    return 1 if operands[0] else 2


def _bits(dtype: str) -> int:
    """Bits of an integer type; 0 of others."""
    kind, digits = ("uint", dtype[4:]) if dtype.startswith("uint") else ("int", dtype[3:]) if dtype.startswith("int") else ("", "")
    return int(digits) if kind and digits.isdigit() else 0


def _wrapped(number: int, dtype: str) -> int:
    bits = _bits(dtype)
    number &= (1 << bits) - 1
    return number if dtype.startswith("uint") or number < 1 << bits - 1 else number - (1 << bits)


def _converted(number: Number, dtype: str) -> Number | None:
    if dtype == "bool":
        return bool(number)
    if _bits(dtype):
        return _wrapped(int(number), dtype) if isinstance(number, bool | int) else None
    return float(number) if dtype in ("float32", "float64") and abs(number) < 1 << 24 else None
