"""Processes as threads that share a store in memory; tests/test_multi_process.py has real ones."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from shardy_py.api import peers
from shardy_py.api.errors import PeerFailedError, ValueMismatchError
from shardy_py.api.peers import Peers, Watch, listed
from shardy_py.api.trees import Leaf
from shardy_py.errors import PeerMissingError, PlanMismatchError


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
    for name, seconds in {"PATIENCE": 0.4, "NOTICE": 0.2, "_LONGEST": 0.05}.items():
        monkeypatch.setattr(peers, name, seconds)


def meeting(count: int) -> list[Peers]:
    """So many processes."""
    store = Memory()
    return [Peers(store, range(count), own) for own in range(count)]


Outcome = bool | Exception


def together(calls: Sequence[Callable[[], Any]]) -> list[Any]:
    """The results of calls that wait for each other."""
    with ThreadPoolExecutor(len(calls)) as pool:
        return [future.result(20) for future in [pool.submit(call) for call in calls]]


LEAVES = [Leaf(f"x[{i}]", (2,), "float32") for i in range(3)]


def asking(process: Peers, program: str, after: float = 0.0, values: Sequence[str | None] = (), **options: Any) -> Callable[[], Outcome]:
    """Asks the others, as a call of a function does that fails where they do not agree."""

    def ask() -> Outcome:
        time.sleep(after)
        try:
            with process.reporting("f.py:1 (f)"):
                return process.agree(program, "f.py:1 (f)", list(zip(LEAVES, values)), **options)
        except Exception as error:
            return error

    return ask


def fail(process: Peers, error: Exception) -> None:
    """A call that fails before it asks."""
    with pytest.raises(type(error)), process.reporting("f.py:1 (f)"):
        raise error


KEY_ERROR = KeyError("part")


@pytest.mark.parametrize("late", [0, 1, 3])
def test_a_late_process_is_waited_for(late: int, caplog: pytest.LogCaptureFixture) -> None:
    """Whichever it is; one line says who is missed."""
    with caplog.at_level(logging.WARNING):
        found = together([asking(p, "a", 1.0 * (i == late)) for i, p in enumerate(meeting(4))])
    assert found == [True] * 4
    assert f"for process {late} at the first call of f.py:1 (f)" in caplog.text


def test_programs_follow_each_other() -> None:
    """A process that agreed or differed goes on to the next program before others have looked; what was agreed on is not asked again."""
    processes = meeting(3)

    def run(own: int) -> list[Outcome]:
        return [asking(processes[own], program)() for program in ("a", "b", "c" if own else "d", "e", "a", "f")]

    found = together([lambda own=own: run(own) for own in range(3)])
    for own in range(3):
        assert [kind for kind in found[own] if isinstance(kind, bool)] == [True, True, True, False, True]
        error = found[own][2]
        assert isinstance(error, PlanMismatchError)
        assert "`d`" in str(error)
        assert "`c`" in str(error)


def test_work_does_not_grow_with_the_number_of_processes() -> None:
    counts = []
    for number in (4, 16):
        processes = meeting(number)
        together([asking(p, "a", 0.2 * (i == number - 1)) for i, p in enumerate(processes)])
        counts.append(processes[0].store.calls / number)
    assert counts[1] < 1.5 * counts[0] + 4


def test_values_are_compared_where_two_processes_have_them() -> None:
    values = [["w 0", "x 1, 2", None], ["w 0", "y 3, 4", "z"], ["w 0", None, "z"]]
    for error in together([asking(p, "a", values=v) for p, v in zip(meeting(3), values)]):
        assert isinstance(error, ValueMismatchError)
        assert str(error).startswith("x[1] has other values in process 1 than in process 0")
        assert "process 0: 1, 2; process 1: 3, 4" in str(error)
    several = [["w", "x", None], ["v", "y", None]]
    assert str(together([asking(p, "a", values=v) for p, v in zip(meeting(2), several)])[0]).startswith("x[0], x[1] have other values")
    for same in ([["w", "x", None], ["w", None, "z"]], [["w"], []], [["w"], ["w"]]):
        assert together([asking(p, "a", values=v) for p, v in zip(meeting(2), same)]) == [True, True]


def test_a_call_whose_values_differed_is_made_again() -> None:
    processes = meeting(2)
    for error in together([asking(p, "a", values=[f"{p.own}"]) for p in processes]):
        assert isinstance(error, ValueMismatchError)
    assert together([asking(p, "a", 0.3 * p.own, values=["0"]) for p in processes]) == [True, True]


def test_a_failure_is_heard_of() -> None:
    first, second, third = meeting(3)
    fail(second, KEY_ERROR)
    for error in together([asking(first, "a"), asking(third, "a")]):
        assert isinstance(error, PeerFailedError)
        assert str(error).startswith("process 1 has failed: KeyError: 'part'\n  in its call of f.py:1 (f)")
    assert together([asking(p, "a") for p in (first, second, third)]) == [True] * 3


def test_a_failure_that_was_caught_is_not() -> None:
    """The process calls again before anybody has lost patience."""
    first, second = meeting(2)
    fail(second, KEY_ERROR)
    assert together([asking(first, "a"), asking(second, "a", 0.1)]) == [True, True]


def test_a_failure_that_all_have_is_no_news() -> None:
    processes = meeting(2)
    for p in processes:
        fail(p, TypeError("no array"))
    assert together([asking(processes[0], "a"), asking(processes[1], "a", 1.0)]) == [True, True]


def test_who_failed_and_goes_on_waits_for_those_who_hear_of_it() -> None:
    """They hear at once, and come with its next program."""
    first, second = meeting(2)
    fail(second, KEY_ERROR)

    def run() -> list[Outcome]:
        return [asking(first, "a")(), asking(first, "b")()]

    (error, again), other = together([run, asking(second, "b")])
    assert isinstance(error, PeerFailedError)
    assert (again, other) == (True, True)


def test_of_many_failures_the_last_are_kept() -> None:
    first, second = meeting(2)
    for number in range(20):
        fail(second, KeyError(f"part {number}"))
    fails = [entry for entry in first.entries()[0][1].calls if "KeyError" in (entry.failure or "")]
    assert len(fails) == 8
    assert together([asking(first, "a"), asking(second, "a")]) == [True, True]


@pytest.mark.parametrize("ending", [0, 1])
@pytest.mark.parametrize(("reason", "told"), [("SystemExit: 1", "has ended: SystemExit: 1"), ("", "has ended\n")])
def test_an_end_is_heard_of(ending: int, reason: str, told: str) -> None:
    processes = meeting(2)
    processes[0].store.key_value_set(f"shardy_py/ended/{ending}", reason)
    (error,) = together([asking(processes[1 - ending], "a")])
    assert isinstance(error, PeerFailedError)
    assert f"process {ending} {told}" in str(error)


def test_a_step_goes_on_when_another_process_has_done_its_last_one() -> None:
    """One that has ended in an error does not give what is waited for."""
    first, _ = meeting(2)
    watch = Watch(first, "step", None)
    first.store.key_value_set("shardy_py/ended/1", "")
    assert watch.result(lambda: time.sleep(0.3) or "done") == "done"
    with pytest.raises(KeyError, match="own"):
        watch.result(lambda: {}["own"])
    first.store.key_value_set("shardy_py/ended/1", "OSError: no part-3", allow_overwrite=True)
    with pytest.raises(PeerFailedError, match="process 1 has ended: OSError: no part-3"):
        watch.result(lambda: time.sleep(1))


@pytest.mark.parametrize("late", [0, 1])
def test_time_that_is_up(late: int) -> None:
    """Twice, with the same program: the late one hears that it was waited for."""
    processes = meeting(2)
    for _ in range(2):
        found = together([asking(p, "a", 0.6 * (i == late), timeout=0.3 if i != late else None) for i, p in enumerate(processes)])
        assert isinstance(found[1 - late], PeerMissingError)
        assert str(found[1 - late]).startswith(f"process {late} did not come within 0.3 s")
        assert isinstance(found[late], PeerFailedError)
        assert str(found[late]).startswith(f"process {1 - late} has failed: process {late} did not come within 0.3 s")
    assert together([asking(p, "a") for p in processes]) == [True, True]


def test_lowering_alone_is_not_waited_for() -> None:
    first, second = meeting(2)
    assert asking(first, "a", ahead=True, timeout=0.2)() is True
    assert asking(second, "a")() is True  # the first has it, and may be running it by now
    assert asking(first, "a")() is True  # or asks for it later
    assert together([asking(p, "b") for p in (first, second)]) == [True, True]


def test_lowering_alone_disturbs_nobody() -> None:
    """Not those that run another program, nor those that lower another function; two that lower one function in different ways are told."""
    first, second, third = meeting(3)
    options: dict[str, Any] = {"ahead": True, "timeout": 0.8}
    assert together([asking(first, "a", **options), *(asking(p, "b", timeout=2.0) for p in (second, third))])[0] is True
    first, second = meeting(2)
    found = together([lambda: first.agree("a", "f.py:1 (f)", **options), lambda: second.agree("b", "g.py:1 (g)", **options)])
    assert found == [True, True]
    for error in together([asking(first, "c", **options), asking(second, "d", **options)]):
        assert isinstance(error, PlanMismatchError)
    for p in (first, second):
        assert asking(p, "d", ahead=True, timeout=0.0)() is True


def test_an_interrupt_is_heard_of(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = meeting(2)

    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(first, "get", interrupted)
    with pytest.raises(KeyboardInterrupt):
        asking(first, "a")()
    error = asking(second, "a")()
    assert isinstance(error, PeerFailedError)
    assert "KeyboardInterrupt" in str(error)


def test_a_store_that_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(*_: Any, **__: Any) -> None:
        raise RuntimeError("UNAVAILABLE: failed to connect")

    first, _ = meeting(2)
    monkeypatch.setattr(first.store, "key_value_set", gone)
    error = asking(first, "a")()
    assert isinstance(error, PeerMissingError)
    assert "does not answer" in str(error)


def test_long_texts_travel_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "_CHUNK", 16)
    first, second = meeting(2)
    text = "\n".join(f"line {i}" for i in range(200))
    first.send("a", text)
    assert second.receive("a") == text


def test_what_is_kept_in_the_store_does_not_grow() -> None:
    processes = meeting(2)
    sizes = []
    for i in range(6):
        assert together([asking(p, f"program {i}", values=["v"]) for p in processes]) == [True, True]
        store: Any = processes[0].store
        sizes.append(len(store.values))
    assert len(set(sizes[1:])) == 1


def test_a_longer_program_shows_its_first_line_more() -> None:
    for error in together([asking(p, "same" + "\nmore" * p.own) for p in meeting(2)]):
        assert "only process 1: `more`" in str(error)
        assert isinstance(error, ValueError)


def test_processes_are_listed() -> None:
    assert listed([3]) == "process 3"
    assert listed(range(11)) == "processes 0, 1, 2, 3, 4, 5, 6, 7 and 3 more"
