"""Runs a step of a package's program under every lowering and compares it with `jax.jit`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

import shardy_py as sp
from tests.fixes import judge, small_programs_count

LOWERINGS = ("jit", "shard_map")
MESH = {"data": 2, "model": 4}


def check(step: Callable[..., Any], arguments: tuple[Any, ...], in_shardings: Any, *, tolerance: float = 1e-4) -> None:
    """Compares a step on eight devices with `jax.jit` on one, and applies the fixes of its findings.

    Args:
        step: A function of pytrees.
        arguments: Its arguments.
        in_shardings: As in `auto_shard`.
        tolerance: Relative, and absolute beside the largest value of a result; what is no float has to be equal.
    """
    wanted = jax.jit(step)(*arguments)
    for lowering in LOWERINGS:
        got = sp.auto_shard(step, mesh=MESH, in_shardings=in_shardings, lowering=lowering)(*arguments)
        assert jax.tree.structure(got) == jax.tree.structure(wanted)
        for (path, g), w in zip(jax.tree.leaves_with_path(got), jax.tree.leaves(wanted), strict=True):
            name = f"{lowering}: {jax.tree_util.keystr(path)}"
            if jax.dtypes.issubdtype(w.dtype, jax.dtypes.prng_key):
                g, w = jax.random.key_data(g), jax.random.key_data(w)
            g, w = np.asarray(g), np.asarray(w)
            assert g.dtype == w.dtype, name
            if g.dtype.kind != "f":
                np.testing.assert_array_equal(g, w, err_msg=name)
            else:
                np.testing.assert_allclose(g, w, rtol=tolerance, atol=tolerance * np.max(np.abs(w), initial=1e-3), err_msg=name)
    with small_programs_count():
        judge(sp.auto_shard(step, mesh=MESH, in_shardings=in_shardings).plan(*arguments))
