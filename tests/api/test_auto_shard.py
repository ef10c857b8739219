from __future__ import annotations

import copy
import functools
import itertools
import pickle
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractMesh, AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import shardy_py as sp

SIZES = {"data": 2, "model": 4}


@pytest.fixture(scope="module")
def auto():
    return jax.make_mesh((2, 4), ("data", "model"), axis_types=(AxisType.Auto,) * 2)


@pytest.fixture(scope="module")
def explicit():
    return jax.make_mesh((2, 4), ("data", "model"))


@pytest.fixture(params=["jit", "shard_map"])
def auto_shard(request):
    """`sp.auto_shard` with each of the lowerings."""
    return functools.partial(sp.auto_shard, lowering=request.param)


def mlp(params, x):
    return jnp.tanh(x @ params["up"]) @ params["down"]


def arguments():
    rng = np.random.default_rng(0)
    make = lambda *shape: rng.standard_normal(shape).astype(np.float32)  # noqa: E731
    return {"up": make(16, 32), "down": make(32, 16)}, make(8, 16)


SPECS = ({"up": P(None, "model"), "down": None}, P("data"))


def specs(tree):
    return jax.tree.map(lambda s: tuple(s.spec), tree)


def test_propagates_and_gives_the_numbers(auto_shard, auto):
    step = auto_shard(mlp, mesh=auto, in_shardings=SPECS)
    params, x = arguments()
    plan = step.plan(params, x)
    assert specs(plan.input_shardings) == ({"up": (None, "model"), "down": ("model",)}, ("data",))
    assert specs(plan.output_shardings) == ("data",)
    y = step(params, x)
    assert y.sharding.is_equivalent_to(plan.output_shardings, 2)
    np.testing.assert_allclose(y, mlp(params, x), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", ["mapping", "abstract", "auto", "explicit", "context", "explicit context"])
def test_every_kind_of_mesh_gives_one_plan(kind, auto, explicit):
    meshes = {"mapping": SIZES, "abstract": AbstractMesh((2, 4), ("data", "model")), "auto": auto, "explicit": explicit}
    params, x = arguments()
    if kind in meshes:
        plan = sp.auto_shard(mlp, mesh=meshes[kind], in_shardings=SPECS).plan(params, x)
    else:
        with jax.set_mesh(auto if kind == "context" else explicit):
            plan = sp.auto_shard(mlp, in_shardings=SPECS).plan(params, x)
    assert plan.as_text() == sp.auto_shard(mlp, mesh=auto, in_shardings=SPECS).plan(params, x).as_text()


@pytest.mark.parametrize("context", [False, True])
def test_runs_on_an_explicit_mesh(auto_shard, explicit, context):
    params, x = arguments()
    want = mlp(params, x)
    step = auto_shard(mlp, mesh=explicit, in_shardings=SPECS)
    with jax.set_mesh(explicit) if context else jax.sharding.use_abstract_mesh(AbstractMesh((), ())):
        y = step(params, x)
        assert str(jax.typeof(y)) == "float32[8@data,16]"
        np.testing.assert_allclose(y, want, rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(step(params, jax.device_put(x, NamedSharding(explicit, P("data")))), want, rtol=1e-4, atol=1e-4)
    assert step.plan_count == 1


def test_runs_on_a_mesh_of_which_one_axis_is_explicit(auto_shard, explicit):
    params, x = arguments()
    want = mlp(params, x)
    for kinds in itertools.permutations((AxisType.Explicit, AxisType.Auto)):
        mixed = explicit.update(axis_types=kinds)
        step = auto_shard(mlp, mesh=mixed, in_shardings=SPECS)
        for batch in (x, jax.device_put(x, NamedSharding(mixed, P("data")))):
            np.testing.assert_allclose(step(params, batch), want, rtol=1e-4, atol=1e-4)
        with jax.set_mesh(mixed):
            np.testing.assert_allclose(jax.jit(step)(params, x), want, rtol=1e-4, atol=1e-4)


def test_gradients_on_a_mesh_of_which_one_axis_is_explicit(explicit):
    """Under `jax.jit`, whose labels and cotangents may be committed otherwise along the Auto axis than the results."""
    params, x = arguments()
    label = np.random.default_rng(0).standard_normal(mlp(params, x).shape).astype("float32")
    want = jax.grad(lambda params: (mlp(params, x) * label).sum())(params)
    for kinds in itertools.permutations((AxisType.Explicit, AxisType.Auto)):
        mixed = explicit.update(axis_types=kinds)
        step = sp.auto_shard(mlp, mesh=mixed, in_shardings=SPECS)
        spec = [name if kind is AxisType.Explicit else None for name, kind in zip(step.plan(params, x).output_shardings.spec, kinds)]
        placed = jax.device_put(label, NamedSharding(mixed, P(*spec)))
        gradient = jax.jit(jax.grad(lambda params, step=step, placed=placed: (step(params, x) * placed).sum()))(params)
        jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-4), gradient, want)


def test_bare_decorator_takes_the_mesh_of_the_context(auto_shard, auto):
    @auto_shard
    def double(x):
        """Twice."""
        return x * 2

    assert (double.__name__, double.__doc__) == ("double", "Twice.")
    assert double.__wrapped__(2) == 4
    with jax.set_mesh(auto):
        np.testing.assert_array_equal(double(np.ones(8)), 2 * np.ones(8))


def test_plans_once_per_signature(auto_shard, auto):
    step = auto_shard(mlp, mesh=auto, in_shardings=SPECS)
    params, x = arguments()
    for _ in range(3):
        step(params, x)
    assert step.plan_count == 1
    step(params, x[:4])
    assert step.plan_count == 2
    step(params, x)
    step(params, x[:4])
    assert step.plan_count == 2
    step(params, x.astype(jnp.bfloat16))
    assert step.plan_count == 3


def test_alternating_signatures_do_not_plan_again(auto):
    step = sp.auto_shard(mlp, mesh=auto, in_shardings=SPECS)
    params, x = arguments()
    for _ in range(20):
        step(params, x)
        step(params, x[:4])
    for _ in range(20):
        step(params, x)
    assert step.plan_count == 2


def test_a_loop_over_its_own_state_settles(auto_shard, auto):
    @auto_shard(mesh=auto, in_shardings=(None, P("data")), donate_argnums=0)
    def train(params, x):
        grads = jax.grad(lambda p: (mlp(p, x) ** 2).mean())(params)
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads)

    params, x = arguments()
    for _ in range(4):
        params = train(params, x)
    assert train.plan_count <= 2


def test_shape_structs_and_their_shardings_are_enough(auto):
    step = sp.auto_shard(mlp, mesh=SIZES)
    params = {
        "up": jax.ShapeDtypeStruct((16, 32), jnp.float32, sharding=NamedSharding(auto, P(None, "model"))),
        "down": jax.ShapeDtypeStruct((32, 16), jnp.float32),
    }
    plan = step.plan(params, jax.ShapeDtypeStruct((8, 16), jnp.float32))
    assert specs(plan.input_shardings[0]) == {"up": (None, "model"), "down": ("model",)}


def test_sharding_of_committed_arrays_counts(auto_shard, auto):
    params, x = arguments()
    step = auto_shard(mlp, mesh=auto)
    x = jax.device_put(x, NamedSharding(auto, P("data")))
    assert specs(step.plan(params, x).output_shardings) == ("data",)
    assert tuple(step(params, x).sharding.spec) == ("data",)


def test_open_and_replicated_specs(auto):
    params, x = arguments()
    step = sp.auto_shard(
        mlp, mesh=auto, in_shardings=({"up": P(None, "model"), "down": P()}, P(P.UNCONSTRAINED, None)), out_shardings=P("data")
    )
    plan = step.plan(params, x)
    assert specs(plan.input_shardings) == ({"up": (None, "model"), "down": ()}, ("data",))


def test_specs_of_the_dialect_with_priorities():
    def sharding(axis, priority):
        return sp.TensorSharding("mesh", [sp.DimensionSharding([axis], True, priority), sp.DimensionSharding()])

    for priorities, want in (((0, 1), "data"), ((1, 0), "model")):
        given = (sharding("data", priorities[0]), sharding("model", priorities[1]))
        plan = sp.auto_shard(lambda a, b: a + b, mesh=SIZES, in_shardings=given).plan(np.ones((8, 8)), np.ones((8, 8)))
        assert specs(plan.output_shardings) == (want,)


def test_keyword_arguments(auto_shard, auto):
    def f(params, x, *, scale):
        return mlp(params, x) * scale

    params, x = arguments()
    step = auto_shard(f, mesh=auto, in_shardings=SPECS)
    plan = step.plan(params, x, scale=np.float32(2))
    args, kwargs = plan.input_shardings
    assert specs(args) == ({"up": (None, "model"), "down": ("model",)}, ("data",))
    assert specs(kwargs) == {"scale": ()}
    np.testing.assert_allclose(step(params, x, scale=2.0), 2 * mlp(params, x), rtol=1e-4, atol=1e-4)


def test_specs_follow_the_parameters_however_they_are_passed(auto):
    def f(b, a, scale=1.0, *, extra=None):
        return a * scale

    x = np.ones((8, 8), np.float32)
    step = sp.auto_shard(f, mesh=auto, in_shardings=(P("data"), P("model"), None))
    for args, kwargs in (((x, x), {}), ((x,), {"a": x}), ((), {"a": x, "b": x}), ((x, x, 2.0), {}), ((x, x), {"extra": x})):
        plan = step.plan(*args, **kwargs)
        assert specs(plan.output_shardings) == ("model",)
        assert [v.sharding.dims[0].axes[0].name for v in plan.inputs if v.path in "ab"] == [
            {"a": "model", "b": "data"}[v.path] for v in plan.inputs if v.path in "ab"
        ]
    named = sp.auto_shard(f, mesh=auto, in_shardings={"a": P("model")})
    assert specs(named.plan(x, x).output_shardings) == ("model",)
    assert specs(named(b=x, a=x).sharding) == ("model",)
    static = sp.auto_shard(f, mesh=auto, in_shardings=(P("data"), P("model")), static_argnames="scale")
    assert specs(static.plan(x, a=x, scale=3.0).output_shardings) == ("model",)


def test_a_mapping_takes_the_mesh_of_the_arguments(auto_shard, auto, explicit):
    x = np.ones((8, 8), np.float32)
    step = auto_shard(lambda x: x * 2, mesh=SIZES)
    for mesh in (auto, explicit):
        result = step(jax.device_put(x, NamedSharding(mesh, P("data"))))
        assert result.sharding == NamedSharding(mesh, P("data"))
    turned = NamedSharding(jax.sharding.Mesh(auto.devices[::-1], auto.axis_names), P("data"))
    assert auto_shard(lambda x: x * 2, mesh=SIZES)(jax.device_put(x, turned)).sharding == turned


def test_the_mesh_of_the_context_may_change(auto_shard, auto):
    f = auto_shard(lambda x: x * 2, in_shardings=P("data"))
    x = np.ones((8, 8), np.float32)
    line = jax.make_mesh((8,), ("data",), axis_types=(AxisType.Auto,))
    for mesh in (auto, line, auto):
        with jax.set_mesh(mesh):
            assert f(x).sharding == NamedSharding(mesh, P("data"))
    with pytest.raises(ValueError, match="no mesh"):
        f(x)


def test_explicit_axes_under_transformations(auto_shard, explicit):
    x = np.arange(64, dtype=np.float32).reshape(8, 8)
    with jax.set_mesh(explicit):
        given = jax.device_put(x, P("data", "model"))
        f = auto_shard(lambda x: (x**2).sum())
        gradient = jax.grad(f)(given)
        assert gradient.sharding == given.sharding
        np.testing.assert_array_equal(gradient, 2 * x)
        np.testing.assert_array_equal(jax.jit(lambda x: auto_shard(lambda x: x * 2)(x) + x)(given), 3 * x)


def test_the_mesh_of_the_context_reaches_traced_functions(auto_shard, auto):
    x = np.ones((8, 8), np.float32)
    inner = auto_shard(lambda x: x * 2, in_shardings=P("data"))
    assert specs(auto_shard(lambda x: inner(x) + 1, mesh=SIZES)(x).sharding) == ("data",)
    with jax.set_mesh(auto):
        assert specs(jax.jit(lambda x: inner(x) + 1)(x).sharding) == ("data",)
        np.testing.assert_array_equal(jax.vmap(inner)(x[None]), 2 * x[None])


def test_disabled_jit_runs_the_function_itself(auto_shard, auto):
    @functools.partial(auto_shard, mesh=SIZES)
    def f(x):
        y = sp.with_sharding_constraint(x, P("data"))
        return y * 2 if y.sum() > 0 else y  # needs a value

    x = np.ones((8, 8), np.float32)
    with jax.disable_jit():
        np.testing.assert_array_equal(f(x), 2 * x)
    g = auto_shard(lambda x: x * 2, mesh=SIZES)
    g(2.0)
    with jax.disable_jit():
        assert g(2.0) == 4


def test_abstract_mesh_lowers_for_named_platforms(auto_shard):
    f = auto_shard(lambda x: x * 2, mesh=AbstractMesh((4, 8), ("data", "model")), in_shardings=P("data"))
    text = f.trace(jax.ShapeDtypeStruct((8, 8), np.float32)).lower(lowering_platforms=("tpu",)).as_text()
    assert '["data"=4, "model"=8]' in text
    with pytest.raises(ValueError, match="lowering_platforms"):
        f.lower(np.ones((8, 8), np.float32))


def test_static_arguments(auto_shard, auto):
    @functools.partial(auto_shard, mesh=auto, in_shardings=P("data"), static_argnames=("n", "mode"))
    def f(x, n, *, mode="add"):
        return x + n if mode == "add" else x * n

    x = np.ones((8, 4), np.float32)
    assert f(x, 3)[0, 0] == 4
    assert f(x, 3, mode="mul")[0, 0] == 3
    assert f(x, n=5)[0, 0] == 6
    assert f.plan_count == 3
    assert f(x, 3)[0, 0] == 4
    assert f.plan_count == 3


def test_methods(auto_shard, auto):
    class Model:
        def __init__(self, scale):
            self.scale = scale

        @functools.partial(auto_shard, mesh=auto, static_argnums=0, in_shardings=P("data"))
        def apply(self, x):
            """Scales."""
            return x * self.scale

    model = Model(3.0)
    x = np.ones((8, 4), np.float32)
    np.testing.assert_array_equal(model.apply(x), 3 * x)
    assert model.apply.plan(x).inputs[0].path == "x"
    assert model.apply.__doc__ == "Scales."
    assert specs(model.apply.eval_shape(x).sharding) == ("data",)
    assert model.apply.plan_count == 1
    model.apply.clear_cache()
    model.apply(x)
    assert Model.apply.plan_count == 2


def test_composes_with_transformations(auto_shard, auto):
    params, x = arguments()
    step = auto_shard(mlp, mesh=auto, in_shardings=SPECS)
    loss = lambda f: lambda p, x: (f(p, x) ** 2).sum()  # noqa: E731
    want = jax.grad(loss(mlp))(params, x)
    got = jax.jit(jax.grad(loss(step)))(params, x)
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-3, atol=1e-3), got, want)
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-3, atol=1e-3), jax.grad(loss(step))(params, x), want)
    xs = np.stack([x, 2 * x])
    np.testing.assert_allclose(jax.vmap(step, (None, 0))(params, xs), jax.vmap(mlp, (None, 0))(params, xs), rtol=1e-3, atol=1e-3)
    carried, _ = jax.lax.scan(lambda c, _: (step(params, c), None), x, None, length=2)
    np.testing.assert_allclose(carried, mlp(params, mlp(params, x)), rtol=1e-3, atol=1e-3)


def test_closing_over_an_outer_trace_keeps_nothing(auto_shard, auto):
    def outer(w, x):
        return auto_shard(lambda x: x @ w, mesh=auto, in_shardings=P("data"))(x).sum()

    w, x = np.ones((4, 4), np.float32), np.ones((8, 4), np.float32)
    np.testing.assert_allclose(jax.grad(outer)(w, x), 8 * np.ones((4, 4)))
    holder = {}
    inner = auto_shard(lambda x: x * holder["w"], mesh=auto)

    def use(w):
        holder["w"] = w
        return inner(x).sum()

    assert jax.grad(use)(2.0) == jax.grad(use)(3.0) == 32


def test_inside_shard_map_it_is_the_function_itself(auto_shard, auto):
    step = auto_shard(lambda x: x * 2, mesh=auto)
    mapped = jax.shard_map(step, mesh=auto, in_specs=P("data"), out_specs=P("data"))
    np.testing.assert_array_equal(jax.jit(mapped)(np.ones(8)), 2 * np.ones(8))


def test_weak_types_and_x64_are_part_of_the_signature(auto_shard, auto):
    step = auto_shard(lambda x, s: x * s, mesh=auto)
    x = np.ones(8, np.float16)
    assert step(x, 2.0).dtype == jnp.float16
    assert step(x, np.float32(2)).dtype == jnp.float32
    with jax.enable_x64(True):
        assert step(np.ones(8), 2.0).dtype == jnp.float64


@pytest.mark.parametrize(("wide", "narrow"), [(np.float64, np.float32), (np.int64, np.int32), (np.complex128, np.complex64)])
def test_structs_of_64_bits_count_as_arrays_of_them(auto_shard, auto, wide, narrow):
    """While those are off, JAX traces both with 32."""
    dtypes = []
    step = auto_shard(lambda x: x * 2, mesh=auto, in_shardings=lambda path, leaf: dtypes.append(leaf.dtype) or P("data"))
    struct, array = jax.ShapeDtypeStruct((8, 6), wide), np.ones((8, 6), wide)
    plan = step.plan(struct)
    assert (plan.inputs[0].dtype, plan.outputs[0].dtype) == (np.dtype(narrow).name,) * 2
    assert plan.abstract_state("x").dtype == dtypes[0] == narrow
    assert str(plan) == str(step.plan(array))
    assert step.lower(struct).compile()(array).dtype == narrow


def test_stages(auto_shard, auto):
    params, x = arguments()
    step = auto_shard(mlp, mesh=auto, in_shardings=SPECS)
    traced = step.trace(params, x)
    assert traced.plan() is traced.plan()
    assert len(traced.jaxpr.eqns) == 3
    assert traced.in_tree == jax.tree.structure(((params, x), {}))
    compiled = step.lower(params, x).compile()
    assert tuple(compiled.output_shardings.spec) == ("data",)
    assert "all-reduce" in compiled.as_text()
    out = step.eval_shape(params, x)
    assert (out.shape, specs(out.sharding)) == ((8, 16), ("data",))


def test_compiled_programs_name_the_arguments(auto_shard, auto):
    f = auto_shard(lambda params, x: params["w"] * x, mesh=auto, in_shardings=P("data"))
    x = np.ones((8, 8), np.float32)
    text = f.lower({"w": x}, x).compile().as_text()
    assert "params[\\'w\\']" in text
    assert "slots" not in text


def test_donation(auto_shard, auto):
    step = auto_shard(lambda s, b: jax.tree.map(lambda x: x + b.sum(), s), mesh=auto, in_shardings=(P("data"), None), donate_argnames="s")
    state = {"a": jax.device_put(jnp.ones((8, 4)), NamedSharding(auto, P("data")))}
    step(state, np.ones(8, np.float32))
    assert state["a"].is_deleted()


def test_prng_keys(auto_shard, auto):
    def f(key, x):
        return x + jax.random.normal(key, x.shape), jax.random.split(key, 8)

    step = auto_shard(f, mesh=auto, in_shardings=(None, P("data", "model")))
    key, x = jax.random.key(3), np.zeros((8, 8), np.float32)
    y, keys = step(key, x)
    np.testing.assert_allclose(y, f(key, x)[0], rtol=1e-6)
    np.testing.assert_array_equal(jax.random.key_data(keys), jax.random.key_data(f(key, x)[1]))
    step(key, x)


def test_large_mesh_needs_no_devices():
    params, x = arguments()
    big = jax.tree.map(lambda a: jax.ShapeDtypeStruct(tuple(64 * n for n in a.shape), a.dtype), (params, x))
    plan = sp.auto_shard(mlp, mesh=AbstractMesh((64, 64), ("data", "model")), in_shardings=SPECS).plan(*big)
    assert specs(plan.output_shardings) == ("data",)


def test_the_results_of_the_first_call_do_not_compile_again(auto_shard: Any, caplog: pytest.LogCaptureFixture) -> None:
    @auto_shard(mesh={"data": 2, "model": 4}, in_shardings=({"w": P(None, "model")}, P("data")), donate_argnums=0)
    def step(params: dict[str, jax.Array], x: jax.Array) -> dict[str, jax.Array]:
        return {"w": params["w"] - jax.grad(lambda w: jnp.tanh(x @ w).sum())(params["w"])}

    params, x = {"w": jnp.ones((16, 16))}, jnp.ones((8, 16))
    with jax.log_compiles(), caplog.at_level("WARNING", "jax"):
        for _ in range(3):
            params = step(params, x)
    assert sum("Compiling jit(step)" in record.getMessage() for record in caplog.records) == 1


@functools.partial(sp.auto_shard, mesh=SIZES)
def doubled(x):
    return x * 2


def test_copies_and_pickles_as_a_function():
    assert copy.deepcopy({"f": doubled})["f"] is doubled
    assert pickle.loads(pickle.dumps(doubled)) is doubled
    with pytest.raises(Exception, match="lambda"):
        pickle.dumps(sp.auto_shard(lambda x: x, mesh=SIZES))


def test_keyword_state_settles(auto_shard, auto):
    f = auto_shard(lambda state, x: state + x.sum(), mesh=auto, in_shardings=(None, P("data")))
    state = np.zeros((8, 8), np.float32)
    for _ in range(3):
        state = f(state=state, x=np.ones((8, 8), np.float32))
    assert f.plan_count == 1
    f(state=jax.device_put(state, NamedSharding(auto, P("model"))), x=np.ones((8, 8), np.float32))
    assert f.plan_count == 2


def test_the_mesh_of_named_shardings_is_enough(auto_shard, auto):
    f = auto_shard(lambda tree, x: x * tree["a"], in_shardings=({"a": None}, NamedSharding(auto, P("data"))))
    x = np.ones((8, 8), np.float32)
    assert f({"a": x}, x).sharding == NamedSharding(auto, P("data"))


def test_unreduced_axes_of_a_spec_are_planned():
    plan = sp.auto_shard(lambda x: x * 2, mesh=SIZES, in_shardings=P("data", unreduced={"model"})).plan(np.ones((8, 8), np.float32))
    assert plan.inputs[0].sharding == sp.TensorSharding.parse('#sdy.sharding<@mesh, [{"data"}, {}], unreduced={"model"}>')


def test_unreduced_arrays_are_planned_but_not_run() -> None:
    step = sp.auto_shard(lambda x: x + 1, mesh={"data": 2, "model": 4}, in_shardings=P("data", unreduced={"model"}))
    x = jnp.ones((8, 8))
    assert step.plan(x).inputs[0].sharding is not None
    with pytest.raises(NotImplementedError, match="x is unreduced over model"):
        step(x)
