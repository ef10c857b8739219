"""Equations of regions that are lowered as the op that they are: the same text as JAX writes."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental.xla_metadata import set_xla_metadata
from jax.extend.core import ClosedJaxpr, jaxpr_as_fun
from jax.sharding import PartitionSpec as P

import shardy_py as sp
from shardy_py.backends.collective_ops import COLLECTIVES
from shardy_py.backends.lower_equations import as_equations, equations_p
from shardy_py.backends.single_ops import RULES
from shardy_py.frontends._jax import lowering_rules

F, G = jnp.linspace(0.1, 0.9, 12).reshape(3, 4), jnp.linspace(-2.0, 3.0, 12).reshape(3, 4)
N, U, B = (G * 7).astype(jnp.int32), (F * 31).astype(jnp.uint32), G > 0
C = lax.complex(F, G)
KEYS = jax.random.split(jax.random.key(0), 3)

UNARY = "abs ceil cos exp expm1 floor integer_pow is_finite log log1p neg rsqrt sin sqrt tanh"
XY, YX = ("x", "y"), ("y", "x")
CASES: dict[str, list[tuple[Callable[..., Any], tuple[Any, ...]]]] = {
    **{name: [(getattr(lax, name), (G,))] for name in UNARY.split() if name != "integer_pow"},
    **{name: [(getattr(lax, name), (F, G))] for name in ("add", "div", "max", "min", "mul", "rem", "sub")},
    **{
        name: [(getattr(lax, name), (x, y)) for x, y in ((F, G), (N, N + 1), (U, U), (B, ~B))]
        for name in ("eq", "ge", "gt", "le", "lt", "ne")
    },
    "and": [(lax.bitwise_and, (N, N)), (lax.bitwise_and, (B, B))],
    "or": [(lax.bitwise_or, (U, U))],
    "xor": [(lax.bitwise_xor, (N, N))],
    "not": [(lax.bitwise_not, (B,)), (lax.bitwise_not, (N,))],
    "shift_left": [(lax.shift_left, (N, abs(N)))],
    "shift_right_arithmetic": [(lax.shift_right_arithmetic, (N, abs(N)))],
    "shift_right_logical": [(lax.shift_right_logical, (U, U))],
    "add_any": [(lambda x, y: jax.linear_transpose(lambda z: (z, 2 * z), x)((x, y))[0], (F, G))],
    "broadcast_in_dim": [(lambda x: lax.broadcast_in_dim(x, (2, 3, 1, 4), (1, 3)), (F,)), (lambda: jnp.zeros((3, 4)), ())],
    "clamp": [(lax.clamp, (0.0, G, 1.0)), (lax.clamp, (F, G, F + 1))],
    "concatenate": [(lambda *xs: lax.concatenate(xs, 1), (F, G)), (lambda *xs: lax.concatenate(xs, 0), (F,) * 17)],
    "convert_element_type": [
        (lambda x, t=t: lax.convert_element_type(x, t), (x,))
        for x in (G, N, U, B)
        for t in ("float32", "int32", "uint8", "bfloat16", "bool", "complex64")
        if x.dtype != t
    ],
    "dot_general": [
        (jnp.matmul, (F, G.T)),
        (partial(jnp.matmul, precision="highest"), (F, G.T)),
        (partial(jnp.matmul, preferred_element_type=jnp.float32), (F.astype(jnp.bfloat16), G.T.astype(jnp.bfloat16))),
        (partial(lax.dot_general, dimension_numbers=(((1,), (1,)), ((0,), (0,)))), (F, G)),
        (partial(jnp.matmul, precision="BF16_BF16_F32"), (F, G.T)),
    ],
    "dynamic_slice": [(lambda x, i: lax.dynamic_slice(x, (i, 1), (2, 3)), (F, 1))],
    "dynamic_update_slice": [(lambda x, y, i: lax.dynamic_update_slice(x, y, (i, 1)), (F, G[:2, :2], 1))],
    "integer_pow": [(partial(lax.integer_pow, y=y), (G,)) for y in (-2, -1, 0, 1, 2, 5, 12)],
    "iota": [(lambda: lax.broadcasted_iota(jnp.int32, (3, 4), 1), ())],
    "pad": [(lambda x: lax.pad(x, 0.0, ((1, 2, 0), (-1, 0, 2))), (F,))],
    "real": [(lax.real, (C,))],
    "imag": [(lax.imag, (C,))],
    "reduce_and": [(lambda x: lax.reduce_and(x, (0,)), (x,)) for x in (B, N, U)],
    "reduce_max": [(lambda x: lax.reduce_max(x, (0,)), (x,)) for x in (F, B, N, U, F.astype(jnp.bfloat16))],
    "reduce_min": [(lambda x: lax.reduce_min(x, (0, 1)), (x,)) for x in (F, B, N, U, F.astype(jnp.bfloat16))],
    "reduce_or": [(lambda x: lax.reduce_or(x, (1,)), (x,)) for x in (B, N, U)],
    "reduce_prod": [(lambda x: lax.reduce_prod(x, (0,)), (x,)) for x in (F, N, C)],
    "reduce_sum": [(lambda x: x.sum(0), (F,)), (lambda x: x.sum(), (N,)), (lambda x: x.sum(1), (C,))],
    "reduce_xor": [(lambda x: lax.reduce_xor(x, (1,)), (x,)) for x in (B, N, U)],
    "reshape": [(lambda x: x.reshape(2, 6), (F,)), (lambda x: lax.reshape(x, (12,), (1, 0)), (F,))],
    "rev": [(lambda x: lax.rev(x, (1,)), (F,))],
    "select_n": [(lax.select_n, (B, F, G)), (lax.select_n, (jnp.array(True), F, G)), (lax.select_n, (abs(N) % 3, F, G, F))],
    "slice": [(lambda x: x[1:, ::2], (F,))],
    "squeeze": [(lambda x: lax.squeeze(x, (0,)), (F[None],))],
    "transpose": [(lambda x: x.T, (F,))],
}
UNUSUAL: list[tuple[Callable[..., Any], tuple[Any, ...]]] = [
    *((getattr(lax, name), (C,)) for name in ("abs", "cos", "exp", "neg", "sin", "sqrt", "tanh")),
    *((f, (C, C + 1)) for f in (lax.add, lax.mul, lax.div, lax.max, lax.min, lax.eq, lax.ne)),
    (lambda x: lax.convert_element_type(lax.real(x), jnp.int32), (C,)),
    (lambda x: (x * 2 + 1 - F[:1]) / jnp.float32(3), (G,)),
    (lambda x: x + np.float32("nan") + np.float32("-0") + np.float32(0), (G,)),
    (lambda k: jax.random.key_data(k[1:2].reshape(())), (KEYS,)),
    (lambda k: jnp.where(B[0, :1], k[:1], k[1:2]).T, (KEYS,)),
    (lambda k: k[:, None] == k[None], (KEYS,)),
    (partial(lax.exp, accuracy=lax.AccuracyMode.HIGHEST), (G,)),
    *((lambda x, f=f: f(x, (0,)), (x,)) for f in (lax.reduce_max, lax.reduce_min) for x in (C, F.astype(jnp.float8_e4m3fn))),
    (partial(lax.psum_scatter, axis_name="y", scatter_dimension=0), (jnp.ones((4, 3)),)),
    (partial(lax.psum, axis_name="y", axis_index_groups=[[0, 1], [2, 3]]), (F,)),
    (partial(lax.all_gather, axis_name="y", axis_index_groups=[[0, 3], [2, 1]]), (F,)),
    (partial(lax.pmax, axis_name="x"), (C,)),
    (partial(lax.axis_index, XY), ()),
]


SENT: dict[str, list[tuple[Callable[..., Any], tuple[Any, ...]]]] = {
    "all_gather": [
        (partial(lax.all_gather, axis_name=names, axis=dim, tiled=tiled), (F,))
        for names in ("x", "y", XY, YX)
        for dim, tiled in ((0, True), (1, True), (0, False), (2, False))
    ],
    "all_to_all": [
        (partial(lax.all_to_all, axis_name=names, split_axis=split, concat_axis=1 - split, tiled=True), (jnp.ones((8, 8)),))
        for names in ("x", "y", XY, YX)
        for split in (0, 1)
    ],
    "axis_index": [(partial(lax.axis_index, name), ()) for name in XY],
    "pmax": [(partial(lax.pmax, axis_name=names), (x,)) for names in ("x", YX) for x in (F, N, U)],
    "pmin": [(partial(lax.pmin, axis_name=names), (x,)) for names in ("y", XY) for x in (F, N, U)],
    "ppermute": [
        (partial(lax.ppermute, axis_name="y", perm=[(0, 1), (1, 2), (3, 0)]), (F,)),
        (partial(lax.ppermute, axis_name=XY, perm=[(1, 6), (0, 7), (5, 2)]), (N,)),
    ],
    "psum": [(partial(lax.psum, axis_name=names), (x,)) for names in ("x", "y", XY, YX) for x in (F, N, U, C)],
    "reduce_scatter": [
        (partial(lax.psum_scatter, axis_name=names, scatter_dimension=dim, tiled=True), (jnp.ones((8, 16)),))
        for names in ("x", "y", XY, YX)
        for dim in (0, 1)
    ],
}


def region(f: Callable[..., Any], *args: Any, sizes: tuple[int, int] = (2, 4)) -> ClosedJaxpr:
    """A region that gets all arrays whole."""
    mesh = jax.make_mesh(sizes, XY, axis_types=(jax.sharding.AxisType.Auto,) * 2)
    g = jax.shard_map(f, mesh=mesh, in_specs=(P(),) * len(args), out_specs=P(), check_vma=False)
    return jax.make_jaxpr(g)(*args)


def texts(f: Callable[..., Any], *args: Any) -> tuple[str, str]:
    """What JAX writes, and what is written here; constants that are repeated count once, and names of values do not."""
    closed = region(f, *args)
    return normal(lowered(closed, *args)), normal(lowered(here(closed), *args))


def here(closed: ClosedJaxpr) -> ClosedJaxpr:
    return ClosedJaxpr(as_equations(closed.jaxpr), closed.consts)


def lowered(closed: ClosedJaxpr, *args: Any) -> str:
    return jax.jit(jaxpr_as_fun(closed)).lower(*args).as_text()


def normal(text: str) -> str:
    names: dict[str, str] = {}
    known: dict[str, str] = {}
    lines, values = [], 0
    for line in text.splitlines():
        line = re.sub(r"%[A-Za-z0-9_#]+", lambda m: names.get(m[0], m[0]), line.strip())
        made = re.match(r"(%\S+) = (stablehlo\.constant .*)", line)
        if made and made[2] in known:
            names[made[1]] = known[made[2]]
            continue
        if made:
            known[made[2]] = f"%c{len(known)}"
        name = re.match(r"(%\w+)(:\d+)? = ", line)
        if name:
            names[name[1]] = known[made[2]] if made else f"%v{values}"
            values += not made
            line = names[name[1]] + line[len(name[1]) :]
        lines.append(line)
    constants = sorted(line for line in lines if "stablehlo.constant" in line)
    return "\n".join([*constants, *(line for line in lines if "stablehlo.constant" not in line)])


def counting(monkeypatch: pytest.MonkeyPatch, rules: Any, name: str) -> list[str]:
    """Grows by one each time a rule writes something."""
    written, rule = list[str](), rules[name]

    def counted(*args: Any) -> Any:
        made = rule(*args)
        written.extend([] if made is None else [name])
        return made

    monkeypatch.setitem(rules, name, counted)
    return written


SET = ("jax_use_rgv3", "jax_raise_on_ppermute_sort_diff")
"""Settings of later versions of JAX: to name axes in place of listing devices, which is not done here, and to refuse some permutations."""


@pytest.fixture(autouse=True)
def devices_listed() -> Iterator[None]:
    before = {name: getattr(jax.config, name) for name in SET if hasattr(jax.config, name)}
    for name in before:
        jax.config.update(name, False)
    yield
    for name, value in before.items():
        jax.config.update(name, value)


@pytest.mark.parametrize("name", [*RULES, *COLLECTIVES])
def test_what_is_written_is_what_jax_writes(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    written = counting(monkeypatch, COLLECTIVES if name in COLLECTIVES else RULES, name)
    cases = (CASES | SENT)[name]
    for f, args in cases:
        theirs, ours = texts(f, *args)
        assert ours == theirs
    assert len(written) >= (len(cases) if name in COLLECTIVES else 1)  # the other rules leave some cases to JAX


def test_a_permutation_over_axes_in_another_order_is_left_to_jax(monkeypatch: pytest.MonkeyPatch) -> None:
    """Versions of JAX differ in how they number the devices."""
    written = counting(monkeypatch, COLLECTIVES, "ppermute")
    theirs, ours = texts(partial(lax.ppermute, axis_name=YX, perm=[(1, 6), (0, 7)]), N)
    assert "collective_permute" in ours
    assert ours == theirs
    assert not written


def test_collectives_are_lowered_alike_for_all_platforms() -> None:
    for name, cases in SENT.items():
        closed = region(*cases[0][:1], *cases[0][1])
        rules = lowering_rules()[name]
        lowerings = [jax.jit(jaxpr_as_fun(each)).trace(*cases[0][1]) for each in (closed, here(closed))]
        for platform in ("cpu", "cuda", "tpu"):
            theirs, ours = (normal(each.lower(lowering_platforms=(platform,)).as_text()) for each in lowerings)
            assert ours == theirs, f"{name} for {platform}, which has rules for {rules}"


@pytest.mark.parametrize("case", range(len(UNUSUAL)))
def test_what_is_more_than_one_op_is_left_to_jax(case: int) -> None:
    f, args = UNUSUAL[case]
    theirs, ours = texts(f, *args)
    assert ours == theirs


def test_every_rule_is_for_all_platforms() -> None:
    rules = lowering_rules()
    own = {name: rules[name] for name in RULES if rules[name] != ("",)}
    assert own == {"dot_general": ("", "cpu", "tpu")}  # they differ where operands are not of one type, or an algorithm is asked for


def test_odd_powers_are_those_of_jax_bit_for_bit() -> None:
    for y in (3, 7, 11):
        closed = region(partial(lax.integer_pow, y=y), G)
        np.testing.assert_array_equal(*(jax.jit(jaxpr_as_fun(each))(G)[0] for each in (closed, here(closed))))


def loops(x: jax.Array) -> jax.Array:
    def body(carry: jax.Array, i: jax.Array) -> tuple[jax.Array, jax.Array]:
        carry = lax.cond(i > 1, lambda y: y * 2, lambda y: jnp.tanh(y) - i, carry)
        return carry, carry.sum()

    x, sums = lax.scan(body, x, jnp.arange(4.0))
    return lax.while_loop(lambda y: (y < 100).all(), lambda y: y + jax.jit(jnp.cos)(y) ** 2 + sums.sum() ** 2 + 1, x)


def test_bodies_of_loops_and_branches() -> None:
    closed = region(loops, F)
    text = str(here(closed).jaxpr)
    assert text.count("equations[") == 7  # of the region, the scan, both branches, the condition and the body of the loop, the function
    np.testing.assert_array_equal(*(jax.jit(jaxpr_as_fun(each))(F)[0] for each in (closed, here(closed))))


def test_a_function_called_twice_is_one_function() -> None:
    g = jax.jit(lambda x: jnp.sin(x) * 2)
    theirs, ours = texts(lambda x: g(g(x) + 1), F)
    assert ours == theirs
    assert ours.count("stablehlo.sine") == 1


def test_what_was_set_for_the_compiler_is_kept() -> None:
    def f(x: jax.Array) -> jax.Array:
        with set_xla_metadata(key="value"):
            x = jnp.sin(x)
        return x * 2

    theirs, ours = texts(f, F)
    assert ours == theirs
    assert 'key = "value"' in ours


@pytest.mark.parametrize("devices", [1, 2])
def test_effects_happen(devices: int, capfd: pytest.CaptureFixture[str]) -> None:
    def show(text: str, x: Any) -> None:
        jax.debug.print(text, x, ordered=devices == 1)

    def f(x: jax.Array) -> jax.Array:
        def body(carry: jax.Array, i: jax.Array) -> tuple[jax.Array, None]:
            show("step {}", i)
            return carry + i, None

        show("before {}", jnp.sin(x[0, 0] * 0))
        return lax.scan(body, x, jnp.arange(2))[0]

    jax.jit(jaxpr_as_fun(here(region(f, F, sizes=(1, devices)))))(F)[0].block_until_ready()
    jax.effects_barrier()
    printed = capfd.readouterr().out.splitlines()
    expected = ["before 0.0", "step 0", "step 1"]
    assert (printed if devices == 1 else sorted(printed)) == [line for line in expected for _ in range(devices)]


def test_ops_say_where_they_come_from() -> None:
    def f(x: jax.Array) -> jax.Array:
        with jax.named_scope("layer"):
            return jnp.sin(x) @ x.T

    closed = region(f, F)
    found = [jax.jit(jaxpr_as_fun(each)).lower(F).as_text(debug_info=True) for each in (closed, here(closed))]
    places = [sorted(set(re.findall(r'"[^"]*layer[^"]*"', text))) for text in found]
    assert places[0] == places[1]
    assert len(places[0]) == 3
    assert all(f"{__file__}" in text for text in found)


def test_regions_that_are_not_manual_in_all_axes_stay_as_they_are() -> None:
    mesh = jax.sharding.AbstractMesh((2, 2), ("x", "y"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
    f = jax.shard_map(jnp.sin, mesh=mesh, in_specs=P("x"), out_specs=P("x"), axis_names={"x"})
    jaxpr = jax.make_jaxpr(f)(jnp.ones((4, 4))).jaxpr
    assert as_equations(jaxpr) is jaxpr


def test_the_lowering_of_a_plan_is_written_here(monkeypatch: pytest.MonkeyPatch) -> None:
    mesh = jax.make_mesh((8,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
    seen = counting(monkeypatch, RULES, "sin")
    step = sp.auto_shard(lambda x: jnp.sin(x).sum(), mesh=mesh, in_shardings=(P("x"),), lowering="shard_map")
    np.testing.assert_allclose(step(np.arange(8.0, dtype=np.float32)), np.sin(np.arange(8.0)).sum(), rtol=1e-5)
    assert seen == ["sin"]
    assert equations_p.name == "equations"
