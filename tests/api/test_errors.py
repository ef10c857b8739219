"""Bad input: every message says what, where, why and how to fix it, and is of the class JAX would raise."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractMesh, AxisType, NamedSharding, SingleDeviceSharding
from jax.sharding import PartitionSpec as P

import shardy_py as sp
from shardy_py.errors import MeshError

MESH = {"data": 4, "model": 2}


def params() -> dict[str, dict[str, np.ndarray]]:
    return {"mlp": {"w": np.ones((512, 2048), np.float32)}, "norm": {"g": np.ones((6,), np.float32)}}


def step(params, x):
    return params["norm"]["g"].sum() + (x @ params["mlp"]["w"]).sum()


X = np.ones((8, 512), np.float32)


def plan(in_shardings=None, out_shardings=None, fun=step, args=None, **options):
    return sp.auto_shard(fun, mesh=MESH, in_shardings=in_shardings, out_shardings=out_shardings, **options).plan(
        *((params(), X) if args is None else args)
    )


def other_mesh_sharding():
    return NamedSharding(AbstractMesh((8,), ("all",)), P("all"))


def group_of_two_shapes():
    def f(a, b):
        return sp.sharding_group(a, b, name="moments")

    return plan(fun=f, args=(np.ones((4, 4)), np.ones((4, 2))))


class Model:
    """A callable that is compared by its arrays, as those of equinox are."""

    __hash__ = None  # pyright: ignore

    def __call__(self, x: np.ndarray) -> np.ndarray:
        return x


class Tensor:
    """An array of another library."""

    def __array__(self) -> np.ndarray:
        return np.ones(3)


def deleted_buffer():
    f = sp.auto_shard(lambda s, b: (s + b, b), mesh=MESH, donate_argnums=0)
    state = jax.device_put(
        jnp.ones((8, 8)), NamedSharding(jax.make_mesh((4, 2), ("data", "model"), axis_types=(AxisType.Auto,) * 2), P("data"))
    )
    f(state, np.ones((8, 8), np.float32))
    f(state, np.ones((8, 8), np.float32))


def donated_twice():
    mesh = jax.make_mesh((4, 2), ("data", "model"), axis_types=(AxisType.Auto,) * 2)
    f = sp.auto_shard(lambda s: s["a"] + s["b"], mesh=mesh, donate_argnums=0)
    a = jax.device_put(jnp.ones((8, 8)), NamedSharding(mesh, P("data")))
    f({"a": a, "b": a})


def donated_and_passed():
    mesh = jax.make_mesh((4, 2), ("data", "model"), axis_types=(AxisType.Auto,) * 2)
    f = sp.auto_shard(lambda s, t: s + t, mesh=mesh, donate_argnums=0)
    a = jax.device_put(jnp.ones((8, 8)), NamedSharding(mesh, P("data")))
    f(a, a)


def ordered_effect(lowering):
    def f(x):
        jax.debug.print("x {}", x.sum(), ordered=True)
        return x

    sp.auto_shard(f, mesh=MESH, lowering=lowering)(X)


def unhashable_static():
    sp.auto_shard(lambda x, sizes: x * len(sizes), mesh=MESH, static_argnums=1)(X, [1, 2])


def other_mesh_argument():
    mesh = jax.make_mesh((8,), ("all",), axis_types=(AxisType.Auto,))
    sp.auto_shard(lambda x: x * 2, mesh=MESH)(jax.device_put(jnp.ones((8, 8)), NamedSharding(mesh, P("all"))))


def argument_disagrees():
    mesh = jax.make_mesh((4, 2), ("data", "model"), axis_types=(AxisType.Auto,) * 2)
    x = jax.device_put(jnp.ones((8, 8)), NamedSharding(mesh, P("data")))
    sp.auto_shard(lambda x: x * 2, mesh=mesh, in_shardings=P("model"))(x)


def on_one_device():
    sp.auto_shard(lambda x: x, mesh=MESH)(jax.device_put(jnp.ones(8), jax.devices()[3]))


def explicit_argument():
    axes = ("data", "model")
    auto, explicit = (jax.make_mesh((4, 2), axes, axis_types=(kind,) * 2) for kind in (AxisType.Auto, AxisType.Explicit))
    sp.auto_shard(lambda x: x, mesh=auto)(jax.device_put(jnp.ones(8), NamedSharding(explicit, P("data"))))


def constraint_in_a_function():
    sp.auto_shard(lambda x: sp.with_sharding_constraint(x, P("dta")), mesh=MESH)(X)


def unpinned_host():
    sharding = NamedSharding(AbstractMesh((8,), ("data",), axis_types=(AxisType.Auto,)), P("data"), memory_kind="unpinned_host")
    x = jax.ShapeDtypeStruct((8,), jnp.float32, sharding=sharding)
    sp.auto_shard(lambda x: x, mesh=sharding.mesh, options=sp.Options(platform="tpu")).plan(x)


CASES = {
    "memory that a TPU cannot use": (unpinned_host, ValueError, ["memory kind 'unpinned_host'", "x float32[8]", "pinned_host"]),
    "unknown strategy": (lambda: sp.Options(strategy="bsic"), ValueError, ["strategy is 'bsic'", "did you mean 'basic'?"]),  # pyright: ignore
    "a Manual axis": (
        lambda: sp.auto_shard(jnp.sin, mesh=AbstractMesh((2, 4), ("data", "model"), axis_types=(AxisType.Auto, AxisType.Manual))),
        sp.MeshError,
        ["mesh axis 'model' is of type Manual", "inside of a jax.shard_map", "axis_types=(AxisType.Auto,) * 2"],
    ),
    "unknown unreduced axis": (lambda: plan(P(unreduced={"dta"})), ValueError, ["unknown mesh axis 'dta'", "did you mean 'data'?"]),
    "unknown platform": (lambda: sp.Options(platform="tpus"), ValueError, ["platform is 'tpus'", "did you mean 'tpu'?"]),
    "mesh for a function": (lambda: sp.auto_shard(jax.make_mesh((8,), ("data",))), TypeError, ["not a function", "mesh="]),
    "unhashable function": (lambda: sp.auto_shard(Model()), TypeError, ["a Model, which has no hash", "lambda f, x: f(x)"]),
    "one device": (on_one_device, ValueError, ["committed to a single device", "x float32[8]", "data=4, model=2", "jax.device_put"]),
    "explicit argument": (explicit_argument, ValueError, ["Explicit axes", "x float32[8]", "mesh=", "AxisType.Auto"]),
    "constraint": (constraint_in_a_function, ValueError, ["'dta'", "of x float32[8,512]", "test_errors.py:", "did you mean 'data'?"]),
    "constraint without a mesh": (
        lambda: sp.with_sharding_constraint(X, P("data")),
        ValueError,
        ["no mesh", "with_sharding_constraint", "jax.set_mesh"],
    ),
    "too many arguments": (
        lambda: plan(args=(1.0, X, X)),
        TypeError,
        ["too many positional", "test_errors.py", "step(params, x)", "3 positional"],
    ),
    "spec for no argument": (lambda: plan({"parms": None}), ValueError, ["'parms', which is not an argument", "did you mean 'params'?"]),
    "unknown axis": (
        lambda: plan(({"mlp": {"w": P(None, "modle")}, "norm": None}, None)),
        ValueError,
        ["unknown mesh axis 'modle'", "params['mlp']['w'] float32[512,2048]", "test_errors.py", "data=4, model=2", "did you mean 'model'?"],
    ),
    "axis twice": (
        lambda: plan(({"mlp": {"w": P("model", "model")}, "norm": None}, None)),
        ValueError,
        ["'model'", "params['mlp']['w']"],
    ),
    "indivisible": (
        lambda: plan(({"mlp": None, "norm": {"g": P("data")}}, None)),
        ValueError,
        ["dimension 0 of size 6 is not divisible by 4", "params['norm']['g'] float32[6]", "data=4", "4 or 8", "'model'"],
    ),
    "indivisible output": (
        lambda: plan(None, P("data"), fun=lambda x: x[:6], args=(X,)),
        ValueError,
        ["out_shardings", "size 6 is not divisible by 4", "result float32[6,512]"],
    ),
    "wrong rank": (
        lambda: plan(({"mlp": None, "norm": {"g": P(None, "data")}}, None)),
        ValueError,
        ["2 entries for a value of rank 1", "params['norm']['g']", "drop 1"],
    ),
    "spec tree is no prefix": (
        lambda: plan(({"mlp": {"v": P("data")}, "norm": None}, None)),
        ValueError,
        ["in_shardings is not a prefix of the arguments", "params['mlp']", "not in the value: ['v']", "missing from the specs: ['w']"],
    ),
    "too few specs": (
        lambda: plan((None,)),
        ValueError,
        ["in_shardings is not a prefix", "a tuple of 1", "one entry per positional argument"],
    ),
    "tuple for a spec": (
        lambda: plan(({"mlp": {"w": ("data", None)}, "norm": None}, None)),
        ValueError,
        ["params['mlp']['w']", "write P(...)"],
    ),
    "shardings on different meshes": (
        lambda: plan((None, other_mesh_sharding())),
        ValueError,
        ["another mesh", "x float32[8,512]", "all=8", "data=4, model=2"],
    ),
    "argument on another mesh": (other_mesh_argument, ValueError, ["another mesh", "all=8", "jax.device_put"]),
    "argument with another sharding": (argument_disagrees, ValueError, ["differs from in_shardings", "in_shardings says P('model')"]),
    "maximal mesh": (
        lambda: plan((None, SingleDeviceSharding(jax.devices()[0]))),
        ValueError,
        ["single device", "maximal mesh", "P() to replicate"],
    ),
    "maximal mesh of the dialect": (
        lambda: plan((None, sp.TensorSharding(sp.Mesh.maximal(3), ((), ())))),
        ValueError,
        ["maximal mesh", "P() to replicate"],
    ),
    "no sharding": (lambda: plan((None, "data")), ValueError, ["is not a sharding", "P('axis', None)"]),
    "group of different shapes": (
        group_of_two_shapes,
        ValueError,
        ["group 'moments'", "[4, 4]", "[4, 2]", "one group per shape"],
    ),
    "rule string": (
        lambda: sp.sharding_rule("i k, k j > i j"),
        ValueError,
        ["unknown character", "    i k, k j > i j\n             ^"],
    ),
    "unhashable static": (unhashable_static, ValueError, ["'sizes' cannot be hashed", "list has no hash", "tuple"]),
    "no array": (lambda: plan(None, fun=lambda x, name: x, args=(X, "adam")), TypeError, ["name is a str", "static_argnames"]),
    "no array in a tree": (
        lambda: plan(None, fun=lambda p: p, args=({"w": X, "bias": Tensor()},)),
        TypeError,
        ["p['bias'] is a Tensor", "convert it, np.asarray(...)", "leave ['bias'] out of p"],
    ),
    "deleted buffer": (deleted_buffer, RuntimeError, ["the buffer of s has been deleted", "donated", "result of that call"]),
    "donated twice": (donated_twice, ValueError, ["s['a'] and s['b'] are one array", "jnp.copy"]),
    "donated and passed": (donated_and_passed, ValueError, ["s and t are one array"]),
    **{
        f"ordered effects, {lowering}": (
            functools.partial(ordered_effect, lowering),
            ValueError,
            ["ordered", "8 devices", "test_errors.py", "ordered=False"],
        )
        for lowering in ("jit", "shard_map")
    },
    "planner": (lambda: sp.auto_shard(step, mesh=MESH, planner="beam"), TypeError, ["planner is a str", "sp.Planner(hardware="]),
    "lowering": (
        lambda: sp.auto_shard(step, mesh=MESH, lowering="smap"),
        ValueError,
        ["lowering is 'smap'", 'lowering="jit" or lowering="shard_map"'],
    ),
    "mesh": (lambda: sp.auto_shard(step, mesh=3), ValueError, ["mesh is 3, a number of devices", "make_mesh"]),
    "no mesh": (lambda: sp.auto_shard(step).plan(params(), X), ValueError, ["no mesh", "jax.set_mesh"]),
    "too few devices": (lambda: sp.auto_shard(lambda x: x, mesh={"data": 64})(X), ValueError, ["needs 64 devices and there are 8"]),
    "abstract mesh": (
        lambda: sp.auto_shard(lambda x: x, mesh=AbstractMesh((8,), ("data",)))(X),
        ValueError,
        ["AbstractMesh can be planned for, not run on", ".plan(...)"],
    ),
    "name rule": (lambda: plan(rules=[("mlp/w", "model")]), ValueError, ["rules[0]", "pair"]),
    "name rule and spec": (
        lambda: plan(({"mlp": {"w": P("data")}, "norm": None}, None), rules=[("mlp/w", P(None, "model"))]),
        ValueError,
        ["rules[0] ('mlp/w') and in_shardings disagree", "params['mlp']['w']"],
    ),
    "static argument that is not there": (
        lambda: sp.auto_shard(step, mesh=MESH, static_argnames="n"),
        ValueError,
        ["'n'", "'params', 'x'"],
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_message_and_class(case: str) -> None:
    make, kind, parts = CASES[case]
    with pytest.raises(kind) as caught:
        make()
    message = str(caught.value)
    for part in parts:
        assert part in message, message


def test_errors_pickle() -> None:
    import pickle

    with pytest.raises(ValueError) as caught:
        plan((P("nope"), None))
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


@pytest.mark.parametrize("name", ["é", "a\\b", "a\nb", "データ"])
@pytest.mark.parametrize("kind", ["mapping", "abstract"])
def test_axis_names_that_end_the_process_in_xla(name: str, kind: str) -> None:
    axis_types = (jax.sharding.AxisType.Auto,)
    mesh = {name: 4} if kind == "mapping" else jax.sharding.AbstractMesh((4,), (name,), axis_types=axis_types)
    with pytest.raises(MeshError, match="has a name that XLA cannot take") as caught:
        sp.auto_shard(jnp.sum, mesh=mesh, in_shardings=P(name)).plan(jax.ShapeDtypeStruct((8,), "float32"))
    assert "rename it" in (caught.value.fix or "")
