"""Edges of data-flow ops, and where the shardings of their values stand."""

from __future__ import annotations

from shardy_py.dialect import TensorSharding
from shardy_py.ir import Op, Program
from shardy_py.opt import table
from shardy_py.opt.from_mlir import from_mlir
from shardy_py.passes import dataflow
from shardy_py.passes.export.close_shardings import CloseShardings
from shardy_py.passes.export.input_output_shardings import UpdateNonDivisibleInputOutputShardings
from shardy_py.passes.export.sink_data_flow_edges import SinkDataFlowEdges
from shardy_py.passes.import_.add_data_flow_edges import AddDataFlowEdges
from shardy_py.passes.import_.apply_sharding_constraints import ApplyShardingConstraints
from shardy_py.passes.propagation.log import Log

WHILE = """
  sdy.mesh @mesh = <["a"=4, "b"=2]>
  func.func @main(%x: tensor<6x8xf32>, %i: tensor<i32>) -> tensor<6x8xf32> {
    %0:2 = stablehlo.while(%p = %x, %j = %i) : tensor<6x8xf32>, tensor<i32>
    cond { %c = stablehlo.compare LT, %j, %j : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %c : tensor<i1>
    } do {
      %1 = stablehlo.negate %p : tensor<6x8xf32>
      stablehlo.return %1, %j : tensor<6x8xf32>, tensor<i32>
    }
    return %0#0 : tensor<6x8xf32>
  }"""

MANUAL = """
  sdy.mesh @mesh = <["a"=4, "b"=2]>
  func.func @main(%x: tensor<8x8xf32>) -> tensor<8x8xf32> {
    %0 = sdy.manual_computation(%x) in_shardings=[<@mesh, [{"a", "b", ?}, {?}]>] out_shardings=[<@mesh, [{"a"}, {}]>]
        manual_axes={"a"} (%y: tensor<2x8xf32>) {
      %1 = stablehlo.negate %y : tensor<2x8xf32>
      sdy.return %1 : tensor<2x8xf32>
    } : (tensor<8x8xf32>) -> tensor<8x8xf32>
    return %0 : tensor<8x8xf32>
  }"""


def first(program: Program, name: str) -> Op:
    return next(op for op in program.walk() if op.name == name)


def test_an_edge_of_a_while() -> None:
    program = from_mlir(WHILE)
    loop = first(program, "stablehlo.while")
    owner = loop.results[0]
    body = loop.regions[1]
    assert dataflow.sources(owner) == [(loop, 0), (body.terminator, 0)]
    assert dataflow.other_targets(owner) == [region.arguments[0] for region in loop.regions]
    assert dataflow.owner_of(body.arguments[0]) is owner
    assert dataflow.owner_fed_by(body.terminator, 0) is owner
    assert dataflow.owner_fed_by(loop.regions[0].terminator, 0) is None
    assert dataflow.shardable_value(body.arguments[0]) is owner
    AddDataFlowEdges().run(program)
    edge = dataflow.edge_of(body.arguments[0])
    assert edge is not None
    assert edge.operands == [owner]
    assert dataflow.shardable_value(body.arguments[0]) is edge.results[0]


def test_the_body_of_a_manual_computation_does_not_see_manual_axes() -> None:
    program = from_mlir(MANUAL)
    op = first(program, "sdy.manual_computation")
    argument = op.regions[0].arguments[0]
    assert str(dataflow.get_sharding(argument)) == '#sdy.sharding<@mesh, [{"b", ?}, {?}]>'
    assert dataflow.set_sharding(argument, TensorSharding.parse('#sdy.sharding<@mesh, [{}, {"b"}]>'))
    assert str(op.attributes["in_shardings"][0]) == '#sdy.sharding<@mesh, [{"a"}, {"b"}]>'
    inside = dataflow.before_edge(op.results[0], op.attributes["out_shardings"][0])
    assert inside is not None
    assert str(inside) == "#sdy.sharding<@mesh, [{}, {}]>"
    assert dataflow.after_edge(op.results[0], inside) is op.attributes["out_shardings"][0]


def test_setting_one_result_opens_the_others() -> None:
    program = from_mlir(WHILE)
    loop = first(program, "stablehlo.while")
    dataflow.set_sharding(loop.results[0], TensorSharding.parse('#sdy.sharding<@mesh, [{"a"}, {}]>'))
    assert [str(result.sharding) for result in loop.results] == ['#sdy.sharding<@mesh, [{"a"}, {}]>', "#sdy.sharding<@mesh, []>"]


def test_every_value_ends_with_a_sharding() -> None:
    program = from_mlir(WHILE)
    AddDataFlowEdges().run(program)
    loop = first(program, "stablehlo.while")
    dataflow.set_sharding(loop.results[0], TensorSharding.parse('#sdy.sharding<@mesh, [{?}, {"b", ?}]>'))
    SinkDataFlowEdges(block_arguments=True).run(program)
    CloseShardings(every_value=True).run(program)
    wanted = TensorSharding.parse('#sdy.sharding<@mesh, [{}, {"b"}]>')
    assert [region.arguments[0].sharding for region in loop.regions] == [wanted, wanted]
    assert str(first(program, "stablehlo.negate").result.sharding) == "#sdy.sharding<@mesh, [{}, {}]>"
    assert all(result.sharding is not None for op in program.walk() for result in op.results)


def test_changes_are_recorded() -> None:
    text = """
      sdy.mesh @mesh = <["a"=4, "b"=2]>
      func.func @main(%x: tensor<6x8xf32>) -> tensor<6x8xf32> {
        %0 = sdy.sharding_constraint %x <@mesh, [{"a"}, {}]> : tensor<6x8xf32>
        return %0 : tensor<6x8xf32>
      }"""
    program = from_mlir(text)
    log: Log = []
    ApplyShardingConstraints().run(program, log)
    UpdateNonDivisibleInputOutputShardings().run(program, log)
    (x,) = program.main.arguments
    assert [(step.target, str(step.old), str(step.new), step.reason, step.op and step.op.name) for step in log] == [
        (x, "None", '#sdy.sharding<@mesh, [{"a"}, {}]>', "a closed sharding constraint", "sdy.sharding_constraint"),
        (
            x,
            '#sdy.sharding<@mesh, [{"a"}, {}]>',
            '#sdy.sharding<@mesh, [{"a":(1)2}, {}]>',
            "the size of the dimension is not a multiple of the number of shards",
            None,
        ),
    ]


def test_deep_nesting() -> None:
    depth = 100
    calls = "\n".join(
        f"func.func private @f{i}(%x: tensor<8xf32>) -> tensor<8xf32> {{ %0 = call @f{i + 1}(%x) : (tensor<8xf32>) -> tensor<8xf32>\n"
        "return %0 : tensor<8xf32> }"
        for i in range(depth)
    )
    last = f"func.func private @f{depth}(%x: tensor<8xf32>) -> tensor<8xf32> {{ return %x : tensor<8xf32> }}"
    main = "func.func @main(%x: tensor<8xf32>) -> tensor<8xf32> { %0 = call @f0(%x) : (tensor<8xf32>) -> tensor<8xf32>\n"
    program = from_mlir(f"{main} return %0 : tensor<8xf32> }}\n{calls}\n{last}")
    table.PropagationPipeline().run(program)
    assert len(program.functions) == depth + 2
