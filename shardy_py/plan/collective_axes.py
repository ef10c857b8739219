"""The mesh axes that a collective is over, read from their text."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from shardy_py.dialect import AxisRef
from shardy_py.dialect.axis import Axes
from shardy_py.dialect.format import format_axis
from shardy_py.plan.collectives import Collective

_PART = re.compile(r"(.*):\((\d+)\)(\d+)", re.DOTALL)


def axes_of(collective: Collective, sizes: Mapping[str, int]) -> list[tuple[str, int]]:
    """The mesh axes that a collective is over, each with the number of devices along it that take part.

    A collective without axes, which exchanges pieces between any devices, is over all of them.

    Example:
        >>> axes_of(Collective("all_gather", ("x:(2)2", "y"), 8, 64), {"x": 4, "y": 4})
        [('x', 2), ('y', 4)]
    """
    if not collective.axes:
        return [(axis, size) for axis, size in sizes.items() if size > 1]
    devices: dict[str, int] = {}
    for axis in axis_refs_of(collective, sizes):
        if axis.name in sizes:
            devices[axis.name] = devices.get(axis.name, 1) * (axis.size or sizes[axis.name])
    return list(devices.items())


def axis_refs_of(collective: Collective, axes: Iterable[str]) -> Axes:
    """The mesh axes that a collective is over, and parts of axes."""
    spelled = {format_axis(AxisRef(axis)): axis for axis in axes}
    refs: list[AxisRef] = []
    for written in collective.axes:
        part = None if written in spelled else _PART.fullmatch(written)
        name = written if part is None else part[1]
        axis = spelled.get(name, name)
        refs.append(AxisRef(axis) if part is None else AxisRef(axis, int(part[2]), int(part[3])))
    return tuple(refs)
