"""Eight CPU devices and repeatable hypothesis runs for every test.

jax is not imported here: the tests of the core (dialect, ir, rules, passes, ...) run without it.
"""

from __future__ import annotations

import os
import platform
from collections import Counter
from importlib import metadata

import hypothesis
import pytest

# Read when jax starts its CPU client. With fewer worker threads than twice the devices, collectives over different
# groups of devices wait for each other for ever on a machine with few cores; NPROC sets the number of threads.
os.environ.setdefault("NPROC", "64")
os.environ.setdefault("JAX_PLATFORMS", "cpu")
# LLVM takes a third of the time of a test that compiles, and what it makes of XLA's programs is nothing that is tested here.
for _flag, _value in (("xla_force_host_platform_device_count", 8), ("xla_backend_optimization_level", 0)):
    if _flag not in os.environ.get("XLA_FLAGS", ""):
        os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --{_flag}={_value}".strip()

_SLOW_IS_FINE = [hypothesis.HealthCheck.too_slow, hypothesis.HealthCheck.data_too_large]
hypothesis.settings.register_profile("local", deadline=None, suppress_health_check=_SLOW_IS_FINE)
hypothesis.settings.register_profile("ci", deadline=None, suppress_health_check=_SLOW_IS_FINE, derandomize=True, print_blob=True)
hypothesis.settings.load_profile("ci" if os.environ.get("CI") else "local")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--sample", type=int, metavar="N", help="run only the first N tests of each file: all rooms, in a minute or so")


@pytest.hookimpl(trylast=True)  # what is left out by its marker does not count
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    most = config.getoption("--sample")
    if most is None:
        return
    count: Counter[str] = Counter()
    kept, left_out = [], []
    for item in items:
        count[item.location[0]] += 1
        (kept if count[item.location[0]] <= most else left_out).append(item)
    config.hook.pytest_deselected(items=left_out)
    items[:] = kept


def pytest_report_header() -> str:
    """The versions that a run was made with."""
    packages = ", ".join(f"{name} {metadata.version(name)}" for name in ("jax", "jaxlib", "flax", "optax", "numpy"))
    return f"Python {platform.python_version()}, {packages}"
