"""One example per microbatch: the program that is continued from two and three examples is the one traced on one."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.core import Var

from shardy_py.pipelines import PipelineError
from shardy_py.pipelines.flatten import FlatStep, flatten
from shardy_py.pipelines.programs import evaluate
from shardy_py.pipelines.rows import on_one_example
from tests.pipelines.steps import data, loop_loss, loss, params


def flat(fun: Any, rows: int) -> FlatStep:
    x, y = (part[:rows] for part in data())
    return flatten(jax.make_jaxpr(lambda p, x, y: fun(p, x, y))(params(), x, y), [False] * 3 + [True] * 2)


def call(program: FlatStep, *args: Any) -> list[Any]:
    env: dict[Var, Any] = dict(zip(program.invars, jax.tree.leaves(args)))
    env.update(program.consts)
    evaluate(program.nodes, env)
    return [env[v] for v in program.outvars]


@pytest.mark.parametrize("fun", [loss, loop_loss, lambda p, x, y: jnp.mean(x, keepdims=True) * y + x.shape[0]])
def test_values_on_one_example(fun: Any) -> None:
    x, y = (part[:1] for part in data())
    (got,) = call(on_one_example(flat(fun, 2), flat(fun, 3)), params(), x, y)
    np.testing.assert_allclose(got, fun(params(), x, y), rtol=1e-6)


def test_the_size_of_the_batch_may_not_decide() -> None:
    def odd(p: Any, x: Any, y: Any) -> Any:
        return jnp.sum(jnp.tanh(x)) if x.shape[0] == 3 else jnp.sum(x)

    with pytest.raises(PipelineError, match="another one on two examples than on three"):
        on_one_example(flat(odd, 2), flat(odd, 3))
