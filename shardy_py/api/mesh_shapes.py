"""Chooses the shape of a mesh where a user states the number of devices only."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

from shardy_py.api.errors import MeshError
from shardy_py.api.meshes import view_of
from shardy_py.api.peers import report_failures
from shardy_py.api.planning import make_plan
from shardy_py.api.request import Settings, request
from shardy_py.api.signature import ArgumentSlots
from shardy_py.api.tracing import trace
from shardy_py.api.trees import location_of
from shardy_py.plan.progress import observed
from shardy_py.planner.errors import PlannerInfeasible
from shardy_py.planner.meshes import ShapeSearch, named, shapes
from shardy_py.planner.options import Planner


def check_devices(devices: int, planner: Planner | None) -> None:
    """Raises MeshError if a number of devices is not positive, or if there is no planner to choose the mesh's shape."""
    if devices < 1 or isinstance(devices, bool):
        raise MeshError(f"mesh is {devices}", where="mesh=", why="a number of devices is positive", fix="write mesh=8")
    if planner is None:
        raise MeshError(
            f"mesh is {devices}, a number of devices without a shape",
            where="mesh=",
            why="without a planner nothing chooses the axes of a mesh",
            fix='write mesh={"data": 4, "model": 2} or mesh=jax.make_mesh((4, 2), ("data", "model")), or pass planner=sp.Planner(...)',
        )


def searched_shapes(devices: int, settings: Settings, layout: ArgumentSlots, slots: Sequence[Any], *, runs: bool = False) -> ShapeSearch:
    """The steps of all shapes: each is searched in its share of the time, and what others have left of theirs.

    The plan of the best shape, made afterwards, has a share too. Raises PlannerInfeasible if no plan of any shape fits its memory budget.
    """
    candidates = shapes(devices)
    failures = report_failures(view_of(named(candidates[0])), location_of(settings.fun)) if runs else nullcontext()
    with failures, observed(getattr(settings.fun, "__name__", "the function"), settings.options.progress):
        return _searched(candidates, settings, layout, slots, runs)


def _searched(
    candidates: Sequence[tuple[int, ...]], settings: Settings, layout: ArgumentSlots, slots: Sequence[Any], runs: bool
) -> ShapeSearch:
    assert settings.planner is not None
    failures: list[PlannerInfeasible] = []
    steps: dict[tuple[int, ...], tuple[float, float] | None] = {}
    began = time.monotonic()
    share = settings.planner.time_limit_s / (len(candidates) + 1)
    for number, shape in enumerate(candidates):
        spent = time.monotonic() - began - number * share
        searching = replace(settings, planner=replace(settings.planner, time_limit_s=share), spent=spent)
        try:
            plan = make_plan(trace(request(searching, view_of(named(shape)), layout, slots, runs=runs)), runs=runs).plan
        except PlannerInfeasible as error:
            failures.append(error)
            steps[shape] = None
            continue
        assert plan.search is not None
        steps[shape] = plan.search.objective_seconds, plan.search.lower_bound_seconds
    if len(failures) == len(candidates):
        raise min(failures, key=lambda error: error.minimum_bytes)
    return ShapeSearch(steps)
