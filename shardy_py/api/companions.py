"""Leaves of optimizer state that have other dimensions than their parameter: factored moments, histories, placeholders."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from shardy_py.api.trees import Leaf
from shardy_py.dialect import DimensionSharding, Mesh, TensorSharding

_PARAMETERS = ("params", "model", "weights")
"""Names of the part of a state that holds the parameters."""


def parameters_of(leaves: Sequence[Leaf], paths: Sequence[str]) -> list[int | None]:
    """For each leaf the parameter of another shape that it belongs to.

    The whole path of a parameter, below its argument, an element of it, or `params` in these, ends that of the leaf, which lies elsewhere.

    Example:
        >>> leaves = [Leaf("params['up']", (256, 512), "float32"), Leaf("state['v_row']['up']", (256,), "float32")]
        >>> parameters_of(leaves, ["params/up", "state/v_row/up"])
        [None, 0]
    """
    homes: dict[tuple[str, ...], list[tuple[int, tuple[str, ...]]]] = {}
    split = [tuple(path.split("/")) for path in paths]
    for i, parts in enumerate(split):
        for depth in _depths(parts):
            homes.setdefault(parts[depth:], []).append((i, parts[:depth]))
    matched: list[int | None] = []
    for leaf, parts in zip(leaves, split, strict=True):
        candidates = (
            i
            for start in range(1, len(parts))
            for i, home in homes.get(parts[start:], ())
            if parts[: len(home)] != home and start > len(home) and leaves[i].shape != leaf.shape
        )
        matched.append(next(candidates, None))
    return matched


def _depths(parts: Sequence[str]) -> list[int]:
    """Components that may come before those of a parameter: its argument or the result, an element of it, the part that is `params`."""
    if len(parts) > 2 and parts[1] in _PARAMETERS:
        return [2]
    if len(parts) < 3 or not parts[1].isdigit():
        return [1]
    return [1, 3] if len(parts) > 3 and parts[2] in _PARAMETERS else [1, 2]


def companion_sharding(shape: Sequence[int], parameter: Sequence[int], sharding: TensorSharding, mesh: Mesh) -> TensorSharding | None:
    """The sharding of a parameter's companion, such as its moments; None if it follows nothing.

    Example:
        >>> cut = TensorSharding("mesh", [["x"], ["y"]])
        >>> mesh = Mesh([("x", 2), ("y", 4)])
        >>> [str(companion_sharding(shape, (8, 16), cut, mesh)) for shape in ((16,), (10, 8, 16), (1,))]
        ['#sdy.sharding<@mesh, [{"y"}]>', '#sdy.sharding<@mesh, [{}, {"x"}, {"y"}]>', 'None']
    """
    extra = len(shape) - len(parameter)
    if extra > 0:
        if tuple(shape[extra:]) != tuple(parameter):
            return None
        return sharding.with_dims((*(DimensionSharding(),) * extra, *sharding.dims))
    candidates = {
        tuple(sharding.dims[d] for d in dims)
        for dims in itertools.combinations(range(len(parameter)), len(shape))
        if tuple(parameter[d] for d in dims) == tuple(shape)
    }
    if len(candidates) != 1:
        return None
    (dims,) = candidates
    return sharding.with_dims(dims) if all(size % dim.shards(mesh) == 0 for size, dim in zip(shape, dims, strict=True)) else None
