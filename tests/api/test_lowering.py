"""`lowering="auto"`: what runs a plan, and what is said where XLA's partitioner does."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import sparse
from jax.sharding import PartitionSpec as P

import shardy_py as sp
from shardy_py.api import partitioning as choice
from shardy_py.backends.shard_map import Partitioned
from shardy_py.errors import ShardyError
from shardy_py.facade import Plan

MESH = {"x": 4, "y": 2}
LARGE, SMALL = (64, 32), (16, 8)


@pytest.fixture(autouse=True)
def _sizes(monkeypatch):
    monkeypatch.setattr(choice, "NOTABLE", 4096)  # in place of a mebibyte, so that programs of size run quickly


def through_sparse(x: jax.Array) -> jax.Array:
    """An op without local form: the entries of a sparse array lie in no dimension of it."""
    return sparse.BCOO.fromdense(x, nse=4).todense() * 2


def decorated(fun, lowering="auto"):
    return sp.auto_shard(fun, mesh=MESH, in_shardings=P("x", "y"), lowering=lowering)


def a_few(shape: tuple[int, ...]) -> np.ndarray:
    x = np.zeros(shape, np.float32)
    x[1, 2], x[-1, -1], x[3, 0] = 1, 2, 3
    return x


@pytest.mark.parametrize(("shape", "lowering"), [(SMALL, "shard_map"), (LARGE, "jit")])
def test_an_op_of_size_without_local_form_leaves_the_plan_to_xla(shape, lowering):
    step = decorated(through_sparse)
    plan = step.plan(jax.ShapeDtypeStruct(shape, np.float32))
    assert plan.lowering == lowering
    np.testing.assert_array_equal(step(a_few(shape)), 2 * a_few(shape))


def test_the_finding_names_the_op_its_place_and_bytes():
    (finding,) = [f for f in decorated(through_sparse).plan(jax.ShapeDtypeStruct(LARGE, np.float32)).findings if f.kind == "jit-lowering"]
    assert "bcoo_fromdense runs whole on every device" in finding.message
    assert finding.location.startswith(__file__)
    assert finding.bytes == 7 * 64 * 32 * 4 // 8
    assert finding.severity == "info"


def test_what_was_asked_for_is_not_chosen_anew():
    struct = jax.ShapeDtypeStruct(LARGE, np.float32)
    for lowering in ("jit", "shard_map"):
        plan = decorated(through_sparse, lowering).plan(struct)
        assert plan.lowering == lowering
        assert "jit-lowering" not in [f.kind for f in plan.findings]


def test_collectives_and_memory_are_those_of_the_choice():
    struct = jax.ShapeDtypeStruct(LARGE, np.float32)

    def fun(x):
        return jnp.sort(x, axis=0) @ x.T

    chosen, region = (decorated(fun, lowering).plan(struct) for lowering in ("auto", "shard_map"))
    assert chosen.lowering == "shard_map"
    assert chosen.collectives == region.collectives
    assert chosen.memory_analysis().peak == region.memory_analysis().peak
    chosen, region = (decorated(through_sparse, lowering).plan(struct) for lowering in ("auto", "shard_map"))
    assert (chosen.lowering, chosen.collectives) == ("jit", region.collectives)  # as our own partitioner would move
    assert chosen.memory_analysis().peak == region.memory_analysis().peak


def test_a_stored_plan_says_how_it_runs(tmp_path):
    for shape in (SMALL, LARGE):
        plan = decorated(through_sparse).plan(jax.ShapeDtypeStruct(shape, np.float32))
        plan.save(tmp_path / "plan.json")
        loaded = Plan.load(tmp_path / "plan.json")
        assert loaded.lowering == plan.lowering
        assert loaded.findings == plan.findings


@pytest.mark.parametrize(
    ("error", "severity"),
    [(ShardyError("no region over another mesh"), "info"), (NotImplementedError("not here"), "info"), (KeyError("x"), "warning")],
)
def test_a_failure_to_partition_leaves_the_plan_to_xla(error, severity):
    def partition() -> Partitioned:
        raise error

    finding = choice.obstacle(partition)
    assert finding is not None
    assert finding.severity == severity
    assert str(error).splitlines()[0] in finding.message


def test_derivatives_are_chosen_for_by_themselves(caplog):
    """The gradient has an op without local form that the function has not. No plan can say so; the log does."""
    caplog.set_level("INFO", "shardy_py")

    @jax.custom_vjp
    def double(x):
        return 2 * x

    double.defvjp(lambda x: (2 * x, None), lambda _, g: (through_sparse(g),))
    step = decorated(lambda x, m: jnp.sum(double(x) * m))
    x, m = np.ones(LARGE, np.float32), a_few(LARGE)
    assert step.plan(x, m).lowering == "shard_map"
    np.testing.assert_array_equal(jax.jit(jax.grad(step))(x, m), 2 * m)
    text = jax.jit(jax.grad(step)).lower(x, m).as_text()
    assert "sharding_constraint" in text
    assert "of what a transformation made: lowering='jit' runs the plan: as a region, bcoo_fromdense" in caplog.text


@pytest.mark.parametrize("shape", [SMALL, LARGE])
@pytest.mark.parametrize(
    "transformed",
    [
        lambda f: jax.jit(f),
        lambda f: jax.grad(lambda x: f(x).sum()),
        lambda f: jax.jit(jax.grad(lambda x: f(x).sum())),
        lambda f: lambda x: jax.jvp(f, (x,), (x,))[1],
        lambda f: lambda x: f.lower(x).compile()(x),
    ],
    ids=["jit", "grad", "jit of grad", "jvp", "ahead of time"],
)
def test_either_choice_can_be_transformed(shape, transformed):
    x = a_few(shape)
    np.testing.assert_allclose(transformed(decorated(through_sparse))(x), transformed(jax.jit(through_sparse))(x), rtol=1e-6)


def test_inside_of_a_shard_map_a_plan_that_does_not_fit_runs_as_the_function():
    mesh = jax.make_mesh((4, 2), ("x", "y"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
    inner = sp.auto_shard(through_sparse, mesh=mesh, in_shardings=P(None, "y"), lowering="auto")
    outer = jax.jit(jax.shard_map(inner, mesh=mesh, in_specs=P("x"), out_specs=P("x"), axis_names={"x"}, check_vma=False))
    x = a_few((256, 32))
    np.testing.assert_array_equal(outer(x), 2 * jnp.concatenate([through_sparse(part) / 2 for part in np.split(x, 4)]))


@pytest.mark.parametrize("lowering", ["auto", "shard_map", "jit"])
def test_types_that_a_function_enables_inside_of_itself(lowering):
    def total(x):
        with jax.enable_x64(True):
            wide = x.astype(jnp.float64)
            sums = jnp.cumsum(wide * jnp.arange(x.size, dtype=jnp.float64).reshape(x.shape), axis=0)
            shifted = jnp.pad(sums, ((1, 0), (0, 0)))[:-1] / 3.0
            looped = jax.lax.fori_loop(0, 3, lambda _, c: c + sums, shifted)
            return (looped @ looped.T).astype(jnp.float32)

    x = a_few(SMALL)
    step = decorated(total, lowering)
    assert step.plan(x).lowering == ("jit" if lowering == "jit" else "shard_map")
    np.testing.assert_allclose(step(x), jax.jit(total)(x), rtol=1e-6)


@pytest.mark.parametrize("lowering", ["auto", "shard_map"])
def test_an_equation_that_jax_cannot_lower_is_passed_over_where_nothing_uses_it(lowering):
    def doubled(x, used):
        sums = jax.lax.cumlogsumexp(x, axis=0)  # infinity is no integer
        return x * 2 + sums if used else x * 2

    x = jnp.arange(32).reshape(8, 4)
    np.testing.assert_array_equal(decorated(lambda x: doubled(x, False), lowering)(x), x * 2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", sp.PlanWarning)  # "auto" says that it is left to XLA, which fails too
        with pytest.raises((OverflowError, TypeError)):  # of its constant, or of its float32 for an int32
            decorated(lambda x: doubled(x, True), lowering)(x)


def test_parameters_of_the_program_have_the_paths_of_their_leaves():
    """Also where donated leaves come first."""
    step = sp.auto_shard(lambda n, s: (s["b"] * 2, n + 1), mesh={"x": 4}, in_shardings=P("x"), donate_argnums=(0, 1))
    text = step.lower(np.ones(8, np.int32), {"b": np.ones(8, np.float32)}).compile().as_text()
    assert all(f'op_name="{path}"' in text.replace("\\", "") for path in ("n", "s['b']"))
