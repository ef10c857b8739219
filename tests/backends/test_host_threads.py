from __future__ import annotations

import os
import subprocess
import sys
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec as P

import shardy_py as sp
from shardy_py.backends import host_threads

SAID = """
import os, sys
{}
print(os.environ.get("PJRT_NPROC"), "jax" in sys.modules)
"""


def said(program: str, **environment: str) -> str:
    kept = {name: value for name, value in os.environ.items() if name not in ("NPROC", "PJRT_NPROC", "XLA_FLAGS", "JAX_NUM_CPU_DEVICES")}
    done = subprocess.run(
        [sys.executable, "-c", SAID.format(program)], capture_output=True, text=True, timeout=120,
        env=kept | {"PYTHONPATH": os.pathsep.join(sys.path)} | environment,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


# More devices than any machine that runs this has processors for.
MANY = "--xla_force_host_platform_device_count=1000"


@pytest.mark.parametrize(
    ("program", "environment", "expected"),
    [
        ("import shardy_py", {"XLA_FLAGS": MANY}, "4000 False"),
        ("import shardy_py", {"JAX_NUM_CPU_DEVICES": "1000"}, "4000 False"),
        ("import jax, shardy_py", {"XLA_FLAGS": MANY}, "4000 True"),
        ("import shardy_py, jax; jax.config.update('jax_num_cpu_devices', 1000); shardy_py.auto_shard", {}, "4000 True"),
        ("import shardy_py", {}, "None False"),
        ("import shardy_py", {"XLA_FLAGS": MANY, "NPROC": "7"}, "None False"),
        ("import shardy_py", {"XLA_FLAGS": MANY, "SHARDY_PY_SET_NPROC": "0"}, "None False"),
        ("import shardy_py", {"XLA_FLAGS": MANY, "SHARDY_PY_SET_NPROC": "1"}, "4000 False"),
        ("import shardy_py", {"XLA_FLAGS": MANY, "PJRT_NPROC": "7"}, "7 False"),
        (
            "import jax; jax.config.update('jax_num_cpu_devices', 200); jax.devices(); import shardy_py; shardy_py.auto_shard",
            {},
            "None True",
        ),
    ],
)
def test_threads_are_asked_for_where_they_are_needed(program: str, environment: dict[str, str], expected: str) -> None:
    assert said(program, **environment) == expected


def test_few_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PJRT_NPROC", raising=False)
    monkeypatch.setenv("NPROC", "15")
    assert host_threads.too_few(8)
    assert not host_threads.too_few(7)
    assert not host_threads.too_few(1)
    monkeypatch.setenv("PJRT_NPROC", "16")
    assert not host_threads.too_few(8)
    monkeypatch.setenv("PJRT_NPROC", "2")
    assert host_threads.must_wait([SimpleNamespace(platform="cpu")] * 2)
    assert not host_threads.must_wait([SimpleNamespace(platform="cpu")])
    assert not host_threads.must_wait([SimpleNamespace(platform="gpu")] * 2)


def test_calls_wait_where_threads_are_few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PJRT_NPROC", "2")
    function = sp.auto_shard(lambda x: x + 1, mesh={"data": 8}, in_shardings=P("data"), donate_argnums=0)
    x = function(jnp.zeros(8))
    assert function._last is not None
    assert function._last.run != function._last.jitted.run
    for _ in range(3):
        x = function(x)
    assert x.tolist() == [4.0] * 8
    assert jax.jit(lambda x: function(x) * 2)(jnp.zeros(8)).tolist() == [2.0] * 8
    assert jax.grad(lambda x: function(x).sum())(jnp.zeros(8)).tolist() == [1.0] * 8
