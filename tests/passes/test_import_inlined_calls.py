"""Calls that a front end has inlined end up as if Shardy had imported them."""

from __future__ import annotations

import pytest

from shardy_py.ir import Block, Function, Op, Program, Value
from shardy_py.opt.from_mlir import from_mlir
from shardy_py.passes.import_.add_data_flow_edges import ImportInlinedCalls
from shardy_py.passes.import_.constant_or_scalar_splitter import ConstantOrScalarSplitter
from shardy_py.passes.walk import original_name
from tests.passes.oracle import dump, jaxlib_program
from tests.passes.random_modules import module

SPLIT = "symbol-dce,sdy-propagate-sharding-from-func-to-call,sdy-constant-or-scalar-splitter"
IMPORT = "sdy-add-data-flow-edges,sdy-flatten-call-graph,symbol-dce,sdy-import-func-calls,symbol-dce"


class Inliner:
    """Builds a program anew, op by op, with each call replaced by a computation."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.functions = {function.name: function for function in program.functions}

    def run(self) -> Program:
        main = self.program.main
        made = Function(main.name, self.block(main.body, {}), main.result_types)
        made.result_shardings = list(main.result_shardings)
        for old, new in zip(main.arguments, made.arguments, strict=True):
            new.sharding = old.sharding
        return Program([made], self.program.meshes)

    def block(self, block: Block, values: dict[Value, Value], terminator: str | None = None) -> Block:
        made = Block([argument.type for argument in block.arguments])
        values.update(zip(block.arguments, made.arguments, strict=True))
        for op in block.ops:
            made.append(self.op(op, values))
        made.terminator.name = terminator or made.terminator.name
        return made

    def op(self, op: Op, values: dict[Value, Value]) -> Op:
        operands = [values[operand] for operand in op.operands]
        made = Op(op.name, operands, [result.type for result in op.results], op.attributes)
        if op.name == "func.call":
            callee = self.functions[op.attributes["callee"]]
            outs = [result.sharding for result in op.results]
            made.name = "sdy.named_computation"
            made.attributes = {
                "name": original_name(callee),
                "in_shardings": None,
                "out_shardings": tuple(outs) if outs[0] else None,
            }
            made.regions = [self.block(callee.body, {}, "sdy.return")]
        else:
            made.regions = [self.block(region, values) for region in op.regions]
        for region in made.regions:
            region.parent = made
        for old, new in zip(op.results, made.results, strict=True):
            values[old] = new
            new.sharding = old.sharding if op.name != "func.call" else None
        return made


@pytest.mark.parametrize("seed", range(200, 216))
def test_random_modules(seed: int) -> None:
    text = module(seed, plain_arguments=True)
    program = Inliner(jaxlib_program(text, SPLIT)).run()
    ImportInlinedCalls().run(program)
    assert dump(program) == dump(jaxlib_program(text, f"{SPLIT},{IMPORT}"))


def test_without_calls_it_is_add_data_flow_edges() -> None:
    text = """
      func.func @main(%x: tensor<8xf32>) -> tensor<8xf32> {
        %0 = stablehlo.optimization_barrier %x : tensor<8xf32>
        %1 = stablehlo.add %0, %0 : tensor<8xf32>
        return %1 : tensor<8xf32>
      }"""
    program = from_mlir(text)
    ConstantOrScalarSplitter().run(program)
    ImportInlinedCalls().run(program)
    assert dump(program) == dump(jaxlib_program(text, "sdy-add-data-flow-edges"))
