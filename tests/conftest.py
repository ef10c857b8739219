"""Eight CPU devices and repeatable hypothesis runs for every test.

jax is not imported here: the tests of the core (dialect, ir, rules, passes, ...) run without it.
"""

from __future__ import annotations

import gc
import os
import platform
from collections import Counter
from collections.abc import Generator
from importlib import metadata

import hypothesis
import pytest

# Read when jax starts its CPU client. With fewer worker threads than twice the devices, collectives over different
# groups of devices wait for each other for ever on a machine with few cores; NPROC sets the number of threads.
os.environ.setdefault("NPROC", "64")
os.environ.setdefault("JAX_PLATFORMS", "cpu")
# A third of the time of a test that compiles is LLVM's, and what it makes of XLA's programs is nothing that is tested here.
_XLA_FLAGS = {"xla_force_host_platform_device_count": "8", "xla_backend_optimization_level": "0"}
# Half of what is left is spent on loops of a few instructions that pass through MLIR, and on modules that are split among threads. Without
# MLIR a little is fused otherwise: see `usual_fusions`. Later versions may lack these flags, and XLA ends the process for an unknown one.
if metadata.version("jaxlib").startswith("0.10."):
    _XLA_FLAGS |= {"xla_cpu_parallel_codegen_split_count": "1", "xla_cpu_use_fusion_emitters": "false", "xla_flags_reset": "true"}
for _flag, _value in _XLA_FLAGS.items():
    if _flag not in os.environ.get("XLA_FLAGS", ""):
        os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --{_flag}={_value}".strip()

# A trace makes many objects that stay; looking through all of them after each 700 takes a tenth of the time.
gc.set_threshold(50_000, 20, 20)

_SLOW_IS_FINE = [hypothesis.HealthCheck.too_slow, hypothesis.HealthCheck.data_too_large]
hypothesis.settings.register_profile("local", deadline=None, max_examples=50, suppress_health_check=_SLOW_IS_FINE)
hypothesis.settings.register_profile(
    "ci", deadline=None, max_examples=50, suppress_health_check=_SLOW_IS_FINE, derandomize=True, print_blob=True
)
hypothesis.settings.load_profile("ci" if os.environ.get("CI") else "local")


@pytest.fixture
def usual_fusions(monkeypatch: pytest.MonkeyPatch) -> None:
    """XLA compiles as it does for users: for tests that read the memory of a compiled program, and for those of faults of XLA.

    XLA reads its flags anew for each program (`xla_flags_reset`).
    """
    flags = os.environ["XLA_FLAGS"].replace("xla_cpu_use_fusion_emitters=false", "xla_cpu_use_fusion_emitters=true")
    monkeypatch.setenv("XLA_FLAGS", flags)


@pytest.fixture
def only_new_garbage() -> Generator[None]:
    """`gc.collect` looks at what a test makes; looking at what thousands of tests before it left takes a second."""
    gc.freeze()
    yield
    gc.unfreeze()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--sample", type=int, metavar="N", help="run only the first N tests of each file: all rooms, in a minute or so")
    parser.addoption("--whole", metavar="FILE", help="with --sample: run all tests of this file, and of the others none that is slow")


@pytest.hookimpl(trylast=True)  # what is left out by its marker does not count
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    most, whole = config.getoption("--sample"), config.getoption("--whole")
    if most is None:
        return
    count: Counter[str] = Counter()
    kept, left_out = [], []
    for item in items:
        file = item.location[0]
        is_slow = whole is not None and item.get_closest_marker("slow") is not None
        count[file] += not is_slow
        (kept if file == whole or (count[file] <= most and not is_slow) else left_out).append(item)
    config.hook.pytest_deselected(items=left_out)
    items[:] = kept


def pytest_report_header() -> str:
    """The versions that a run was made with."""
    packages = ", ".join(f"{name} {metadata.version(name)}" for name in ("jax", "jaxlib", "flax", "optax", "numpy"))
    return f"Python {platform.python_version()}, {packages}"
