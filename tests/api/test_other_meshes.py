"""Shardings, regions and functions over another mesh inside of a function: the numbers of jax.jit, or an error that says why not."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import shardy_py as sp
from shardy_py.dialect import AxisRef
from shardy_py.dialect.regroup import regrouped_axes

X = np.random.default_rng(0).standard_normal((16, 8)).astype("float32")


def mesh_of(shape, names, devices=None):
    devices = jax.devices()[: int(np.prod(shape))] if devices is None else devices
    return Mesh(np.array(devices).reshape(shape), names, axis_types=(AxisType.Auto,) * len(names))


def main():
    return mesh_of((2, 4), ("x", "y"))


def turned():
    return mesh_of((4, 2), ("x", "y"))


def ring():
    return mesh_of((8,), ("i",))


def lowerings(function, mesh, spec):
    for lowering in ("jit", "shard_map"):
        yield lowering, sp.auto_shard(function, mesh=mesh, in_shardings=spec, lowering=lowering)


SHARDINGS = {
    "one axis of all": (ring, P("i"), P(("x", "y"))),
    "same names, other sizes": (turned, P("x"), None),  # parts of axes, which results cannot have
    "both dimensions": (turned, P("x", "y"), None),
    "same axes": (main, P("y"), P("y")),
}


@pytest.mark.parametrize("name", SHARDINGS)
@pytest.mark.parametrize("how", ["constraint", "jit"])
def test_shardings_over_the_same_devices_in_other_axes(name, how):
    mesh, spec, same = SHARDINGS[name]
    sharding = NamedSharding(mesh(), spec)

    def function(x):
        if how == "constraint":
            return jax.lax.with_sharding_constraint(x * 2, sharding)
        return jax.jit(lambda x: x * 2, out_shardings=sharding)(x)

    for _, step in lowerings(function, main(), P()):
        got = step(X)
        np.testing.assert_array_equal(got, X * 2)
        if same is not None:
            assert got.sharding.is_equivalent_to(sharding, 2)
            assert step.plan(X).output_shardings.spec == same


def test_a_constraint_over_devices_in_another_order_is_an_error():
    reverse = NamedSharding(mesh_of((2, 4), ("x", "y"), jax.devices()[::-1]), P("x"))
    for constrain in (jax.lax.with_sharding_constraint, sp.with_sharding_constraint):
        for _, step in lowerings(lambda x, constrain=constrain: constrain(x * 2, reverse), main(), P()):
            with pytest.raises(sp.ShardyError, match="over another mesh") as error:
                step(X)
            assert "test_other_meshes.py" in str(error.value)
            assert "fix:" in str(error.value)


def test_a_constraint_that_the_mesh_cannot_express_is_an_error():
    six = mesh_of((2, 3), ("a", "b"))
    for _, step in lowerings(lambda x: jax.lax.with_sharding_constraint(x, NamedSharding(six, P("a"))), mesh_of((3, 2), ("x", "y")), P()):
        with pytest.raises(sp.MeshError, match=r"over another mesh, a=2, b=3\n  where: sharding_constraint, .*test_other_meshes.py"):
            step.plan(X)


def test_functions_for_other_meshes_inside_of_each_other():
    @sp.auto_shard(mesh={"a": 8}, in_shardings=P("a"))
    def inner(x):
        return x * 2

    for _, step in lowerings(lambda x: inner(x) + 1, {"data": 2, "model": 4}, P("data")):
        np.testing.assert_array_equal(step(X), X * 2 + 1)
    for _, step in lowerings(lambda x: inner(x) + 1, {"data": 4}, P("data")):
        with pytest.raises(sp.MeshError, match=r"(?s)over another mesh, a=8\n  where: inner, .*data=4.*__wrapped__"):
            step(X)


REGIONS = {
    "sum of maxima": (lambda v: jax.lax.psum(v.max(), "x"), turned, P("x"), P()),
    "one axis of all": (lambda v: v * 2 + jax.lax.axis_index("i"), ring, P("i"), P("i")),
    "two of one": (lambda v: jax.lax.psum(v, "b"), lambda: mesh_of((2, 2, 2), ("a", "b", "c")), P("b", "c"), P(None, "c")),
}


@pytest.mark.parametrize("name", REGIONS)
def test_regions_over_another_mesh(name):
    body, mesh, in_specs, out_specs = REGIONS[name]

    def function(x):
        return jax.shard_map(body, mesh=mesh(), in_specs=in_specs, out_specs=out_specs)(x * 2) + 1

    plain, local = (step for _, step in lowerings(function, main(), P("x")))
    np.testing.assert_allclose(plain(X), jax.jit(function)(X), rtol=1e-6)
    with pytest.raises(sp.MeshError, match=r"(?s)a shard_map is over another mesh.*where: .*test_other_meshes.py.*fix: "):
        local(X)


@pytest.mark.parametrize("mesh", [{"data": 8}, {"data": 4, "model": 2}], ids=str)
def test_pmap_inside(mesh):
    mapped = jax.pmap(lambda x: x - 0.1 * jax.lax.pmean(x, "batch"), axis_name="batch")
    x = X[:8]
    plain, local = (step for _, step in lowerings(lambda x: mapped(x * 2) + 1, mesh, P("data")))
    np.testing.assert_allclose(plain(x), jax.jit(lambda x: mapped(x * 2) + 1)(x), rtol=1e-5)
    with pytest.raises(sp.MeshError, match=r"(?s)another mesh, .*batch=8.*fix: "):
        local(x)


def test_pmap_around():
    for _, step in lowerings(lambda x: jnp.tanh(x) + 1, {"data": 8}, P()):
        with pytest.raises(sp.MeshError, match=r"(?s)inside of a shard_map over another mesh.*jax.pmap.*fix: "):
            jax.pmap(step)(X[:8])


@pytest.mark.parametrize(
    ("axis", "expected"),
    [(AxisRef("i"), ["x", "y"]), (AxisRef("i", 1, 2), ["x"]), (AxisRef("i", 2, 2), ['"y":(1)2']), (AxisRef("i", 4, 2), ['"y":(2)2'])],
)
def test_parts_of_axes(axis, expected):
    found = regrouped_axes([axis], sp.Mesh((("i", 8),)), sp.Mesh((("x", 2), ("y", 4))))
    assert found is not None
    assert [str(a).strip('"') if a.is_full else str(a) for a in found] == expected
    assert regrouped_axes([AxisRef("i", 1, 3)], sp.Mesh((("i", 6),)), sp.Mesh((("x", 2), ("y", 3)))) is None


@pytest.mark.parametrize("lowering", ["jit", "shard_map"])
def test_a_mesh_of_another_size_is_planned_for_under_set_mesh(lowering):
    def step(w, x):
        return jax.grad(lambda w: jnp.sum(jnp.tanh(x @ w) ** 2))(w)

    planned = sp.auto_shard(step, mesh={"data": 16, "model": 4}, in_shardings=(P(None, "model"), P("data")), lowering=lowering)
    shapes = jax.ShapeDtypeStruct((8, 16), jnp.float32), jax.ShapeDtypeStruct((32, 8), jnp.float32)
    with jax.set_mesh(main()):
        around = planned.plan(*shapes).as_text()
    assert around == planned.plan(*shapes).as_text()


@pytest.mark.parametrize("lowering", ["jit", "shard_map"])
def test_code_that_looks_for_a_mesh_finds_what_it_finds_under_jit(lowering):
    def step(x):
        return x * 2 if jax.sharding.get_abstract_mesh().empty else x * 3

    planned = sp.auto_shard(step, mesh=main(), in_shardings=P("x"), lowering=lowering)
    for _ in range(2):  # one plan for each context, whichever comes first
        assert planned(X)[0, 0] == jax.jit(step)(X)[0, 0] == 2 * X[0, 0]
        with jax.set_mesh(main()):
            assert planned(X)[0, 0] == jax.jit(step)(X)[0, 0] == 3 * X[0, 0]
    assert planned.plan_count == 2
    planned.verify(X)
    with jax.disable_jit():
        assert planned(X)[0, 0] == 2 * X[0, 0]


@pytest.mark.parametrize("lowering", ["jit", "shard_map"])
def test_what_needs_a_mesh_finds_the_one_that_is_planned_for(lowering):
    def step(x):
        x = jax.lax.with_sharding_constraint(jnp.tanh(x), P("x", "y"))
        return jax.shard_map(lambda x: x + jax.lax.axis_index("x"), in_specs=P("x"), out_specs=P("x"))(x)

    planned = sp.auto_shard(step, mesh=main(), in_shardings=P("x"), lowering=lowering)
    np.testing.assert_allclose(planned(X), np.tanh(X) + np.repeat([[0], [1]], 8, 0), rtol=1e-5)
    with jax.disable_jit():
        np.testing.assert_allclose(planned(X), np.tanh(X) + np.repeat([[0], [1]], 8, 0), rtol=1e-5)
