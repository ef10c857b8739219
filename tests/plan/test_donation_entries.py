"""Donated arguments in a plan; no device is needed."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import optax
import pytest
from jax.sharding import PartitionSpec as P

import shardy_py as sp
from shardy_py.plan.donation import DonatedBuffer, arrangement, pairs
from shardy_py.plan.paths import names_of
from shardy_py.plan.record import PlanError

MESH = {"x": 2, "y": 4}


def f32(*shape, dtype=jnp.float32):
    return jax.ShapeDtypeStruct(shape, dtype)


A = f32(8, 16)


def planned(fun, *args, ins=None, outs=None, donate=0, **options):
    return sp.auto_shard(fun, mesh=MESH, in_shardings=ins, out_shardings=outs, donate_argnums=donate, **options).plan(*args)


def aliases(plan):
    return {d.path: d.aliased for d in plan.donation}


def only(plan):
    (entry,) = [d for d in plan.donation if d.aliased is None]
    return entry


def test_a_train_state_is_paired_by_name():
    optimizer = optax.adam(1e-3)

    def step(params, opt_state, x):
        grads = jax.grad(lambda p: jnp.mean((x @ p["up"] @ p["down"]) ** 2))(params)
        updates, opt_state = optimizer.update(grads, opt_state, params)
        return opt_state, optax.apply_updates(params, updates)

    params = {"up": f32(8, 8), "down": f32(8, 8)}
    plan = planned(step, params, jax.eval_shape(optimizer.init, params), A.update(shape=(4, 8)), donate=(0, 1))
    assert aliases(plan) == {
        "params['down']": "result[1]['down']",
        "params['up']": "result[1]['up']",
        "opt_state[0].count": "result[0][0].count",
        "opt_state[0].mu['down']": "result[0][0].mu['down']",
        "opt_state[0].mu['up']": "result[0][0].mu['up']",
        "opt_state[0].nu['down']": "result[0][0].nu['down']",
        "opt_state[0].nu['up']": "result[0][0].nu['up']",
    }
    assert plan.check(strict=True) == ()
    assert str(plan.donation[0]) == "params['down']: float32[8,8] -> result[1]['down']  256 B  the output is an update of it"


def test_what_is_returned_is_paired_with_itself():
    plan = planned(lambda a, b: (b, a), A, A, donate=(0, 1))
    assert aliases(plan) == {"a": "result[1]", "b": "result[0]"}
    assert {d.reason for d in plan.donation} == {"it is this output"}


@pytest.mark.parametrize(
    ("name", "fun"),
    {
        "under jit": lambda s: jax.jit(lambda t: {"new": t["b"], "old": t["a"]})(s),
        "carried": lambda s: jax.lax.fori_loop(0, 3, lambda i, t: {"new": t["new"], "old": t["old"] + i}, {"new": s["b"], "old": s["a"]}),
        "in a branch": lambda s: {"old": jax.lax.cond(s["a"][0, 0] > 0, lambda v: v, lambda v: v + 1, s["a"]), "new": s["b"]},
        "constrained": lambda s: sp.with_sharding_constraint({"new": s["b"], "old": s["a"]}, P("x")),
        "updated": lambda s: {"new": s["b"].at[0].set(1.0), "old": jax.lax.dynamic_update_slice(s["a"], jnp.ones((1, 16)), (0, 0))},
    }.items(),
)
def test_data_is_followed(name, fun):
    assert aliases(planned(fun, {"a": A, "b": A}, ins=(P("x"),))) == {"s['a']": "result['old']", "s['b']": "result['new']"}


def test_updates_in_place_come_before_names():
    plan = planned(lambda s: {"a": s["b"] + 1, "b": s["a"] + 1}, {"a": A, "b": A})
    assert aliases(plan) == {"s['a']": "result['b']", "s['b']": "result['a']"}


def test_names_decide_where_positions_are_mixed():
    plan = planned(lambda p, m: {"m": jnp.tanh(m @ m.T) @ m, "p": jnp.tanh(p @ p.T) @ p}, A, A, donate=(0, 1))
    assert aliases(plan) == {"p": "result['p']", "m": "result['m']"}
    assert {d.reason for d in plan.donation} == {"the names agree"}


def test_an_update_goes_to_the_nearest_input():
    plan = planned(lambda p, m, g: (p - 0.1 * (0.9 * m + g), 0.9 * m + g), A, A, A, donate=(0, 1))
    assert aliases(plan) == {"p": "result[0]", "m": "result[1]"}


BIG = f32(1024, 1024)
BOTH = ({"old": BIG, "w": BIG},)
REFUSED = {
    "unused": (lambda a, b: b * 2, (BIG, BIG), {"donate": (0, 1)}, "a", "the function does not use it"),
    "unused after all": (lambda a, b: (jnp.sin(a), b * 2)[1], (BIG, BIG), {"donate": (0, 1)}, "a", "the function does not use it"),
    "shape": (lambda a: a.sum(0), (BIG,), {}, "a", "no output has the shape float32[1024,1024]"),
    "dtype": (
        lambda a: a.astype(jnp.bfloat16),
        (BIG,),
        {},
        "a",
        "it is float32[1024,1024], result is bfloat16[1024,1024]: 4 MiB and 2 MiB per device",
    ),
    "sharding": (
        lambda a: a * 2,
        (BIG,),
        {"ins": (P("x"),), "outs": P("x", "y")},
        "a",
        "it is float32[1024@x,1024], result is float32[1024@x,1024@y]",
    ),
    "taken": (lambda s: s["old"].sum() + s["w"], BOTH, {}, "s['old']", "no output of its size is left: result takes s['w']"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_why_not(kind):
    fun, args, options, path, reason = REFUSED[kind]
    plan = planned(fun, *args, **options)
    entry = only(plan)
    assert (entry.path, entry.kind, entry.aliased) == (path, kind.split()[0], None)
    assert reason in entry.reason
    assert f"is not reused: {entry.reason}" in str(entry)
    (finding,) = [f for f in plan.findings if f.kind == "refused-donation"]
    assert (finding.severity, finding.path) == ("warning", path)
    assert (finding.fix, finding.bytes) == (entry.fix, entry.bytes_per_device)
    assert "do not donate" in entry.fix
    assert "test_donation_entries.py" in finding.location
    with pytest.raises(PlanError, match="refused-donation"):
        plan.check(strict=True)
    assert plan.check() == plan.findings


def test_a_small_array_that_is_not_reused_is_a_note():
    (finding,) = planned(lambda s: s["w"].sum(), {"w": A}).findings
    assert (finding.kind, finding.severity) == ("refused-donation", "info")


def test_debugging_nans_turns_donation_off():
    with jax.debug_nans(True):
        plan = planned(lambda a: a + 1, A)
    assert only(plan).kind == "off"
    assert "jax_debug_nans" in only(plan).reason


def test_as_many_bytes_are_enough():
    plan = planned(lambda a: a.astype(jnp.int32).T, A, ins=(P("x"),), outs=P("x"))
    assert aliases(plan) == {"a": "result"}


def test_keywords_statics_and_what_is_not_donated():
    def fun(n, state, *, cache):
        return {"state": state["w"] * n, "cache": cache + 1}

    f = sp.auto_shard(fun, mesh=MESH, static_argnums=0, donate_argnames=("state", "cache"))
    assert aliases(f.plan(2, {"w": A}, cache=A)) == {"state['w']": "result['state']", "cache": "result['cache']"}
    assert sp.auto_shard(fun, mesh=MESH, static_argnums=0).plan(2, {"w": A}, cache=A).donation == ()


def test_keys_have_their_bytes():
    plan = planned(lambda k: jax.random.split(k)[0], jax.eval_shape(lambda: jax.random.key(0)))
    assert aliases(plan) == {"k": "result"}
    assert plan.donation[0].bytes_per_device == 8


@pytest.mark.parametrize(
    ("fun", "args", "donate", "expected"),
    [
        (lambda a, b: (a, b), (A, A), (0, 1), ((0, 1), None)),
        (lambda a, b: (b, a), (A, A), (0, 1), ((0, 1), (1, 0))),
        (lambda a, b: a.sum() + b, (A, A), (0, 1), ((1,), None)),
        (lambda a, x: (x.sum(), a + x), (A, A), 0, ((0,), (1, 0))),
        (lambda s: s["a"].sum() + s["b"], ({"a": A, "b": A},), 0, ((1,), None)),
        (lambda s: (s["a"].astype(jnp.int32), s["b"] * 2), ({"a": A, "b": A},), 0, ((1, 0), (1, 0))),
        (lambda a: a.sum(0), (A,), 0, ((), None)),
    ],
)
def test_paired_outputs_come_first(fun, args, donate, expected):
    plan = planned(fun, *args, donate=donate)
    made = arrangement(plan.donation, plan.program, plan.outputs)
    assert (made.donated, made.outputs) == expected


def buffer(index, *names, shape=(4,), dtype="float32", size=16):
    return DonatedBuffer(index, names, shape, dtype, size)


def test_pairs_are_as_many_as_fit():
    ins = [buffer(i, "s", str(i)) for i in range(5)]
    outs = [buffer(i, "r", str(i + 1)) for i in range(3)]
    found = pairs(ins, outs, lambda output: {})
    assert [(one.index, other.index) for one, other, _ in found] == [(1, 0), (2, 1), (3, 2)]


@pytest.mark.parametrize(
    ("path", "names"),
    [
        ("x", ("x",)),
        ("result[0]['a']['b c'].mu[<flat index 3>]", ("result", "0", "a", "b c", "mu", "3")),
        ("args[2]['it\\'s']", ("args", "2", "it\\'s")),
    ],
)
def test_names_of_paths(path, names):
    assert names_of(path) == names


def test_thousands_of_leaves_are_paired_quickly():
    ins = [buffer(i, "state", group, f"w{n}") for i, (group, n) in enumerate((g, n) for g in ("p", "mu", "nu") for n in range(1000))]
    outs = [buffer(i, "result", group, f"w{n}") for i, (group, n) in enumerate((g, n) for g in ("nu", "p", "mu") for n in range(1000))]
    found = pairs(ins, outs, lambda output: {})
    assert all(one.names[1:] == other.names[1:] for one, other, _ in found)
    assert len(found) == 3000


def test_parameters_are_those_of_the_compiled_program():
    """JAX drops what no result needs."""
    plan = planned(lambda unused, kept, w: (kept.sum(), w * 2), A, A, A, donate=(0, 2))
    assert [(entry.path, entry.input, entry.parameter) for entry in plan.donation] == [("unused", 0, None), ("w", 2, 1)]
