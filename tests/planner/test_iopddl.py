"""The contest's form, and its instances where they are at hand."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
import pytest

from shardy_py.planner import iopddl

INSTANCES = Path(__file__).parents[2].parent / "shared" / "iopddl"

EXAMPLE = {
    "problem": {
        "name": "example",
        "nodes": {
            "intervals": [[30, 70], [40, 70], [50, 120], [110, 140], [110, 150]],
            "costs": [[15], [55, 65], [25, 45, 35], [85, 75], [95]],
            "usages": [[10], [25, 25], [15, 20, 15], [10, 10], [15]],
        },
        "edges": {
            "nodes": [[0, 1], [0, 2], [1, 3], [2, 4], [3, 4]],
            "costs": [[30, 40], [50, 10, 40], [90, 10, 20, 80], [60, 20, 30], [70, 60]],
        },
        "usage_limit": 50,
    }
}


@pytest.mark.parametrize("name", ["example.json", "example.json.gz"])
def test_a_file_is_solved(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    with gzip.open(path, "wt") if name.endswith(".gz") else path.open("w") as file:
        json.dump(EXAMPLE, file)
    answer = iopddl.answer(path, 5.0)
    assert answer.status == "optimal"
    assert (answer.cost, answer.bound) == (445.0, 445.0)
    assert iopddl.solve(path, 5.0) == [0, 0, 2, 1, 0]


def test_a_limit_that_nothing_keeps_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "tight.json"
    path.write_text(json.dumps({"problem": {**EXAMPLE["problem"], "usage_limit": 49}}))
    with pytest.raises(ValueError, match="keeps the usage limit"):
        iopddl.solve(path, 5.0)


def test_forbidden_costs_are_infinite(tmp_path: Path) -> None:
    path = tmp_path / "forbidden.json"
    nodes = {**EXAMPLE["problem"]["nodes"], "costs": [[15], [10**18, 65], [25, 45, 35], [85, 75], [95]]}
    path.write_text(json.dumps({"problem": {**EXAMPLE["problem"], "nodes": nodes}}))
    model = iopddl.read(path)
    assert np.isinf(model.costs[1])
    assert iopddl.solve(path, 5.0)[1] == 1


@pytest.mark.slow
@pytest.mark.skipif(not INSTANCES.exists(), reason="the contest's instances are not here")
@pytest.mark.parametrize(("name", "cost"), [("B", 532843), ("G", 217039), ("P", 651833115436)])
def test_an_instance_of_the_contest_is_solved_to_optimality(name: str, cost: int) -> None:
    answer = iopddl.answer(INSTANCES / f"{name}.json.gz", 120.0)
    assert (answer.cost, answer.status) == (cost, "optimal")
