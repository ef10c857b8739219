"""Comparing arrays of two runs."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shardy_py.backends.compare import compare, fetch, tolerance_of


def f32(*values):
    return np.array(values, np.float32)


def test_equal_and_close():
    assert str(compare("x", f32(1, 2), f32(1, 2))) == "x float32[2]: equal"
    close = compare("x", f32(1, 1e-6), f32(1 + 1e-6, 2e-6))  # the small one is noise beside the large one
    assert close.agrees
    assert 0 < close.max_rel < 1e-4
    assert "agrees, largest difference" in str(close)
    assert compare("x", f32(), f32()).agrees


def test_different():
    found = compare("x", f32(1, 2, 3, 4), f32(4, 8, 12, 16))
    assert (found.agrees, found.factor, found.max_abs, found.max_rel, found.differing) == (False, 4.0, 12.0, 3.0, 4)
    assert found.samples[0].index == (3,)
    assert str(found.samples[0]) == "[3] expected 4, got 16"
    assert "4 times what is expected" in str(found)
    assert compare("x", f32(1, 2), f32(1, 5)).factor is None


def test_tolerances():
    assert not compare("x", f32(1), f32(1.01)).agrees
    assert compare("x", f32(1), f32(1.01), rtol=0.1).agrees
    assert compare("x", f32(1), f32(1.01), rtol=0.0, atol=0.1).agrees
    assert compare("x", f32(1, 0), f32(1, 1), allowance=np.array([0.0, 2.0])).agrees
    low = jnp.asarray([1.0, 1.0], jnp.bfloat16)
    assert compare("x", fetch(low), fetch(low * 1.01)).agrees
    assert not compare("x", fetch(low), fetch(low * 1.1)).agrees
    assert tolerance_of(jnp.float64) < tolerance_of(jnp.float32) < tolerance_of(jnp.float16) < tolerance_of(jnp.bfloat16)


@pytest.mark.parametrize("dtype", ["int32", "uint8", "int64", "bool"])
def test_exact_types(dtype):
    a = np.array([0, 1, 1], dtype)
    b = np.array([0, 1, 0], dtype)
    assert compare("x", a, a).agrees
    found = compare("x", a, b, rtol=10.0)
    assert (found.agrees, found.differing, found.max_abs) == (False, 1, 1.0)
    assert "has to be equal" in str(found)


def test_large_integers():
    found = compare("x", np.array([2**62], np.int64), np.array([2**62 + 1], np.int64))
    assert not found.agrees
    assert found.max_abs == 1.0


def test_what_is_no_number():
    nan, inf = float("nan"), float("inf")
    assert compare("x", f32(nan, inf, -inf, 1), f32(nan, inf, -inf, 1)).agrees
    assert compare("x", f32(nan, 1), f32(1, 1)).max_abs == inf
    assert not compare("x", f32(inf, 1), f32(-inf, 1)).agrees
    assert not compare("x", f32(inf, 1), f32(nan, 1)).agrees
    assert compare("x", np.array([1 + 2j], np.complex64), np.array([1 + 2.00001j], np.complex64)).agrees
    assert not compare("x", np.array([1 + 2j], np.complex64), np.array([1 - 2j], np.complex64)).agrees


def test_keys():
    a, b = fetch(jax.random.key(1)), fetch(jax.random.key(2))
    assert compare("k", a, a).agrees
    assert not compare("k", a, b).agrees
    assert compare("k", a, b).dtype == "key<fry>"


def test_what_cannot_be_compared():
    assert compare("x", f32(1), f32(1, 2)).problem == "comes out as float32[2]"
    assert compare("x", f32(1), ValueError("too short\nmore")).problem == "cannot be read: ValueError: too short"
