"""Collectives in front of and behind loops."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest
from jax import lax
from jax import numpy as jnp
from jax.extend.core import Jaxpr
from jax.sharding import AbstractMesh, AxisType, PartitionSpec

import shardy_py as sp
from shardy_py.backends.local.hoist import defer_sums, hoist_collectives, sink_broadcasts
from shardy_py.backends.local.passes import optimize_region
from shardy_py.backends.local.read_collectives import read_collectives
from shardy_py.backends.local.simplify import simplify

P = PartitionSpec
SIZES = {"x": 2, "y": 4}
Pass = Callable[[Jaxpr], Jaxpr]


def changed(local: Callable[..., Any], run: Pass, args: Any, specs: Any) -> tuple[list[str], Any, Any]:
    """Collectives with their trips after a pass, and the results before and after it."""
    mesh = jax.make_mesh((2, 4), ("x", "y"), axis_types=(AxisType.Auto,) * 2)
    region = jax.shard_map(local, mesh=mesh.abstract_mesh, in_specs=specs, out_specs=P(), check_vma=False)
    with jax.sharding.use_abstract_mesh(AbstractMesh((), ())):
        before = jax.make_jaxpr(region)(*args)
    (eqn,) = before.jaxpr.eqns
    body = run(eqn.params["jaxpr"])
    after = before.replace(jaxpr=before.jaxpr.replace(eqns=[eqn.replace(params={**eqn.params, "jaxpr": body})]))
    placed = jax.device_put(args, tuple(jax.NamedSharding(mesh, s) for s in specs))
    results = [jax.jit(lambda *a, j=j: jax.core.eval_jaxpr(j.jaxpr, j.consts, *a))(*placed) for j in (before, after)]
    listed = [f"{c.kind}({','.join(c.axes)}) x{c.trips}" for c in read_collectives(body, SIZES)]
    return listed, *results


def check(local: Callable[..., Any], run: Pass, args: Any, specs: Any) -> list[str]:
    listed, before, after = changed(local, run, args, specs)
    for a, b in zip(before, after, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6)
    return listed


def late(body: Jaxpr) -> Jaxpr:
    return simplify(defer_sums(body, SIZES))


def early(body: Jaxpr) -> Jaxpr:
    return simplify(hoist_collectives(body, SIZES))


W = jnp.arange(64.0).reshape(16, 4) / 64
XS = jnp.arange(5 * 4 * 16.0).reshape(5, 4, 16) / 320


def test_a_literal_that_is_rearranged_in_a_loop() -> None:
    def local(w: Any, xs: Any) -> Any:
        def body(c: Any, x: Any) -> Any:
            bits = lax.bitcast_convert_type(np.float32(1.5), jnp.int32)
            return c + lax.all_gather(w, "x", axis=0, tiled=True)[:1] + bits.astype(jnp.float32) * x[:1, :4], None

        return lax.scan(body, jnp.zeros((1, 4)), xs)[:1]

    assert check(local, early, (W, XS), (P("x"), P())) == ["all_gather(x) x1"]


def test_gather_of_a_constant_moves_out_of_nested_loops() -> None:
    def local(w: Any, xs: Any) -> Any:
        def outer(c: Any, x: Any) -> Any:
            def inner(d: Any, _: Any) -> Any:
                return d + x @ lax.all_gather(w * 2, "y", axis=0, tiled=True), None

            return lax.scan(inner, c, None, length=3)[0], None

        return [lax.scan(outer, jnp.zeros((2, 4)), xs)[0]]

    assert check(local, early, (W, XS), (P("y"), P(None, "x"))) == ["all_gather(y) x1"]


@pytest.mark.parametrize("needed_twice", [False, True])
def test_what_is_gathered_takes_the_place_of_what_only_it_needs(needed_twice: bool) -> None:
    def local(w: Any, xs: Any) -> Any:
        def step(c: Any, x: Any) -> Any:
            y = c + x @ lax.all_gather(w * 2, "y", axis=0, tiled=True)
            return y + jnp.sum(w) if needed_twice else y, None

        return [lax.scan(step, jnp.zeros((2, 4)), xs)[0]]

    given: list[Any] = []

    def run(body: Jaxpr) -> Jaxpr:
        after = hoist_collectives(body, SIZES)
        given.extend(v.aval.shape for eqn in after.eqns if eqn.primitive.name == "scan" for v in eqn.invars)
        return simplify(after)

    assert check(local, run, (W, XS), (P("y"), P(None, "x"))) == ["all_gather(y) x1"]
    assert given == [(16, 4), *([(4, 4)] if needed_twice else []), (2, 4), (5, 2, 16)]


def test_gather_in_a_while_loop_and_its_predicate() -> None:
    def local(w: Any) -> Any:
        def go_on(s: Any) -> Any:
            return s[0] < lax.psum(w[0, 0] * 0 + 1, "y")

        def step(s: Any) -> Any:
            return s[0] + 1, s[1] + lax.all_gather(w, "y", axis=0, tiled=True)

        return [lax.while_loop(go_on, step, (jnp.float32(0), jnp.zeros((16, 4))))[1]]

    assert check(local, early, (W,), (P("y"),)) == ["all_reduce(y) x1", "all_gather(y) x1"]


def test_what_stands_behind_a_barrier_or_is_a_slice_stays() -> None:
    def local(w: Any, xs: Any) -> Any:
        def body(c: Any, x: Any) -> Any:
            full = lax.all_gather(lax.optimization_barrier(w), "y", axis=0, tiled=True)
            return c + lax.all_gather(x, "x", axis=0, tiled=True) @ full, None

        return [lax.scan(body, jnp.zeros((4, 4)), xs)[0]]

    listed = check(local, early, (W, XS), (P("y"), P(None, "x")))
    assert sorted(listed) == ["all_gather(x) x5", "all_gather(y) x5"]


@pytest.mark.parametrize("start", [0.0, 3.0])
def test_sum_of_the_carry_is_taken_once(start: float) -> None:
    def local(xs: Any) -> Any:
        def body(c: Any, x: Any) -> Any:
            return (c[0] + lax.psum(x, "x"), lax.psum(x[:, :8].astype(jnp.bfloat16).astype(jnp.float32), "x") + c[1]), x.sum()

        (a, b), _ = lax.scan(body, (jnp.full((2, 16), start), jnp.full((2, 8), start)), xs)
        return [a, b]

    assert check(local, late, (XS,), (P(None, "x"),)) == ["all_reduce(x) x1"] * 2


def test_sums_in_nested_loops_are_taken_once() -> None:
    def local(xs: Any) -> Any:
        def outer(c: Any, x: Any) -> Any:
            return lax.scan(lambda d, row: (d + lax.psum(row, "x"), None), c, x)[0], None

        return [lax.scan(outer, jnp.ones(16), xs)[0]]

    assert check(local, late, (XS,), (P(None, "x"),)) == ["all_reduce(x) x1"]


def test_stacked_sums_are_added_up_by_the_outer_loop_first() -> None:
    def local(xs: Any) -> Any:
        def outer(c: Any, x: Any) -> Any:
            ys = lax.scan(lambda d, row: (d, lax.psum(row * d, "x")), x.sum(), x)[1]
            return c + ys, None

        return [lax.scan(outer, jnp.ones((2, 16)), xs)[0]]

    assert check(local, late, (XS,), (P(None, "x"),)) == ["all_reduce(x) x1"]


def test_large_stacked_sums_stay_in_an_outermost_loop() -> None:
    def local(xs: Any) -> Any:
        big = jnp.ones((256, 128))
        return [lax.scan(lambda c, x: (c, (lax.psum(x, "x"), lax.psum(big * x[0, 0], "y"))), 0, xs)[1][1][:, 0]]

    assert check(local, late, (XS,), (P(None, "x"),)) == ["all_reduce(y) x5"]


def test_scattered_sum_is_taken_once_where_it_is_small() -> None:
    def local(xs: Any) -> Any:
        def body(c: Any, x: Any) -> Any:
            return c + lax.psum_scatter(x, "y", scatter_dimension=1, tiled=True), None

        return [lax.all_gather(lax.scan(body, jnp.ones((2, 4)), xs)[0], "y", axis=1, tiled=True)]

    assert check(local, late, (XS,), (P(None, "x"),)) == ["reduce_scatter(y) x1", "all_gather(y) x1"]
    kept = check(local, lambda body: simplify(defer_sums(body, SIZES, largest=16)), (XS,), (P(None, "x"),))
    assert kept == ["reduce_scatter(y) x5", "all_gather(y) x1"]


def test_sum_that_is_used_otherwise_stays() -> None:
    def local(xs: Any) -> Any:
        def body(c: Any, x: Any) -> Any:
            total = lax.psum(x, "x")
            return c + total, total.sum()

        return list(lax.scan(body, jnp.zeros((2, 16)), xs))

    assert check(local, late, (XS,), (P(None, "x"),)) == ["all_reduce(x) x5"]


def test_integers_stay() -> None:
    def local(xs: Any) -> Any:
        return [lax.scan(lambda c, x: (c + lax.psum(x, "x"), None), jnp.zeros((2, 16), jnp.int32), xs.astype(jnp.int32))[0]]

    assert check(local, late, (XS,), (P(None, "x"),)) == ["all_reduce(x) x5"]


def test_effects_of_a_loop_stay(capfd: pytest.CaptureFixture[str]) -> None:
    def local(xs: Any) -> Any:
        def body(c: Any, x: Any) -> Any:
            lax.cond(lax.axis_index(("x", "y")) == 0, lambda: jax.debug.print("trip"), lambda: None)
            return c + lax.psum(x, "x"), None

        return [lax.scan(body, jnp.zeros((2, 16)), xs)[0]]

    assert check(local, lambda body: optimize_region(body, SIZES, "cpu"), (XS,), (P(None, "x"),)) == ["all_reduce(x) x1"]
    jax.effects_barrier()
    assert capfd.readouterr().out.count("trip") == 10


def test_repeats_and_dead_collectives_go() -> None:
    def local(w: Any) -> Any:
        full = lax.all_gather(w, "y", axis=0, tiled=True)
        again = lax.all_gather(w, "y", axis=0, tiled=True)
        lax.psum(w, "x")
        return [full + 1, again * 2, lax.cond(full[0, 0] > 0, lambda v: lax.psum(v, "x"), lambda v: v, w)]

    assert check(local, simplify, (W,), (P("y"),)) == ["all_gather(y) x1", "all_reduce(x) x1"]


@pytest.mark.parametrize("remat", [False, True])
def test_gradients_that_a_loop_adds_up_are_summed_behind_it_not_gathered_in_it(remat: bool) -> None:
    def loss(w: Any, x: Any) -> Any:
        step = lambda c, _: (jnp.tanh(c @ w), None)  # noqa: E731
        return jnp.sum(lax.scan(jax.checkpoint(step) if remat else step, x, None, length=50)[0])

    # An all-reduce of the gradient would be dearer than the rows of one step, but there is one for all steps.
    x, w = np.ones((8, 16), "float32"), np.full((16, 16), 0.1, "float32")
    step = sp.auto_shard(jax.grad(loss), mesh={"x": 4}, in_shardings=(None, P("x")), lowering="shard_map")
    assert [(c.kind, c.trips) for c in step.plan(w, x).collectives] == [("all_reduce", 1)]
    np.testing.assert_allclose(step(w, x), jax.grad(loss)(w, x), rtol=1e-4)


def test_a_mask_in_front_of_nested_loops_is_broadcast_where_it_is_read() -> None:
    def local(xs: jax.Array) -> jax.Array:
        mask = lax.broadcast_in_dim(lax.broadcast_in_dim(jnp.arange(16) >= 3, (1, 16), (1,)), (4, 16), (0, 1))

        def inner(carry: jax.Array, x: jax.Array) -> tuple[jax.Array, None]:
            return jnp.where(mask, carry + x, 0.5 * carry), None

        def outer(carry: jax.Array, x: jax.Array) -> tuple[jax.Array, None]:
            return lax.scan(inner, carry + x, xs)[0], None

        return lax.scan(outer, jnp.zeros((4, 16)), xs)[0]

    bodies: list[Jaxpr] = []

    def sunk(body: Jaxpr) -> Jaxpr:
        bodies.append(simplify(sink_broadcasts(body)))
        return bodies[0]

    check(local, sunk, (XS,), (P(),))
    (outer,) = [eqn for eqn in bodies[0].eqns if eqn.primitive.name == "scan"]
    (inner,) = [eqn for eqn in outer.params["jaxpr"].jaxpr.eqns if eqn.primitive.name == "scan"]
    for loop in (outer, inner):
        assert [v.aval.shape for v in loop.invars if v.aval.dtype == bool] == [(16,)]
