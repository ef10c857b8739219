"""Export passes that remove or rewrite attributes do what jaxlib's do."""

from __future__ import annotations

from typing import Any

import pytest

from shardy_py.ir import Program
from shardy_py.opt.debug_attributes import RemovePropagationDebugInfo
from shardy_py.opt.from_mlir import from_mlir
from shardy_py.opt.meshes import DropShardingAndMesh, InlineMeshes
from shardy_py.opt.reshard_to_collectives import RemoveAllGatherReduceScatterForCmv1
from shardy_py.passes.export.close_shardings import DropShardingRules
from tests.passes.oracle import corpus, dump

PASSES: tuple[Any, ...] = (
    DropShardingAndMesh,
    DropShardingRules,
    InlineMeshes,
    RemoveAllGatherReduceScatterForCmv1,
    RemovePropagationDebugInfo,
)
CASES = [pytest.param(pass_, case, id=case["id"]) for pass_ in PASSES for case in corpus(pass_.name)]


def shown(program: Program) -> str:
    """All that these passes may change: ops, shardings, rules, and attributes of arguments and results."""
    lines = [dump(program, uses=False)]
    lines += [f"{function.name} {function.argument_attributes} {function.result_attributes}" for function in program.functions]
    lines += [f"{op.name} {op.rule}" for op in program.walk() if op.rule is not None]
    return "\n".join(lines)


@pytest.mark.parametrize(("pass_", "case"), CASES)
def test_golden(pass_: Any, case: dict[str, Any]) -> None:
    program = from_mlir(case["input"])
    pass_().run(program)
    assert shown(program) == shown(from_mlir(case["output"]))
