"""Every native template against JAX's own lowering, with the variations that change what is lowered."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.ad_checkpoint import checkpoint_name
from jax.extend.core import jaxprs_in_params
from jax.sharding import AbstractMesh, AxisType
from jax.sharding import PartitionSpec as P

from shardy_py.frontends.primitives import FAMILIES, TEMPLATES
from shardy_py.frontends.primitives.template import Builder, OpsTemplate, OpTemplate
from shardy_py.ir import TensorType
from tests.frontends.lowering import difference, imported, lowered, traced

F32 = jax.ShapeDtypeStruct((4, 8), np.float32)
BF16 = jax.ShapeDtypeStruct((4, 8), jnp.bfloat16)
I32 = jax.ShapeDtypeStruct((4, 8), np.int32)
U32 = jax.ShapeDtypeStruct((4, 8), np.uint32)
BOOL = jax.ShapeDtypeStruct((4, 8), np.bool_)
C64 = jax.ShapeDtypeStruct((4, 8), np.complex64)
SCALAR = jax.ShapeDtypeStruct((), np.float32)
INDEX = jax.ShapeDtypeStruct((), np.int32)
INDICES = jax.ShapeDtypeStruct((3,), np.int32)
IMAGES = jax.ShapeDtypeStruct((2, 8, 8, 4), np.float32)
KEYS = jax.ShapeDtypeStruct((4,), jax.random.key(0).dtype)
MESH = AbstractMesh((2, 4), ("x", "y"), axis_types=(AxisType.Auto,) * 2)

UNARY_FLOAT = (
    lax.abs, lax.acos, lax.acosh, lax.asin, lax.asinh, lax.atan, lax.atanh, lax.bessel_i1e, lax.cbrt, lax.ceil, lax.cos, lax.cosh,
    lax.digamma, lax.erf, lax.erf_inv, lax.erfc, lax.exp, lax.exp2, lax.expm1, lax.floor, lax.is_finite, lax.lgamma, lax.log,
    lax.log1p, lax.logistic, lax.neg, lax.rsqrt, lax.sign, lax.sin, lax.sinh, lax.sqrt, lax.square, lax.stop_gradient, lax.tan,
    lax.tanh,
)  # fmt: skip
UNARY_OTHER = (
    (lax.abs, C64), (lax.bitwise_not, I32), (lax.bitwise_not, BOOL), (lax.clz, I32), (lax.conj, C64), (lax.conj, F32), (lax.imag, C64),
    (lax.logistic, C64), (lax.neg, I32), (lax.population_count, I32), (lax.real, C64), (lax.sign, I32), (lax.sign, U32),
    (lax.sign, C64), (lax.square, I32), (lax.square, C64), (lax.sin, C64), (lax.cos, C64), (lax.exp, SCALAR),
)  # fmt: skip
BINARY = (
    (lax.add, F32), (lax.atan2, F32), (lax.bitwise_and, I32), (lax.bitwise_or, BOOL), (lax.bitwise_xor, I32), (lax.complex, F32),
    (lax.div, F32), (lax.eq, F32), (lax.ge, I32), (lax.gt, F32), (lax.le, U32), (lax.lt, F32), (lax.max, F32), (lax.max, C64),
    (lax.min, I32), (lax.min, C64), (lax.mul, F32), (lax.ne, BOOL), (lax.nextafter, F32), (lax.polygamma, F32), (lax.pow, F32),
    (lax.rem, F32), (lax.shift_left, I32), (lax.shift_right_arithmetic, I32), (lax.shift_right_logical, I32), (lax.sub, F32),
    (lax.zeta, F32), (lax.add, SCALAR),
)  # fmt: skip


def _functions() -> Iterator[tuple[str, Callable[..., Any], tuple[Any, ...]]]:
    for f in UNARY_FLOAT:
        yield f.__name__, f, (F32,)
    for f, x in UNARY_OTHER:
        yield f"{f.__name__}-{x.dtype}-{len(x.shape)}", f, (x,)
    for f, x in BINARY:
        yield f"{f.__name__}-{x.dtype}-{len(x.shape)}", f, (x, x)
    yield from OTHERS


def _shard_mapped(f: Callable[..., Any]) -> Callable[..., Any]:
    return jax.shard_map(f, mesh=MESH, in_specs=P("x", "y"), out_specs=P(), check_vma=False)


def _varying(x: Any) -> Any:
    def body(a: Any) -> Any:
        return lax.psum(a * 2, "y") + lax.pcast(jnp.ones(()), "x", to="varying")

    return jax.shard_map(body, mesh=MESH, in_specs=P("x", "y"), out_specs=P("x"))(x)


def _pooled(x: Any) -> Any:
    window, strides = (1, 2, 2, 1), (1, 2, 2, 1)
    sums = lax.reduce_window(x, 0.0, lax.add, window, strides, "SAME")
    largest = lax.reduce_window(x, -jnp.inf, lax.max, window, strides, "VALID", (1, 2, 1, 1), (1, 1, 2, 1))
    least = lax.reduce_window(x, jnp.inf, lax.min, window, strides, "SAME")
    return sums, largest, least, lax.reduce_window(x, 1.0, lax.mul, window, strides, "SAME")


def _scattered(mode: str | None) -> Callable[..., Any]:
    def scatter(x: Any, i: Any) -> Any:
        at = x.at[i]
        return [getattr(at, name)(2.0, mode=mode) for name in ("set", "add", "mul", "min", "max", "subtract")]

    return scatter


def _converted(x: Any, dtype: Any) -> Any:
    return lax.convert_element_type_p.bind(x, new_dtype=np.dtype(dtype), weak_type=False, sharding=None)


def _select_and_scatter(x: Any) -> Any:
    return jax.grad(lambda x: lax.reduce_window(x, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "SAME").sum())(x)


OTHERS: tuple[tuple[str, Callable[..., Any], tuple[Any, ...]], ...] = (
    ("literals", lambda x: (x + 1.0, 2.0 - x, x > 0, lax.pow(x, 3), x * np.float32(4), lax.max(x, 0.0)), (F32,)),
    ("literal-scalars", lambda x: (x + 1.0, lax.exp(2.0), jnp.sqrt(3.0) * x), (SCALAR,)),
    ("powers", lambda x: [lax.integer_pow(x, n) for n in (-3, -2, -1, 0, 1, 2, 3, 4, 5, 7, 8)], (F32,)),
    ("pow-of-integers", lambda x, i: (lax.pow(x, i), lax.pow(x, 2)), (F32, I32)),
    ("clamp", lambda x, s: (lax.clamp(0.0, x, s), lax.clamp(x, x, x)), (F32, SCALAR)),
    ("round", lambda x: (lax.round(x), lax.round(x, lax.RoundingMethod.TO_NEAREST_EVEN)), (F32,)),
    ("total-order", lambda x: lax.sort(x, dimension=1), (C64,)),
    ("select", lambda p, x: (lax.select(p, x, x), lax.select_n(p, x, -x), jnp.where(p[0, 0], x, 0)), (BOOL, F32)),
    ("select-many", lambda i, x: lax.select_n(i, x, -x, x + 1, x * 2, x), (I32, F32)),
    ("accumulate", lambda x: jax.grad(lambda x: (x * x + jnp.sin(x) * x).sum())(x), (F32,)),
    ("convert", lambda *xs: [x.astype(t) for x in xs for t in (np.float32, np.int8, bool, jnp.bfloat16)], (F32, I32, BOOL, U32)),
    ("convert-complex", lambda x: (_converted(x, np.float32), _converted(x, np.bool_), _converted(x, C64.dtype)), (C64,)),
    ("bitcast", lambda x: (lax.bitcast_convert_type(x, np.int32), lax.bitcast_convert_type(x, np.int16)), (F32,)),
    ("reduce-precision", lambda x: lax.reduce_precision(x, 5, 10), (F32,)),
    ("copies", lambda x: (jnp.copy(x), checkpoint_name(x, "name")), (F32,)),
    ("broadcast", lambda x, s: (lax.broadcast(x, (2,)), lax.broadcast_in_dim(s, (2, 3), ()), jnp.zeros((3, 4)), x[:, None]), (F32, SCALAR)),
    ("reshape", lambda x: (x.reshape(32), x.reshape(2, 2, 8), lax.reshape(x, (8, 4), (1, 0)), lax.squeeze(x[:1], (0,))), (F32,)),
    ("transpose", lambda x: (x.T, jnp.moveaxis(x.reshape(2, 2, 8), 0, 2)), (F32,)),
    ("reverse", lambda x: (lax.rev(x, (0,)), x[::-1, ::-1]), (F32,)),
    ("concatenate", lambda x: (lax.concatenate([x, x, x], 1), lax.concatenate([x] * 40, 0)), (F32,)),
    ("stack", lambda x: (lax.stack([x, x], axis=1), *lax.unstack(x, axis=1), jnp.stack([1.0, 2.0])), (F32,)),
    ("split", lambda x: lax.split(x, (3, 5), axis=1), (F32,)),
    ("tile", lambda x: jnp.tile(x, (2, 3)), (F32,)),
    ("slice", lambda x: (x[1:3], x[:, ::2], lax.slice(x, (1, 0), (3, 8), (2, 3))), (F32,)),
    ("pad", lambda x: (jnp.pad(x, 1), lax.pad(x, 1.0, ((1, -1, 2), (0, 3, 0)))), (F32,)),
    ("iota", lambda: (lax.iota(np.int32, 8), lax.broadcasted_iota(np.uint8, (3, 4), 1)), ()),
    ("empty", lambda: lax.empty((3, 4), np.float32), ()),
    ("scan-buffers", lambda x: lax.scan(lambda c, y: (c + 1, y * c), 0.0, x), (F32,)),
    ("reduce", lambda x: (x.sum(), x.sum(1), x.max(0), x.min((0, 1)), x.prod(0)), (F32,)),
    ("reduce-complex", lambda x: (x.sum(0), x.max(1)), (C64,)),
    ("reduce-logical", lambda p, i: (p.all(0), p.any(), lax.reduce_xor(i, (0,)), lax.reduce_and(i, (1,)), i.max(0)), (BOOL, I32)),
    ("reduce-general", lambda x: (lax.reduce(x, 0.0, lambda a, b: a + 2 * b, (0,)), lax.reduce(x, 1.0, lax.mul, (1,))), (F32,)),
    ("reduce-pairs", lambda x, i: lax.reduce((x, i), (0.0, 0), lambda a, b: (a[0] + b[0], a[1] + b[1]), (1,)), (F32, I32)),
    ("sort", lambda x, i: (lax.sort(x), lax.sort((x, i), dimension=0, num_keys=2)), (F32, I32)),
    ("top-k", lambda x: (lax.top_k(x, 3), lax.top_k(x, 2, axis=0)), (F32,)),
    ("windows", _pooled, (IMAGES,)),
    ("window-gradients", _select_and_scatter, (IMAGES,)),
    ("dot", lambda x: (x @ x.T, jnp.einsum("ij,ij->i", x, x), lax.dot(x, x.T, precision="highest")), (F32,)),
    ("dot-mixed", lambda x, h: (lax.dot(h, h.T, preferred_element_type=np.float32), x @ h.T), (F32, BF16)),
    ("dot-integers", lambda i: lax.dot_general(i, i, (((1,), (1,)), ((0,), (0,)))), (I32,)),
    ("dot-algorithm", lambda h: lax.dot(h, h.T, precision=lax.DotAlgorithmPreset.BF16_BF16_F32), (BF16,)),
    ("convolution", lambda x: (_convolved(x), _convolved(x, feature_group_count=4), _convolved(x, window_strides=(2, 1))), (IMAGES,)),
    ("convolution-gradients", lambda x: jax.grad(lambda x: _convolved(x, rhs_dilation=(2, 1)).sum())(x), (IMAGES,)),
    ("fft", lambda x: (jnp.fft.rfft(x), jnp.fft.irfft(x), jnp.fft.fft2(x)), (F32,)),
    ("dynamic-slice", lambda x, i: (lax.dynamic_slice(x, (i, 0), (2, 4)), lax.dynamic_index_in_dim(x, i, 1)), (F32, INDEX)),
    ("dynamic-update", lambda x, i: (lax.dynamic_update_slice(x, x[:1], (i, i)), x.at[i].set(0.0)), (F32, INDEX)),
    ("gather", lambda x, i: (x[i], x[:, i], x[i, i], x.at[i].get(mode="clip"), x.at[i].get(mode="promise_in_bounds")), (F32, INDICES)),
    ("gather-fill", lambda x, i: (x.at[i].get(mode="fill"), x.at[i, i].get(mode="fill", fill_value=1.0)), (F32, INDICES)),
    ("scatter", _scattered(None), (F32, INDICES)),
    ("scatter-clip", _scattered("clip"), (F32, INDICES)),
    ("scatter-logical", lambda p, i: (p.at[i].set(True), p.at[i].apply(jnp.logical_not)), (BOOL, INDICES)),
    ("collectives", _shard_mapped(lambda a: (lax.psum(a, "x"), lax.pmax(a, ("x", "y")), lax.pmin(a, "y"), lax.all_gather(a, "y"))), (F32,)),
    ("gather-tiled", _shard_mapped(lambda a: lax.all_gather(a, "x", axis=1, tiled=True)), (F32,)),
    ("scatter-tiled", _shard_mapped(lambda a: (lax.psum_scatter(a, "x", tiled=True), lax.psum_scatter(a, "x"))), (F32,)),
    ("collectives-moving", _shard_mapped(lambda a: (lax.ppermute(a, "y", [(0, 1)]), lax.all_to_all(a, "x", 0, 1))), (F32,)),
    ("collectives-varying", _varying, (F32,)),
    ("keys", lambda k: (k[1:], k[0], k.reshape(2, 2).T, jnp.stack([k[0], k[1]]), k == k, jnp.where(k == k, k, k)), (KEYS,)),
    ("keys-wrapped", lambda k: (jax.random.key_data(k), jax.random.wrap_key_data(jax.random.key_data(k)), jax.random.clone(k)), (KEYS,)),
    ("keys-indexed", lambda k, i: (k[i], lax.dynamic_slice(k, (i[0],), (2,))), (KEYS, INDICES)),
    ("keys-updated", lambda k, i: lax.dynamic_update_slice(k, k[:1], (i[0],)), (KEYS, INDICES)),
    ("keys-split", lambda k: jax.random.bits(k[0], (3, 2)), (KEYS,)),
)  # fmt: skip


def _convolved(x: Any, window_strides: tuple[int, int] = (1, 1), **options: Any) -> Any:
    kernel = jnp.ones((3, 3, 4 // options.get("feature_group_count", 1), 8))
    return lax.conv_general_dilated(x, kernel, window_strides, "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"), **options)


CASES = {name: (f, args) for name, f, args in _functions()}


@pytest.mark.parametrize("name", CASES)
def test_a_template_gives_what_jax_lowers(name: str) -> None:
    function, args = CASES[name]
    assert difference(imported(function, args).program, lowered(function, args)) == ""


def _primitives(jaxpr: Any) -> Iterator[str]:
    for eqn in jaxpr.eqns:
        yield eqn.primitive.name
        for inner in jaxprs_in_params(eqn.params):
            yield from _primitives(inner)


NOT_MADE_BY_PUBLIC_FUNCTIONS = {
    "agreed",  # around calls in several processes
    "all_gather_invariant", "all_gather_reduced", "empty", "empty2", "eq_to", "from_edtype", "iota_2x32_shape", "le_to", "lt_to",
    "multiple_of", "pbroadcast", "pmul", "preduced", "reduced_vary_cast", "reduced_vary_cast_p", "select_and_scatter", "square", "stage",
    "to_edtype", "unreduced_psum", "unreduced_reduce_scatter", "vary_unreduced_cast", "vary_unreduced_cast_p",
}  # fmt: skip
"""Primitives that only other equations' lowering, other platforms or explicit axes make."""


def test_every_template_is_swept() -> None:
    made = {name for function, args in CASES.values() for name in _primitives(traced(function, *args).jaxpr)}
    assert set(TEMPLATES) - made - NOT_MADE_BY_PUBLIC_FUNCTIONS == set()


def test_no_primitive_has_two_templates() -> None:
    names = [name for family in FAMILIES for name in family.TEMPLATES]
    assert sorted(names) == sorted(TEMPLATES)


class _Atom:
    def __init__(self, aval: Any) -> None:
        self.aval = aval


def _template(name: str, params: dict[str, Any], inputs: list[Any], outputs: list[Any], **options: Any) -> OpsTemplate:
    aval = jax.core.ShapedArray
    made = Builder(name, params, [_Atom(aval(s, d)) for s, d in inputs], [_Atom(aval(s, d)) for s, d in outputs], **options)
    return TEMPLATES[name](made)


def _names(template: OpsTemplate) -> list[str]:
    return [op.name for op in template.ops]


F = np.dtype("float32")


def test_a_broadcast_literal_is_one_constant_of_the_full_shape() -> None:
    template = _template("add", {}, [((4, 8), F), ((), F)], [((4, 8), F)], literals=(1,))
    constant, add = template.ops
    assert (constant.name, constant.literal, str(constant.result_type)) == ("sdy.constant", 1, "float32[4,8]")
    assert (add.operands, template.outputs) == ((0, 2), (3,))


def test_a_literal_used_as_it_is_becomes_a_constant_in_front() -> None:
    template = _template("pad", {"padding_config": ((1, 1, 0),)}, [((4,), F), ((), F)], [((6,), F)], literals=(1,))
    assert [(op.name, op.operands, op.literal) for op in template.ops] == [("sdy.constant", (), 1), ("stablehlo.pad", (0, 2), -1)]


def test_a_scalar_that_is_no_literal_is_broadcast() -> None:
    template = _template("mul", {}, [((4, 8), F), ((), F)], [((4, 8), F)])
    assert _names(template) == ["stablehlo.broadcast_in_dim", "stablehlo.multiply"]


def test_an_identity_has_no_ops() -> None:
    assert _template("copy", {}, [((4,), F)], [((4,), F)]).outputs == (0,)


def test_operands_of_two_types_are_multiplied_as_they_are_on_tpu() -> None:
    params = {"dimension_numbers": (((1,), (0,)), ((), ())), "precision": None, "preferred_element_type": F}
    inputs = [((4, 8), np.dtype(jnp.bfloat16)), ((8, 2), F)]
    assert _names(_template("dot_general", params, inputs, [((4, 2), F)], platform="tpu")) == ["stablehlo.dot_general"]
    assert _names(_template("dot_general", params, inputs, [((4, 2), F)])) == ["stablehlo.convert"] * 2 + ["stablehlo.dot_general"]


def test_an_all_to_all_in_groups_of_one_is_nothing() -> None:
    params = {"axis_name": "x", "axis_index_groups": None, "split_axis": 0, "concat_axis": 0, "tiled": True}
    assert _template("all_to_all", params, [((4,), F)], [((4,), F)], axis_sizes={"x": 1}).ops == ()
    assert _names(_template("all_to_all", params, [((4,), F)], [((4,), F)], axis_sizes={"x": 2})) == ["stablehlo.all_to_all"]


def test_op_templates_start_without_a_rule() -> None:
    assert OpTemplate("stablehlo.add", (0, 1), TensorType((4,), "float32"), {}).rule_decided is False
