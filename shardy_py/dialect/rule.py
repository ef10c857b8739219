"""OpShardingRule: which dimensions of an op's operands and results go together, as factors."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from enum import IntEnum
from typing import final

from shardy_py.dialect._intern import Interned, integer
from shardy_py.dialect._scan import Scanner

DimMapping = tuple[int, ...]
"""The factors that make up one dimension, major to minor."""

TensorMapping = tuple[DimMapping, ...]
"""One `DimMapping` per dimension of a tensor."""

LETTERS = "ijklmnopqrstuvwxyz"

_FACTOR_NUMBER = re.compile(r"z_([0-9]*)")
_SPECIAL_FACTORS = ("reduction", "need_replication", "permutation", "blocked_propagation")


class FactorType(IntEnum):
    """The communication that an op needs where a factor is sharded."""

    PASS_THROUGH = 0
    """Nothing: every device works on its part."""
    REDUCTION = 1
    """An all-reduce of the results."""
    NEED_REPLICATION = 2
    """The factor must not be sharded."""
    PERMUTATION = 3
    """A collective-permute."""


class PropagationDirection(IntEnum):
    """Where a sharding may move through an op: nowhere, from operands to results, from results to operands, or both ways."""

    NONE = 0
    FORWARD = 1
    BACKWARD = 2
    BOTH = 3

    def __str__(self) -> str:
        return self.name


@final
class OpShardingRule(Interned):
    """Factors of an op, and for each operand and result which factors make up each dimension.

    A matrix product of `i x k` and `k x j` has three factors, `([i, k], [k, j])->([i, j])`, of which k is a reduction.

    Args:
        factor_sizes: Size of each factor.
        operand_mappings: Per operand, per dimension, the factor indices from major to minor.
        result_mappings: Same for the results.
        reduction: Factors that are summed (or otherwise reduced) over.
        need_replication: Factors that must not be sharded where the op runs.
        permutation: Factors that need data of neighbours when sharded.
        blocked_propagation: Factors along which shardings do not propagate.
        is_custom: Whether a user wrote the rule; such a rule is kept by passes that fill in the others.

    Attributes:
        num_factors: Number of factors.
        factor_types: `FactorType` of each factor.
        mappings: Operand mappings, then result mappings.
        non_scalar_tensors: Indices into `mappings` of the tensors that have dimensions.
        batching_factors: Pass-through factors that every tensor with dimensions has.
        tensor_sizes: Product of the factor sizes of each tensor of `mappings`.
        has_compound_dims: Whether any dimension has several factors.

    Example:
        >>> OpShardingRule((8, 4, 2), [[[0], [2]], [[2], [1]]], [[[0], [1]]], reduction=[2])
        #sdy.op_sharding_rule<([i, k], [k, j])->([i, j]) {i=8, j=4, k=2} reduction={k}>
    """

    mnemonic = "op_sharding_rule"

    factor_sizes: tuple[int, ...]
    operand_mappings: tuple[TensorMapping, ...]
    result_mappings: tuple[TensorMapping, ...]
    reduction: tuple[int, ...]
    need_replication: tuple[int, ...]
    permutation: tuple[int, ...]
    blocked_propagation: tuple[int, ...]
    is_custom: bool
    num_factors: int
    factor_types: tuple[FactorType, ...]
    mappings: tuple[TensorMapping, ...]
    non_scalar_tensors: tuple[int, ...]
    batching_factors: tuple[int, ...]
    tensor_sizes: tuple[int, ...]
    has_compound_dims: bool
    __slots__ = tuple(__annotations__)

    def __new__(  # noqa: D102
        cls,
        factor_sizes: Iterable[int],
        operand_mappings: Iterable[Iterable[Iterable[int]]],
        result_mappings: Iterable[Iterable[Iterable[int]]],
        reduction: Iterable[int] = (),
        need_replication: Iterable[int] = (),
        permutation: Iterable[int] = (),
        blocked_propagation: Iterable[int] = (),
        is_custom: bool = False,
    ) -> OpShardingRule:
        key = (
            _ints(factor_sizes),
            tuple(tuple(map(_ints, mapping)) for mapping in operand_mappings),
            tuple(tuple(map(_ints, mapping)) for mapping in result_mappings),
            _ints(reduction),
            _ints(need_replication),
            _ints(permutation),
            _ints(blocked_propagation),
            bool(is_custom),
        )
        return cls._table.get(key) or cls._interned(*key, **_derived(*key[:6]))

    def is_in_all_non_scalar_tensors(self, factor: int) -> bool:
        """Whether every tensor that has dimensions has the factor."""
        return all(any(factor in dim for dim in self.mappings[i]) for i in self.non_scalar_tensors)

    def text(self, *, short: bool = False) -> str:
        """SDY text; `short` leaves out `#sdy.op_sharding_rule`."""
        sides = "->".join(f"({', '.join(map(_tensor_text, side))})" for side in (self.operand_mappings, self.result_mappings))
        sizes = ", ".join(f"{factor_symbol(f)}={n}" for f, n in enumerate(self.factor_sizes))
        parts = [sides, f"{{{sizes}}}"] if sizes else [sides]
        for name in _SPECIAL_FACTORS:
            factors: tuple[int, ...] = getattr(self, name)
            if factors:
                parts.append(f"{name}={{{', '.join(map(factor_symbol, factors))}}}")
        body = f"<{' '.join(parts)}{', custom' if self.is_custom else ''}>"
        return body if short else f"#sdy.op_sharding_rule{body}"

    @classmethod
    def read(cls, scanner: Scanner) -> OpShardingRule:
        """Reads a sharding rule at the cursor."""

        def tensors() -> tuple[tuple[tuple[int, ...], ...], ...]:
            return scanner.listed("(", ")", lambda: scanner.listed("[", "]", lambda: _read_factors(scanner)), may_be_empty=False)

        scanner.expect("<")
        operands = tensors()
        scanner.expect("->")
        results = tensors()
        sizes: list[int] = []
        if scanner.at("{"):
            scanner.listed("{", "}", lambda: sizes.append(_read_factor_size(scanner, len(sizes))))
        special: dict[str, tuple[int, ...]] = {}
        for name in _SPECIAL_FACTORS:
            if scanner.accept_keyword(name):
                scanner.expect("=")
                special[name] = scanner.listed("{", "}", lambda: _read_factor(scanner))
        is_custom = scanner.accept(",")
        if is_custom and not scanner.accept_keyword("custom"):
            scanner.fail("expected 'custom'")
        if not scanner.accept(">"):
            scanner.fail("expected '>'", fix=f"what may follow is, in this order: {', '.join(_SPECIAL_FACTORS)}, then ', custom'")
        return OpShardingRule(tuple(sizes), operands, results, **special, is_custom=is_custom)

    def __str__(self) -> str:
        return self.text()


def factor_symbol(factor: int) -> str:
    """`i` to `z` for the first eighteen factors, then `z_1`, `z_2`, ..."""
    return LETTERS[factor] if factor < len(LETTERS) else f"z_{factor - len(LETTERS) + 1}"


def _read_factor_size(scanner: Scanner, expected: int) -> int:
    start = scanner.position
    factor = _read_factor(scanner)
    if factor != expected:
        scanner.fail(
            "expecting factor indices to be ordered like an iota ([0,1,2,...], e.g. {i=#, j=#, ...}). "
            f"Expecting factor index symbol '{factor_symbol(expected)}', received: '{factor_symbol(factor)}'",
            start,
        )
    scanner.expect("=")
    return scanner.integer()


def _read_factor(scanner: Scanner) -> int:
    start = scanner.position
    first, *rest = _read_factors(scanner) or (-1,)
    if first < 0:
        scanner.fail("expected valid keyword", fix="write a factor: 'i' to 'z', or 'z_1', 'z_2', ...")
    if rest:
        scanner.fail(f"expecting single factor symbol: {''.join(map(factor_symbol, rest))}", start + len(factor_symbol(first)))
    return first


def _read_factors(scanner: Scanner) -> tuple[int, ...]:
    """The factors of one dimension, such as `ijz_1`; none if no identifier comes next."""
    start = scanner.position
    word = scanner.keyword() or ""
    factors: list[int] = []
    at = 0
    while at < len(word):
        number = _FACTOR_NUMBER.match(word, at)
        if number is not None:
            digits = number.group(1)
            if not digits:
                scanner.fail(f"expecting integer after 'z_'. Received: '{word[at:]}'", start + at)
            if digits[0] == "0":
                scanner.fail(f"expecting positive integer without leading zeros. Received: '{digits}'", start + at + 2)
            factors.append(len(LETTERS) + int(digits) - 1)
            at = number.end()
        else:
            letter = LETTERS.find(word[at])
            if letter < 0:
                scanner.fail(f"expecting symbol from 'i' to 'z'. Received: '{word[at]}'", start + at)
            factors.append(letter)
            at += 1
    return tuple(factors)


def _tensor_text(mapping: TensorMapping) -> str:
    return f"[{', '.join(''.join(map(factor_symbol, dim)) or '#sdy.dim_mapping' for dim in mapping)}]"


def _ints(values: Iterable[int]) -> tuple[int, ...]:
    return tuple(map(integer, values))


def _derived(
    sizes: tuple[int, ...],
    operands: tuple[TensorMapping, ...],
    results: tuple[TensorMapping, ...],
    reduction: tuple[int, ...],
    need_replication: tuple[int, ...],
    permutation: tuple[int, ...],
) -> dict[str, object]:
    types = [FactorType.PASS_THROUGH] * len(sizes)
    for factors, kind in (
        (permutation, FactorType.PERMUTATION),
        (need_replication, FactorType.NEED_REPLICATION),
        (reduction, FactorType.REDUCTION),
    ):
        for factor in factors:
            if 0 <= factor < len(types):
                types[factor] = kind
    mappings = operands + results
    present = [{f for dim in mapping for f in dim} for mapping in mappings]
    non_scalar = tuple(i for i, mapping in enumerate(mappings) if mapping)
    batching = tuple(f for f, kind in enumerate(types) if kind is FactorType.PASS_THROUGH and all(f in present[i] for i in non_scalar))
    return {
        "num_factors": len(sizes),
        "factor_types": tuple(types),
        "mappings": mappings,
        "non_scalar_tensors": non_scalar,
        "batching_factors": batching,
        "tensor_sizes": tuple(math.prod(sizes[f] for dim in mapping for f in dim if 0 <= f < len(sizes)) for mapping in mappings),
        "has_compound_dims": any(len(dim) > 1 for mapping in mappings for dim in mapping),
    }
