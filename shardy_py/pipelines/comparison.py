"""Comparing a pipelined step with the step on one device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from shardy_py.backends import compare as arrays
from shardy_py.backends.compare import fetch, plain
from shardy_py.pipelines.errors import PipelineError
from shardy_py.pipelines.jaxprs import is_extended_dtype


def compare(results: Any, expected: Any, rtol: float) -> float:
    """The largest difference relative to the largest element of each result; raises PipelineError if one exceeds the tolerance."""
    worst = 0.0
    for (path, a), (_, b) in zip(jax.tree_util.tree_flatten_with_path(results)[0], jax.tree_util.tree_flatten_with_path(expected)[0]):
        want = fetch(b)
        compared = arrays.compare(jax.tree_util.keystr(path), want, fetch(a), rtol=0.0, atol=0.0)
        if jax.dtypes.issubdtype(b.dtype, np.inexact):
            sizes = np.abs(plain(want))
            off = compared.max_abs / (float(sizes[np.isfinite(sizes)].max(initial=0.0)) or 1.0)
        else:
            off = float(not compared.agrees)
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
