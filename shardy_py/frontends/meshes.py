"""Turns JAX shardings into shardings of the program and keeps the names of their meshes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from shardy_py.dialect import AxisRef, DimensionSharding, Mesh, TensorSharding

_CLOSED = DimensionSharding()
_OPEN = DimensionSharding(is_closed=False)


class Meshes:
    """The meshes of one program, named as lift-inlined-meshes names them.

    Args:
        name: The name of the main mesh.
        mesh: The main mesh.
    """

    def __init__(self, name: str, mesh: Mesh) -> None:
        self.main = mesh
        self._names: dict[Mesh, str] = {mesh: name}

    def table(self) -> dict[str, Mesh]:
        """Name -> mesh, in the order in which they were met."""
        return {name: mesh for mesh, name in self._names.items()}

    def name(self, mesh: Mesh) -> str:
        """The name of a mesh; a mesh not met before is given one."""
        found = self._names.get(mesh)
        if found is None:
            taken = set(self._names.values())
            base = "empty_mesh" if mesh.is_empty else f"maximal_mesh_{mesh.device_ids[0]}" if mesh.is_maximal else "mesh"
            found, n = base, 0
            while found in taken:
                found, n = f"{base}_{n}", n + 1
            self._names[mesh] = found
        return found

    def one_device(self) -> TensorSharding:
        """On device 0 only."""
        return TensorSharding(self.name(Mesh((), (0,))), ())

    def open(self, rank: int, leading: int) -> TensorSharding:
        """On the empty mesh: the leading dimensions open, the others replicated."""
        return TensorSharding(self.name(Mesh(())), (_OPEN,) * leading + (_CLOSED,) * (rank - leading))

    def sharding(self, sharding: Any, rank: int, *, open_dimensions: bool = False) -> TensorSharding:
        """A `NamedSharding` as `_to_sdy_sharding` writes it.

        Args:
            sharding: A `jax.sharding.NamedSharding` of the physical array.
            rank: Of the array.
            open_dimensions: As `modify_wrt_axis_types`: all dimensions are open and unused explicit axes replicated.
        """
        described = sharding._to_sdy_sharding(rank, modify_wrt_axis_types=open_dimensions)
        axes = described.mesh_shape or ()
        mesh = Mesh(tuple(axes), tuple(described.logical_device_ids or ()))
        dims = tuple(DimensionSharding(tuple(AxisRef(a) for a in d.axes), is_closed=not d.is_open) for d in described.dim_shardings)
        order = [name for name, _ in axes]
        return TensorSharding(
            self.name(mesh),
            dims,
            replicated=_sorted(described.replicated_axes, order),
            unreduced=_sorted(described.unreduced_axes, order),
        )


def _sorted(names: Any, order: Sequence[str]) -> tuple[AxisRef, ...]:
    return tuple(AxisRef(name) for name in order if name in names)
