"""Splits reduce-scatters over several axes of the mesh into one per axis.

The compiler for TPUs has no reduce-scatter over two dimensions of a torus at once: it makes an all-reduce of the whole, which sends twice
as much and needs a buffer of that size, and slices. Over one axis after the other the same bytes arrive, and the same parts.

Two forms of such a step stay reduce-scatters, by the shapes that were compiled for v5e and v5p: a dimension of its own for the pieces in
front of a first dimension, and of columns that are no whole lanes, where the compiler would pad the pieces and exchange what padding
shifts; and the dimension itself elsewhere, where pieces of their own would become an all-reduce.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

from jax import lax
from jax.extend.core import Jaxpr, JaxprEqn

from shardy_py.backends.local.jaxpr_rewriting import Rewritten, retraced, rewrite, rewrite_bodies

LANES = 128
"""Elements of the last dimension that a vector register of a TPU holds side by side."""


def scatter_by_axis(jaxpr: Jaxpr, sizes: Mapping[str, int], spelling: Mapping[str, str]) -> Jaxpr:
    """The jaxpr of a region for TPUs, with a reduce-scatter of whole pieces for each of the user's axes.

    Args:
        jaxpr: The jaxpr of a region.
        sizes: The axes of the region.
        spelling: Parts of the user's axes -> their notation.
    """

    def replace(eqn: JaxprEqn) -> Rewritten | None:
        if eqn.primitive.name != "reduce_scatter" or not eqn.params["tiled"] or eqn.params["axis_index_groups"] is not None:
            return None
        runs = _runs(eqn.params["axis_name"], spelling)
        return retraced(lambda x: [_scattered(x, runs, eqn.params["scatter_dimension"], sizes)], eqn, sizes)

    return rewrite_bodies(jaxpr, lambda body: rewrite(body, replace))


def _runs(axes: Any, spelling: Mapping[str, str]) -> list[tuple[str, ...]]:
    """Splits axes into runs of consecutive parts of the same axis of the user's mesh."""
    named = axes if isinstance(axes, tuple | list) else (axes,)
    return [tuple(run) for _, run in itertools.groupby(named, lambda axis: spelling.get(axis, axis).partition(":")[0])]


def _scattered(x: Any, runs: Sequence[tuple[str, ...]], dim: int, sizes: Mapping[str, int]) -> Any:
    for names in runs:
        k = math.prod(sizes[name] for name in names)
        part = x.shape[dim] // k
        if dim and (x.ndim > 2 or part % LANES == 0):
            x = lax.psum_scatter(x, names, scatter_dimension=dim, tiled=True)
            continue
        pieces = lax.reshape(x, (*x.shape[:dim], k, part, *x.shape[dim + 1 :]))
        x = lax.reshape(lax.psum_scatter(pieces, names, scatter_dimension=dim, tiled=True), (*x.shape[:dim], part, *x.shape[dim + 1 :]))
    return x
