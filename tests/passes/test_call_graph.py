"""Calls as deep as a program likes, and as many copies as memory has room for."""

from __future__ import annotations

import pytest

from shardy_py.errors import ShardyError
from shardy_py.opt import run_passes

TYPE = "tensor<8xf32>"


def chain(length: int, calls: int = 1) -> str:
    """Functions each of which calls the next one some times."""
    lines = []
    for i in range(length):
        lines.append(f"func.func {'private ' if i else ''}@f{i}(%v0: {TYPE}) -> {TYPE} {{")
        lines += [f"  %v{k + 1} = call @f{i + 1}(%v{k}) : ({TYPE}) -> {TYPE}" for k in range(calls)]
        lines.append(f"  return %v{calls} : {TYPE}\n}}")
    return "\n".join((*lines, f"func.func private @f{length}(%a: {TYPE}) -> {TYPE} {{ return %a : {TYPE} }}"))


@pytest.mark.parametrize("passes", ["sdy-pre-order-funcs", "sdy-flatten-call-graph", "sdy-constant-or-scalar-splitter", "symbol-dce"])
def test_deep_calls(passes: str) -> None:
    assert run_passes(chain(1200), passes).count("func.func") == 1201


@pytest.mark.parametrize("passes", ["sdy-import-func-calls", "sdy-propagation-pipeline"])
def test_deep_calls_do_not_become_regions(passes: str) -> None:
    assert "@f0" in run_passes(chain(100), passes)
    with pytest.raises(ShardyError, match="nested more than") as error:
        run_passes(chain(1200), passes)
    assert "-:" in str(error.value.where)


@pytest.mark.parametrize("passes", ["sdy-flatten-call-graph", "sdy-import-func-calls", "sdy-propagation-pipeline"])
def test_doubled_calls(passes: str) -> None:
    with pytest.raises(ShardyError, match="a copy of each function per call would have 134,217,725 ops"):
        run_passes(chain(25, calls=2), passes)


def test_long_constant_expressions() -> None:
    lines = [f"%{i + 1} = stablehlo.negate %{i} : {TYPE}" for i in range(3000)]
    head = f"func.func @main(%a: {TYPE}) -> {TYPE} {{\n%0 = stablehlo.constant dense<1.0> : {TYPE}"
    tail = f"%b = stablehlo.add %a, %3000 : {TYPE}\n%c = stablehlo.add %b, %3000 : {TYPE}\nreturn %c : {TYPE} }}"
    assert run_passes("\n".join((head, *lines, tail)), "sdy-constant-or-scalar-splitter").count("negate") == 6000
