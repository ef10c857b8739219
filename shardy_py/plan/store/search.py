"""The search of a planner in a stored plan: its certificate and its alternatives, without times, which differ by run."""

from __future__ import annotations

import math
from typing import Any, get_args

from shardy_py.plan.search import STATUSES, Alternative, KeptAnnotations, Price, Search
from shardy_py.plan.store.checks import StoreError, at, boolean, described, integer, items, members, text

SEARCH = "search"
"""The member of the file, which plans without a planner lack."""

CONSTRAINTS = "constraints"
"""The member for the constraints of the search, which such plans lack too."""

CERTIFICATE = "certificate"
"""The member for the proof of its lower bound; likewise."""

_NUMBERS = ("objective_seconds", "lower_bound_seconds")
_MEMBERS = (
    "hardware",
    *_NUMBERS,
    "peak_bytes",
    "budget_bytes",
    "margin_bytes",
    "status",
    "shards_values",
    "annotations",
    "space",
    "constraint_prices",
    "alternatives",
)
_PRICE = ("path", "spec", "seconds")
_ALTERNATIVE = ("name", "objective_seconds", "peak_bytes", "inputs")


def write_search(search: Search) -> dict[str, Any]:
    """A search as JSON data."""
    return {
        "hardware": search.hardware,
        **{name: getattr(search, name) for name in _NUMBERS},
        "peak_bytes": search.peak_bytes,
        "budget_bytes": search.budget_bytes,
        "margin_bytes": search.margin_bytes,
        "status": search.status,
        "shards_values": search.shards_values,
        "annotations": search.annotations,
        "space": {name: str(value) for name, value in search.space.items()},
        "constraint_prices": [{name: getattr(price, name) for name in _PRICE} for price in search.constraint_prices],
        "alternatives": [
            {"name": a.name, "objective_seconds": a.objective_seconds, "peak_bytes": a.peak_bytes, "inputs": dict(a.inputs)}
            for a in search.alternatives
        ],
    }


def read_search(data: Any) -> Search:
    """The inverse of `write_search`, without a pricer; raises StoreError for damaged data."""
    with at(SEARCH):
        parts = members(data, _MEMBERS)
        if parts["status"] not in STATUSES:
            raise StoreError(f"unknown status {described(parts['status'])}", fix=f"one of {', '.join(STATUSES)}")
        if parts["annotations"] not in get_args(KeptAnnotations):
            raise StoreError(f"unknown annotations {described(parts['annotations'])}", fix=f"one of {', '.join(get_args(KeptAnnotations))}")
        objective, bound = (_seconds(parts[name]) for name in _NUMBERS)
        budget = None if parts["budget_bytes"] is None else integer(parts["budget_bytes"])
        alternatives = tuple(_alternative(each, budget) for each in items(parts["alternatives"]))
        space = _texts(parts["space"])
        return Search(
            hardware=text(parts["hardware"]),
            objective_seconds=objective,
            lower_bound_seconds=bound,
            peak_bytes=integer(parts["peak_bytes"]),
            budget_bytes=budget,
            status=parts["status"],
            stored_alternatives=alternatives,
            space=space,
            margin_bytes=integer(parts["margin_bytes"]),
            shards_values=boolean(parts["shards_values"]),
            annotations=parts["annotations"],
            constraint_prices=tuple(map(_price, items(parts["constraint_prices"]))),
        )


def _alternative(data: Any, budget: int | None) -> Alternative:
    parts = members(data, _ALTERNATIVE)
    peak = integer(parts["peak_bytes"])
    return Alternative(text(parts["name"]), _seconds(parts["objective_seconds"]), _texts(parts["inputs"]), budget, stored_peak_bytes=peak)


def _price(data: Any) -> Price:
    parts = members(data, _PRICE)
    return Price(text(parts["path"]), text(parts["spec"]), _seconds(parts["seconds"]), None, 0.0)


def _texts(data: Any) -> dict[str, str]:
    if type(data) is not dict:
        raise StoreError(f"expected an object, got {described(data)}")
    return {name: text(value) for name, value in data.items()}


def _seconds(data: Any) -> float:
    if type(data) not in (int, float) or not 0 <= data < math.inf:
        raise StoreError(f"expected a number of seconds, got {described(data)}")
    return float(data)
