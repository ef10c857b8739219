"""Models that do not mention pipelines, through pipelines."""

from __future__ import annotations

import functools
import importlib.util
import itertools
import pathlib
import sys
from types import ModuleType
from typing import Any

import jax
import numpy as np
import pytest

import shardy_py as sp
from tests.pipelines.steps import largest_gap

ROOT = pathlib.Path(__file__).resolve().parents[2]


@functools.cache
def models() -> ModuleType:
    spec = importlib.util.spec_from_file_location("pipeline_models", ROOT / "benchmarks" / "pipeline_models.py")
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules["pipeline_models"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def compare(model: Any, steps: int, **options: Any) -> None:
    """Loss and gradients at every step, at the parameters that training on one device comes to."""
    run = sp.pipeline(model.gradients, **options)
    train, alone = jax.jit(model.step), jax.jit(model.gradients)
    state = model.state
    for number in range(steps):
        batch = model.batch(number)
        assert largest_gap(run(state["params"], batch), alone(state["params"], batch)) < 1e-5, number
        state, _ = train(state, batch)
    assert max(run.programs_per_stage) == 2


def test_a_tied_embedding_trains() -> None:
    model = models().gpt(layers=1, width=16, vocabulary=32, rows=8)
    run = sp.pipeline(model.step, num_stages=2, num_microbatches=4)
    alone = jax.jit(model.step)
    ours = theirs = model.state
    for number in range(2):
        ours, value = run(ours, model.batch(number))
        theirs, wanted = alone(theirs, model.batch(number))
        assert abs(float(value) - float(wanted)) < 1e-5
    assert max(run.programs_per_stage) == 2


def test_long_skips() -> None:
    compare(models().encoder_decoder(depth=3), 2, num_stages=4, num_microbatches=4)


@pytest.mark.slow
def test_a_resnet_in_groups_of_two_devices() -> None:
    model = models().resnet(blocks=2, rows=8)
    compare(model, 1, num_stages=2, num_microbatches=2, mesh={"stage": 2, "data": 2})


SETTINGS = [(2, None, 1), (4, None, 1), (8, None, 1), (2, 2, 1), (4, 2, 1), (8, 2, 2)]


def small(name: str) -> Any:
    made = models()
    if name.startswith("gpt"):
        return made.gpt(layers=4, width=16, vocabulary=32, scan=name == "gpt-scan")
    return made.resnet(blocks=4) if name == "resnet" else made.encoder_decoder()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "setting"),
    [
        *itertools.product(("gpt",), SETTINGS[1::4]),
        *itertools.product(("resnet",), SETTINGS[::4]),
        *itertools.product(("encoder-decoder",), SETTINGS[2::3]),
        ("gpt-scan", (2, 2, 1)),
    ],
)
def test_every_model_at_every_size(name: str, setting: tuple[int, int | None, int]) -> None:
    stages, ways, virtual = setting
    mesh = None if ways is None else {"stage": stages // virtual, "data": ways}
    schedule = "1f1b" if virtual == 1 else "circular"
    compare(small(name), 2, num_stages=stages, num_microbatches=8, mesh=mesh, virtual=virtual, schedule=schedule)


def test_report() -> None:
    model = models().gpt(layers=4, width=16, vocabulary=32, rows=16)
    run = sp.pipeline(model.step, num_stages=4, num_microbatches=4, mesh={"stage": 4, "data": 2})
    found = run.report(model.state, model.batch(0))
    held = sum(row.parameter_bytes for row in found.rows)
    tied = model.state["params"]["embedding"].nbytes
    constants = held - sum(leaf.nbytes for leaf in jax.tree.leaves(model.state["params"])) - tied
    assert 0 <= constants < 1024
    moments = sum(leaf.nbytes for leaf in jax.tree.leaves(model.state["moments"]))
    assert sum(row.state_bytes for row in found.rows) == moments
    assert [row.in_flight for row in found.rows] == [4, 3, 2, 1]
    assert sum(row.bytes_out for row in found.rows) == sum(row.bytes_in for row in found.rows) > 0
    slowest = max(row.forward_seconds for row in found.rows)
    assert slowest <= 1.4 * np.mean([row.forward_seconds for row in found.rows])
    text = str(found).splitlines()
    assert len(text) == 6
    assert text[0].split()[:4] == ["stage", "mesh", "forward", "backward"]
    assert "1f1b, 4 microbatches" in text[-1]
