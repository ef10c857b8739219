"""The problem of a program: any assignment takes the work of its plan, and the collectives of its ops one by one."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

import shardy_py as sp
from shardy_py.api.partitioning import RegionBuilder
from shardy_py.cost.hardware_table import hardware
from shardy_py.cost.links import Fabric
from shardy_py.ir import Op, Program, Value
from shardy_py.partition.layouts import layout_of
from shardy_py.partition.op import spec_of
from shardy_py.partition.price import Machine
from shardy_py.plan.memory.analysis import lifetimes
from shardy_py.plan.search import CHOSEN
from shardy_py.planner.inlined import inlined
from shardy_py.planner.memory import fixed_bytes, peak_bytes
from shardy_py.planner.model import Model, model_of
from shardy_py.planner.op_tables import OpTables, TooLarge, reduced_shares
from shardy_py.planner.problem import entries, weight
from shardy_py.planner.space import Annotations, assign, shardings_of, spaces_of
from tests.partition.test_price import price, summed

MESHES = {"one axis": {"x": 4}, "two axes": {"x": 2, "y": 4}, "three axes": {"x": 2, "y": 2, "z": 2}}
ASSIGNMENTS = 6

FREE = Fabric("switch", 1e30, latency=0.0)
FREE_LINKS = dataclasses.replace(hardware("h100"), fabric=FREE, network=FREE)
"""What moves costs nothing, so that an assignment takes as long as its plan under any partitioner."""


def f32(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def i32(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.int32)


def mlp(params: Any, state: Any, x: jax.Array) -> Any:
    def loss(params: Any) -> jax.Array:
        return jnp.mean((jnp.tanh(x @ params["in"] + params["bias"]) @ params["out"] - x) ** 2)

    grads = jax.grad(loss)(params)
    state = jax.tree.map(lambda m, g: 0.9 * m + g, state, grads)
    return jax.tree.map(lambda p, m: p - 0.1 * m, params, state), state


def layers(x: jax.Array, ws: jax.Array, mask: jax.Array) -> Any:
    def layer(x: jax.Array, w: jax.Array) -> tuple[jax.Array, jax.Array]:
        x = jnp.where(mask, jnp.tanh(x @ w) @ w.T + x, 0)
        return x, jnp.sum(x, axis=1)

    return jax.value_and_grad(lambda ws: jnp.sum(lax.scan(layer, x, ws)[0] ** 2))(ws)


def attention(x: jax.Array, w: jax.Array) -> jax.Array:
    query, key, value = jnp.einsum("btd,cdhk->cbhtk", x, w)
    scores = jax.nn.softmax(jnp.einsum("bhtk,bhsk->bhts", query, key), axis=-1)
    return x + jnp.einsum("bhts,bhsk->bthk", scores, value).reshape(x.shape)


def indexing(table: jax.Array, at: jax.Array, update: jax.Array) -> Any:
    rows = table[at]
    written = lax.dynamic_update_slice(table, update, (at[0], 0))
    joined = jnp.concatenate([rows, update * 2], axis=0)
    return rows @ update.T, written.at[at].add(rows), joined[2:10], jnp.cumsum(joined, 0), jnp.sort(table, axis=1)


def images(x: jax.Array, k: jax.Array) -> jax.Array:
    return jnp.mean(jnp.tanh(lax.conv_general_dilated(x, k, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))), (1, 2))


def on_one_device(x: jax.Array, w: jax.Array) -> jax.Array:
    return jnp.tanh(jax.pure_callback(lambda x: x, x, x) @ w) + x


def branches(chosen: jax.Array, x: jax.Array, w: jax.Array) -> jax.Array:
    return lax.cond(chosen, lambda x, w: jnp.tanh(x @ w) @ w.T, lambda x, w: jnp.sin(x) * w[0], x, w)


def calls(x: jax.Array, y: jax.Array) -> Any:
    half = jax.jit(lambda x, y: (x @ y, jnp.exp(x)))
    a, b = half(x, y)
    c, _ = half(b, y)
    again = jax.checkpoint(lambda a, y: jnp.sin(a @ y) @ y.T)
    return jax.grad(lambda a, y: jnp.sum(again(a, y) ** 2), (0, 1))(a, y), c


def shared_constants(x: jax.Array, k: jax.Array) -> Any:
    """Both gradients read the same ones, each in its own layout."""
    return jax.grad(lambda x, k: jnp.sum(images(x, k)) + jnp.sum(lax.conv(x, k.T, (1, 1), "SAME")), (0, 1))(x, k)


def callbacks_in_loops(x: jax.Array) -> Any:
    def trip(_: int, carried: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        order, y = carried
        return order[::-1], y + jax.pure_callback(lambda x: x, x, x)

    return lax.fori_loop(0, 3, trip, (jnp.arange(len(x)), x))


WEIGHTS = {"in": f32(16, 32), "bias": f32(32), "out": f32(32, 16)}
PROGRAMS: dict[str, tuple[Callable[..., Any], tuple[Any, ...], tuple[int, ...]]] = {
    "training step": (mlp, (WEIGHTS, WEIGHTS, f32(64, 16)), (0, 1)),
    "scanned layers": (layers, (f32(32, 16), f32(3, 16, 32), jax.ShapeDtypeStruct((32, 16), jnp.bool_)), ()),
    "attention": (attention, (f32(8, 16, 32), f32(3, 32, 4, 8)), ()),
    "indexing": (indexing, (f32(64, 16), i32(8), f32(8, 16)), ()),
    "images": (images, (f32(8, 16, 16, 8), f32(3, 3, 8, 16)), ()),
    "on one device": (on_one_device, (f32(32, 16), f32(16, 16)), ()),
    "branches": (branches, (jax.ShapeDtypeStruct((), jnp.bool_), f32(32, 16), f32(16, 16)), ()),
    "calls": (calls, (f32(32, 16), f32(16, 16)), ()),
    "shared constants": (shared_constants, (f32(8, 8, 8, 8), f32(8, 8, 8, 8)), ()),
    "callbacks in loops": (callbacks_in_loops, (f32(16, 32),), ()),
}


@dataclasses.dataclass(frozen=True, eq=False)
class Case:
    """A plan without annotations, and the model of its program in XLA's form."""

    plan: sp.Plan
    program: Program
    copies: Mapping[Value, Value]
    model: Model


def case(name: str, mesh: str, donate: bool = True, on: str | sp.Hardware = FREE_LINKS) -> Case:
    return made_of(*PROGRAMS[name], mesh=mesh, donate=donate, on=on)


def made_of(
    function: Callable[..., Any],
    args: tuple[Any, ...],
    donated: tuple[int, ...] = (),
    *,
    mesh: str = "one axis",
    donate: bool = True,
    on: str | sp.Hardware = FREE_LINKS,
) -> Case:
    plan = sp.auto_shard(function, mesh=MESHES[mesh], lowering="jit", donate_argnums=donated if donate else ()).plan(*args)
    alike = tuple((d.input, d.output) for d in plan.donation if d.output is not None)
    program, copies = inlined(plan.program)
    space = spaces_of(program, plan.mesh, Annotations((None,) * len(plan.inputs), (None,) * len(plan.outputs), alike))(None)
    model = model_of(OpTables(program, Machine(plan.mesh, hardware(on))), space, feeding=plan.feeding)
    return Case(plan, program, copies, model)


def drawn(model: Model, choose: random.Random) -> list[int]:
    """A random assignment that no table forbids: classes change one by one, where that is allowed."""
    problem = model.problem
    allowed = [set(map(tuple, table.strategies.tolist())) for table in problem.tables]
    assignment = [0] * len(problem.strategies)
    for c in choose.sample(range(len(assignment)), len(assignment)):
        before, assignment[c] = assignment[c], choose.randrange(problem.strategies[c])
        if any(c in t.classes and tuple(assignment[k] for k in t.classes) not in rows for t, rows in zip(problem.tables, allowed)):
            assignment[c] = before
    return assignment


def finished(case: Case, assignment: Sequence[int]) -> sp.Plan:
    """The plan in which every value lies as assigned."""
    plan, model = case.plan, case.model
    sharding = shardings_of(model.space, model.assignment(assignment), "mesh")
    assign(plan.program, model.space, sharding, case.copies)
    inputs = tuple(dataclasses.replace(v, sharding=a.sharding) for v, a in zip(plan.inputs, plan.program.main.arguments))
    outputs = tuple(dataclasses.replace(v, sharding=sharding(i)) for i, v in enumerate(plan.outputs))
    assert isinstance(plan.partitioner, RegionBuilder)
    region = RegionBuilder(plan.partitioner.imported, plan.partitioner.traced, by_planner=True)
    return dataclasses.replace(plan, inputs=inputs, outputs=outputs, search=CHOSEN, partitioner=region)


def seconds(case: Case, assignment: Sequence[int], on: str | sp.Hardware = FREE_LINKS) -> float:
    step = finished(case, assignment).cost_analysis(on).step_seconds
    assert step is not None
    return step.high


def is_near(price: float, region: float) -> bool:
    """Whether a price is near that of a region along the same axes, which also masks what is uneven and combines what was cut."""
    return 0.25 * region <= price <= 1.05 * region


@pytest.mark.parametrize("mesh", ["one axis", "two axes"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_an_assignment_costs_about_what_its_region_costs(name: str, mesh: str) -> None:
    made = case(name, mesh)
    choose, model = random.Random(f"{name} {mesh}"), made.model
    seen: set[float] = set()
    for _ in range(ASSIGNMENTS):
        assignment = drawn(model, choose)
        seen.add(step := seconds(made, assignment))
        assert is_near(model.seconds(assignment), step)
    assert len(seen) > 1


@pytest.mark.parametrize("name", ["training step", "attention", "indexing", "images", "calls", "shared constants"])
def test_collectives_are_those_of_the_ops_one_by_one(name: str) -> None:
    made = made_of(*PROGRAMS[name], mesh="two axes", on=dataclasses.replace(hardware("h100"), host_bandwidth=None))
    choose, equal = random.Random(name), 0
    for _ in range(ASSIGNMENTS):
        assignment = drawn(made.model, choose)
        sharding = shardings_of(made.model.space, made.model.assignment(assignment), "mesh")
        for value in made.model.space.classes:
            if isinstance(value, Value):
                value.sharding = sharding(value)
        made.program.main.result_shardings = [sharding(i) for i in range(len(made.plan.outputs))]
        machine = Machine(made.plan.mesh, hardware("h100"))
        deferred = sum((1 - share) * reduction_seconds(op, machine) for op, share in reduced_shares(made.program).items())
        priced = summed(made.program, machine)
        own = made.model.cost_seconds(assignment)
        assert own >= (priced - deferred) * (1 - 1e-9)
        equal += own == pytest.approx(priced - deferred, rel=1e-9)
    assert equal == ASSIGNMENTS


def reduction_seconds(op: Op, machine: Machine) -> float:
    """What bringing the partial sums of an op to the layout of its result takes longer than for one element."""
    layouts = [layout_of(v.sharding, v.type.rank, machine.mesh) for v in (*op.operands, *op.results)]
    return float(price(spec_of(op), layouts, machine, ()).reduction_seconds[0])


def switched(at: jax.Array, x: jax.Array, w: jax.Array) -> jax.Array:
    def inner(x: jax.Array, w: jax.Array) -> jax.Array:
        return lax.cond(at[0] > 3, lambda x: jnp.sort(x, 1) @ w, lambda x: jnp.exp(x) @ w, x) @ w.T

    return lax.switch(at[1], [lambda x, w: jnp.tanh(x @ w) @ w.T, lambda x, w: jnp.sort(x, 0) @ w @ w.T, inner], x, w)


def test_branches_take_no_longer_than_the_longest() -> None:
    """All branches count, so that each is worth cutting, and together no more than the one that a plan counts."""
    case = made_of(switched, (i32(2), f32(64, 32), f32(32, 48)))
    choose = random.Random(0)
    for _ in range(12):
        assignment = drawn(case.model, choose)
        assert case.model.seconds(assignment) <= 1.05 * seconds(case, assignment)


def test_what_runs_inside_of_a_shard_map_is_a_constant() -> None:
    mesh = jax.sharding.AbstractMesh((4,), ("x",), axis_types=(AxisType.Auto,))

    def rows(x: jax.Array, w: jax.Array) -> jax.Array:
        summed = lax.fori_loop(0, 3, lambda _, x: lax.pmean(jnp.tanh(x @ w @ w.T), "x"), x)
        return lax.all_gather(summed, "x", tiled=True)

    def function(x: jax.Array, w: jax.Array) -> jax.Array:
        whole = jax.shard_map(rows, mesh=mesh, in_specs=(P("x"), P()), out_specs=P(), check_vma=False)(jnp.sin(x), w)
        return jnp.tanh(whole @ w)

    made = made_of(function, (f32(32, 16), f32(16, 24)))
    choose = random.Random(0)
    for _ in range(ASSIGNMENTS):
        assignment = drawn(made.model, choose)
        assert is_near(made.model.seconds(assignment), seconds(made, assignment))


def test_three_axes() -> None:
    made = case("training step", "three axes")
    assignment = drawn(made.model, random.Random(0))
    assert is_near(made.model.seconds(assignment), seconds(made, assignment))


@pytest.mark.parametrize("name", ["training step", "scanned layers", "branches"])
def test_a_model_with_too_many_entries_is_left_before_anything_is_priced(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made = case(name, "two axes", on="h100")
    entries_of_all = sum(len(table.costs) for table in made.model.problem.tables)
    machine = Machine(made.plan.mesh, hardware("h100"))
    again = model_of(OpTables(made.program, machine), made.model.space, entries_of_all, feeding=made.plan.feeding)
    assert [table.costs.tolist() for table in again.problem.tables] == [table.costs.tolist() for table in made.model.problem.tables]
    monkeypatch.setattr("shardy_py.planner.op_tables.price_table", lambda *args: pytest.fail("an op was priced"))
    with pytest.raises(TooLarge):
        model_of(OpTables(made.program, machine), made.model.space, entries_of_all // 2)


@pytest.mark.parametrize("name", ["training step", "scanned layers"])
def test_bytes_of_arguments_and_results_are_those_of_the_plan(name: str) -> None:
    made = case(name, "two axes")
    choose = random.Random(name)
    rows = fixed_bytes(made.program, made.model, [d.output for d in made.plan.donation if d.output is not None], (), 0.0)
    for _ in range(3):
        assignment = drawn(made.model, choose)
        memory = finished(made, assignment).memory_analysis("h100")
        fixed = memory.argument_size_in_bytes + memory.output_size_in_bytes - memory.alias_size_in_bytes
        assert weight(rows, entries(made.model.problem, assignment)) - rows.limit == fixed


@pytest.mark.parametrize("name", ["training step", "scanned layers", "attention"])
def test_limits_of_full_steps_are_exact_at_their_plan(name: str) -> None:
    made = case(name, "two axes")
    assignment = drawn(made.model, random.Random(name))
    plan = finished(made, assignment)
    fixed = fixed_bytes(made.program, made.model, [d.output for d in plan.donation if d.output is not None], (), 0.0)
    chosen = entries(made.model.problem, assignment)
    for peak in lifetimes(dataclasses.replace(plan, partitioner=None), "h100").peaks():
        limit = peak_bytes(made.model, fixed, peak, 0.0, chosen, made.copies)
        assert weight(limit, chosen) - limit.limit == pytest.approx(peak.bytes)


def test_state_that_a_step_hands_on_comes_out_as_it_goes_in() -> None:
    made = case("training step", "one axis")
    classes, arguments = made.model.space.classes, made.program.main.arguments
    assert made.plan.donation
    for leaf in made.plan.donation:
        assert leaf.output is not None
        assert classes[arguments[leaf.input]] == classes[leaf.output]
    made = case("training step", "one axis", donate=False)
    classes, arguments = made.model.space.classes, made.program.main.arguments
    assert not {classes[a] for a in arguments} & {classes[i] for i in range(len(made.plan.outputs))}


def test_no_class_has_two_dimensions_of_one_value() -> None:
    plan = sp.auto_shard(lambda y: y + y.T, mesh={"x": 4}, lowering="jit").plan(f32(8, 8))
    space = spaces_of(inlined(plan.program)[0], plan.mesh, Annotations((None,), (None,)))(None)
    for classes in space.classes.values():
        assert len(set(classes)) == len(classes)


def test_results_of_one_reduction_are_cut_alike() -> None:
    """An op makes them in one layout; one that is read would else be reduced apart from one that is not."""
    plan = sp.auto_shard(lambda x: jnp.argmax(x, axis=1), mesh={"x": 2}, lowering="jit").plan(f32(64, 64))
    program, _ = inlined(plan.program)
    space = spaces_of(program, plan.mesh, Annotations((None,), (None,)))(None)
    (reduction,) = (op for op in program.walk() if op.name == "stablehlo.reduce")
    largest, index = (space.classes[result] for result in reduction.results)
    assert largest == index
    assert largest[0] != space.classes[reduction.operands[0]][0]


def test_an_axis_cuts_one_summed_dimension() -> None:
    """Operands of a scatter or reduction that lie along one axis in different dimensions are not both read so."""
    made, choose = case("indexing", "one axis"), random.Random(0)
    machine = Machine(made.plan.mesh, hardware("h100"))
    ops = [op for op in made.program.walk() if op.results and not op.regions]
    for _ in range(ASSIGNMENTS):
        assignment = made.model.assignment(drawn(made.model, choose))
        for op in ops:
            layouts = [made.model.space.layout(value, assignment) for value in (*op.operands, *op.results)]
            one = price(spec_of(op), layouts, machine, ())
            for layout in (reads.targets[0] for reads in one.reads if reads is not None):
                axes = [axis for dim in layout for axis in dim]
                assert len(axes) == len(set(axes))
