"""The submeshes of a pipeline, and how every value lies on them."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import numpy as np
from jax.extend.core import Var
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec

from shardy_py.api.peers import Peers, peers_of
from shardy_py.frontends.context import transfers_enabled
from shardy_py.pipelines.errors import PipelineError
from shardy_py.planner.options import Planner

AnyMesh = Mesh | AbstractMesh | Mapping[str, int] | Sequence[Mesh | AbstractMesh] | None


@dataclass(frozen=True)
class Places:
    """Meshes and shardings.

    Attributes:
        stages: Number of stages; stage s lies on mesh `s % len(meshes)`.
        at: (value, stage) -> its sharding there, where that is another.
    """

    meshes: tuple[Mesh | AbstractMesh, ...]
    stages: int
    specs: dict[Var, PartitionSpec] = field(default_factory=dict)
    at: dict[tuple[Var, int], PartitionSpec] = field(default_factory=dict)
    planner: Planner | None = None

    @property
    def inner(self) -> dict[str, int]:
        """Axes inside of a stage, of the largest mesh."""
        return dict(max(self.meshes, key=lambda m: m.size).shape)

    @property
    def is_sharded(self) -> bool:
        """Whether some stage has several devices."""
        return any(mesh.size > 1 for mesh in self.meshes)

    def copy(self) -> Places:
        """A copy whose `specs` can be added to without changing these."""
        return replace(self, specs=dict(self.specs), at=dict(self.at))

    def mesh(self, stage: int) -> Mesh | AbstractMesh:
        """The mesh of a stage."""
        return self.meshes[stage % len(self.meshes)]

    def check_devices(self) -> None:
        """Raises PipelineError if a mesh is abstract, or has devices of other processes."""
        if any(isinstance(mesh, AbstractMesh) for mesh in self.meshes):
            need = sum(mesh.size for mesh in self.meshes)
            inner = ", ".join(f"{name}={size}" for name, size in self.meshes[0].shape.items())
            raise PipelineError(
                f"the mesh needs {need} devices and there are {len(jax.devices())}", where=f"mesh=, {len(self.meshes)} times {inner}",
                why="only `report` and `build` do without devices",
                fix="make it smaller, pass a Mesh of devices, or set jax_num_cpu_devices before JAX starts to try it",
            )  # fmt: skip
        processes, own = sorted(set().union(*map(processes_of_mesh, self.meshes))), jax.process_index()
        if processes == [own]:
            return
        if own not in processes or processes != list(range(jax.process_count())):
            raise PipelineError(
                f"the mesh has devices of {'processes' if len(processes) > 1 else 'process'} {', '.join(map(str, processes))}",
                where=f"mesh=, in process {own} of {jax.process_count()}",
                why="every process takes part in every transfer, even if it holds no part",
                fix="pass a mesh with devices of all processes, or in every process one of its own jax.local_devices()",
            )  # fmt: skip
        if len({*map(processes_of_mesh, self.meshes)}) > 1 and not transfers_enabled(jax.local_devices()[0]):
            raise PipelineError(
                f"the mesh has devices of processes {', '.join(map(str, processes))}, and nothing moves values between them",
                where=f"mesh=, in process {own}",
                why="stages lie in different processes, and here jax.device_put needs a socket to move arrays from one to another",
                fix='call jax.config.update("jax_cross_host_transfer_socket_address", "<this host>:<port>") before JAX starts its devices, '
                "in every process with another free port, not 0",
            )  # fmt: skip

    def peers(self) -> Peers | None:
        """The processes of the meshes; None for one."""
        return peers_of(device for mesh in self.meshes if isinstance(mesh, Mesh) for device in mesh.devices.flat)

    def is_here(self, stage: int) -> bool:
        """Whether this process has devices of a stage."""
        return jax.process_index() in processes_of_mesh(self.mesh(stage))

    def apart(self, stage: int, other: int, reach: int) -> bool:
        """Whether only the network joins two stages: another slice or host, of abstract meshes one beyond the reach of fast links."""
        a, b = self.mesh(stage), self.mesh(other)
        if isinstance(a, Mesh) and isinstance(b, Mesh):
            return _hosts(a) != _hosts(b)
        ends = [0, *itertools.accumulate(mesh.size for mesh in self.meshes)]
        first, last = sorted((stage % len(self.meshes), other % len(self.meshes)))
        return ends[first] // reach != (ends[last + 1] - 1) // reach

    def sharding(self, v: Var, stage: int) -> NamedSharding:
        """The sharding of a value on the mesh of a stage."""
        spec = self.at.get((v, stage))
        return _named(self.mesh(stage), self.specs.get(v, PartitionSpec()) if spec is None else spec)

    def axes_over(self, v: Var) -> set[str]:
        """The axes that a value is sharded over on any of the meshes."""
        specs = [self.specs.get(v, ()), *(self.at.get((v, stage), ()) for stage in range(self.stages))]
        return {name for spec in specs for entry in spec for name in axes_of(entry)}


@functools.lru_cache(maxsize=4096)
def processes_of_mesh(mesh: Mesh | AbstractMesh) -> frozenset[int]:
    """The processes whose devices it has; none of an abstract mesh."""
    return frozenset(device.process_index for device in mesh.devices.flat) if isinstance(mesh, Mesh) else frozenset()


def _hosts(mesh: Mesh) -> set[int]:
    """What only the network joins: slices of devices; processes of CPUs, which stand for hosts with accelerators."""
    slices = ((device, getattr(device, "slice_index", None)) for device in mesh.devices.flat)
    return {device.process_index if number is None or device.platform == "cpu" else number for device, number in slices}


def axes_of(entry: Any) -> tuple[str, ...]:
    """The axes in an entry of a `PartitionSpec`."""
    return (entry,) if isinstance(entry, str) else entry if isinstance(entry, tuple) else ()


@functools.lru_cache(maxsize=4096)
def _named(mesh: Mesh | AbstractMesh, spec: PartitionSpec) -> NamedSharding:
    return NamedSharding(mesh, spec)


def submeshes(mesh: AnyMesh, axis: str, count: int) -> tuple[Mesh | AbstractMesh, ...]:
    """The meshes of a pipeline. Raises PipelineError if there are not as many.

    Args:
        mesh: None for one device each; a mesh or a mapping with `axis`, whose other axes are those inside of a stage; or the meshes
            themselves, which may differ in size but not in the names of their axes. None and a mapping take devices of this process
            where it has enough. A mapping to more devices than there are is abstract.
    """
    if mesh is None:
        mesh = {axis: count}
    if isinstance(mesh, Mapping):
        for name, size in mesh.items():
            if not isinstance(size, int | np.integer) or isinstance(size, bool) or size < 1:
                raise PipelineError(
                    f"mesh axis {name!r} has size {size!r}", where=f"mesh={dict(mesh)}", why="it is a number of devices, 1 or more",
                    fix=f"pass mesh={{{axis!r}: {count}}}",
                )  # fmt: skip
        if axis in mesh:
            sizes, names = tuple(map(int, mesh.values())), tuple(mesh)
            devices = _devices(math.prod(sizes))
            if devices is None:
                mesh = AbstractMesh(sizes, names)
            else:
                mesh = Mesh(np.array(devices, dtype=object).reshape(sizes), names)
    if isinstance(mesh, Mesh | AbstractMesh):
        if axis not in mesh.axis_names:
            mesh = {name: mesh.shape[name] for name in mesh.axis_names}
        else:
            return _along(mesh, axis, count)
    if isinstance(mesh, Mapping):
        raise PipelineError(
            f"the mesh has no axis {axis!r}", where=f"mesh={dict(mesh)}", why="stages are placed along an axis of the mesh",
            fix=f"pass axis={next(iter(mesh), 'stage')!r}, or mesh={{{axis!r}: {count}, ...}}",
        )  # fmt: skip
    if not isinstance(mesh, Sequence) or not all(isinstance(m, Mesh | AbstractMesh) for m in mesh):
        raise PipelineError(
            f"mesh is {mesh!r}", where="mesh=", why="it is a Mesh, a mapping of axis names to sizes, or a list of meshes",
            fix=f"pass mesh={{{axis!r}: {count}}}",
        )  # fmt: skip
    meshes = tuple(_auto(m) for m in mesh)
    if len(meshes) != count or len({m.axis_names for m in meshes}) > 1:
        raise PipelineError(
            f"{len(meshes)} meshes with axes {sorted({m.axis_names for m in meshes})}", where="mesh=",
            why=f"the pipeline needs {count} meshes with axes of the same names", fix=f"pass {count} of them",
        )  # fmt: skip
    return meshes


def meshes_of(shapes: Sequence[tuple[int, ...]], names: tuple[str, ...]) -> list[Mesh | AbstractMesh]:
    """Meshes of the given shapes over consecutive devices; abstract if there are too few devices."""
    counts = [math.prod(shape) for shape in shapes]
    devices = _devices(sum(counts))
    types = (AxisType.Auto,) * len(names)
    if devices is None:
        return [AbstractMesh(shape, names, axis_types=types) for shape in shapes]
    placed = (devices[end - count : end] for end, count in zip(itertools.accumulate(counts), counts))
    return [Mesh(np.array(each, dtype=object).reshape(shape), names, axis_types=types) for each, shape in zip(placed, shapes)]


def _devices(count: int) -> list[Any] | None:
    """The first `count` devices of this process, or of all processes if it has fewer; None if there are too few."""
    enough = [devices for devices in (jax.local_devices(), jax.devices()) if len(devices) >= count]
    return enough[0][:count] if enough else None


def _along(mesh: Mesh | AbstractMesh, axis: str, count: int) -> tuple[Mesh | AbstractMesh, ...]:
    if mesh.shape[axis] != count:
        raise PipelineError(
            f"axis {axis!r} of the mesh has size {mesh.shape[axis]}", where="mesh=",
            why=f"the pipeline has {count} meshes: num_stages divided by virtual", fix=f"make it {count}, or change num_stages",
        )  # fmt: skip
    position = mesh.axis_names.index(axis)
    names = tuple(n for n in mesh.axis_names if n != axis)
    if isinstance(mesh, AbstractMesh):
        return (_auto(AbstractMesh(tuple(mesh.shape[n] for n in names) or (1,), names or ("replica",))),) * count
    meshes: list[Mesh | AbstractMesh] = []
    for i in range(count):
        devices = np.take(mesh.devices, i, axis=position)
        if not names:
            devices = np.asarray([devices], dtype=object)
        meshes.append(_auto(Mesh(devices, names or ("replica",))))
    return tuple(meshes)


def _auto(mesh: Mesh | AbstractMesh) -> Mesh | AbstractMesh:
    if isinstance(mesh, AbstractMesh):
        return AbstractMesh(mesh.axis_sizes, mesh.axis_names, axis_types=(AxisType.Auto,) * len(mesh.axis_names))
    return Mesh(mesh.devices, mesh.axis_names, axis_types=(AxisType.Auto,) * len(mesh.axis_names))


def trace_mesh(places: Places) -> AbstractMesh:
    """The mesh in whose context a step is traced."""
    inner = places.inner if places.is_sharded else {}
    return AbstractMesh(tuple(inner.values()), tuple(inner), axis_types=(AxisType.Auto,) * len(inner))
