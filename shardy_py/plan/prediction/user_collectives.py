"""Collectives that the user wrote in a `shard_map`. The program does not name their axes, which are inferred where they can be."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence

from shardy_py.ir import Op

KINDS = {
    "stablehlo.all_gather": "all_gather",
    "stablehlo.all_reduce": "all_reduce",
    "stablehlo.all_to_all": "all_to_all",
    "stablehlo.collective_broadcast": "collective_permute",
    "stablehlo.collective_permute": "collective_permute",
    "stablehlo.reduce_scatter": "reduce_scatter",
}
"""Op -> kind of collective."""


def user_collective_axes(op: Op, manual: Sequence[str], sizes: Mapping[str, int]) -> tuple[str, ...]:
    """The axes that a collective is over.

    A gather and a scatter tell the size of their groups; the fewest axes of this size, the last ones, are taken. Others are taken to be
    over all manual axes.
    """
    axes = [axis for axis in manual if sizes.get(axis, 1) > 1]
    before, after = op.operands[0].type.size, op.results[0].type.size
    group = max(before, after) // max(1, min(before, after))
    if KINDS[op.name] in ("all_gather", "reduce_scatter"):
        for count in range(1, len(axes) + 1):
            for subset in itertools.combinations(reversed(axes), count):
                if math.prod(sizes[axis] for axis in subset) == group:
                    return tuple(reversed(subset))
    return tuple(axes)
