"""Runs propagation passes on small modules and writes down what they do; jaxlib's pass must do the same."""

from __future__ import annotations

from typing import Any

from shardy_py.dialect import Mesh, OpShardingRule, TensorSharding
from shardy_py.ir import Program
from shardy_py.opt.from_mlir import from_mlir
from shardy_py.opt.propagate import AggressivePropagate, BasicPropagate, OpPriorityPropagate
from shardy_py.passes.propagation.rounds import PropagationPass, UserPriorityPropagate
from shardy_py.passes.propagation.step import propagate_step
from tests.passes.oracle import jaxlib_program

PASSES: dict[str, type[PropagationPass]] = {
    pass_.name: pass_ for pass_ in (AggressivePropagate, BasicPropagate, OpPriorityPropagate, UserPriorityPropagate)
}
AGGRESSIVE, BASIC, OP_PRIORITY, USER_PRIORITY = PASSES

MESH = Mesh((("a", 2), ("b", 2), ("c", 4), ("d", 3)))
MESH_TEXT = 'sdy.mesh @mesh = <["a"=2, "b"=2, "c"=4, "d"=3]>\n'
NONE, FORWARD, BACKWARD, BOTH = range(4)


def sharding(dims: str) -> TensorSharding:
    """A sharding on `@mesh` from the text of its dimensions: `[{"a"}, {?}]`."""
    return TensorSharding.parse(f"#sdy.sharding<@mesh, {dims}>")


def rule(text: str) -> OpShardingRule:
    """A rule from the inside of its text: `([i])->([i]) {i=8}`."""
    return OpShardingRule.parse(f"#sdy.op_sharding_rule<{text}>")


def dims(value: TensorSharding | None) -> str:
    """The inside of a sharding's text, without the mesh."""
    return "-" if value is None else str(value).split(", ", 1)[1].removesuffix(">")


def step(rule_text: str, *shardings: str | None, directions: int | tuple[int, ...] = BOTH, **options: Any) -> list[str]:
    """All tensors' shardings after one step; a missing one is `-`."""
    bound = rule(rule_text)
    before = [None if s is None else sharding(s) for s in shardings]
    each = (directions,) * bound.num_factors if isinstance(directions, int) else directions
    after = list(before)
    for i, new in propagate_step(bound, each, before, {"mesh": MESH}, **options):
        after[i] = new
    return [dims(s) for s in after]


def described(program: Program) -> list[str]:
    """A line for each argument, op result and function result that has a sharding."""
    lines = []
    for function in program.functions:
        prefix = "" if function is program.functions[0] else f"{function.name} "
        lines += [f"{prefix}argument {a.index} {dims(a.sharding)}" for a in function.arguments if a.sharding is not None]
        for op in function.body.walk():
            known = [dims(r.sharding) for r in op.results if r.sharding is not None]
            if known:
                lines.append(f"{prefix}{op.name.split('.')[1]} {' '.join(known)}")
        results = enumerate(function.result_shardings)
        lines += [f"{prefix}result {i} {dims(s)}" for i, s in results if s is not None]
    return lines


def propagated(text: str, name: str = AGGRESSIVE, **options: Any) -> list[str]:
    """The functions of a module on `@mesh` after a pass; asserts that jaxlib's pass makes the same."""
    program = from_mlir(MESH_TEXT + text)
    PASSES[name](**options).run(program)
    ours = described(program)
    written = " ".join(f"{k.replace('_', '-')}={str(v).lower()}" for k, v in options.items())
    theirs = described(jaxlib_program(MESH_TEXT + text, f"{name}{{{written}}}" if written else name))
    assert ours == theirs
    return ours
