"""Answers to waiting processes, from the states of all of them."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from shardy_py.api.peer_states import State, Verdict, decide

AGREED = Verdict("agreed")
RUNNING = State(ticket=1, runs=5)


def at(program: str, **more: Any) -> State:
    return State(**{"ticket": 1, "program": program, "place": "f.py:1 (f)", "runs": 5, **more})


def decided(*states: State | None, values: dict[int, list[str | None]] | None = None) -> tuple[dict[int, Verdict], bool]:
    """For processes 0, 1, ... with these entries; None has not come yet."""
    known = {p: state for p, state in enumerate(states) if state is not None}
    return decide(range(len(states)), known, lambda p: (values or {})[p])


def test_all_with_one_program_agree() -> None:
    assert decided(at("a"), at("a"), at("a")) == ({0: AGREED, 1: AGREED, 2: AGREED}, True)


FAILED = State(failures=1, reasons=("KeyError: 'part'",), runs=5)


@pytest.mark.parametrize("absent", [None, RUNNING, dataclasses.replace(FAILED, calls=True), at("b", ahead=True)])
def test_who_may_still_come_is_waited_for(absent: State | None) -> None:
    """A process that does something else, whose failure is over, or that lowers a function on its own."""
    assert decided(at("a"), absent, at("a")) == ({}, False)


def test_different_programs_are_told_to_all_who_are_stuck() -> None:
    verdict = Verdict("programs", ((0, 2), (1,)), ("a", "b"))
    assert decided(at("a"), at("b"), at("a")) == ({0: verdict, 1: verdict, 2: verdict}, True)
    late = Verdict("programs", ((0,), (1,)), ("a", "b"))
    assert decided(at("a"), at("b"), None) == ({0: late, 1: late}, False)


def test_those_that_agree_go_on_whatever_others_do() -> None:
    told, certain = decided(at("a"), at("b", alone=("a",)))
    assert (told, certain) == ({0: Verdict("agreed", missing=(1,))}, True)


def test_who_lowered_a_program_alone_has_come_with_it() -> None:
    assert decided(at("a"), State(alone=("a",))) == ({0: Verdict("agreed", missing=(1,))}, True)
    assert decided(State(alone=("a",)), at("a"), at("b", alone=("a",))) == ({1: Verdict("agreed", missing=(0, 2))}, True)


def test_lowering_alone_disturbs_nobody() -> None:
    """Who lowers for itself is waited for; two that lower one function in different ways are told."""
    assert decided(at("a", ahead=True), at("b")) == ({}, False)
    assert decided(at("a", ahead=True), at("b", ahead=True, place="g.py:1 (g)")) == ({}, False)
    assert decided(at("a", ahead=True), FAILED) == ({}, False)
    verdict = Verdict("programs", ((0,), (1,)), ("a", "b"))
    assert decided(at("a", ahead=True), at("b", ahead=True)) == ({0: verdict, 1: verdict}, True)


def test_values_are_compared_where_two_processes_have_them() -> None:
    values: dict[int, list[str | None]] = {0: ["w", "x", None], 1: ["w", "y", None], 2: ["w", None, "z"]}
    verdict = Verdict("values", ((0,), (1,)), leaves=(1,))
    states = [at("a", values=str(p)) for p in range(3)]
    assert decided(*states, values=values) == (dict.fromkeys(range(3), verdict), True)
    assert decided(*states, values={**values, 1: ["w", "x", None]})[0][0] == AGREED
    assert decided(at("a", values="v"), at("a", values="v"))[0] == {0: AGREED, 1: AGREED}
    assert decided(at("a", values="v"), at("a"))[0] == {0: AGREED, 1: AGREED}
    several = {0: ["w", "x"], 1: ["v", "y"]}
    assert decided(*states[:2], values=several)[0][0] == Verdict("values", ((0,), (1,)), leaves=(0, 1))


FAILURE = Verdict("failed", process=1, reason="KeyError: 'part'")


def test_a_failure_is_told_unless_this_process_failed_alike() -> None:
    assert decided(at("a"), FAILED, at("a", failures=1)) == ({0: FAILURE}, False)
    twice = State(failures=2, reasons=("KeyError: 'part'", "TypeError: no array"), runs=5)
    assert decided(at("a"), twice)[0][0] == FAILURE  # in the order of the failures
    assert decided(at("a", known_failures={"1": 1}), twice)[0][0].reason == "TypeError: no array"
    assert decided(at("a", known_failures={"1": 2}), twice) == ({}, False)


def test_who_failed_and_goes_on_waits_for_those_who_hear_of_it() -> None:
    """They come with its next program once they were told, and are told at once."""
    gone_on = at("b", failures=1, reasons=FAILED.reasons, calls=True)
    assert decided(at("a"), gone_on) == ({0: FAILURE}, True)
    assert decided(at("b", known_failures={"1": 1}), gone_on)[0] == {0: AGREED, 1: AGREED}
    later = at("c", failures=1, reasons=("TypeError: no array",), known_failures={"1": 1})
    assert decided(later, gone_on)[0] == {1: Verdict("failed", process=0, reason="TypeError: no array")}


def test_an_end_is_told_at_once() -> None:
    ended = State(ended="KeyError: 'part'")
    assert decided(at("a"), ended) == ({0: Verdict("ended", process=1, reason="KeyError: 'part'")}, True)
    assert decided(at("a"), State(ended=""))[0][0].kind == "ended"


def test_a_process_that_runs_another_program_will_not_come() -> None:
    assert decided(at("a"), State(runs=6)) == ({0: Verdict("elsewhere", process=1)}, False)
    assert decided(at("a"), State(runs=4)) == ({}, False)
    assert decided(at("a", ahead=True), State(runs=6)) == ({}, False)


def test_who_has_left_is_told_once() -> None:
    left = State(ticket=4, left={"a": 3})
    assert decided(at("a"), left) == ({0: Verdict("left", process=1)}, True)
    assert decided(at("a", known_departures={"1": 3}), left) == ({}, False)
    assert decided(at("b"), left) == ({}, False)
    assert decided(at("a"), at("a", left={"b": 3})) == ({0: AGREED, 1: AGREED}, True)
