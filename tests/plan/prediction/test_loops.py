"""XLA's propagation through loops, against the memory of residuals."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P

import shardy_py as sp
from shardy_py.ir import Op, Program
from shardy_py.plan.prediction.loops import XlaProgramBuilder, as_xla_propagates

pytestmark = pytest.mark.usefixtures("usual_fusions")

MESH = {"x": 2, "y": 4}


def f32(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def recurrent(weights: dict[str, jax.Array], xs: jax.Array) -> jax.Array:
    def cell(h: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        gate = jax.nn.sigmoid(x @ weights["a"] + h @ weights["b"])
        h = gate * jnp.tanh(h @ weights["c"]) + (1 - gate) * h
        return h, h

    return jnp.sum(lax.scan(cell, jnp.zeros((xs.shape[1], 32)), xs)[1] ** 2)


ARGS = ({"a": f32(16, 32), "b": f32(32, 32), "c": f32(32, 32)}, f32(24, 8, 16))


def loops(program: Program) -> list[Op]:
    return [op for op in program.walk() if op.name == "stablehlo.while"]


def planned(specs: Any) -> sp.Plan:
    return sp.auto_shard(jax.grad(recurrent), mesh=MESH, in_shardings=specs).plan(*ARGS)


def test_loops_carry_what_they_change() -> None:
    program = planned(({"a": P(None, "y"), "b": P("x", "y"), "c": None}, None)).program
    made, lineage = as_xla_propagates(program)
    assert made is not program
    for before, after in zip(loops(program), loops(made), strict=True):
        assert len(after.operands) < len(before.operands)
        body = after.regions[1]
        assert all(end is not a for a, end in zip(body.arguments, body.terminator.operands, strict=True))
    assert [v.sharding for v in made.main.arguments] == [v.sharding for v in program.main.arguments]
    assert made.main.result_shardings == program.main.result_shardings
    assert not any(op.name == "sdy.named_computation" for op in made.walk())
    ops = set(program.walk())
    assert all(lineage.op(op) in ops for op in made.walk() if not op.name.endswith(".return"))


def test_programs_without_loops_stay() -> None:
    program = sp.auto_shard(lambda x: x @ x, mesh=MESH, in_shardings=P("x")).plan(f32(8, 8)).program
    assert as_xla_propagates(program)[0] is program


def test_copies_compute_the_same() -> None:
    program = planned((None, P(None, "x"))).program
    copy = XlaProgramBuilder(program, frozenset(), loops=False).program()
    assert [op.name for op in copy.walk()] == [op.name for op in program.walk()]


def test_copies_know_no_shardings_of_what_goes_into_calls() -> None:
    program = planned((None, P(None, "x"))).program
    calls = [
        [op for op in made.walk() if op.name == "sdy.named_computation"]
        for made in (program, XlaProgramBuilder(program, set(), loops=False).program())
    ]
    assert [any(op.attributes["in_shardings"] or op.attributes["out_shardings"] for op in found) for found in calls] == [True, False]


def test_constraints_stand_behind_the_ops_of_an_equation() -> None:
    """As those of JAX's own copy do: a split is one equation and several slices."""

    def halves(x: jax.Array) -> jax.Array:
        a, b = jnp.split(x, 2, axis=1)
        return a * b

    program = sp.auto_shard(halves, mesh=MESH, in_shardings=P("x")).plan(f32(8, 8)).program
    pinned = {op.result for op in program.walk() if op.name == "stablehlo.slice"}
    names = [op.name for op in XlaProgramBuilder(program, pinned, loops=False).program().main.body.ops]
    assert names[:4] == ["stablehlo.slice", "stablehlo.slice", "sdy.sharding_constraint", "sdy.sharding_constraint"]


@pytest.mark.skipif(jax.__version_info__[:2] != (0, 10), reason="later versions of XLA lay loops out otherwise")
@pytest.mark.parametrize(
    "specs",
    [
        ({"a": P(None, "x"), "b": P("x", "y"), "c": P(None, "y")}, None),
        ({"a": P(None, "y"), "b": None, "c": P("x")}, P(None, "x")),
        ({"a": None, "b": P("y", "x"), "c": None}, P(None, None, "y")),
    ],
    ids=str,
)
def test_memory_of_residuals(specs: Any) -> None:
    step = sp.auto_shard(jax.grad(recurrent), mesh=MESH, in_shardings=specs)
    found = step.plan(*ARGS).memory_analysis().peak_memory_in_bytes
    real = step.lower(*ARGS).compile().memory_analysis()
    peak = real.argument_size_in_bytes + real.output_size_in_bytes - real.alias_size_in_bytes + real.temp_size_in_bytes
    assert found == pytest.approx(peak, rel=0.1)
