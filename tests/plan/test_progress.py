"""Progress of planning: what a listener is told, and where a line is shown."""

from __future__ import annotations

import io
import sys
import types
from typing import Any

import pytest

import shardy_py as sp
from shardy_py.plan.cost_analysis import seconds_text
from shardy_py.plan.progress import Progress, observed, report
from tests.planner.test_search import STEP, step


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shardy_py.plan.progress.AFTER", 0.0)
    monkeypatch.setattr("shardy_py.plan.progress.INTERVAL", 0.0)


def plan_with(progress: Any, planner: sp.Planner | None = None) -> Any:
    options = sp.Options(progress=progress)
    return sp.auto_shard(step, mesh={"x": 8}, planner=planner, options=options).plan(*STEP)


@pytest.mark.usefixtures("soon")
def test_a_listener_is_told_phases_and_figures() -> None:
    told: list[Progress] = []
    search = plan_with(told.append, sp.Planner(hardware="h100")).search
    phases = list(dict.fromkeys(each.phase for each in told))
    assert [phases.index(phase) for phase in ("reading the program", "propagating shardings", "pricing ops", "searching")] == sorted(
        phases.index(phase) for phase in ("reading the program", "propagating shardings", "pricing ops", "searching")
    )
    assert {each.name for each in told} == {"step"}
    assert [each.seconds for each in told] == sorted(each.seconds for each in told)
    parts = [each.fraction for each in told if each.fraction is not None]
    assert 0 < parts[0] <= parts[-1] <= 1
    figures = [(each.lower_bound_seconds, each.objective_seconds) for each in told if each.objective_seconds is not None]
    bound, objective = figures[-1]
    assert objective == pytest.approx(search.objective_seconds, rel=0.1)
    assert bound is not None
    assert bound <= objective * (1 + 1e-9)
    assert any(f"searching, step {seconds_text(objective)}, at least" in str(each) for each in told)


@pytest.mark.usefixtures("soon")
def test_a_line_on_a_terminal_that_is_gone_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    monkeypatch.setenv("COLUMNS", "40")
    plan_with(True)
    lines = terminal.getvalue().split("\r\x1b[2K")
    assert any(line.startswith("planning step: propagating shardings") for line in lines)
    assert max(map(len, lines)) < 40
    assert lines[-1] == ""


@pytest.mark.parametrize("progress", [True, False])
@pytest.mark.usefixtures("soon")
def test_nothing_is_shown_elsewhere(monkeypatch: pytest.MonkeyPatch, progress: bool) -> None:
    monkeypatch.setattr(sys, "stderr", stream := io.StringIO() if progress else Terminal())
    plan_with(progress)
    assert stream.getvalue() == ""


def test_a_quick_plan_shows_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    with observed("step", True):
        report("propagating shardings")
    assert terminal.getvalue() == ""


@pytest.mark.usefixtures("soon")
def test_a_line_in_a_notebook(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[dict[str, str]] = []
    handle = types.SimpleNamespace(update=lambda data, raw: shown.append(data))

    def display(data: dict[str, str], raw: bool, display_id: bool) -> Any:
        shown.append(data)
        return handle

    shell = types.SimpleNamespace(kernel=object())
    monkeypatch.setitem(sys.modules, "IPython", types.SimpleNamespace(get_ipython=lambda: shell))  # pyright: ignore[reportArgumentType]
    monkeypatch.setitem(sys.modules, "IPython.display", types.SimpleNamespace(display=display))  # pyright: ignore[reportArgumentType]
    with observed("step", True):
        report("pricing ops", 0.25)
    assert [data["text/plain"] for data in shown] == ["planning step: pricing ops 25% (0 s)", ""]


@pytest.mark.usefixtures("soon")
def test_who_listens_outside_goes_on_to() -> None:
    outer: list[str] = []
    with observed("all", lambda each: outer.append(f"{each.name}: {each.phase}")):
        plan_with(pytest.fail)
    assert "all: propagating shardings" in outer


def test_a_raising_listener_ends_planning() -> None:
    def stop(progress: Progress) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        plan_with(stop)
    report("searching")
    assert plan_with(False).name == "step"


def test_what_is_no_listener() -> None:
    with pytest.raises(ValueError, match="progress is 'loud'"):
        sp.Options(progress="loud")  # pyright: ignore[reportArgumentType]


@pytest.mark.usefixtures("soon")
def test_no_line_without_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", None)
    assert plan_with(True).name == "step"
