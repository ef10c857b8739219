"""Compares arrays that two runs of one program gave: integers bit for bit, the rest within what rounding explains."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from shardy_py.dialect.format import format_type
from shardy_py.frontends.context import is_extended_dtype

SAMPLES = 3
"""So many of the largest differences are kept."""

FLOOR = 0.25
"""The noise floor: elements may differ by this part of the relative tolerance, times the largest element of the array.

A sum over shards rounds differently from a sum in one piece, by an amount that depends on the terms and not on their sum, so small
elements beside large ones have few right digits.
"""


@dataclass(frozen=True)
class Sample:
    """One differing element: its index, the expected value, and the actual one."""

    index: tuple[int, ...]
    expected: Any
    got: Any

    def __str__(self) -> str:
        return f"[{','.join(map(str, self.index))}] expected {_number(self.expected)}, got {_number(self.got)}"


@dataclass(frozen=True)
class Comparison:
    """One array of two runs.

    Attributes:
        agrees: Whether all elements agree; integers and booleans must be equal, NaN equals NaN.
        max_rel: The largest difference relative to the expected element, elements within the noise floor left out.
        atol: The absolute tolerance: the noise floor, unless one was given.
        rounding: Where the array differs and rounding explains it: how much it changes when the arguments change by their last digit.
    """

    path: str
    shape: tuple[int, ...]
    dtype: str
    agrees: bool
    max_abs: float = 0.0
    max_rel: float = 0.0
    differing: int = 0
    rtol: float = 0.0
    atol: float = 0.0
    samples: tuple[Sample, ...] = ()
    factor: float | None = None
    problem: str | None = None
    rounding: float | None = None

    @property
    def type(self) -> str:
        """`float32[8,4]`."""
        return format_type(self.dtype, self.shape, None)

    def __str__(self) -> str:
        if self.problem is not None:
            return f"{self.path} {self.type}: {self.problem}"
        if self.agrees and not self.max_abs:
            return f"{self.path} {self.type}: equal"
        name = f"{self.path} {self.type}"
        largest = f"largest difference {self.max_abs:.3g} ({self.max_rel:.2g} relative)"
        if self.agrees:
            return f"{name}: agrees, {largest}"
        if self.rounding is not None:
            return f"{name}: differs by rounding, {largest}; arguments changed in their last digit change it by {self.rounding:.3g}"
        size = math.prod(self.shape)
        times = "" if self.factor is None else f", {_number(self.factor)} times what is expected"
        allowed = f"allowed {self.atol:.2g} + {self.rtol:.2g} * |expected|" if self.rtol else "has to be equal"
        return f"{name}: {self.differing} of {size} elements differ{times}, {largest}, {allowed}"


def tolerance_of(dtype: Any) -> float:
    """The relative tolerance of an element type: some hundred units in the last place for float32, a few for shorter ones; 0 is exact."""
    if not jax.dtypes.issubdtype(dtype, np.inexact):
        return 0.0
    eps = float(jax.numpy.finfo(dtype).eps)
    return eps * (4 if eps > 1e-3 else 16 if eps > 1e-4 else 1000)


def fetch(x: Any) -> Any:
    """A result as a whole numpy array on this process; a PRNG key as a key on one device."""
    if isinstance(x, jax.Array) and is_extended_dtype(x.dtype):
        return jax.random.wrap_key_data(fetch(jax.random.key_data(x)), impl=jax.random.key_impl(x))
    if isinstance(x, jax.Array) and not x.is_fully_addressable:
        if x.is_fully_replicated:
            return np.asarray(x.addressable_data(0))
        from jax.experimental import multihost_utils

        return np.asarray(multihost_utils.process_allgather(x, tiled=True))
    return np.asarray(x)


def fetched_or_error(x: Any) -> Any:
    """As `fetch`; in place of an array the error that a buffer of the wrong size leads to."""
    try:
        return fetch(x)
    except Exception as error:
        return error


def plain(x: Any) -> np.ndarray:
    """A fetched array as numbers that numpy can calculate with: float64, complex128, integers; PRNG keys as their data."""
    if isinstance(x, jax.Array):
        x = jax.random.key_data(x)
    a = np.asarray(x)
    if jax.dtypes.issubdtype(a.dtype, np.complexfloating):
        return a.astype(np.complex128)
    if jax.dtypes.issubdtype(a.dtype, np.inexact):
        return a.astype(np.float64)
    return a.astype(np.uint8) if a.dtype == np.bool_ else a if a.dtype.kind in "iu" else a.astype(np.int64)


def compare(
    path: str,
    expected: Any,
    got: Any,
    *,
    rtol: float | None = None,
    atol: float | None = None,
    allowance: np.ndarray | float = 0.0,
) -> Comparison:
    """Compares an array with its expected value, by `atol` (default: a part of `rtol` times the largest element) and `allowance`."""
    shape, dtype = tuple(expected.shape), str(expected.dtype)
    if isinstance(got, Exception):
        return Comparison(path, shape, dtype, False, math.inf, math.inf, problem=f"cannot be read: {first_line(got)}")
    if tuple(got.shape) != shape or got.dtype != expected.dtype:
        problem = f"comes out as {format_type(str(got.dtype), tuple(got.shape), None)}"
        return Comparison(path, shape, dtype, False, math.inf, math.inf, problem=problem)
    exact = tolerance_of(expected.dtype) == 0.0
    want, has = plain(expected), plain(got)
    if not want.size:
        return Comparison(path, shape, dtype, True)
    relative = 0.0 if exact else tolerance_of(expected.dtype) if rtol is None else rtol
    difference = _difference(want, has)
    size = np.abs(want.astype(np.float64) if exact else want)
    size = np.where(np.isfinite(size), size, 0.0)
    floor = 0.0 if exact else FLOOR * relative * float(size.max()) if atol is None else atol
    bad = difference > relative * size + floor + allowance
    largest = float(difference.max())
    visible = (difference > 0) & (size > floor)
    with np.errstate(all="ignore"):
        max_rel = float((difference[visible] / size[visible]).max()) if visible.any() else 0.0
    differing = int(bad.sum())
    if not differing:
        return Comparison(path, shape, dtype, True, largest, max_rel, 0, relative, floor)
    order = np.argsort(np.where(bad, difference, -1.0), axis=None, kind="stable")[::-1][: min(SAMPLES, differing)]
    places = [tuple(int(i) for i in np.unravel_index(flat, bad.shape)) for flat in order]
    samples = tuple(Sample(place, want[place].item(), has[place].item()) for place in places)
    return Comparison(path, shape, dtype, False, largest, max_rel, differing, relative, floor, samples, _factor(want, has, size, exact))


def _difference(want: np.ndarray, has: np.ndarray) -> np.ndarray:
    if want.dtype.kind in "iu":
        # Differences of unsigned and of large integers do not fit the type; equal ones are exactly 0.
        difference = np.abs(want.astype(np.float64) - has.astype(np.float64))
        return np.where(want == has, 0.0, np.maximum(difference, 1.0))
    same = (want == has) | (np.isnan(want) & np.isnan(has))
    with np.errstate(all="ignore"):
        difference = np.abs(want - has)
    return np.where(same, 0.0, np.where(np.isnan(difference), np.inf, difference))


def _factor(want: np.ndarray, has: np.ndarray, size: np.ndarray, exact: bool) -> float | None:
    """The common ratio of all elements that are not small; None if there is none or it is 1."""
    if exact or np.iscomplexobj(want):
        return None
    chosen = size > 1e-2 * size.max()
    if not chosen.any():
        return None
    with np.errstate(all="ignore"):
        ratios = has[chosen] / want[chosen]
    if not np.isfinite(ratios).all():
        return None
    middle = float(np.median(ratios))
    if abs(middle - 1) < 1e-2 or not middle or np.abs(ratios - middle).max() > 1e-2 * abs(middle):
        return None
    return float(round(middle)) if abs(middle - round(middle)) < 1e-3 * abs(middle) else middle


def first_line(error: Exception) -> str:
    """Type and first line of an exception."""
    lines: Sequence[str] = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {lines[0]}".rstrip(": ")


def _number(x: Any) -> str:
    return f"{x:.6g}" if isinstance(x, float) else str(x)
