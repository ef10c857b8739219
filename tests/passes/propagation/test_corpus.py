"""The golden cases of the propagation passes."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import re
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest

from shardy_py.frontends.mlir import from_mlir
from shardy_py.ir import Program
from tests.passes.oracle import corpus
from tests.passes.propagation.modules import PASSES, dims

Case = dict[str, Any]
_VALUES = {"true": True, "false": False}


def cases() -> Iterator[Case]:
    for name in PASSES:
        for case in corpus(name):
            if case["status"] == "ok":
                yield case


def find(name: str) -> ModuleType:
    """The module of a pass."""
    if name in PASSES:
        return PASSES[name]
    for room in ("propagation", "import_", "export"):
        path = f"shardy_py.passes.{room}.{name.removeprefix('sdy-').replace('-', '_')}"
        if importlib.util.find_spec(path) is not None:
            return importlib.import_module(path)
    raise LookupError(name)


def run(program: Program, pipeline: str) -> None:
    """Runs the passes of a pipeline's text, with those of their options that we know."""
    for name, options in re.findall(r"(sdy-[a-z-]+)(?:\{([^}]*)\})?", pipeline):
        module = find(name)
        known = inspect.signature(module.run).parameters
        pairs = (pair.split("=") for pair in options.split())
        given = {key.replace("-", "_"): _VALUES.get(value, value) for key, value in pairs}
        module.run(program, **{key: value for key, value in given.items() if key in known})


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


@pytest.mark.filterwarnings("ignore::shardy_py.passes.propagation.sharding_groups.ShardingGroupConflictWarning")
@pytest.mark.parametrize("case", list(cases()), ids=lambda case: case["id"])
def test_golden_case(case: Case) -> None:
    program = from_mlir(case["input"])
    run(program, case["pipeline"])
    assert described(program) == described(from_mlir(case["output"]))
