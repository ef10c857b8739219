"""What the views of a plan take for granted of single ops, checked for programs that were read from a file.

The verifier checks the graph, types, shardings and rules, and what SDY ops hold; of StableHLO's ops it takes attributes as they are, since
front ends make them. A file may say anything.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from shardy_py.ir import Op, Program
from shardy_py.plan.store.checks import LIMIT, StoreError, described

WITHOUT_OPERANDS = frozenset(
    f"stablehlo.{name}" for name in ("after_all", "constant", "create_token", "custom_call", "iota", "partition_id", "replica_id", "return")
)
"""Ops of StableHLO that may have none."""


def check_ops(program: Program) -> None:
    """Checks all ops of a program.

    Args:
        program: The program; the verifier has accepted it.

    Raises:
        StoreError: An op lacks what its name promises.
    """
    for op in program.walk():
        if op.name.startswith("stablehlo.") and not op.operands and op.name not in WITHOUT_OPERANDS:
            raise StoreError(f"{op.name} has no operands")
        check = CHECKS.get(op.name)
        if check is not None:
            try:
                check(op)
            except StoreError as error:
                error.at(op.name)
                raise


def _count(op: Op, operands: int) -> None:
    if len(op.operands) != operands or len(op.results) != 1:
        raise StoreError(f"expected {operands} operands and a result, got {len(op.operands)} and {len(op.results)}")


def _number(op: Op, name: str, low: int = 0, high: int = LIMIT) -> int:
    value = op.attributes.get(name)
    if type(value) is not int or not low <= value < high:
        raise StoreError(f"the attribute {name} is {described(value)}, not a number from {low} to {high - 1}")
    return value


def _numbers(op: Op, name: str, low: int, high: int, count: int | None = None, distinct: bool = True) -> list[int]:
    values = op.attributes.get(name)
    if not isinstance(values, tuple | list) or not all(type(value) is int and low <= value < high for value in values):
        raise StoreError(f"the attribute {name} is {described(values)}, not a list of numbers from {low} to {high - 1}")
    if (distinct and len(set(values)) != len(values)) or (count is not None and len(values) != count):
        raise StoreError(f"the attribute {name} has a number twice, or not {count} of them")
    return list(values)


def _dot_general(op: Op) -> None:
    _count(op, 2)
    lengths = []
    for side, operand in zip(("lhs", "rhs"), op.operands):
        rank = operand.type.rank
        batch, contracted = (_numbers(op, f"{side}_{kind}_dimensions", 0, rank) for kind in ("batching", "contracting"))
        if set(batch) & set(contracted):
            raise StoreError("a dimension is both a batch dimension and contracted")
        lengths.append((len(batch), len(contracted)))
    if lengths[0] != lengths[1]:
        raise StoreError("the two sides have other numbers of dimensions in common")


def _convolution(op: Op) -> None:
    _count(op, 2)
    rank = op.result.type.rank
    if not all(operand.type.rank == rank >= 2 for operand in op.operands):
        raise StoreError("the ranks of operands and result differ")
    _number(op, "feature_group_count", 1)
    for name, single in (
        ("input", ("batch", "feature")),
        ("kernel", ("input_feature", "output_feature")),
        ("output", ("batch", "feature")),
    ):
        spatial = _numbers(op, f"{name}_spatial_dimensions", 0, rank, rank - 2)
        others = [_number(op, f"{name}_{kind}_dimension", 0, rank) for kind in single]
        if len({*spatial, *others}) != rank:
            raise StoreError(f"the dimensions of the {name} are not those of a tensor of rank {rank}")
    for name in ("window_strides", "lhs_dilation", "rhs_dilation"):
        _numbers(op, name, 1, LIMIT, rank - 2, distinct=False)
    padding = op.attributes.get("padding")
    pairs = isinstance(padding, tuple | list) and len(padding) == rank - 2
    if not pairs or not all(isinstance(p, tuple | list) and len(p) == 2 and all(type(n) is int for n in p) for p in padding or ()):
        raise StoreError("the padding is not a pair of numbers for each spatial dimension")


def _transpose(op: Op) -> None:
    _count(op, 1)
    rank = op.operands[0].type.rank
    _numbers(op, "permutation", 0, rank, rank)


def _window(op: Op) -> None:
    if not op.results:
        raise StoreError("expected a result")
    _numbers(op, "window_dimensions", 0, LIMIT, op.operands[0].type.rank, distinct=False)


def _sort(op: Op) -> None:
    if "dimension" in op.attributes:
        _number(op, "dimension", 0, max(op.operands[0].type.rank, 1))


def _fft(op: Op) -> None:
    _count(op, 1)
    if "fft_length" in op.attributes:
        _numbers(op, "fft_length", 0, LIMIT, distinct=False)


def _at_least(operands: int, op: Op) -> None:
    if len(op.operands) < operands or not op.results:
        raise StoreError(f"expected at least {operands} operands and a result")


def _custom_call(op: Op) -> None:
    target: Any = op.attributes.get("call_target_name", "")
    if not isinstance(target, str):
        raise StoreError(f"the attribute call_target_name is {described(target)}, not a text")


CHECKS: dict[str, Callable[[Op], None]] = {
    "stablehlo.convolution": _convolution,
    "stablehlo.custom_call": _custom_call,
    "stablehlo.divide": functools.partial(_at_least, 2),
    "stablehlo.dot": functools.partial(_at_least, 2),
    "stablehlo.dot_general": _dot_general,
    "stablehlo.fft": _fft,
    "stablehlo.reduce": functools.partial(_at_least, 1),
    "stablehlo.reduce_window": _window,
    "stablehlo.scatter": functools.partial(_at_least, 1),
    "stablehlo.select_and_scatter": _window,
    "stablehlo.sort": _sort,
    "stablehlo.transpose": _transpose,
    "stablehlo.triangular_solve": functools.partial(_at_least, 2),
}
"""Op name -> its check."""
