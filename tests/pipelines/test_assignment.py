"""Where a step is cut: by compute of both passes and by what crosses."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax.numpy as jnp
import pytest

import shardy_py as sp
from shardy_py.cost.hardware_table import hardware
from tests.pipelines.steps import data, params

FAST = hardware("h100")


@pytest.mark.parametrize(("bandwidth", "columns"), [(1e15, 512), (1e6, 8)])
def test_wide_activations_are_not_sent_over_slow_links(bandwidth: float, columns: int) -> None:
    """Half of the work lies on either side of the widest activation."""
    wide = {"up": jnp.ones((8, 512)), "down": jnp.ones((512, 8)), **params()}

    def loss(p: Any, x: Any, y: Any) -> Any:
        hidden = jnp.tanh(x @ p["a"]) @ p["up"]
        return jnp.mean((jnp.tanh((hidden * 2.0) @ p["down"]) @ p["b"] - y) ** 2)

    slow = replace(FAST, fabric=replace(FAST.fabric, bandwidth=bandwidth))
    run = sp.pipeline(loss, num_stages=2, num_microbatches=4, hardware=slow)
    assert run.report(wide, *data()).rows[0].bytes_out == 4 * columns * 4
    assert run.verify(wide, *data()) < 1e-4


def test_backward_passes_count() -> None:
    """Operations without a gradient take time forwards only: of equal forward passes the first stage has more."""

    def loss(p: Any, x: Any, y: Any) -> Any:
        for name in "abc":
            x = jnp.sign(x) * (x @ p[name] > 0)
        for _ in range(2):
            for name in "abc":
                x = jnp.tanh(x @ p[name])
        return jnp.mean((x - y) ** 2)

    rows = sp.pipeline(loss, num_stages=2, num_microbatches=2).report(params(), *data()).rows
    both = [row.forward_seconds + row.backward_seconds for row in rows]
    assert max(both) < 1.4 * min(both)
    assert rows[0].forward_seconds > rows[1].forward_seconds
