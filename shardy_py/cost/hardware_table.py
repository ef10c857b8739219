"""Known accelerators by name, each figure with its source."""

from __future__ import annotations

import json
import pathlib
from dataclasses import replace

from shardy_py.cost.hardware import Calibration, Hardware, HardwareError
from shardy_py.cost.links import Fabric
from shardy_py.ir.tables import merge_tables

_BOOK = "How to Scale Your Model (jax-ml.github.io/scaling-book), chapter 2, table of TPU specifications"
_CLOUD = "Google Cloud TPU documentation, system architecture"
_HOP = "about 1 microsecond per hop: How to Scale Your Model, chapter 3"
_NETWORK_HOP = "estimate: 10 microseconds per round of messages between hosts"
_LAUNCH = "estimate: 2 microseconds per round of messages"
_B200 = "NVIDIA DGX B200 datasheet"
_AMD = "AMD data sheet, Instinct"
_NVL72 = "NVIDIA GB200 NVL72 datasheet"

ALIASES = {
    "v4p": "v4",
    "v5": "v5p",
    "v5lite": "v5e",
    "v5litepod": "v5e",
    "v6lite": "v6e",
    "trillium": "v6e",
    "a10080gb": "a100",
    "h10080gbhbm3": "h100",
    "h100sxm": "h100",
    "b200sxm": "b200",
    "gb200nvl72": "gb200",
    "7x": "tpu7x",
    "v7x": "tpu7x",
    "ironwood": "tpu7x",
}
"""Other names, without spaces, those that `jax.Device.device_kind` gives among them."""


_CALIBRATED = json.loads(pathlib.Path(__file__).with_name("calibrated.json").read_text(encoding="utf-8"))
_RATES = {name: Calibration(**rates) for name, rates in _CALIBRATED["rates"].items()}
_GIB, _GB = 1 << 30, 10**9
_VMEM = {"v4": 16, "v5e": 128, "v5p": 64, "v6e": 128, "tpu7x": 64}


def _tpu(
    name: str, bf16: float, int8: float, clock: float, cores: int, memory: int, bandwidth: float, link: float, dims: int, reach: int,
    wrap: int, network: float,
) -> Hardware:  # fmt: skip
    # float32 products run as one bfloat16 pass: jax.lax.Precision.DEFAULT on TPUs.
    host = 1.6e10 if name in ("v4", "v5e") else 3.2e10
    flops = {"bfloat16": bf16, "float32": bf16, "int8": int8}
    sources = {
        "flops": f"{_BOOK}; float32 at the default precision, which is one bfloat16 pass",
        "vector_flops": "How to Scale Your Model, chapter 2: 8 x 128 lanes x 4 units x clock, per core",
        "transcendental_operations": "estimate: one unit for them beside four for arithmetic",
        "hbm_bytes": f"{_CLOUD}, {name}",
        "hbm_bandwidth": _BOOK,
        "fabric.bandwidth": f"{_BOOK}, one-way bandwidth per link",
        "fabric.latency": _HOP,
        "fabric.reach": f"{_CLOUD}, {name}: size of a pod and shape of its torus",
        "network.bandwidth": "How to Scale Your Model, chapter 2: data centre network per TPU",
        "network.latency": _NETWORK_HOP,
        "host_bandwidth": _HOSTS[host],
        "vmem_bytes": "jax.experimental.pallas, its table of TPUs: VMEM per core",
    }
    fabric = Fabric("torus", link, 1e-6, reach, dims, wrap, "ici")
    vector, dcn = 8 * 128 * 4 * clock * cores, Fabric("switch", network, 1e-5, name="dcn")
    return Hardware(
        name, flops, vector, memory * _GIB, bandwidth, fabric, dcn, 4.0, "tpu", host, _VMEM[name] << 20, sources, _RATES.get(name)
    )


def _tpu7x() -> Hardware:
    """JAX shows a chip as two devices, each a chiplet with a TensorCore, half of the memory and half of the links."""
    page = "Google Cloud TPU documentation, TPU7x (Ironwood), half of the figure of a chip"
    half = _tpu("tpu7x", 1153.5e12, 1153.5e12, 2.2e9, 1, 96, 3.69e12, 5e10, 3, 18432, 4, 6.25e9)
    flops = {**half.flops, **dict.fromkeys(("float8_e4m3fn", "float8_e5m2"), 2307e12)}
    sources = {
        **half.sources,
        **dict.fromkeys(("hbm_bandwidth", "fabric.bandwidth", "fabric.reach", "network.bandwidth"), page),
        "flops": f"{page}; float32 at the default precision, which is one bfloat16 pass; estimate for int8: as bfloat16",
        "vector_flops": "estimate: 8 x 128 lanes x 4 units x 2.2 GHz, the clock by the peak of two matrix units of twice 256 x 256",
    }
    return replace(half, flops=flops, sources=sources)


def _gpu(
    name: str, flops: dict[str, float], vector: float, memory: int, bandwidth: float, link: float, network: float, sheet: str, node: str,
    reach: int = 8, platform: str = "cuda", host: float = 6.4e10,
) -> Hardware:  # fmt: skip
    products, links, joined, transcendental = _MAKERS[platform]
    sources = {
        "flops": f"{sheet}, dense; float32 products run as {products}",
        "vector_flops": f"{sheet}, FP32",
        "transcendental_operations": transcendental,
        "hbm_bytes": sheet,
        "hbm_bandwidth": sheet,
        "fabric.bandwidth": f"{sheet}, {links}, half of the bandwidth of both directions",
        "fabric.latency": _LAUNCH,
        "fabric.reach": f"{node}: {reach} GPUs {joined}",
        "network.bandwidth": f"{node}: one network port per GPU",
        "network.latency": _NETWORK_HOP,
        "host_bandwidth": _HOSTS[host],
    }
    fabric = Fabric("switch", link, 2e-6, reach, name="nvlink" if platform == "cuda" else "xgmi")
    dcn = Fabric("switch", network, 1e-5, name="dcn")
    return Hardware(name, flops, vector, memory * _GB, bandwidth, fabric, dcn, 16.0, platform, host, 0, sources)


_HOSTS = {
    1.6e10: "How to Scale Your Model, chapter 2: PCIe of v4, 16 GB/s each way; an estimate for v5e",
    3.2e10: "estimate by the link: PCIe 4.0 with 16 lanes, 2 GB/s a lane each way, for each device",
    6.4e10: "estimate by the link: PCIe 5.0 with 16 lanes, 4 GB/s a lane each way, for each device",
    2.25e11: "NVIDIA GB200 NVL72 datasheet: NVLink-C2C, 900 GB/s both ways, shared by the two GPUs of a Grace CPU",
}


_MAKERS = {
    "cuda": (
        "TF32, JAX's default on GPUs", "NVLink", "behind NVSwitch",
        "CUDA C++ Programming Guide, throughput of arithmetic instructions: 16 per clock against 128 FMAs",
    ),
    "rocm": (
        "float32 on matrix cores", "7 Infinity Fabric links", "with a link between any two, all of which a collective uses",
        "estimate: a quarter of the rate of instructions of 64 lanes, 16 per clock against 128 FMAs",
    ),
}  # fmt: skip


def _rates(
    double: float, single: float, half: float, quarter: float, quarters: tuple[str, ...] = ("float8_e4m3fn", "float8_e5m2", "int8")
) -> dict[str, float]:
    return {"float64": double, "float32": single, **dict.fromkeys(("bfloat16", "float16"), half), **dict.fromkeys(quarters, quarter)}


_AMPERE = _rates(19.5e12, 156e12, 312e12, 624e12, ("int8",))
_HOPPER = _rates(66.9e12, 494.7e12, 989.4e12, 1978.9e12)
_BLACKWELL = {**_rates(37e12, 1.1e15, 2.25e15, 4.5e15), "float4_e2m1fn": 9e15}
_GB200 = {**_rates(40e12, 1.25e15, 2.5e15, 5e15), "float4_e2m1fn": 1e16}
_CDNA3 = _rates(163.4e12, 163.4e12, 1307.4e12, 2614.9e12, ("float8_e4m3fnuz", "float8_e5m2fnuz", "int8"))
_CDNA4 = {**_rates(78.6e12, 157.3e12, 2516.6e12, 5033.2e12), "float4_e2m1fn": 10066.3e12}

_TABLE = (
    # name, bfloat16, int8, clock, cores, GiB, bytes/s to memory, per link, dimensions, chips of a pod, wraps from, bytes/s of network
    _tpu("v4", 275e12, 275e12, 1.05e9, 2, 32, 1.2e12, 4.5e10, 3, 4096, 4, 6.25e9),
    _tpu("v5e", 197e12, 394e12, 1.5e9, 1, 16, 8.1e11, 4.5e10, 2, 256, 16, 3.125e9),
    _tpu("v5p", 459e12, 918e12, 1.75e9, 2, 95, 2.8e12, 9e10, 3, 8960, 4, 6.25e9),
    _tpu("v6e", 918e12, 1836e12, 1.75e9, 1, 32, 1.6e12, 9e10, 2, 256, 16, 1.25e10),
    _tpu7x(),
    # name, matrix products, vector units, GB, bytes/s to memory, of NVLink one way, of network, source of these, of the node, its GPUs
    _gpu("a100", _AMPERE, 19.5e12, 80, 2.039e12, 3e11, 2.5e10, "NVIDIA A100 80GB SXM datasheet", "NVIDIA DGX A100 datasheet", host=3.2e10),
    _gpu("h100", _HOPPER, 66.9e12, 80, 3.35e12, 4.5e11, 5e10, "NVIDIA H100 SXM5 architecture white paper", "NVIDIA DGX H100 datasheet"),
    _gpu("h200", _HOPPER, 66.9e12, 141, 4.8e12, 4.5e11, 5e10, "NVIDIA H200 SXM datasheet", "NVIDIA DGX H200 datasheet"),
    _gpu("b200", _BLACKWELL, 75e12, 180, 8e12, 9e11, 5e10, f"{_B200} and HGX B200 specifications", _B200),
    _gpu("gb200", _GB200, 80e12, 186, 8e12, 9e11, 5e10, f"{_NVL72}, a 72nd of the figures of a rack", _NVL72, 72, host=2.25e11),
    _gpu("mi300x", _CDNA3, 163.4e12, 192, 5.3e12, 4.48e11, 5e10, f"{_AMD} MI300X", f"{_AMD} MI300X platform", 8, "rocm"),
    _gpu("mi355x", _CDNA4, 157.3e12, 288, 8e12, 5.376e11, 5e10, f"{_AMD} MI355X", f"{_AMD} MI355X platform", 8, "rocm"),
)

HARDWARE: dict[str, Hardware] = merge_tables({entry.name: entry} for entry in _TABLE)
"""Name -> hardware."""


TILES = {"tpu": (8, 128)}
"""Platform -> rows and lanes of the tiles that arrays fill in memory: the layouts of the compiler in libtpu 0.0.42; others have none."""


def hardware(which: str | Hardware) -> Hardware:
    """Hardware by name; a user's own `Hardware` is returned unchanged.

    Raises HardwareError if there is no such name; the message lists those there are.

    Args:
        which: One of the names in `HARDWARE`, in upper or lower case and with or without the maker's name, or a `Hardware`.

    Example:
        >>> hardware("TPU v5p").name
        'v5p'
    """
    if isinstance(which, Hardware):
        return which
    if not isinstance(which, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(f"hardware is a name or a shardy_py.Hardware, not {type(which).__name__}")
    key = which.lower().replace("-", " ").replace("_", " ").strip()
    for prefix in ("nvidia ", "google ", "amd ", "instinct ", "tpu ", "gpu ", "tpu"):
        key = key.removeprefix(prefix)
    key = ALIASES.get(key.replace(" ", ""), key)
    if key in HARDWARE:
        return HARDWARE[key]
    raise HardwareError(
        f"unknown hardware {which!r}",
        where="hardware",
        why=f"known are {', '.join(HARDWARE)}",
        fix="use one of these names, or pass a shardy_py.Hardware with your own figures",
    )
