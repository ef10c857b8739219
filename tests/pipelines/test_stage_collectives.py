"""Collectives inside of stages, in reports."""

from __future__ import annotations

from typing import Any

import jax
import pytest
from jax.sharding import AbstractMesh
from jax.sharding import PartitionSpec as P

import shardy_py as sp
from tests.pipelines.steps import ROWS, WIDTH, data, loss, params

MEGATRON = {"a": P(None, "model"), "b": P("model"), "c": P()}
MICROBATCHES = 4


def rows(inside: dict[str, int], p: Any, batch: Any, **options: Any) -> Any:
    run = sp.pipeline(
        jax.value_and_grad(loss), num_stages=2, num_microbatches=MICROBATCHES, mesh=AbstractMesh((2, *inside.values()), ("stage", *inside)),
        in_shardings=(p, batch, batch), **options,
    )  # fmt: skip
    return run.report(params(), *data()).rows


def test_stages_of_one_device_exchange_nothing() -> None:
    assert [row.exchanged_bytes for row in rows({}, P(), P())] == [0, 0]


def test_what_waits_until_the_end_of_a_step_is_not_exchanged_in_passes() -> None:
    assert [row.exchanged_bytes for row in rows({"data": 2}, P(), P("data"))] == [0, 0]


@pytest.mark.parametrize("data_ways", [1, 2])
def test_products_of_sharded_weights_are_added_up_in_every_pass(data_ways: int) -> None:
    inside = {"data": data_ways, "model": 2}
    first, second = rows(inside, MEGATRON, P("data"))
    # An all-reduce of the hidden values of a microbatch over two devices: each receives half of it twice.
    assert first.exchanged_bytes == ROWS // MICROBATCHES // data_ways * WIDTH * 4
    assert second.exchanged_bytes == 0


@pytest.mark.parametrize("hardware", ["h100", "v5p"])
def test_exchanging_takes_time(hardware: str) -> None:
    alone = rows({"data": 2}, P(), P("data"), hardware=hardware)[0]
    together = rows({"model": 2}, MEGATRON, P(), hardware=hardware)[0]
    assert together.forward_seconds > alone.forward_seconds
    assert together.backward_seconds == pytest.approx(alone.backward_seconds)


def test_a_report_leaves_what_was_built_as_it_is() -> None:
    run = sp.pipeline(
        jax.value_and_grad(loss), num_stages=2, num_microbatches=MICROBATCHES, mesh=AbstractMesh((2, 2), ("stage", "data")),
        in_shardings=(P(), P("data"), P("data")),
    )  # fmt: skip
    built = run.build(params(), *data())
    before = dict(built.places.specs)
    first, again = run.report(), run.report()
    assert built.places.specs == before
    assert first.rows == again.rows
