"""Scans of regions that are written down as loops: what JAX makes of them, compiled to the same ops."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.extend.core import ClosedJaxpr, jaxpr_as_fun
from jax.sharding import PartitionSpec as P

from shardy_py.backends import lower_equations
from shardy_py.backends.lower_equations import as_equations

X = np.linspace(-1.0, 1.0, 30, dtype=np.float32).reshape(5, 2, 3)
C = np.linspace(0.2, 0.8, 6, dtype=np.float32).reshape(2, 3)
N = np.arange(5, dtype=np.int8)
KEYS = jax.random.split(jax.random.key(0), 5)


def step(c: jax.Array, x: jax.Array) -> tuple[jax.Array, Any]:
    c = jnp.tanh(c * 2 + x)
    return c, (c.sum(), c[:, :2] > 0, x)


def counting(c: jax.Array, n: jax.Array) -> tuple[jax.Array, jax.Array]:
    return c * 3 + n, c - n


def nested(c: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
    c, sums = lax.scan(lambda d, y: (d + y, d.sum()), c, jnp.stack([x, x * 2]))
    return c, sums


CASES: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "forward": (lambda c, x: lax.scan(step, c, x), (C, X)),
    "reverse": (lambda c, x: lax.scan(step, c, x, reverse=True), (C, X)),
    "nothing is scanned": (lambda c: lax.scan(lambda c, _: (c * 2, c[0]), c, None, length=4), (C,)),
    "nothing is stacked": (lambda c, x: lax.scan(lambda c, x: (c + x, None), c, x), (C, X)),
    "nothing is carried": (lambda x: lax.map(jnp.sin, x), (X,)),
    "constants": (lambda c, x, w: lax.scan(lambda c, x: (c * w[0] + x, w.sum() * c), c, x), (C, X, X)),
    "scalars": (lambda n: lax.scan(counting, jnp.int8(1), n, reverse=True), (N,)),
    "one of them empty": (lambda c, x: lax.scan(step, c, x[:, :0]), (C[:0], X)),
    "another loop inside": (lambda c, x: lax.scan(nested, c, x), (C, X)),
    "carried as it is": (lambda c, x: lax.scan(lambda c, x: ((c[1], c[0]), c[0] + x), (c, c * 2), x), (C, X)),
}
LEFT_TO_JAX: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "unrolled": (lambda c, x: lax.scan(step, c, x, unroll=2), (C, X)),
    "keys": (lambda k: lax.map(lambda k: jax.random.key_data(jax.random.fold_in(k, 3)), k), (KEYS,)),
    "no trips": (lambda c, x: lax.scan(step, c, x), (C, X[:0])),
    "effects": (lambda c, x: lax.scan(lambda c, x: (jax.debug.callback(lambda _: None, c), (c + x, None))[1], c, x), (C, X)),
}


def region(f: Callable[..., Any], *args: Any) -> tuple[ClosedJaxpr, ClosedJaxpr]:
    """A region as JAX lowers it, and as it is lowered here."""
    mesh = jax.make_mesh((2,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
    g = jax.shard_map(f, mesh=mesh, in_specs=(P(),) * len(args), out_specs=P(), check_vma=False)
    closed = jax.make_jaxpr(g)(*args)
    return closed, ClosedJaxpr(as_equations(closed.jaxpr), closed.consts)


def ops(compiled: Any) -> Counter[str]:
    """How often each op stands in a compiled program, with the type of its result."""
    return Counter(re.findall(r"= (\S+ [a-z][a-z-]*)\(", compiled.as_text()))


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """For each scan whether it was written down."""
    found: list[bool] = []
    scan = lower_equations.scan

    def noted(*args: Any) -> Any:
        made = scan(*args)
        found.append(made is not None)
        return made

    monkeypatch.setattr(lower_equations, "scan", noted)
    return found


@pytest.mark.parametrize("x64", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_a_scan_is_the_loop_that_jax_makes_of_it(name: str, x64: bool, written: list[bool]) -> None:
    f, args = CASES[name]
    with jax.enable_x64(x64):
        theirs, ours = (jax.jit(jaxpr_as_fun(each)).lower(*args).compile() for each in region(f, *args))
        assert ops(ours) == ops(theirs)
        jax.tree.map(np.testing.assert_array_equal, ours(*args), theirs(*args))
    assert written
    assert all(written)


@pytest.mark.parametrize("name", LEFT_TO_JAX)
def test_what_is_more_than_a_loop_over_numbers_is_left_to_jax(name: str, written: list[bool]) -> None:
    f, args = LEFT_TO_JAX[name]
    theirs, ours = (jax.jit(jaxpr_as_fun(each)).lower(*args).compile() for each in region(f, *args))
    jax.tree.map(np.testing.assert_array_equal, ours(*args), theirs(*args))
    assert not written[0]  # there may be loops in its body that are


# Versions of JAX differ in whether the body of a scan is a call of its own, and in its name.
OP_IN_LOOP = r'op_name="[^"]*while/(body|cond)/(?:(?:closed_call|eval_jaxpr)/)?([a-z]+)"'


def test_the_loop_says_where_it_comes_from() -> None:
    theirs, ours = (str(jax.jit(jaxpr_as_fun(each)).lower(C, X).compile().as_text()) for each in region(CASES["forward"][0], C, X))
    places = [set(re.findall(OP_IN_LOOP, text)) for text in (theirs, ours)]
    assert {("cond", "lt"), ("body", "tanh"), ("body", "gt")} <= places[0] & places[1]
    assert __file__ in ours
