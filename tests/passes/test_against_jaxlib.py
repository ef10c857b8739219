"""Every pass, and the first part of the pipeline, does what jaxlib's does, down to the order of uses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from shardy_py.frontends.mlir import from_mlir
from shardy_py.passes import export, import_
from shardy_py.passes.export import (
    close_shardings,
    constant_or_scalar_merger,
    drop_sharding_rules,
    export_named_computations,
    insert_func_call_reshards,
    propagate_to_func_results,
    remove_sharding_groups,
    remove_sub_axes_in_input_output_shardings,
    sharding_constraint_to_reshard,
    sink_data_flow_edges,
    unflatten_call_graph,
    update_non_divisible_input_output_shardings,
)
from shardy_py.passes.import_ import (
    add_data_flow_edges,
    apply_sharding_constraints,
    constant_or_scalar_splitter,
    flatten_call_graph,
    import_func_calls,
    lift_inlined_meshes,
    manual_axes_cleanup,
    pre_order_funcs,
    propagate_sharding_from_func_to_call,
    remove_size_one_axes,
    sharding_group_import,
    symbol_dce,
)
from tests.passes.oracle import corpus, dump, jaxlib_program, options_of
from tests.passes.random_modules import module
from tests.reference import NEEDS_SAME_SHARDY

Pass = Any

IMPORT: tuple[Pass, ...] = (
    symbol_dce,
    lift_inlined_meshes,
    remove_size_one_axes,
    propagate_sharding_from_func_to_call,
    constant_or_scalar_splitter,
    manual_axes_cleanup,
    add_data_flow_edges,
    flatten_call_graph,
    import_func_calls,
    apply_sharding_constraints,
    sharding_group_import,
    pre_order_funcs,
)
EXPORT: tuple[Pass, ...] = (
    export_named_computations,
    propagate_to_func_results,
    unflatten_call_graph,
    insert_func_call_reshards,
    constant_or_scalar_merger,
    sink_data_flow_edges,
    remove_sharding_groups,
    sharding_constraint_to_reshard,
    update_non_divisible_input_output_shardings,
    remove_sub_axes_in_input_output_shardings,
    close_shardings,
    drop_sharding_rules,
)
PASSES: dict[str, Pass] = {each.NAME: each for each in (*IMPORT, *EXPORT)}
ON_FUNCTIONS = frozenset(
    (
        constant_or_scalar_merger.NAME,
        drop_sharding_rules.NAME,
        sharding_constraint_to_reshard.NAME,
        sink_data_flow_edges.NAME,
    )
)
UNREAD = {
    "sdy-lift-inlined-meshes/lift_inlined_meshes/8": "meshes in replica groups are not part of a program",
}


def pipeline(passes: tuple[Pass, ...]) -> str:
    return ",".join(f"func.func({each.NAME})" if each.NAME in ON_FUNCTIONS else each.NAME for each in passes)


def check(text: str, passes: tuple[Pass, ...]) -> None:
    program = from_mlir(text)
    for each in passes:
        each.run(program)
    assert dump(program) == dump(jaxlib_program(text, pipeline(passes)))


def test_every_pass_has_the_name_of_its_file() -> None:
    for name, each in PASSES.items():
        assert name.removeprefix("sdy-").replace("-", "_") == each.__name__.rpartition(".")[2]
        assert each.__name__.startswith((import_.__name__, export.__name__))


@NEEDS_SAME_SHARDY
@pytest.mark.parametrize("seed", range(20))
def test_import_of_random_modules(seed: int) -> None:
    check(module(seed), IMPORT)


@NEEDS_SAME_SHARDY
@pytest.mark.parametrize("seed", range(40, 56))
def test_import_and_export_of_random_modules(seed: int) -> None:
    check(module(seed), (*IMPORT, *EXPORT))


@pytest.mark.parametrize("seed", range(70, 80))
def test_splitter_alone(seed: int) -> None:
    check(module(seed, size=20), (constant_or_scalar_splitter,))


@NEEDS_SAME_SHARDY
@pytest.mark.parametrize("seed", range(90, 100))
def test_edges_and_constraints_alone(seed: int) -> None:
    check(module(seed, size=16), (add_data_flow_edges, apply_sharding_constraints))


@pytest.mark.parametrize("name", sorted(PASSES.keys() - {symbol_dce.NAME}))
def test_golden_cases(name: str) -> None:
    cases = [case for case in corpus(name) if case["id"] not in UNREAD]
    if not cases:
        pytest.skip("the golden corpus is not here")
    for case in cases:
        run = lambda case=case: _run(case, PASSES[name].run)  # noqa: E731
        if case["status"] == "ok":
            assert dump(run(), uses=False) == dump(from_mlir(case["output"]), uses=False), case["id"]
            continue
        with pytest.raises(ValueError) as error:
            run()
        assert all(d["text"] in str(error.value) for d in case["diagnostics"] if d["severity"] == "error"), case["id"]


def _run(case: dict[str, Any], run: Callable[..., None]) -> Any:
    program = from_mlir(case["input"])
    run(program, **options_of(case["pipeline"]))
    return program
