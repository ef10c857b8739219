"""Axes per factor: what the choice of a common sharding reads and returns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from shardy_py.dialect.axis import Axes, overlaps
from shardy_py.dialect.projection import TensorFactors

FactorAxes = Mapping[int, Axes]
"""Factor -> its axes in one tensor; factors that the tensor does not have, or that an overflow hides, are left out."""

AxesPerFactor = list[Axes]
"""The axes of every factor of a rule, those under which the op runs."""


def factor_axes(tensors: Sequence[TensorFactors]) -> list[FactorAxes]:
    """The axes of every factor of every tensor, overflow left out."""
    return [{factor: sharding.axes for factor, sharding in tensor.factors.items()} for tensor in tensors]


def overlap_between(axes: Axes, others: Axes) -> bool:
    """Whether any axis of one list shares a part with any of the other."""
    return any(overlaps(axis, other) for axis in axes for other in others)


def any_overlap(per_factor: Sequence[Axes]) -> bool:
    """Whether two factors share a part of an axis."""
    used = [axes for axes in per_factor if axes]
    return any(overlap_between(axes, others) for i, axes in enumerate(used) for others in used[:i])
