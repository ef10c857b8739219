"""The passes over the jaxpr of a region, in order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import jax
from jax.extend.core import Jaxpr
from jax.sharding import PartitionSpec

from shardy_py.backends.local.hoist import defer_sums, hoist_collectives
from shardy_py.backends.local.in_place import update_out_of_place
from shardy_py.backends.local.scaled_sums import scale_sums
from shardy_py.backends.local.simplify import simplify
from shardy_py.backends.local.tpu_collectives import tpu_collectives
from shardy_py.backends.local.transposed_products import transposed_products


def optimize_region(
    jaxpr: Jaxpr,
    sizes: Mapping[str, int],
    platform: str,
    spelling: Mapping[str, str] | None = None,
    specs: Sequence[PartitionSpec] = (),
) -> Jaxpr:
    """Optimizes the collectives of a region: drops equal and dead ones, moves them out of loops, scales sums, not their parts.

    On CPU, updates are out of place where XLA would run them wrongly in place. On TPU, sums are scattered over one axis after the other,
    and short vectors exchanged in place of gathered.
    """
    jaxpr = transposed_products(simplify(jaxpr))
    optimized = scale_sums(defer_sums(hoist_collectives(jaxpr, sizes), sizes), frozenset(sizes), specs)
    if platform == "tpu":
        optimized = tpu_collectives(optimized, sizes, spelling or {})
    optimized = optimized if optimized is jaxpr else simplify(optimized)
    return update_out_of_place(optimized, sizes) if platform == "cpu" else optimized


def merged_as_by_xla(jaxpr: Jaxpr, platform: str) -> Jaxpr:
    """A region's jaxpr with equal equations merged as XLA merges them.

    Before that of JAX 0.11, XLA on CPU drops each `optimization_barrier` first: a parameter that `jax.checkpoint` has gathered again is
    gathered once. Other values are computed again in ways that differ by then.
    """
    if platform != "cpu" or jax.__version_info__ >= (0, 11):
        return jaxpr
    return simplify(jaxpr, drop_barriers=True)
