"""Jaxprs made of other jaxprs."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import pytest
from jax import numpy as jnp

from shardy_py.frontends.transforms import used_part

X = jnp.ones((64, 64))


def _beside(n: int) -> Any:
    """A result that takes n products of 64 x 64 elements."""

    def fun(x: Any) -> tuple[Any, Any]:
        left_out = x
        for _ in range(n):
            left_out = left_out * 1.5
        return x @ x, left_out

    return fun


def _in_a_loop(n: int) -> Any:
    def fun(x: Any) -> tuple[Any, Any]:
        def body(carry: tuple[Any, Any], _: None) -> tuple[tuple[Any, Any], None]:
            kept, left_out = carry
            for _ in range(n):  # pyright: ignore[reportAssignmentType]
                left_out = left_out * 1.5
            return (kept @ x, left_out), None

        return jax.lax.scan(body, (x, x), None, length=3)[0]

    return fun


@pytest.mark.parametrize("make", [_beside, _in_a_loop])
@pytest.mark.parametrize(("products", "is_whole"), [(0, True), (1, False), (2, False)])
def test_a_result_with_equations_of_its_own_is_left_out(make: Callable[[int], Any], products: int, is_whole: bool) -> None:
    closed = jax.make_jaxpr(make(products))(X)
    part, inputs = used_part(closed, (True, False))
    assert (part is closed) == is_whole
    assert inputs == (True,)


def test_a_result_of_few_of_the_equations_is_kept() -> None:
    def long(x: Any) -> Any:
        return jax.lax.fori_loop(0, 3, lambda _, y: functools.reduce(lambda z, _: z @ x, range(200), y), x)

    closed = jax.make_jaxpr(lambda x: (long(x), x * 1.5))(X)
    assert used_part(closed, (True, False))[0] is closed
    wide = jax.make_jaxpr(lambda x, y: (long(x), y * 1.5))(X, X)
    part, inputs = used_part(wide, (True, False))
    assert (part is not wide, inputs) == (True, (True, False))
