"""Accelerators as the cost of a plan sees them: compute per element type, memory, links; every figure with its source."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from shardy_py.cost.links import Fabric
from shardy_py.errors import ShardyError

PLATFORMS = ("cpu", "cuda", "rocm", "tpu")
"""The platforms that JAX lowers for."""


def platform_named(name: str | None) -> str | None:
    """The platform that a user names: `gpu`, as `jax.devices` calls it, is `cuda`; other names are returned unchanged."""
    return "cuda" if name == "gpu" else name


class HardwareError(ShardyError):
    """Unknown hardware, or figures that make no sense."""


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
    sources: Mapping[str, str] = field(default_factory=dict[str, str])

    def __post_init__(self) -> None:
        figures = {**{f"flops[{dtype!r}]": rate for dtype, rate in self.flops.items()}, "vector_flops": self.vector_flops}
        figures |= {"hbm_bytes": self.hbm_bytes, "hbm_bandwidth": self.hbm_bandwidth}
        figures["transcendental_operations"] = self.transcendental_operations
        figures |= {} if self.host_bandwidth is None else {"host_bandwidth": self.host_bandwidth}
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
        return dataclasses.replace(self, **changes)  # type: ignore[arg-type]


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
