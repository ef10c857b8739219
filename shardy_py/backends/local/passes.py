"""The passes over the jaxpr of a region, in order."""

from __future__ import annotations

from collections.abc import Mapping

import jax
from jax.extend.core import Jaxpr

from shardy_py.backends.local.carries import without_idle_carries
from shardy_py.backends.local.combine import pack_reductions
from shardy_py.backends.local.hoist import defer_sums, hoist_collectives
from shardy_py.backends.local.in_place import out_of_place
from shardy_py.backends.local.narrow_sums import narrow_sums
from shardy_py.backends.local.scatters import scattered_by_axis
from shardy_py.backends.local.tidy import tidied
from shardy_py.backends.local.transposed_products import transposed_products
from shardy_py.backends.local.unroll import unrolled

PACKED = 8
"""Bytes of an operand up to which reductions are packed here: XLA's own combiner sends larger ones together without copying them, and
what reads pieces of a packed one is a kernel of its own, which costs a fifth of the time to compile a transformer."""


def improved(jaxpr: Jaxpr, sizes: Mapping[str, int], platform: str, spelling: Mapping[str, str] | None = None) -> Jaxpr:
    """The jaxpr of a region with fewer collectives: repeats and dead ones dropped, moved out of loops, small ones packed.

    On CPU, sums of bfloat16 are sent as such, and updates are out of place where XLA would run them wrongly in place. On TPU, sums are
    scattered over one axis after the other.

    Args:
        jaxpr: The jaxpr of the region.
        sizes: Its axes.
        platform: What is compiled for.
        spelling: Axes that are parts of the user's -> how they are written.
    """
    tidy = transposed_products(tidied(unrolled(jaxpr, sizes)))
    jaxpr = without_idle_carries(tidy, sizes)
    jaxpr = jaxpr if jaxpr is tidy else tidied(jaxpr)
    improved_ = defer_sums(hoist_collectives(jaxpr, sizes), sizes)
    if platform == "cpu":
        improved_ = narrow_sums(improved_, sizes)
    elif platform == "tpu":
        improved_ = scattered_by_axis(improved_, sizes, spelling or {})
    packed = pack_reductions(improved_ if improved_ is jaxpr else tidied(improved_), sizes, PACKED)
    return out_of_place(packed, sizes) if platform == "cpu" else packed


def as_merged(jaxpr: Jaxpr, platform: str) -> Jaxpr:
    """A region's jaxpr as XLA has it when it merges what is computed twice.

    Before that of JAX 0.11, XLA on CPU drops each `optimization_barrier` first: a parameter that `jax.checkpoint` has gathered again is
    gathered once. Other values are computed again in ways that differ by then.

    Args:
        jaxpr: The improved jaxpr of a region.
        platform: What is compiled for.
    """
    if platform != "cpu" or jax.__version_info__ >= (0, 11):
        return jaxpr
    return tidied(jaxpr, drop_barriers=True)
