"""Interned tables of a page: data that many values share are written once and referred to by number."""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Sequence
from typing import Any, Generic, TypeVar

from shardy_py.dialect import AxisRef, Mesh, TensorSharding
from shardy_py.ir import Program, TensorType, Type
from shardy_py.ir.pieces import local_bytes, local_shape
from shardy_py.plan.values import typed

K = TypeVar("K", bound=Hashable)

_PLACE = re.compile(r"(?P<file>.+):(?P<line>[0-9]{1,9})(?: \(.*\))?", re.DOTALL)


class Interner(Generic[K]):
    """Numbers keys in the order in which they are first seen.

    Example:
        >>> table = Interner[str]()
        >>> [table("a"), table("b"), table("a")], table.rows
        ([0, 1, 0], ['a', 'b'])
    """

    def __init__(self, describe: Callable[[K], Any] | None = None) -> None:
        self.rows: list[Any] = []
        self._numbers: dict[K, int] = {}
        self._describe = describe

    def __call__(self, key: K) -> int:
        """The number of a key."""
        number = self._numbers.get(key)
        if number is None:
            number = self._numbers[key] = len(self._numbers)
            self.rows.append(key if self._describe is None else self._describe(key))
        return number


class Tables:
    """All interned tables of one plan.

    Args:
        devices: The ids of its devices, in the mesh's order; none for 0, 1, 2, ...

    Attributes:
        meshes: `{"axes": [[name, size], ...], "ids": [...]}`; the ids are left out where they are 0, 1, 2, ...
        shardings: `{"mesh": m, "dims": [[axis, ...], ...], "unreduced": [...], "replicated": [...]}`; an axis is its number in the mesh,
            or `[number, pre_size, size]` for a part of it.
        types: `{"text", "dtype", "shape", "sharding", "local", "bytes", "all"}`: as the project writes it, the shape of a device's piece,
            its bytes, and those of the whole; `sharding` is -1 for None.
        places: `[file, line, module]`; file and module as numbers of strings.
    """

    def __init__(self, program: Program, mesh: Mesh, devices: Sequence[int] = ()) -> None:
        self._meshes = dict(program.meshes)
        self.strings = Interner[str]()
        self.meshes = Interner[Mesh](lambda each: _mesh(each, devices if each.same_axes(mesh) else ()))
        self.meshes(mesh)  # it is number 0
        self.shardings = Interner[TensorSharding](self._sharding)
        self.types = Interner[tuple[Type, TensorSharding | None]](self._type)
        self.places = Interner[tuple[str, str]](self._place)

    def rows(self) -> dict[str, list[Any]]:
        """All tables by name."""
        return {name: getattr(self, name).rows for name in ("strings", "meshes", "shardings", "types", "places")}

    def _sharding(self, sharding: TensorSharding) -> dict[str, Any]:
        mesh = sharding.mesh_in(self._meshes)
        row: dict[str, Any] = {"mesh": self.meshes(mesh), "dims": [[_axis(a, mesh) for a in dim.axes] for dim in sharding.dims]}
        for name in ("unreduced", "replicated"):
            axes = getattr(sharding, name)
            if axes:
                row[name] = [_axis(a, mesh) for a in axes]
        return row

    def _type(self, key: tuple[Type, TensorSharding | None]) -> dict[str, Any]:
        type_, sharding = key
        if sharding is not None and sharding.rank > type_.rank:
            sharding = sharding.with_dims(sharding.dims[: type_.rank])
        return {
            "text": typed(type_, sharding),
            "dtype": type_.dtype,
            "shape": list(type_.shape),
            "sharding": -1 if sharding is None or not isinstance(type_, TensorType) else self.shardings(sharding),
            "local": list(local_shape(type_, sharding, self._meshes)),
            "bytes": local_bytes(type_, sharding, self._meshes),
            "all": type_.bytes,
        }

    def _place(self, key: tuple[str, str]) -> list[int]:
        location, module = key
        match = _PLACE.fullmatch(location)
        if match is None:
            return [self.strings(location), 0, self.strings(module)]
        return [self.strings(match["file"]), int(match["line"]), self.strings(module)]


def _mesh(mesh: Mesh, devices: Sequence[int]) -> dict[str, Any]:
    row: dict[str, Any] = {"axes": [[axis.name, axis.size] for axis in mesh.axes]}
    ids = [*(mesh.device_ids or devices)]
    if ids and ids != [*range(mesh.size)]:
        row["ids"] = ids
    return row


def _axis(axis: AxisRef, mesh: Mesh) -> int | list[int]:
    number = mesh.axis_index(axis.name)
    if axis.pre_size is None or axis.size is None:
        return number
    return [number, axis.pre_size, axis.size]
