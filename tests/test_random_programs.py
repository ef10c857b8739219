"""Plans of random programs have the shardings that the Shardy inside jaxlib gives."""

from __future__ import annotations

from collections.abc import Iterator

import hypothesis
import pytest

import shardy_py
from tests.random_programs import load, program_of_seed, programs
from tests.random_reference import Answer, Rejected, receive, send, sides_of, stop_worker

EXAMPLES = 30  # drawing one that can be shrunk takes longer than comparing it; `MANY` cost less
MANY = 100


@pytest.fixture(autouse=True, scope="module")
def _stop_reference() -> Iterator[None]:
    yield
    stop_worker()


def planned(text: str) -> Answer:
    """Our answer for a program."""
    loaded = load(text)
    sharded = shardy_py.auto_shard(loaded.program, mesh=loaded.mesh, in_shardings=loaded.in_shardings, out_shardings=loaded.out_shardings)
    return Answer(*sides_of(sharded.plan(*loaded.arguments).program))


def difference(text: str) -> str | None:
    """The difference between the two answers in words, "" where there is none; None where the reference rejects the program."""
    send(text)
    try:
        ours: Answer | Exception = planned(text)
    except Exception as error:
        ours = error
    try:
        theirs = receive()
    except Rejected:
        return None
    if isinstance(ours, Exception):
        raise ours
    for field in Answer._fields:
        mine, wanted = getattr(ours, field), getattr(theirs, field)
        if len(mine) != len(wanted):
            return f"{len(mine)} {field}, the reference has {len(wanted)}"
        for i, (a, b) in enumerate(zip(mine, wanted)):
            if a != b:
                return f"{field}[{i}] is {a}, the reference has {b}"
    return ""


@hypothesis.settings(max_examples=EXAMPLES, database=None, phases=(hypothesis.Phase.generate, hypothesis.Phase.shrink))
@hypothesis.given(programs())
def test_random_programs(text: str) -> None:
    found = difference(text)
    hypothesis.assume(found is not None)
    assert not found, f"{found}\n{text}"


@pytest.mark.slow
def test_many_random_programs() -> None:
    wrong, compared = [], 0
    for seed in range(MANY):
        found = difference(program_of_seed(seed))
        compared += found is not None
        if found:
            wrong.append(f"program_of_seed({seed}): {found}")
    assert not wrong, "\n".join(wrong)
    assert compared > 0.9 * MANY


def test_a_seed_always_gives_the_same_program() -> None:
    assert program_of_seed(5) == program_of_seed(5)
    assert program_of_seed(5) != program_of_seed(6)
