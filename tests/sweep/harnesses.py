"""Configurations of JAX's own tests of its primitives, as they are shipped with it."""

from __future__ import annotations

import functools
from typing import Any

import jax
import numpy as np

from tests.sweep.draw import Case, Draw, Generator

LARGEST = 1 << 14
"""Elements of an argument, so that a configuration takes little time."""


@functools.cache
def _harnesses() -> list[Any]:
    with jax.enable_x64(True):  # which decides, when the module is first imported, how many there are
        from jax._src.internal_test_util.test_harnesses import all_harnesses

    return [h for h in all_harnesses if h.filter("cpu", include_jax_unimpl=False)]


def _wide(leaf: Any) -> bool:
    return "64" in str(getattr(leaf, "dtype", "")) and str(leaf.dtype) != "complex64"


def _harness(draw: Draw) -> Case:
    harness = draw.one_of(_harnesses())
    flat, tree = jax.tree.flatten(harness.dyn_args_maker(np.random.RandomState(draw.integer(0, 999))))
    if any(np.size(x) > LARGEST or (_wide(x) and not draw.x64) for x in flat):
        return _harness(draw)
    arguments = tuple(x if jax.dtypes.issubdtype(getattr(x, "dtype", None), jax.dtypes.prng_key) else np.asarray(x) for x in flat)
    return Case(lambda *xs: harness.dyn_fun(*jax.tree.unflatten(tree, xs)), arguments, fixed=tuple(range(len(arguments))))


GENERATORS: dict[str, Generator] = {"harness": _harness}
