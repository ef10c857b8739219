"""Output to a terminal."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from shardy_py.cli import main
from shardy_py.facade import Plan
from shardy_py.plan.store.document import sealed
from tests.cli.sample_module import planned


@pytest.mark.parametrize("color", ["never", "always"])
@pytest.mark.parametrize("command", ["plan", "check", "diff"])
def test_names_in_a_file_do_not_steer_the_terminal(command: str, color: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = json.loads(planned().to_json())
    data["name"] = "\x1b]0;title\x9bstep"
    files = [str(tmp_path / "plan.json")] * (2 if command == "diff" else 1)
    Path(files[0]).write_text(json.dumps(sealed(data)))
    main([command, *files, "--color", color])
    out, err = capsys.readouterr()
    assert "\\x1b]0;title\\x9bstep" in out
    assert not err
    assert all(char.isprintable() or char in "\n\t\x1b" for char in out)
    assert "\x1b]" not in out
    plan = Plan.load(files[0])
    for text in (str(plan), repr(plan), str(plan.explain("result")), str(plan.diff(plan)), str(plan.memory_analysis())):
        assert all(char.isprintable() or char in "\n\t" for char in text)


def test_errors_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "plan.json"
    planned().save(file)
    assert main(["explain", str(file), "\x1b[2J"]) == 2
    assert "\x1b" not in capsys.readouterr().err
    assert Plan.load(file).name == "layer"


def test_explanations_fit_the_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "plan.json"
    planned().save(file)
    heights = []
    for columns in ("60", "200"):
        monkeypatch.setenv("COLUMNS", columns)
        assert main(["explain", str(file), "w['down']", "--color", "always"]) == 0
        lines = capsys.readouterr().out.splitlines()
        assert max(map(len, lines)) <= int(columns)
        heights.append(len(lines))
    assert heights[0] > heights[1]
