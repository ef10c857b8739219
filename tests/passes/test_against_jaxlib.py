"""Every pass, and the first part of the pipeline, does what jaxlib's does, down to the order of uses."""

from __future__ import annotations

from typing import Any

import pytest

from shardy_py.opt.constant_or_scalar_merger import ConstantOrScalarMerger
from shardy_py.opt.from_mlir import from_mlir
from shardy_py.opt.function_graph import FlattenCallGraph, PreOrderFuncs, SymbolDce, UnflattenCallGraph
from shardy_py.opt.function_shardings import InsertFuncCallReshards, PropagateShardingFromFuncToCall, PropagateToFuncResults
from shardy_py.opt.meshes import LiftInlinedMeshes
from shardy_py.opt.named_computations import ExportNamedComputations, ImportFuncCalls
from shardy_py.passes.export.close_shardings import CloseShardings, DropShardingRules
from shardy_py.passes.export.input_output_shardings import RemoveSubAxesInInputOutputShardings, UpdateNonDivisibleInputOutputShardings
from shardy_py.passes.export.sharding_constraint_to_reshard import ShardingConstraintToReshard
from shardy_py.passes.export.sink_data_flow_edges import SinkDataFlowEdges
from shardy_py.passes.import_.add_data_flow_edges import AddDataFlowEdges
from shardy_py.passes.import_.apply_sharding_constraints import ApplyShardingConstraints
from shardy_py.passes.import_.constant_or_scalar_splitter import ConstantOrScalarSplitter
from shardy_py.passes.import_.manual_axes_cleanup import ManualAxesCleanup
from shardy_py.passes.import_.remove_size_one_axes import RemoveSizeOneAxes
from shardy_py.passes.import_.sharding_group_import import RemoveShardingGroups, ShardingGroupImport
from tests.passes.oracle import corpus, dump, jaxlib_program, options_of
from tests.passes.random_modules import module

Pass = Any

IMPORT: tuple[Pass, ...] = (
    SymbolDce,
    LiftInlinedMeshes,
    RemoveSizeOneAxes,
    PropagateShardingFromFuncToCall,
    ConstantOrScalarSplitter,
    ManualAxesCleanup,
    AddDataFlowEdges,
    FlattenCallGraph,
    ImportFuncCalls,
    ApplyShardingConstraints,
    ShardingGroupImport,
    PreOrderFuncs,
)
EXPORT: tuple[Pass, ...] = (
    ExportNamedComputations,
    PropagateToFuncResults,
    UnflattenCallGraph,
    InsertFuncCallReshards,
    ConstantOrScalarMerger,
    SinkDataFlowEdges,
    RemoveShardingGroups,
    ShardingConstraintToReshard,
    UpdateNonDivisibleInputOutputShardings,
    RemoveSubAxesInInputOutputShardings,
    CloseShardings,
    DropShardingRules,
)
PASSES: dict[str, Pass] = {each.name: each for each in (*IMPORT, *EXPORT)}
ON_FUNCTIONS = frozenset(
    (
        ConstantOrScalarMerger.name,
        DropShardingRules.name,
        ShardingConstraintToReshard.name,
        SinkDataFlowEdges.name,
    )
)
UNREAD = {
    "sdy-lift-inlined-meshes/lift_inlined_meshes/8": "meshes in replica groups are not part of a program",
}


def pipeline(passes: tuple[Pass, ...]) -> str:
    return ",".join(f"func.func({each.name})" if each.name in ON_FUNCTIONS else each.name for each in passes)


def check(text: str, passes: tuple[Pass, ...]) -> None:
    program = from_mlir(text)
    for each in passes:
        each().run(program)
    assert dump(program) == dump(jaxlib_program(text, pipeline(passes)))


def test_every_pass_has_the_name_of_its_class() -> None:
    for name, each in PASSES.items():
        assert name.removeprefix("sdy-").replace("-", "") == each.__name__.lower()


@pytest.mark.parametrize("seed", range(20))
def test_import_of_random_modules(seed: int) -> None:
    check(module(seed), IMPORT)


@pytest.mark.parametrize("seed", range(40, 56))
def test_import_and_export_of_random_modules(seed: int) -> None:
    check(module(seed), (*IMPORT, *EXPORT))


@pytest.mark.parametrize("seed", range(70, 80))
def test_splitter_alone(seed: int) -> None:
    check(module(seed, size=20), (ConstantOrScalarSplitter,))


@pytest.mark.parametrize("seed", range(90, 100))
def test_edges_and_constraints_alone(seed: int) -> None:
    check(module(seed, size=16), (AddDataFlowEdges, ApplyShardingConstraints))


@pytest.mark.parametrize("name", sorted(PASSES.keys() - {SymbolDce.name}))
def test_golden_cases(name: str) -> None:
    cases = [case for case in corpus(name) if case["id"] not in UNREAD]
    if not cases:
        pytest.skip("the golden corpus is not here")
    for case in cases:
        run = lambda case=case: _run(case, PASSES[name])  # noqa: E731
        if case["status"] == "ok":
            assert dump(run(), uses=False) == dump(from_mlir(case["output"]), uses=False), case["id"]
            continue
        with pytest.raises(ValueError) as error:
            run()
        assert all(d["text"] in str(error.value) for d in case["diagnostics"] if d["severity"] == "error"), case["id"]


def _run(case: dict[str, Any], pass_: Pass) -> Any:
    program = from_mlir(case["input"])
    pass_(**options_of(case["pipeline"])).run(program)
    return program
