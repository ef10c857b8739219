"""Damaged modules and plan files end in the library's own errors or in results, within limits of time and memory.

A failure names the command that shows its input; `python -m tests.fuzz --seed N --count K` runs more.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time

import pytest

from shardy_py.facade import Plan
from shardy_py.opt.table import PASSES
from tests.fuzz import running
from tests.fuzz.modules import damaged_module
from tests.fuzz.pipelines import draw_pipeline
from tests.fuzz.plan_files import BASES, USES, base, damaged_plan
from tests.fuzz.running import ENDED, ERROR, GROWN, HUNG, MEANT, Outcome, check, outcome_of, outcomes

MANY = 500


@pytest.mark.slow
def test_many() -> None:
    """All of them in one process, the memory of which is watched."""
    found = list(outcomes(0, MANY))
    check(found)
    kinds = [(outcome.source, outcome.kind) for outcome in found]
    assert len(kinds) == MANY
    assert kinds.count(("module", running.TAKEN)) > MANY // 2  # most changes leave something that passes see
    assert kinds.count(("plan", running.TAKEN)) > MANY // 50
    assert kinds.count(("plan", running.REFUSED)) > MANY // 20


@pytest.mark.slow
@pytest.mark.parametrize("number", range(len(BASES)))
def test_plans_are_taken_as_they_are(number: int) -> None:
    """A later refusal is for the change."""
    plan, text = base(number)
    read = Plan.from_json(text)
    for use in USES.values():
        use(read, plan)


def test_a_seed_gives_one_input() -> None:
    for make in (damaged_module, damaged_plan):
        one, same, other = (make(random.Random(seed)) for seed in (4, 4, 6))
        assert one == same != other


def test_pipelines_reach_every_pass() -> None:
    written = [draw_pipeline(random.Random(number), number) for number in range(len(PASSES))]
    for name in PASSES:
        assert any(text.startswith(name) or f",{name}" in text for text in written), name


def test_other_errors_are_failures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shardy_py.opt.run_pipeline", lambda *_, **__: 1 / 0)
    outcome = next(each for each in map(outcome_of, range(1, 20)) if each.kind != running.UNREAD)
    assert outcome.kind == ERROR
    assert "ZeroDivisionError: 'division by zero'" in outcome.text
    with pytest.raises(AssertionError, match=rf"python -m tests\.fuzz --seed {outcome.seed}"):
        check([outcome])
    for kind in (ENDED, ERROR, GROWN, HUNG, running.UNREADABLE):
        assert Outcome(3, "module", kind, "").is_failure
    assert not any(Outcome(3, "module", kind, "").is_failure for kind in MEANT)


WORKER = """
import json, os, sys, time
seed = int(sys.argv[sys.argv.index("--seed") + 1])
print(json.dumps("ready"), flush=True)
for number in range(seed, seed + int(sys.argv[sys.argv.index("--count") + 1])):
    if number == 2:
        os._exit(9)
    if number == 4:
        time.sleep(600)
    print(json.dumps([number, "module", "taken", "", 900 if number == 6 else 0]), flush=True)
"""


def test_a_process_that_ends_or_hangs_or_grows_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "COMMAND", (sys.executable, "-c", WORKER))
    monkeypatch.setattr(running, "PATIENCE", 2.0)
    started = time.monotonic()
    kinds = [(outcome.seed, outcome.kind) for outcome in outcomes(0, 7)]
    assert kinds == [(0, "taken"), (1, "taken"), (2, ENDED), (3, "taken"), (4, HUNG), (5, "taken"), (6, "taken"), (6, GROWN)]
    assert time.monotonic() - started < 60


def test_memory_of_a_run_is_limited() -> None:
    """A run that wants more than the limit gets a MemoryError, which is a failure, in place of the machine's memory."""
    code = "from tests.fuzz import running; running.limit_memory(); bytearray(running.MOST_MEMORY + (1 << 30))"
    ended = subprocess.run([sys.executable, "-c", code], cwd=running.ROOT, capture_output=True, text=True, env={**os.environ})
    assert "MemoryError" in ended.stderr
