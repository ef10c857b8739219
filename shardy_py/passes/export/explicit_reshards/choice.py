"""Two ways to choose the axes under which an op runs where its tensors disagree: by elements as Shardy does, or by bytes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from shardy_py.dialect import Mesh, OpShardingRule
from shardy_py.ir import Type
from shardy_py.passes.export.explicit_reshards.common_sharding import compatible_axes, find_common_axes
from shardy_py.passes.export.explicit_reshards.factor_axes import AxesPerFactor, FactorAxes


@dataclass(frozen=True)
class Conflict:
    """An op for which axes are to be chosen; `moved` gives the bytes that a device receives if it runs under the axes it is called with."""

    rule: OpShardingRule
    tensors: Sequence[FactorAxes]
    types: Sequence[Type]
    mesh: Mesh
    moved: Callable[[AxesPerFactor], int]


@dataclass(frozen=True)
class Choice:
    """A way to choose."""

    size: Callable[[Type], int]
    axes: Callable[[Conflict], AxesPerFactor]


def _elements(type_: Type) -> int:
    return type_.size


def _bytes(type_: Type) -> int:
    return type_.bytes


def _by_elements(conflict: Conflict) -> AxesPerFactor:
    sizes = [_elements(type_) for type_ in conflict.types]
    return find_common_axes(conflict.rule, conflict.tensors, sizes, conflict.mesh)


def _cheapest(conflict: Conflict) -> AxesPerFactor:
    """Of several proposals the one that moves the fewest bytes, the earliest on ties.

    The proposals: what Shardy takes; what it would take if it compared bytes; and, for each tensor, the same if that tensor
    outweighed all others together. Votes do not see that a tensor moves although it keeps some of its axes; the bytes do.
    """
    rule, tensors, mesh = conflict.rule, conflict.tensors, conflict.mesh
    agreed = compatible_axes(rule, tensors)
    if agreed is not None:
        return agreed
    weights = [_bytes(type_) for type_ in conflict.types]
    heaviest = sum(weights) + 1
    votes = [weights, *([*weights[:i], heaviest, *weights[i + 1 :]] for i in range(len(weights)))]
    proposals = [_by_elements(conflict)]
    for vote in votes:
        proposal = find_common_axes(rule, tensors, vote, mesh)
        if proposal not in proposals:
            proposals.append(proposal)
    return min(proposals, key=conflict.moved)


BY_ELEMENTS = Choice(_elements, _by_elements)
"""Shardy's choice: the axes stay on which the tensors with the most elements agree, whatever their element types."""

BY_BYTES = Choice(_bytes, _cheapest)
"""The axes that move the fewest bytes, never more than `BY_ELEMENTS` around any op."""
