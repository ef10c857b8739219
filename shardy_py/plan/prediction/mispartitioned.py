"""Ops that XLA's partitioner computes wrongly under some shardings, or not at all.

They run as planned, always, for what stands in their place is chosen by the plan: `backends/xla_workarounds` has the table of that. What it
has for extremes is right however they are cut, so those are not among them.
"""

from __future__ import annotations

from collections.abc import Sequence

MISPARTITIONED = frozenset(
    """
    conv_general_dilated cumlogsumexp cummax cummin cumprod cumsum fft pad reduce reduce_and reduce_or reduce_window_max
    reduce_window_min reduce_xor select_and_scatter_add
    """.split()
)
"""Names of primitives."""


def is_mispartitioned(primitive: str, dtype: str, interior: Sequence[int]) -> bool:
    """Whether XLA may get an op wrong.

    Args:
        primitive: Its primitive.
        dtype: The element type of its first operand, as in `float32` and `bool`.
        interior: What is put between the elements of each dimension, for a `pad`.
    """
    if primitive == "pad":
        return any(interior)
    if primitive in ("reduce_and", "reduce_or"):
        return dtype != "bool"
    return primitive in MISPARTITIONED
