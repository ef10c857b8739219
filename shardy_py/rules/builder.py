"""FactorBuilder: collects the factors of one op and yields its sharding rule, as OpShardingRuleBuilder does in Shardy."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from shardy_py.dialect import INSTALLED, FactorType, OpShardingRule, Semantics

Shape = tuple[int, ...]

NO_DIM = -1
"""Stands for "this tensor does not have the factor" among the dimensions given to `FactorBuilder.add`."""


class Signature(NamedTuple):
    """All that the rule of an op depends on.

    Args:
        conservative: Whether factors that do not tile their dimension exactly are left out or blocked.
        context: The one fact about neighbouring ops that a few rules need (see `CONTEXT` in `registry.py`).
        semantics: The version of Shardy that the rule is of.
    """

    operands: tuple[Shape, ...]
    results: tuple[Shape, ...]
    attributes: Mapping[str, Any] = {}
    conservative: bool = False
    context: bool = False
    semantics: Semantics = INSTALLED


Builder = Callable[[Signature], OpShardingRule | None]


class FactorBuilder:
    """Collects factors in order; `build` gives each dimension left over a factor of size 1 of its own.

    Example:
        >>> builder = FactorBuilder([(8, 32), (32, 16)], [(8, 16)])
        >>> builder.add((0, NO_DIM), (0,), 8)
        >>> builder.add((NO_DIM, 1), (1,), 16)
        >>> builder.add((1, 0), (NO_DIM,), 32, FactorType.REDUCTION)
        >>> str(builder.build())
        '#sdy.op_sharding_rule<([i, k], [k, j])->([i, j]) {i=8, j=16, k=32} reduction={k}>'
    """

    __slots__ = ("_blocked", "_operands", "_results", "_sizes", "_special")

    def __init__(self, operands: Iterable[Shape], results: Iterable[Shape]) -> None:
        self._sizes: list[int] = []
        self._operands: list[list[list[int]]] = [[[] for _ in shape] for shape in operands]
        self._results: list[list[list[int]]] = [[[] for _ in shape] for shape in results]
        self._special: dict[FactorType, list[int]] = {}
        self._blocked: list[int] = []

    def add(
        self,
        operand_dims: Sequence[int],
        result_dims: Sequence[int],
        size: int,
        type: FactorType = FactorType.PASS_THROUGH,
        blocked: bool = False,
    ) -> None:
        """Adds a factor to one dimension of each tensor.

        A factor of size 1 is not added to a dimension that has a factor already.

        Args:
            operand_dims: A dimension, or `NO_DIM`, for each operand; operands past the end do not have the factor.
        """
        factor = len(self._sizes)
        self._sizes.append(size)
        if type is not FactorType.PASS_THROUGH:
            self._special.setdefault(type, []).append(factor)
        if blocked:
            self._blocked.append(factor)
        for mappings, dims in ((self._operands, operand_dims), (self._results, result_dims)):
            for mapping, dim in zip(mappings, dims, strict=False):
                if dim != NO_DIM and (size != 1 or not mapping[dim]):
                    mapping[dim].append(factor)

    def add_to_all(self, dim: int, size: int, type: FactorType = FactorType.PASS_THROUGH, blocked: bool = False) -> None:
        """Adds a factor to dimension `dim` of every operand and result; scalars are left out."""
        operands, results = ([dim if mapping else NO_DIM for mapping in side] for side in (self._operands, self._results))
        self.add(operands, results, size, type, blocked)

    def add_pointwise(self, shape: Shape, skip: Iterable[int] = ()) -> None:
        """Adds a pass-through factor for each dimension of `shape`, except those in `skip`, to all tensors."""
        for dim, size in enumerate(shape):
            if dim not in skip:
                self.add_to_all(dim, size)

    def build(self) -> OpShardingRule:
        """Returns the rule."""
        for mappings in (self._operands, self._results):
            for mapping in mappings:
                for factors in mapping:
                    if not factors:
                        factors.append(len(self._sizes))
                        self._sizes.append(1)
        special = self._special
        return OpShardingRule(
            tuple(self._sizes),
            tuple([tuple([tuple(factors) for factors in mapping]) for mapping in self._operands]),
            tuple([tuple([tuple(factors) for factors in mapping]) for mapping in self._results]),
            reduction=tuple(special.get(FactorType.REDUCTION, ())),
            need_replication=tuple(special.get(FactorType.NEED_REPLICATION, ())),
            permutation=tuple(special.get(FactorType.PERMUTATION, ())),
            blocked_propagation=tuple(self._blocked),
        )


def identity_rule(shape: Shape, operands: int = 1) -> OpShardingRule:
    """The rule of an op whose tensors all have `shape` and are sharded alike, such as a data-flow edge.

    Example:
        >>> str(identity_rule((8, 4)))
        '#sdy.op_sharding_rule<([i, j])->([i, j]) {i=8, j=4}>'
    """
    mapping = tuple([(dim,) for dim in range(len(shape))])
    return OpShardingRule(tuple(shape), (mapping,) * operands, (mapping,))
