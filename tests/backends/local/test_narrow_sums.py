"""Sums of bfloat16 over CPU devices take two bytes an element."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from jax import lax
from jax import numpy as jnp
from jax.extend.source_info_util import summarize
from jax.sharding import PartitionSpec as P

from shardy_py.backends.local import jaxpr_rewriting
from shardy_py.backends.local import narrow_sums as module
from shardy_py.backends.local.narrow_sums import narrow_sums
from shardy_py.backends.local.read_collectives import read_collectives
from shardy_py.backends.local.simplify import simplify
from shardy_py.frontends.transforms import traced_locally
from tests.backends.local.test_hoist import SIZES, changed

X = jnp.asarray(np.random.default_rng(0).integers(-8, 8, (40, 56)), jnp.bfloat16)  # whose sums are exact


def wide(x: Any, send: Callable[[Any], Any]) -> Any:
    return send(x.astype(jnp.float32)).astype(jnp.bfloat16)


def scattered(over: Any, dim: int) -> Callable[[Any], Any]:
    """A sum that is scattered along a dimension, and put together again to be compared."""
    return lambda y: lax.all_gather(lax.psum_scatter(y, over, scatter_dimension=dim, tiled=True), over, axis=dim, tiled=True)


CASES: dict[str, tuple[Callable[[Any], Any], list[str]]] = {
    "two": (lambda x: wide(x, lambda y: lax.psum(y, "x")), ["all_gather uint16"]),
    "four": (lambda x: wide(x, lambda y: lax.psum(y, "y")), ["all_to_all uint16", "all_gather uint16"]),
    "axes": (lambda x: wide(x, lambda y: lax.psum(y, ("x", "y"))), ["all_to_all uint16", "all_gather uint16"]),
    "uneven": (lambda x: wide(x[:37, :51], lambda y: lax.psum(y, "y")), ["all_to_all uint16", "all_gather uint16"]),
    "exact": (lambda x: lax.psum(x.astype(jnp.float32), "y"), ["all_to_all uint16", "all_gather float32"]),
    "rows": (lambda x: wide(x, scattered("y", 0)), ["all_to_all uint16", "all_gather float32"]),
    "columns": (lambda x: wide(x, scattered(("x", "y"), 1)), ["all_to_all uint16", "all_gather float32"]),
    "loop": (
        lambda x: lax.scan(lambda c, _: (wide(c, lambda y: lax.psum(y, "y")), None), x, None, length=2)[0],
        ["all_to_all uint16", "all_gather uint16"],
    ),
    "as it is": (lambda x: lax.psum(x, "y"), ["all_to_all uint16", "all_gather uint16"]),
    "scattered as it is": (lambda x: scattered("y", 0)(x), ["all_to_all uint16", "all_gather bfloat16"]),
    "small": (lambda x: wide(x[0, :6], lambda y: lax.psum(y, "y")), ["all_reduce float32"]),
    "float32": (lambda x: lax.psum(x.astype(jnp.float32) / 2, "y"), ["all_reduce float32"]),
}


@pytest.mark.parametrize("case", CASES)
def test_what_is_sent(case: str) -> None:
    local, sent = CASES[case]
    bodies: list[Any] = []

    def run(body: Any) -> Any:
        bodies.append(simplify(narrow_sums(body, SIZES)))
        return bodies[-1]

    _, before, after = changed(lambda x: [local(x)], run, (X,), (P(),))
    assert [f"{c.kind} {c.dtype}" for c in read_collectives(bodies[0], SIZES)] == sent
    np.testing.assert_array_equal(np.asarray(before[0], np.float32), np.asarray(after[0], np.float32))


def test_many_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FEW", 1)
    test_what_is_sent("uneven")


def test_sums_that_are_alike_are_traced_once_and_keep_their_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    traces: list[Any] = []

    def counted(function: Any, types: Any) -> Any:
        traces.append(types)
        return traced_locally(function, types)

    def local(x: Any) -> list[Any]:
        first = wide(x, lambda y: lax.psum(y, "y"))
        second = wide(first * 2, lambda y: lax.psum(y, "y"))
        return [wide(second + 1, lambda y: lax.psum(y, ("x", "y")))]

    bodies: list[Any] = []

    def run(body: Any) -> Any:
        monkeypatch.setattr(jaxpr_rewriting, "traced_locally", counted)
        bodies.append(narrow_sums(body, SIZES))
        return bodies[-1]

    changed(local, run, (X,), (P(),))
    assert len(traces) == 2  # the third is over other axes
    lines = [summarize(eqn.source_info).split(":")[1] for eqn in bodies[0].eqns if eqn.primitive.name == "all_to_all"]
    start = local.__code__.co_firstlineno
    assert lines == [str(start + 1), str(start + 2), str(start + 3)]
