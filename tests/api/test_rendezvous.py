"""Processes as threads that share a store in memory; tests/test_multi_process.py has real ones."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from shardy_py.api import rendezvous
from shardy_py.api.peer_states import Verdict
from shardy_py.api.rendezvous import Rendezvous, listed, say_ended

AGREED = Verdict("agreed")


class Memory:
    """A store that is shared by threads, and counts what it is asked for."""

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}
        self.calls = 0
        self.changed = threading.Condition()

    def key_value_set(self, key: str, value: Any, allow_overwrite: bool = False) -> None:
        with self.changed:
            self.calls += 1
            if key in self.values and not allow_overwrite:
                raise RuntimeError("ALREADY_EXISTS")
            self.values[key] = value
            self.changed.notify_all()

    key_value_set_bytes = key_value_set

    def key_value_try_get(self, key: str) -> Any:
        with self.changed:
            self.calls += 1
            if key not in self.values:
                raise RuntimeError("NOT_FOUND")
            return self.values[key]

    def key_value_dir_get(self, key: str) -> list[tuple[str, str]]:
        with self.changed:
            self.calls += 1
            return [(name, value) for name, value in self.values.items() if name.startswith(key)]

    def key_value_delete(self, key: str) -> None:
        with self.changed:
            self.values = {name: value for name, value in self.values.items() if name != key and not name.startswith(key + "/")}

    def blocking_key_value_get(self, key: str, timeout_in_ms: int) -> Any:
        with self.changed:
            self.calls += 1
            if not self.changed.wait_for(lambda: key in self.values, timeout_in_ms / 1000):
                raise RuntimeError("DEADLINE_EXCEEDED")
            return self.values[key]

    blocking_key_value_get_bytes = blocking_key_value_get


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, seconds in {"PATIENCE": 0.4, "REPORT": 0.05, "NOTICE": 0.2, "_FOLLOWER": 0.05}.items():
        monkeypatch.setattr(rendezvous, name, seconds)


@pytest.fixture
def meeting() -> Iterator[Callable[[int], list[Rendezvous]]]:
    """Makes so many processes; their threads end with the test."""
    made: list[Rendezvous] = []

    def make(count: int) -> list[Rendezvous]:
        store = Memory()
        peers = [Rendezvous(store, range(count), own) for own in range(count)]
        made.extend(peers)
        return peers

    yield make
    for peers in made:
        peers.stop()


Meeting = Callable[[int], list[Rendezvous]]


def together(calls: Sequence[Callable[[], Any]]) -> list[Any]:
    """The results of calls that wait for each other."""
    with ThreadPoolExecutor(len(calls)) as pool:
        return [future.result(20) for future in [pool.submit(call) for call in calls]]


def waiting(peers: Rendezvous, program: str, after: float = 0.0, **options: Any) -> Callable[[], Verdict]:
    def wait() -> Verdict:
        time.sleep(after)
        return peers.wait(program, options.pop("values", ()), "f.py:1 (f)", **options)

    return wait


@pytest.mark.parametrize("late", [0, 1, 3])
def test_a_late_process_is_waited_for(meeting: Meeting, late: int, caplog: pytest.LogCaptureFixture) -> None:
    """Whichever it is; one line says who is missed."""
    with caplog.at_level(logging.WARNING):
        found = together([waiting(p, "a", 1.0 * (i == late)) for i, p in enumerate(meeting(4))])
    assert found == [AGREED] * 4
    assert f"for process {late} at the first call of f.py:1 (f)" in caplog.text


def test_programs_follow_each_other(meeting: Meeting) -> None:
    """A process that is told first goes on to the next program before others have looked."""
    peers = meeting(3)

    def run(own: int) -> list[Verdict]:
        return [waiting(peers[own], program)() for program in ("a", "b", "c" if own else "d", "e", "a")]

    found = together([lambda own=own: run(own) for own in range(3)])
    for own in range(3):
        assert [verdict.kind for verdict in found[own]] == ["agreed", "agreed", "programs", "agreed", "agreed"]
        assert found[own][2].groups == ((0,), (1, 2))


def test_work_does_not_grow_with_the_number_of_processes(meeting: Meeting) -> None:
    counts = []
    for number in (4, 16):
        peers = meeting(number)
        store: Any = peers[0]._store
        together([waiting(p, "a", 0.2 * (i == number - 1)) for i, p in enumerate(peers)])
        counts.append(store.calls / number)
    assert counts[1] < 1.5 * counts[0] + 4


def test_values_that_differ_are_found(meeting: Meeting) -> None:
    values: list[Sequence[str | None]] = [["w", "x", None], ["w", "y", "z"], ["w", None, "z"]]
    found = together([waiting(p, "a", values=v) for p, v in zip(meeting(3), values)])
    assert [(v.kind, v.groups, v.leaves) for v in found] == [("values", ((0,), (1,)), (1,))] * 3


def test_a_failure_is_heard_of(meeting: Meeting) -> None:
    first, second, third = meeting(3)
    second.failed("KeyError: 'part'")
    begin = time.monotonic()
    found = together([waiting(first, "a"), waiting(third, "a")])
    assert [(v.kind, v.process, v.reason) for v in found] == [("failed", 1, "KeyError: 'part'")] * 2
    assert time.monotonic() - begin < 5


def test_a_failure_that_was_caught_is_not(meeting: Meeting) -> None:
    first, second = meeting(2)
    second.failed("KeyError: 'part'")
    second.calls()
    assert together([waiting(first, "a"), waiting(second, "a", 0.8)]) == [AGREED, AGREED]
    second.failed("TypeError: no array")  # and called again before anybody gave up
    assert together([waiting(first, "b"), waiting(second, "b", 0.2)]) == [AGREED, AGREED]


def test_a_failure_that_all_have_is_no_news(meeting: Meeting) -> None:
    peers = meeting(2)
    for p in peers:
        p.failed("TypeError: no array")
    assert together([waiting(peers[0], "a"), waiting(peers[1], "a", 1.2)]) == [AGREED, AGREED]


@pytest.mark.parametrize("ending", [0, 1])
def test_an_end_is_heard_of(meeting: Meeting, ending: int) -> None:
    peers = meeting(2)
    say_ended(peers[0]._store, ending, "SystemExit: 1")
    (found,) = together([waiting(peers[1 - ending], "a")])
    assert (found.kind, found.process, found.reason) == ("ended", ending, "SystemExit: 1")


def test_a_process_that_runs_something_else_is_found(meeting: Meeting) -> None:
    """Its thread reports what it starts, though it waits in a collective itself."""
    first, second = meeting(2)
    together([waiting(first, "a"), waiting(second, "a")])
    for peers in (first, second):
        peers.runs += 1
    first.runs += 1
    (found,) = together([waiting(second, "b")])
    assert (found.kind, found.process) == ("elsewhere", 0)


@pytest.mark.parametrize("late", [0, 1])
def test_time_that_is_up(meeting: Meeting, late: int) -> None:
    """Twice, with the same program: who was told that the others had left is not told again."""
    peers = meeting(2)
    for _ in range(2):
        found = together([waiting(p, "a", 1.0 * (i == late), timeout=0.3) for i, p in enumerate(peers)])
        assert (found[1 - late].kind, list(found[1 - late].missing)) == ("missing", [late])
        assert (found[late].kind, found[late].process) == ("left", 1 - late)
    assert together([waiting(p, "a") for p in peers]) == [AGREED, AGREED]


def test_lowering_alone_is_not_waited_for(meeting: Meeting) -> None:
    first, second = meeting(2)
    assert waiting(first, "a", ahead=True, timeout=0.2)().kind == "missing"
    assert waiting(second, "a")().kind == "agreed"  # the first has it, and may be running it by now
    assert waiting(first, "a")().kind == "agreed"  # or asks for it later
    assert together([waiting(p, "b") for p in (first, second)]) == [AGREED, AGREED]


def test_an_interrupt_is_heard_of(meeting: Meeting, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = meeting(2)

    def interrupted() -> bool:
        raise KeyboardInterrupt

    monkeypatch.setattr(first, "_decides", interrupted)
    with pytest.raises(KeyboardInterrupt):
        waiting(first, "a")()
    assert waiting(second, "a")().kind == "left"


def test_long_texts_travel_in_pieces(meeting: Meeting, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rendezvous, "_CHUNK", 16)
    first, second = meeting(2)
    text = "\n".join(f"line {i}" for i in range(200))
    first.send("a", text)
    assert second.receive("a") == text


def test_what_is_kept_in_the_store_does_not_grow(meeting: Meeting) -> None:
    peers = meeting(2)
    sizes = []
    for i in range(6):
        assert together([waiting(p, f"program {i}", values=["v"]) for p in peers]) == [AGREED, AGREED]
        store: Any = peers[0]._store
        sizes.append(len(store.values))
    assert len(set(sizes[1:])) == 1


def test_processes_are_listed() -> None:
    assert listed([3]) == "process 3"
    assert listed(range(11)) == "processes 0, 1, 2, 3, 4, 5, 6, 7 and 3 more"
