"""Products in pieces along rings: their numbers, where they are chosen, what a plan says of them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import hypothesis
import jax
import numpy as np
import pytest
from hypothesis import strategies as st
from jax import lax
from jax import numpy as jnp
from jax.sharding import AbstractMesh, AxisType
from jax.sharding import PartitionSpec as P

import shardy_py as sp
from shardy_py.backends.local.overlap import Overlap
from shardy_py.backends.local.passes import optimize_region
from shardy_py.backends.local.read_collectives import read_collectives
from shardy_py.cost.collectives import collective_seconds
from shardy_py.cost.hardware_table import hardware
from shardy_py.cost.links import Level, Links
from tests.backends.local.test_hoist import SIZES

MESH = {"x": 2, "y": 4}


@functools.cache
def devices() -> jax.sharding.Mesh:
    return jax.make_mesh((2, 4), ("x", "y"), axis_types=(AxisType.Auto,) * 2)


def at(x: Any, spec: Any) -> Any:
    return lax.with_sharding_constraint(x, jax.NamedSharding(devices(), spec))


def columns(x: Any, w: Any) -> Any:
    """A product of which each device has some columns."""
    return at(x @ w, P(*[None] * (x.ndim - 1), "y"))


def layer(rows: Any, hidden: Any, up: Any, down: Any, x: Any) -> Any:
    """Two products whose rows are cut; what stands between them has its columns cut."""
    inner = at(jax.nn.gelu(x @ up), hidden)
    return at(inner @ down, rows)


def both(f: Callable[..., Any], specs: Sequence[Any], args: Sequence[Any], tolerance: float = 1e-5) -> list[str]:
    """Runs a function on one device and on eight, in pieces; the kinds of its collectives."""
    step = sp.auto_shard(f, mesh=devices(), in_shardings=tuple(specs), options=sp.Options(overlap=True))
    for wanted, got in zip(jax.tree.leaves(jax.jit(f)(*args)), jax.tree.leaves(step(*args)), strict=True):
        wanted, got = np.asarray(wanted, np.float32), np.asarray(got, np.float32)
        np.testing.assert_allclose(got, wanted, rtol=tolerance, atol=tolerance * max(1.0, float(np.abs(wanted).max())))
    return [c.title for c in step.plan(*args).collectives]


def weights(*shape: int, dtype: Any = np.float32) -> Any:
    return jnp.asarray(np.random.default_rng(sum(shape)).normal(size=shape) / 4, dtype)


SPECS = (P(None, "y"), P("y"), P(("x", "y")))
ARGS = (weights(16, 32), weights(32, 16), weights(64, 16))
MLP = functools.partial(layer, P(("x", "y")), P("x", "y"))


def loss(*args: Any) -> Any:
    return jnp.sum(jnp.sin(MLP(*args)))


RING = ["ring_permute(y)"] * 6


def test_gather_and_scatter_of_two_products() -> None:
    assert both(MLP, SPECS, ARGS) == 2 * RING


def test_backward_pass() -> None:
    kinds = both(jax.value_and_grad(loss, argnums=(0, 1)), SPECS, ARGS)
    assert kinds[:18] == 3 * RING  # the gathered operand's, the scattered sum's and the cotangent's
    assert not any(kind.startswith(("all_gather", "reduce_scatter")) for kind in kinds)


TRANSFORMED: dict[str, tuple[Callable[..., Any], tuple[Any, ...], tuple[Any, ...]]] = {
    "gradient of a gradient": (jax.grad(lambda *args: jnp.sum(jax.grad(loss)(*args) ** 2), argnums=(0, 2)), SPECS, ARGS),
    "remat": (jax.grad(jax.checkpoint(loss), argnums=(0, 1, 2)), SPECS, ARGS),
    "vmap": (jax.vmap(MLP, in_axes=(None, None, 0)), (*SPECS[:2], P(None, ("x", "y"))), (*ARGS[:2], weights(3, 64, 16))),
    "jvp": (lambda *args: jax.jvp(MLP, args, args)[1], SPECS, ARGS),
}


@pytest.mark.parametrize("name", TRANSFORMED)
def test_transformations(name: str) -> None:
    assert any("ring" in kind for kind in both(*TRANSFORMED[name], tolerance=1e-4))


@pytest.mark.parametrize("policy", ["everything", "nothing"])
def test_layers_in_a_scan(policy: str) -> None:
    def stacked(ups: Any, downs: Any, x: Any) -> Any:
        def body(x: Any, w: Any) -> Any:
            return at(x + MLP(*w, x), P(("x", "y"))), None

        step = jax.checkpoint(body) if policy == "nothing" else body
        return jnp.sum(lax.scan(step, x, (ups, downs))[0] ** 2)

    args = weights(3, 16, 32), weights(3, 32, 16), ARGS[2]
    kinds = both(jax.value_and_grad(stacked, argnums=(0, 1)), (P(None, None, "y"), P(None, "y"), SPECS[2]), args, 1e-4)
    assert sum("ring" in kind for kind in kinds) >= 18


def test_from_outside() -> None:
    """A transformation of the planned function is planned with its options."""
    step = sp.auto_shard(MLP, mesh=devices(), in_shardings=SPECS, options=sp.Options(overlap=True))
    wanted, got = (jax.jit(jax.grad(lambda *args, f=f: jnp.sum(jnp.sin(f(*args)))))(*ARGS) for f in (MLP, step))
    np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-5)


CASES: dict[str, tuple[Callable[..., Any], tuple[Any, ...], tuple[Any, ...]]] = {
    "a bias, and a gate": (
        lambda up, gate, b, x: jax.nn.silu(columns(x, gate) + b) * columns(x, up),
        (P(None, "y"), P(None, "y"), P("y"), P("y")),
        (ARGS[0], weights(16, 32) + 1, weights(32), ARGS[2]),
    ),
    "a sum that all need": (lambda w, x: jnp.tanh(x @ w), (P("y"), P("x", "y")), (weights(32, 16), weights(64, 32))),
    "normalized rows": (
        lambda w, x: (h := x @ w) / jnp.sqrt(jnp.sum(h * h, -1, keepdims=True) + 1),
        (P("x"), P("y", "x")),
        (ARGS[1], weights(64, 32)),
    ),
    "a gathered value beside its product": (
        lambda w, x: (columns(x, w), jnp.cumsum(at(x, P()), 0)),
        (P(None, "y"), P("y")),
        (ARGS[0], ARGS[2]),
    ),
    "a callback of the gathered value": (
        lambda w, x: (columns(x, w), jax.debug.callback(lambda _: None, at(x, P())))[0],
        (P(None, "y"), P("y")),
        (ARGS[0], ARGS[2]),
    ),
    "heads": (
        lambda w, x: jnp.swapaxes(columns(x, w).reshape(8, 8, 4, 8), 1, 2) + 1,
        (P(None, "y"), P("y")),
        (ARGS[0], weights(8, 8, 16)),
    ),
    "a sum over what is gathered": (lambda w, x: jnp.sum(jnp.exp(columns(x, w)), 0), (P(None, "y"), P("y")), (ARGS[0], ARGS[2])),
}


@pytest.mark.parametrize("name", CASES)
def test_what_runs_on_pieces(name: str) -> None:
    assert any("ring" in kind for kind in both(*CASES[name]))


@hypothesis.settings(max_examples=3, phases=[hypothesis.Phase.explicit, hypothesis.Phase.generate])
@hypothesis.example(rows=(2, 1), ff=1, width=1, over=("y", "x"), dim=0, dtype=np.float32)
@hypothesis.given(
    rows=st.tuples(st.integers(1, 3), st.integers(1, 9)),
    ff=st.integers(1, 3),
    width=st.integers(1, 9),
    over=st.sampled_from(["x", "y", ("x", "y"), ("y", "x")]),
    dim=st.integers(0, 1),
    dtype=st.sampled_from([np.float32, jnp.bfloat16]),
)
def test_numbers(rows: tuple[int, int], ff: int, width: int, over: Any, dim: int, dtype: Any) -> None:
    """Sizes that do not divide are not in pieces."""
    parts = 8 if isinstance(over, tuple) else MESH[over]
    cut = [rows[0], rows[1]]
    cut[dim] *= parts if rows[1] % 4 else 1
    specs = P(None, over), P(over), P(*[over if d == dim and not size % parts else None for d, size in enumerate(cut)])
    hidden = P(None, None, over)
    f = functools.partial(layer, specs[2], hidden)
    args = weights(width, ff * parts, dtype=dtype), weights(ff * parts, width, dtype=dtype), weights(*cut, width, dtype=dtype)

    def value(*args: Any) -> Any:
        return jnp.sum(jnp.sin(f(*args).astype(jnp.float32)))

    both(jax.value_and_grad(value, argnums=(0, 1, 2)), specs, args, 1e-4 if dtype is np.float32 else 4e-2)


def test_halves_that_are_not_whole() -> None:
    args = *ARGS[:2], weights(24, 16)  # three rows a device
    assert both(MLP, SPECS, args) == ["all_gather(y)", "reduce_scatter(y)"]


@pytest.mark.parametrize("overlap", [None, False])
def test_never_on_cpu_by_default(overlap: bool | None) -> None:
    plan = sp.auto_shard(MLP, mesh=devices(), in_shardings=SPECS, options=sp.Options(overlap=overlap)).plan(*ARGS)
    assert [c.kind for c in plan.collectives] == ["all_gather", "reduce_scatter"]


def test_steps_are_priced_together() -> None:
    """They bring the bytes of the gather and the scatter, as fast, and products cover them."""
    args = jax.ShapeDtypeStruct((2048, 8192), jnp.bfloat16), jax.ShapeDtypeStruct((8192, 2048), jnp.bfloat16), None
    args = (*args[:2], jax.ShapeDtypeStruct((8192, 2048), jnp.bfloat16))
    ring, whole = (
        sp.auto_shard(MLP, mesh=devices(), in_shardings=SPECS, options=sp.Options(overlap=overlap)).plan(*args) for overlap in (True, False)
    )
    assert sum(c.received_bytes for c in ring.collectives) == sum(c.received_bytes for c in whole.collectives)
    a, b = ring.cost_analysis("v5e"), whole.cost_analysis("v5e")
    assert a.communication_seconds == pytest.approx(b.communication_seconds, rel=0.02)
    assert a.exposed_seconds is not None
    assert a.compute_seconds is not None
    assert b.exposed_seconds is not None
    assert a.exposed_seconds.high == pytest.approx(max(b.exposed_seconds.high - a.compute_seconds, 0.0), abs=1e-5)
    assert "ring_permute(y)" in ring.as_text()


@pytest.mark.parametrize(("rows", "is_chosen"), [(1024, True), (64, False)])
def test_chosen_by_price(rows: int, is_chosen: bool) -> None:
    levels = [Level(Links("torus", 4.5e10, 1e-6, (2, 2)), 4)]
    overlap = Overlap(hardware("v5e"), lambda kind, axes, size: collective_seconds(kind, size, levels), lambda axes: (0, 1, 3, 2))

    def local(x: Any, up: Any, down: Any) -> Any:
        return lax.psum_scatter(lax.all_gather(x, "y", tiled=True) @ up @ down, "y", tiled=True)

    mesh = AbstractMesh((2, 4), ("x", "y"), axis_types=(AxisType.Auto,) * 2)
    region = jax.shard_map(local, mesh=mesh, in_specs=P(), out_specs=P(), check_vma=False)
    args = (jax.ShapeDtypeStruct(shape, jnp.bfloat16) for shape in ((rows, 2048), (2048, 2048), (2048, 2048)))
    (eqn,) = jax.make_jaxpr(region)(*args).eqns
    kinds = [c.kind for c in read_collectives(optimize_region(eqn.params["jaxpr"], SIZES, "tpu", overlap=overlap), SIZES)]
    assert kinds == (["collective_permute"] * 12 if is_chosen else ["all_gather", "reduce_scatter"])


def test_a_choice_that_is_none() -> None:
    with pytest.raises(sp.SpecError, match="overlap is 'yes'"):
        sp.Options(overlap="yes")  # type: ignore[arg-type]


def test_values_of_64_bits() -> None:
    with jax.enable_x64(True):
        assert any("ring" in kind for kind in both(*CASES["a gathered value beside its product"]))
