"""Random modules with loops, branches, computations, groups, barriers, priorities and sub-axes, under random options."""

from __future__ import annotations

import random
import re
from typing import Any

import pytest

from shardy_py.opt.from_mlir import from_mlir
from tests.passes.oracle import jaxlib_program
from tests.passes.propagation.modules import BASIC, OP_PRIORITY, PASSES, USER_PRIORITY, described
from tests.passes.random_modules import module
from tests.reference import run_pipeline

IMPORT = (
    "sdy-import-pipeline,sdy-flatten-call-graph,symbol-dce,sdy-import-func-calls,symbol-dce,"
    "sdy-apply-sharding-constraints,sdy-sharding-group-import"
)
DIRECTIONS = ("FORWARD", "BACKWARD", "NONE")


def imported(seed: int, source: random.Random) -> str:
    """A module after the import passes of jaxlib, with priorities, parts of axis a, and barriers put in."""
    text = module(seed, size=source.choice((3, 5, 8))).replace('"a"=2, "b"=2, "c"=1', '"a"=4, "b"=2, "c"=2')
    text = str(run_pipeline(text.replace("tensor<4x8xf32>", "tensor<2x8xf32>"), f"builtin.module({IMPORT})"))

    def dimension(found: re.Match[str]) -> str:
        written = found[0]
        if '"' not in written:
            return written
        if '"a"' in written and source.random() < 0.3:
            written = written.replace('"a"', source.choice(('"a":(1)2', '"a":(2)2')))
        return written + (f"p{source.randint(0, 3)}" if source.random() < 0.3 else "")

    def stated(found: re.Match[str]) -> str:
        return re.sub(r"\{[^{}]*\}", dimension, found[0])

    def barrier(found: re.Match[str]) -> str:
        return f"sdy.propagation_barrier {found[1]} allowed_direction={source.choice(DIRECTIONS)} :"

    lines = []
    for line in text.split("\n"):
        if "func.func" in line:
            line = re.sub(r"#sdy\.sharding<@mesh, \[[^\]]*\]>", stated, line)
        elif "sdy.sharding_constraint" in line:
            line = re.sub(r"<@mesh, \[[^\]]*\]>", stated, line, count=1)
        elif source.random() < 0.4:
            line = re.sub(r"stablehlo\.negate (%[\w#]+) :", barrier, line)
        lines.append(line)
    return "\n".join(lines)


def options(name: str, source: random.Random) -> dict[str, Any]:
    """Random options of a pass."""
    chosen: dict[str, Any] = {}
    if source.random() < 0.3:
        chosen["conservative_propagation"] = True
    if name != BASIC and source.random() < 0.4:
        chosen["propagation_strategy"] = source.choice(("basic", "basic-then-aggressive"))
    if name in (OP_PRIORITY, USER_PRIORITY) and source.random() < 0.2:
        chosen["run_op_priority_propagation"] = False
    return chosen


def compare(seed: int) -> None:
    source = random.Random(seed)
    text = imported(seed, source)
    name = USER_PRIORITY if source.random() < 0.6 else source.choice(list(PASSES))
    chosen = options(name, source)
    program = from_mlir(text)
    PASSES[name](**chosen).run(program)
    written = " ".join(f"{key.replace('_', '-')}={str(value).lower()}" for key, value in chosen.items())
    assert described(program) == described(jaxlib_program(text, f"{name}{{{written}}}" if written else name))


@pytest.mark.filterwarnings("ignore::shardy_py.passes.propagation.rounds.ShardingGroupConflictWarning")
@pytest.mark.parametrize("seed", range(40))
def test_random_module(seed: int) -> None:
    compare(seed)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::shardy_py.passes.propagation.rounds.ShardingGroupConflictWarning")
def test_many_random_modules() -> None:
    for seed in range(40, 240):
        compare(seed)
