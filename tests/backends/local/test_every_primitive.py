"""Every primitive has a local form, or a handler, or a reason to run whole; every form computes what its equation does."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np
import pytest
from jax import lax
from jax import numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jax.experimental import sparse
from jax.extend.core import primitives
from jax.lax import linalg
from jax.sharding import AxisType, PartitionSpec

import shardy_py as sp
from shardy_py.backends.local.regions import handlers
from shardy_py.backends.local.table import HANDLERS, LOCAL_RULES, RUNS_WHOLE
from shardy_py.frontends.readers.opaque import REASONS
from tests.backends.local.forced import choices, equation_of, run_forced, same
from tests.primitive_kinds import READ

Case = tuple[Callable[..., Any], tuple[Any, ...]]

RNG = np.random.default_rng(0)
X = jnp.asarray(RNG.uniform(0.1, 0.9, (5, 6)), jnp.float32)
Y = jnp.asarray(RNG.uniform(0.1, 0.9, (5, 6)), jnp.float32)
BIG = jnp.asarray(RNG.normal(size=(4, 8, 6)), jnp.float32)
INTS = jnp.asarray(RNG.integers(1, 100, (5, 6)), jnp.int32)
FEW = jnp.asarray(RNG.integers(0, 5, (5, 6)), jnp.int32)
BITS = X > 0.5
COMPLEX = X + 1j * Y
MATRICES = jnp.asarray(RNG.normal(size=(5, 3, 3)), jnp.float32)
POSITIVE = jnp.einsum("aij,akj->aik", MATRICES, MATRICES) + jnp.eye(3)
VECTORS = MATRICES[..., 0]
IMAGES = jnp.asarray(RNG.normal(size=(4, 8, 8, 3)), jnp.float32)
KERNEL = jnp.asarray(RNG.normal(size=(3, 3, 3, 4)), jnp.float32)
KEY = jax.random.key(0)
KEYS = jax.random.split(KEY, 6)
WORDS = jax.random.bits(KEY, (5, 6))
ROWS = jnp.array([0, 3, 4, 3])


NAMED = {getattr(primitives, at).name: getattr(primitives, at) for at in dir(primitives) if at.endswith("_p")}


def one(name: str, *args: Any, **params: Any) -> Case:
    """A primitive on its own."""
    primitive = NAMED[name]
    return (lambda *xs: primitive.bind(*xs, **params)), args


def function(name: str, *args: Any, **params: Any) -> Case:
    """A function of `jax.lax` of the primitive's name."""
    f = getattr(lax, name)
    return (lambda *xs: f(*xs, **params)), args


UNARY = """
    abs acos asin asinh atan atanh bessel_i0e bessel_i1e cbrt ceil cos cosh digamma erf erf_inv erfc exp exp2 expm1 floor is_finite lgamma
    log log1p logistic neg round rsqrt sign sin sinh sqrt square tan tanh
"""
BINARY = "add atan2 div eq ge gt igamma igamma_grad_a igammac le lt max min mul ne nextafter pow rem sub"

POINTWISE: dict[str, Case] = {
    **{name: function(name, X) for name in UNARY.split()},
    **{name: function(name, X, Y) for name in BINARY.split()},
    **{name: function(f"bitwise_{name}", INTS, FEW) for name in ("and", "or", "xor")},
    **{name: function(name, INTS, FEW) for name in ("shift_left", "shift_right_arithmetic", "shift_right_logical")},
    **{name: function(name, INTS) for name in ("clz", "population_count")},
    **{name: function(name, COMPLEX) for name in ("real", "imag", "conj")},
    **{name: one(name, X, Y) for name in ("eq_to", "le_to", "lt_to", "add_any")},
    "acosh": function("acosh", X + 1),
    "clamp": function("clamp", jnp.float32(0.3), X, jnp.float32(0.6)),
    "complex": function("complex", X, Y),
    "convert_element_type": ((lambda x: x.astype(jnp.bfloat16)), (X,)),
    "copy": one("copy", X),
    "integer_pow": function("integer_pow", X, y=3),
    "name": ((lambda x: checkpoint_name(x, "x")), (X,)),
    "not": function("bitwise_not", INTS),
    "polygamma": function("polygamma", FEW.astype(jnp.float32), X),
    "random_clone": (jax.random.clone, (KEYS,)),
    "reduce_precision": function("reduce_precision", X, exponent_bits=5, mantissa_bits=4),
    "regularized_incomplete_beta": function("betainc", X, Y, X),
    "select_n": function("select_n", BITS, X, Y),
    "threefry2x32": (lambda x: primitives.threefry2x32_p.bind(jnp.uint32(1), jnp.uint32(2), x, x), (WORDS,)),
    "zeta": function("zeta", X + 2, Y + 1),
}

OF_LATER_VERSIONS: dict[str, Callable[[], Case]] = {
    "log2": lambda: one("log2", X, accuracy=None),
    "one_minus_square": lambda: one("one_minus_square", X),
    "polynomial": lambda: function("polynomial", X, coeffs=(1.0, 2.0, 3.0)),
}
POINTWISE |= {name: case() for name, case in OF_LATER_VERSIONS.items() if f"{name}_p" in dir(primitives)}

REDUCTIONS: dict[str, Case] = {
    **{f"reduce_{name}": ((lambda x, f=f: f(x, axis=1)), (BIG,)) for name, f in (("sum", jnp.sum), ("max", jnp.max), ("min", jnp.min))},
    "reduce_prod": ((lambda x: jnp.prod(x, axis=0)), (X,)),
    "reduce_and": ((lambda x: jnp.all(x, axis=0)), (BITS,)),
    "reduce_or": ((lambda x: jnp.any(x, axis=1)), (BITS,)),
    "reduce_xor": ((lambda x: lax.reduce(x, 0, lax.bitwise_xor, (0,))), (INTS,)),
    "reduce": ((lambda x: lax.reduce((x, x), (0.0, 1.0), lambda a, b: (a[0] + b[0], a[1] * b[1]), (1,))), (X,)),
    "argmax": ((lambda x: jnp.argmax(x, 1)), (BIG,)),
    "argmin": ((lambda x: jnp.argmin(x, 1)), (BIG,)),
    **{name: function(name, BIG, axis=1) for name in ("cumsum", "cumprod", "cummax", "cummin", "cumlogsumexp")},
    "sort": ((lambda x: lax.sort(x, dimension=1)), (BIG,)),
    "top_k": ((lambda x: lax.top_k(x, 2, axis=1)), (BIG,)),
    "approx_top_k": ((lambda x: lax.approx_max_k(x, 2, reduction_dimension=1)), (BIG,)),
    "dot_general": ((lambda x, y: jnp.einsum("abc,adc->abd", x, y)), (BIG, BIG)),
    "ragged_dot_general": (lax.ragged_dot, (X, BIG[:3, :6], jnp.array([1, 2, 2]))),
    "conv_general_dilated": (
        lambda x, k: lax.conv_general_dilated(x, k, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")),
        (IMAGES, KERNEL),
    ),
    "reduce_window": ((lambda x: lax.reduce_window(x, 0.0, lambda a, b: a + b - a * b, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")), (IMAGES,)),
    "reduce_window_max": ((lambda x: lax.reduce_window(x, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "SAME")), (IMAGES,)),
    "reduce_window_min": ((lambda x: lax.reduce_window(x, jnp.inf, lax.min, (1, 2, 2, 1), (1, 2, 2, 1), "SAME")), (IMAGES,)),
    "reduce_window_sum": ((lambda x: lax.reduce_window(x, 0.0, lax.add, (1, 3, 3, 1), (1, 1, 1, 1), "SAME")), (IMAGES,)),
    "select_and_scatter_add": (
        jax.grad(lambda x: lax.reduce_window(x, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID").sum()),
        (IMAGES,),
    ),
    "select_and_gather_add": (
        lambda x: jax.jvp(lambda x: lax.reduce_window(x, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID"), (x,), (x,)),
        (IMAGES,),
    ),
}

SHAPES: dict[str, Case] = {
    "bitcast_convert_type": ((lambda x: lax.bitcast_convert_type(x, jnp.uint8)), (X,)),
    "broadcast_in_dim": ((lambda x: jnp.broadcast_to(x[:, None], (5, 4, 6))), (X,)),
    "concatenate": ((lambda x, y: lax.concatenate([x, y, x], 1)), (X, Y)),
    "dynamic_slice": ((lambda x, i: lax.dynamic_slice_in_dim(x, i, 4, 1)), (BIG, jnp.int32(3))),
    "dynamic_update_slice": ((lambda x, i: lax.dynamic_update_slice_in_dim(x, x[:, :2], i, 1)), (BIG, jnp.int32(5))),
    "fft": (jnp.fft.rfft, (BIG,)),
    "gather": ((lambda x, i: x[i]), (X, ROWS)),
    "iota": ((lambda: lax.broadcasted_iota(jnp.int32, (5, 6), 1)), ()),
    "iota_2x32_shape": ((lambda k: jax.random.key_impl(KEY) and _threefry(k)), (jax.random.key_data(KEY),)),
    "pad": ((lambda x: lax.pad(x, 0.0, ((1, 0, 0), (2, 1, 0), (0, 0, 0)))), (BIG,)),
    "reshape": ((lambda x: x.reshape(32, 6)), (BIG,)),
    "rev": ((lambda x: lax.rev(x, (1,))), (BIG,)),
    "slice": ((lambda x: lax.slice(x, (0, 2, 0), (4, 8, 6), (1, 2, 1))), (BIG,)),
    "split": ((lambda x: lax.split(x, (2, 4, 2), 1)), (BIG,)),
    "squeeze": ((lambda x: lax.squeeze(x, (1,))), (BIG[:, :1],)),
    "stack": ((lambda x, y: jnp.stack([x, y], 1)), (X, Y)),
    "tile": ((lambda x: jnp.tile(x, (2, 1))), (X,)),
    "transpose": ((lambda x: x.transpose(1, 2, 0)), (BIG,)),
    "unstack": ((lambda x: jnp.unstack(x, axis=1)), (X,)),
    "scatter": ((lambda x, i, u: x.at[i].set(u)), (X, ROWS, Y[:4])),
    **{
        f"scatter-{name}": ((lambda x, i, u, m=method: getattr(x.at[i], m)(u)), (INTS, ROWS, FEW[:4]))
        for name, method in (("add", "add"), ("mul", "multiply"), ("min", "min"), ("max", "max"), ("sub", "subtract"))
    },
    "random_bits": (jax.vmap(lambda k: jax.random.bits(k, (5,))), (KEYS[:3],)),
    "random_fold_in": (jax.vmap(jax.random.fold_in), (KEYS, jnp.arange(6))),
    "random_gamma": (jax.vmap(lambda k: jax.random.gamma(k, 2.0)), (KEYS,)),
    "random_seed": (jax.vmap(jax.random.key), (jnp.arange(6),)),
    "random_split": (jax.vmap(lambda k: jax.random.split(k, 2)), (KEYS,)),
    "random_unwrap": (jax.random.key_data, (KEYS,)),
    "random_wrap": (jax.random.wrap_key_data, (jax.random.key_data(KEYS),)),
}

MATRIX: dict[str, Case] = {
    "cholesky": (linalg.cholesky, (POSITIVE,)),
    "eig": (linalg.eig, (MATRICES,)),
    "eigh": (linalg.eigh, (POSITIVE,)),
    "hessenberg": (linalg.hessenberg, (MATRICES,)),
    "householder_product": (linalg.householder_product, (MATRICES, VECTORS)),
    "lu": (linalg.lu, (MATRICES,)),
    "lu_pivots_to_permutation": ((lambda p: linalg.lu_pivots_to_permutation(p, 3)), (jnp.full((5, 3), 2),)),
    "qr": (linalg.qr, (MATRICES,)),
    "schur": (linalg.schur, (MATRICES,)),
    "svd": (linalg.svd, (MATRICES,)),
    "symmetric_product": (linalg.symmetric_product, (MATRICES, POSITIVE)),
    "triangular_solve": ((lambda a, b: linalg.triangular_solve(a, b, left_side=True)), (POSITIVE, MATRICES)),
    "tridiagonal": (linalg.tridiagonal, (POSITIVE,)),
    "tridiagonal_solve": ((lambda d, b: linalg.tridiagonal_solve(d, d + 3, d, b)), (VECTORS, MATRICES)),
}

INSIDE_OTHERS: Mapping[str, str] = {
    "agreed": "stands around calls in several processes",
    "cholesky_update": "takes no batch",
    "copy_p": "is what `copy` was called once",
    "empty": "holds any numbers",
    "geqp3": "stands in `qr` where it is lowered",
    "geqrf": "stands in `qr` where it is lowered",
    "mulhi": "stands in generators of other numbers than the default ones",
    "multiple_of": "is no primitive of every version",
    "ormqr": "stands in `qr` where it is lowered",
    "philox2x32": "stands in generators of other numbers than the default ones",
    "philox4x32": "stands in generators of other numbers than the default ones",
    "reciprocal": "is no primitive of every version",
    "rng_uniform": "draws other numbers every time",
    "stop_gradient": "is no primitive of every version",
    "threefry4x32": "stands in generators of other numbers than the default ones",
    "windows": "stands for slices, pads and concatenations",
    "xla_metadata_value": "holds a value as it is",
}
"""Primitives with forms that are not run here, and why."""

GROUPS = {"pointwise": POINTWISE, "reductions": REDUCTIONS, "shapes": SHAPES, "matrices": MATRIX}


def _threefry(key: Any) -> Any:
    return jax.extend.random.threefry_prng_impl.random_bits(key, 32, (5, 6))


def test_every_primitive_has_its_place() -> None:
    known = {*LOCAL_RULES, *HANDLERS, *RUNS_WHOLE, *handlers(tuple)}
    lost = sorted(READ - known)
    assert not lost, f"give {lost} a form, a handler, or a reason in RUNS_WHOLE"
    assert not set(RUNS_WHOLE) & set(handlers(tuple))
    assert not [name for name in (*LOCAL_RULES, *RUNS_WHOLE) if name not in {*READ, *REASONS, *INSIDE_OTHERS}]


def test_every_form_is_run() -> None:
    run = {name for group in GROUPS.values() for name in group}
    assert sorted(set(LOCAL_RULES) - run - set(INSIDE_OTHERS) - set(OF_LATER_VERSIONS)) == []
    assert sorted(run - set(LOCAL_RULES)) == []


@pytest.mark.slow
@pytest.mark.parametrize("group", GROUPS)
def test_forms_compute_what_equations_do(group: str) -> None:
    """Each under one way of sharding its factors, all in one compilation."""
    tried = []
    for seed, (name, (f, args)) in enumerate(GROUPS[group].items()):
        equation, operands = equation_of(f, args, name)
        local_rule = LOCAL_RULES[name](equation)
        assert local_rule is not None, f"{name} has no form"
        tried_axes = choices(local_rule, 3, seed)
        assert tried_axes, f"nothing of {name} may be cut"
        tried.append((equation, local_rule, [random.Random(seed).choice(tried_axes)], operands))

    def wanted(given: Any) -> list[Any]:
        out = []
        for (equation, *_), xs in zip(tried, given, strict=True):
            made = equation.eqn.primitive.bind(*xs, **equation.eqn.primitive.get_bind_params(equation.params))
            out.append(made if equation.eqn.primitive.multiple_results else [made])
        return out

    def forced(given: Any) -> list[Any]:
        return [
            run_forced(equation, local_rule, tried_axes, xs) for (equation, local_rule, tried_axes, _), xs in zip(tried, given, strict=True)
        ]

    given = [list(operands) for *_, operands in tried]
    for (equation, _, tried_axes, _), made, want in zip(tried, jax.jit(forced)(given), jax.jit(wanted)(given), strict=True):
        for axes, got in zip(tried_axes, made, strict=True):
            for g, w in zip(got, want, strict=True):
                inexact = jnp.issubdtype(w.dtype, jnp.inexact)
                same(g, w, 2e-4 if inexact else 0.0, f"{equation.name} of {equation.shapes} under {axes}")


def test_what_has_no_form_runs_whole_and_says_so() -> None:
    mesh = jax.make_mesh((2, 4), ("x", "y"), axis_types=(AxisType.Auto,) * 2)
    state = jnp.arange(4, dtype=jnp.uint32)
    dense = jnp.asarray(RNG.integers(0, 2, (8, 16)), jnp.float32)

    def drawn(x: Any, state: Any) -> Any:
        return x + lax.rng_bit_generator(state, (8, 16))[1].astype(jnp.float32)

    def entries(x: Any, state: Any) -> Any:
        return sparse.BCOO.fromdense(x, nse=64) @ jnp.ones((16, 3))

    for f, expected in ((drawn, "rng_bit_generator"), (entries, "bcoo_fromdense")):
        step = sp.auto_shard(f, mesh=mesh, in_shardings=(PartitionSpec("x", "y"), PartitionSpec("x")), lowering="shard_map")
        np.testing.assert_allclose(step(dense, state), jax.jit(f)(dense, state), rtol=1e-6)
        planned = step.trace(dense, state)._planned
        assert planned.partitioning is not None
        said = [finding.message for finding in planned.partitioning.partitioned(planned.plan).findings]
        assert any(text.startswith(expected) for text in said), said
