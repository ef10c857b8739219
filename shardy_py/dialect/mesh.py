"""Mesh and MeshAxis: named axes with sizes over devices, without the devices themselves."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Protocol, cast, final

from shardy_py.dialect._intern import Interned, integer
from shardy_py.dialect._scan import Scanner, quoted
from shardy_py.errors import DialectError


class _Axis(Protocol):
    """An `AxisRef`."""

    @property
    def name(self) -> str: ...

    @property
    def size(self) -> int | None: ...


@final
class MeshAxis(Interned):
    """A name and a size of at least 1, `"x"=4`."""

    mnemonic = "mesh_axis"

    name: str
    size: int
    __slots__ = tuple(__annotations__)

    def __new__(cls, name: str, size: int) -> MeshAxis:  # noqa: D102
        if not isinstance(name, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f"the name of a mesh axis must be a string, got {name!r}")
        name, size = str(name), integer(size)
        if size < 1:
            raise DialectError(f"axis size must be at least 1, got: {size}", where=f"mesh axis {quoted(name)}")
        return cls._interned(name, size)

    @classmethod
    def read(cls, scanner: Scanner) -> MeshAxis:
        """Reads `"x"=2` at the cursor."""
        start = scanner.position
        name = scanner.string()
        scanner.expect("=")
        size = scanner.integer()
        return scanner.make(start, lambda: MeshAxis(name, size))

    def __str__(self) -> str:
        return f"{quoted(self.name)}={self.size}"


@final
class Mesh(Interned):
    """Axes from major to minor, and an order of device ids where it is not 0, 1, 2, ...

    As `jax.sharding.AbstractMesh`, but with the order of device ids, and one object per value. A mesh without axes and
    with one device id is *maximal*: everything lives on that device. One without either is *empty*.

    Args:
        axes: Axes, `(name, size)` pairs, or a mapping from name to size.
        device_ids: Empty for 0, 1, 2, ...; those ids written out are dropped.

    Raises:
        DialectError: See `check_mesh`.

    Example:
        >>> Mesh([("data", 4), ("model", 2)])
        #sdy.mesh<["data"=4, "model"=2]>
    """

    mnemonic = "mesh"

    axes: tuple[MeshAxis, ...]
    device_ids: tuple[int, ...]
    axis_names: tuple[str, ...]
    shape: Mapping[str, int]
    size: int
    is_maximal: bool
    is_empty: bool
    _positions: dict[str, int]
    __slots__ = tuple(__annotations__)

    def __new__(  # noqa: D102
        cls, axes: Iterable[MeshAxis | tuple[str, int]] | Mapping[str, int] = (), device_ids: Iterable[int] = ()
    ) -> Mesh:
        pairs = cast("Iterable[MeshAxis | tuple[str, int]]", axes.items() if isinstance(axes, Mapping) else axes)
        axes = tuple(axis if type(axis) is MeshAxis else MeshAxis(*axis) for axis in pairs)
        device_ids = tuple(integer(i) for i in device_ids)
        check_mesh(axes, device_ids)
        size = math.prod(axis.size for axis in axes)
        if axes and device_ids == tuple(range(len(device_ids))):
            device_ids = ()
        names = tuple(axis.name for axis in axes)
        return cls._interned(
            axes,
            device_ids,
            axis_names=names,
            shape=MappingProxyType({axis.name: axis.size for axis in axes}),
            size=size,
            is_maximal=not axes and len(device_ids) == 1,
            is_empty=not axes and not device_ids,
            _positions={name: i for i, name in enumerate(names)},
        )

    @classmethod
    def maximal(cls, device_id: int) -> Mesh:
        """The mesh that stands for a single device."""
        return cls((), (device_id,))

    def axis_size(self, axis: _Axis | str) -> int:
        """Number of shards along an axis: the sub-axis' size for a sub-axis.

        Raises:
            DialectError: The mesh has no such axis.
        """
        if not isinstance(axis, str):
            if axis.size is not None:
                return axis.size
            axis = axis.name
        try:
            return self.shape[axis]
        except KeyError:
            raise self._unknown(axis) from None

    def axis_index(self, name: str) -> int:
        """Position of an axis, 0 the most major.

        Raises:
            DialectError: The mesh has no such axis.
        """
        try:
            return self._positions[name]
        except KeyError:
            raise self._unknown(name) from None

    def has_axis(self, name: str) -> bool:
        """Whether the mesh has an axis of that name."""
        return name in self._positions

    def same_axes(self, other: Mesh) -> bool:
        """Whether both have the same axes in the same order, whatever the order of devices."""
        return self.axes == other.axes

    def text(self, *, short: bool = False) -> str:
        """SDY text; `short` leaves out `#sdy.mesh`, as in `sdy.mesh @m = <["x"=2]>`."""
        ids = f", device_ids=[{', '.join(map(str, self.device_ids))}]" if self.device_ids else ""
        body = f"<[{', '.join(map(str, self.axes))}]{ids}>"
        return body if short else f"#sdy.mesh{body}"

    @classmethod
    def read(cls, scanner: Scanner) -> Mesh:
        """Reads a mesh at the cursor."""
        scanner.accept_keyword("mesh")
        scanner.expect("<")
        start = scanner.position
        axes = scanner.listed("[", "]", lambda: MeshAxis.read(scanner))
        device_ids: tuple[int, ...] = ()
        if scanner.accept(","):
            if not scanner.accept_keyword("device_ids"):
                scanner.fail("expected 'device_ids'")
            scanner.expect("=")
            device_ids = scanner.listed("[", "]", scanner.integer, may_be_empty=False)
        scanner.expect(">")
        return scanner.make(start, lambda: Mesh(axes, device_ids))

    def __str__(self) -> str:
        return self.text()

    def _unknown(self, name: str) -> DialectError:
        return DialectError(f"unknown axis name: {quoted(name)}", why=f"the mesh is {self.text(short=True)}")


def check_mesh(axes: tuple[MeshAxis, ...], device_ids: tuple[int, ...]) -> None:
    """Checks what `Mesh` requires of its fields, in Shardy's order and words."""
    for i in device_ids:
        if i < 0:
            raise DialectError(f"device id must be non-negative, got: {i}", where="device_ids of a mesh")
    if not axes:
        if len(device_ids) > 1:
            raise DialectError(
                "axes is empty and device_ids has more than one element",
                why=f"a mesh without axes stands for one device, got the ids {list(device_ids)}",
                fix="give the mesh an axis",
            )
        return
    seen: set[str] = set()
    for axis in axes:
        if axis.name in seen:
            raise DialectError(f"duplicate axis name: {quoted(axis.name)}", fix="give every mesh axis its own name")
        seen.add(axis.name)
    if not device_ids:
        return
    size = math.prod(axis.size for axis in axes)
    if len(device_ids) != size:
        raise DialectError(
            f"total product of axis sizes must match total number of device ids, got: {size} != {len(device_ids)}",
            fix=f"give {size} device ids, or none for 0, 1, 2, ...",
        )
    ordered = sorted(device_ids)
    if ordered != list(range(size)):
        raise DialectError(
            f"sorted device ids must be iota(product(axes)), got: {', '.join(map(str, ordered))}",
            fix=f"use each of 0 to {size - 1} once",
        )
