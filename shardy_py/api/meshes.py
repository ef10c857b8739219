"""Meshes of users, converted to the one form that planning uses.

Planning sees axis names and sizes only; the devices come back when shardings are handed to JAX. What is traced on a mesh is traced on
its *Auto mesh* (same axes, every axis of type Auto), whatever its own axis types are.
"""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
import functools
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass

import jax
from jax.core import Tracer
from jax.sharding import AbstractMesh, AxisType, NamedSharding
from jax.sharding import Mesh as JaxMesh

from shardy_py.backends.named_shardings import coordinates_of
from shardy_py.cost.links import Lattice, lattices
from shardy_py.dialect import Mesh
from shardy_py.dialect.format import sizes_text
from shardy_py.errors import MeshError
from shardy_py.frontends.context import context_devices, devices_started, explicit_sharding, is_tracing
from shardy_py.frontends.mesh_context import traced_on

MESH_NAME = "mesh"

AnyMesh = JaxMesh | AbstractMesh | Mapping[str, int]


@dataclass(frozen=True)
class Chip:
    """A device of a TPU slice that is not here, with what JAX orders the devices of a mesh by."""

    id: int
    coords: tuple[int, ...]
    core_on_chip: int
    device_kind: str
    topology: str
    platform: str = "tpu"
    process_index: int = 0


@dataclass(frozen=True)
class MeshView:
    """One mesh in the forms that planning, reporting and running need; `user_mesh` is what shardings in a plan refer to."""

    user_mesh: JaxMesh | AbstractMesh
    dialect_mesh: Mesh
    auto_mesh: AbstractMesh
    explicit: bool
    from_mapping: bool = False

    @property
    def sizes(self) -> dict[str, int]:
        """Axis name to size."""
        return dict(zip(self.auto_mesh.axis_names, self.auto_mesh.axis_sizes))

    def describe(self) -> str:
        """`data=4, model=2`."""
        return sizes_text(self.sizes) or "no axes"

    def runnable(self) -> JaxMesh | AbstractMesh:
        """A mesh with devices; a mapping takes the first ones there are. Under a trace the outermost function finds the devices.

        Raises MeshError if the mesh is abstract, its devices are elsewhere, or there are too few.
        """
        if self.topology:
            raise MeshError(
                f"the devices of the mesh are not here: they are chips of {self.topology}",
                where=f"mesh with {self.describe()}",
                why="a mesh over sp.topology(...) can be planned and compiled for",
                fix="call .plan(...).compile_for(), or pass a mesh over jax.devices() to run",
            )
        if isinstance(self.user_mesh, JaxMesh) or (not self.from_mapping and is_tracing()):
            return self.user_mesh
        need = math.prod(self.auto_mesh.axis_sizes)
        if not self.from_mapping:
            raise MeshError(
                "an AbstractMesh can be planned for, not run on",
                where=f"mesh={self.user_mesh}",
                why="it names no devices",
                fix="pass jax.make_mesh(...) or a mapping of axis names to sizes; `.plan(...)`, `.eval_shape(...)` and "
                '`.trace(...).lower(lowering_platforms=("tpu",))` work as they are',
            )
        return _first_devices(self.auto_mesh, need)

    @property
    def expected(self) -> JaxMesh | AbstractMesh:
        """The mesh with the devices that a call will run on, if that is known without starting any."""
        need = math.prod(self.auto_mesh.axis_sizes)
        devices_known = self.from_mapping and devices_started() and len(jax.devices()) >= need
        return _first_devices(self.auto_mesh, need) if devices_known else self.user_mesh

    @property
    def abstract(self) -> AbstractMesh:
        """The user's mesh without devices."""
        return self.user_mesh.abstract_mesh if isinstance(self.user_mesh, JaxMesh) else self.user_mesh

    @property
    def topology(self) -> str:
        """The slice that the mesh's devices are of, where they are not here; else empty."""
        first = self.user_mesh.devices.flat[0] if isinstance(self.user_mesh, JaxMesh) else None
        return first.topology if isinstance(first, Chip) else ""

    @functools.cached_property
    def lattices(self) -> Mapping[str, Lattice]:
        """How the axes lie on the torus of the mesh's devices; empty where these have no places on one."""
        coordinates = coordinates_of(self.user_mesh)
        return lattices(self.sizes, coordinates) if coordinates else {}

    @property
    def auto(self) -> MeshView:
        """The same mesh with all axes of type Auto."""
        if not self.explicit:
            return self
        return dataclasses.replace(self, user_mesh=self.user_mesh.update(axis_types=self.auto_mesh.axis_types), explicit=False)

    def context(self) -> AbstractContextManager[object]:
        """A context like `jax.set_mesh`; under a trace, with the Auto mesh."""
        mesh = self.runnable()
        return jax.set_mesh(mesh) if isinstance(mesh, JaxMesh) and not is_tracing() else traced_on(self.auto_mesh)

    def holding(self, arrays: Iterable[object]) -> MeshView:
        """The view of a mapping for these arguments: it names no devices and no axis types, so that those of the arguments' mesh count."""
        for array in arrays:
            if isinstance(array, Tracer):
                own = explicit_sharding(array)
                if own is not None and same_axes(self, own.mesh):
                    return _with_devices(own.mesh)
                continue
            if not isinstance(array, jax.Array) or not array.committed:
                continue
            mesh = array.sharding.mesh if isinstance(array.sharding, NamedSharding) else None
            if isinstance(mesh, JaxMesh) and same_axes(self, mesh):
                return self if mesh == self.runnable() else _view(mesh)
        return self


@functools.lru_cache(maxsize=64)
def _first_devices(auto_mesh: AbstractMesh, need: int) -> JaxMesh:
    devices = jax.devices()
    if len(devices) < need:
        sizes = ", ".join(f"{n}={s}" for n, s in zip(auto_mesh.axis_names, auto_mesh.axis_sizes))
        raise MeshError(
            f"the mesh needs {need} devices and there are {len(devices)}",
            where=f"mesh with {sizes}",
            why="running a function needs a device for every position of the mesh; planning needs none",
            fix="make the mesh smaller, or set jax_num_cpu_devices before JAX starts to try it on CPU",
        )
    return jax.make_mesh(auto_mesh.axis_sizes, auto_mesh.axis_names, axis_types=auto_mesh.axis_types, devices=devices[:need])


def view_of(mesh: AnyMesh | None, user: str = "auto_shard") -> MeshView:
    """The view of a mesh, or of a mapping such as `{"data": 4}`; None takes the mesh of `jax.set_mesh`. Raises MeshError for others."""
    if mesh is None:
        return _context_mesh(user)
    if isinstance(mesh, (JaxMesh, AbstractMesh)):
        inside = user in ("manual_computation", "with_sharding_constraint") or getattr(jax.sharding.get_abstract_mesh(), "manual_axes", ())
        if AxisType.Manual in mesh.axis_types and not inside:
            raise MeshError(
                f"mesh axis {mesh.axis_names[mesh.axis_types.index(AxisType.Manual)]!r} is of type Manual",
                where=f"mesh={mesh}",
                why="an axis is Manual inside of a jax.shard_map over it only; XLA cannot shard over it",
                fix=f"pass mesh.update(axis_types=(AxisType.Auto,) * {len(mesh.axis_names)})",
            )
        return _view(mesh)
    if isinstance(mesh, Mapping):
        for name, size in mesh.items():
            if not isinstance(name, str) or not isinstance(size, int) or isinstance(size, bool) or size < 1:
                raise MeshError(
                    f"mesh axis {name!r} has size {size!r}", where="mesh=", why="axis names are strings and sizes positive integers",
                    fix='write mesh={"data": 4, "model": 2}',
                )  # fmt: skip
        return _mapping_view(mesh)
    if isinstance(mesh, Mesh):
        return _mapping_view(dict(mesh.shape))
    raise MeshError(
        f"mesh is a {type(mesh).__name__}",
        where="mesh=",
        why="a mesh is a jax.sharding.Mesh, an AbstractMesh or a mapping of axis names to sizes",
        fix='write mesh={"data": 4, "model": 2} or mesh=jax.make_mesh((4, 2), ("data", "model"))',
    )


def _context_mesh(user: str) -> MeshView:
    abstract = context_mesh()
    if abstract is None:
        raise MeshError(
            "no mesh",
            where=_WITHOUT_MESH[user][0],
            why=_WITHOUT_MESH[user][1],
            fix=f"{_WITHOUT_MESH[user][2]} or call it inside `with jax.set_mesh(mesh):`",
        )
    return _with_devices(abstract)


def context_mesh() -> AbstractMesh | None:
    """The mesh that is set, else the mesh of the function being traced here, else None."""
    abstract = jax.sharding.get_abstract_mesh()
    if abstract is not None and not abstract.empty:
        return abstract
    view = _planned.get()
    return None if view is None else view.auto_mesh


def _with_devices(abstract: AbstractMesh) -> MeshView:
    """An abstract mesh with the devices of the mesh that is set, if both have the same axes."""
    concrete = context_devices()
    if concrete is None or abstract.manual_axes or (concrete.axis_names, concrete.axis_sizes) != (abstract.axis_names, abstract.axis_sizes):
        return _view(abstract)
    return _view(concrete if concrete.axis_types == abstract.axis_types else concrete.update(axis_types=abstract.axis_types))


_NO_MESH = "mesh= was not given and no mesh is set"
_WITHOUT_MESH = {
    "auto_shard": ("auto_shard(mesh=None)", _NO_MESH, 'pass mesh={"data": 4, "model": 2}'),
    "manual_computation": ("manual_computation(mesh=None)", _NO_MESH, "use it in a function under auto_shard, pass mesh="),
    "with_sharding_constraint": (
        "with_sharding_constraint",
        "a PartitionSpec names axes of the mesh that is planned for or set, and there is none",
        "use it in a function under auto_shard, pass a NamedSharding",
    ),
}


@functools.lru_cache(maxsize=256)
def _view(mesh: JaxMesh | AbstractMesh, from_mapping: bool = False) -> MeshView:
    if not mesh.axis_names:
        fix = 'write mesh={"data": 4, "model": 2}' if from_mapping else "give it at least one axis; a single device is an axis of size 1"
        raise MeshError("the mesh has no axes", where=f"mesh={mesh}", why="there is nothing to shard over", fix=fix)
    sizes = tuple((str(name), mesh.shape[name]) for name in mesh.axis_names)
    _check_axis_names(dict(sizes))
    auto_mesh = mesh.update(axis_types=(AxisType.Auto,) * len(sizes))
    auto_mesh = auto_mesh.abstract_mesh if isinstance(auto_mesh, JaxMesh) else auto_mesh
    return MeshView(mesh, Mesh(sizes), auto_mesh, AxisType.Explicit in mesh.axis_types, from_mapping)


def _mapping_view(sizes: Mapping[str, int]) -> MeshView:
    types = (AxisType.Auto,) * len(sizes)
    return _view(AbstractMesh(tuple(sizes.values()), tuple(sizes), axis_types=types), from_mapping=True)


def _check_axis_names(names: Iterable[str]) -> None:
    """Refuses names that XLA cannot read back: it unescapes MLIR's string literals as C would, and aborts where the rules differ."""
    for name in names:
        if not name.isascii() or not name.isprintable() or "\\" in name:
            raise MeshError(
                f"mesh axis {name!r} has a name that XLA cannot take",
                where="mesh=",
                why="XLA accepts printable ASCII characters except the backslash in axis names, and crashes on others",
                fix=f"rename it, for instance to {re.sub('[^A-Za-z0-9_]', '', name) or 'data'!r}",
            )


_planned: contextvars.ContextVar[MeshView | None] = contextvars.ContextVar("planned", default=None)


@contextlib.contextmanager
def planning(view: MeshView) -> Iterator[None]:
    """A context in which functions are planned for this mesh."""
    token = _planned.set(view)
    try:
        yield
    finally:
        _planned.reset(token)


def check_planned_devices(mesh: JaxMesh) -> None:
    """Raises MeshError if a mesh inside of a planned function has its axes over other devices, or these in another order."""
    view = _planned.get()
    expected = None if view is None else view.expected
    if isinstance(expected, JaxMesh) and same_axes(view_of(expected), mesh) != same_axes(view_of(expected.abstract_mesh), mesh):
        raise MeshError(
            "the sharding is over another mesh: its devices differ, or their order does",
            why="all arrays of a function are on the devices of its mesh, in the mesh's order",
            fix="build the sharding over the mesh of the function, or pass a bare PartitionSpec",
        )


def same_axes(view: MeshView, mesh: JaxMesh | AbstractMesh) -> bool:
    """Whether a mesh has the view's axes, sizes and, where both have them, device order."""
    if tuple(mesh.axis_names) != view.auto_mesh.axis_names or tuple(mesh.shape[n] for n in mesh.axis_names) != view.auto_mesh.axis_sizes:
        return False
    if isinstance(mesh, JaxMesh) and isinstance(view.user_mesh, JaxMesh):
        return mesh.devices.tolist() == view.user_mesh.devices.tolist() if mesh.devices is not view.user_mesh.devices else True
    return True
