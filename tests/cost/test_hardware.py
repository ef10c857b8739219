"""Hardware by name, and what its figures say."""

from __future__ import annotations

import math
import pickle

import pytest

from shardy_py.cost.hardware import Hardware, HardwareError
from shardy_py.cost.hardware_table import HARDWARE, hardware
from shardy_py.cost.links import Fabric

FIGURES = {"flops", "vector_flops", "transcendental_operations", "hbm_bytes", "hbm_bandwidth", "host_bandwidth"}
FIGURES |= {f"{links}.{what}" for links in ("fabric", "network") for what in ("bandwidth", "latency")} | {"fabric.reach"}


def test_all_that_were_asked_for_are_there() -> None:
    assert set(HARDWARE) == {"v4", "v5e", "v5p", "v6e", "tpu7x", "a100", "h100", "h200", "b200", "gb200", "mi300x", "mi355x"}


@pytest.mark.parametrize("name", sorted(HARDWARE))
def test_every_figure_has_a_source(name: str) -> None:
    known = HARDWARE[name]
    assert known.name == name
    assert set(known.sources) == (FIGURES | {"vmem_bytes"} if known.vmem_bytes else FIGURES)
    assert all(len(source) > 10 for source in known.sources.values())


@pytest.mark.parametrize("name", sorted(HARDWARE))
def test_figures_are_plausible(name: str) -> None:
    """A slip of three zeros would be far outside."""
    known = HARDWARE[name]
    assert 1e14 < known.flops["bfloat16"] < 1e16
    assert 1e12 < known.vector_flops < 2e14
    assert 1 << 33 < known.hbm_bytes < 1 << 39
    assert 5e11 < known.hbm_bandwidth < 2e13
    assert 50 < known.flops["bfloat16"] / known.hbm_bandwidth < 1000
    assert known.network.bandwidth < known.fabric.bandwidth
    assert known.host_bandwidth is not None
    assert 1e10 < known.host_bandwidth < 5e11


@pytest.mark.parametrize(
    ("written", "name"),
    [
        ("H100", "h100"),
        ("TPU v5p", "v5p"),
        ("TPU v5 lite", "v5e"),
        ("H200", "h200"),
        ("NVIDIA A100-80GB", "a100"),
        ("trillium", "v6e"),
        ("TPU7x", "tpu7x"),
        ("Ironwood", "tpu7x"),
        ("NVIDIA GB200", "gb200"),
        ("AMD Instinct MI300X", "mi300x"),
    ],
)
def test_names_may_be_spelled_otherwise(written: str, name: str) -> None:
    assert hardware(written).name == name


def test_an_unknown_name_lists_the_known() -> None:
    with pytest.raises(HardwareError, match="unknown hardware 'h300'") as caught:
        hardware("h300")
    assert all(name in str(caught.value) for name in HARDWARE)
    with pytest.raises(TypeError, match="not int"):
        hardware(100)  # type: ignore[arg-type]


def test_own_hardware() -> None:
    mine = Hardware("mine", {"bfloat16": 1e14}, 1e12, 1 << 34, 1e12, Fabric("ring", 1e10), Fabric("switch", 1e9))
    assert hardware(mine) is mine
    assert mine.with_figures(hbm_bandwidth=2e12).hbm_bandwidth == 2e12
    assert pickle.loads(pickle.dumps(mine)) == mine


@pytest.mark.parametrize("wrong", [0, -1.0, math.inf, math.nan, "fast"])
def test_figures_that_make_no_sense(wrong: object) -> None:
    with pytest.raises(HardwareError, match="hbm_bandwidth"):
        hardware("h100").with_figures(hbm_bandwidth=wrong)
    with pytest.raises(HardwareError, match="bfloat16"):
        hardware("h100").with_figures(flops={"bfloat16": wrong})


def test_links_are_links() -> None:
    with pytest.raises(TypeError, match=r"network of hardware 'h100' is a .*Fabric, not float"):
        hardware("h100").with_figures(network=5e10)
    with pytest.raises(HardwareError, match="no peak rates"):
        hardware("h100").with_figures(flops={})


def test_a_platform_is_one_of_jax() -> None:
    mine = Hardware("mine", {"bfloat16": 1e14}, 1e12, 1 << 34, 1e12, Fabric("ring", 1e10), Fabric("switch", 1e9), platform="gpu")
    assert mine.platform == "cuda"
    assert {each.platform for each in HARDWARE.values()} == {"tpu", "cuda", "rocm"}
    with pytest.raises(HardwareError, match="unknown platform 'metal'"):
        mine.with_figures(platform="metal")


def test_types_that_are_not_listed_run_as_wider_ones() -> None:
    a100, v5p = hardware("a100"), hardware("v5p")
    assert a100.matrix_flops("float8_e4m3fn") == a100.flops["bfloat16"]
    assert a100.matrix_flops("float8_e8m0fnu") == a100.flops["bfloat16"]
    assert v5p.matrix_flops("int4") == v5p.flops["int8"]
    assert v5p.matrix_flops("float64") == v5p.vector_flops
    assert v5p.matrix_flops("float16") == v5p.flops["bfloat16"]
