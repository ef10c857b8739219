"""Findings about ops that run whole, of plans that run by explicit collectives."""

from __future__ import annotations

import jax
import pytest
from jax import lax
from jax import numpy as jnp
from jax.experimental import sparse
from jax.sharding import PartitionSpec as P

import shardy_py as sp
from shardy_py.plan.record import PlanError

X, LARGE = (jax.ShapeDtypeStruct((n, n), jnp.float32) for n in (16, 4096))
MESH = {"x": 2, "y": 4}


def planned(f, lowering="shard_map", x=X):
    return sp.auto_shard(f, mesh=MESH, in_shardings=P("x", "y"), lowering=lowering).plan(x)


def entries(x):
    return sparse.BCOO.fromdense(x, nse=8).data


def test_what_runs_whole_is_found():
    plan = planned(entries, x=LARGE)
    assert "0 findings" in repr(plan)
    assert "partition" not in plan.timings
    (finding,) = [finding for finding in plan.findings if finding.severity == "warning"]
    assert (finding.kind, finding.severity) == ("runs-whole", "warning")
    assert "sp.manual_computation" in finding.fix
    assert "bcoo_fromdense runs whole on every device, which brings 56 MiB to each" in finding.message
    assert "test_findings.py:" in finding.location
    assert plan.check() == plan.findings
    with pytest.raises(PlanError, match="runs-whole"):
        plan.check(strict=True)
    assert "warning: runs-whole: bcoo_fromdense" in plan.as_text()
    assert "1 findings" in repr(plan)


def test_what_is_partitioned_is_not():
    assert planned(lambda x: jnp.tanh(x @ x)).check(strict=True) == ()
    assert "runs-whole" in [finding.kind for finding in planned(entries, "jit").findings]  # as our own partitioner would


def test_what_nothing_is_left_to_cut_of_is_a_note():
    plan = planned(lambda x: lax.linalg.schur(x)[0])
    assert [(finding.kind, finding.severity) for finding in plan.findings] == [("whole-dimension", "info")]
    assert planned(lambda x: jnp.sort(x, axis=0)).findings == ()


def test_few_bytes_are_a_note():
    plan = planned(entries)
    assert [(finding.kind, finding.severity, finding.bytes) for finding in plan.findings] == [("runs-whole", "info", 896)]
    assert plan.check(strict=True) == plan.findings


def test_equal_findings_are_one():
    def f(x):
        return [entries(y) for y in (x, x + 1)]

    assert len(planned(f).findings) == 1


def test_callbacks_are_a_note():
    def f(x):
        jax.debug.callback(lambda x: None, x)
        return x

    plan = planned(f)
    assert [(finding.kind, finding.severity) for finding in plan.findings] == [("whole-callback", "info")]
    assert plan.check(strict=True) == plan.findings
