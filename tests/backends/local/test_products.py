"""Contractions on local arrays."""

from __future__ import annotations

import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import shardy_py as sp


@pytest.mark.parametrize("specs", [(P(None, "x"), P("x")), (P("y"), P("x"))], ids=str)
def test_products_of_truth_values(specs: tuple[P, P]) -> None:
    rng = np.random.default_rng(0)
    a, b = rng.random((8, 40)) > 0.9, rng.random((40, 8)) > 0.9
    step = sp.auto_shard(lambda a, b: a @ b, mesh={"x": 4, "y": 2}, in_shardings=specs, out_shardings=P("y", "x"), lowering="shard_map")
    np.testing.assert_array_equal(step(a, b), a @ b)
