"""Every primitive computes the same on eight devices as on one, whatever its parameters and shardings are.

A failure names the command that runs its configuration alone.
"""

from __future__ import annotations

import pytest
from jax import lax

from shardy_py.backends.local.table import HANDLERS, LOCAL_RULES
from tests.sweep.configurations import GENERATORS, configuration_of, name_of
from tests.sweep.running import INVALID, LOWERINGS, Outcome, check, sweep

MANY = 72

NOT_SWEPT = {
    "is made by other primitives alone, or holds other parts of a region": """
        agreed call closed_call core_call custom_fusion eval_jaxpr fusible partial_sums partitioned_call platform_index remat_opt
        copy_p empty geqp3 geqrf iota_2x32_shape mulhi multiple_of ormqr philox2x32 philox4x32 threefry4x32 xla_metadata_value
        random_wrap reciprocal windows
    """,
    "draws other numbers each time": "rng_uniform",
    "takes no batch": "cholesky_update",
    "speaks of shardings or memory, which tests of their own change": """
        custom_partitioning device_put layout_constraint reshard sdy_propagation_barrier sdy_ruled_call sdy_sharding_constraint
        sdy_sharding_group relayout shard_alike sharding_constraint with_memory_space_constraint xla_metadata_call
    """,
    "has effects, which tests of their own count": "debug_print io_callback pallas_call",
}
"""Why a primitive with a form or a handler has no generator."""

OF_LATER_VERSIONS = ("log2", "one_minus_square", "polynomial")


@pytest.mark.slow
def test_sample() -> None:
    check(sweep((name_of(seed), seed) for seed in range(MANY)))


def test_every_primitive_has_a_generator() -> None:
    swept = {name.partition("/")[0] for name in GENERATORS}
    excused = {name for names in NOT_SWEPT.values() for name in names.split()}
    of_this_version = {name for name in (*LOCAL_RULES, *HANDLERS) if name not in OF_LATER_VERSIONS or hasattr(lax, name)}
    assert sorted(of_this_version - swept - excused) == []
    assert sorted(swept & excused) == []


def test_a_name_and_a_seed_give_one_configuration() -> None:
    one, same, other = (configuration_of("gather", seed) for seed in (3, 3, 4))
    assert repr(one.arguments) == repr(same.arguments)
    assert (one.mesh, one.in_shardings, one.out_shardings, one.around) == (same.mesh, same.in_shardings, same.out_shardings, same.around)
    assert repr(one.arguments) != repr(other.arguments)


def test_every_outcome_but_right_fails() -> None:
    assert LOWERINGS
    with pytest.raises(AssertionError, match=r"--seed 7 --only 'gather' --lowering jit"):
        check([Outcome("gather", 7, "jit", INVALID, "no")])
