"""The verifier refuses graphs that hang together badly, and none that this package makes."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from shardy_py.dialect import Mesh, OpShardingRule, TensorSharding
from shardy_py.errors import VerificationError
from shardy_py.frontends.jaxpr import from_jaxpr
from shardy_py.frontends.mlir import from_mlir
from shardy_py.ir import TOKEN, Block, Function, Location, Op, Program, TensorType, Value
from shardy_py.ir.verifier import problems, verify
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


def drop_use(ops: list[Op]) -> None:
    ops[0].result.uses.popitem()


def add_use(ops: list[Op]) -> None:
    ops[0].result.uses[ops[2], 0] = None


def move_up(ops: list[Op]) -> None:
    ops[0], ops[1] = ops[1], ops[0]


def list_twice(ops: list[Op]) -> None:
    ops.insert(1, ops[0])


def erase_without_dropping(ops: list[Op]) -> None:
    block = ops[0].block
    assert block is not None
    dead = Op("stablehlo.tanh", [ops[0].result], [T])
    block.insert(1, dead)
    ops.remove(dead)


def leave_block(ops: list[Op]) -> None:
    ops[1].block = Block()


def forget_owner(ops: list[Op]) -> None:
    ops[0].result.owner = ops[1]


def forget_index(ops: list[Op]) -> None:
    ops[0].result.index = 1


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


def shard_by_text(ops: list[Op]) -> None:
    ops[1].result.sharding = "x"  # type: ignore[assignment]


def rule_of_another(ops: list[Op]) -> None:
    ops[1].rule = OpShardingRule((8,), [[[0]]], [[[0]]])


def rule_of_a_token(ops: list[Op]) -> None:
    ops[0].result.type = TOKEN
    ops[1].rule = OpShardingRule((8,), [[[0]], [[0]]], [[[0]]])


def lose_attributes(ops: list[Op]) -> None:
    ops[1].name = "func.call"


def count_badly(ops: list[Op]) -> None:
    ops[1].name = "sdy.reshard"


def lose_sharding(ops: list[Op]) -> None:
    ops[0].name = "sdy.reshard"


def change_type(ops: list[Op]) -> None:
    ops[0].name = "sdy.sharding_constraint"
    ops[0].results[0].type = TensorType((4,), "float32")


BROKEN: list[tuple[Callable[[list[Op]], None], str]] = [
    (drop_use, "operand #1 does not have this op among its uses"),
    (add_use, "use list names operand #0 of 'func.return', which is another value"),
    (move_up, "operand #0 does not dominate this use"),
    (list_twice, "op stands in a block twice"),
    (erase_without_dropping, "operand #0 of an op that is not in the function"),
    (leave_block, "op stands in a block that is not its own"),
    (forget_owner, "result or argument #0 does not know its owner"),
    (forget_index, "result or argument #0 does not know its owner"),
    (return_early, "must be the last operation in the parent block"),
    (end_without_return, "block with no terminator"),
    (end_with_another, "expects regions to end with 'func.return', found 'stablehlo.return'"),
    (use_of_another_function, "operand #1 does not dominate this use"),
    (shard_by_text, "result - should have a sharding attribute of type TensorShardingAttr"),
    (rule_of_another, "number of operands and mappings must match: 2 != 1"),
    (rule_of_a_token, "operand 0 - expected a ranked tensor with a static shape"),
    (lose_attributes, "attributes, operands or regions are not those of the op: KeyError: 'callee'"),
    (count_badly, "requires 1 operand, but found 2"),
    (lose_sharding, "requires attribute 'sharding'"),
    (change_type, "requires the same type for all operands and results"),
]


@pytest.mark.parametrize(("break_", "what"), BROKEN, ids=[break_.__name__ for break_, _ in BROKEN])
def test_a_broken_graph_is_found(break_: Callable[[list[Op]], None], what: str) -> None:
    program, ops = chain()
    verify(program)
    break_(ops)
    assert what in [problem.what for problem in problems(program)]


def test_parents_are_checked() -> None:
    program, _ = chain()
    program.main.body.parent = None
    assert problems(program)[0].what == "the body of a function has another parent"
    index = TensorType((), "int32")
    block, branch = Block([index]), Block()
    branch.append(Op("stablehlo.return", [], []))
    block.append(Op("stablehlo.case", block.arguments, [], {}, [branch]))
    block.append(Op("func.return", [], []))
    program = Program([Function("main", block, [])])
    verify(program)
    branch.parent = None
    assert problems(program)[0].what == "a region of an op has another parent"


def test_regions_see_the_values_around_them_and_keep_theirs() -> None:
    index = TensorType((), "int32")
    block, branch = Block([index]), Block()
    made = branch.append(Op("stablehlo.negate", block.arguments, [index]))
    branch.append(Op("stablehlo.return", [made.result], []))
    op = block.append(Op("stablehlo.case", block.arguments, [index], {}, [branch]))
    end = block.append(Op("func.return", [op.result], []))
    program = Program([Function("main", block, [index])])
    verify(program)
    end.set_operand(0, made.result)
    assert problems(program)[0].what == "operand #0 does not dominate this use"


def test_shapes_that_are_not_known_can_be_sharded() -> None:
    text = 'sdy.mesh @mesh = <["x"=2]>\nfunc.func @main(%a: tensor<?x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}) { return }'
    verify(from_mlir(text))


def test_declarations_have_no_body() -> None:
    verify(from_mlir("func.func private @f(tensor<8xf32>) -> tensor<8xf32>"))


def test_an_error_says_what_where_and_why() -> None:
    program, ops = chain()
    ops[1].result.sharding = TensorSharding("mesh", [["y"]])
    with pytest.raises(VerificationError) as error:
        verify(program)
    text = '%1 = stablehlo.add %0, %0 {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"y"}]>]>} : tensor<8xf32>'
    assert str(error.value).splitlines() == [
        'result - unknown axis name: "y"',
        f"  where: {text} at model.py:7, in function @main",
        '  why: sharding <@mesh, [{"y"}]>; the mesh is <["x"=2]>',
    ]
    assert str(pickle.loads(pickle.dumps(error.value))) == str(error.value)


def test_problems_come_in_order_up_to_a_limit() -> None:
    program, ops = chain()
    for op in ops[:2]:
        op.result.sharding = TensorSharding("nowhere", [[]])
    program.main.result_shardings[0] = TensorSharding("mesh", [])
    found = problems(program)
    assert [problem.op for problem in found] == [None, *ops[:2]]
    assert found[0].where == "function @main"
    assert len(problems(program, limit=2)) == 2
    assert repr(found[0]).startswith("<Problem result 0 - sharding doesn't match tensor rank")


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


def run_verified(pipeline: Pipeline, program: Program) -> int:
    """Runs a pipeline, and verifies the program after each pass; returns how many there were."""
    count = 0
    for pass_ in pipeline.passes():
        if isinstance(pass_, Pipeline):
            count += run_verified(pass_, program)
            continue
        pass_.run(program)
        count += 1
        assert not (broken := problems(program)), f"after {pass_}: {broken[0]}"
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
