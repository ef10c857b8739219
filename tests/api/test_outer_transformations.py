"""Decorated functions under checkify, jet, sparsify, export and `jax_debug_nans`, and compiled ahead of time."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export, lax
from jax.experimental import checkify, jet, sparse
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import shardy_py as sp

LOWERINGS = ["jit", "shard_map"]
RNG = np.random.default_rng(0)
X, W = (RNG.standard_normal(shape).astype("float32") for shape in ((16, 8), (8, 4)))


@pytest.fixture(scope="module")
def mesh() -> Mesh:
    return jax.make_mesh((4, 2), ("data", "model"), axis_types=(AxisType.Auto,) * 2)


def same(got: Any, want: Any) -> None:
    assert jax.tree.structure(got) == jax.tree.structure(want)
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-5), got, want)


# Checks.


def low(x: Any) -> Any:
    checkify.check(jnp.all(x > -10), "too low: {low}", low=jnp.min(x))
    return jnp.log1p(x**2)


def low_in_loop(x: Any) -> Any:
    def trip(c: Any, row: Any) -> tuple[Any, Any]:
        checkify.check(row.min() > -10, "too low: {low}", low=row.min())
        return c + row.sum(), row * 2

    return lax.scan(trip, 0.0, x)


def low_in_branch(x: Any) -> Any:
    def taken(x: Any) -> Any:
        return low(x).sum(0)

    return lax.cond(x[0, 0] > 100, lambda x: x.sum(0), taken, x)


def low_in_calls(x: Any) -> Any:
    return jax.jit(lambda x: jax.checkpoint(low)(x) + 1)(x)


BAD = X.copy()
BAD[11, 3] = -100


@pytest.mark.parametrize(
    ("fun", "order"),
    [
        *((low, order) for order in ("outside", "inside", "around a gradient", "around a map", "jitted")),
        (low_in_loop, "around a gradient"),
        (low_in_branch, "around a map"),
        (low_in_calls, "jitted"),
    ],
)
def test_checks_of_the_user_are_kept(fun: Callable[[Any], Any], order: str, mesh: Mesh) -> None:
    planned = functools.partial(sp.auto_shard, mesh=mesh, in_shardings=P("data"))

    def summed(f: Callable[[Any], Any]) -> Callable[[Any], Any]:
        return lambda x: sum(leaf.sum() for leaf in jax.tree.leaves(f(x)))

    def transformed(decorate: Callable[[Any], Any]) -> Callable[[Any], Any]:
        if order == "inside":
            return decorate(checkify.checkify(fun))
        if order == "around a gradient":
            return checkify.checkify(jax.grad(summed(decorate(fun))))
        if order == "around a map":
            return lambda x: checkify.checkify(jax.vmap(decorate(fun)))(jnp.stack([x, x]))
        if order == "jitted":
            return jax.jit(checkify.checkify(jax.jit(decorate(fun))))
        return checkify.checkify(decorate(fun))

    ours, plain = [transformed(functools.partial(planned, lowering=lowering)) for lowering in LOWERINGS], transformed(jax.jit)
    for x in (X, BAD):
        expected, want = plain(x)
        for step in ours:
            error, got = step(x)
            assert str(error.get()).splitlines()[:1] == str(expected.get()).splitlines()[:1]
            if order != "around a gradient":  # where JAX drops what only checks need
                assert (error.get() is None) is (x is X)
            same(got, want)


@pytest.mark.parametrize("lowering", LOWERINGS)
def test_checks_of_annotated_functions_are_kept(lowering: str, mesh: Mesh) -> None:
    @sp.sharding_rule("i j -> i j")
    def ruled(x: Any) -> Any:
        return low(x) * 2

    def fun(x: Any) -> Any:
        return ruled(sp.with_sharding_constraint(x, P("data", "model"))) @ W

    checked = checkify.checkify(sp.auto_shard(fun, mesh=mesh, in_shardings=P("data"), lowering=lowering))
    error, got = checked(X)
    error.throw()
    same(got, np.log1p(X**2) * 2 @ W)
    assert "too low: -100" in str(checked(BAD)[0].get())


ERRORS: dict[str, tuple[Any, Callable[[Any], Any]]] = {
    "nan": (checkify.nan_checks, lambda x: jnp.log(x + 50)),
    "division": (checkify.div_checks, lambda x: 1 / (x + 100)),
    "index": (checkify.index_checks, lambda x: x[jnp.asarray(-x.min(), jnp.int32)]),
    "float": (checkify.float_checks, lambda x: lax.fori_loop(0, 2, lambda i, y: jnp.sqrt(y + 50), x).sum()),
}


@pytest.mark.parametrize("lowering", LOWERINGS)
@pytest.mark.parametrize("kind", ERRORS)
def test_checks_of_jax_find_what_they_find_in_a_jitted_function(kind: str, lowering: str, mesh: Mesh) -> None:
    errors, fun = ERRORS[kind]
    step = sp.auto_shard(fun, mesh=mesh, in_shardings=P("data"), lowering=lowering)
    for x in (X, BAD):
        error, got = checkify.checkify(step, errors=errors)(x)
        expected, want = checkify.checkify(jax.jit(fun), errors=errors)(x)
        assert (error.get() is None) is (x is X) is (expected.get() is None)
        same(got, want)


@pytest.mark.parametrize("lowering", LOWERINGS)
def test_checks_that_nothing_collects_are_an_error(lowering: str, mesh: Mesh) -> None:
    with pytest.raises(ValueError, match="checkify"):
        sp.auto_shard(low, mesh=mesh, in_shardings=P("data"), lowering=lowering)(X)


# Taylor polynomials and sparse arrays.


@pytest.mark.parametrize("lowering", LOWERINGS)
def test_taylor_polynomials(lowering: str, mesh: Mesh) -> None:
    def plain(x: Any, w: Any) -> Any:
        x = jnp.tanh(jnp.sin(x @ w))
        return {"out": jnp.exp(x).sum(0), "x": x}

    step = sp.auto_shard(plain, mesh=mesh, in_shardings=(P("data"), None), lowering=lowering)
    args = (X, W), ([X * 0.1, X * 0.2], [W * 0.3, W])
    same(jet.jet(step, *args), jet.jet(plain, *args))
    same(jax.jit(lambda *args: jet.jet(step, *args))(*args), jet.jet(plain, *args))


@pytest.mark.parametrize("lowering", LOWERINGS)
def test_taylor_polynomials_of_annotated_functions(lowering: str, mesh: Mesh) -> None:
    ruled = sp.sharding_rule("i j -> i j")(jnp.tanh)

    def annotated(x: Any) -> Any:
        y = sp.with_sharding_constraint(jnp.sin(x), P(None, "model"))
        y = sp.propagation_barrier(y, "forward")
        a, b = sp.sharding_group(y, jnp.cos(x))
        return ruled(a * b)

    step = sp.auto_shard(annotated, mesh=mesh, in_shardings=P("data"), lowering=lowering)
    args = (X,), ([X * 0.1, X * 0.2],)
    same(jet.jet(step, *args), jet.jet(lambda x: jnp.tanh(jnp.sin(x) * jnp.cos(x)), *args))


SPARSE: dict[str, Callable[[Any, Any], Any]] = {
    "dense result": lambda m, w: m @ w + 1,
    "sparse result": lambda m, w: (m * 2, w * 2),
    "several": lambda m, w: {"a": (m @ w).sum(), "b": -m},
}


@pytest.mark.parametrize("format_", [sparse.BCOO, sparse.BCSR])
@pytest.mark.parametrize("fun", SPARSE)
def test_sparse_arrays(fun: str, format_: Any, mesh: Mesh) -> None:
    """Of which nothing is cut: JAX takes a sharding of a jitted function's argument for one of the arrays that a sparse one is made of."""
    matrix = format_.fromdense(X * (X > 0.5))

    def dense(result: Any) -> Any:
        return jax.tree.map(lambda x: x.todense() if hasattr(x, "todense") else x, result, is_leaf=lambda x: hasattr(x, "todense"))

    try:
        want = sparse.sparsify(jax.jit(SPARSE[fun]))(matrix, W)
    except NotImplementedError:
        pytest.skip("JAX has no rule for this op of this format")
    for lowering in LOWERINGS:
        step = sp.auto_shard(SPARSE[fun], mesh=mesh, lowering=lowering)
        same(dense(sparse.sparsify(step)(matrix, W)), dense(want))
        same(step(matrix.todense(), W), SPARSE[fun](matrix.todense(), W))


# Export, ahead of time.


def update(params: dict[str, Any], x: Any, count: int = 2, *, scale: Any = 1.0) -> tuple[dict[str, Any], Any]:
    loss, grads = jax.value_and_grad(lambda p: ((x @ p["w"] + p["b"]) ** 2).mean())(params)
    return {"w": params["w"] - grads["w"] * scale, "b": params["b"] - grads["b"] * count}, loss


PARAMS = {"b": np.ones(4, "float32"), "w": W}
CALLS: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {
    "positional": ((PARAMS, X), {}),
    "by keyword": ((), {"x": X, "params": PARAMS}),
    "some by keyword": ((PARAMS,), {"scale": 0.5, "x": X}),
    "static": ((PARAMS, X, 3), {"scale": np.float32(2)}),
    "static by keyword": ((PARAMS,), {"count": 3, "x": X}),
}


def decorated(mesh: Any, lowering: str, **given: Any) -> Any:
    return sp.auto_shard(update, mesh=mesh, rules={"x": P("data"), "params/w": P(None, "model")}, lowering=lowering, **given)


@pytest.mark.parametrize(("donated", "lowering"), [(False, "jit"), (True, "shard_map")])
@pytest.mark.parametrize("call", CALLS)
def test_ahead_of_time_takes_arguments_as_jit_does(call: str, donated: bool, lowering: str, mesh: Mesh) -> None:
    args, kwargs = CALLS[call]
    names = {"static_argnames": "count", "donate_argnames": "params" if donated else ()}
    step, plain = decorated(mesh, lowering, **names), jax.jit(update, static_argnames="count")
    lowered, expected = step.lower(*args, **kwargs), plain.lower(*args, **kwargs)
    assert lowered.in_tree == expected.in_tree
    assert lowered.out_tree == expected.out_tree
    assert jax.tree.structure(lowered.args_info) == jax.tree.structure(expected.args_info)
    dynamic = tuple(a for a in args if not isinstance(a, int)), {k: v for k, v in kwargs.items() if k != "count"}
    want = update(*args, **kwargs)
    compiled = lowered.compile()
    same(compiled(*dynamic[0], **dynamic[1]), want)
    with pytest.raises(TypeError, match="compiled for"):
        compiled(X)


@pytest.mark.parametrize(("donated", "lowering"), [(False, "jit"), (True, "shard_map")])
@pytest.mark.parametrize("call", CALLS)
def test_export(call: str, donated: bool, lowering: str, mesh: Mesh) -> None:
    args, kwargs = CALLS[call]
    step = decorated(mesh, lowering, static_argnames="count", donate_argnames="params" if donated else ())
    exported = export.export(step)(*args, **kwargs)
    assert exported.nr_devices == 8
    dynamic = tuple(a for a in args if not isinstance(a, int)), {k: v for k, v in kwargs.items() if k != "count"}
    shardings = jax.tree.unflatten(exported.in_tree, exported.in_shardings_jax(mesh))
    placed = jax.tree.map(lambda x, s: jax.device_put(x, NamedSharding(mesh, P()) if s is None else s), dynamic, shardings)
    same(exported.call(*placed[0], **placed[1]), update(*args, **kwargs))


@pytest.mark.parametrize("lowering", LOWERINGS)
def test_export_for_other_platforms_and_derivatives(lowering: str, mesh: Mesh) -> None:
    step = sp.auto_shard(lambda w, x: jnp.tanh(x @ w).sum(), mesh=mesh, in_shardings=(None, P("data")), lowering=lowering)
    assert export.export(step, platforms=("cuda", "tpu"))(W, X).platforms == ("cuda", "tpu")
    exported = export.export(step)(W, X)
    placed = jax.device_put(W, NamedSharding(mesh, P())), jax.device_put(X, NamedSharding(mesh, P("data")))
    same(jax.jit(jax.grad(exported.call, argnums=(0, 1)))(*placed), jax.grad(lambda w, x: jnp.tanh(x @ w).sum(), argnums=(0, 1))(W, X))


# Numbers that are none.


def constrained(x: Any) -> Any:
    return sp.with_sharding_constraint(jnp.log(x), P(None, "model")).sum()


NANS: dict[str, tuple[Callable[[Any], Any], str]] = {
    "an op": (lambda x: jnp.log(x).sum(0), "log"),
    "beside a constraint": (constrained, "log"),
    "in a loop": (lambda x: lax.fori_loop(0, 2, lambda i, c: jnp.log(c), x), "while|scan|log"),
    "in a call": (lambda x: jax.jit(jnp.sqrt)(x), "sqrt"),
    "in a derivative": (jax.grad(lambda x: jnp.sqrt(x).sum()), "div|mul|sqrt"),
    "result of an infinity": (lambda x: (x - 3) / 0.0 * 0.0, "mul"),
}


@pytest.mark.parametrize(("kind", "lowering"), [(AxisType.Auto, "shard_map"), (AxisType.Explicit, "jit")], ids=["auto", "explicit"])
@pytest.mark.parametrize("program", NANS)
def test_the_op_that_made_a_nan_is_named(program: str, kind: AxisType, lowering: str) -> None:
    fun, op = NANS[program]
    mesh = jax.make_mesh((4, 2), ("data", "model"), axis_types=(kind,) * 2)
    good, bad = np.full((16, 8), 30, "float32"), np.full((16, 8), -3, "float32")
    step = sp.auto_shard(fun, mesh=mesh, in_shardings=P("data"), lowering=lowering)
    with jax.debug_nans(True):
        if program != "result of an infinity":
            for x in (good, jnp.asarray(good), jax.device_put(good, NamedSharding(mesh, P("data")))):
                step(x)
        for x in (bad, jnp.asarray(bad), jax.device_put(bad, NamedSharding(mesh, P("data")))):
            with pytest.raises(FloatingPointError, match=op):
                step(x)
    assert np.isnan(np.asarray(step(bad))).any()


@pytest.mark.parametrize("lowering", LOWERINGS)
@pytest.mark.parametrize("outer", ["jit", "grad", "vmap", "static and keyword", "donated"])
def test_nans_under_transformations(outer: str, lowering: str, mesh: Mesh) -> None:
    def fun(x: Any, power: int = 2, *, shift: Any = 0.0) -> Any:
        return jnp.log(x + shift).sum() ** power

    donated = "x" if outer == "donated" else ()
    step = sp.auto_shard(fun, mesh=mesh, rules={"x": P("data")}, lowering=lowering, static_argnames="power", donate_argnames=donated)
    calls: dict[str, Callable[[Any], Any]] = {
        "jit": jax.jit(step),
        "grad": jax.grad(step),
        "vmap": lambda x: jax.vmap(step)(np.stack([x, x])),
        "static and keyword": lambda x: step(x, 3, shift=np.float32(0)),
        "donated": lambda x: step(jnp.asarray(x)),
    }
    with jax.debug_nans(True):
        calls[outer](np.full((16, 8), 3, "float32"))
        with pytest.raises(FloatingPointError, match=r"log|div|pow|mul"):
            calls[outer](np.full((16, 8), -3, "float32"))


@pytest.mark.parametrize("lowering", LOWERINGS)
def test_infinities_are_looked_for_too(lowering: str, mesh: Mesh) -> None:
    step = sp.auto_shard(lambda x: (1 / x).sum(), mesh=mesh, in_shardings=P("data"), lowering=lowering)
    with jax.debug_infs(True):
        step(np.ones((16, 8), "float32"))
        with pytest.raises(FloatingPointError, match="div"):
            step(np.zeros((16, 8), "float32"))


# Tangents and cotangents.


@pytest.mark.parametrize("lowering", LOWERINGS)
def test_tangents_and_cotangents_may_lie_anywhere_on_the_mesh(lowering: Any, mesh: Mesh) -> None:
    """What is multiplied with a result, and a direction of derivation, may be committed otherwise than the plan has the values."""

    def layer(x: Any, w: Any) -> Any:
        return jnp.tanh(x @ w), x.sum()

    step = sp.auto_shard(layer, mesh=mesh, in_shardings=(P("data"), P(None, "model")), lowering=lowering)
    weight, label, direction = (
        jax.device_put(a, NamedSharding(mesh, spec)) for a, spec in ((W, P(None, "model")), (X[:, :4], P("model")), (W, P()))
    )

    def loss(step: Any, w: Any) -> Any:
        return (step(X, w)[0] * label).sum()

    for w in (W, weight):
        same(jax.grad(functools.partial(loss, step))(w), jax.grad(functools.partial(loss, layer))(W))
    products = [jax.jvp(jax.grad(functools.partial(loss, fun)), (w,), (direction,)) for fun, w in ((step, weight), (layer, W))]
    same(*products)
    mapped = [jax.vmap(jax.grad(functools.partial(loss, fun)))(jnp.stack([W, -W])) for fun in (step, layer)]
    same(*mapped)
    with jax.set_mesh(mesh):  # under which jax.numpy.ones, where cotangents begin, lies whole on every device
        same(jax.grad(lambda w: step(X, w)[0].sum())(weight), jax.grad(lambda w: layer(X, w)[0].sum())(W))
