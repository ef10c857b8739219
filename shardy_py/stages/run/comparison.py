"""Comparing a pipelined step with the step on one device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from shardy_py.stages.jaxprs import is_extended_dtype
from shardy_py.stages.run.errors import PipelineError


def compare(results: Any, expected: Any, rtol: float) -> float:
    """The largest difference, relative to the largest element of each result.

    Args:
        results: Results of the pipeline.
        expected: Results of the step on one device.
        rtol: Its limit.

    Raises:
        PipelineError: It is larger; the message names the result.
    """
    worst = 0.0
    for (path, a), (_, b) in zip(jax.tree_util.tree_flatten_with_path(results)[0], jax.tree_util.tree_flatten_with_path(expected)[0]):
        if is_extended_dtype(b.dtype):
            a, b = jax.random.key_data(a), jax.random.key_data(b)
        x, y = np.asarray(a), np.asarray(b)
        if not np.issubdtype(y.dtype, np.inexact):
            off = float(np.any(x != y))
        else:
            x, y = x.astype("complex128"), y.astype("complex128")
            same = (x == y) | (np.isnan(x) & np.isnan(y))
            gap = np.where(same, 0.0, np.abs(x - y))
            finite = np.abs(y)[np.isfinite(y)]
            scale = float(finite.max(initial=0.0))
            off = float(np.nan_to_num(gap, nan=np.inf).max(initial=0.0)) / (scale or 1.0)
        if not off <= rtol:
            raise PipelineError(
                f"the pipeline gives another {'result' + jax.tree_util.keystr(path)}: {off:.3g} away, relative to its largest element",
                where="Pipelined.verify", why=f"more than {rtol:g}, against the step on one device",
                fix="if the step draws random numbers or normalizes over the batch this has to be so; otherwise please report it",
            )  # fmt: skip
        worst = max(worst, off)
    return worst


def on_one_device(fun: Callable[..., Any], args: Sequence[Any]) -> Any:
    """The result of the step under `jax.jit` on the first device, which donates nothing."""
    device = jax.devices()[0]

    def here(x: Any) -> Any:
        if isinstance(x, jax.Array) and not is_extended_dtype(x.dtype):
            return jax.device_put(np.asarray(x), device)
        return jax.device_put(x, device)

    return jax.jit(lambda *a: fun(*a))(*jax.tree.map(here, tuple(args)))
