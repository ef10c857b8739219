from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest

import shardy_py as sp
from shardy_py.pipelines import PipelineError
from tests.pipelines.steps import data, params


@sp.stage("two")
def second(p: Any, h: Any) -> Any:
    return jax.jit(jnp.tanh)(h @ p["b"])


def marked(p: Any, x: Any, y: Any) -> Any:
    with sp.stage("one"):
        h = jax.checkpoint(lambda x: jnp.tanh(x @ p["a"]))(x)
    h = second(p, h)
    with sp.stage("the third"):
        return jnp.mean((h @ p["c"] - y) ** 2)


def products(built: Any) -> list[list[str]]:
    """Which parameters every stage's forward pass multiplies by."""
    names = dict(zip(built.split.micro.invars, built.signature.paths))
    found: list[list[str]] = [[] for _ in range(built.assigned.stages)]
    for node, s, back in zip(built.split.micro.nodes, built.assigned.stage, built.assigned.backward):
        if node.eqn.primitive.name == "dot_general" and not back:
            found[s].append(names[node.eqn.invars[1]])
    return found


@pytest.mark.parametrize("fun", [marked, jax.value_and_grad(marked), jax.jit(jax.grad(jax.jit(marked)))])
def test_marks_survive_transformations(fun: Any) -> None:
    built = sp.pipeline(fun, num_microbatches=4).build(params(), *data())
    assert built.assigned.names == ("one", "two", "the third")
    assert products(built) == [["p['a']"], ["p['b']"], ["p['c']"]]


def test_a_mark_does_nothing_elsewhere() -> None:
    assert second(params(), data()[0]).shape == (16, 8)


def test_as_many_as_asked_for() -> None:
    with pytest.raises(PipelineError, match="3 stages are marked and 2 are asked for"):
        sp.pipeline(marked, num_microbatches=4, num_stages=2).build(params(), *data())


def test_stages_do_not_go_back() -> None:
    def back(p: Any, x: Any, y: Any) -> Any:
        with sp.stage("one"):
            h = x @ p["a"]
        with sp.stage("two"):
            h = jnp.tanh(h) @ p["b"]
        with sp.stage("one"):
            return jnp.mean((h @ p["c"] - y) ** 2)

    with pytest.raises(PipelineError, match="stage 'one' uses a value of stage 'two'") as caught:
        sp.pipeline(back, num_microbatches=4).build(params(), *data())
    assert "test_markers.py" in str(caught.value)


@pytest.mark.parametrize("name", ["", "a/b", "f()", "__import__('os')\n", 3])
def test_names(name: Any) -> None:
    with pytest.raises(PipelineError, match="is not a valid name of a stage"), sp.stage(name):
        pass
