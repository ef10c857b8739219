"""Programs as JAX's pages on explicit sharding teach them, on meshes as `jax.make_mesh` makes them: numbers, shardings and types are those of `jax.jit`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import shardy_py as sp

EXPLICIT, AUTO = AxisType.Explicit, AxisType.Auto


def mesh(types: tuple[AxisType, ...] = (EXPLICIT, EXPLICIT)) -> jax.sharding.Mesh:
    return jax.make_mesh((2, 4), ("x", "y"), axis_types=types)


def reads_type(a: Any) -> Any:
    """A layer that acts on the sharding in a type."""
    spec = jax.typeof(a).sharding.spec
    return jax.reshard(a.T, P(spec[1], spec[0]))


def layers(w: Any, a: Any) -> Any:
    @jax.checkpoint
    def layer(h: Any, w: Any) -> tuple[Any, None]:
        h = jnp.einsum("bd,df->bf", h, w, out_sharding=P("x", "y"))
        return jax.reshard(jnp.tanh(h), P("x", None)), None

    return lax.scan(layer, a, w)[0]


def loss(w: Any, a: Any) -> Any:
    return jnp.mean(layers(w, a) ** 2)


def fsdp(w: Any, a: Any) -> Any:
    def forward(w: Any) -> Any:
        whole = jax.reshard(w, P(None, None))
        return jnp.mean(jnp.dot(a, whole, out_sharding=P("x", None)) ** 2)

    gradient = jax.grad(forward)(w)
    assert jax.typeof(gradient).sharding.spec == P("x", None)
    return w - 0.1 * gradient


def megatron(up: Any, down: Any, a: Any) -> Any:
    hidden = jax.nn.relu(jnp.dot(a, up, out_sharding=P("x", "y")))
    return jnp.dot(hidden, down, out_sharding=P("x", None))


def partial_sums(a: Any, b: Any) -> Any:
    product = jnp.einsum("ij,jk->ik", a, b, out_sharding=P(None, None, unreduced={"y"}))
    return jax.reshard(product + product, P("x", None))


def reduced_weights(w: Any, a: Any) -> Any:
    def forward(w: Any) -> Any:
        return jnp.sum(jnp.dot(a, jax.reshard(w, P(None, None, reduced={"x"})), out_sharding=P("x", None)))

    return jax.reshard(jax.grad(forward)(w), P(None, None))


@jax.custom_vjp
def scaled(a: Any) -> Any:
    return jax.reshard(a * 2, P("x", None))


scaled.defvjp(lambda a: (scaled(a), None), lambda _, g: (jax.reshard(g * 2, P("x", "y")),))


def mapped(body: Callable[..., Any], in_specs: Any, out_specs: Any) -> Callable[..., Any]:
    return lambda *args: jax.shard_map(body, in_specs=in_specs, out_specs=out_specs)(*args)


def partly_manual(a: Any) -> Any:
    return jax.shard_map(lambda a: jax.reshard(a * 2, P(None, "y")), in_specs=P("x", None), out_specs=P("x", None), axis_names={"x"})(a)


def asserting(a: Any) -> Any:
    assert jax.typeof(a).sharding.spec == P("x", "y")
    return a * 2


def branch(a: Any) -> Any:
    return lax.cond(a.sum() > 0, lambda a: jax.reshard(a, P("x", None)), lambda a: jax.reshard(-a, P("x", None)), a)


def loop(a: Any) -> Any:
    return lax.while_loop(lambda c: c[0] < 3, lambda c: (c[0] + 1, jax.jit(lambda b: jax.reshard(b + 1, P("y", "x")))(c[1])), (0, jax.reshard(a, P("y", "x"))))[1]


def automatic(a: Any) -> Any:
    return jax.sharding.auto_axes(lambda a: lax.sort(a @ a.T), out_sharding=P("y", "x"))(a)


@jax.sharding.auto_axes
def automatic_by_keyword(a: Any) -> Any:
    return a[::-1] @ a.T


@jax.sharding.auto_axes(axes="y", out_sharding=P("x", None))
def automatic_over_y(a: Any) -> Any:
    return a * 3


A, W, V = ("x", "y"), (None, "y"), (None, None)
PROGRAMS: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "dot": (lambda a, w: jnp.dot(a, w, out_sharding=P("x", "y")), (("x", None), W)),
    "dot summed over an axis": (lambda a, w: jnp.dot(a, w, out_sharding=P("x", None)), (A, ("y", None))),
    "einsum": (lambda a, w: jnp.einsum("ij,kj->ik", a, w, out_sharding=P("y", "x")), (V, V)),
    "matmul": (lambda a, w: jnp.matmul(a, w, out_sharding=P(None, "y")), (("x", None), W)),
    "gather": (lambda a: a.at[jnp.array([1, 5, 3, 0])].get(out_sharding=P("x", None)), (A,)),
    "reshape": (lambda a: jnp.reshape(a, (4, 4, 16), out_sharding=P("x", None, "y")), (V,)),
    "broadcast": (lambda a: a + jnp.broadcast_to(jnp.float32(2), (16, 16), out_sharding=P("x", "y")), (A,)),
    "zeros": (lambda a: (jnp.zeros((8, 8), out_sharding=P("x")), a), (A,)),
    "ones and full": (lambda a: (jnp.ones((8,), out_sharding=P("y")), jnp.full((8, 2), 3.0, out_sharding=P("x")), a), (A,)),
    "arange": (lambda a: (jnp.arange(16, out_sharding=P("y")), a), (A,)),
    "one_hot": (lambda a: jax.nn.one_hot(jnp.argmax(jax.reshard(a, P("x", None)), axis=1), 16) + a, (("x", None),)),
    "random": (lambda a: jax.random.normal(jax.random.key(0), (16, 16), out_sharding=P("x", "y")) + a, (A,)),
    "typeof": (reads_type, (A,)),
    "assert": (asserting, (A,)),
    "reshard to whole": (lambda a: jax.reshard(a, P(None, None)) * 2, (A,)),
    "reshard of a tree": (lambda a, w: jax.reshard({"a": a, "w": w}, {"a": P("y"), "w": P("x")}), (A, W)),
    "layers": (layers, ((None, None, "y"), ("x", None))),
    "gradients of layers": (jax.grad(loss), ((None, None, "y"), ("x", None))),
    "fsdp": (fsdp, (("x", None), ("x", None))),
    "megatron": (megatron, (W, ("y", None), ("x", None))),
    "partial sums": (partial_sums, ((None, "y"), ("y", None))),
    "gradients of reduced weights": (reduced_weights, (V, ("x", None))),
    "custom_vjp": (lambda a: jax.grad(lambda a: scaled(a).sum())(a), (A,)),
    "vmap": (lambda a, w: jax.vmap(lambda row: jnp.dot(row, w, out_sharding=P("y")))(a), (V, W)),
    "shard_map": (mapped(lambda a: lax.psum(a, "y"), P("x", "y"), P("x", None)), (A,)),
    "shard_map of a value": (lambda a: mapped(lambda a: a * 2, P("x", "y"), P("x", "y"))(jnp.sin(a)), (A,)),
    "pcast": (mapped(lambda a: a + lax.pcast(jnp.ones(a.shape), ("x", "y"), to="varying"), P("x", "y"), P("x", "y")), (A,)),
    "partly manual": (partly_manual, (("x", None),)),
    "smap": (lambda a: jax.smap(lambda a: lax.psum(a, "x"), in_axes=0, out_axes=None, axis_name="x")(a), (("x", None),)),
    "cond": (branch, (A,)),
    "while": (loop, (A,)),
    "auto_axes": (automatic, (A,)),
    "auto_axes with a keyword": (lambda a: automatic_by_keyword(a, out_sharding=P("x", "y")), (A,)),
    "auto_axes over one axis": (automatic_over_y, (A,)),
    "plain": (lambda a: jnp.tanh(a) * 2 + 1, (A,)),
    "plain reduction": (lambda a: jax.nn.softmax(a, axis=1), (A,)),
    "integers": (lambda a: jax.reshard(jnp.argsort(jax.reshard(a, P("x", None)), axis=1), P("x", "y")), (A,)),
    "transposed gradient": (jax.grad(lambda w, a: jnp.sum(jnp.dot(a, w, out_sharding=P("x", "y")) ** 2)), (W, ("x", None))),
    "accumulation": (
        lambda w, a: lax.fori_loop(0, 4, lambda i, g: g + jax.reshard(a * i, P(None, "y")) @ w.T if False else g + jax.reshard(g * i, P("x", "y")), a),
        (W, A),
    ),
}  # fmt: skip


def arguments(specs: tuple[Any, ...], on: jax.sharding.Mesh) -> list[Any]:
    shapes = [(16, 16) if len(spec) == 2 else (3, 16, 16) for spec in specs]
    draws = [np.random.default_rng(i).standard_normal(shape).astype(np.float32) for i, shape in enumerate(shapes)]
    return [jax.device_put(draw, NamedSharding(on, P(*spec))) for draw, spec in zip(draws, specs)]


def compare(function: Callable[..., Any], args: list[Any], lowering: str) -> None:
    expected = jax.tree.leaves(jax.jit(function)(*args))
    results = jax.tree.leaves(sp.auto_shard(function, lowering=lowering)(*args))
    for result, each in zip(results, expected, strict=True):
        np.testing.assert_allclose(np.asarray(result), np.asarray(each), rtol=1e-5, atol=1e-5)
        assert jax.typeof(result) == jax.typeof(each)
        assert result.sharding.is_equivalent_to(each.sharding, each.ndim)


@pytest.mark.parametrize("lowering", ["jit", "shard_map"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_programs(name: str, lowering: str) -> None:
    function, specs = PROGRAMS[name]
    with jax.set_mesh(mesh()) as _:
        compare(function, arguments(specs, mesh()), lowering)
