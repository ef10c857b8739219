"""Small values share buffers."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.core import ShapedArray
from jax.extend.core import Var

import shardy_py as sp
from shardy_py.stages.run import packing
from shardy_py.stages.run.buffers import Buffer
from tests.stages.run.steps import data, largest_gap, loss, params


def test_values_without_elements_come_out_as_they_went_in() -> None:
    members = tuple(Var(ShapedArray(shape, jnp.dtype("int32"))) for shape in ((4,), (4, 0)))
    values = [np.arange(4, dtype="int32"), np.zeros((4, 0), "int32")]
    buffer = Buffer(members, (0, 0), 4)

    @jax.jit
    def there_and_back(values: list[Any]) -> list[Any]:
        return list(buffer.parts(buffer.joined(dict(zip(members, values)))).values())

    for value, part in zip(values, there_and_back(values), strict=True):
        np.testing.assert_array_equal(part, value)


@settings(max_examples=40)
@given(st.data())
def test_values_come_out_as_they_went_in(draw: Any) -> None:
    ways = draw.draw(st.sampled_from([1, 2, 4]))
    members, dims, env = [], [], {}
    for i in range(draw.draw(st.integers(1, 4))):
        shape = draw.draw(st.lists(st.integers(0, 3), max_size=3))
        dim = None
        if ways > 1:
            dim = draw.draw(st.integers(0, len(shape)))
            shape.insert(dim, ways * draw.draw(st.integers(1, 2)))
        v = Var(ShapedArray(tuple(shape), jnp.dtype("int32")))
        members.append(v)
        dims.append(dim)
        env[v] = 1000 * i + np.arange(np.prod(shape, dtype=int)).reshape(shape)
    buffer = Buffer(tuple(members), tuple(dims), ways)

    @jax.jit  # one program for all
    def there_and_back(values: list[Any]) -> tuple[Any, list[Any]]:
        matrix = buffer.joined(dict(zip(members, values)))
        parts = buffer.parts(matrix)
        return matrix, [parts[v] for v in members]

    matrix, parts = there_and_back([env[v] for v in members])
    assert matrix.shape == (ways, sum(buffer.columns))
    for v, got in zip(members, parts, strict=True):
        np.testing.assert_array_equal(got, env[v])
    if ways > 1:  # A row holds what its device has of every value.
        for i in range(ways):
            own = [np.split(env[v], ways, dim)[i] for v, dim in zip(members, dims)]
            assert sorted(np.concatenate([x.ravel() for x in own])) == sorted(np.asarray(matrix[i]))


def ran(fun: Any, mesh: Any = None, stages: int = 2, microbatches: int = 4) -> Any:
    run = sp.pipeline(fun, num_stages=stages, num_microbatches=microbatches, mesh=mesh)
    run(params(), *data())
    return run


def deep(p: Any, x: Any, y: Any) -> Any:
    for i in range(3):
        x = jnp.tanh(x @ p["a"] + i) @ p["b"] + jnp.sin(x) @ p["c"]
    return jnp.mean((x - y) ** 2)


@pytest.mark.parametrize("mesh", [None, {"stage": 2, "data": 2}], ids=["one device", "two devices"])
def test_programs_hand_each_other_buffers(mesh: Any) -> None:
    run = ran(jax.value_and_grad(deep), mesh)
    plain, inside = run.build(params(), *data()).programs, run._runner.engine.programs
    assert len(plain["F", 0].outputs) > len(inside["F", 0].outputs)
    for key, program in plain.items():
        read = [v for w in inside[key].inputs for v in (inside[key].stands[w].members if w in inside[key].stands else (w,))]
        assert sorted(map(id, read)) == sorted(map(id, program.inputs))
    assert len(plain["B", 1].sums) > 2
    assert len(inside["B", 1].sums) == 1
    assert run.verify(params(), *data()) < 1e-5


def test_large_values_are_handed_over_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packing, "PACKED_BYTES", 0)
    run = ran(jax.value_and_grad(deep))
    assert not any(program.stands for program in run._runner.engine.programs.values())


def test_parameters_are_packed_where_they_are_read_often() -> None:
    seldom, often = ran(jax.value_and_grad(deep), microbatches=2), ran(jax.value_and_grad(deep), microbatches=8)
    assert not any(program.role == "P" for program in seldom._runner.parts)
    assert [program.stage for program in often._runner.parts] == [0, 1]


def test_sums_that_are_returned_are_cut_out() -> None:
    def step(p: Any, x: Any, y: Any) -> Any:
        value, grads = jax.value_and_grad(loss)(p, x, y)
        return value, grads, jax.tree.map(lambda a, g: a - 0.1 * g, p, grads)

    run = sp.pipeline(step, num_stages=2, num_microbatches=4)
    for _ in range(2):
        assert largest_gap(run(params(), *data()), step(params(), *data())) < 1e-6


def test_values_of_several_kinds() -> None:
    """Integers, booleans and half precision have buffers of their own; so have values that other programs read."""

    def step(p: Any, x: Any, y: Any) -> Any:
        def fun(p: Any) -> Any:
            h, k = jnp.tanh(x @ p["a"]), jnp.argsort(x, 1)
            low, mask = (h @ p["b"]).astype("bfloat16"), h > 0
            out = jnp.where(mask, jnp.take_along_axis(jnp.sin(low.astype("float32")) @ p["c"], k, 1), h * h)
            return jnp.mean((out - y) ** 2) + jnp.mean(low.astype("float32") ** 2)

        return jax.value_and_grad(fun)(p)

    for stages, mesh in ((2, None), (3, None), (2, {"stage": 2, "data": 2})):
        run = sp.pipeline(step, num_stages=stages, num_microbatches=4, mesh=mesh)
        assert run.verify(params(), *data(), rtol=1e-2) < 1e-2  # Gradients of bfloat16 are summed over microbatches.
