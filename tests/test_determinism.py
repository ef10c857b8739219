"""The same program gives the same plan in every process: each process of a job plans on its own."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys
from collections.abc import Sequence

import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent
END = "<end of plan>"
PLAN = f"""
import sys
import shardy_py
from tests.random_programs import load, program_of_seed

for seed in map(int, sys.argv[1:]):
    loaded = load(program_of_seed(seed))
    step = shardy_py.auto_shard(
        loaded.program, mesh=loaded.mesh, in_shardings=loaded.in_shardings, out_shardings=loaded.out_shardings
    )
    print(step.plan(*loaded.arguments).as_text(), end={END!r})
"""
FORMS = f"""
from shardy_py.view.html.page import page
from tests.plan.store.programs import training
from tests.view import plans

plan = training("shard_map")
for text in (plan.to_json(), *(plan.explain(value.path).as_text() for value in plan.outputs), page(plans.training())):
    print(text, end={END!r})
"""
"""A stored plan, what it explains, and a page."""
PROGRAMS = ("3", "703", "1750", "2746")
"""Programs with gradients, loops, branches, calls and conflicts between constraints."""


def start(hash_seed: str, programs: Sequence[str]) -> subprocess.Popen[str]:
    """A process that writes the plans of some programs, then the forms of others."""
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
    command = [sys.executable, "-c", PLAN + FORMS, *programs]
    return subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def plans(process: subprocess.Popen[str]) -> list[str]:
    """Its output."""
    text, errors = process.communicate(timeout=150)
    assert process.returncode == 0, errors
    return text.split(END)[:-1]


def answers() -> list[list[str]]:
    """The plans under one hash seed, and under another those of a process that plans in the reverse order, turned around."""
    processes = start("0", PROGRAMS), start("random", PROGRAMS[::-1])
    found = [plans(process) for process in processes]
    count = len(PROGRAMS)
    found[-1][:count] = reversed(found[-1][:count])
    return found


@pytest.mark.slow
def test_plans_depend_on_neither_the_hash_seed_nor_earlier_plans() -> None:
    """Tables that remember steps and templates change nothing."""
    first, other = answers()
    assert len(first) > len(PROGRAMS) + 3
    assert all(len(text) > 100 for text in first[: len(PROGRAMS)])
    assert other == first
