"""Programs as JAX's pages on explicit sharding teach them, on meshes as `jax.make_mesh` makes them: results are those of `jax.jit`."""

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
    return lax.while_loop(
        lambda c: c[0] < 3, lambda c: (c[0] + 1, jax.jit(lambda b: jax.reshard(b + 1, P("y", "x")))(c[1])), (0, jax.reshard(a, P("y", "x")))
    )[1]


def accumulated(w: Any, a: Any) -> Any:
    def part(i: Any, total: Any) -> Any:
        return total + jnp.dot(jax.reshard(a, P("x", None)) * i, w, out_sharding=P("x", "y"))

    return lax.fori_loop(0, 4, part, a)


def automatic(a: Any) -> Any:
    return jax.sharding.auto_axes(lambda a: lax.sort(a @ a.T), out_sharding=P("y", "x"))(a)


@jax.sharding.auto_axes
def automatic_by_keyword(a: Any) -> Any:
    return a[::-1] @ a.T


@jax.sharding.auto_axes(axes="y", out_sharding=P("x", None))
def automatic_over_y(a: Any) -> Any:
    return a * 3


A, W, V = ("x", "y"), (None, "y"), (None, None)
NEXT = [(i, (i + 1) % 4) for i in range(4)]


def ring(k: Any) -> Any:
    total = k
    for _ in range(3):
        k = lax.ppermute(k, "y", NEXT)
        total = total + k
    return total


def ring_attention(q: Any, k: Any) -> Any:
    total = lax.pcast(jnp.zeros(q.shape[:1]), ("y",), to="varying")
    for _ in range(4):
        total, k = total + jnp.exp(q @ k.T).sum(axis=1), lax.ppermute(k, "y", NEXT)
    return total


def rotating(a: Any) -> Any:
    last, sums = lax.scan(lambda c, _: (lax.ppermute(c, "y", NEXT), c.sum()), a, None, length=4)
    return last, sums[None, None]


def averaged_gradients(w: Any, a: Any) -> Any:
    value, gradient = jax.value_and_grad(lambda w: jnp.mean((a @ w) ** 2))(w)
    return w - 0.1 * lax.pmean(gradient, "x"), lax.pmean(value, "x")


def gathered_weights(w: Any, a: Any) -> Any:
    return lax.pmean(jnp.mean((a @ lax.all_gather(w, "x", tiled=True)) ** 2), "x")


def put_elsewhere(a: Any) -> Any:
    there = jax.device_put(a, NamedSharding(mesh(), P("y", "x")))
    return jax.device_put(jnp.sin(there), NamedSharding(mesh(), P("x", "y")))


def dense(a: Any, w: Any) -> Any:
    return jax.grad(lambda w: jnp.mean(jax.nn.relu(a @ w) ** 2))(w)


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
    "product in a shard_map": (mapped(lambda a, b: lax.psum(a @ b, "y"), (P("x", "y"), P("y", None)), P("x", None)), (A, ("y", None))),
    "outer product in a shard_map": (mapped(lambda a, b: a @ b, (P("x", None), P(None, "y")), P("x", "y")), (("x", None), W)),
    "all_to_all": (mapped(lambda a: lax.all_to_all(a, "y", 1, 0, tiled=True), P("y", None), P(None, "y")), (("y", None),)),
    "psum_scatter": (mapped(lambda a: lax.psum_scatter(a, "y", tiled=True), P("x", None), P(("x", "y"), None)), (("x", None),)),
    "axis_index": (mapped(lambda a: a + lax.axis_index("x") * 10 + lax.axis_index("y"), P("x", "y"), P("x", "y")), (A,)),
    "pmax": (mapped(lambda a: lax.pmax(jnp.max(a), ("x", "y")), P("x", "y"), P()), (A,)),
    "ring": (mapped(ring, P(None, "y"), P(None, "y")), (W,)),
    "ring attention": (mapped(ring_attention, (P("y"), P("y")), P("y")), (("y", None), ("y", None))),
    "scan in a shard_map": (mapped(rotating, P("x", "y"), (P("x", "y"), P("x", "y"))), (A,)),
    "averaged gradients": (mapped(averaged_gradients, (P(), P("x")), (P(), P())), (V, ("x", None))),
    "gradient of a shard_map": (jax.grad(mapped(gathered_weights, (P("x"), P("x")), P())), (("x", None), ("x", None))),
    "jit in a shard_map": (mapped(jax.jit(lambda a: jnp.sin(a) * 2), P("x", "y"), P("x", "y")), (A,)),
    "device_put": (put_elsewhere, (A,)),
    "dropout": (lambda a: a * jax.random.bernoulli(jax.random.key(1), 0.5, a.shape, out_sharding=jax.typeof(a).sharding), (A,)),
    "dense": (dense, (("x", None), V)),
    "transposed": (lambda a: jnp.where(a > 0, a, 0.0).T.sum(axis=0), (A,)),
    "running sum": (lambda a: jnp.cumsum(a, axis=1), (("x", None),)),
    "heads": (lambda a: a.reshape(16, 4, 4).transpose(1, 0, 2), (("x", None),)),
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
    "accumulation": (accumulated, (W, A)),
}  # fmt: skip


def arguments(specs: tuple[Any, ...], on: jax.sharding.Mesh) -> list[Any]:
    shapes = [(16, 16) if len(spec) == 2 else (3, 16, 16) for spec in specs]
    draws = [np.random.default_rng(i).standard_normal(shape).astype(np.float32) for i, shape in enumerate(shapes)]
    return [jax.device_put(draw, NamedSharding(on, P(*spec))) for draw, spec in zip(draws, specs)]


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs(name: str) -> None:
    function, specs = PROGRAMS[name]
    with jax.set_mesh(mesh()):
        args = arguments(specs, mesh())
        expected = jax.tree.leaves(jax.jit(function)(*args))
        for lowering in ("jit", "shard_map") if [*PROGRAMS].index(name) % 3 == 0 else ("shard_map",):
            results = jax.tree.leaves(sp.auto_shard(function, lowering=lowering)(*args))
            for result, each in zip(results, expected, strict=True):
                np.testing.assert_allclose(np.asarray(result), np.asarray(each), rtol=1e-5, atol=1e-5, err_msg=lowering)
                assert jax.typeof(result) == jax.typeof(each), lowering
                assert result.sharding.is_equivalent_to(each.sharding, each.ndim), lowering


def stated_and_constrained(a: Any, w: Any) -> Any:
    h = jnp.einsum("ij,jk->ik", a, w, out_sharding=P("x", None))
    h = lax.with_sharding_constraint(h, P(None, "y"))
    return jax.reshard(jnp.tanh(h), P(None, None)), jax.reshard(h, P("x", None))


def gradient_on_both(a: Any, w: Any) -> Any:
    def loss(w: Any) -> Any:
        return jnp.sum(jnp.dot(a, w, out_sharding=P("x", None)) ** 2)

    return jax.grad(loss)(w)


@pytest.mark.parametrize("lowering", ["jit", "shard_map"])
@pytest.mark.parametrize("function", [stated_and_constrained, gradient_on_both, lambda a, w: a @ w])
def test_one_axis_is_automatic(function: Callable[..., Any], lowering: str) -> None:
    on = mesh((EXPLICIT, AUTO))
    with jax.set_mesh(on):
        args = arguments((("x", None), V), on)
        expected = jax.tree.leaves(jax.jit(function)(*args))
        results = jax.tree.leaves(sp.auto_shard(function, lowering=lowering)(*args))
    for result, each in zip(results, expected, strict=True):
        np.testing.assert_allclose(np.asarray(result), np.asarray(each), rtol=1e-5, atol=1e-5)
        assert jax.typeof(result) == jax.typeof(each)


@pytest.mark.parametrize("transform", [lambda f: jax.grad(lambda *args: f(*args).sum()), lambda f: jax.jit(lambda *args: f(*args) * 2)])
def test_transformed_outside(transform: Callable[..., Any]) -> None:
    args = arguments((W, ("y", None), ("x", None)), mesh())
    with jax.set_mesh(mesh()):
        result = transform(sp.auto_shard(megatron))(*args)
        expected = transform(megatron)(*args)
    np.testing.assert_allclose(np.asarray(result), np.asarray(expected), rtol=1e-5, atol=1e-5)


def rescaled(a: Any, w: Any, table: Any) -> Any:
    """A product whose backward function states shardings, has a residual that is an argument, and gives no cotangent for one argument."""

    @jax.custom_vjp
    def product(a: Any, w: Any, count: Any) -> tuple[Any, Any]:
        result = jnp.einsum("ij,jk->ik", a, w, out_sharding=P("x", None))
        return result, jnp.argmax(result, axis=1)

    def backward(residuals: Any, cotangents: Any) -> Any:
        a, w = residuals
        of_a = jnp.einsum("ik,jk->ij", cotangents[0], w, out_sharding=P("x", "y"))
        return of_a * table, jnp.einsum("ij,ik->jk", a, cotangents[0], out_sharding=P("y", None)), None

    product.defvjp(lambda a, w, count: (product(a, w, count), (a * 1, w)), backward)
    return lax.scan(lambda a, _: (jax.reshard(product(a, w, 3)[0], P("x", "y")), None), a, None, length=2)[0]


@pytest.mark.parametrize("lowering", ["jit", "shard_map"])
def test_backward_function_that_states_shardings_outside(lowering: str) -> None:
    with jax.set_mesh(mesh()):
        a, w, table = arguments((A, ("y", None), A), mesh())
        gradients = jax.jit(jax.grad(lambda a, w: (rescaled(a, w, table) ** 2).sum(), argnums=(0, 1)))(a, w)
        planned = sp.auto_shard(lambda a, w: (rescaled(a, w, table) ** 2).sum(), lowering=lowering)
        results = jax.grad(planned, argnums=(0, 1))(a, w)
    for result, expected in zip(results, gradients, strict=True):
        np.testing.assert_allclose(np.asarray(result), np.asarray(expected), rtol=1e-4, atol=1e-4)
        assert jax.typeof(result) == jax.typeof(expected)


def test_arguments_without_a_sharding_are_whole() -> None:
    args = [np.ones((16, 16), np.float32)] * 3
    plan = sp.auto_shard(megatron, mesh=mesh()).plan(*args)
    assert [str(value) for value in (*plan.inputs, *plan.outputs)] == [
        *(f"{name}: float32[16,16]" for name in ("up", "down", "a")),
        "result: float32[16@x,16]",
    ]


def test_the_explanation_names_the_type() -> None:
    plan = sp.auto_shard(megatron, mesh=mesh()).plan(*arguments((W, ("y", None), ("x", None)), mesh()))
    text = str(plan.explain("result"))
    assert "'x' on dimension 0: the type of result" in text
    assert "the sharding in the type of what dot_general makes at" in " ".join(text.split())


def test_the_planner_keeps_what_types_state() -> None:
    step = sp.auto_shard(megatron, mesh=mesh(), planner=sp.Planner(hardware="v5e"))
    plan = step.plan(*arguments((W, ("y", None), ("x", None)), mesh()))
    assert str(plan.outputs[0]) == "result: float32[16@x,16]"


def test_plain_code_is_propagated_as_on_any_mesh() -> None:
    args = [jax.ShapeDtypeStruct((16, 16), jnp.float32)] * 2
    plans = [sp.auto_shard(jnp.dot, mesh=mesh(types), in_shardings=(P("x"), None)).plan(*args) for types in ((EXPLICIT,) * 2, (AUTO,) * 2)]
    assert plans[0].as_text() == plans[1].as_text()


def test_axis_types_are_chosen() -> None:
    args = [jax.ShapeDtypeStruct((16, 16), jnp.float32)] * 2
    planned = {}
    for choice in ("auto", "explicit"):
        step = sp.auto_shard(lambda a, w: a.T + w, mesh=mesh(), in_shardings=(P("x"), None), options=sp.Options(axis_types=choice))
        planned[choice] = str(step.plan(*args).inputs[1])
    assert planned == {"auto": "w: float32[16,16@x]", "explicit": "w: float32[16,16]"}


def test_results_that_are_yet_to_be_summed_are_refused() -> None:
    def product(a: Any, b: Any) -> Any:
        return jnp.einsum("ij,jk->ik", a, b, out_sharding=P(None, None, unreduced={"y"}))

    with pytest.raises(sp.ShardyError, match=r"the result is yet to be summed over 'y'\n  where: result.*product"):
        sp.auto_shard(product, mesh=mesh()).plan(*arguments(((None, "y"), ("y", None)), mesh()))


def test_references_are_refused() -> None:
    def add(ref: Any, a: Any) -> None:
        ref[...] += a

    with pytest.raises(sp.ShardyError, match=r"ref is a Ref, not an array\n.*argument of .*add"):
        sp.auto_shard(add, mesh=mesh())(jax.new_ref(jnp.ones(8)), jnp.ones(8))


def test_the_first_error_is_raised() -> None:
    """Code that runs neither on Explicit nor on Auto axes."""
    with pytest.raises(ValueError, match=r"axis: z of .* is not found in mesh"):
        sp.auto_shard(lambda a, w: jnp.dot(a, w, out_sharding=P("z")), mesh=mesh()).plan(*arguments((V, V), mesh()))
