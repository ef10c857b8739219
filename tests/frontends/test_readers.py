"""Equations that hold other jaxprs or speak of shardings, against JAX's own lowering."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.custom_partitioning import custom_partitioning
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from shardy_py.frontends.readers import READERS, TABLES
from tests.frontends.lowering import difference, imported, lowered

ITS_VERSION = jax.__version_info__[:3] == (0, 10, 2)
CHANGED = frozenset(("groups",))
"""Cases that jax 0.12 lowers otherwise than 0.10.2, which the readers follow."""

X = jax.ShapeDtypeStruct((8, 16), np.float32)
Y = jax.ShapeDtypeStruct((16, 8), np.float32)
N = jax.ShapeDtypeStruct((), np.int32)
KEY = jax.ShapeDtypeStruct((), jax.random.key(0).dtype)

CASES: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {}


def case(*args: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        CASES[function.__name__] = (function, args)
        return function

    return register


@functools.cache
def mesh() -> jax.sharding.Mesh:
    return jax.make_mesh((2, 4), ("x", "y"), axis_types=(AxisType.Auto,) * 2)


def at(*spec: Any) -> NamedSharding:
    return NamedSharding(mesh(), P(*spec))


@case(X)
def nested_calls(x: Any) -> Any:
    inner = jax.jit(lambda x: jnp.where(x > 0, x, 0))
    outer = jax.jit(lambda x: inner(x) + inner(x * 2))
    return outer(x) + outer(x[:4]).sum() + inner(x)


@case(X)
def calls_with_shardings(x: Any) -> Any:
    return jax.jit(lambda x: (x * 2, x + 1), in_shardings=at("x"), out_shardings=(at("y"), None))(x)


@case(X)
def captured_arrays(x: Any) -> Any:
    row, block = jnp.arange(16.0), np.ones((8, 16), np.float32)
    repeated = np.broadcast_to(np.arange(16.0, dtype=np.float32), (8, 16))
    inner = jax.jit(lambda x: x * row + block)
    return x * row + block + repeated, inner(x), inner(x * 2), lax.scan(lambda c, y: (c + row, y * row), row, x)


@case(X)
def results_that_are_literals_or_arguments(x: Any) -> Any:
    return 1.0, x, x, jnp.zeros((3,)), 2


@case(X)
def unused_results(x: Any) -> Any:
    first, _, _ = jnp.split(x, [3, 9], axis=1)
    jnp.sin(x)
    return first


@case(X)
def checkpoints(x: Any) -> Any:
    block = jax.checkpoint(lambda x: jnp.sin(jnp.cos(x) @ x.T))
    saving = jax.checkpoint(lambda x: jnp.sin(x @ x.T), policy=jax.checkpoint_policies.dots_saveable)
    merging = jax.checkpoint(jnp.sin, prevent_cse=False)
    return block(x), jax.grad(lambda x: block(x).sum() + saving(saving(x) @ x).sum() + merging(x).sum())(x)


@case(X)
def custom_derivatives(x: Any) -> Any:
    @jax.custom_jvp
    def f(x: Any) -> Any:
        return jnp.sin(x) * jnp.arange(16.0)

    f.defjvps(lambda t, ans, x: t * jnp.cos(x))

    @jax.custom_vjp
    def g(x: Any) -> Any:
        return x * np.arange(16, dtype=np.float32)

    g.defvjp(lambda x: (g(x), x), lambda r, t: (t * r,))
    return f(x), g(x), jax.grad(lambda x: f(x).sum() + g(x).sum())(x)


def _scaled(x: Any, out: Any) -> None:
    out[...] = jnp.sin(x[...]) * 3


@case(X)
def interpreted_kernels(x: Any) -> Any:
    whole = pl.pallas_call(_scaled, out_shape=x, interpret=True)
    rows = pl.BlockSpec((2, 16), lambda i: (i, 0))
    by_rows = pl.pallas_call(_scaled, out_shape=x, grid=(4,), in_specs=[rows], out_specs=rows, interpret=True)
    return whole(x) + 1, by_rows(x)


@case(X)
def custom_batching(x: Any) -> Any:
    @jax.custom_batching.custom_vmap
    def f(x: Any) -> Any:
        return jnp.sin(x)

    f.def_vmap(lambda n, batched, x: (f(x), True))
    return f(x), jax.vmap(f)(x)


@case(X)
def linear_solves(x: Any) -> Any:
    m = x @ x.T
    solved = lax.custom_linear_solve(lambda v: m @ v, x[:, 0], lambda matvec, b: b * 2)
    return solved, jax.scipy.sparse.linalg.cg(lambda v: m @ v, x[:, 0], maxiter=3)[0]


@case(X)
def linear_functions(x: Any) -> Any:
    return jax.linearize(jnp.tanh, x)[1](x), jax.jvp(jax.jit(jnp.sin), (x,), (x,))


@case(X, N)
def loops(x: Any, n: Any) -> Any:
    counted = lax.fori_loop(0, n, lambda i, c: c * i, x), lax.fori_loop(0, 3, lambda i, c: c + i, x)
    return counted, lax.while_loop(lambda c: c[1].sum() < x.sum(), lambda c: (c[0] + 1, c[1] * x), (0, x))


@case(X)
def loops_with_batched_predicates(x: Any) -> Any:
    return jax.vmap(lambda x: lax.while_loop(lambda c: c[0] < x[0], lambda c: (c[0] + 1.0, c[1] * x), (0.0, x)))(x)


@case(X)
def scans(x: Any) -> Any:
    def body(c: Any, y: Any) -> Any:
        return c * y.sum() + x[0], y * c[0]

    unrolled = [lax.scan(body, jnp.zeros(16), x, unroll=u, reverse=r) for u in (1, 2, 3, True) for r in (False, True)]
    gradient = jax.grad(lambda x: lax.scan(body, x[0], x)[0].sum())(x)
    return unrolled, gradient, lax.scan(lambda c, _: (c * 2, None), x, length=3), lax.map(jnp.sin, x)


@case(X, N)
def branches(x: Any, n: Any) -> Any:
    two = lax.cond(n > 0, lambda x: x @ x.T, lambda x: x @ x.T * 2, x)
    three = lax.switch(n, [lambda x: x, lambda x: x * 2, jnp.sin], x)
    return two, three, jax.grad(lambda x: lax.cond(n > 0, jnp.sin, jnp.cos, x).sum())(x)


@case(X)
def branches_by_platform(x: Any) -> Any:
    return lax.platform_dependent(x, cpu=jnp.sin, default=jnp.cos)


@case(X)
def references(x: Any) -> Any:
    ref = jax.new_ref(x)
    ref[...] = ref[...] * 2

    def body(i: Any, _: Any) -> None:
        ref[i] = ref[i] * i

    lax.fori_loop(0, 3, body, None)
    return ref[...] + 1


@case(X)
def constraints(x: Any) -> Any:
    x = lax.with_sharding_constraint(x, at(P.UNCONSTRAINED, "y"))
    return lax.with_sharding_constraint(x * 2, at(("x", "y"))), lax.optimization_barrier((x, x * 3)), jax.device_put(x, at("x"))


@case(X, X)
def groups(x: Any, y: Any) -> Any:
    # Later versions of JAX have no such module.
    return importlib.import_module("jax.experimental.shard_alike").shard_alike(x, y)


@case(KEY, X)
def keys(key: Any, x: Any) -> Any:
    one, two = jax.random.split(key)
    chosen = lax.cond(x[0, 0] > 0, lambda: one, lambda: two)
    return one, jax.random.fold_in(two, 3), jax.random.normal(key, (4, 8)), jax.random.key(7), chosen


@case(X)
def callbacks(x: Any) -> Any:
    y = jax.pure_callback(lambda x: x, jax.ShapeDtypeStruct(x.shape, x.dtype), x)
    jax.debug.print("x {}", x.sum())
    jax.debug.callback(lambda x: None, y)
    return y, jax.experimental.io_callback(lambda x: x, jax.ShapeDtypeStruct(x.shape, x.dtype), x)


@case(X)
def foreign_calls(x: Any) -> Any:
    return jax.ffi.ffi_call("my_target", (jax.ShapeDtypeStruct(x.shape, x.dtype), jax.ShapeDtypeStruct((3,), np.int32)))(x, k=1)


@case(X)
def composites(x: Any) -> Any:
    return lax.composite(lambda x: jnp.sin(x) * 2, name="my.composite")(x)


@case(X)
def functions_that_jax_traces_to_lower(x: Any) -> Any:
    order = jnp.argmax(x, 1), jnp.argmin(x), jnp.cumsum(x, 0), lax.cumlogsumexp(x, reverse=True), lax.cummax(x)
    return order, jax.scipy.special.betainc(x, x, x), jax.scipy.special.i0e(x), lax.associative_scan(jnp.add, x)


@case(X)
def rules_that_make_their_own_ops(x: Any) -> Any:
    return jnp.linalg.cholesky(x @ x.T), jnp.linalg.qr(x), lax.approx_max_k(x, 2)


@case(X, Y)
def manual_regions(x: Any, y: Any) -> Any:
    def body(x: Any, y: Any) -> Any:
        return lax.psum(jnp.sin(x @ y), "y") * lax.axis_index("x")

    return jax.shard_map(body, mesh=mesh(), in_specs=(P("x", "y"), P("y")), out_specs=P("x"), check_vma=False)(x, y)


@case(X, Y)
def gradients_of_manual_regions(x: Any, y: Any) -> Any:
    mapped = jax.shard_map(lambda x, y: lax.psum(jnp.sin(x @ y), "y"), mesh=mesh(), in_specs=(P("x", "y"), P("y")), out_specs=P("x"))
    return jax.grad(lambda x, y: mapped(x, y).sum(), argnums=(0, 1))(x, y)


@case(X, Y)
def partly_manual_regions(x: Any, y: Any) -> Any:
    def body(x: Any, y: Any) -> Any:
        z = jax.nn.relu(jnp.sin(x @ y)) ** 3 + 1.0
        return lax.psum(z, "y") * lax.axis_index("y"), lax.all_gather(jax.nn.sigmoid(z), "y"), z > 0, jnp.sum(z, 0) ** 2

    specs = P(), P(None, "y"), P("y"), P("y")
    return jax.shard_map(body, mesh=mesh(), in_specs=(P(None, "y"), P("y")), out_specs=specs, axis_names={"y"}, check_vma=False)(x, y)


@case(X)
def nested_manual_regions(x: Any) -> Any:
    def inner(x: Any) -> Any:
        return lax.psum(x * 2, "x")

    def outer(x: Any) -> Any:
        return jax.shard_map(inner, in_specs=P("x"), out_specs=P(), axis_names={"x"})(x)

    return jax.shard_map(outer, mesh=mesh(), in_specs=P(None, "y"), out_specs=P(None, "y"), axis_names={"y"})(x)


@case(X)
def loops_in_manual_regions(x: Any) -> Any:
    def body(x: Any) -> Any:
        return lax.scan(lambda c, y: (c + lax.psum(y, "y"), y * 2), jnp.zeros(x.shape[1:]), x)

    return jax.shard_map(body, mesh=mesh(), in_specs=P(None, "y"), out_specs=(P(), P(None, "y")), check_vma=False)(x)


@pytest.mark.parametrize("name", CASES)
def test_a_reader_gives_what_jax_lowers(name: str) -> None:
    if name in CHANGED and not ITS_VERSION:
        pytest.skip("a difference of docs/differences.md: lowerings of 0.12")
    function, args = CASES[name]
    assert difference(imported(function, args).program, lowered(function, args)) == ""


def test_custom_partitioning_brings_its_rule() -> None:
    double, total = custom_partitioning(lambda x: x * 2), custom_partitioning(lambda x: x.sum(1))
    double.def_partition(partition=None, infer_sharding_from_operands=None, sharding_rule="i j -> i j")
    total.def_partition(partition=None, infer_sharding_from_operands=None, sharding_rule=lambda mesh, operands, results: "i j -> i")

    def function(x: Any) -> Any:
        return double(x), total(x)

    got, want = imported(function, (X,)).program, lowered(function, (X,), at())
    got.main.arguments[0].sharding = want.main.arguments[0].sharding
    assert difference(got, want) == ""
    rules = [str(op.rule) for op in got.walk() if op.rule is not None]
    assert rules == [str(op.rule) for op in want.walk() if op.rule is not None]
    assert "custom" in rules[0]


def test_custom_partitioning_without_a_rule_is_a_finding() -> None:
    f = custom_partitioning(lambda x: x * 2)
    f.def_partition(partition=None, infer_sharding_from_operands=None)
    (finding,) = imported(f, (X,)).findings
    assert (finding.kind, "sharding_rule" in finding.message) == ("no-rule", True)


def test_no_primitive_has_two_readers() -> None:
    names = [name for table in TABLES for name in table]
    assert sorted(names) == sorted(READERS)
