"""Turns JAX shardings into shardings of the program and keeps the names of their meshes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jax.sharding import AbstractMesh
from jax.sharding import Mesh as JaxMesh

from shardy_py.dialect import AxisRef, DimensionSharding, Mesh, TensorSharding
from shardy_py.dialect.format import sizes_text
from shardy_py.dialect.regroup import regrouped
from shardy_py.errors import MeshError

_CLOSED = DimensionSharding()
_OPEN = DimensionSharding(is_closed=False)


class Meshes:
    """The meshes of one program, named as lift-inlined-meshes names them.

    Args:
        devices: The mesh of JAX that everything is to run on, for programs that may name no other devices: shardings over its devices in
            other axes are written over the main mesh. None takes shardings over any mesh as they are.
    """

    def __init__(self, name: str, mesh: Mesh, devices: JaxMesh | AbstractMesh | None = None) -> None:
        self.main = mesh
        self._devices = devices
        self._names: dict[Mesh, str] = {mesh: name}
        self._shardings: dict[tuple[Any, int, bool], TensorSharding] = {}

    def table(self) -> dict[str, Mesh]:
        """Name -> mesh, in the order in which they were met."""
        return {name: mesh for mesh, name in self._names.items()}

    def name(self, mesh: Mesh) -> str:
        """The name of a mesh; a mesh not met before is given one."""
        name = self._names.get(mesh)
        if name is None:
            taken = set(self._names.values())
            base = "empty_mesh" if mesh.is_empty else f"maximal_mesh_{mesh.device_ids[0]}" if mesh.is_maximal else "mesh"
            name, n = base, 0
            while name in taken:
                name, n = f"{base}_{n}", n + 1
            self._names[mesh] = name
        return name

    def one_device(self) -> TensorSharding:
        """On device 0 only."""
        return TensorSharding(self.name(Mesh((), (0,))), ())

    def open(self, rank: int, leading: int) -> TensorSharding:
        """On the empty mesh: the leading dimensions open, the others replicated."""
        return TensorSharding(self.name(Mesh(())), (_OPEN,) * leading + (_CLOSED,) * (rank - leading))

    def sharding(self, sharding: Any, rank: int, *, open_dimensions: bool = False) -> TensorSharding:
        """A `NamedSharding` as `_to_sdy_sharding` writes it.

        Args:
            open_dimensions: As `modify_wrt_axis_types`: all dimensions are open and unused explicit axes replicated.
        """
        key = sharding, rank, open_dimensions
        if key not in self._shardings:
            self._shardings[key] = self._read(*key)
        return self._shardings[key]

    def _read(self, sharding: Any, rank: int, open_dimensions: bool) -> TensorSharding:
        """See `sharding`."""
        described = sharding._to_sdy_sharding(rank, modify_wrt_axis_types=open_dimensions)
        axes = described.mesh_shape or ()
        mesh = Mesh(tuple(axes), tuple(described.logical_device_ids or ()))
        dims = tuple(DimensionSharding(tuple(AxisRef(a) for a in d.axes), is_closed=not d.is_open) for d in described.dim_shardings)
        order = [name for name, _ in axes]
        replicated, unreduced = (_sorted(names, order) for names in (described.replicated_axes, described.unreduced_axes))
        if self._devices is not None and axes:
            self._check_devices(sharding.mesh)
            if mesh.axes != self.main.axes:
                moved = regrouped(TensorSharding(mesh, dims, replicated, unreduced), mesh, self.main, self._names[self.main])
                if moved is None:
                    raise self._another(f"the sharding {sharding.spec}", sharding.mesh)
                return moved
        return TensorSharding(self.name(mesh), dims, replicated, unreduced)

    def differs(self, mesh: Any) -> bool:
        """Whether a mesh of the user's has other axes than the main mesh, where that counts."""
        return self._devices is not None and tuple(mesh.shape.items()) != tuple(self.main.shape.items())

    def _check_devices(self, mesh: Any) -> None:
        """Raises where a mesh has other devices than those everything runs on, or in another order."""
        if not isinstance(mesh, JaxMesh) or not isinstance(self._devices, JaxMesh) or mesh.devices is self._devices.devices:
            return
        if [d.id for d in mesh.devices.flat] != [d.id for d in self._devices.devices.flat]:
            raise self._another("a sharding", mesh)

    def _another(self, what: str, mesh: Any) -> MeshError:
        own, other = (sizes_text(m.shape) for m in (self.main, mesh))
        return MeshError(
            f"{what} is over another mesh, {other}",
            why=f"the function is planned for {own}; its devices, in that order, cannot be cut as that mesh has them",
            fix="build the sharding over the mesh of the function; where another function under auto_shard is called, give both one mesh, "
            "or call its __wrapped__",
        )


def _sorted(names: Any, order: Sequence[str]) -> tuple[AxisRef, ...]:
    return tuple(AxisRef(name) for name in order if name in names)
