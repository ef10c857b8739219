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


PLANS = """
import sys
from shardy_py.cli.main import main
for path in sys.argv[1:]:
    main(["plan", f"{path}:step", "--json", "--mesh", "data=2", "--args", "f32[8,8]", "f32[8@data,8]"])
    print(end="\\0")
"""


@pytest.mark.slow
def test_a_file_never_replaces_another_module(tmp_path: Path) -> None:
    """In a process of its own, which has not imported them yet."""
    paths = [tmp_path / name / f"{name}.py" for name in ("json", "colorsys", "rich", "jax", "some_network")]
    for path in paths:
        path.parent.mkdir()
        path.write_text("import sibling\nimport jax.numpy as jnp\ndef step(w, x):\n    return jnp.sin(x @ w) * sibling.SCALE\n")
        (path.parent / "sibling.py").write_text("SCALE = 2.0\n")
    done = subprocess.run([sys.executable, "-c", PLANS, *paths], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    meshes = [json.loads(text)["mesh"] for text in done.stdout.split("\0")[:-1]]
    assert meshes == [{"data": 2}] * len(paths)


def test_the_standard_library_comes_before_the_folder_of_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "colorsys.py").write_text("")
    (tmp_path / "entry.py").write_text("import colorsys\ndef step(): pass\n")
    module = targets.lookup(f"{tmp_path / 'entry.py'}:colorsys", [])
    assert hasattr(module, "rgb_to_hsv")
    del sys.modules["entry"]
