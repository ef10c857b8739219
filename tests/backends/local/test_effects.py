"""Callbacks, calls of kernels, references and memory spaces inside a region."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest
from jax import numpy as jnp
from jax.experimental import io_callback
from jax.experimental import pallas as pl
from jax.experimental.custom_partitioning import custom_partitioning
from jax.experimental.pallas import fuser
from jax.sharding import NamedSharding, PartitionSpec

import shardy_py as sp
from shardy_py.backends.compiled_text import collectives_in

P = PartitionSpec
SPEC = P("x", "y")
MESH = {"x": 2, "y": 4}
X = np.arange(64, dtype=np.float32).reshape(8, 8) / 64


def run(fun: Callable[..., Any], *args: Any, specs: Any = SPEC) -> Any:
    """The results in a region, compared with those on one device."""
    step = sp.auto_shard(fun, mesh=MESH, in_shardings=specs, lowering="shard_map")
    got = step(*args)
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(jax.jit(fun)(*args)), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
    return got


def calls_of(step: Callable[..., Any], *args: Any) -> None:
    jax.block_until_ready(step(*args))
    jax.effects_barrier()


def test_debug_callback_is_called_once_with_the_full_values() -> None:
    seen: list[np.ndarray] = []

    def fun(x: Any) -> Any:
        y = x @ x
        jax.debug.callback(lambda v: seen.append(np.asarray(v)), y)
        return y * 2

    step = sp.auto_shard(fun, mesh=MESH, in_shardings=P("x", "y"), lowering="shard_map")
    calls_of(step, X)
    assert len(seen) == 1
    np.testing.assert_allclose(seen[0], X @ X, rtol=1e-5)


def test_debug_print_in_a_loop(capfd: pytest.CaptureFixture[str]) -> None:
    def fun(x: Any) -> Any:
        def body(i: Any, v: Any) -> Any:
            jax.debug.print("trip {i}", i=i)
            return v * 2

        return jax.lax.fori_loop(0, 3, body, x)

    calls_of(sp.auto_shard(fun, mesh=MESH, in_shardings=P("x"), lowering="shard_map"), X)
    assert sorted(capfd.readouterr().out.split("\n")) == ["", "trip 0", "trip 1", "trip 2"]


@pytest.mark.parametrize("ordered", [False, True])
def test_io_callback_is_called_once_and_gives_its_results_to_all(ordered: bool) -> None:
    calls: list[int] = []

    def host(v: Any) -> Any:
        calls.append(1)
        return -np.zeros((8,), np.float32), np.asarray(v).sum() * 1j, np.ones((8, 8), bool)

    def fun(x: Any) -> Any:
        kinds = (jax.ShapeDtypeStruct((8,), "float32"), jax.ShapeDtypeStruct((), "complex64"), jax.ShapeDtypeStruct((8, 8), "bool"))
        zero, total, flags = io_callback(host, kinds, x, ordered=ordered)
        return 1 / zero, total + x[0], flags & (x > 0.5)

    step = sp.auto_shard(fun, mesh=MESH, in_shardings=P("x", "y"), lowering="shard_map")
    inverse, total, flags = jax.block_until_ready(step(X))
    assert len(calls) == 1
    assert (np.asarray(inverse) == -np.inf).all()
    np.testing.assert_allclose(total, X.sum() * 1j + X[0], rtol=1e-5)
    np.testing.assert_array_equal(flags, X > 0.5)


@pytest.mark.parametrize("method", ["sequential", "expand_dims", "broadcast_all"])
def test_pure_callback_under_vmap(method: str) -> None:
    def fun(x: Any) -> Any:
        def one(row: Any) -> Any:
            return jax.pure_callback(lambda r: np.sin(r), jax.ShapeDtypeStruct(row.shape, row.dtype), row * 2, vmap_method=method)

        return jax.vmap(one)(x) + x

    run(fun, X, specs=P("x"))


def test_ruled_call_has_planned_results() -> None:
    @sp.sharding_rule("i k, k j -> i j", reduction="k")
    def matmul(a: Any, b: Any) -> Any:
        return jax.pure_callback(np.matmul, jax.ShapeDtypeStruct((a.shape[0], b.shape[1]), a.dtype), a, b)

    got = run(lambda a, b: matmul(a, b) + 1, X, X, specs=(P("x"), P(None, "y")))
    assert got.sharding.spec == P("x", "y")


def test_custom_partitioning_runs_its_function() -> None:
    @custom_partitioning
    def twice(x: Any) -> Any:
        return x * 2

    twice.def_partition(infer_sharding_from_operands=None, partition=None, sharding_rule="i j -> i j")
    run(lambda x: twice(x) + 1, X)


def test_composite_is_inlined() -> None:
    softplus = jax.lax.composite(lambda x: jnp.log1p(jnp.exp(x)), name="test.softplus")
    run(lambda x: softplus(x).sum(0), X)


def scaled(x: Any, y: Any, **given: Any) -> Any:
    """A kernel that is interpreted, element by element."""

    def kernel(x: Any, y: Any, out: Any) -> None:
        out[...] = x[...] * 3 + y[...]

    return pl.pallas_call(kernel, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype), interpret=True, **given)(x, y)


def in_blocks(shape: tuple[int, int], grid: tuple[int, int]) -> Callable[..., Any]:
    block = pl.BlockSpec(shape, lambda i, j: (i, j))
    return lambda x, y: scaled(x, y, grid=grid, in_specs=[block, block], out_specs=block)


KERNELS: dict[str, Callable[..., Any]] = {
    "one block": scaled,
    "in a row": lambda x, y: scaled(jnp.sin(scaled(x, y)), y),
    "blocks of columns": in_blocks((8, 4), (1, 2)),
    "with a rule": sp.sharding_rule("b d, b d -> b d")(scaled),
    "in a loop": lambda x, y: jax.lax.fori_loop(0, 3, lambda i, c: scaled(c, y), x),
    "mapped": lambda x, y: jax.vmap(scaled, 1, 1)(x, y),
    "differentiated": lambda x, y: jax.jvp(scaled, (x, y), (y, x))[1],
}


@pytest.mark.parametrize("lowering", ["jit", "shard_map"])
@pytest.mark.parametrize("name", KERNELS)
def test_interpreted_kernels_run_on_parts(name: str, lowering: Any) -> None:
    step = sp.auto_shard(KERNELS[name], mesh={"x": 8}, in_shardings=P("x"), lowering=lowering)
    plan = step.plan(X, X + 1)
    assert not collectives_in(step.lower(X, X + 1).compile().as_text())
    if lowering == "shard_map":  # what XLA moves is not a figure of a plan
        assert plan.collectives == ()
    assert plan.output_shardings.spec == P("x")
    np.testing.assert_allclose(step(X, X + 1), jax.jit(KERNELS[name])(X, X + 1), rtol=1e-5)


def test_interpreted_kernels_in_blocks_that_are_cut() -> None:
    run(in_blocks((2, 2), (4, 4)), X, X + 1, specs=(SPEC, P("y")))


def test_what_pallas_may_fuse_runs_whole() -> None:
    @fuser.fusible
    def twice(x: Any, out: Any) -> Any:
        return jnp.sin(x()) * 2 if out is None else out(jnp.sin(x()) * 2)

    run(lambda x: twice(jnp.cos(x)) + 1, X)  # pyright: ignore[reportOperatorIssue]


def test_references_become_values() -> None:
    def fun(x: Any) -> Any:
        ref = jax.new_ref(jnp.zeros_like(x))

        def body(i: Any, _: Any) -> None:
            ref[...] += x * i

        jax.lax.fori_loop(0, 3, lambda i, c: (body(i, c), c)[1], 0)
        return ref[...]

    run(fun, X)


def test_places_that_say_nothing_here() -> None:
    shard_alike = pytest.importorskip("jax.experimental.shard_alike").shard_alike  # not in every version of JAX

    def fun(x: Any) -> Any:
        a, b = shard_alike(x * 2, x + 1)
        return jax.device_put(a) + b

    run(fun, X)


def test_inspect_sharding_shows_the_plan() -> None:
    seen: list[Any] = []

    def fun(x: Any) -> Any:
        y = x * 2
        jax.debug.inspect_array_sharding(y, callback=seen.append)
        return y

    mesh = jax.make_mesh((2, 4), ("x", "y"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
    sp.auto_shard(fun, mesh=mesh, in_shardings=P("x", "y"), lowering="shard_map")(X)
    assert seen == [NamedSharding(mesh, P("x", "y"))]


class Log:
    """Arguments of callbacks, in order."""

    def __init__(self) -> None:
        self.ordered: list[str] = []
        self.others: list[str] = []

    def first(self, name: str, x: Any) -> Any:
        """An ordered callback that doubles."""

        def call(v: Any) -> Any:
            self.ordered.append(f"{name} {float(np.asarray(v).flat[0]):.4g}")
            return np.asarray(v) * 2

        return io_callback(call, jax.ShapeDtypeStruct(x.shape, x.dtype), x, ordered=True)

    def then(self, name: str, x: Any) -> None:
        """An unordered one."""
        jax.debug.callback(lambda v: self.others.append(f"{name} {float(np.asarray(v).flat[0]):.4g}"), x)


def _in_a_row(log: Log, x: Any) -> Any:
    log.then("a", x.sum())
    y = log.first("b", x.sum())
    log.then("c", y)
    return x + log.first("d", y + 1)


def _in_a_loop(log: Log, x: Any) -> Any:
    def body(c: Any, i: Any) -> tuple[Any, Any]:
        log.then("trip", i)
        return c + log.first("step", c.sum()) * 0.1, i

    log.then("before", x.sum())
    x, _ = jax.lax.scan(body, x, jnp.arange(3.0))
    return log.first("after", x)


def _in_a_while_loop(log: Log, x: Any) -> Any:
    def body(c: tuple[Any, Any]) -> tuple[Any, Any]:
        log.then("trip", c[0])
        return c[0] + 1, c[1] + log.first("step", c[1].sum()) * 0.1

    return jax.lax.while_loop(lambda c: c[0] < 2, body, (0, x))[1]


def _in_branches(log: Log, x: Any) -> Any:
    def one(x: Any) -> Any:
        log.then("one", x.sum())
        return x + log.first("first branch", x.sum())

    x = jax.lax.cond(x[0, 0] < 1, one, lambda x: x, x)
    return jax.lax.cond(x[0, 0] < 0, one, lambda x: x + log.first("second branch", x[0, 0]), x)


def _in_calls(log: Log, x: Any) -> Any:
    def one(x: Any) -> Any:
        log.then("inside", x.sum())
        return x + log.first("call", x.sum()) * 0.1

    f = jax.jit(one)
    return jax.checkpoint(one)(f(f(x)))


def _beside_kernels_and_keys(log: Log, x: Any) -> Any:
    def kernel(x: Any, out: Any) -> None:
        out[...] = x[...] * 3

    log.then("before", x.sum())
    x = pl.pallas_call(kernel, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype), interpret=True)(x)
    x = x + jax.random.uniform(jax.random.key(0), x.shape) * log.first("between", x.sum())
    return jax.pure_callback(np.sin, jax.ShapeDtypeStruct(x.shape, x.dtype), x)


@pytest.mark.parametrize("lowering", ["jit", "shard_map"])
@pytest.mark.parametrize("outer", ["called", *(pytest.param(outer, marks=pytest.mark.slow) for outer in ("jitted", "compiled"))])
@pytest.mark.parametrize("program", [_in_a_row, _in_a_loop, _in_a_while_loop, _in_branches, _in_calls, _beside_kernels_and_keys])
def test_ordered_effects_beside_others(program: Callable[[Log, Any], Any], outer: str, lowering: str) -> None:
    def result(decorate: Callable[[Any], Any]) -> tuple[np.ndarray, list[str], list[str]]:
        log = Log()
        step = decorate(lambda x: program(log, x))
        if outer == "jitted":
            step = jax.jit(step)
        out = step.lower(X).compile()(X) if outer == "compiled" else step(X)
        jax.block_until_ready(out)
        jax.effects_barrier()
        return np.asarray(out), log.ordered, sorted(log.others)

    got = result(lambda f: sp.auto_shard(f, mesh=MESH, in_shardings=P("x"), lowering=lowering))
    want = result(jax.jit)
    np.testing.assert_allclose(got[0], want[0], rtol=1e-5)
    assert got[1:] == want[1:]
    assert want[1]
