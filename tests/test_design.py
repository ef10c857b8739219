"""The way of one product through the package is the one that docs/design.md tells."""

from __future__ import annotations

import re
import sys
from types import FrameType
from typing import Any

import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

import shardy_py as sp
from tests.imports import PACKAGE, ROOT


def test_one_product_from_call_to_collective() -> None:
    _, _, rest = (ROOT / "docs" / "design.md").read_text().partition("## One product, from call to collective")
    told = re.findall(r"`([a-z_/]+\.py)`", rest.partition("\n1.")[2].partition("\n## ")[0])
    first: dict[str, None] = {}

    def observe(frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(str(PACKAGE)):
            first.setdefault(frame.f_code.co_filename.removeprefix(f"{PACKAGE}/"))

    sp.clear_caches()
    step = sp.auto_shard(lambda a, b: a @ b, mesh={"x": 4, "y": 2}, in_shardings=(P("x", "y"), P("y")))
    a, b = jnp.ones((64, 32)), jnp.ones((32, 16))
    sys.setprofile(observe)
    try:
        step(a, b)
        assert step.plan(a, b).collectives
    finally:
        sys.setprofile(None)
    assert len(told) > 12
    assert told == [file for file in first if file in told]
