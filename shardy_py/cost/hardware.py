"""Accelerators as the cost of a plan sees them: compute per element type, memory, links of mesh axes; every figure with its source."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from shardy_py.cost.links import AxisLinks, Fabric, Lattice, Level, LinkError, Links, split
from shardy_py.dialect.format import sizes_text
from shardy_py.errors import ShardyError

PLATFORMS = ("cpu", "cuda", "rocm", "tpu")
"""The platforms that JAX lowers for."""


def platform_named(name: str | None) -> str | None:
    """The platform that a user names: `gpu`, as `jax.devices` calls it, is `cuda`; other names are returned unchanged."""
    return "cuda" if name == "gpu" else name


class HardwareError(ShardyError):
    """Unknown hardware, or figures that make no sense."""


@dataclass(frozen=True)
class Calibration:
    """Rates that a chip's compiler assumes, fitted to its estimates for small programs by `benchmarks/rates.py`.

    Attributes:
        bandwidth: Bytes per second to and from memory.
        pack_seconds: Seconds per element of fewer than 32 bits that is written, on top of its bytes.
        kernel_seconds: Fixed seconds of a kernel.
    """

    bandwidth: float
    pack_seconds: float
    kernel_seconds: float


@dataclass(frozen=True)
class Hardware:
    """One kind of accelerator. All figures are of one JAX device.

    Attributes:
        name: Its name, such as `h100`.
        flops: Element type -> peak floating point operations per second of matrix products (a multiplication and an addition are two),
            dense, at the precision that JAX takes by default for the type.
        vector_flops: Operations per second outside of matrix products, in float32.
        hbm_bytes: Bytes of memory.
        hbm_bandwidth: Bytes per second to and from it.
        fabric: The fast links, which join the devices of a slice or of a node.
        network: The network between slices or nodes; its bandwidth is a device's share.
        transcendental_operations: Vector operations of a function such as exp.
        platform: The JAX platform of its devices (`tpu`, `cuda` or `gpu`, `rocm`); None where that is open. A planner plans for it on
            meshes without devices.
        host_bandwidth: Bytes per second from the host to the device, and back; of a link that devices share, a device's share. None: what
            is fed costs nothing.
        vmem_bytes: Bytes of the vector memory of a TPU, half of which the temporaries of a small program take in place of HBM.
        calibration: What its compiler assumes in place of `hbm_bandwidth`; None for the plain roofline.
        sources: Name of an attribute -> the datasheet, manual or book its figure is from, or how it was estimated.

    Example:
        >>> small = Hardware("mine", {"bfloat16": 1e14}, 5e12, 16 << 30, 1e12, Fabric("ring", 5e10), Fabric("switch", 1e10))
        >>> small.matrix_flops("bfloat16") / small.hbm_bandwidth
        100.0
    """

    name: str
    flops: Mapping[str, float]
    vector_flops: float
    hbm_bytes: int
    hbm_bandwidth: float
    fabric: Fabric
    network: Fabric
    transcendental_operations: float = 16.0
    platform: str | None = None
    host_bandwidth: float | None = None
    vmem_bytes: int = 0
    sources: Mapping[str, str] = field(default_factory=dict[str, str])
    calibration: Calibration | None = None

    def __post_init__(self) -> None:
        names = ["vector_flops", "hbm_bytes", "hbm_bandwidth", "transcendental_operations"]
        names += [] if self.host_bandwidth is None else ["host_bandwidth"]
        figures = {f"flops[{dtype!r}]": rate for dtype, rate in self.flops.items()} | {name: getattr(self, name) for name in names}
        for name, figure in figures.items():
            if not (isinstance(figure, int | float) and 0 < figure < math.inf):  # pyright: ignore[reportUnnecessaryIsInstance]
                raise HardwareError(
                    f"{name} is {figure!r}",
                    where=f"hardware {self.name!r}",
                    why="rates and sizes are positive numbers, in bytes and operations per second",
                )
        for links in ("fabric", "network"):
            if not isinstance(getattr(self, links), Fabric):
                raise TypeError(f"{links} of hardware {self.name!r} is a shardy_py.Fabric, not {type(getattr(self, links)).__name__}")
        object.__setattr__(self, "platform", platform_named(self.platform))
        if self.platform not in (None, *PLATFORMS):
            why = f"it is one of {', '.join(map(repr, PLATFORMS))}, or None"
            raise HardwareError(f"unknown platform {self.platform!r}", where=f"hardware {self.name!r}", why=why)
        if not self.flops:
            raise HardwareError("no peak rates", where=f"hardware {self.name!r}", fix='give at least flops={"bfloat16": ...}')

    def matrix_flops(self, dtype: str) -> float:
        """Peak operations per second of matrix products of an element type.

        A type that is not in the table runs as the next wider one of its kind that is; where there is none, by vector units.

        Args:
            dtype: In JAX's spelling.
        """
        for candidate in (dtype, *_WIDER.get(dtype, ())):
            if candidate in self.flops:
                return self.flops[candidate]
        if dtype.startswith("float8"):
            return self.matrix_flops("bfloat16")
        return self.vector_flops

    def with_figures(self, **changes: object) -> Hardware:
        """The same hardware with other figures, for what-if questions.

        Args:
            **changes: Attributes and their new values.

        Example:
            >>> from shardy_py.cost.hardware_table import hardware
            >>> hardware("h100").with_figures(hbm_bandwidth=4.8e12).hbm_bandwidth
            4800000000000.0
        """
        return replace(self, **changes)  # type: ignore[arg-type]


_WIDER: dict[str, tuple[str, ...]] = {
    "float16": ("bfloat16",),
    "bfloat16": ("float16", "float32"),
    "float4_e2m1fn": ("float8_e4m3fn", "bfloat16"),
    "float8_e4m3fn": ("bfloat16",),
    "float8_e5m2": ("float8_e4m3fn", "bfloat16"),
    "int4": ("int8",),
    "uint4": ("int8",),
    "uint8": ("int8",),
    "complex64": ("float32",),
    "complex128": ("float64",),
}
"""Element type -> the types that its matrix products run as where the hardware does not list it."""


FAST = ("ici", "nvlink", "fabric")
SLOW = ("dcn", "network")


def lay_out(axes: Mapping[str, int], hardware: Hardware, user_links: Mapping[str, object] | None = None) -> AxisLinks:
    """The links that the axes of a mesh lie on.

    Unless `user_links` says otherwise: devices are numbered with the last axis fastest, as in a JAX mesh, and the first `reach` of them
    share the fast links (a pod of TPUs, a node of GPUs); axes beyond that lie on the network, an axis that exceeds it in part lies
    on both. On a torus every axis gets a dimension of its own, the largest several where there are more dimensions than axes, and
    an axis for which no dimension is left lies on a line, without the link that closes it to a ring. So `jax.make_mesh` places
    the axes where it can.

    Args:
        axes: Name -> size.
        user_links: Axis -> `"ici"` (or `"nvlink"`), `"dcn"` (or `"network"`), a `Links`, or a `Lattice`, which counts on a torus.

    Raises:
        LinkError: `user_links` names an axis or links that do not exist, or links whose dims do not multiply to the size of the axis.
    """
    if user_links is not None and not isinstance(user_links, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(f"links is a {type(user_links).__name__}; it is a mapping from mesh axes, as {{'data': 'dcn'}}")
    user_links = {} if user_links is None else dict(user_links)
    for axis in user_links:
        if axis not in axes:
            axis_names = sizes_text(axes) or "no axes"
            raise LinkError(
                f"unknown mesh axis {axis!r}",
                where="links",
                why=f"the mesh has {axis_names}",
                fix=f"name one of {', '.join(axes)}" if axes else "leave it out",
            )
    network = hardware.network
    fast: dict[str, int] = {}
    levels: dict[str, list[Level]] = {axis: [] for axis in axes}
    free = hardware.fabric.reach
    for axis, size in reversed(list(axes.items())):
        user_choice = user_links.get(axis)
        if size == 1:
            continue
        if isinstance(user_choice, Links):
            if user_choice.dims and math.prod(user_choice.dims) != size:
                raise LinkError(
                    f"dims {user_choice.dims} have {math.prod(user_choice.dims)} devices, the axis {size}", where=f"links[{axis!r}]"
                )
            levels[axis].append(Level(user_choice, size))
            continue
        if isinstance(user_choice, Lattice):
            if hardware.fabric.kind == "torus":
                levels[axis].append(Level(user_choice.links(hardware.fabric), size))
                continue
            user_choice = None
        if user_choice is not None and user_choice not in (*FAST, *SLOW):
            raise LinkError(
                f"unknown links {user_choice!r}",
                where=f"links[{axis!r}]",
                why=f"known are {', '.join(map(repr, (*FAST, *SLOW)))}",
                fix="use one of these, or a shardy_py.Links",
            )
        inside = size if user_choice in FAST else 1 if user_choice in SLOW else math.gcd(size, free) if free < size else size
        free = max(1, free // inside)
        if inside > 1:
            fast[axis] = inside
        if inside < size:
            levels[axis].append(Level(Links("switch", network.bandwidth, network.latency, name=network.name), size // inside))
    for axis, links in _on_fabric(fast, hardware.fabric).items():
        levels[axis].insert(0, Level(links, fast[axis]))
    return {axis: tuple(of_axis) for axis, of_axis in levels.items()}


def _on_fabric(sizes: Mapping[str, int], fabric: Fabric) -> dict[str, Links]:
    """The links of the axes that lie on a fabric."""
    plain = Links(fabric.kind, fabric.bandwidth, fabric.latency, name=fabric.name)
    if fabric.kind == "switch":
        return dict.fromkeys(sizes, plain)
    order = sorted(sizes, key=lambda axis: -sizes[axis])
    dims: dict[str, tuple[int, ...]] = {axis: (sizes[axis],) for axis in order}
    for _ in range(fabric.dims - len(order)):
        longest = max(dims, key=lambda axis: max(dims[axis]), default=None)
        if longest is None or (parts := split(sizes[longest], len(dims[longest]) + 1)) == dims[longest]:
            break
        dims[longest] = parts
    closed = order[: fabric.dims]
    wrapped = {axis: tuple(axis in closed and n % fabric.wrap == 0 for n in dims[axis]) for axis in order}
    return {axis: replace(plain, dims=dims[axis], wrapped=wrapped[axis]) for axis in order}
