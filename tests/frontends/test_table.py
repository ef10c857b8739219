"""The table of primitives."""

from __future__ import annotations

import importlib
import importlib.util
from collections import Counter

from jax._src.interpreters import mlir

from shardy_py.frontends.primitives import TEMPLATES
from shardy_py.frontends.readers.opaque import OPAQUE, REASONS
from tests.primitive_kinds import COLLECTIVES, LOWERED, READ

OPTIONAL_MODULES = (
    "jax.experimental.buffer_callback",
    "jax.experimental.pallas",
    "jax.experimental.sparse",
    "jax.experimental.multihost_utils",
    "jax.experimental.custom_partitioning",
    "jax.experimental.compute_on",
    "jax.experimental.xla_metadata",
    "jax.experimental.shard_alike",
    "jax.experimental.key_reuse._core",
    "jax.experimental.mosaic.gpu",
    "jax.experimental.pallas.fuser",
    "jax.experimental.rnn",
    "jax.nn",
    "shardy_py.frontends.partial_sums",
)

OF_SOME_VERSIONS = """
    fusible log2 one_minus_square pbroadcast_done pbroadcast_dynamic pbroadcast_start polynomial psum_start relayout unreduced_pmax
    unreduced_pmin unreduced_psum_start unreduced_reduce_scatter_start
"""
"""Primitives that JAX lowers in some of the supported versions only."""

MADE_AFTERWARDS = {"equations"}
"""Primitives that stand only in programs that plans are lowered to, which are not read."""

MADE_BY_TESTS = "_of_this_test"
"""How the primitives end that other tests of the same process register."""


def import_optional() -> None:
    """Imports the modules that register primitives and that `import jax` leaves out; not every version has each."""
    for module in OPTIONAL_MODULES:
        if importlib.util.find_spec(module) is not None:
            importlib.import_module(module)


def lowered_primitives() -> set[str]:
    """Names of the primitives that JAX can lower now, on any platform."""
    tables = (mlir._lowerings, *mlir._platform_specific_lowerings.values())
    return {primitive.name for table in tables for primitive in table}


def test_every_primitive_that_jax_lowers_is_in_the_table() -> None:
    import_optional()
    lowered = {name for name in lowered_primitives() if not name.endswith(MADE_BY_TESTS)}
    assert sorted(lowered - READ - set(REASONS) - MADE_AFTERWARDS) == []


def test_no_primitive_is_named_twice() -> None:
    names = [*TEMPLATES, *(name for group in (LOWERED, COLLECTIVES, *OPAQUE.values()) for name in group.split())]
    assert [name for name, count in Counter(names).items() if count > 1] == []


def test_lowered_primitives_have_a_rule() -> None:
    import_optional()
    assert {*LOWERED.split(), *COLLECTIVES.split()} - lowered_primitives() <= set(OF_SOME_VERSIONS.split())


def test_opaque_primitives_say_why() -> None:
    assert all(reason.endswith(".") for reason in OPAQUE)
