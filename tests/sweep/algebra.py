"""Configurations of decompositions, solvers, Fourier transforms and random numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax import lax
from jax import numpy as jnp
from jax.lax import linalg

from tests.sweep.draw import Case, Draw, Generator, Shape

TYPES = ("float32", "float32", "float64", "complex64")
REAL = ("float32", "float32", "float64")


def _batch(draw: Draw) -> Shape:
    return draw.shape(0, 2, empty=False)


def _matrices(draw: Draw, types: tuple[str, ...] = TYPES, *, square: bool = True) -> Any:
    n = draw.one_of((2, 3, 4))
    m = n if square else draw.one_of((2, 3, 4, 5))
    matrices = draw.reals((*_batch(draw), m, n), draw.dtype(types))
    matrices[..., range(min(n, m)), range(min(n, m))] += 4 * np.arange(1, min(n, m) + 1)
    return matrices


def _positive(draw: Draw, types: tuple[str, ...] = TYPES) -> Any:
    m = _matrices(draw, types)
    return (np.einsum("...ij,...kj->...ik", m, m.conj()) + 2 * np.eye(m.shape[-1])).astype(m.dtype)


def _of_matrices(function: Callable[..., Any], types: tuple[str, ...] = TYPES, *, square: bool = True) -> Generator:
    return lambda draw: Case(function, (_matrices(draw, types, square=square),), fixed=(0,))


def _of_positive(function: Callable[..., Any], *, smooth: bool = False) -> Generator:
    def generate(draw: Draw) -> Case:
        a = _positive(draw)
        return Case(function, (a,), (0,) if smooth and a.dtype.kind == "f" else (), (0,))

    return generate


def _triangular_solve(draw: Draw) -> Case:
    a, left = _matrices(draw), draw.chance(50)
    n, m = a.shape[-1], draw.size()
    b = draw.array((*a.shape[:-2], n, m) if left else (*a.shape[:-2], m, n), a.dtype)
    options = {"left_side": left, "lower": draw.chance(50), "transpose_a": draw.chance(40), "unit_diagonal": draw.chance(20)}
    return Case(lambda a, b: linalg.triangular_solve(a, b, **options), (a, b), (0, 1) if a.dtype.kind == "f" else (), (0,))


def _tridiagonal_solve(draw: Draw) -> Case:
    batch, n, m = _batch(draw), draw.one_of((3, 4, 8)), draw.size()
    dtype = draw.dtype(REAL)
    low, up = (draw.reals((*batch, n), dtype, -1, 1) for _ in range(2))
    low[..., 0], up[..., -1] = 0, 0
    return Case(
        linalg.tridiagonal_solve, (low, draw.reals((*batch, n), dtype, 4, 5), up, draw.array((*batch, n, m), dtype)), fixed=(0, 1, 2)
    )


def _householder(draw: Draw) -> Case:
    a = _matrices(draw, REAL)
    return Case(linalg.householder_product, (a, draw.reals(a.shape[:-1], a.dtype, 0.1, 0.9)), fixed=(0,))


def _symmetric_product(draw: Draw) -> Case:
    a = _matrices(draw, REAL, square=False)
    c = draw.array((*a.shape[:-1], a.shape[-2]), a.dtype)
    return Case(linalg.symmetric_product, (a, (c + np.swapaxes(c, -1, -2)).astype(a.dtype)), fixed=(1,))


def _pivots(draw: Draw) -> Case:
    batch, n = _batch(draw), draw.one_of((3, 4, 6))
    pivots = np.stack([draw.array(batch, "int32", i, n - 1) for i in range(n)], -1)
    return Case(lambda p: linalg.lu_pivots_to_permutation(p, n), (pivots,), fixed=(0,))


def _solve(draw: Draw) -> Case:
    a = _matrices(draw, REAL)
    b = draw.array((*a.shape[:-1], draw.size()), a.dtype)
    return Case(jnp.linalg.solve, (a, b), (0, 1), (0,))


def _fft(draw: Draw) -> Case:
    kind = draw.one_of(("fft", "ifft", "rfft", "irfft"))
    shape = draw.shape(1, 3, at_least=2, empty=False)
    count = draw.integer(1, min(2, len(shape)))
    dtype = draw.dtype(("float32", "float64") if kind == "rfft" else ("complex64", "complex128"))
    lengths = list(shape[-count:])
    if kind == "irfft":
        lengths[-1] = 2 * (shape[-1] - 1) + draw.integer(0, 1)
    smooth = (0,) if kind == "rfft" else ()
    return Case(lambda x: lax.fft(x, kind, tuple(lengths)), (draw.array(shape, dtype),), smooth)


def _jnp_fft(draw: Draw) -> Case:
    shape = draw.shape(1, 3, at_least=2, empty=False)
    axis, n = draw.integer(0, len(shape) - 1), draw.one_of((None, draw.size(2)))
    return Case(lambda x: jnp.fft.fft(x, n, axis), (draw.array(shape, "float32"),))


def _keys(draw: Draw) -> Any:
    count = draw.shape(0, 2, empty=False)
    impl = draw.one_of(("threefry2x32", "threefry2x32", "rbg"))
    return jax.random.key_data(jax.random.split(jax.random.key(draw.integer(0, 99), impl=impl), count)), impl


def _of_keys(function: Callable[[Draw], Callable[[Any], Any]], *, any_kind: bool = True) -> Generator:
    """A function of one key, over an array of keys given as words."""

    def generate(draw: Draw) -> Case:
        words, impl = _keys(draw)
        if not any_kind and impl != "threefry2x32":
            words, impl = words[..., :2], "threefry2x32"
        inner = function(draw)

        def outer(words: Any) -> Any:
            keys = jax.random.wrap_key_data(words, impl=impl)
            for _ in keys.shape:
                pass
            over = inner
            for _ in range(keys.ndim):
                over = jax.vmap(over)
            return over(keys)

        return Case(outer, (np.asarray(words),), fixed=(0,))

    return generate


def _bits(draw: Draw) -> Callable[[Any], Any]:
    shape, dtype = draw.shape(0, 2), draw.one_of((jnp.uint32, jnp.uint8, jnp.uint16))
    return lambda k: jax.random.bits(k, shape, dtype)


def _drawn(draw: Draw) -> Callable[[Any], Any]:
    shape = draw.shape(1, 2, empty=False)
    return draw.one_of((
        lambda k: jax.random.normal(k, shape), lambda k: jax.random.uniform(k, shape), lambda k: jax.random.randint(k, shape, 0, 9),
        lambda k: jax.random.bernoulli(k, 0.5, shape), lambda k: jax.random.permutation(k, shape[0]),
        lambda k: jax.random.categorical(k, jnp.zeros(shape)), lambda k: jax.random.gumbel(k, shape),
    ))  # fmt: skip


def _whole_bits(draw: Draw) -> Case:
    """Bits of one key that are wanted cut."""
    shape, seed, dtype = draw.shape(), draw.integer(0, 99), draw.one_of((jnp.uint32, jnp.uint8, jnp.uint16))
    factor = draw.array(shape, "float32", 1, 3)
    return Case(lambda x: jax.random.bits(jax.random.key(seed), shape, dtype).astype(jnp.float32) * x, (factor,), (0,))


GENERATORS: dict[str, Generator] = {
    "cholesky": _of_positive(linalg.cholesky, smooth=True),
    "eigh": _of_positive(linalg.eigh),
    "tridiagonal": _of_positive(linalg.tridiagonal),
    "eig": _of_matrices(linalg.eig),
    "hessenberg": _of_matrices(linalg.hessenberg),
    "lu": _of_matrices(linalg.lu, square=False),
    "qr": _of_matrices(lambda x: linalg.qr(x, full_matrices=False), square=False),
    "schur": _of_matrices(linalg.schur),
    "svd": _of_matrices(lambda x: linalg.svd(x, full_matrices=False), square=False),
    "householder_product": _householder,
    "symmetric_product": _symmetric_product,
    "triangular_solve": _triangular_solve,
    "tridiagonal_solve": _tridiagonal_solve,
    "lu_pivots_to_permutation": _pivots,
    "custom_linear_solve": _solve,
    "fft": _fft,
    "fft/along one": _jnp_fft,
    "random_bits": _of_keys(_bits),
    "random_bits/of one key": _whole_bits,
    "random_bits/distributions": _of_keys(_drawn),
    "random_split": _of_keys(lambda draw: (lambda n: lambda k: jax.random.key_data(jax.random.split(k, n)))(draw.integer(1, 8))),
    "random_fold_in": _of_keys(lambda draw: (lambda n: lambda k: jax.random.key_data(jax.random.fold_in(k, n)))(draw.integer(0, 9))),
    "random_unwrap": _of_keys(lambda draw: jax.random.key_data),
    "random_clone": _of_keys(lambda draw: lambda k: jax.random.key_data(jax.random.clone(k))),
    "random_gamma": _of_keys(lambda draw: (lambda s: lambda k: jax.random.gamma(k, 2.0, s))(draw.shape(0, 1)), any_kind=False),
    "random_seed": lambda draw: Case(
        lambda s: jax.random.key_data(jax.vmap(jax.random.key)(s)), (draw.array((draw.size(),), "int32", 0, 99),)
    ),
}
