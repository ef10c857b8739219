"""The peak that a memory analysis promises for a remedy is that of the changed function's plan."""

from __future__ import annotations

import json
import re

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec as P

import shardy_py as sp

MESH = {"data": 2, "model": 4}


def f32(*shape):
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def layer(x, w):
    a = jnp.tanh(x @ w)
    return a * jnp.exp(x), None


def loss(w, x, body=layer):
    return jax.lax.scan(body, x, w)[0].sum()


def checkpointed(w, x):
    return loss(w, x, jax.checkpoint(layer))


WIDE = f32(32, 64, 64), f32(4096, 64)


def planned(function, args=WIDE, **options):
    return sp.auto_shard(function, mesh=MESH, in_shardings=(None, P("data")), **options).plan(*args)


def mib(text):
    return float(re.search(r"leaves ([\d.]+) MiB", text)[1]) * 2**20


@pytest.mark.parametrize("hardware", ["h100", 30 << 20, 10 << 20])
@pytest.mark.parametrize("lowering", ["shard_map", "jit"])
def test_residuals_that_dominate(lowering, hardware):
    memory = planned(jax.value_and_grad(loss), lowering=lowering).memory_analysis(hardware)
    finding = next(finding for finding in memory.findings if "jax.checkpoint" in finding.message)
    line = loss.__code__.co_firstlineno + 1
    assert f"residuals of the scan at test_remedies.py:{line} are 64 MiB of " in finding.message
    assert finding.location.endswith(f"test_remedies.py:{line}")
    assert finding.severity == ("info" if hardware == "h100" else "warning")
    real = planned(jax.value_and_grad(checkpointed), lowering=lowering).memory_analysis(hardware).peak_memory_in_bytes
    assert abs(mib(finding.message) - real) < 0.05 * real
    assert finding.bytes == pytest.approx(memory.peak_memory_in_bytes - real, rel=0.05)
    fits = {30 << 20: ", which fits", 10 << 20: ", which does not fit either"}
    assert finding.message.endswith(fits.get(hardware, "MiB"))
    assert finding.message in str(memory)
    assert memory.relief.residual_bytes == 64 << 20
    assert json.loads(memory.to_json())["findings"][0]["kind"] == "smaller-peak"


def test_nothing_to_say(tmp_path):
    assert planned(jax.grad(checkpointed)).memory_analysis("h100").findings == ()
    assert planned(jax.grad(loss), (f32(4, 8, 8), f32(16, 8))).memory_analysis().findings == ()
    assert "what would take less memory" not in str(planned(jax.grad(checkpointed)).memory_analysis("h100"))
    plan = planned(jax.grad(loss))
    plan.save(tmp_path / "plan.json")
    assert sp.Plan.load(tmp_path / "plan.json").memory_analysis("h100").findings == ()


def adam(state, x):
    return jax.tree.map(lambda s: s * 0.9 + x.sum(), state)


def test_a_missing_donation():
    state = {"mu": f32(2048, 512), "nu": f32(2048, 512)}
    room = 10 << 20
    memory = planned(adam, (state, f32(16, 4)), rules=[("mu", P()), ("nu", P())]).memory_analysis(room)
    assert memory.fits is False
    (finding,) = memory.findings
    assert "donating state (donate_argnums=0) leaves 8 MiB of 16 MiB, which fits" in finding.message
    donated = planned(adam, (state, f32(16, 4)), rules=[("mu", P()), ("nu", P())], donate_argnums=0).memory_analysis(room)
    assert donated.fits
    assert donated.findings == ()
    assert (memory.relief.donation_bytes, donated.relief.donation_bytes) == (8 << 20, 0)


def test_one_more_cut():
    """Of what is whole, but not of what is said to be whole by `P()`."""
    memory = planned(adam, (f32(2048, 512), f32(16, 4)), donate_argnums=0).memory_analysis(3 << 20)
    (finding,) = memory.findings
    assert "cutting state by P(('model', 'data')) leaves 512 KiB of 4 MiB, which fits" in finding.message
    meant = sp.auto_shard(adam, mesh=MESH, in_shardings=(P(), P("data")), donate_argnums=0).plan(f32(2048, 512), f32(16, 4))
    assert not meant.memory_analysis(3 << 20).findings


def test_the_best_comes_first():
    def step(w, x):
        return jax.tree.map(lambda a, g: a - 0.1 * g, w, jax.grad(loss)(w, x))

    memory = planned(step, (f32(32, 512, 512), f32(512, 512))).memory_analysis(60 << 20)
    assert len(memory.findings) > 1
    saved = [finding.bytes for finding in memory.findings]
    assert saved == sorted(saved, reverse=True)


def test_gibibytes_of_residuals_are_among_the_findings_of_a_plan():
    plan = planned(jax.grad(loss), (f32(32, 64, 64), f32(1 << 18, 64)))
    (finding,) = [finding for finding in plan.findings if finding.kind == "smaller-peak"]
    assert "are 4 GiB of 4.16 GiB; jax.checkpoint" in finding.message
    assert finding == plan.memory_analysis().findings[0]
    assert "smaller-peak" not in [finding.kind for finding in planned(jax.grad(loss)).findings]
