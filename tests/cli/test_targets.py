"""Targets that a command line names."""

from __future__ import annotations

import inspect
import json
import subprocess
import sys
from pathlib import Path

import pytest

from shardy_py.cli import targets
from shardy_py.cli.errors import CommandError
from shardy_py.cli.main import parser
from shardy_py.cli.targets import plan_of
from shardy_py.facade import Plan
from tests.cli.methods_module import network

MODULE = "tests.cli.methods_module"


def plan(target: str, *arguments: str) -> Plan:
    options = parser().parse_args(["plan", target, *arguments])
    options.flags = []
    return plan_of(target, options)


@pytest.mark.parametrize("lowering", ["jit", "shard_map"])
def test_a_method_of_an_instance(lowering: str) -> None:
    found = plan(f"{MODULE}:network.step", "--args", "f32[8,16]", "--lowering", lowering)
    assert list(map(str, found.inputs)) == ["self.weights: float32[16,16@model]", "x: float32[8@data,16]"]
    assert list(inspect.signature(network.step).parameters) == ["x"]
    found = plan(f"{MODULE}:network.plain", "--args", "f32[8@data,16]", "--mesh", "data=2")
    assert list(map(str, found.inputs)) == ["x: float32[8@data,16]"]


@pytest.mark.parametrize("name", ["step", "plain"])
def test_a_method_of_a_class(name: str) -> None:
    with pytest.raises(CommandError, match=f"Network.{name} is a method, and Network no instance") as caught:
        plan(f"{MODULE}:Network.{name}", "--args", "f32[8,16]", "--mesh", "data=2,model=4")
    assert caught.value.fix == f"name it of an instance that the module has, {MODULE}:INSTANCE.{name}"


def test_a_method_without_arguments() -> None:
    with pytest.raises(CommandError, match=r"network.step takes x\n"):
        plan(f"{MODULE}:network.step")


def test_a_name_that_is_almost_there() -> None:
    with pytest.raises(CommandError) as caught:
        plan(f"{MODULE}:netwrk.step")
    assert "it has network" in (caught.value.fix or "")
    with pytest.raises(CommandError, match="has no first"):
        plan(f"{MODULE}:network.weights.shape.first")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["json", "colorsys", "jax", "rich", "some_network"])
def test_a_file_never_replaces_another_module(name: str, tmp_path: Path) -> None:
    (tmp_path / f"{name}.py").write_text(
        "import sibling\nimport jax.numpy as jnp\ndef step(w, x):\n    return jnp.sin(x @ w) * sibling.SCALE\n"
    )
    (tmp_path / "sibling.py").write_text("SCALE = 2.0\n")
    command = [sys.executable, "-m", "shardy_py", "plan", f"{tmp_path / name}.py:step", "--json"]
    done = subprocess.run(
        [*command, "--mesh", "data=2", "--args", "f32[8,8]", "f32[8@data,8]"], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["mesh"] == {"data": 2}


def test_the_standard_library_comes_before_the_folder_of_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "colorsys.py").write_text("")
    (tmp_path / "entry.py").write_text("import colorsys\ndef step(): pass\n")
    module = targets.lookup(f"{tmp_path / 'entry.py'}:colorsys", [])
    assert hasattr(module, "rgb_to_hsv")
    del sys.modules["entry"]
