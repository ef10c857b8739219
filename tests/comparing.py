"""Compares arrays of two runs: floats within rounding, everything else bit for bit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

_RELATIVE = {1: 0.15, 2: 2e-2, 4: 1e-4, 8: 1e-7}
"""Bytes of a float -> what rounding may make of the largest value around."""


def difference(got: Any, wanted: Any, nearby: Sequence[Any] = (), coarsest: int = 8) -> str:
    """The difference between two arrays in words; "" where there is none.

    Args:
        got: An array.
        wanted: What it should be.
        nearby: What the same computation gives for arguments that are changed in their last digits. Floats may differ by what they differ
            by; integers that differ here are not compared.
        coarsest: Bytes of the coarsest float that the computation passes through: a sum of bfloat16 values is rounded as these are, though
            its type is float32.
    """
    if got.shape != wanted.shape or got.dtype != wanted.dtype:
        return f"{got.dtype}{got.shape}, not {wanted.dtype}{wanted.shape}"
    if wanted.dtype.names:  # float0, the tangents of integers, which hold nothing
        return ""
    if wanted.dtype.kind == "c":
        parts = [difference(part(got), part(wanted), list(map(part, nearby)), coarsest) for part in (np.real, np.imag)]
        return next(filter(None, parts), "")
    if wanted.dtype.kind not in "fV" or wanted.dtype.name.endswith("int4"):
        steady = all(np.array_equal(n, wanted) for n in nearby)
        return "" if not steady or np.array_equal(got, wanted) else f"{(got != wanted).sum()} of {got.size} are others"
    g, w, *others = (np.asarray(x, np.float64) for x in (got, wanted, *nearby))
    with np.errstate(all="ignore"):
        finite = np.isfinite(w)
        scale = np.max(np.abs(np.where(finite, w, 0)), initial=1e-2)
        noise = max((np.max(np.abs(np.where(np.isfinite(n) & finite, n - w, 0)), initial=0.0) for n in others), default=0.0)
        unsteady = np.any([np.isfinite(n) != finite for n in others], axis=0) if others else np.zeros(w.shape, bool)
        rounding = _RELATIVE[min(coarsest, wanted.dtype.itemsize)] * (np.abs(w) + scale)
        fine = (np.abs(g - w) <= rounding + 30 * noise) | (g == w) | (np.isnan(g) & np.isnan(w)) | unsteady
    if fine.all():
        return ""
    at = np.unravel_index(np.argmin(fine), fine.shape)
    return f"{(~fine).sum()} of {fine.size} are wrong, at {tuple(map(int, at))} {g[at]} for {w[at]}"
