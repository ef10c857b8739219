"""A terminal that is the same everywhere: what a machine says of its own stays out of what commands print."""

from __future__ import annotations

import pytest

SAID = ("COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE", "COLORTERM", "SHARDY_PY_UPDATE")


@pytest.fixture(autouse=True)
def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in SAID:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setattr("shardy_py.cli.progress.AFTER", 3600.0)  # a slow machine has more to say
