"""The verifier refuses programs that hang together badly, and none that this package makes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from shardy_py.dialect import Mesh, OpShardingRule, TensorSharding
from shardy_py.errors import ShardyError, VerificationError
from shardy_py.frontends.jaxpr import from_jaxpr
from shardy_py.ir import TOKEN, Block, Function, Location, Op, Program, TensorType, Value
from shardy_py.ir.verifier import verify
from shardy_py.opt.from_mlir import from_mlir
from shardy_py.opt.table import PropagationPipeline
from shardy_py.passes.base import Pipeline
from shardy_py.passes.pipelines import PlanPipeline
from tests.reference import lower

T = TensorType((8,), "float32")
MESHES = {"mesh": Mesh([("x", 2)])}


def chain() -> tuple[Program, list[Op]]:
    """`main(a) { b = negate a; c = add b, b; return c }` and its ops."""
    block = Block([T])
    b = block.append(Op("stablehlo.negate", block.arguments, [T]))
    c = block.append(Op("stablehlo.add", [b.result, b.result], [T], location=Location("model.py", 7)))
    block.append(Op("func.return", [c.result], []))
    return Program([Function("main", block, [T])], MESHES), block.ops


def move_up(ops: list[Op]) -> None:
    ops[0], ops[1] = ops[1], ops[0]


def list_twice(ops: list[Op]) -> None:
    ops.insert(1, ops[0])


def return_early(ops: list[Op]) -> None:
    block = ops[0].block
    assert block is not None
    block.insert(1, Op("stablehlo.return", [], []))


def end_without_return(ops: list[Op]) -> None:
    ops[2].drop_uses()
    ops.pop()


def end_with_another(ops: list[Op]) -> None:
    ops[2].name = "stablehlo.return"


def use_of_another_function(ops: list[Op]) -> None:
    ops[1].set_operand(1, Value(T, Block(), 0))


def rule_of_another(ops: list[Op]) -> None:
    ops[1].rule = OpShardingRule((8,), [[[0]]], [[[0]]])


def rule_of_a_token(ops: list[Op]) -> None:
    ops[0].result.type = TOKEN
    ops[1].rule = OpShardingRule((8,), [[[0]], [[0]]], [[[0]]])


def call_nobody(ops: list[Op]) -> None:
    ops[1].name = "func.call"
    ops[1].attributes = {"callee": "nobody"}


def count_badly(ops: list[Op]) -> None:
    ops[1].name = "sdy.reshard"


def lose_sharding(ops: list[Op]) -> None:
    ops[0].name = "sdy.reshard"


def change_type(ops: list[Op]) -> None:
    ops[0].name = "sdy.sharding_constraint"
    ops[0].results[0].type = TensorType((4,), "float32")


def give_a_region(ops: list[Op]) -> None:
    ops[1].regions = [Block()]


BROKEN: list[tuple[Callable[[list[Op]], None], str]] = [
    (move_up, "an operand does not dominate this use"),
    (return_early, "must be the last operation in the parent block"),
    (end_without_return, "block with no terminator"),
    (end_with_another, "stablehlo.return ends another kind of block"),
    (use_of_another_function, "an operand does not dominate this use"),
    (rule_of_another, "the sharding rule does not suit the op"),
    (rule_of_a_token, "expected a ranked tensor with a static shape"),
    (count_badly, "requires 1 operand, but found 2"),
    (lose_sharding, "requires attribute 'sharding'"),
    (change_type, "operands and results must have the same types"),
    (call_nobody, "'nobody' does not reference a valid function"),
    (give_a_region, "has regions, which no op of its name has"),
]


@pytest.mark.parametrize(("break_", "what"), BROKEN, ids=[break_.__name__ for break_, _ in BROKEN])
def test_what_does_not_fit_is_found(break_: Callable[[list[Op]], None], what: str) -> None:
    program, ops = chain()
    verify(program)
    break_(ops)
    with pytest.raises(ShardyError) as error:
        verify(program)
    assert error.value.what == what


def loop() -> tuple[Program, Op]:
    """`main(a) { return while(a) cond { true } do { negate a } }` and the loop."""
    condition, body, block = Block([T]), Block([T]), Block([T])
    true = condition.append(Op("stablehlo.constant", [], [TensorType((), "bool")], {"value": True}))
    condition.append(Op("stablehlo.return", [true.result], []))
    new = body.append(Op("stablehlo.negate", body.arguments, [T]))
    body.append(Op("stablehlo.return", [new.result], []))
    op = block.append(Op("stablehlo.while", block.arguments, [T], {}, [condition, body]))
    block.append(Op("func.return", [op.result], []))
    return Program([Function("main", block, [T])]), op


def test_types_around_regions_are_compared() -> None:
    program, op = loop()
    verify(program)
    op.regions[1].arguments[0].type = TensorType((4,), "float32")
    with pytest.raises(VerificationError, match="operands and arguments of the body must have the same types"):
        verify(program)


def test_regions_see_the_values_around_them_and_keep_theirs() -> None:
    index = TensorType((), "int32")
    block, branch = Block([index]), Block()
    inner = branch.append(Op("stablehlo.negate", block.arguments, [index]))
    branch.append(Op("stablehlo.return", [inner.result], []))
    op = block.append(Op("stablehlo.case", block.arguments, [index], {}, [branch]))
    end = block.append(Op("func.return", [op.result], []))
    program = Program([Function("main", block, [index])])
    verify(program)
    end.set_operand(0, inner.result)
    with pytest.raises(VerificationError, match="an operand does not dominate this use"):
        verify(program)


MANUAL = [
    ('[{"a"}, {"b", ?}]', (16, 32), (8, 32), ("a",), None),
    ('[{"a", "b"}, {}]', (16, 32), (8, 32), ("a",), None),
    ('[{}, {}], replicated={"a"}', (16, 32), (16, 32), ("a",), None),
    ('[{"a", "b"}, {}]', (16, 32), (4, 32), ("a", "b"), None),
    ('[{"a"}, {}]', (16, 32), (8, 32), ("a", "c"), "cut by the manual axes"),
    ('[{}, {"a", "b"}]', (16, 32), (16, 16), ("b",), "which come before others"),
    ('[{"a"}, {}]', (7, 32), (3, 32), ("a",), "tensor<3x32xf32> is not a part of tensor<7x32xf32>"),
    ('[{"a"}, {}]', (16, 32), (16, 32), ("a",), "is not a part of"),
    ('[{"a"}]', (16, 32), (8, 32), ("a",), "sharding doesn't match tensor rank"),
]


@pytest.mark.parametrize(("dims", "outer", "inner", "manual_axes", "fault"), MANUAL)
def test_values_of_manual_computations(
    dims: str, outer: tuple[int, ...], inner: tuple[int, ...], manual_axes: tuple[str, ...], fault: str | None
) -> None:
    sharding = TensorSharding.parse(f"<@mesh, {dims}>")
    block, body = Block([TensorType(outer, "float32")]), Block([TensorType(inner, "float32")])
    body.append(Op("sdy.return", body.arguments, []))
    attributes = {"in_shardings": (sharding,), "out_shardings": (sharding,), "manual_axes": manual_axes}
    op = block.append(Op("sdy.manual_computation", block.arguments, [block.arguments[0].type], attributes, [body]))
    block.append(Op("func.return", [op.result], []))
    program = Program([Function("main", block, [op.result.type])], {"mesh": Mesh({"a": 2, "b": 2})})
    if fault is None:
        verify(program)
        op.attributes = {**attributes, "out_shardings": ()}
        fault = "out_shardings must have one sharding for each of 1 values, not 0"
    with pytest.raises(ShardyError, match=fault):
        verify(program)


def test_shapes_that_are_not_known_can_be_sharded() -> None:
    text = 'sdy.mesh @mesh = <["x"=2]>\nfunc.func @main(%a: tensor<?x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}) { return }'
    verify(from_mlir(text))


def test_declarations_have_no_body() -> None:
    verify(from_mlir("func.func private @f(tensor<8xf32>) -> tensor<8xf32>"))


def test_an_error_says_what_where_and_why() -> None:
    program, ops = chain()
    ops[1].result.sharding = TensorSharding("mesh", [["y"]])
    with pytest.raises(ShardyError) as error:
        verify(program)
    assert str(error.value).splitlines() == [
        'unknown axis name: "y"',
        '  where: stablehlo.add in function @main, sharding <@mesh, [{"y"}]>',
        '  why: the mesh is <["x"=2]>',
    ]


# What front ends and passes make.

GRID = Mesh([("x", 2), ("y", 4)])
ARGUMENTS = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in ((16, 32), (32, 16), (8, 16))]


def mesh() -> jax.sharding.Mesh:
    return jax.make_mesh((2, 4), ("x", "y"), axis_types=(jax.sharding.AxisType.Auto,) * 2)


def gradient(a: Any, b: Any, x: Any) -> Any:
    return jax.value_and_grad(lambda a, b: jnp.mean((jax.nn.gelu(x @ a) @ b) ** 2), argnums=(0, 1))(a, b)


def scan(a: Any, b: Any, x: Any) -> Any:
    return jax.lax.scan(lambda c, _: (jnp.tanh(c @ a @ b), c.sum()), x, None, length=3)


def while_loop(a: Any, b: Any, x: Any) -> Any:
    return jax.lax.while_loop(lambda c: c[1] < 3, lambda c: (jnp.sin(c[0] @ a @ b), c[1] + 1), (x, 0))


def cond(a: Any, b: Any, x: Any) -> Any:
    return jax.lax.cond(x.sum() > 0, lambda c: c @ a, lambda c: c @ b.T, x)


def shard_map(a: Any, _b: Any, x: Any) -> Any:
    def inner(x: Any, a: Any) -> Any:
        return jax.lax.psum(x @ a, "y")

    return jax.shard_map(inner, mesh=mesh(), in_specs=(P("x", "y"), P("y", None)), out_specs=P("x", None))(x, a)


def shard_map_over_one_axis(a: Any, _b: Any, x: Any) -> Any:
    def inner(x: Any, a: Any) -> Any:
        return jax.lax.psum(jnp.sin(x) @ a, "x")

    return jax.shard_map(inner, mesh=mesh(), in_specs=(P(None, "x"), P("x", None)), out_specs=P(), axis_names={"x"})(x, a)


def calls(a: Any, b: Any, x: Any) -> Any:
    @jax.jit
    def layer(x: Any, w: Any) -> Any:
        return jax.nn.relu(x @ w)

    return layer(layer(x, a), b) + layer(layer(x, a), b)


def constraints(a: Any, b: Any, x: Any) -> Any:
    h = jax.lax.with_sharding_constraint(x @ a, NamedSharding(mesh(), P("x", P.UNCONSTRAINED)))
    return jax.checkpoint(lambda h: jnp.sin(h @ b))(h)


def assorted(_a: Any, _b: Any, x: Any) -> Any:
    square = jnp.linalg.cholesky(x @ x.T + jnp.eye(8))
    return jnp.sort(x, 0), x[jnp.array([1, 2])], jnp.cumsum(x), jnp.argmax(x, 1), jax.random.normal(jax.random.key(0), (8,)), square


FUNCTIONS = [gradient, scan, while_loop, cond, shard_map, shard_map_over_one_axis, calls, constraints, assorted]


def check_uses(program: Program) -> None:
    """Asserts that values, ops and blocks know what they belong to, and that values know their uses."""
    for function in program.functions:
        assert function.body.parent is function
        uses: dict[Value, list[tuple[Op, int]]] = {value: [] for value in function.arguments}
        for place, op in ((block, op) for block in blocks(function.body) for op in block.ops):
            assert op.block is place, op
            assert all(region.parent is op for region in op.regions), op
            for owner, values in ((op, op.results), *((region, region.arguments) for region in op.regions)):
                for index, value in enumerate(values):
                    assert (value.owner, value.index) == (owner, index), op
                    uses[value] = []
        for op in function.body.walk():
            for index, operand in enumerate(op.operands):
                uses[operand].append((op, index))
        assert all(set(value.uses) == set(expected) for value, expected in uses.items())


def blocks(block: Block) -> Iterator[Block]:
    """A block and those in the regions of its ops."""
    yield block
    for op in block.ops:
        for region in op.regions:
            yield from blocks(region)


def run_verified(pipeline: Pipeline, program: Program) -> int:
    """Runs a pipeline, and verifies the program after each pass; returns how many there were."""
    count = 0
    for pass_ in pipeline.passes():
        if isinstance(pass_, Pipeline):
            count += run_verified(pass_, program)
            continue
        pass_.run(program)
        count += 1
        verify(program)
        check_uses(program)
    return count


@pytest.mark.parametrize("fun", FUNCTIONS, ids=lambda f: f.__name__)
def test_a_traced_function_stays_valid_through_all_passes(fun: Callable[..., Any]) -> None:
    shardings = [TensorSharding("mesh", [[], ["y"]]), None, TensorSharding("mesh", [["x"], []])]
    program = from_jaxpr(jax.make_jaxpr(fun)(*ARGUMENTS), mesh=GRID, in_shardings=shardings).program
    verify(program)
    assert run_verified(PlanPipeline(), program) > 8


@pytest.mark.parametrize("fun", FUNCTIONS, ids=lambda f: f.__name__)
def test_a_lowered_function_stays_valid_through_all_passes(fun: Callable[..., Any]) -> None:
    given = (NamedSharding(mesh(), P(None, "y")), None, NamedSharding(mesh(), P("x")))
    program = from_mlir(lower(fun, *ARGUMENTS, in_shardings=given))
    verify(program)
    assert run_verified(PropagationPipeline(), program) > 15
