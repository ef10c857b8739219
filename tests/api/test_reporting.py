"""The first run of a plan says what deserves a look: once, in a few lines, as Options.check says."""

from __future__ import annotations

import logging
import warnings

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec as P

import shardy_py as sp
from shardy_py.api.planning import make_plan
from shardy_py.api.running import report, warning_text
from shardy_py.plan.findings import Finding
from shardy_py.plan.record import PlanError

MESH = {"data": 4, "model": 2}
RULES = [("up", P(None, "model")), ("donw", P("model")), ("hed", P(None, "model")), ("x", P("data")), ("embd", P("model"))]


def step(params, x):
    return jnp.tanh(x @ params["up"]) @ params["down"] @ params["head"]


def arguments():
    return {"up": jnp.ones((8, 16)), "down": jnp.ones((16, 8)), "head": jnp.ones((8, 32))}, jnp.ones((8, 8))


def said(run, *args, calls=2):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(calls):
            run(*args)
    return [w for w in caught if issubclass(w.category, sp.PlanWarning)]


@pytest.mark.parametrize("lowering", ["jit", "shard_map", "auto"])
def test_misspelt_rules_are_said_once_in_a_few_lines(lowering):
    run = sp.auto_shard(step, mesh=MESH, rules=RULES, lowering=lowering)
    assert run.plan(*arguments()).findings
    (warning,) = said(run, *arguments())
    text = str(warning.message)
    assert all(repr(name) in text for name in ("donw", "hed", "embd"))
    assert "test_reporting.py" in text.splitlines()[0]
    assert len(text.splitlines()) <= 5
    assert warning.filename == __file__


def llama(layers=32, width=4096, hidden=14336, heads=32, kv=8, vocabulary=128256):
    """The parameters of a Llama, scanned; by default those of Llama 3 with 8 billion."""
    head = width // heads
    shapes = {"q": (width, heads, head), "k": (width, kv, head), "v": (width, kv, head), "o": (heads, head, width)}
    shapes |= {"gate": (width, hidden), "up": (width, hidden), "down": (hidden, width), "norm": (width,)}
    blocks = {name: jax.ShapeDtypeStruct((layers, *shape), "bfloat16") for name, shape in shapes.items()}
    table = jax.ShapeDtypeStruct((vocabulary, width), "bfloat16")
    return {"embed": table, "layers": blocks, "lm_head": jax.ShapeDtypeStruct((width, vocabulary), "bfloat16")}


def llama_block(x, p):
    y = x * jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-5) * p["norm"]
    q, k, v = (jnp.einsum("btd,dhe->bthe", y, p[name]) for name in "qkv")
    q = q.reshape(*q.shape[:2], k.shape[2], -1, q.shape[-1])
    mask = jnp.tril(jnp.ones((x.shape[1], x.shape[1]), bool))
    scores = jax.nn.softmax(jnp.where(mask, jnp.einsum("btkge,bske->bkgts", q, k), -1e9), -1)
    x = x + jnp.einsum("bthe,hed->btd", jnp.einsum("bkgts,bske->btkge", scores, v).reshape(*x.shape[:2], *p["o"].shape[:2]), p["o"])
    return x + (jax.nn.silu(x @ p["gate"]) * (x @ p["up"])) @ p["down"], None


def llama_step(params, tokens):
    def loss(params):
        x, _ = jax.lax.scan(llama_block, params["embed"][tokens], params["layers"])
        return jnp.mean(jax.nn.logsumexp((x @ params["lm_head"]).astype("float32"), -1))

    value, gradients = jax.value_and_grad(loss)(params)
    return jax.tree.map(lambda p, g: p - 0.001 * g, params, gradients), value


LLAMA_RULES = [
    ("tokens", P("data")),
    ("embed", P("model")),
    ("layers/gat", P(None, None, "model")),
    ("layer/up", P(None, None, "model")),
    ("lmhead", P(None, "model")),
]
"""Three of five are misspelt."""


def test_a_llama_with_misspelt_rules_says_so_in_five_lines():
    run = sp.auto_shard(llama_step, mesh={"data": 2, "model": 8}, rules=LLAMA_RULES)
    planned = make_plan(run.trace(llama(), jax.ShapeDtypeStruct((16, 2048), "int32"))._call)
    with pytest.warns(sp.PlanWarning) as caught:
        report(planned)
    (text,) = [str(w.message) for w in caught]
    assert len(text.splitlines()) <= 5
    assert text.splitlines()[1].startswith("  unused-rule: ")
    assert all(repr(pattern) in text for pattern in ("layers/gat", "layer/up", "lmhead"))
    assert "'embed'" not in text


def test_a_small_llama_with_misspelt_rules_says_so_once():
    abstract = llama(layers=2, width=32, hidden=64, heads=8, kv=4, vocabulary=64)
    params = jax.tree.map(lambda leaf: jnp.full(leaf.shape, 0.01, leaf.dtype), abstract)
    run = sp.auto_shard(llama_step, mesh=MESH, rules=LLAMA_RULES)
    (warning,) = said(run, params, jnp.ones((8, 16), "int32"), calls=3)
    assert len(str(warning.message).splitlines()) <= 5
    assert all(repr(pattern) in str(warning.message) for pattern in ("layers/gat", "layer/up", "lmhead"))


def test_bytes_count_from_where_they_are_notable():
    def whole(w, x):
        return x @ w

    run = sp.auto_shard(whole, mesh=MESH, in_shardings={"x": P("data")})
    small, large = (said(run, jnp.ones((n, n)), jnp.ones((8, n))) for n in (64, 2048))
    assert small == []
    (warning,) = large
    assert "replicated-large: w: float32[2048,2048] is replicated on all 8 devices" in str(warning.message)


def test_what_is_fine_says_nothing():
    run = sp.auto_shard(step, mesh=MESH, in_shardings=(None, P("data")))
    assert said(run, *arguments()) == []


def test_findings_can_be_errors_or_silent():
    for check, expected in (("raise", PlanError), ("off", None)):
        run = sp.auto_shard(step, mesh=MESH, rules=RULES, options=sp.Options(check=check))
        if expected is None:
            assert said(run, *arguments()) == []
            continue
        for _ in range(2):
            with pytest.raises(expected, match="'donw'"):
                run(*arguments())
        assert run.plan(*arguments()).findings
    with pytest.raises(sp.SpecError, match="check is 'sometimes'"):
        sp.Options(check="sometimes")  # pyright: ignore[reportArgumentType]


def test_a_plan_is_one_line_of_log(caplog):
    run = sp.auto_shard(step, mesh=MESH, in_shardings=(None, P("data")))
    with caplog.at_level(logging.INFO, logger="shardy_py"):
        for _ in range(3):
            run(*arguments())
    (record,) = [r for r in caplog.records if r.name == "shardy_py"]
    assert "test_reporting.py" in record.getMessage()
    assert "for data=4, model=2 in " in record.getMessage()
    assert record.getMessage().endswith("s: 4 inputs, 1 outputs")


def test_many_kinds_take_five_lines():
    findings = [Finding(f"kind{i}", f"message {i}", bytes=i << 20) for i in range(6)]
    assert len(warning_text(findings, "f.py:1").splitlines()) == 5
    assert "3 more kinds; " in warning_text(findings, "f.py:1")


def test_what_is_only_differentiated_is_said_when_it_runs():
    run = sp.auto_shard(lambda w, x: (step(w, x) ** 2).sum(), mesh=MESH, rules=RULES)
    params, x = arguments()
    assert said(jax.grad(run), params, x) == []
    assert len(said(run, params, x)) == 1
