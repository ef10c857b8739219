"""Agreement of an op's tensors on the axes of one factor, and the longest list of axes that fits one tensor."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import gcd

from shardy_py.dialect import AxisRef, Mesh, PropagationDirection
from shardy_py.dialect.axis import Axes, contains, is_prefix_of, prefix_without_overlap
from shardy_py.dialect.projection import FactorSharding, TensorFactors

NONE, FORWARD, BACKWARD, BOTH = map(int, PropagationDirection)


def _merge(old: Axes, new: Axes, can_expand: bool) -> tuple[Axes, bool]:
    if old == new:
        return old, can_expand
    out: list[AxisRef] = []
    common = min(len(old), len(new))
    for i in range(common):
        a, b = old[i], new[i]
        if a is b:
            out.append(a)
            continue
        if a.name != b.name:
            return tuple(out), False
        if is_prefix_of(b, a):
            if len(new) > i + 1:
                out.append(b)
                return tuple(out), False
            out.append(a)
        elif is_prefix_of(a, b):
            if not can_expand or len(old) > i + 1:
                out.append(a)
                return tuple(out), False
            out.append(b)
        else:
            return tuple(out), False
    out.extend(old[common:])
    if can_expand:
        out.extend(new[common:])
    return tuple(out), can_expand


def compatible_major_axes(tensors: Sequence[TensorFactors], num_operands: int, factor: int, direction: int) -> Axes:
    """The axes along a factor that all tensors are compatible with, in a direction.

    `getCompatibleMajorAxes` of the reference: with FORWARD only operands can add axes, with BACKWARD only results; the
    others can only cut them short.
    """
    if direction == NONE:
        return ()
    order = tensors if direction != BACKWARD else (*tensors[num_operands:], *tensors[:num_operands])
    switch = num_operands if direction != BACKWARD else len(tensors) - num_operands
    result: Axes = ()
    can_expand = True
    for i, tensor in enumerate(order):
        if i == switch and direction != BOTH:
            can_expand = False
        state = tensor.factors.get(factor)
        if state is not None:
            result, can_expand = _merge(result, state.axes, can_expand)
    return result


def truncate(axes: Axes, mesh: Mesh, fit: Callable[[AxisRef, int], AxisRef | None], conservative: bool = False) -> Axes:
    """Cuts a list of axes where `fit(axis, size of the axes before)` gives nothing or only a part of the axis."""
    size = 1
    for i, axis in enumerate(axes):
        prefix = fit(axis, size)
        if prefix is None or (conservative and prefix.size is not None):
            return axes[:i]
        if prefix is not axis:
            return (*axes[:i], prefix)
        size *= axis.size_in(mesh)
    return axes


def fit_within_factor(
    axis: AxisRef, before: int, tensor: TensorFactors, state: FactorSharding, factor_size: int, mesh: Mesh
) -> AxisRef | None:
    """The longest prefix of an axis that one tensor's factor has or can take after axes of product `before`."""
    fitting: AxisRef | None = axis
    for other in tensor.blocked_axes:
        if other.name == axis.name:
            fitting = prefix_without_overlap(fitting, other)
            if fitting is None:
                return None
    axis = fitting
    current = state.axes
    for own in current:
        if own is axis or (own.name == axis.name and contains(own, axis)):
            return axis
    if not state.closed and not state.overflow:
        if state.minor_most:
            return axis
        if factor_size % before == 0:
            size = axis.size_in(mesh)
            common = gcd(factor_size // before, size)
            if common == size:
                return axis
            if common > 1:
                return AxisRef(axis.name, axis.pre_size or 1, common)
    if current and is_prefix_of(current[-1], axis):
        return current[-1]
    return None


def fit_across_factors(axis: AxisRef, tensor: TensorFactors, factor: int) -> AxisRef | None:
    """The longest prefix of an axis that overlaps no other factor of the tensor and no overflow axes."""
    fitting: AxisRef | None = axis
    for other, state in tensor.factors.items():
        if other != factor:
            for used in state.axes:
                if used.name == axis.name:
                    fitting = prefix_without_overlap(fitting, used)
                    if fitting is None:
                        return None
        for used in state.overflow:
            if used.name == axis.name:
                fitting = prefix_without_overlap(fitting, used)
                if fitting is None:
                    return None
    return fitting
