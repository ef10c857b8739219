"""Values that stages read, keep and send."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

import shardy_py as sp
from tests.pipelines.steps import data, params


def three(p: Any, x: Any, y: Any) -> Any:
    for name in "abc":
        with sp.stage(name):
            x = jnp.tanh(x @ p[name])
    return jnp.mean((x - y) ** 2)


def build(fun: Any, schedule: str = "1f1b", stages: int | None = None) -> Any:
    return sp.pipeline(fun, num_stages=stages, num_microbatches=4, schedule=schedule).build(params(), *data())


def test_parameters_are_no_residuals() -> None:
    built = build(three)
    leaves = set(built.split.micro.invars)
    for (role, s), program in built.programs.items():
        if role == "F":
            assert not leaves & set(program.outputs)
        elif s:
            assert sum(v in leaves and v.aval.shape == (8, 8) for v in program.inputs) >= 1


def test_cheap_values_are_made_again() -> None:
    """The derivative of tanh needs 1 - tanh ** 2; one of the two is kept, as later versions have a primitive for it."""
    built = build(lambda p, x, y: jnp.mean(jnp.tanh(jnp.tanh(x @ p["a"]) @ p["b"])), stages=2)
    kept = [v for v in built.programs["B", 0].inputs if v in built.programs["F", 0].outputs]
    made = {v: node.eqn.primitive.name for node in built.programs["F", 0].nodes for v in node.eqn.outvars}
    assert [made[v] for v in kept] in (["tanh"], ["one_minus_square"])


def test_gradients_of_parameters_come_apart() -> None:
    built = build(three, "zb-h1")
    assert sorted(built.programs) == [("B", 0), ("F", 0), ("F", 1), ("F", 2), ("W", 1), ("W", 2), ("b", 1), ("b", 2)]
    for s in (1, 2):
        assert not built.programs["b", s].sums
        assert len(built.programs["W", s].sums) == 1
        assert not built.programs["W", s].outputs


def test_every_value_is_made_once_and_read_where_it_is_sent() -> None:
    built = build(three)
    made: dict[Any, Any] = {}
    for key, program in built.programs.items():
        for v in program.outputs:
            assert v not in made
            made[v] = key
    given = {*built.split.micro.invars, *built.split.micro.consts, *built.split.prologue}
    for program in built.programs.values():
        assert all(v in made or v in given for v in program.inputs)
