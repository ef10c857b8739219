"""One search for all processes of a mesh: the first one searches and publishes, the others use its result.

A search ends when its time is up, so that two processes that search could end with different plans.
"""

from __future__ import annotations

import json
from dataclasses import replace

from jax.sharding import Mesh

from shardy_py.api.agreement import statement
from shardy_py.api.peers import digest, peers_of
from shardy_py.api.tracing import TracedCall
from shardy_py.plan.search import Search
from shardy_py.plan.store.search import read_search, write_search
from shardy_py.planner.errors import PlannerBudgetError, PlannerInfeasible
from shardy_py.planner.judge import Candidate
from shardy_py.planner.propagated import Trial
from shardy_py.planner.result import search_of
from shardy_py.planner.search import Searcher
from shardy_py.planner.space import Resolution

AHEAD = 10.0
"""Seconds past the time limit that a process waits for a search where the plan does not run now: it may be the only one that plans."""

Outcome = tuple[Candidate, Search] | PlannerInfeasible


def searched(searcher: Searcher, traced: TracedCall, *, runs: bool) -> tuple[Candidate, Search]:
    """The result of a search, which the first process of a mesh makes for all if the plan `runs` now."""
    request = traced.request
    mesh, timeout, limit = request.view.expected, request.settings.options.peer_timeout, searcher.planner.time_limit_s
    devices = tuple(mesh.devices.flat) if isinstance(mesh, Mesh) and timeout != 0 else ()
    peers = peers_of(devices)
    if peers is None:
        best, bound = searcher.run()
        return best, search_of(searcher, best, bound)
    text = f"searched by {searcher.planner!r}\n{statement(searcher.base, traced, devices)}\nannotations {searcher.annotations!r}"
    key = f"search/{digest(text)}"
    outcome: Outcome | None = None
    result = peers.receive(key, 0.0)
    if result is None and peers.own == peers.processes[0]:
        outcome = _outcome(searcher)
        result = _written(searcher, outcome)
        peers.send(key, result)
    if runs:
        peers.agree(text, request.location, timeout=None if timeout is None else timeout + limit)
    if outcome is None:
        result = result or peers.receive(key, limit + AHEAD)
        outcome = _outcome(searcher) if result is None else _read(searcher, result)
    if isinstance(outcome, PlannerInfeasible):
        raise outcome
    return outcome


def _outcome(searcher: Searcher) -> Outcome:
    try:
        best, bound = searcher.run()
        return best, search_of(searcher, best, bound)
    except PlannerInfeasible as error:
        return error


def _written(searcher: Searcher, outcome: Outcome) -> str:
    """The result of a search as JSON."""
    if isinstance(outcome, PlannerInfeasible):
        parts = ("what", "where", "why", "fix", "minimum_bytes", "budget_bytes", "bound_bytes", "contributors")
        return json.dumps(
            {"infeasible": {name: getattr(outcome, name) for name in parts}, "proven": not isinstance(outcome, PlannerBudgetError)}
        )
    best, search = outcome
    resolution = searcher.space.resolution
    chosen = {
        "cuts": resolution.cuts,
        "layers": resolution.layers,
        "mixes": resolution.mixes,
        "name": best.name,
        "assignment": best.assignment,
        "results": best.results,
    }
    return json.dumps({**chosen, "search": write_search(search), "timings": dict(search.timings)})


def _read(searcher: Searcher, text: str) -> Outcome:
    """The inverse of `_written`, for the same search in another process."""
    data = json.loads(text)
    if "infeasible" in data:
        parts = {**data["infeasible"], "contributors": [tuple(each) for each in data["infeasible"]["contributors"]]}
        return (PlannerInfeasible if data["proven"] else PlannerBudgetError)(**parts)
    searcher.prepare(Resolution(tuple(map(tuple, data["cuts"])), data["layers"], data["mixes"]))
    trial = Trial(data["name"], tuple(data["assignment"]), data["results"])
    best = searcher.candidate(trial.name, trial.assignment) if searcher.propagate is None else searcher.propagated(trial)
    return best, replace(read_search(data["search"]), timings=data["timings"])
