"""Values around conflicts are constrained, and only those."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec as P

import shardy_py as sp
from shardy_py.backends import conflicts
from shardy_py.backends.rewriting import Pins
from shardy_py.dialect import AxisRef, Mesh
from shardy_py.plan import jit_program
from shardy_py.plan.prediction.conflicts import conflict
from shardy_py.rules.builder import Signature
from shardy_py.rules.contraction import dot_general

MESH = Mesh([("x", 2), ("y", 4)])
X, Y = AxisRef("x"), AxisRef("y")
PRODUCT = dot_general(
    Signature(
        ((8, 8), (8, 8)),
        ((8, 8),),
        {
            "lhs_batching_dimensions": (),
            "rhs_batching_dimensions": (),
            "lhs_contracting_dimensions": (1,),
            "rhs_contracting_dimensions": (0,),
        },
    )
)


@pytest.mark.parametrize(
    ("layouts", "found"),
    [
        ([((X,), ()), ((), (Y,)), ((X,), (Y,))], False),
        ([((X,), ()), ((), ()), ((), ())], False),  # the result could have x too
        ([((X,), (Y,)), ((Y,), ()), ((X,), ())], False),
        ([((X,), ()), ((), (Y,)), ((Y,), ())], True),
        ([((), (X,)), ((Y,), ()), ((), ())], True),
        ([((X,), ()), ((X,), ()), ((), ())], True),  # x on two factors
        ([((X,), ()), ((), ()), ((X, Y), ())], False),
    ],
)
def test_conflict(layouts: list[tuple[tuple[AxisRef, ...], ...]], found: bool) -> None:
    assert conflict(PRODUCT, layouts, MESH) == found


def constraints(fun: Callable[..., Any], specs: tuple[P | None, ...]) -> int:
    step = sp.auto_shard(fun, mesh={"x": 2, "y": 4}, in_shardings=specs, lowering="jit")
    struct = jax.ShapeDtypeStruct((16, 16), jnp.float32)
    return step.lower(*(struct for _ in specs)).as_text().count("sharding_constraint")


def test_only_conflicts_are_constrained(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jit_program, "MAX_BYTES_RATIO", math.inf)  # the plan is run however little it saves

    def product(a: jax.Array, b: jax.Array) -> jax.Array:
        return jnp.sin(jnp.cos(a) @ jnp.cos(b))

    assert constraints(product, (P("x"), P(None, "y"))) == 0
    assert constraints(product, (P("x"), P(None, "x"))) > 0


def test_what_nothing_uses_is_not_constrained(monkeypatch: pytest.MonkeyPatch) -> None:
    """A constraint would bring it back, for what is constrained is propagated through."""
    monkeypatch.setattr(jit_program, "MAX_BYTES_RATIO", math.inf)

    def unused(a: jax.Array, b: jax.Array) -> jax.Array:
        _ = jnp.cos(a) + jnp.cos(b)
        return jnp.sin(a)

    def used(a: jax.Array, b: jax.Array) -> jax.Array:
        return jnp.sin(a) + jnp.cos(b)

    struct = jax.ShapeDtypeStruct((16, 16), jnp.float32)
    counts = []
    for fun in (unused, used):
        call = sp.auto_shard(fun, mesh={"x": 2, "y": 4}, in_shardings=(P("x"), P(None, "x")), lowering="jit").trace(struct, struct)
        pins = Pins()
        conflicts.pin_conflicts(call._planned.imported.scope, pins, call.plan().program.meshes)
        counts.append(pins.count())
    assert counts[0] == 0 < counts[1]


def test_what_is_used_of_an_equation_is_constrained(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conflicts, "conflicts", lambda *args: True)

    def half(a: jax.Array) -> jax.Array:
        return jnp.split(jnp.sin(a), 2, axis=1)[1] * 2

    call = sp.auto_shard(half, mesh={"x": 2, "y": 4}, in_shardings=P("x"), lowering="jit").trace(
        jax.ShapeDtypeStruct((16, 16), jnp.float32)
    )
    pins = Pins()
    conflicts.pin_conflicts(call._planned.imported.scope, pins, call.plan().program.meshes)
    (split,) = (eqn for eqn in call.jaxpr.jaxpr.eqns if eqn.primitive.name == "split")
    assert [v in pins.variables for v in split.outvars] == [False, True]
