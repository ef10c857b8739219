"""`plan.findings` and `plan.check` of programs that have one fault each."""

from __future__ import annotations

import pathlib
import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import PartitionSpec as P

import shardy_py as sp
from shardy_py.dialect import Mesh, TensorSharding
from shardy_py.errors import ShardyError
from shardy_py.facade import Plan
from shardy_py.plan.checks.specs import extended, nearest, spec_text
from shardy_py.plan.checks.table import KINDS, accepted
from shardy_py.plan.findings import Finding
from shardy_py.plan.record import PlanError

ROOT = pathlib.Path(__file__).resolve().parents[2]
MESH = {"data": 2, "model": 4}


def f32(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def planned(f: Callable[..., Any], *args: Any, mesh: dict[str, int] = MESH, **options: Any) -> Plan:
    return sp.auto_shard(f, mesh=mesh, **options).plan(*args)


def only(plan: Plan) -> Finding:
    (finding,) = plan.findings
    return finding


def kinds(plan: Plan) -> list[tuple[str, str, str]]:
    return [(f.kind, f.severity, f.path) for f in plan.findings]


W = f32(4096, 4096)


def test_a_good_plan_has_none() -> None:
    plan = planned(lambda w, x: jnp.tanh(x @ w), W, W, in_shardings=(P(None, "model"), P("data")))
    assert plan.check(strict=True) == plan.findings == ()


def test_small_programs_have_none() -> None:
    assert planned(lambda w, x: x @ w, f32(64, 64), f32(64, 64)).findings == ()


# --- replicated-large


def test_a_replicated_input_names_the_spec_that_cuts_it() -> None:
    plan = planned(lambda w, b, x: x @ w @ b, W, f32(4096, 4096), W, in_shardings=(None, P(None, "model"), P("data")))
    finding = only(plan)
    assert (finding.kind, finding.severity, finding.path, finding.bytes) == ("replicated-large", "warning", "w", 64 << 20)
    assert "w: P('model', 'data') in in_shardings or rules leaves 8 MiB of 64 MiB" in finding.fix
    spec = P("model", "data")
    assert planned(lambda w, b, x: x @ w @ b, W, W, W, in_shardings=(spec, P(None, "model"), P("data"))).inputs[0].sharding is not None
    with pytest.raises(PlanError, match="replicated-large"):
        plan.check(strict=True)
    assert plan.check() == plan.findings


def test_what_is_said_to_be_replicated_is_none() -> None:
    assert planned(lambda w, b, x: x @ w @ b, W, W, W, in_shardings=(P(), P(None, "model"), P("data"))).findings == ()


def test_the_updated_output_of_a_replicated_input_is_no_second_one() -> None:
    plan = planned(lambda w, x: w - x.T @ x, W, f32(64, 4096), in_shardings=(None, P(("data", "model"))))
    assert kinds(plan) == [("replicated-large", "warning", "w")]


def test_a_replicated_output_and_a_replicated_intermediate() -> None:
    def f(x, a):
        table = jnp.tanh(a[:, None] * a[None, :])  # one finding, for the product
        return x * 2, table.sum(0), jnp.zeros((4096, 2048))

    plan = planned(f, W, f32(2048), in_shardings=(P("data", "model"), None))
    found = [f for f in plan.findings if f.kind == "replicated-large"]
    (output,) = [f for f in found if f.path == "result[2]"]
    assert output.severity == "warning"
    assert "result[2]: P('model', 'data') in out_shardings leaves 4 MiB of 32 MiB" in output.fix
    inner = [f for f in found if f.path.startswith("%")]
    assert len(inner) == 1
    assert "float32[2048,2048] of mul is replicated on all 8 devices, 16 MiB on each" in inner[0].message
    assert "test_checks.py:" in inner[0].location
    assert inner[0].fix == "x = sp.with_sharding_constraint(x, P('model', 'data')) on it leaves 2 MiB of 16 MiB"


@pytest.mark.parametrize("how", ["by name", "by position"])
def test_arrays_of_layers_count_together(how: str) -> None:
    def f(p, x):
        for layer in p.values():
            x = jnp.tanh(x @ layer["w"] + layer["b"])
        return x

    params = {f"l{i}": {"w": f32(1024, 1024), "b": f32(1024)} for i in range(12)}
    specs = {"in_shardings": (None, P("data"))} if how == "by position" else {"in_shardings": {"x": P("data")}, "rules": [("x", P("data"))]}
    plan = planned(f, params, f32(64, 1024), mesh={"data": 8}, **specs)
    found = [f for f in plan.findings if f.kind == "replicated-large"]
    assert {(f.severity, f.bytes) for f in found} == {("warning", 4 << 20)}
    assert [sorted(f.paths) for f in found] == [sorted(f"p['l{i}']['w']" for i in range(12))]
    assert str(found[0]).endswith("[p['l0..11']['w']]")
    assert "the 12 alike take 48 MiB" in found[0].message
    notes = [f for f in plan.findings if f.kind == "unmatched-rule"]
    assert [f.paths for f in notes] == ([found[0].paths] if how == "by name" else [])


def test_masks_and_broadcasts_are_none() -> None:
    def f(x):
        mask = jnp.arange(4096)[:, None] >= jnp.arange(4096)[None, :]
        return jnp.where(mask, x, 0.0)

    assert planned(f, W, in_shardings=P("data", "model")).findings == ()


def test_values_that_nothing_reads_are_none() -> None:
    """The trace of a gradient through checkpointed layers has a second mask, of the first run, which no result depends on."""

    def layer(x: jax.Array, w: jax.Array) -> tuple[jax.Array, None]:
        query = (x @ w).reshape(16, 512, 4, 64)
        return x + jax.nn.dot_product_attention(query, query, query, is_causal=True).reshape(x.shape), None

    def loss(w: jax.Array, x: jax.Array) -> jax.Array:
        return jnp.sum(jax.lax.scan(jax.checkpoint(layer), x, w)[0] ** 2)

    plan = planned(jax.grad(loss), f32(2, 256, 256), f32(16, 512, 256), in_shardings=(P(None, None, "model"), P("data")))
    assert not [finding for finding in plan.findings if "bool" in finding.message]


def test_what_nothing_divides_says_which_size_would() -> None:
    finding = only(planned(lambda w, x: (w.sum(), x * 2), f32(1023, 1025), W, in_shardings=(None, P("data", "model"))))
    assert finding.path == "w"
    assert finding.severity == "info"
    assert finding.fix == "no free axis divides a dimension: make dimension 1 of size 1025 a multiple, 1024 or 1026"


def test_a_partly_replicated_giant_is_a_note() -> None:
    giant = f32(16384, 16384)
    plan = planned(lambda w, x: x @ w, giant, f32(64, 16384), in_shardings=(None, P("data", "model")))
    finding = only(plan)
    assert (finding.kind, finding.severity, finding.path) == ("replicated-large", "info", "w")
    assert "it is replicated over 'data'" in finding.message


def test_state_follows_its_parameter() -> None:
    """One finding for a parameter and its moments; a note for what devices add up and then hold whole."""

    def step(params, mu, x):
        grads = jax.grad(lambda p: jnp.sum(jnp.tanh(x @ p["w"]) @ p["w"].T))(params)
        mu = jax.tree.map(lambda m, g: 0.9 * m + g, mu, grads)
        return jax.tree.map(lambda p, m: p - m, params, mu), mu, x.T @ x[:, :2048]

    plan = planned(step, {"w": W}, {"w": W}, f32(512, 4096), mesh={"data": 8}, in_shardings=(None, None, P("data")))
    assert kinds(plan) == [("replicated-large", "warning", "params['w']"), ("replicated-large", "warning", "result[2]")]


def test_what_is_computed_together_is_a_note() -> None:
    plan = planned(lambda x: (x.T @ x[:, :2048]).sum(0), f32(512, 4096), mesh={"data": 8}, in_shardings=(P("data"),))
    assert kinds(plan) == [("replicated-large", "info", "%2")]


def test_a_constraint_that_replicates_an_activation() -> None:
    """Gradients that are summed and weights that are gathered by a constraint are meant; open dimensions are not replicated by it."""
    params = {"up": f32(4, 1024, 4096), "down": f32(4, 4096, 1024)}

    def step(params, x, constrain):
        def layer(x, w):
            w = jax.tree.map(lambda w: sp.with_sharding_constraint(w, P(None, None)), w)
            return constrain(jax.nn.relu(x @ w["up"])) @ w["down"], None

        grads = jax.grad(lambda params: jnp.mean(jax.lax.scan(layer, x, params)[0] ** 2))(params)
        grads = jax.tree.map(lambda g: sp.with_sharding_constraint(g, P()), grads)
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads)

    def warnings_with(constrain) -> list[tuple[str, str]]:
        shardings = (P(None, "data"), P("data"))
        plan = planned(lambda params, x: step(params, x, constrain), params, f32(8192, 1024), mesh={"data": 8}, in_shardings=shardings)
        return [(f.kind, f.message) for f in plan.findings if f.severity == "warning"]

    ((kind, message),) = warnings_with(lambda x: jax.lax.with_sharding_constraint(x, P(None, None)))
    assert kind == "replicated-large"
    assert message == "a constraint replicates float32[8192,4096] on all 8 devices, 128 MiB on each; 1 more of this line"
    assert warnings_with(lambda x: sp.with_sharding_constraint(x, P(P.UNCONSTRAINED, P.UNCONSTRAINED))) == []
    assert warnings_with(lambda x: x) == []


# --- unused-axis


def test_an_axis_that_cuts_nothing() -> None:
    finding = only(planned(lambda x: x * 2, W, in_shardings=P("data")))
    assert (finding.kind, finding.severity) == ("unused-axis", "warning")
    assert finding.message.startswith("mesh axis 'model' of size 4 shards nothing")
    assert finding.fix == "for example x: P('data', 'model') in in_shardings or rules"
    assert planned(lambda x: x * 2, W, in_shardings=P("data", "model")).findings == ()


def test_nothing_is_sharded() -> None:
    finding = only(planned(lambda x, w: x @ w, W, W))
    assert finding.message == "nothing is sharded: all 8 devices repeat the same work"
    assert "P(" in finding.fix


def test_axes_of_a_manual_computation_count() -> None:
    def f(x):
        return sp.manual_computation(jnp.tanh, in_specs=P("model"), out_specs=P("model"), manual_axes="model")(x)

    assert "unused-axis" not in [f.kind for f in planned(f, W, in_shardings=P("data")).findings]


def test_axes_of_size_one_do_not_count() -> None:
    assert planned(lambda x: x * 2, W, mesh={"data": 8, "model": 1}, in_shardings=P("data")).findings == ()


# --- indivisible


def test_an_output_that_was_asked_for() -> None:
    def f(table, x):
        return sp.with_sharding_constraint(x @ table.T, P("data", "model"))

    plan = planned(f, f32(50257, 1024), f32(1024, 1024), in_shardings=(None, P("data")))
    found = {f.path: f for f in plan.findings if f.kind == "indivisible"}
    assert "dimension 1 of size 50257 is not a multiple of 4 (model=4)" in found["result"].message
    assert "float32[1024@data,50257@model]" in found["result"].message
    assert found["result"].fix == "make dimension 1 50256 or 50260"
    assert found["table"].bytes == 50257 * 1024 * 4


def test_without_provenance_there_is_less_to_say() -> None:
    def f(x):
        return sp.with_sharding_constraint(x * 2, P("data", "model"))

    x = f32(1024, 1022)
    assert [f.kind for f in planned(f, x, in_shardings=P("data")).findings].count("indivisible") == 1
    quiet = planned(f, x, in_shardings=P("data"), options=sp.Options(provenance=False))
    assert "indivisible" not in [f.kind for f in quiet.findings]


def test_padding() -> None:
    def f(x):
        y = sp.with_sharding_constraint(jnp.tanh(x), P("data", None, "model"))
        return y.sum(-1)

    finding = only(planned(f, f32(4096, 512, 9), in_shardings=P("data")))
    assert (finding.kind, finding.severity) == ("indivisible", "info")
    assert "dimension 2 of size 9 is cut 4 ways (model=4), as if it were 12: 25 % of" in finding.message


# --- state-unlike-parameter


PARAMS = {"table": f32(8192, 4096), "layers": [{"w": f32(4096, 4096)} for _ in range(2)]}
SPECS = {"table": P("model", "data"), "layers": [{"w": P("data", "model")} for _ in range(2)]}


def test_optimizer_init_loses_shardings() -> None:
    plan = planned(optax.adam(1e-3).init, PARAMS, in_shardings=(SPECS,))
    found = [f for f in plan.findings if f.kind == "state-unlike-parameter"]
    tails = ("['table']", "['layers'][0]['w']", "['layers'][1]['w']")
    assert sorted(path for f in found for path in f.paths) == sorted(f"result[0].{m}{tail}" for tail in tails for m in ("mu", "nu"))
    mu, layers = plan.findings
    assert mu.paths == ("result[0].mu['table']", "result[0].nu['table']")
    assert len(layers.paths) == 4
    assert mu.fix == "result[0].mu['table']: P('model', 'data') in out_shardings"
    outs = optax.tree_map_params(optax.adam(1e-3), lambda _, s: s, jax.eval_shape(optax.adam(1e-3).init, PARAMS), SPECS)
    outs = jax.tree.map(lambda s: s if isinstance(s, P) else None, outs, is_leaf=lambda s: isinstance(s, P))
    assert planned(optax.adam(1e-3).init, PARAMS, in_shardings=(SPECS,), out_shardings=outs).findings == ()


def momentum(params, momentum, x):
    new = jax.tree.map(lambda m, p: 0.9 * m + p * x.sum(), momentum, params)
    return jax.tree.map(lambda p, m: p - m, params, new), new


def test_state_among_the_inputs() -> None:
    params = {"a": f32(4096, 4096), "b": f32(4096, 4096)}
    specs = {"a": P("data", "model"), "b": P(None, "model")}
    plan = planned(momentum, params, params, f32(8), in_shardings=(specs, {"a": P("data"), "b": P("data", "model")}, None))
    found = [f for f in plan.findings if f.kind == "state-unlike-parameter"]
    assert [f.path for f in found] == ["momentum['a']"]
    assert "its parameter params['a'] is float32[4096@data,4096@model]" in found[0].message


def test_state_that_is_cut_further_is_none() -> None:
    params = {"a": f32(4096, 4096)}
    plan = planned(momentum, params, params, f32(8), in_shardings=({"a": P("data")}, {"a": P("data", "model")}, None))
    assert "state-unlike-parameter" not in [f.kind for f in plan.findings]


def test_names_that_several_parameters_end_in_say_nothing() -> None:
    def f(params, mu):
        return jax.tree.map(jnp.tanh, (params, mu))

    params = {"one": {"w": W}, "two": {"w": W}}
    plan = planned(f, params, {"w": W}, in_shardings=(P("data", "model"), P("data")))
    assert "state-unlike-parameter" not in [f.kind for f in plan.findings]


# --- axes that are lost


def test_a_reshape_that_merges() -> None:
    plan = planned(lambda x, w: x.reshape(-1, 4096) @ w, f32(8, 2048, 4096), W, in_shardings=(P(None, "model"), P(None, "data")))
    (finding,) = [f for f in plan.findings if f.kind == "axis-lost-in-reshape"]
    assert "loses 'model': 8 x 2048 become one dimension" in finding.message
    assert finding.fix == "cut the part of size 8 over 'model', x: P('model') in in_shardings or rules"
    again = planned(lambda x, w: x.reshape(-1, 4096) @ w, f32(8, 2048, 4096), W, in_shardings=(P("model"), P(None, "data")))
    assert again.findings == ()


def attention(x, w):
    heads = (x @ w).reshape(64, 256, 12, 64)
    return jax.nn.softmax(jnp.einsum("bthd,bshd->bhts", heads, heads))


def test_a_reshape_that_splits_and_a_part_of_an_axis() -> None:
    mesh = {"data": 2, "model": 8}
    plan = planned(attention, f32(64, 256, 768), f32(768, 768), mesh=mesh, in_shardings=(P("data"), P(None, "model")))
    found = {f.kind: f for f in plan.findings}
    lost = found["axis-lost-in-reshape"]
    assert "dimension 2 is split into 12 x 64, and 8 ways do not divide 12" in lost.message
    assert "make 12 a multiple of 8" in lost.fix
    assert "12@model:(1)4" in found["sub-axis-removed"].message
    assert found["sub-axis-removed"].path == "result"
    fits = planned(attention, f32(64, 256, 768), f32(768, 768), mesh={"data": 4, "model": 4}, in_shardings=(P("data"), P(None, "model")))
    assert fits.findings == ()


# --- batch-axis-lost


def embedded(params, tokens, spec=None):
    x = jnp.take(params["table"], tokens, axis=0)
    x = x if spec is None else sp.with_sharding_constraint(x, spec)
    for w in params["layers"]:
        x = jnp.tanh(x @ w)
    return jnp.mean(x**2)


def fully_sharded(spec=None) -> Plan:
    def step(params, tokens):
        grads = jax.grad(embedded)(params, tokens, spec)
        return jax.tree.map(lambda p, g: p - g, params, grads)

    params = {"table": f32(8192, 2048), "layers": [f32(2048, 2048) for _ in range(4)]}
    specs = {"table": P("model", "data"), "layers": [P("data", "model")] * 4}
    return planned(step, params, jax.ShapeDtypeStruct((64, 512), jnp.int32), in_shardings=(specs, P("data")))


def moved(plan: Plan) -> int:
    return sum(r.bytes_per_device * (r.trips or 1) for r in plan.reshards)


def test_a_batch_that_gives_way_to_parameters() -> None:
    plan = fully_sharded()
    found = [f for f in plan.findings if f.kind == "batch-axis-lost"]
    first = found[0]
    assert (first.severity, first.location.rpartition(":")[2]) == ("warning", str(embedded.__code__.co_firstlineno + 1))
    assert "'data' came with tokens to dimension 0 of the result of gather, which has it on dimension 2 instead" in first.message
    assert first.fix == "x = sp.with_sharding_constraint(x, P('data')) on it"
    fixed = fully_sharded(P("data"))
    assert "batch-axis-lost" not in [f.kind for f in fixed.findings]
    assert moved(fixed) < 0.6 * moved(plan)


def test_without_state_the_largest_argument_counts_as_parameters() -> None:
    params = {"table": f32(8192, 2048), "layers": [f32(2048, 2048) for _ in range(4)]}
    specs = {"table": P("model", "data"), "layers": [P("data", "model")] * 4}
    tokens = jax.ShapeDtypeStruct((64, 512), jnp.int32)
    plan = planned(embedded, params, tokens, in_shardings=(specs, P("data")))
    assert "batch-axis-lost" in [f.kind for f in plan.findings]


def test_a_batch_that_is_kept_is_none() -> None:
    plan = planned(lambda w, x: jnp.tanh(x @ w), W, f32(8192, 4096), in_shardings=(P("data", "model"), P("data")))
    assert "batch-axis-lost" not in [f.kind for f in plan.findings]


def test_through_loops() -> None:
    def f(ws, x):
        return jax.lax.scan(lambda x, w: (jnp.tanh(x @ w), None), jnp.sin(x), ws)[0] @ ws[0]

    plan = planned(f, f32(4, 2048, 2048), f32(64, 2048), in_shardings=(P(None, None, "data"), P("data")))
    assert {f.kind for f in plan.findings} <= {"batch-axis-lost", "unused-axis"}


# --- cut-along-scan


def scanned(ws, x):
    return jax.lax.scan(lambda x, w: (jnp.tanh(x @ w), None), x, ws)[0]


def scanned_in_a_scan(ws, x):
    return jax.lax.scan(lambda x, _: (scanned(ws, x), None), x, None, length=3)[0]


def scanned_backwards(ws, x):
    return jax.tree.map(lambda w, g: w - g, ws, jax.grad(lambda ws: scanned(ws, x).sum())(ws))


@pytest.mark.parametrize("lowering", ["jit", "shard_map"])
@pytest.mark.parametrize("function", [scanned, scanned_in_a_scan, scanned_backwards, jax.jit(scanned)])
def test_a_stack_that_is_cut_along_the_scan(function: Callable[..., Any], lowering: str) -> None:
    arguments = f32(32, 1024, 1024), f32(256, 1024)
    plan = planned(function, *arguments, in_shardings=(P("data", None, "model"), P()), lowering=lowering)
    (finding,) = [f for f in plan.findings if f.kind == "cut-along-scan"]
    assert (finding.severity, finding.bytes) == ("warning", 16 << 20)
    assert finding.path in ("ws", "args[0]")
    assert "sharded over 'data' along dimension 0" in finding.message
    assert finding.fix == f"cut another dimension: {finding.path}: P(None, 'data', 'model') in in_shardings or rules"
    assert finding.location.endswith(f"test_checks.py:{scanned.__code__.co_firstlineno + 1}")
    better = planned(function, *arguments, in_shardings=(P(None, "data", "model"), P()), lowering=lowering)
    assert "cut-along-scan" not in [f.kind for f in better.findings]


def test_loops_of_other_kinds_are_none() -> None:
    """A while loop may take few of the slices; a slice of several rows is no step of a scan."""

    def some(ws):
        return jax.lax.while_loop(lambda s: s[0] < 3, lambda s: (s[0] + 1, s[1] + ws[s[0]]), (0, jnp.zeros(ws.shape[1:])))[1]

    for function in (some, lambda ws: ws[3], lambda ws: jax.lax.scan(lambda c, _: (c + 1, ws[:16]), 0, None, length=3)[1]):
        plan = planned(function, f32(32, 1024, 1024), in_shardings=P("data"))
        assert "cut-along-scan" not in [f.kind for f in plan.findings]


# --- whole-callback


def host_matmul(x, w):
    return jax.pure_callback(np.matmul, jax.ShapeDtypeStruct((x.shape[0], w.shape[1]), x.dtype), x, w)


@pytest.mark.parametrize("lowering", ["jit", "shard_map"])
def test_a_callback_without_a_rule(lowering) -> None:
    finding = only(planned(host_matmul, W, W, in_shardings=(P("data"), P(None, "model")), lowering=lowering))
    assert (finding.kind, finding.severity, finding.bytes) == ("whole-callback", "warning", 80 << 20)


# --- costly-reshard


def costly(plan: Plan) -> list[Finding]:
    return [finding for finding in plan.findings if finding.kind == "costly-reshard"]


def test_an_intermediate_that_is_gathered_is_a_note() -> None:
    def f(x, w):
        h = jnp.tanh(x @ w)
        return sp.with_sharding_constraint(h, P()).sum()

    plan = planned(f, W, W, in_shardings=(P("data"), P(None, "model")), lowering="jit")
    assert [(x.severity, x.path.startswith("%")) for x in costly(plan)] == [("info", True)]


def test_explicit_collectives_have_their_own() -> None:
    plan = planned(host_sum, W, in_shardings=P("data", "model"), lowering="shard_map")
    assert {f.kind for f in plan.findings} <= {"whole-callback", "runs-whole", "costly-reshard"}


def host_sum(x):
    return jax.pure_callback(np.sum, jax.ShapeDtypeStruct((), x.dtype), jnp.tanh(x))


def test_weights_that_are_cut_over_the_axis_of_the_data_are_not() -> None:
    def loss(w, x):
        return jnp.tanh(x @ w).sum()

    plan = planned(jax.value_and_grad(loss), W, f32(8192, 4096), mesh={"x": 8}, in_shardings=(P("x"), P("x")))
    assert costly(plan) == []


# --- order, groups, what is accepted


def test_the_gravest_come_first() -> None:
    def doubled(*xs):
        return [x * 2 for x in xs]

    plan = planned(doubled, W, f32(8192, 8192), f32(1024, 1024), W, in_shardings=(None, None, None, P("x")), mesh={"x": 2})
    assert [(f.path, f.severity) for f in plan.findings] == [("xs[1]", "warning"), ("xs[0]", "warning"), ("xs[2]", "info")]


def test_layers_are_one() -> None:
    def f(layers, x):
        for layer in layers:
            x = jnp.tanh(x @ layer["w"])
        return x

    plan = planned(f, [{"w": f32(2048, 2048)} for _ in range(12)], f32(64, 2048), in_shardings=(None, P(("data", "model"))))
    (finding,) = plan.findings
    assert finding.paths == tuple(f"layers[{i}]['w']" for i in range(12))
    with pytest.raises(PlanError) as error:
        plan.check(strict=True)
    assert str(error.value).splitlines() == ["the plan of f has 1 finding", f"  {finding}"]
    (left,) = plan.check(ignore="replicated-large:layers[0]['w']")
    assert (left.path, left.paths) == ("layers[1]['w']", finding.paths[1:])
    (stored,) = sp.Plan.from_json(plan.to_json()).findings
    assert (stored.kind, stored.message, stored.paths, stored.fix) == (
        finding.kind,
        finding.message,
        finding.paths,
        f"{finding.fix} (not tried)",
    )
    assert plan.diff(plan).new_findings == ()


def test_a_parameter_and_its_moments_are_one() -> None:
    def step(s, x):
        g = jax.grad(lambda w: jnp.mean((x @ w["a"]) ** 2))(s["w"])
        mu, nu = ({"a": 0.9 * s[k]["a"] + g["a"]} for k in ("mu", "nu"))
        return {"w": {"a": s["w"]["a"] - mu["a"] / (1 + jnp.sqrt(nu["a"]))}, "mu": mu, "nu": nu}

    state = {key: {"a": f32(2048, 2047)} for key in ("w", "mu", "nu")}
    options = {"options": sp.Options(indivisible="drop"), "rules": [("a", P(None, "model")), ("x", P("data"))], "donate_argnums": 0}
    plan = sp.auto_shard(step, mesh={"data": 2, "model": 4}, **options).plan(state, f32(64, 2048))
    assert [len(f.paths) for f in plan.findings if f.kind == "indivisible"] == [6]


def test_findings_print_as_lines() -> None:
    plan = planned(lambda w, v: (w * 2, v * 2), W, f32(8192, 8192), in_shardings=(None, None), mesh={"x": 2}, rules=[("u", P("x"))])
    assert len(plan.findings) > 1
    assert str(plan.findings).splitlines() == list(map(str, plan.findings))
    assert repr(plan.check(ignore={f.kind for f in plan.findings})) == "no findings"


def test_what_is_accepted_is_left_out() -> None:
    plan = planned(lambda w, v, x: x @ w @ v, W, W, W, in_shardings=(None, None, P("data", "model")))
    assert [f.path for f in plan.check(ignore="replicated-large:w")] == ["v"]
    assert plan.check(strict=True, ignore=["replicated-large"]) == ()
    assert plan.check(ignore=["replicated-large:q*", "unused-axis"]) == plan.findings
    with pytest.raises(ShardyError, match="there is no finding of kind 'replicated'") as error:
        plan.check(ignore="replicated")
    assert "did you mean 'replicated-large'?" in str(error.value)
    with pytest.raises(TypeError, match="ignore is 3, a int"):
        accepted((), 3)  # pyright: ignore[reportArgumentType]
    with pytest.raises(TypeError, match="ignore holds 3, a int"):
        plan.check(ignore=[3])  # pyright: ignore[reportArgumentType]
    assert accepted(plan.findings, ["replicated-large:*"]) == ()


def test_findings_are_the_same_every_time() -> None:
    plans = [planned(optax.adam(1e-3).init, PARAMS, in_shardings=(SPECS,)) for _ in range(2)]
    assert plans[0].findings == plans[1].findings
    assert all(isinstance(hash(f), int) for f in plans[0].findings)


def test_kinds_are_known_and_told() -> None:
    sources = [path.read_text() for path in sorted((ROOT / "shardy_py").rglob("*.py"))]
    named = {match[1] for text in sources for match in re.finditer(r'(?:Finding|\.report)\(\s*"([a-z-]+)"', text)}
    named |= {"jit-lowering", "runs-whole", "whole-callback", "whole-dimension"}
    assert named <= set(KINDS)
    rows = re.findall(r"^\| `([a-z-]+)` \| ([a-z, ]+) \| (.*?) \|$", (ROOT / "docs" / "findings.md").read_text(), re.MULTILINE)
    assert [kind for kind, _, _ in rows] == list(KINDS)


def test_specs() -> None:
    mesh = Mesh([("x", 2), ("y", 4)])
    assert spec_text(TensorSharding("m", [[], []])) == "P()"
    assert spec_text(TensorSharding.parse('#sdy.sharding<@m, [{"y":(1)2}]>')) is None
    assert extended((7, 5), None, mesh) is None
    assert str(extended((8, 8), TensorSharding("m", [["x"], []]), mesh)) == '#sdy.sharding<@m, [{"x"}, {"y"}]>'
    assert (nearest(10, 4), nearest(3, 8)) == ("8 or 12", "8")
