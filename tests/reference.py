"""JAX's own lowering and the passes in jaxlib, for tests to compare with."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import jaxlib
import pytest
from jaxlib.mlir import ir, passmanager
from jaxlib.mlir.dialects import stablehlo

from shardy_py.ir import Block, Function, Op, Program, Value
from shardy_py.opt.from_mlir import from_mlir, parse_module

PROPAGATION = "builtin.module(func.func(chlo-legalize-to-stablehlo),sdy-propagation-pipeline)"
"""The passes that XLA runs on a module before it partitions."""

LEGALIZE_CHLO = "builtin.module(func.func(chlo-legalize-to-stablehlo))"

SAME_SHARDY = jaxlib.__version__.startswith("0.10.")
"""Whether jaxlib carries Shardy of 0.10; the partitioner's passes of later ones do otherwise."""

NEEDS_SAME_SHARDY = pytest.mark.skipif(
    not SAME_SHARDY, reason=f"a difference of docs/differences.md between jaxlib 0.10 and {jaxlib.__version__}"
)

_CONSTANTS = frozenset(("stablehlo.constant", "sdy.constant"))
_UNCOMPARED = frozenset(("value", "has_side_effect", "text"))


def lower(fun: Callable[..., Any], *args: Any, in_shardings: Any = None, out_shardings: Any = None, platform: str = "cpu") -> ir.Module:
    """The module that `jax.jit(fun, in_shardings, out_shardings)` lowers to; None leaves a sharding open."""
    options: dict[str, Any] = {"keep_unused": True}
    if in_shardings is not None:
        options["in_shardings"] = in_shardings
    if out_shardings is not None:
        options["out_shardings"] = out_shardings
    module = jax.jit(fun, **options).trace(*args).lower(lowering_platforms=(platform,)).compiler_ir("stablehlo")
    assert isinstance(module, ir.Module)
    return module


def run_pipeline(module: ir.Module | str, pipeline: str = PROPAGATION) -> ir.Module:
    """Runs passes of jaxlib on a module, in place, or on text, and returns the module."""
    stablehlo.register_stablehlo_passes()
    if isinstance(module, str):
        module = parse_module(module)
    with module.context:
        passmanager.PassManager.parse(pipeline).run(module.operation)
    return module


def propagated(fun: Callable[..., Any], *args: Any, in_shardings: Any = None, out_shardings: Any = None) -> Program:
    """The program of a JAX function after the propagation of jaxlib."""
    return from_mlir(run_pipeline(lower(fun, *args, in_shardings=in_shardings, out_shardings=out_shardings)))


def programs_equal(first: Program, second: Program) -> str:
    """The first difference between two programs as text, "" where there is none.

    Compared are, in order: meshes, functions with the shardings of arguments and results, and ops with their names,
    operands, result types, attributes, shardings and regions. A scalar constant and its broadcast count as one constant of
    the full shape; constants are found where they are used, so that it does not matter where they stand, or whether they are
    shared; constants that nobody uses do not count.
    """
    if first.meshes != second.meshes:
        return f"meshes: {first.meshes} != {second.meshes}"
    names = [function.name for function in first.functions], [function.name for function in second.functions]
    if names[0] != names[1]:
        return f"functions: {names[0]} != {names[1]}"
    for one, other in zip(first.functions, second.functions, strict=True):
        found = _Comparison().functions(one, other)
        if found:
            return f"function '{one.name}': {found}"
    return ""


class _Comparison:
    def __init__(self) -> None:
        self.same: dict[Value, Value] = {}

    def functions(self, one: Function, other: Function) -> str:
        pairs = (
            ("argument types", [a.type for a in one.arguments], [a.type for a in other.arguments]),
            ("argument shardings", [a.sharding for a in one.arguments], [a.sharding for a in other.arguments]),
            ("result types", one.result_types, other.result_types),
            ("result shardings", one.result_shardings, other.result_shardings),
        )
        return _first_difference(pairs) or self.blocks(one.body, other.body)

    def blocks(self, one: Block, other: Block) -> str:
        if [a.type for a in one.arguments] != [a.type for a in other.arguments]:
            return f"block arguments: {one.arguments} != {other.arguments}"
        self.same.update(zip(one.arguments, other.arguments, strict=True))
        ops, others = list(_observed(one)), list(_observed(other))
        for i, (op, mate) in enumerate(zip(ops, others, strict=False)):
            found = self.ops(op, mate)
            if found:
                return f"op {i} '{op.name}': {found}"
        if len(ops) != len(others):
            longer = ops if len(ops) > len(others) else others
            return f"{len(ops)} ops != {len(others)} ops; the first one more is '{longer[min(len(ops), len(others))].name}'"
        return ""

    def ops(self, op: Op, mate: Op) -> str:
        pairs = (
            ("name", op.name, mate.name),
            ("number of operands", len(op.operands), len(mate.operands)),
            ("result types", [r.type for r in op.results], [r.type for r in mate.results]),
            ("result shardings", [r.sharding for r in op.results], [r.sharding for r in mate.results]),
            ("attributes", _compared(op.attributes), _compared(mate.attributes)),
            ("number of regions", len(op.regions), len(mate.regions)),
        )
        found = _first_difference(pairs)
        if found:
            return found
        for i, (a, b) in enumerate(zip(op.operands, mate.operands, strict=True)):
            if not (self.same.get(a) is b or (_is_constant(a) and _is_constant(b) and a.type is b.type)):
                return f"operand {i}: {_describe(a)} != {_describe(b)}"
        for i, (a, b) in enumerate(zip(op.regions, mate.regions, strict=True)):
            found = self.blocks(a, b)
            if found:
                return f"region {i}: {found}"
        self.same.update(zip(op.results, mate.results, strict=True))
        return ""


def _first_difference(pairs: tuple[tuple[str, Any, Any], ...]) -> str:
    return next((f"{what}: {a} != {b}" for what, a, b in pairs if a != b), "")


def _compared(attributes: Mapping[str, Any]) -> dict[str, Any]:
    return {name: attributes[name] for name in sorted(attributes) if name not in _UNCOMPARED and "." not in name}


def _is_constant(value: Value) -> bool:
    op = value.defining_op
    if op is None:
        return False
    if op.name in _CONSTANTS:
        return True
    return op.name == "stablehlo.broadcast_in_dim" and op.operands[0].type.rank == 0 and _is_constant(op.operands[0])


def _observed(block: Block) -> Iterator[Op]:
    return (op for op in block.ops if not (len(op.results) == 1 and _is_constant(op.result)))


def _describe(value: Value) -> str:
    op = value.defining_op
    return f"result {value.index} of '{op.name}'" if op is not None else f"argument {value.index}"
