"""Batches of matrices on local arrays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest
from jax import lax
from jax import numpy as jnp
from jax.lax import linalg
from jax.sharding import PartitionSpec as P

import shardy_py as sp
from shardy_py.backends.local.table import LOCAL_RULES
from tests.backends.local.forced import check, equation_of

RNG = np.random.default_rng(0)
A = jnp.asarray(RNG.normal(size=(5, 4, 3, 3)), jnp.float32)
SYMMETRIC = jnp.einsum("abij,abkj->abik", A, A) + jnp.eye(3)
VECTORS = A[..., 0]

CASES: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "cholesky": (linalg.cholesky, (SYMMETRIC,)),
    "eig": (linalg.eig, (A,)),
    "eigh": (linalg.eigh, (SYMMETRIC,)),
    "hessenberg": (linalg.hessenberg, (A,)),
    "householder_product": (linalg.householder_product, (A, VECTORS)),
    "lu": (linalg.lu, (A,)),
    "lu_pivots_to_permutation": (lambda p: linalg.lu_pivots_to_permutation(p, 3), (jnp.full((5, 4, 3), 2),)),
    "qr": (linalg.qr, (A,)),
    "schur": (linalg.schur, (A,)),
    "svd": (linalg.svd, (A,)),
    "symmetric_product": (linalg.symmetric_product, (A, SYMMETRIC)),
    "triangular_solve": (lambda a, b: linalg.triangular_solve(a, b, left_side=True), (SYMMETRIC, A)),
    "tridiagonal": (linalg.tridiagonal, (SYMMETRIC,)),
    "tridiagonal_solve": (lambda d, b: linalg.tridiagonal_solve(d, d + 3, d, b), (VECTORS, A)),
}


@pytest.mark.parametrize("name", CASES)
def test_batches_pass_through(name: str) -> None:
    f, args = CASES[name]
    check(f, *args, name=name, count=1, cuts=4, tolerance=1e-4)


@pytest.mark.parametrize("left", [True, False])
def test_right_hand_sides_pass_through(left: bool) -> None:
    b = jnp.asarray(RNG.normal(size=(3, 7) if left else (7, 3)), jnp.float32)
    local_rule = check(
        lambda a, b: linalg.triangular_solve(a, b, left_side=left), SYMMETRIC[0, 0], b, name="triangular_solve", cuts=2, tolerance=1e-4
    )
    assert local_rule.linear == ((1,),)


@pytest.mark.parametrize("groups", [[1, 4, 2], [0, 8, 0], [0, 0, 0], [1, 2, 0, 1, 3]], ids=str)
def test_ragged_dot(groups: list[int]) -> None:
    """Groups of rows times a matrix each: what is summed over and the groups leave partial sums, rows and columns pass through."""
    x, y = jnp.asarray(RNG.normal(size=(8, 5)), jnp.float32), jnp.asarray(RNG.normal(size=(len(groups), 5, 7)), jnp.float32)
    counts = jnp.array(groups)
    check(lax.ragged_dot, x, y, counts, name="ragged_dot_general", count=8, cuts=10, tolerance=1e-4)
    gradient = jnp.asarray(RNG.normal(size=(8, 7)), jnp.float32)
    numbers = lax.RaggedDotDimensionNumbers((((0,), (0,)), ((), ())), (0,), ())

    def of_weights(x: Any, gradient: Any, counts: Any) -> Any:
        return lax.ragged_dot_general(x, gradient, counts, numbers)

    check(of_weights, x, gradient, counts, name="ragged_dot_general", count=8, cuts=8, tolerance=1e-4)


def test_experts_stay_where_they_are() -> None:
    """Tokens are cut over one axis, experts over another: only the sums over the experts are sent."""
    step = sp.auto_shard(lax.ragged_dot, mesh={"data": 2, "model": 4}, in_shardings=(P("data"), P("model"), P()), lowering="shard_map")
    struct = jax.ShapeDtypeStruct
    plan = step.plan(struct((8192, 1024), "bfloat16"), struct((64, 1024, 4096), "bfloat16"), struct((64,), "int32"))
    assert [(c.kind, c.axes, c.total_bytes) for c in plan.collectives] == [("all_reduce", ("model",), 48 << 20)]
    x, y = RNG.normal(size=(32, 8)).astype(np.float32), RNG.normal(size=(4, 8, 16)).astype(np.float32)
    for groups in ([5, 0, 20, 7], [0, 0, 0, 32], [3, 4, 5, 6]):
        counts = np.array(groups, np.int32)
        np.testing.assert_allclose(step(x, y, counts), jax.jit(lax.ragged_dot)(x, y, counts), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("ragged", ["contracting", "batch"])
def test_ragged_dot_of_other_dimensions(ragged: str) -> None:
    x = jnp.asarray(RNG.normal(size=(4, 6, 5)), jnp.float32)
    y = jnp.asarray(RNG.normal(size=(4, 5, 7)), jnp.float32)
    if ragged == "batch":
        numbers = lax.RaggedDotDimensionNumbers((((2,), (1,)), ((0,), (0,))), (0,), ())
    else:
        numbers = lax.RaggedDotDimensionNumbers((((2,), (1,)), ((0,), (0,))), (2,), ())
        y, x = y[:1, :, :].repeat(4, 0), x
    groups = jnp.array([1, 2, 1])
    equation, _ = equation_of(lambda a, b, g: lax.ragged_dot_general(a, b, g, numbers), [x, y, groups], "ragged_dot_general", run=False)
    local_rule = LOCAL_RULES["ragged_dot_general"](equation)
    assert local_rule is not None
    assert local_rule.rule.reduction == (1,)


def test_a_ragged_dot_is_planned_and_counted_as_a_product() -> None:
    step = sp.auto_shard(
        jax.grad(lambda w, x, counts: jnp.sum(lax.ragged_dot(x, w, counts) ** 2)),
        mesh={"data": 2, "model": 4},
        in_shardings=(P(None, None, "model"), P("data"), P()),
        options=sp.Options(platform="tpu"),
    )
    rows, weights = (jax.ShapeDtypeStruct(shape, jnp.float32) for shape in ((256, 64), (3, 64, 128)))
    plan = step.plan(weights, rows, jax.ShapeDtypeStruct((3,), jnp.int32))
    assert str(plan.outputs[0]) == "result: float32[3,64,128@model]"
    assert plan.cost_analysis().flops == pytest.approx(2 * 2 * 128 * 64 * 32, rel=0.2)
