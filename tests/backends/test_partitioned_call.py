"""Calls are transformed as `jax.jit` would be, whatever partitions them; here that does next to nothing."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.core import ClosedJaxpr, jaxpr_as_fun
from jax.sharding import AbstractMesh, Mesh, PartitionSpec

from shardy_py.backends.partitioned_call import Partitioner, PlannedCall, partitioned_call, with_mapped_dim
from shardy_py.dialect import DimensionSharding, TensorSharding
from tests.told_derivatives import eleven, seven


@dataclass(frozen=True)
class Plain:
    """Evaluates the jaxpr."""

    devices: Mesh | None = None
    memory: dict[Any, Any] = field(default_factory=dict, compare=False)

    def __call__(self, jaxpr: ClosedJaxpr, ins: Any, outs: Any) -> ClosedJaxpr:
        assert not jaxpr.consts
        assert (len(ins), len(outs)) == (len(jaxpr.in_avals), len(jaxpr.out_avals))
        return jaxpr

    def plan(self, jaxpr: ClosedJaxpr, ins: Any, outs: Any) -> PlannedCall:
        return (ins, outs), lambda: self(jaxpr, ins, outs)


@dataclass(frozen=True)
class Replicated(Plain):
    """Evaluates the jaxpr on every device of a mesh."""

    def __call__(self, jaxpr: ClosedJaxpr, ins: Any, outs: Any) -> ClosedJaxpr:
        whole = PartitionSpec()
        run = jaxpr_as_fun(super().__call__(jaxpr, ins, outs))
        assert self.devices is not None
        mesh = self.devices.abstract_mesh  # so that nothing but the call says which devices
        region = jax.shard_map(run, mesh=mesh, in_specs=(whole,) * len(ins), out_specs=[whole] * len(outs), check_vma=False)
        return jax.make_jaxpr(region)(*jaxpr.in_avals)


@dataclass(frozen=True, eq=False)
class Recording(Plain):
    """Plans what has no sharding to have its first dimension cut by the axis `n` for the n-th plan made."""

    runs: list[tuple[ClosedJaxpr, Any, Any]] = field(default_factory=list)
    plans: list[tuple[ClosedJaxpr, Any, Any]] = field(default_factory=list)

    def __call__(self, jaxpr: ClosedJaxpr, ins: Any, outs: Any) -> ClosedJaxpr:
        self.runs.append((jaxpr, ins, outs))
        return super().__call__(jaxpr, ins, outs)

    def plan(self, jaxpr: ClosedJaxpr, ins: Any, outs: Any) -> PlannedCall:
        self.plans.append((jaxpr, ins, outs))
        name = str(len(self.plans))

        def decide(aval: Any, sharding: Any) -> Any:
            return cut(aval.ndim, name) if sharding is None else sharding

        shardings = tuple(map(decide, jaxpr.in_avals, ins)), tuple(map(decide, jaxpr.out_avals, outs))
        return shardings, lambda: self(jaxpr, ins, outs)


def cut(rank: int, name: str) -> TensorSharding:
    return TensorSharding("mesh", [[name], *([] for _ in range(rank - 1))] if rank else [])


def called(f: Callable[..., Any], partition: Partitioner, shardings: tuple[Any, ...] | None = None) -> Callable[..., Any]:
    @functools.wraps(f)
    def call(*args: Any) -> Any:
        leaves, tree = jax.tree.flatten(args)
        with jax.sharding.use_abstract_mesh(AbstractMesh((), ())):
            jaxpr, shape = jax.make_jaxpr(lambda *xs: f(*jax.tree.unflatten(tree, xs)), return_shape=True)(*leaves)
        nothing = (None,) * len(jaxpr.out_avals)
        out = partitioned_call(jaxpr, leaves, partition, shardings or (None,) * len(leaves), nothing, "call")
        return jax.tree.unflatten(jax.tree.structure(shape), out)

    return call


def layers(w: Any, x: Any) -> Any:
    def layer(c: Any, v: Any) -> Any:
        return jnp.sin(c @ v), c.sum()

    y, sums = jax.lax.scan(layer, x, w)
    y, _ = jax.lax.scan(layer, y, w)
    y = jax.checkpoint(lambda y: eleven(y) * y)(y)
    y = jax.lax.cond(x[..., 0].sum() > 0, lambda y: jnp.sort(y, axis=-1), jax.lax.stop_gradient, y)
    return (jax.nn.relu(y) * jnp.arange(3.0)).sum() + sums.sum() ** 2 + w[0, jnp.argmax(x[0])].sum()


def ruled(w: Any, x: Any) -> Any:
    return jax.lax.scan(lambda c, v: (seven(c @ v), None), x, w)[0].sum()


def stacked(x: Any) -> Any:
    return jnp.stack([x, x + 1, -x])


def loop(f: Callable[..., Any], w: Any, x: Any, body: Callable[..., Any] = lambda g: g) -> Any:
    return jax.lax.scan(body(lambda c, _: (c + f(w, x * c), None)), jnp.float32(0.5), None, length=2)[0]


dots = jax.checkpoint_policies.dots_saveable
TRANSFORMATIONS: dict[str, Callable[[Callable[..., Any]], Callable[..., Any]]] = {
    "nothing": lambda f: f,
    "jit": jax.jit,
    "jvp": lambda f: lambda w, x: jax.jvp(f, (w, x), (w + 1, x)),
    "jvp of one argument": lambda f: lambda w, x: jax.jvp(functools.partial(f, w), (x,), (x,)),
    "linearize": lambda f: lambda w, x: jax.linearize(f, w, x)[1](x[0, 0] * w, x),
    "grad": lambda f: jax.value_and_grad(f, (0, 1)),
    "grad of one argument": lambda f: jax.grad(f, 1),
    "vmap": lambda f: lambda w, x: jax.vmap(f, (None, 0))(w, stacked(x)),
    "vmap over the last dimension": lambda f: lambda w, x: jax.vmap(f, (None, 1))(w, jnp.stack([x, -x], 1)),
    "vmap of grad": lambda f: lambda w, x: jax.vmap(jax.grad(f, (0, 1)), (None, 0))(w, stacked(x)),
    "grad of vmap": lambda f: jax.grad(lambda w, x: jax.vmap(f, (None, 0))(w, stacked(x)).sum(), (0, 1)),
    "grad of grad": lambda f: jax.grad(lambda w, x: (jax.grad(f, 1)(w, x) ** 2).sum()),
    "hessian": lambda f: lambda w, x: jax.jacfwd(jax.jacrev(f, 1), 1)(w, x),
    "reverse over reverse": lambda f: lambda w, x: jax.jacrev(jax.jacrev(f, 1))(w, x),
    "scan": lambda f: jax.grad(functools.partial(loop, f), (0, 1)),
    "scan of checkpoint": lambda f: jax.grad(functools.partial(loop, f, body=jax.checkpoint), (0, 1)),
    "checkpoint": lambda f: jax.grad(jax.checkpoint(f), (0, 1)),
    "checkpoint with a policy": lambda f: jax.grad(jax.checkpoint(lambda w, x: jnp.sin(f(w * 2, x)), policy=dots), (0, 1)),
    "cond": lambda f: jax.grad(lambda w, x: jax.lax.cond(x[0, 0] > 0, f, lambda w, x: f(w, -x), w, x)),
    "while": lambda f: lambda w, x: jax.lax.while_loop(lambda c: c < 3, lambda c: c + 1 + jnp.abs(f(w, x * c)), jnp.float32(0)),
}

W = np.random.RandomState(0).randn(3, 3, 3).astype("float32")
X = np.random.RandomState(1).randn(2, 3).astype("float32")


jit = functools.partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True})


def compare(one: Any, other: Any) -> None:
    assert jax.tree.structure(one) == jax.tree.structure(other)
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other)):
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-4)


EAGER = ("nothing", "jvp", "linearize", "grad")


@pytest.mark.parametrize("name", [name for name in TRANSFORMATIONS if name not in EAGER])
def test_transformations(name: str) -> None:
    transformed = TRANSFORMATIONS[name]
    compare(jit(transformed(called(layers, Plain())))(W, X), jit(transformed(layers))(W, X))


@pytest.mark.parametrize("name", ["grad", "vmap of grad", "grad of vmap", "grad of grad", "scan of checkpoint"])
def test_reverse_rules_of_the_user(name: str) -> None:
    transformed = TRANSFORMATIONS[name]
    compare(jit(transformed(called(ruled, Plain())))(W, X), jit(transformed(ruled))(W, X))


def test_the_gradient_of_a_loop_without_trips_one_result_of_which_has_no_cotangent() -> None:
    def sums(x: Any) -> Any:
        return jax.lax.scan(lambda c, row: (c + row.sum(), row * 2), jnp.float32(0), x)

    nothing = np.zeros((0, 3), np.float32)
    compare(jax.grad(lambda x: called(sums, Plain())(x)[0])(nothing), nothing)
    compare(jax.grad(lambda x: called(sums, Plain())(x)[0])(X), np.ones_like(X))


@pytest.mark.parametrize("name", ["jvp", "linearize"])
def test_reverse_rules_have_no_forward_derivative(name: str) -> None:
    with pytest.raises(TypeError, match="custom_vjp"):
        jit(TRANSFORMATIONS[name](called(ruled, Plain())))(W, X)


@pytest.mark.parametrize("name", EAGER)
def test_eagerly(name: str) -> None:
    compare(TRANSFORMATIONS[name](called(layers, Plain()))(W, X), jit(TRANSFORMATIONS[name](layers))(W, X))


@pytest.mark.parametrize("name", ["jit", "grad", "scan"])
def test_in_a_manual_region(name: str) -> None:
    mesh = Mesh(np.array(jax.devices()).reshape(2, 4), ("a", "b"))
    got = jit(TRANSFORMATIONS[name](called(ruled, Replicated(mesh))))(W, X)
    compare(got, jit(TRANSFORMATIONS[name](ruled))(W, X))
    assert all(x.sharding.device_set == set(jax.devices()) for x in jax.tree.leaves(got))


def test_eagerly_on_devices_that_only_the_partition_knows() -> None:
    mesh = Mesh(np.array(jax.devices()).reshape(2, 4), ("a", "b"))
    got = jax.grad(called(lambda w, x: seven(x @ w).sum(), Replicated(mesh)))(W[0], X)
    compare(got, jax.grad(lambda w, x: seven(x @ w).sum())(W[0], X))
    assert got.sharding.device_set == set(jax.devices())


def test_disabled_jit() -> None:
    with jax.disable_jit():
        got = jax.grad(called(lambda w, x: seven(x @ w).sum(), Plain()))(W[0], X)
    compare(got, jax.grad(lambda w, x: seven(x @ w).sum())(W[0], X))


def test_rules_of_the_user_are_kept() -> None:
    for rule, factor in ((seven, 7), (eleven, 11)):
        f = called(rule, Plain())
        assert np.isclose(jax.grad(f)(0.5), factor * np.cos(0.5))
        assert np.isclose(jax.vmap(jax.grad(f))(jnp.array([0.5]))[0], factor * np.cos(0.5))
        assert np.isclose(jax.grad(jax.grad(f))(0.5), jax.grad(jax.grad(rule))(0.5))
    assert np.isclose(jax.jvp(called(eleven, Plain()), (0.5,), (1.0,))[1], 11 * np.cos(0.5))


def test_integers_and_auxiliary_results() -> None:
    def f(x: Any, i: Any) -> Any:
        return (x * x[i]).sum(), {"next": i + 1, "x": x}

    g = called(f, Plain())
    x, i = jnp.array([2.0, 3.0]), jnp.array(1)
    wanted = jax.value_and_grad(f, has_aux=True)(x, i)
    compare(jax.value_and_grad(g, has_aux=True)(x, i), wanted)
    compare(jax.jit(jax.value_and_grad(g, has_aux=True))(x, i), wanted)
    assert jax.grad(lambda x, i: g(x, i)[0], (0, 1), allow_int=True)(x, i)[1].dtype == jax.dtypes.float0
    none = np.zeros((), jax.dtypes.float0)
    compare(
        jax.vjp(g, x, i)[1]((jnp.array(1.0), {"next": none, "x": x}))[0], jax.vjp(f, x, i)[1]((jnp.array(1.0), {"next": none, "x": x}))[0]
    )


def test_weak_types_and_keys() -> None:
    double = called(lambda x: x * 2, Plain())
    assert jax.jit(double)(1.0).weak_type
    assert jax.grad(double)(1.0).weak_type
    noisy = called(lambda key, x: (jax.random.normal(key, x.shape) * x).sum(), Plain())
    key = jax.random.key(3)
    np.testing.assert_allclose(jax.grad(noisy, 1)(key, X), jax.random.normal(key, X.shape), rtol=1e-6)
    assert jax.vmap(noisy, (0, None))(jax.random.split(key, 3), X).shape == (3,)


def test_tracers_that_are_closed_over() -> None:
    def f(x: Any) -> Any:
        return called(lambda y: (jnp.sin(x) * y).sum(), Plain())(x * 2)

    with jax.checking_leaks():
        got = jax.jit(jax.vmap(jax.grad(f)))(X)
    compare(got, jax.vmap(jax.grad(lambda x: (jnp.sin(x) * x * 2).sum()))(X))


def test_axis_names() -> None:
    f = called(lambda x: jax.lax.psum(x, "i"), Plain())
    np.testing.assert_allclose(jax.vmap(f, axis_name="i")(X)[1], X.sum(0), rtol=1e-6)


def test_results_that_are_not_mapped_stay_so() -> None:
    a, b = jax.vmap(called(lambda x, y: (x + 1, y * 2), Plain()), (0, None), (0, None))(X, X)
    assert (a.shape, b.shape) == (X.shape, X.shape)


@pytest.mark.parametrize("name", ["jit", "grad of one argument", "vmap of grad", "scan", "checkpoint", "hessian"])
def test_callbacks_run_as_often_as_without(name: str) -> None:
    def counted(f: Callable[..., Any]) -> int:
        seen: list[float] = []

        def watched(w: Any, x: Any) -> Any:
            jax.debug.callback(lambda v: seen.append(float(v)), x.sum())
            return (w * x.sum() ** 2).sum()

        jax.block_until_ready(jit(TRANSFORMATIONS[name](f(watched)))(W, X))
        jax.effects_barrier()
        return len(seen)

    assert counted(lambda f: called(f, Plain())) == counted(jax.jit) > 0


def test_what_is_not_used_is_left_out() -> None:
    partition = Recording()
    f = called(lambda x, y: (jnp.sin(x), jnp.cos(y)), partition, (cut(2, "x"), cut(2, "y")))
    jax.jit(lambda x, y: f(x, y)[1])(X, X)
    ((jaxpr, ins, outs),) = partition.runs
    assert [eqn.primitive.name for eqn in jaxpr.eqns] == ["cos"]
    assert (ins, outs) == ((cut(2, "y"),), (None,))


def test_no_mesh_gets_into_derived_calls() -> None:
    mesh = Mesh(np.array(jax.devices()).reshape(2, 4), ("a", "b"))
    f = called(ruled, Replicated(mesh))
    with jax.set_mesh(mesh):
        got = jax.jit(jax.vmap(jax.grad(f, (0, 1)), (None, 0)))(W, stacked(X))
    compare(got, jax.jit(jax.vmap(jax.grad(ruled, (0, 1)), (None, 0)))(W, stacked(X)))


def test_derived_calls_are_found_again() -> None:
    partition = Recording()
    jaxpr = jax.make_jaxpr(ruled)(W, X)

    def f(w: Any, x: Any) -> Any:
        return partitioned_call(jaxpr, (w, x), partition, (None, None), (None,), "ruled")[0]

    def everything() -> None:
        jax.grad(f, (0, 1))(W, X)
        jax.vmap(jax.grad(f))(W[None], X[None])
        jax.grad(lambda w, x: jax.grad(f)(w, x).sum())(W, X)

    everything()
    first = len(partition.runs), len(partition.plans)
    everything()
    assert (len(partition.runs), len(partition.plans)) == first


def test_shardings_of_derived_calls() -> None:
    partition = Recording()
    f = called(lambda w, x: jnp.sin(x @ w), partition, (cut(2, "w"), None))
    out, pull = jax.vjp(f, W[0], X)
    pull(out)
    (_, forward_in, forward_out), (_, backward_in, backward_out) = partition.runs
    first, second, _ = partition.plans
    assert first[1:] == ((cut(2, "w"), None), (None,))  # the call itself, which never ran
    assert forward_in == (cut(2, "w"), cut(2, "1"))
    assert forward_out == (cut(2, "1"), None)
    assert second[1:] == (forward_in, forward_out)
    assert sorted(map(str, backward_in)) == sorted(map(str, [*forward_in, cut(2, "2"), cut(2, "1")]))
    assert backward_in[-1] == forward_out[0]  # the cotangent
    assert backward_out == forward_in


def test_nothing_is_planned_before_it_runs() -> None:
    partition = Recording()
    f = called(lambda x: jnp.sin(x).sum(), partition)
    jax.make_jaxpr(jax.vmap(jax.hessian(f)))(X[None])
    assert not partition.plans
    jax.jit(f)(X)
    assert len(partition.plans) == 1


def test_shardings_of_mapped_calls() -> None:
    partition = Recording()
    f = called(lambda x, y: x + y, partition, (cut(2, "x"), cut(2, "y")))
    jax.vmap(f, (1, None))(jnp.stack([X, X], 1), X)
    jax.vmap(f, spmd_axis_name="s")(X[None], X[None])
    mapped = DimensionSharding(["s"])
    open_dim, closed_dim = DimensionSharding((), False), DimensionSharding()
    assert partition.runs[0][1] == (TensorSharding("mesh", [["x"], open_dim, closed_dim]), cut(2, "y"))
    assert partition.runs[1][1] == tuple(TensorSharding("mesh", [mapped, [name], []]) for name in "xy")
    jax.vmap(jax.grad(lambda x: (f(x, X) ** 2).sum()))(X[None])
    assert partition.runs[-1][1][-1] == TensorSharding("mesh", [open_dim, ["3"], []])  # of a cotangent, planned when it was needed


def test_with_mapped_dim() -> None:
    assert with_mapped_dim(None, 0) is None
    assert str(with_mapped_dim(cut(1, "x"), 1)) == '#sdy.sharding<@mesh, [{"x"}, {?}]>'
    assert str(with_mapped_dim(cut(1, "x"), 0, ("s",))) == '#sdy.sharding<@mesh, [{"s"}, {"x"}]>'
