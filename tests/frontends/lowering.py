"""JAX's own lowering of a function, as a `Program` to compare an imported jaxpr with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jaxlib.mlir import passmanager

from shardy_py.dialect import Mesh
from shardy_py.frontends.jaxpr import Imported, from_jaxpr
from shardy_py.frontends.lowered import legalize_chlo
from shardy_py.ir import TOKEN, Block, Op, Program, Value
from shardy_py.opt.from_mlir import from_mlir

MESH = Mesh((("x", 2), ("y", 4)))
_CALLS_ONLY = "sdy-import-func-calls{add-data-flow-edges-on-named-computations=false}"
_IMPORT_CALLS = f"builtin.module(symbol-dce,sdy-flatten-call-graph,symbol-dce,{_CALLS_ONLY},symbol-dce)"
_IGNORED = frozenset(("value", "name", "has_side_effect", "sdy.sharding", "unconstrained_dims"))


def traced(function: Callable[..., Any], *args: Any) -> jax.extend.core.ClosedJaxpr:
    """The jaxpr of a function of flat or nested arguments."""
    return jax.make_jaxpr(function)(*args)


def lowered(function: Callable[..., Any], args: Sequence[Any], in_shardings: Any = None, out_shardings: Any = None) -> Program:
    """The module that `jax.jit` lowers to, with its calls imported by the passes in jaxlib."""
    shardings = {} if in_shardings is None else {"in_shardings": in_shardings}
    if out_shardings is not None:
        shardings["out_shardings"] = out_shardings
    module = jax.jit(function, keep_unused=True, **shardings).lower(*args).compiler_ir("stablehlo")
    with module.context:
        passmanager.PassManager.parse(_IMPORT_CALLS).run(module.operation)
    program = from_mlir(module)
    legalize_chlo(program)
    _drop_open_constraints(program)
    return program


def _drop_open_constraints(program: Program) -> None:
    """JAX states for ops in partly manual regions that nothing is known about their results."""
    for op in list(program.walk()):
        sharding = op.results[0].sharding if op.name == "sdy.sharding_constraint" else None
        if sharding is not None and sharding.is_fully_open and not sharding.has_axes and op.block is not None:
            op.result.replace_uses(op.operands[0])
            op.drop_uses()
            op.block.set_ops([other for other in op.block.ops if other is not op])


def imported(function: Callable[..., Any], args: Sequence[Any], **options: Any) -> Imported:
    """The same function through its jaxpr."""
    return from_jaxpr(traced(function, *args), mesh=MESH, **options)


def canonical(program: Program) -> list[str]:
    """One line per op that matters: constants and tokens nobody observes are left out, broadcast scalars are constants."""
    return _Lines(program).lines


class _Lines:
    def __init__(self, program: Program) -> None:
        self.lines: list[str] = []
        self.numbers: dict[Value, str] = {}
        self.splats: set[Value] = set()
        self.groups: dict[int, int] = {}
        main = program.main
        self.arguments(main.body)
        self.block(main.body, "")
        shardings = zip(main.result_shardings, main.result_types, strict=True)
        self.lines.append(f"results {[str(s) for s, t in shardings if t is not TOKEN]}")

    def arguments(self, block: Block) -> None:
        for argument in block.arguments:
            if argument.type is not TOKEN:
                self.number(argument)

    def number(self, value: Value) -> str:
        sharding = f" {value.sharding}" if value.sharding is not None else ""
        return self.numbers.setdefault(value, f"%{len(self.numbers)}:{value.type}{sharding}")

    def block(self, block: Block, indent: str) -> None:
        for op in block.ops:
            self.op(op, indent)

    def op(self, op: Op, indent: str) -> None:
        if op.name in ("stablehlo.create_token", "stablehlo.after_all") or op.name in ("stablehlo.constant", "sdy.constant"):
            self.splats.update(op.results)
            return
        if op.name == "stablehlo.broadcast_in_dim" and op.operands[0] in self.splats and op.operands[0].type.rank == 0:
            self.splats.update(op.results)
            return
        operands = [f"constant:{v.type}" if v in self.splats else self.number(v) for v in op.operands if v.type is not TOKEN]
        kept = {k: v for k, v in sorted(op.attributes.items()) if k not in _IGNORED and not k.startswith("mhlo.")}
        attributes = {k: plain(v) for k, v in kept.items() if v is not None}
        if "group_id" in attributes:
            # JAX counts them over the whole process.
            attributes["group_id"] = self.groups.setdefault(attributes["group_id"], len(self.groups))
        for region in op.regions:
            self.arguments(region)
        results = [self.number(v) for v in op.results if v.type is not TOKEN]
        self.lines.append(f"{indent}{', '.join(results)} = {op.name}({', '.join(operands)}) {attributes}")
        for region in op.regions:
            self.block(region, indent + "  ")
            self.lines.append(indent + "  --")


def plain(value: Any) -> Any:
    """Attributes as both front ends may spell them."""
    if isinstance(value, (list, tuple)):
        return tuple(plain(v) for v in value)
    if isinstance(value, np.integer):
        return int(value)
    return value if isinstance(value, (int, bool)) else str(value)


def difference(got: Program, want: Program, around: int = 3) -> str:
    """The first difference of two programs in words; empty where there is none."""
    mine, theirs = canonical(got), canonical(want)
    for i, (a, b) in enumerate(zip(mine, theirs)):
        if a != b:
            before = "\n".join(f"    {line}" for line in theirs[max(0, i - around) : i])
            return f"line {i} of {len(mine)}/{len(theirs)}:\n{before}\n  - {a}\n  + {b}"
    if len(mine) != len(theirs):
        longer = mine if len(mine) > len(theirs) else theirs
        return f"{len(mine)} lines, {len(theirs)} expected; next {longer[min(len(mine), len(theirs))]}"
    return ""
