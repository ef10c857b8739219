"""Collectives predicted for XLA's partitioner, beside those of compiled programs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AxisType, Mesh
from jax.sharding import PartitionSpec as P

import shardy_py as sp
from shardy_py.backends.compiled_text import collectives_in
from shardy_py.view.html.page import page


@pytest.fixture(scope="module")
def mesh() -> Mesh:
    return jax.make_mesh((2, 4), ("x", "y"), axis_types=(AxisType.Auto,) * 2)


def struct(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def both(mesh: Mesh, fun: Callable[..., Any], args: Any, specs: Any, out: Any = None) -> tuple[list[Any], list[Any]]:
    traced = sp.auto_shard(fun, mesh=mesh, in_shardings=specs, out_shardings=out, lowering="jit").trace(*args)
    compiled = traced.lower().compile().as_text()
    theirs = [(c.kind, c.group_size, piece, c.trips) for c in collectives_in(compiled) for piece in c.pieces]
    return sorted((c.kind, c.group_size, c.operand_bytes, c.trips) for c in traced.plan().collectives), sorted(theirs)


SPECS = [P(), P("x"), P("y"), P(None, "x"), P(None, "y"), P("x", "y"), P("y", "x"), P(("x", "y"))]


@pytest.mark.parametrize("left", SPECS, ids=str)
@pytest.mark.parametrize("right", [P(None, "y"), P("y"), P("y", "x")], ids=str)
def test_matrix_products(mesh: Mesh, left: P, right: P) -> None:
    """Beside exact ones, no result may be far off: XLA groups devices in ways that are not all followed."""
    ours, theirs = both(mesh, lambda a, b: a @ b, (struct(64, 32), struct(32, 128)), (left, right), P("x", "y"))
    if left not in (P("y"), P(None, "x"), P("x", "y"), P("y", "x")):
        assert [c for c in ours if c[0] != "collective_permute"] == [c for c in theirs if c[0] != "collective_permute"]
    assert _bytes(ours) == pytest.approx(_bytes(theirs), rel=0.7, abs=4096)


def _bytes(found: list[Any]) -> float:
    from shardy_py.plan.collectives import received_bytes

    return sum(received_bytes(kind, group, size) * (trips or 1) for kind, group, size, trips in found)


def mlp(params: dict[str, jax.Array], x: jax.Array) -> jax.Array:
    return jnp.sum((jax.nn.relu(x @ params["up"]) @ params["down"]) ** 2)


def step(params: dict[str, jax.Array], x: jax.Array) -> dict[str, jax.Array]:
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, jax.grad(mlp)(params, x))


@pytest.mark.parametrize(
    "specs",
    [
        ({"up": P(None, "y"), "down": P("y")}, P("x")),
        ({"up": None, "down": None}, P(("x", "y"))),
        ({"up": P(None, "y"), "down": None}, P("x")),
    ],
)
def test_training_steps(mesh: Mesh, specs: Any) -> None:
    ours, theirs = both(mesh, step, ({"up": struct(32, 64), "down": struct(64, 32)}, struct(16, 32)), specs)
    assert ours == theirs
    assert ours


def test_loops(mesh: Mesh) -> None:
    """One collective per trip; what a loop does not change is gathered once, in front of it."""

    def layers(x: jax.Array, ws: jax.Array) -> jax.Array:
        return lax.scan(lambda c, w: (jnp.tanh(c @ w), None), x, ws)[0]

    ours, theirs = both(mesh, layers, (struct(16, 32), struct(5, 32, 32)), (P("x", "y"), P(None, "y")))
    assert ours == theirs
    assert {c[3] for c in ours} == {5}

    def same(x: jax.Array, w: jax.Array) -> jax.Array:
        return lax.scan(lambda c, _: (jnp.tanh(sp.with_sharding_constraint(c @ w, P("x"))), None), x, None, length=5)[0]

    ours, theirs = both(mesh, same, (struct(16, 32), struct(32, 32)), (P("x"), P(None, "y")))
    assert ours == theirs == [("all_gather", 4, 32 * 32, 1)]


def at_index(function: Any, **dims: Any) -> Callable[..., Any]:
    numbers = lax.ScatterDimensionNumbers(**{"inserted_window_dims": (), "scatter_dims_to_operand_dims": (0,), **dims})
    return lambda x, rows, at: function(x, at[..., None], rows, numbers)


def written(x: jax.Array, rows: jax.Array, at: Any) -> jax.Array:
    return lax.dynamic_update_slice(x, rows, (at, 0))


INDEX, INDICES = jax.ShapeDtypeStruct((), jnp.int32), jax.ShapeDtypeStruct((8,), jnp.int32)
WRITES: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "rows at a constant place": (lambda x, rows: written(x, rows, 3), (struct(64, 32), struct(6, 32))),
    "rows": (written, (struct(64, 32), struct(6, 32), INDEX)),
    "one row": (written, (struct(64, 32), struct(1, 32), INDEX)),
    "set": (lambda x, rows: x.at[3:9].set(rows), (struct(64, 32), struct(6, 32))),
    "add": (lambda x, rows: x.at[-6:].add(rows), (struct(64, 32), struct(6, 32))),
    "scatter": (at_index(lax.scatter, update_window_dims=(0, 1)), (struct(64, 32), struct(6, 32), INDEX)),
    "several windows": (at_index(lax.scatter_add, update_window_dims=(1, 2)), (struct(64, 32), struct(8, 6, 32), INDICES)),
    "batch": (jax.vmap(written), (struct(8, 64, 32), struct(8, 6, 32), INDICES)),
}


@pytest.mark.parametrize("x", [P("x"), P("y", "x"), P(None, "y")], ids=str)
@pytest.mark.parametrize("name", WRITES)
def test_writes_of_a_part(mesh: Mesh, name: str, x: P) -> None:
    function, args = WRITES[name]
    ours, theirs = both(mesh, function, args, (x, *[P()] * (len(args) - 1)))
    assert ours == theirs


def test_a_value_moves_once(mesh: Mesh) -> None:
    ours, theirs = both(mesh, lambda x, a, b: (x @ a, x @ b), (struct(16, 32), *(struct(32, 8),) * 2), (P(None, "y"), P(), P()), P())
    assert ours == theirs
    assert len(ours) == 1


def test_a_slice_of_a_sum_would_be_a_reduce_scatter(mesh: Mesh) -> None:
    plan = sp.auto_shard(lambda a, b: a @ b, mesh=mesh, in_shardings=(P(None, "y"), P("y")), out_shardings=P("y"), lowering="jit").plan(
        struct(64, 32), struct(32, 64)
    )
    assert [c.kind for c in plan.collectives] == ["all_reduce"]
    assert [c.collective.kind for c in plan.cost_analysis("h100").collectives] == ["reduce_scatter"]


def test_where_and_for_what(mesh: Mesh) -> None:
    plan = sp.auto_shard(mlp, mesh=mesh, in_shardings=({"up": P(None, "y"), "down": P("y")}, P("x")), lowering="jit").plan(
        {"up": struct(32, 64), "down": struct(64, 32)}, struct(16, 32)
    )
    first = plan.collectives[0]
    assert (first.kind, first.axes, first.primitive, first.dtype) == ("all_reduce", ("y",), "dot_general", "float32")
    assert first.location.rpartition(":")[0].endswith("test_predicted.py")


def test_parts_of_axes_and_programs_without_shardings() -> None:
    plan = sp.auto_shard(lambda x: x.reshape(2, 2, 8) * 2, mesh={"x": 4}, in_shardings=P("x"), out_shardings=P(), lowering="jit").plan(
        struct(4, 8)
    )
    assert sum(c.received_bytes for c in plan.collectives) == 3 * 8 * 4
    assert sp.auto_shard(lambda x: x + 1, mesh={"x": 1}).plan(struct(4)).collectives == ()


def test_collectives_that_the_user_wrote(mesh: Mesh) -> None:
    def body(y: jax.Array) -> jax.Array:
        whole = lax.all_gather(y, "y", axis=1, tiled=True)
        return lax.psum_scatter(whole, "y", scatter_dimension=1, tiled=True) + lax.ppermute(y, "y", [(0, 1), (1, 0)])

    def fun(x: jax.Array) -> jax.Array:
        return sp.manual_computation(body, in_specs=P("x", "y"), out_specs=P("x", "y"), check_vma=False)(x)

    ours, theirs = both(mesh, fun, (struct(8, 8),), (P("x", "y"),))
    assert [(c[0], c[2]) for c in ours] == [(c[0], c[2]) for c in theirs]
    assert [c for c in ours if c[0] != "collective_permute"] == [c for c in theirs if c[0] != "collective_permute"]


def test_what_runs_on_one_device(mesh: Mesh) -> None:
    def around(x: jax.Array, w: jax.Array) -> jax.Array:
        y = jax.pure_callback(np.sin, struct(64, 64), x)
        return sp.with_sharding_constraint(y, P("x", "y")) @ w + y

    args, specs = (struct(64, 64), struct(64, 64)), (P("x"), P("y"))
    ours, theirs = both(mesh, around, args, specs)
    assert ours == theirs
    assert ("all_reduce", 8, 64 * 64 * 4, 1) in ours
    called = sp.auto_shard(around, mesh=mesh, in_shardings=specs, lowering="jit")
    x = np.arange(64 * 64, dtype=np.float32).reshape(64, 64)
    np.testing.assert_allclose(called(x, np.eye(64, dtype=np.float32)), 2 * np.sin(x), rtol=1e-5, atol=1e-5)
    plan = called.plan(*args)
    assert "pure_callback  float32[64,64]  16 KiB" in plan.as_text(where="*callback")
    assert [c.bytes for c in plan.memory_analysis().contributors if c.name == "pure_callback"] in ([], [64 * 64 * 4])
    assert '"local":[]' not in page(plan)


def test_every_view_of_what_runs_on_one_device() -> None:
    def around(x: jax.Array) -> jax.Array:
        y = jax.pure_callback(np.sin, struct(8, 8), x)
        return y @ x + x @ y

    plan = sp.auto_shard(around, mesh={"data": 2, "model": 4}, in_shardings=P("data", "model"), donate_argnums=0).plan(struct(8, 8))
    assert plan.cost_analysis().flops > 2 * 2 * 8 * 8 * 8 / 8
    assert plan.memory_analysis().peak_memory_in_bytes
    assert plan.findings is not None
    assert all(str(plan.explain(value, axis)) for value in plan.values for axis in (None, "data", "model"))


def test_conditions_of_loops(mesh: Mesh) -> None:
    """A condition that sums over devices does so before each trip, and once more."""

    def solve(a: jax.Array, x: jax.Array) -> jax.Array:
        return lax.while_loop(lambda x: jnp.linalg.norm(a @ x) > 1e-3, lambda x: x - 0.01 * (a @ x), x)

    ours, theirs = both(mesh, solve, (struct(64, 64), struct(64, 16)), (P(None, "y"), P("y")))
    assert [kind for kind, *_ in ours].count("all_reduce") == 2
    assert [(kind, trips) for kind, *_, trips in ours if kind == "all_reduce"] == [(k, t) for k, *_, t in theirs if k == "all_reduce"]
