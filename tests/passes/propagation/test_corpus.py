"""The golden cases of the propagation passes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest

from shardy_py.ir import Program
from shardy_py.opt import table
from shardy_py.opt.from_mlir import from_mlir
from tests.passes.oracle import corpus
from tests.passes.propagation.modules import PASSES, dims

Case = dict[str, Any]
_VALUES = {"true": True, "false": False}


def cases() -> Iterator[Case]:
    for name in PASSES:
        for case in corpus(name):
            if case["status"] == "ok":
                yield case


def run(program: Program, pipeline: str) -> None:
    """Runs the passes of a pipeline's text, with those of their options that we know."""
    for name, options in re.findall(r"(sdy-[a-z-]+)(?:\{([^}]*)\})?", pipeline):
        pass_ = table.PASSES[name]
        known = {option.name for option in pass_.options()}
        pairs = (pair.split("=") for pair in options.split())
        pass_(**{key.replace("-", "_"): _VALUES.get(value, value) for key, value in pairs if key in known}).run(program)


def described(program: Program) -> list[str]:
    """Names and shardings of everything, in order."""
    lines = []
    for function in program.functions:
        lines += [f"{function.name} argument {dims(a.sharding)}" for a in function.arguments]
        for op in function.body.walk():
            stated = [str(op.attributes.get(side)) for side in ("in_shardings", "out_shardings")]
            lines.append(f"{op.name} {[dims(r.sharding) for r in op.results]} {stated}")
        lines += [f"{function.name} result {dims(s)}" for s in function.result_shardings]
    return lines


@pytest.mark.filterwarnings("ignore::shardy_py.passes.propagation.rounds.ShardingGroupConflictWarning")
@pytest.mark.parametrize("case", list(cases()), ids=lambda case: case["id"])
def test_golden_case(case: Case) -> None:
    program = from_mlir(case["input"])
    run(program, case["pipeline"])
    assert described(program) == described(from_mlir(case["output"]))
