"""Files that the library writes: whole or as before, links followed, devices kept, and all by one function."""

from __future__ import annotations

import ast
import os
import pathlib
import stat
import subprocess
import sys
import threading
from collections.abc import Callable

import pytest

from shardy_py.files import write_file
from tests.imports import PACKAGE, ROOT, nodes

# Writes every kind of file over an old one that says "old", then again with a limit on the size of files, and prints the errors.
EVERY_KIND = """
import contextlib, io, pathlib, resource, sys
import jax, jax.numpy as jnp
import shardy_py as sp
from shardy_py import opt
from shardy_py.cli.main import main as command
from shardy_py.pipedream.conversion.converting import write_files
from shardy_py.testing import assert_plan_matches

here = pathlib.Path(sys.argv[1])
loss = lambda w, x: jnp.mean(jnp.tanh(jnp.tanh(x @ w) @ w))
shapes = jax.ShapeDtypeStruct((8, 8), jnp.float32), jax.ShapeDtypeStruct((16, 8), jnp.float32)
plan = sp.auto_shard(loss, mesh={"a": 2}, in_shardings=(None, jax.P("a"))).plan(*shapes)
graph = sp.pipedream.profile(loss, *shapes)
(here / "in.mlir").write_text(jax.jit(loss).lower(*shapes).as_text())
(here / "graph.txt").write_text(sp.pipedream.write_graph(graph))
(here / "stored.json").write_text(plan.to_json())
PARTITION = ["pipedream", "partition", "--machines=2", "--bandwidths=1e9"]
kinds = {
    "plan.json": lambda path: plan.save(path),
    "plan.json.gz": lambda path: plan.save(path),
    "page.html": lambda path: plan.save_html(path),
    "module.mlir": lambda path: plan.save_sdy(path),
    "timeline.json": lambda path: plan.save_perfetto(path),
    "pinned.json": lambda path: assert_plan_matches(plan, path, update=True),
    "opt.mlir": lambda path: opt.main([str(here / "in.mlir"), "-o", str(path)]),
    "partition.txt": lambda path: command([*PARTITION, str(here / "graph.txt"), "-o", str(path)]),
    "profile.txt": lambda path: command(["pipedream", "profile", "jax.numpy:tanh", "--args", "f32[8,8]", "-o", str(path)]),
    "view.html": lambda path: command(["view", str(here / "stored.json"), "-o", str(path)]),
    "package/stage0.py": lambda path: write_files(path.parent, {path.name: "# " * 400}),
    "schedule.json": lambda path: command(["pipedream", "simulate", "1f1b", "--stages=2", "--microbatches=4", "--perfetto", str(path)]),
    "schedule.svg": lambda path: command(["pipedream", "simulate", "1f1b", "--stages=2", "--microbatches=4", "--svg", str(path)]),
}
for folder in here / "free", here / "limited":
    (folder / "package").mkdir(parents=True)
    for name in kinds:
        (folder / name).write_text("old")
    if folder.name == "limited":
        resource.setrlimit(resource.RLIMIT_FSIZE, (48, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
    for name, write in kinds.items():
        said = io.StringIO()
        try:
            with contextlib.redirect_stderr(said), contextlib.redirect_stdout(io.StringIO()):
                write(folder / name)
            print(folder.name, name, said.getvalue().strip() or "written")
        except (OSError, SystemExit) as error:
            print(folder.name, name, said.getvalue().strip() or error)
"""


@pytest.mark.slow
def test_a_file_is_written_as_a_whole_or_not_at_all(tmp_path: pathlib.Path) -> None:
    """Every kind of file, on a disk with room and on one without."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, "-c", EVERY_KIND, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    said = [line.split(" ", 2) for line in done.stdout.splitlines()]
    assert len(said) == 2 * 13, done.stdout
    for folder, name, text in said:
        content = (tmp_path / folder / name).read_bytes()
        assert (content == b"old") == (folder == "limited"), (name, text)
        assert ("File too large" in text and name in text) == (folder == "limited"), (name, text)
    files = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()}
    assert files == {*(f"{folder}/{name}" for folder, name, _ in said), "in.mlir", "graph.txt", "stored.json"}


@pytest.mark.slow
def test_no_other_module_writes_files() -> None:
    found = []
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in nodes(path):
            if not isinstance(node, ast.Call) or path == PACKAGE / "files.py":
                continue
            name = node.func.attr if isinstance(node.func, ast.Attribute) else node.func.id if isinstance(node.func, ast.Name) else ""
            mode = node.args[1] if name == "open" and len(node.args) > 1 else None
            if name in ("write_text", "write_bytes") or (isinstance(mode, ast.Constant) and set(str(mode.value)) & set("wax+")):
                found.append(f"{path.relative_to(ROOT)}:{node.lineno}")
    assert not found


@pytest.mark.parametrize("content", ["text \u00e9\n", b"\x00\r\n"])
def test_content_and_mode(tmp_path: pathlib.Path, content: str | bytes) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    old.write_text("before")
    old.chmod(0o640)
    for path in (old, new):
        write_file(path, content)
        assert path.read_bytes() == (content.encode() if isinstance(content, str) else content)
    umask = os.umask(0)
    os.umask(umask)
    assert stat.S_IMODE(old.stat().st_mode) == 0o640
    assert stat.S_IMODE(new.stat().st_mode) == 0o666 & ~umask


def test_a_link_stays_and_its_target_is_written(tmp_path: pathlib.Path) -> None:
    (tmp_path / "there").mkdir()
    target, link, dangling = tmp_path / "there" / "target", tmp_path / "link", tmp_path / "dangling"
    target.write_text("before")
    link.symlink_to(target)
    dangling.symlink_to(tmp_path / "there" / "later")
    for path in (link, dangling):
        write_file(path, "after")
        assert path.is_symlink()
        assert path.resolve().read_text() == "after"


def test_a_pipe_is_written_into(tmp_path: pathlib.Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: received.append(pipe.read_bytes()), daemon=True)
    received: list[bytes] = []
    reader.start()
    write_file(pipe, "content")
    reader.join(20)
    assert received == [b"content"]
    assert stat.S_ISFIFO(pipe.stat().st_mode)


def test_a_device_is_written_into() -> None:
    write_file(os.devnull, "content")
    assert stat.S_ISCHR(os.stat(os.devnull).st_mode)


def test_files_of_other_names_are_left_alone(tmp_path: pathlib.Path) -> None:
    neighbours = {f"x.json{ending}": f"notes {ending}" for ending in (".part", ".tmp", "~", ".bak", ".lock")}
    for name, text in neighbours.items():
        (tmp_path / name).write_text(text)
    write_file(tmp_path / "x.json", "content")
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {**neighbours, "x.json": "content"}


def test_writers_of_one_path_all_end_well(tmp_path: pathlib.Path) -> None:
    path, contents, seen, failures = tmp_path / "x", [str(i) * 100_000 for i in range(4)], set(), []

    def write(content: str) -> None:
        try:
            for _ in range(20):
                write_file(path, content)
                seen.add(path.read_text())
        except OSError as error:
            failures.append(error)

    writers = [threading.Thread(target=write, args=(content,)) for content in contents]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert not failures
    assert seen <= set(contents)
    assert [p.name for p in tmp_path.iterdir()] == ["x"]


@pytest.mark.parametrize("call", ["os.fsync", "os.replace"])
def test_an_interrupt_leaves_the_old_file(tmp_path: pathlib.Path, call: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    (tmp_path / "x").write_text("old")
    monkeypatch.setattr(call, interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_file(tmp_path / "x", "new")
    assert [(p.name, p.read_text()) for p in tmp_path.iterdir()] == [("x", "old")]


def a_folder(tmp_path: pathlib.Path) -> pathlib.Path:
    return tmp_path


def in_no_folder(tmp_path: pathlib.Path) -> pathlib.Path:
    return tmp_path / "missing" / "x"


def below_a_file(tmp_path: pathlib.Path) -> pathlib.Path:
    (tmp_path / "file").write_text("")
    return tmp_path / "file" / "x"


def too_long(tmp_path: pathlib.Path) -> pathlib.Path:
    return tmp_path / ("x" * 300)


def read_only(tmp_path: pathlib.Path) -> pathlib.Path:
    if os.geteuid() == 0:
        pytest.skip("root may write to every file")
    (tmp_path / "x").write_text("old")
    (tmp_path / "x").chmod(0o444)
    return tmp_path / "x"


@pytest.mark.parametrize("place", [a_folder, in_no_folder, below_a_file, too_long, read_only])
def test_what_cannot_be_written_is_an_error_that_names_it(tmp_path: pathlib.Path, place: Callable[[pathlib.Path], pathlib.Path]) -> None:
    path = place(tmp_path)
    with pytest.raises(OSError) as error:
        write_file(path, "new")
    assert error.value.filename == str(path)
    assert not list(tmp_path.glob(".*"))


def test_the_longest_name_that_the_system_takes(tmp_path: pathlib.Path) -> None:
    write_file(tmp_path / ("x" * 255), "content")
    assert (tmp_path / ("x" * 255)).read_text() == "content"
