"""Equations that are written down as they are: the same as what `bind` makes of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.extend.core import ClosedJaxpr
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

import shardy_py as sp
from shardy_py.backends import shard_map
from shardy_py.backends.local import local_rule
from shardy_py.backends.local.interpreter import Interpreter
from shardy_py.backends.region import region
from shardy_py.frontends.context import recorded
from shardy_py.frontends.locations import locate
from tests.backends.local.running import eqns


def _loops(x: jax.Array) -> Any:
    def body(carry: jax.Array, row: jax.Array) -> tuple[jax.Array, jax.Array]:
        carry = jnp.tanh(carry * 2 + row)
        return carry, carry.astype(jnp.bfloat16)

    return lax.scan(body, x[0], x), lax.cond(x.sum() > 0, jnp.sin, lambda y: -y, x)


def _scopes(x: jax.Array) -> Any:
    with jax.named_scope("first"):
        y = jnp.sin(x)
    with jax.named_scope("second"):
        return lax.map(jnp.sin, y) + jnp.sin(y)


def _keys(x: jax.Array) -> Any:
    key = jax.random.key(3)
    return jax.random.normal(jax.random.fold_in(key, 1), x.shape) + x * x, jax.random.split(key, 8)


CASES: dict[str, Callable[[jax.Array], Any]] = {
    "scalars": lambda x: jnp.maximum(x * 2 + 1.5, 0) ** 2 / (x - 3),
    "weak types": lambda x: (lax.full((8, 16), 2.0) * 3, jnp.where(x > 0, 1, 2), jnp.arange(8) * 2.5),
    "weak types after strong ones": lambda x: (lax.mul(x, 3.0), lax.sub(x, lax.mul(lax.full((8, 16), 2.0), 3.0))),
    "casts to what it is": lambda x: lax.convert_element_type(x, jnp.float32) + lax.broadcast_in_dim(x, (8, 16), (0, 1)),
    "casts": lambda x: (x.astype(jnp.bfloat16) * 2).astype(jnp.int8),
    "shapes": lambda x: (x.T.reshape(4, 4, 8), x[None], x.reshape(-1), jnp.broadcast_to(x[:, :, None], (8, 16, 4)), x[:1, 0]),
    "sums": lambda x: (x.sum(0), x.max(1), (x > 0).all(), jnp.argmax(x, 0), x.mean()),
    "products": lambda x: (x @ x.T, jnp.einsum("ij,kj->ik", x.astype(jnp.bfloat16), x.astype(jnp.bfloat16), preferred_element_type=float)),
    "loops": _loops,
    "keys": _keys,
    "scopes": _scopes,
    "gradients": jax.grad(lambda x: jnp.sum(jax.nn.softmax(x @ x.T) ** 2)),
}


def region_of(name: str, monkeypatch: pytest.MonkeyPatch) -> tuple[str, list[Any], list[Any]]:
    """The region of a case, before any pass, the types in it, and where its equations come from."""
    traced: list[ClosedJaxpr] = []

    def kept(*args: Any) -> ClosedJaxpr:
        traced.append(region(*args))
        return traced[-1]

    monkeypatch.setattr(shard_map, "region", kept)
    mesh = jax.make_mesh((2, 4), ("x", "y"), axis_types=(AxisType.Auto,) * 2)
    sp.auto_shard(lambda x: CASES[name](x), mesh=mesh, in_shardings=(P("x", "y"),), lowering="shard_map").lower(jnp.ones((8, 16)))
    (made,) = traced
    inner = list(eqns(made.jaxpr))
    types = [(v.aval.shape, v.aval.dtype, v.aval.weak_type) for eqn in inner for v in (*eqn.invars, *eqn.outvars)]
    return str(made), types, [locate(eqn.source_info) for eqn in inner]


@pytest.mark.parametrize("name", CASES)
def test_the_same_equations_as_with_bind(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    count = 0

    def counted(*args: Any, **more: Any) -> list[Any] | None:
        nonlocal count
        made = recorded(*args, **more)
        count += made is not None
        return made

    monkeypatch.setattr(local_rule, "recorded", counted)
    with jax.enable_checks(True):
        fast = region_of(name, monkeypatch)
    monkeypatch.setattr(local_rule, "recorded", lambda *_, **__: None)
    assert fast == region_of(name, monkeypatch)
    assert count


def test_what_is_not_recorded_is_left_to_bind() -> None:
    x = jnp.ones(4)
    assert recorded(lax.sin_p, [x], {"accuracy": None}, [jax.typeof(x)]) is None

    def f(x: jax.Array) -> jax.Array:
        with jax.sharding.use_abstract_mesh(jax.sharding.AbstractMesh((8,), ("x",))):
            assert recorded(lax.add_p, [x, x], {}, [jax.typeof(x)]) is None  # types name the mesh
        assert recorded(lax.add_p, [x, x], {}, [jax.typeof(x).update(weak_type=True)]) is None  # another type
        cast, integer = {"new_dtype": jnp.dtype("int32"), "weak_type": False, "sharding": None}, jax.typeof(np.int32(0))
        assert recorded(lax.convert_element_type_p, [np.float32(1)], cast, [integer]) is None  # a constant
        return x

    jax.make_jaxpr(f)(x)


@pytest.mark.parametrize("name", CASES)
def test_an_equation_is_recorded_again_as_it_was(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where it comes from, which is where the equation at hand does and not the one that it is like."""
    again = Interpreter.replay
    count = 0

    def counted(*args: Any) -> list[Any] | None:
        nonlocal count
        made = again(*args)
        count += made is not None
        return made

    monkeypatch.setattr(Interpreter, "replay", lambda *_: None)
    first = region_of(name, monkeypatch)
    monkeypatch.setattr(Interpreter, "replay", counted)
    with jax.enable_checks(True):
        assert first == region_of(name, monkeypatch) == region_of(name, monkeypatch)
    assert count
