"""Equations of regions that JAX lowers by tracing a function: the function is traced once, and its equations are written."""

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
from jax.extend.core.primitives import closed_call_p
from jax.extend.random import threefry2x32_p
from jax.sharding import PartitionSpec as P

from shardy_py.backends import lower_equations
from shardy_py.backends.lower_equations import as_equations
from shardy_py.backends.lowering_in_place import never_alike
from shardy_py.frontends.context import lowered_in_place

X = np.linspace(0.1, 3.0, 12, dtype=np.float32).reshape(3, 4)
KEY = jax.random.key(3)
CASES: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "logistic": (lambda x: lax.logistic(x) + lax.logistic(x * 2), (X,)),
    "cumulative": (lambda x: lax.cummax(lax.cumsum(x, 1), 0, reverse=True), (X,)),
    "gather": (lambda x: jnp.take(x, jnp.array([2, 7, -1]), axis=0, mode="fill"), (X,)),
    "scatter": (lambda x: x.at[jnp.array([2, 9])].add(1.0, mode="clip"), (X,)),
    "gamma": (lambda x: lax.igamma(x, x + 1), (X,)),
    "argmax": (lambda x: (lax.argmax(x, 1, jnp.int32), lax.argmin(x, 0, jnp.int8)), (X,)),
    "numbers": (lambda k: jax.random.normal(k, (3, 5)) + jax.random.uniform(k, (3, 5)), (KEY,)),
    "the same hash twice": (lambda k: [jax.random.bits(k2, (6,)) for k2 in jax.random.split(k)], (KEY,)),
    "keys": (lambda k: jax.random.key_data(jax.random.fold_in(jax.random.split(k, 3)[1], 7)), (KEY,)),
    "keys of a loop": (lambda k: lax.scan(lambda c, k: (c + jax.random.uniform(k), None), 0.0, jax.random.split(k, 4))[0], (KEY,)),
    "draws that reject": (lambda k, x: jax.random.gamma(k, x), (KEY, X)),
}


def region(f: Callable[..., Any], *args: Any) -> tuple[ClosedJaxpr, ClosedJaxpr]:
    """A region as JAX lowers it, and as it is lowered here."""
    mesh = jax.make_mesh((2,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
    g = jax.shard_map(f, mesh=mesh, in_specs=(P(),) * len(args), out_specs=P(), check_vma=False)
    closed = jax.make_jaxpr(g)(*args)
    return closed, ClosedJaxpr(as_equations(closed.jaxpr), closed.consts)


def compiled(closed: ClosedJaxpr, *args: Any) -> Any:
    with lowered_in_place(never_alike(closed.jaxpr)):
        return jax.jit(jaxpr_as_fun(closed)).lower(*args).compile()


def ops(program: Any) -> Counter[str]:
    """How often each op stands in a compiled program, with the type of its result."""
    return Counter(re.findall(r"= (\S+ [a-z][a-z-]*)\(", program.as_text()))


@pytest.mark.parametrize("name", CASES)
def test_what_is_written_is_what_jax_traces(name: str) -> None:
    f, args = CASES[name]
    theirs, ours = (compiled(each, *args) for each in region(f, *args))
    jax.tree.map(np.testing.assert_array_equal, ours(*args), theirs(*args))
    assert ops(ours) == ops(theirs)


def test_a_function_is_prepared_once(monkeypatch: pytest.MonkeyPatch) -> None:
    f, args = CASES["gamma"]
    _, ours = region(f, *args)
    first = jax.jit(jaxpr_as_fun(ours)).lower(*args).as_text()
    monkeypatch.setattr(lower_equations, "without_calls", None)
    assert jax.jit(lambda *xs: jaxpr_as_fun(ours)(*xs)).lower(*args).as_text().count("stablehlo") == first.count("stablehlo")


def curved(x: jax.Array) -> jax.Array:
    return lax.logistic(x.astype(jnp.float32))


def hashed(x: jax.Array) -> jax.Array:
    return threefry2x32_p.bind(x, x, x, x)[0]


@pytest.mark.parametrize(("f", "calls"), [(curved, 0), (hashed, 2)])
def test_equations_alike_call_what_is_long(f: Callable[[Any], Any], calls: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same jaxpr, of which JAX makes one function where its version makes functions of calls."""
    called: list[Any] = []
    alone = lower_equations._alone

    def noted(writer: Any, jaxpr: Any, *rest: Any) -> Any:
        called.extend(jaxpr for eqn in jaxpr.eqns if eqn.primitive is closed_call_p)
        return alone(writer, jaxpr, *rest)

    monkeypatch.setattr(lower_equations, "_alone", noted)
    x = X.astype(np.uint32)
    functions = []
    for twice in (False, True):
        _, ours = region(lambda x, twice=twice: f(f(x)) if twice else f(x), x)
        called.clear()
        functions.append(jax.jit(jaxpr_as_fun(ours)).lower(x).as_text().count("func private @"))
    assert len(called) == calls
    assert all(jaxpr is called[0] for jaxpr in called)
    assert functions[0] == functions[1]


def test_equations_alike_are_where_they_stand() -> None:
    """What is traced once for two of them says nothing of the first."""

    def f(x: jax.Array) -> jax.Array:
        y = lax.logistic(x)
        return lax.logistic(y * 2) + 1

    line = f.__code__.co_firstlineno
    _, ours = region(f, X)
    text = str(compiled(ours, X).as_text())
    tables = re.search(r"FileLocations\n(.*?)\n\n", text, re.DOTALL)
    if tables is None:
        assert {str(line + 1), str(line + 2)} <= set(re.findall(r"source_line=(\d+)", text))
    else:
        assert {str(line + 1), str(line + 2)} <= set(re.findall(r"\bline=(\d+)", tables[1]))


def test_settings_and_effects_are_left_to_jax() -> None:
    """They are written beside ops, or order them."""
    from jax.experimental.xla_metadata import set_xla_metadata

    def f(x: jax.Array) -> jax.Array:
        with set_xla_metadata(key="value"):
            return lax.logistic(x)

    _, ours = region(f, X)
    assert 'key = "value"' in jax.jit(jaxpr_as_fun(ours)).lower(X).as_text()
