"""Models in the form of the ASPLOS/EuroSys 2025 contest on intra-operator parallelism (IOPDDL), and their solution."""

from __future__ import annotations

import gzip
import json
import time
from pathlib import Path

import numpy as np

from .pairwise import Pairwise, pairwise
from .pairwise_solver import Answer
from .pairwise_solver import solve as solve_pairwise

# The files write 1e18 for what is forbidden.
FORBIDDEN = 1e17
# The search gets this share of the time; the rest is for what it has begun when time is up, and for starting the interpreter.
SHARE = 0.93


def read(path: str | Path) -> Pairwise:
    """The model of a file, compressed or not."""
    opener = gzip.open if str(path).endswith(".gz") else open
    with opener(path, "rt") as file:
        problem = json.load(file)["problem"]
    nodes, edges = problem["nodes"], problem["edges"]
    costs = [_costs(c) for c in nodes["costs"]]
    tables = _costs([entry for table in edges["costs"] for entry in table])
    return pairwise(costs, nodes["usages"], nodes["intervals"], edges["nodes"], tables, problem.get("usage_limit"))


def answer(path: str | Path, seconds: float) -> Answer:
    """The best choice for a file that can be found in some seconds, reading it included, with its cost and a bound."""
    began = time.perf_counter()
    model = read(path)
    return solve_pairwise(model, SHARE * seconds - (time.perf_counter() - began))


def solve(path: str | Path, seconds: float) -> list[int]:
    """The strategies of all nodes of a file, the best that can be found in some seconds.

    Raises:
        ValueError: None that keeps the limit was found.
    """
    result = answer(path, seconds)
    if result.choice is None:
        raise ValueError(f"{path}: no choice of strategies that keeps the usage limit ({result.status})")
    return result.choice.tolist()


def _costs(values: list[float]) -> np.ndarray:
    costs = np.array(values, dtype=float)
    return np.where(costs >= FORBIDDEN, np.inf, costs)
