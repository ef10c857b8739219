from __future__ import annotations

import importlib
import pathlib
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import shardy_py as sp
from shardy_py.api.errors import DonationWarning
from shardy_py.backends.donation import Guard
from tests.backends.aliases import check_compiled

pytestmark = pytest.mark.usefixtures("usual_fusions")


@pytest.fixture(scope="module")
def mesh():
    return jax.make_mesh((2, 4), ("x", "y"), axis_types=(AxisType.Auto,) * 2)


def on(mesh, value=1.0):
    return jax.device_put(jnp.full((8, 4), value), NamedSharding(mesh, P("x")))


def test_guard_sees_deleted_arrays_of_every_kind(mesh):
    guard = Guard(False, "f.py:3")
    array, key = on(mesh), jax.random.key(0)
    for good in ([array], [array, key], [key, array, 1.0, np.ones(3), None, "text"], [np.ones(2)], []):
        assert not guard.bad(good)
    array.delete()
    assert guard.bad([key, array])
    assert guard.bad([1.0, array])


def test_guard_sees_arrays_passed_twice_only_where_donated(mesh):
    array = on(mesh)
    assert not Guard(False, "f.py:3").bad([array, array])
    assert Guard(True, "f.py:3").bad([array, array])


def test_a_deleted_argument_that_is_not_donated(mesh):
    step = sp.auto_shard(lambda a, b: a + b, mesh=mesh)
    a, b = on(mesh), on(mesh)
    step(a, b)
    b.delete()
    with pytest.raises(RuntimeError, match="the buffer of b has been deleted"):
        step(a, b)


def test_after_an_error_the_arguments_are_alive(mesh):
    step = sp.auto_shard(lambda s, t: s + t, mesh=mesh, donate_argnums=0)
    a = on(mesh)
    step(on(mesh), on(mesh))
    with pytest.raises(ValueError, match="s and t are one array"):
        step(a, a)
    assert not a.is_deleted()


def test_equal_numbers_and_undonated_repeats_are_fine(mesh):
    step = sp.auto_shard(lambda s, t, u, n, m: s + t * u + n + m, mesh=mesh, donate_argnums=0)
    t = on(mesh, 2.0)
    for _ in range(3):
        np.testing.assert_array_equal(step(on(mesh), t, t, 1, 1), np.full((8, 4), 7.0))


def test_donated_state_in_a_loop(mesh):
    step = sp.auto_shard(lambda s: jax.tree.map(lambda x: x + 1, s), mesh=mesh, donate_argnums=0)
    state = {"a": on(mesh), "b": on(mesh, 2.0)}
    for _ in range(5):
        old, state = state, step(state)
        assert old["a"].is_deleted()
    assert float(state["b"][0, 0]) == 7.0
    assert step.plan_count == 1


A = jax.ShapeDtypeStruct((8, 16), jnp.float32)
AB = {"a": A, "b": A}

# Of each: the function, its arguments, and how many copies its compiled program may have.
PROGRAMS = {
    "as first fit has it": (lambda a, b: (a, b), (A, A), 0),
    "swapped": (lambda a, b: (b, a), (A, A), 0),
    "rotated in place": (lambda s: {"a": s["b"] + 1, "b": s["a"] + 1}, (AB,), 0),
    "the second of one argument": (lambda s: (s["b"], s["a"].sum()), (AB,), 0),
    "the second argument": (lambda a, b: (b, a.sum()), (A, A), 0),
    "an unused one": (lambda s: s["b"] * 2, (AB,), 0),
    "an unused one before two": (lambda u, s: (s["b"], s["a"]), (A, AB), 0),
    "twice": (lambda a: (a, a), (A,), 1),
    "other types": (lambda s: (s["a"].astype(jnp.int32), s["b"] * 2), (AB,), None),
    "one with fewer bytes": (lambda s: (s["a"].astype(jnp.bfloat16), s["b"] * 2), (AB,), 0),
    "transposed": (lambda a: a.T, (A,), None),
    "keys": (lambda k, a: (a + 1, jax.random.split(k)[0]), (jax.eval_shape(lambda: jax.random.key(0)), A), None),
    "a cache": (lambda c, x: (x.sum(), jax.lax.dynamic_update_slice(c, x[:, :1], (0, 3))), (A, A), 0),
    "none": (lambda a: a.sum(0), (A,), 0),
}


@pytest.mark.parametrize(("kind", "lowering"), [("Auto", "jit"), ("Explicit", "jit"), ("Auto", "shard_map")])
@pytest.mark.parametrize("name", PROGRAMS)
def test_the_compiled_program_does_what_the_plan_says(name, kind, lowering):
    fun, args, copies = PROGRAMS[name]
    mesh = jax.make_mesh((2, 4), ("x", "y"), axis_types=(getattr(AxisType, kind),) * 2)
    given = P() if name == "keys" else P("x")
    step = sp.auto_shard(fun, mesh=mesh, in_shardings=given, lowering=lowering, donate_argnums=tuple(range(len(args))))
    traced = step.trace(*args)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DonationWarning)  # JAX's own would fail the test.
        compiled = traced.lower().compile()
    plan = traced.plan()
    assert check_compiled(compiled, plan) == []
    assert compiled.memory_analysis().alias_size_in_bytes == sum(d.bytes_per_device for d in plan.donation if d.aliased)
    if copies is not None:
        assert compiled.as_text().count(" copy(") <= copies


def test_the_check_sees_differences(mesh):
    step = sp.auto_shard(lambda a, b: (b, a), mesh=mesh, donate_argnums=(0, 1))
    plain = jax.jit(lambda a, b: (b, a), donate_argnums=(0, 1)).lower(A, A).compile()
    undonated = jax.jit(lambda a, b: (b, a)).lower(A, A).compile()
    assert "result[0] is to reuse the memory of b, parameter 1, but has that of no input" in check_compiled(undonated, step.plan(A, A))
    unplanned = sp.auto_shard(lambda a, b: (b, a), mesh=mesh).plan(A, A)
    assert check_compiled(plain, unplanned) == [
        f"result[{i}] is to reuse the memory of no input, but has that of parameter {i}" for i in (0, 1)
    ]


def test_results_keep_their_structure(mesh):
    step = sp.auto_shard(lambda s: {"u": (s["b"], None), "v": [s["a"] + 1]}, mesh=mesh, donate_argnums=0)
    for _ in range(3):
        state = {"a": on(mesh, 5.0), "b": on(mesh, 2.0)}
        pointers = [x.unsafe_buffer_pointer() for x in (state["a"].addressable_data(0), state["b"].addressable_data(0))]
        result = step(state)
        assert jax.tree.structure(result) == jax.tree.structure({"u": (0, None), "v": [0]})
        assert (float(result["u"][0][0, 0]), float(result["v"][0][0, 0])) == (2.0, 6.0)
        assert [x.addressable_data(0).unsafe_buffer_pointer() for x in (result["v"][0], result["u"][0])] == pointers
    lowered = step.lower({"a": A, "b": A})
    assert jax.tree.structure(lowered.out_info) == jax.tree.structure({"u": (0, None), "v": [0]})
    assert jax.tree.structure(lowered.compile().output_shardings) == jax.tree.structure({"u": (0, None), "v": [0]})


def test_leaves_of_one_argument_are_donated_apart(mesh):
    def large(value=1.0):
        return jax.device_put(jnp.full((2048, 1024), value), NamedSharding(mesh, P("x", "y")))

    step = sp.auto_shard(lambda n, s, x: (s["b"] * n, s["a"].mean() + x), mesh=mesh, static_argnums=0, donate_argnames="s")
    with pytest.warns(DonationWarning, match=r"s\['a'\].*is not reused: no output of its size is left"):
        step(2.0, {"a": large(), "b": large()}, 1.0)
    for _ in range(2):
        state = {"a": large(), "b": large(3.0)}
        first, second = step(2.0, state, 1.0)
        assert (float(first[0, 0]), float(second)) == (6.0, 2.0)
        assert (state["a"].is_deleted(), state["b"].is_deleted()) == (False, True)
    with pytest.warns(DonationWarning):
        assert float(step(3.0, {"a": large(), "b": large()}, 1.0)[0][0, 0]) == 3.0
    with pytest.warns(DonationWarning):
        assert float(step(2.0, {"b": large(), "a": large(), "c": 1.0}, 2.0)[1]) == 3.0
    assert step.plan_count == 3
    with pytest.warns(DonationWarning):
        compiled = step.lower(2.0, {"a": large(), "b": large()}, 1.0).compile()
    assert float(compiled({"a": large(), "b": large()}, 5.0)[1]) == 6.0


def test_grad_and_vmap_over_rearranged_functions(mesh):
    swapped = sp.auto_shard(lambda a, b: (b * 3, a * 2), mesh=mesh, donate_argnums=(0, 1))
    ones = np.ones((8, 4), np.float32)
    grads = jax.grad(lambda a, b: swapped(a, b)[0].sum(), argnums=(0, 1))(jnp.ones((8, 4)), jnp.ones((8, 4)))
    np.testing.assert_array_equal(grads[1], 3 * ones)
    np.testing.assert_array_equal(jax.vmap(swapped)(ones[None], ones[None])[1], 2 * ones[None])
    np.testing.assert_array_equal(jax.jit(swapped)(ones, ones)[1], 2 * ones)


def test_undonated_buffers_survive(mesh):
    step = sp.auto_shard(lambda s, t: (s + 1, t + 1), mesh=mesh, in_shardings=P("x"), donate_argnums=0)
    for _ in range(2):
        host, uncommitted = np.ones((8, 4), np.float32), jnp.ones((8, 4))
        kept = on(mesh, 5.0)
        view = np.asarray(kept.addressable_data(0))
        step(host, kept)
        step(on(mesh), uncommitted)
        np.testing.assert_array_equal(host, np.ones((8, 4)))
        assert not kept.is_deleted()
        assert not uncommitted.is_deleted()
        np.testing.assert_array_equal(view, np.full((4, 4), 5.0))
        seen = on(mesh, 7.0)
        view = np.asarray(seen.addressable_data(0))
        step(seen, kept)
        np.testing.assert_array_equal(view, np.full((4, 4), 7.0))


def test_arrays_that_share_memory_are_found_on_the_first_call(mesh):
    step = sp.auto_shard(lambda s: {"p": s["p"] + 1, "ema": s["ema"] * 0.9}, mesh=mesh, donate_argnums=0)
    source, replicated = jnp.zeros((8, 4)), NamedSharding(mesh, P())
    for _ in range(2):
        with pytest.raises(ValueError, match=r"s\['ema'\] and s\['p'\] share memory, and it is donated"):
            step({"p": jax.device_put(source, replicated), "ema": jax.device_put(source, replicated)})
    result = step({"p": jax.device_put(source, replicated), "ema": jax.device_put(source, replicated).copy()})
    assert float(step(result)["p"][0, 0]) == 2.0


@pytest.mark.parametrize(
    "options",
    [
        {"static_argnums": 1, "donate_argnums": (0, 1)},
        {"static_argnums": -1, "donate_argnums": 1},
        {"static_argnames": "n", "donate_argnums": 1},
        {"static_argnums": 1, "donate_argnames": ("x", "n")},
    ],
)
def test_static_and_donated_is_an_error(options):
    step = sp.auto_shard(lambda x, n: x * n, mesh={"x": 2}, **options)
    with pytest.raises(ValueError, match="n is both static and donated"):
        step.plan(A, 2)


def test_an_element_of_args_is_both():
    step = sp.auto_shard(lambda *xs: xs[0], mesh={"x": 2}, static_argnums=1, donate_argnums=-1)
    with pytest.raises(ValueError, match=r"xs\[1\] is both static and donated"):
        step.plan(A, 2)


@pytest.mark.slow
def test_every_leaf_of_the_training_example_is_reused(monkeypatch):
    pytest.importorskip("optax")
    flags = pytest.importorskip("absl.flags")
    monkeypatch.syspath_prepend(pathlib.Path(__file__).parents[2] / "examples")
    example = importlib.import_module("train_lm")
    flags.FLAGS(["train_lm", "--layers=1", "--width=16", "--heads=4", "--length=8", "--batch=4"])
    batch = {name: jax.ShapeDtypeStruct((4, 8), jnp.int32) for name in ("inputs", "targets")}
    peak = {}
    for donate in (True, False):
        step, _, first_state = example.training(96, donate)
        traced = step.trace(jax.eval_shape(first_state), batch)
        plan, compiled = traced.plan(), traced.lower().compile()
        peak[donate] = compiled.memory_analysis().peak_memory_in_bytes
        assert check_compiled(compiled, plan) == []
        if donate:
            state = [value for value in plan.inputs if value.path.startswith("state")]
            assert {d.path: d.aliased for d in plan.donation} == {v.path: "result[0]" + v.path.removeprefix("state") for v in state}
            assert any(".mu[" in d.path for d in plan.donation)
            reused = sum(d.bytes_per_device for d in plan.donation)
            assert compiled.memory_analysis().alias_size_in_bytes == reused
    assert peak[False] - peak[True] == reused  # pyright: ignore[reportPossiblyUnboundVariable]
