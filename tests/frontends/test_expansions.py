"""Functions by which JAX lowers primitives, traced once for the equations that are alike."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.extend.core import JaxprEqn
from jax.extend.random import threefry2x32_p

from shardy_py.frontends import _jax
from shardy_py.frontends.expansions import expansion_of


def only_equation(f: Callable[..., Any], *args: Any) -> JaxprEqn:
    """The equation of a function that is one, looking into jitted functions."""
    (eqn,) = jax.make_jaxpr(f)(*args).jaxpr.eqns
    while "jaxpr" in eqn.params:
        (eqn,) = eqn.params["jaxpr"].jaxpr.eqns
    return eqn


def test_equations_of_the_same_types_and_parameters_share_an_expansion(monkeypatch: pytest.MonkeyPatch) -> None:
    counts = [jax.ShapeDtypeStruct((11, 3), jnp.uint32)] * 4
    first, second = (only_equation(lambda *xs: threefry2x32_p.bind(*xs), *counts) for _ in range(2))
    expansion = expansion_of(first, "cpu")
    assert expansion is not None
    assert {aval.shape for aval in expansion.jaxpr.out_avals} == {(11, 3)}
    monkeypatch.setattr(_jax, "traced", None)
    assert expansion_of(second, "cpu") is expansion


def test_settings_where_an_equation_was_traced_count() -> None:
    expansions = []
    for partitionable in (True, False):
        with jax.threefry_partitionable(partitionable):
            eqn = only_equation(lambda k: jax.random.bits(k, (4,)), jax.random.key(0))
        expansion = expansion_of(eqn, "cpu")
        assert expansion is not None
        expansions.append(str(expansion.jaxpr))
    assert expansions[0] != expansions[1]
