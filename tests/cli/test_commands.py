"""The command line as users meet it: what it prints, where, and with which exit status."""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from shardy_py.cli import main
from shardy_py.cli.command import add_all
from shardy_py.cli.main import COMMANDS
from shardy_py.cli.view import server
from shardy_py.facade import Plan
from tests.cli.sample_module import planned

MODULE = "tests.cli.sample_module"
FILE = str(Path(__file__).parent / "sample_module.py")
ARGUMENTS = ["--args-from", f"{MODULE}:arguments"]
Captured = pytest.CaptureFixture[str]


@pytest.fixture
def stored(tmp_path: Path) -> str:
    planned().save(tmp_path / "plan.json.gz")
    return str(tmp_path / "plan.json.gz")


def ran(capsys: Captured, *arguments: str, status: int = 0) -> str:
    """Standard output of a command."""
    code = main(arguments)
    out, err = capsys.readouterr()
    assert code == status, err
    return out


def refused(capsys: Captured, *arguments: str) -> str:
    """The only line that a command says of an error."""
    assert main(arguments) == 2
    out, err = capsys.readouterr()
    lines = [line for line in err.splitlines() if "error" in line or not line.endswith(" ...")]
    assert not out
    assert len(lines) == 1, err
    assert lines[0].startswith("shardy-py: error: ")
    return lines[0].removeprefix("shardy-py: error: ")


@pytest.mark.parametrize("target", [f"{MODULE}:step", f"{FILE}:step"])
def test_plan_of_a_decorated_function(target: str, capsys: Captured) -> None:
    text = ran(capsys, "plan", target, "--args-from", target.replace(":step", ":arguments"))
    assert text.splitlines()[0] == "plan of layer on mesh data=2, model=4"
    assert re.search(r"^  w\['up'\] +float32\[16,32@model\] +512 B$", text, re.MULTILINE)


def test_plan_of_other_things(stored: str, capsys: Captured) -> None:
    text = planned().as_text(limit=None) + "\n"
    assert ran(capsys, "plan", f"{MODULE}:planned") == text
    assert ran(capsys, "plan", stored) == text
    types = ["{'up': f32[16,32@model], 'down': f32[32,16]}", "float32[8@data,16]"]
    assert ran(capsys, "plan", f"{MODULE}:layer", "--mesh", "data=2,model=4", "--args", *types) == text
    changed = ran(capsys, "plan", f"{MODULE}:step", *ARGUMENTS, "--mesh", "data=8,model=2")
    assert changed.startswith("plan of layer on mesh data=8, model=2\n")
    named = ran(capsys, "plan", f"{MODULE}:scaled", "--mesh", "x=2", "--args", "f32[4@x]", "rate=0.5", "flag=None")
    assert "  rate  float32[]" in named


def test_plan_writes_files(tmp_path: Path, capsys: Captured) -> None:
    saved, page = tmp_path / "plan.json", tmp_path / "plan.html"
    ran(capsys, "plan", f"{MODULE}:planned", "--save", str(saved), "--html", str(page), "--lowering", "shard_map")
    assert Plan.load(saved).as_text() == planned().as_text()
    assert page.read_text().startswith("<!doctype html>")


def test_plan_as_code(stored: str, capsys: Captured) -> None:
    code = ran(capsys, "plan", f"{MODULE}:planned", "--as-code", "explicit")
    assert "in_shardings = ({'down': jax.P('model'), 'up': jax.P(None, 'model')}, jax.P('data'))\n" in code
    assert "out_sharding=jax.P('data'))" in code
    assert "the plan was read from a file" in refused(capsys, "plan", stored, "--as-code", "constraints")


def test_plan_as_json(stored: str, capsys: Captured) -> None:
    data = json.loads(ran(capsys, "plan", stored, "--json", "--hardware", "h100"))
    assert (data["format"], data["version"], data["mesh"]) == ("shardy_py.report", 1, {"data": 2, "model": 4})
    assert data["outputs"] == [{"path": "result", "type": "float32[8@data,16]", "bytes_per_device": 256}]
    assert data["collectives"][0]["total_bytes"] == 384
    assert {"cost", "memory"} <= data.keys()


def test_lowering_and_hardware(capsys: Captured) -> None:
    data = json.loads(ran(capsys, "plan", f"{MODULE}:step", *ARGUMENTS, "--lowering", "shard_map", "--platform", "tpu", "--json"))
    assert [c["kind"] for c in data["collectives"]] == ["all_reduce"]
    text = ran(capsys, "plan", f"{MODULE}:planned", "--hardware", "h100", "--where", "tanh")
    assert "tanh  float32[8@data,32@model]" in text
    assert "memory of layer per device" in text
    types = ("--mesh", "data=4", "--args", "bf16[64,64@data]", "bf16[64@data,64]")
    assert "bfloat16[16,64] of" in ran(capsys, "plan", "jax.numpy:add", *types, "--hardware", "h100")


def test_planner(capsys: Captured) -> None:
    arguments = ["--mesh", "x=8", "--args", "{'up': f32[4096,8192], 'down': f32[8192,4096]}", "f32[8192,4096]", "--lowering", "jit"]
    text = ran(
        capsys,
        "plan",
        f"{MODULE}:layer",
        "--planner",
        "h100,memory_bytes=1GiB,time_limit_s=5,constraints=false,annotations=ignore",
        *arguments,
    )
    assert "planner: step" in text
    assert "of 1 GiB" in text.replace("\n  ", " ")
    search = json.loads(ran(capsys, "plan", f"{MODULE}:layer", "--planner", "hardware=h100", *arguments, "--json"))["search"]
    assert search["lower_bound_seconds"] <= search["objective_seconds"]
    for planner, words in (
        ("memory_bytes=1GiB", "without hardware"),
        ("hardware=h100,speed=2", "unknown planner option 'speed'"),
        ("h100,memory_bytes=big", "'big' is not a number of bytes"),
        ("h100,hardware=v5e", "hardware is given twice"),
        ("hardware=h100,gap=small", "no number"),
        ("hardware=h100,constraints=no", "neither true nor false"),
    ):
        assert words in refused(capsys, "plan", f"{MODULE}:layer", "--planner", planner, *arguments)


def test_planner_on_a_number_of_devices(capsys: Captured) -> None:
    """Keys of earlier versions are those of `Planner` now."""
    types = ["--args", "{'up': f32[64,64], 'down': f32[64,64]}", "f32[64,64]", "--platform", "gpu"]
    old = ran(capsys, "plan", f"{MODULE}:layer", "--planner", "hardware=h100,memory=1GiB,seconds=5", "--mesh", "2", *types)
    assert "on mesh axis0=2" in old
    assert "of 1 GiB" in old
    alone = refused(capsys, "plan", f"{MODULE}:layer", "--mesh", "2", *types)
    assert "add --planner h100" in alone


def test_explain(stored: str, capsys: Captured) -> None:
    assert ran(capsys, "explain", stored, "result") == f"{planned().explain('result').as_text(width=100)}\n"
    assert (
        ran(capsys, "explain", stored, "result", "--axis", "model") == f"{planned().explain('result', axis='model').as_text(width=100)}\n"
    )
    assert json.loads(ran(capsys, "explain", stored, "x", "--dim", "0", "--json"))
    assert "unknown mesh axis 'modle'" in refused(capsys, "explain", stored, "x", "--axis", "modle")


def test_check(stored: str, capsys: Captured) -> None:
    assert ran(capsys, "check", stored) == "no findings: plan of layer\n"
    text = ran(capsys, "check", f"{MODULE}:warned", status=1)
    assert text.startswith("warning: refused-donation: ")
    data = json.loads(ran(capsys, "check", f"{MODULE}:warned", "--json", status=1))
    assert [finding["kind"] for finding in data["findings"]] == ["refused-donation"]
    assert ran(capsys, "check", f"{MODULE}:warned", "--ignore", "refused-donation").startswith("no findings")


@pytest.mark.parametrize(
    ("function", "options", "problem"),
    [
        ("as_planned", "--args f32[64,64] f32[64,64]", ""),
        ("as_planned", "--args f32[262144,262144] f32[262144,262144] --hardware v5e", "does not fit: "),
        ("in_vain", "--args f32[64,64] --ignore refused-donation", "donation not taken: x: float32[64@data,64] is not reused"),
        ("folded", "--args i32[64,64]", "a device receives 0 B in a call, 6 KiB were planned"),
    ],
)
def test_check_of_what_is_compiled(function: str, options: str, problem: str, capsys: Captured) -> None:
    command = "check", f"tests.cli.compiled_module:{function}", "--compile", "here", *options.split()
    text = ran(capsys, *command, status=1 if problem else 0)
    assert (f"problem  {problem}" if problem else "no problems") in text
    data = json.loads(ran(capsys, *command, "--json", status=1 if problem else 0))["compiled"]
    assert (len(data["problems"]), data["target"]) == (bool(problem), "8 cpu devices")


def test_a_plan_with_what_is_compiled(capsys: Captured) -> None:
    command = "plan", "tests.cli.compiled_module:as_planned", "--args", "f32[64,64]", "f32[64,64]", "--compile-for"
    assert "as_planned for 8 cpu devices, compiled in " in ran(capsys, *command, "here")
    assert json.loads(ran(capsys, *command, "here", "--json"))["compiled"]["fits"]
    assert refused(capsys, *command, "8").startswith("'8' does not name a TPU topology")


def test_check_of_a_step_under_jit(capsys: Captured) -> None:
    command = "check", f"{MODULE}:jitted", "--args-from", f"{MODULE}:arguments"
    text = ran(capsys, *command, "--mesh", "data=2,model=4", "--hardware", "v5e")
    head = "check of layer on mesh data=2, model=4\nfindings  none\nnothing moves between devices\n  XLA partitions: at least 0 B "
    assert text.startswith(head)
    assert "of them in donated arguments" in text
    assert json.loads(ran(capsys, *command, "--mesh", "data=2", "--hardware", "v5e", "--json"))["is_clean"] is True
    assert "gives it a mesh: say which, --mesh" in refused(capsys, *command)


def test_diff(stored: str, capsys: Captured) -> None:
    assert ran(capsys, "diff", stored, f"{MODULE}:planned", "--exit-code") == "no difference: plan of layer\n"
    other = [f"{MODULE}:step", *ARGUMENTS, "--mesh", "data=4,model=2"]
    text = ran(capsys, "diff", stored, *other)
    assert "mesh  data=2, model=4 -> data=4, model=2\n" in text
    assert ran(capsys, "diff", stored, *other, "--exit-code", status=1) == text
    assert json.loads(ran(capsys, "diff", stored, *other, "--json"))["format"] == "shardy_py.diff"


def test_view(stored: str, tmp_path: Path, capsys: Captured) -> None:
    page = tmp_path / "page.html"
    assert ran(capsys, "view", stored, "--with", f"{MODULE}:planned", "--hardware", "h100", "-o", str(page)) == f"{page}\n"
    assert page.stat().st_size > 10_000
    with server(b"<p>plan</p>", 0) as serving:
        thread = threading.Thread(target=serving.serve_forever)
        thread.start()
        try:
            url = f"http://127.0.0.1:{serving.server_address[1]}/"
            direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
            assert direct.open(url).read() == b"<p>plan</p>"
            with pytest.raises(urllib.error.HTTPError, match="404") as caught:
                direct.open(url + "../etc/passwd")
            caught.value.close()
            for host in ("evil.example", f"evil.example:{serving.server_address[1]}", "127.0.0.1.evil.example"):
                with pytest.raises(urllib.error.HTTPError, match="403") as caught:
                    direct.open(urllib.request.Request(url, headers={"Host": host}))
                assert caught.value.read() == b""
                caught.value.close()
            assert direct.open(url.replace("127.0.0.1", "localhost")).read() == b"<p>plan</p>"
        finally:
            serving.shutdown()
            thread.join()
    assert "cannot listen on port 70000" in refused(capsys, "view", stored, "--port", "70000")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["plan", "none.json"], "there is no file none.json: write MODULE:FUNCTION"),
        (["plan", "none"], "'none' names no function"),
        (["plan", "none_such:step"], "there is no module none_such"),
        (["plan", "none_such.py:step"], "there is no file none_such.py"),
        (["plan", os.sep], f"{os.sep} is a folder: write MODULE:FUNCTION"),
        (["plan", f"{os.sep}:step"], f"{os.sep} is a folder"),
        (["plan", os.devnull], f"{os.devnull} is no regular file"),
        (["plan", ""], "'' names no function"),
        (["plan", f"{MODULE}:step.first"], f"{MODULE}:step has no first"),
        (["plan", f"{MODULE}:layer"], f"{MODULE}:layer takes w, x: say what, --args"),
        (["plan", f"{MODULE}:stap"], "has no stap: it has"),
        (["plan", FILE], "is a module, not a plan: name a function in it"),
        (["plan", f"{MODULE}:NUMBER"], "is of type int, not a function"),
        (["plan", f"{MODULE}:step"], "takes w, x: say what, --args"),
        (["plan", f"{MODULE}:not_a_plan"], "returns something of type int, not a plan"),
        (["plan", f"{MODULE}:layer", *ARGUMENTS], "gives it a mesh: say which, --mesh"),
        (["plan", f"{MODULE}:step", "--mesh", "x=2,x=4", *ARGUMENTS], "axis 'x' is given twice (--mesh x=2,x=4)"),
        (["plan", f"{MODULE}:step", "--mesh", "data", *ARGUMENTS], "'data' is no axis of a mesh (--mesh data)"),
        (["plan", f"{MODULE}:step", "--args", "f32[8", "f32[2]"], "no type and no value"),
        (["plan", f"{MODULE}:step", "--args", "g32[8]", "f32[2]"], "unknown element type 'g32'"),
        (["plan", f"{MODULE}:step", "--args", "f32[8@data]", "f32[2]"], "there is no --mesh"),
        (["plan", f"{MODULE}:step", "--mesh", "x=2", "--args", "f32[8@data]", "f32[2]"], "the mesh has no axis 'data'"),
        (["plan", f"{MODULE}:broken", "--mesh", "x=2", "--args", "f32[1]"], "sample_module.py:"),
        (["plan", f"{MODULE}:step", "--args", "1", "--args-from", "a:b"], "are both given"),
        (["plan", f"{MODULE}:planned", "--hardware", "abacus"], "unknown hardware 'abacus'"),
        (["plan", f"{MODULE}:planned", "--", "--no_such_flag"], "no_such_flag"),
        (["plan", f"{MODULE}:planned", "--save", "/no/such/folder/plan.json"], "/no/such/folder/plan.json: No such file or directory"),
        (["check", FILE.replace("sample_module", "test_commands")], "is a module"),
    ],
)
def test_errors_are_one_line(arguments: list[str], message: str, capsys: Captured) -> None:
    assert message in refused(capsys, *arguments)


def test_options_that_do_not_fit(stored: str, capsys: Captured) -> None:
    assert "--mesh is for functions" in refused(capsys, "plan", stored, "--mesh", "x=2")
    Path(stored).write_bytes(Path(stored).read_bytes()[:-9])
    assert "cut short" in refused(capsys, "check", stored)
    empty = (
        ["plan", stored, "--save", ""],
        ["plan", stored, "--html", ""],
        ["view", stored, "-o", ""],
        ["pipedream", "simulate", "--svg", ""],
    )
    for arguments in ([], ["plan"], ["draw"], ["plan", stored, "--limit", "x"], *empty):
        assert main(arguments) == 2
        assert "usage: shardy-py" in capsys.readouterr().err


def test_passes_on_a_module(tmp_path: Path, capsys: Captured) -> None:
    file = tmp_path / "f.mlir"
    file.write_text("func.func @f(%x: tensor<8xf32>) -> tensor<8xf32> { return %x : tensor<8xf32> }")
    assert "func.func @f(%arg0: tensor<8xf32>)" in ran(capsys, "opt", "--pass-pipeline=sdy-close-shardings", str(file))
    assert "sdy-close-shardings" in ran(capsys, "opt", "--list")
    assert main(["opt", "--nothing"]) == 2


def test_help_and_traceback(capsys: Captured) -> None:
    text = ran(capsys, "--help")
    for command in COMMANDS:
        assert command.help in " ".join(text.split())
        assert ran(capsys, command.name, "--help").startswith(f"usage: shardy-py {command.name} ")
    assert re.fullmatch(r"shardy_py \S.*\n", ran(capsys, "--version"))
    assert main(["plan", f"{MODULE}:broken", "--mesh", "x=2", "--args", "f32[1]", "--traceback"]) == 2
    assert "Traceback (most recent call last)" in capsys.readouterr().err
    with pytest.raises(ValueError, match="'plan' is registered twice"):
        add_all(argparse.ArgumentParser(), (COMMANDS[0], COMMANDS[0]))


def test_flags_of_the_module(capsys: Captured) -> None:
    assert "float32[24@data]" in ran(capsys, "plan", "tests.cli.flags_module:planned", "--", "--sample_rows=24")


def test_progress(monkeypatch: pytest.MonkeyPatch, capsys: Captured) -> None:
    monkeypatch.setattr("shardy_py.cli.progress.AFTER", 0.0)
    main(["plan", f"{MODULE}:step", *ARGUMENTS])
    out, err = capsys.readouterr()
    assert "shardy-py: planning layer ...\n" in err
    assert "planning" not in out


@pytest.mark.parametrize("width", [60, 80, 120])
def test_tables_fit_the_terminal(width: int, stored: str, monkeypatch: pytest.MonkeyPatch, capsys: Captured) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    other = [f"{MODULE}:step", *ARGUMENTS, "--mesh", "data=4,model=2"]
    for arguments, status in (
        (["plan", stored, "--hardware", "h100"], 0),
        (["diff", stored, *other], 0),
        (["check", f"{MODULE}:warned"], 1),
    ):
        text = ran(capsys, *arguments, "--color", "always", status=status)
        assert "\x1b[" in text
        lines = re.sub(r"\x1b\[[0-9;]*m", "", text).splitlines()
        assert max(len(line.rstrip()) for line in lines) <= width
    assert any(
        "float32[16,32@model]" in line
        for line in re.sub(r"\x1b\[[0-9;]*m", "", ran(capsys, "plan", stored, "--color", "always")).splitlines()
    )
    assert "\x1b[" not in ran(capsys, "plan", stored, "--color", "never")


def process(*arguments: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    return subprocess.run([sys.executable, "-m", "shardy_py", *arguments], env=env, capture_output=True, text=True, cwd=Path(FILE).parent)


@pytest.mark.slow
def test_what_native_code_prints_goes_to_standard_error(tmp_path: Path) -> None:
    module = tmp_path / "noisy.py"
    module.write_text("import os\nos.write(1, b'said by a library')\nfrom jax.numpy import sin\n")
    done = process("plan", f"{module}:sin", "--mesh", "x=2", "--args", "f32[4@x]", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)
    assert "said by a library" in done.stderr


@pytest.mark.slow
def test_a_process_that_fails_says_why_without_a_traceback() -> None:
    failed = process("plan", "sample_module:stap")
    assert failed.returncode == 2
    assert "Traceback" not in failed.stderr
