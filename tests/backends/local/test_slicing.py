"""Slices, padding and concatenations on local arrays."""

from __future__ import annotations

import numpy as np
import pytest
from jax import lax
from jax import numpy as jnp

from shardy_py.backends.local.local_rule import Equation
from shardy_py.backends.local.table import LOCAL_RULES
from tests.backends.local.forced import check, choices, equation_of, run_forced, same
from tests.backends.local.running import check_together

RNG = np.random.default_rng(0)


def array(*shape: int, dtype: str = "int32") -> jnp.ndarray:
    return jnp.asarray(RNG.integers(0, 100, shape), dtype)


SLICES = [(0, 3, 1), (1, 3, 1), (1, 3, 2), (0, -1, 1), (3, -1, 1), (0, -0, 2), (1, -0, 3), (2, -2, 5)]
PADS = [(1, 1, 0), (0, 5, 0), (7, 0, 0), (-2, 1, 0), (0, 0, 1), (0, 1, 1), (2, -1, 2), (-1, -1, 3), (20, 0, 0), (1, 0, 2)]


@pytest.mark.parametrize("n", [3, 13, 16])
def test_slice(n):
    cases = []
    for start, stop, stride in SLICES:
        end = n + stop if stop <= 0 else stop
        if end > start:
            cases.append((lambda x, a=(start, 0), b=(end, 2), c=(stride, 1): lax.slice(x, a, b, c), (array(n, 3),)))
    check_together("slice", cases, count=1)


def test_slice_of_one():
    cases = [
        (lambda x, i=i: lax.slice(x, (i, 2), (i + 1, 5)), (array(13, 6, dtype=t),)) for i, t in [(0, "bool"), (7, "uint8"), (12, "float32")]
    ]
    cases.append((lambda x: lax.slice(x, (4, 2), (5, 3)), (array(13, 6),)))
    check_together("slice", cases, count=3)


@pytest.mark.parametrize("n", [3, 13])
def test_pad(n):
    check_together("pad", [(lambda x, c=config: lax.pad(x, jnp.int32(-7), (c, (0, 1, 0))), (array(n, 3),)) for config in PADS])


def test_concatenate():
    cases = [(8, 8), (1, 7), (7, 1), (3, 5, 9), (1, 1, 1), (2, 13)]
    check_together("concatenate", [(lambda *xs: lax.concatenate(xs, 0), tuple(array(n, 3) for n in sizes)) for sizes in cases])


def test_concatenate_with_empty_operands():
    cases = [(0, 8), (5, 0, 6, 0), (0, 13), (7, 0)]
    check_together("concatenate", [(lambda *xs: lax.concatenate(xs, 0), tuple(array(n, 3) for n in sizes)) for sizes in cases])


def test_rev():
    check_together("rev", [(lambda x: lax.rev(x, (0, 1)), (array(n, 6),)) for n in (3, 8, 13)])


def test_split():
    check_together("split", [(lambda x, s=sizes: lax.split(x, s), (array(sum(sizes), 3),)) for sizes in [(4, 4), (1, 7), (3, 9, 1)]])


def test_split_with_empty_results():
    check_together("split", [(lambda x, s=sizes: lax.split(x, s), (array(sum(sizes), 3),)) for sizes in [(0, 8), (5, 0, 8)]])


def test_results_that_nothing_uses_cost_nothing():
    equation, _ = equation_of(lambda x: lax.split(x, (4, 12)), (array(16, 3),), "split")
    received = []
    for used in ((True, True), (False, True), (False, False)):
        local_rule = LOCAL_RULES["split"](Equation(equation.eqn, used))
        assert local_rule is not None
        assert local_rule.bytes_inside is not None
        received.append(local_rule.bytes_inside([4, 1]))
    assert received == sorted(received, reverse=True)
    assert received[0] > received[1] > received[2] == 0


@pytest.mark.parametrize("dtype", ["bool", "float32"])
def test_unstack_where_devices_give_what_they_have(dtype):
    for axis, n in ((0, 8), (1, 5), (-1, 3)):
        shape = [4, 6]
        shape.insert(axis % 3, n)
        x = array(*shape, dtype=dtype)
        equation, operands = equation_of(lambda x, axis=axis: jnp.unstack(x, axis=axis), (x,), "unstack")
        local_rule = LOCAL_RULES["unstack"](equation)
        assert local_rule is not None
        (given,) = local_rule.alternatives
        for made in run_forced(equation, given, choices(given, 3, 0), operands):
            for i, got in enumerate(made):
                same(got, lax.index_in_dim(x, i, axis, keepdims=False), 0, f"{axis} {i}")


def test_stack_and_unstack():
    check(lambda x, y: jnp.stack([x, y], 1), array(5, 6), array(5, 6), name="stack")
    check(lambda x: jnp.unstack(x, axis=1), array(5, 3), name="unstack")


def test_tile():
    check_together("tile", [(lambda x, r=reps: jnp.tile(x, r), (array(5, 8),)) for reps in [(2, 1), (1, 4), (8, 3)]])
