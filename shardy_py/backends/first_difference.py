"""The first op of a program that a sharded run computes differently from one device.

Intermediates become outputs of both programs, in portions; XLA may fuse these differently. An op whose results
differ is judged on its own: one device gets the operands that the sharded run had, and has to give the results that the sharded run gave.
So rounding that earlier ops amplified is not held against later ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np
from jax.extend.core import JaxprEqn, Literal, Var

from shardy_py.backends.compare import Comparison, compare, fetch, fetched_or_error, plain, tolerance_of
from shardy_py.backends.flat import FlatProgram, element_types, single
from shardy_py.backends.reference import LEFT_OUT, Reference
from shardy_py.dialect import TensorSharding
from shardy_py.dialect.format import format_type
from shardy_py.frontends.context import is_extended_dtype

Run = Callable[[FlatProgram, Sequence[Var]], Callable[[Sequence[Any]], Sequence[Any]]]
"""Compiles a sharded program that gives its outputs and these variables."""

PORTION = 1 << 30
"""So many bytes of intermediates are outputs of one program."""

TRIALS = 4
"""So many times operands are perturbed to see what rounding does to an op."""

AMPLE = 64.0
"""An op may differ by that many times what a perturbation of its operands in their last digit changes."""


@dataclass(frozen=True)
class FirstDifference:
    """An op whose result differs; a loop or a conditional as a whole.

    Attributes:
        alone: Whether it is wrong on the operands that it had; otherwise the operands differed within tolerance, and so it is the
            first op by which rounding has grown beyond it.
    """

    op: str
    location: str
    result: Comparison
    type: str
    operands: tuple[str, ...]
    alone: bool = True

    def __str__(self) -> str:
        times = "" if self.result.factor is None else f", {self.result.factor:.6g} times what it should be"
        how = "is wrong on the operands it had" if self.alone else "differs, on operands that differ by rounding"
        problem = "" if self.result.problem is None else f": it {self.result.problem}"
        lines = [f"{self.op} at {self.location or 'an unknown line'} {how}{times}{problem}"]
        lines.append(f"  gives    {self.type}")
        lines += [f"  operand  {operand}" for operand in self.operands]
        if self.result.problem is None:
            size = int(np.prod(self.result.shape))
            lines.append(f"  {self.result.differing} of {size} elements differ, by up to {self.result.max_abs:.3g}")
        return "\n".join([*lines, *(f"  {sample}" for sample in self.result.samples)])


def observed_bytes(flat: FlatProgram) -> int:
    """Bytes of all intermediates together."""
    return sum(_bytes(v) for i in flat.live() for v in flat.jaxpr.eqns[i].outvars if _is_observable(v))


def tolerances(flat: FlatProgram) -> list[float]:
    """The relative tolerance of each output, by the shortest float type that its value passed through."""
    inherited: dict[Any, float] = {}
    for eqn in flat.jaxpr.eqns:
        types = (tolerance_of(dtype) for dtype in element_types(eqn))
        worst = max([*types, *(inherited.get(v, 0.0) for v in eqn.invars if not isinstance(v, Literal))], default=0.0)
        inherited.update(dict.fromkeys(eqn.outvars, worst))
    own = [tolerance_of(v.aval.dtype) for v in flat.jaxpr.outvars]  # pyright: ignore[reportAttributeAccessIssue]
    return [max(t, 0.0 if isinstance(v, Literal) else inherited.get(v, 0.0)) for t, v in zip(own, flat.jaxpr.outvars)]


class OpSearch:
    """Looks for the first op that differs; `checked` ops were compared."""

    def __init__(self, reference: Reference, run: Run, rtol: float | None = None) -> None:
        self.reference = reference
        self.run = run
        self.rtol = rtol or 0.0
        self.checked = 0

    def first(self, flat: FlatProgram, inputs: Sequence[Any]) -> tuple[FirstDifference | None, FirstDifference | None]:
        """The first op that is wrong on the operands it had, and the first that differs, whatever its operands were."""
        apart = None
        for portion in _portions(flat):
            observed = _variables(flat, portion)
            count = len(flat.jaxpr.outvars)
            actual = dict(zip(observed, map(fetched_or_error, self.run(flat, observed)(inputs)[count:])))
            expected = dict(zip(observed, map(fetch, self.reference.of(flat.giving(observed))(inputs)[count:])))
            judged = [i for i in portion if not flat.jaxpr.eqns[i].effects and flat.jaxpr.eqns[i].primitive.name not in LEFT_OUT]
            self.checked += len(judged)
            differing = list[int]()
            for i in judged:
                eqn = flat.jaxpr.eqns[i]
                pairs = ((v, compare(str(i), expected[v], actual[v], rtol=self._rtol(eqn))) for v in eqn.outvars if v in actual)
                if (bad := next(((v, c) for v, c in pairs if not c.agrees), None)) is not None:
                    differing.append(i)
                    apart = apart or _described(flat, eqn, i, *bad, alone=False)
            values = {**actual, **dict(zip(flat.jaxpr.invars, inputs)), **dict(zip(flat.jaxpr.constvars, map(fetch, flat.closed.consts)))}
            wrong = self._wrong(flat, differing, values)
            if wrong is not None:
                return wrong, apart
        return None, apart

    def _wrong(self, flat: FlatProgram, indices: Sequence[int], values: dict[Any, Any]) -> FirstDifference | None:
        """The first of some ops that gives something else on the operands it had."""
        alone = {i: single(flat.jaxpr.eqns[i], flat.jaxpr) for i in indices}
        operands = {i: [values[v] for v in names] for i, (_, names) in alone.items()}
        whole = [i for i in indices if not any(isinstance(x, Exception) for x in operands[i])]
        results = self.reference.jitted([(alone[i][0], ()) for i in whole])([operands[i] for i in whole]) if whole else ()
        for i, expected in zip(whole, results):
            eqn = flat.jaxpr.eqns[i]
            bad = self._differing(eqn, alone[i][0], operands[i], [fetch(x) for x in expected], values)
            if bad is not None:
                return _described(flat, eqn, i, *bad)
        return None

    def _differing(
        self, eqn: JaxprEqn, alone: Any, operands: list[Any], expected: list[Any], values: dict[Any, Any]
    ) -> tuple[Var, Comparison] | None:
        rtol = self._rtol(eqn)
        observed = [(n, v, values[v]) for n, v in enumerate(eqn.outvars) if v in values]
        if all(compare("", expected[n], actual, rtol=rtol).agrees for n, _, actual in observed):
            return None
        allowed = self._allowances(eqn, alone, operands, expected, rtol)
        for n, v, actual in observed:
            comparison = compare(f"result {n}", expected[n], actual, rtol=rtol, allowance=allowed[n])
            if not comparison.agrees:
                return v, comparison
        return None

    def _rtol(self, eqn: JaxprEqn) -> float:
        return max(self.rtol, *map(tolerance_of, element_types(eqn)), 0.0)

    def _allowances(self, eqn: JaxprEqn, alone: Any, operands: list[Any], expected: list[Any], rtol: float) -> list[Any]:
        """The change by rounding that each result is allowed; for sums of products, relative to the sum of the terms' sizes."""
        call = self.reference.jitted([(alone, ())])
        if eqn.primitive.name in SUMS:
            sizes = [x if _is_exact(x) else np.abs(x) for x in operands]
            return [rtol * np.abs(plain(fetch(y))) for y in call([sizes])[0]]
        return [AMPLE * d for d in spread(lambda xs: call([xs])[0], operands, expected)]


def spread(call: Callable[[list[Any]], Sequence[Any]], operands: Sequence[Any], expected: Sequence[Any]) -> list[np.ndarray]:
    """The change of each element of the results under changes of operands in their last digit; at least the array's mean."""
    generator = np.random.default_rng(0)
    most = [np.zeros(plain(y).shape) for y in expected]
    for _ in range(TRIALS):
        changed = [_perturbed(x, generator) for x in operands]
        for n, y in enumerate(call(changed)):
            with np.errstate(all="ignore"):
                difference = np.abs(_real(plain(fetch(y))) - _real(plain(expected[n])))
            most[n] = np.maximum(most[n], np.nan_to_num(difference, nan=0.0, posinf=0.0))
    return [np.maximum(d, d.mean()) if d.size else d for d in most]


def _real(x: np.ndarray) -> np.ndarray:
    return x if x.dtype.kind in "fc" else x.astype(np.float64)


def _perturbed(x: Any, generator: np.random.Generator) -> Any:
    if _is_exact(x):
        return x
    eps = float(jax.numpy.finfo(x.dtype).eps)
    signs = generator.integers(-1, 2, x.shape)
    return np.asarray(plain(x) * (1 + eps * signs)).astype(x.dtype)


def _is_exact(x: Any) -> bool:
    return isinstance(x, jax.Array) or tolerance_of(x.dtype) == 0.0


def _is_observable(v: Any) -> bool:
    return hasattr(v.aval, "dtype") and hasattr(v.aval, "shape") and 0 not in v.aval.shape


def _bytes(v: Any) -> int:
    size = 8 if is_extended_dtype(v.aval.dtype) else v.aval.dtype.itemsize
    return size * int(np.prod(v.aval.shape, dtype=np.int64))


def _portions(flat: FlatProgram) -> Iterator[list[int]]:
    """The live equations in order, in portions whose values are not too large together."""
    portion: list[int] = []
    size = 0
    for i in flat.live():
        own = sum(_bytes(v) for v in flat.jaxpr.eqns[i].outvars if _is_observable(v))
        if portion and size + own > PORTION:
            yield portion
            portion, size = [], 0
        portion.append(i)
        size += own
    if portion:
        yield portion


def _variables(flat: FlatProgram, portion: Sequence[int]) -> list[Var]:
    """The variables needed to judge equations: used results, and operands."""
    arguments = {*flat.jaxpr.invars, *flat.jaxpr.constvars}
    used = {v for eqn in flat.jaxpr.eqns for v in eqn.invars if not isinstance(v, Literal)}
    used.update(v for v in flat.jaxpr.outvars if not isinstance(v, Literal))
    observed: dict[Any, None] = {}
    for i in portion:
        eqn = flat.jaxpr.eqns[i]
        observed.update(dict.fromkeys(v for v in eqn.invars if not isinstance(v, Literal) and v not in arguments))
        observed.update(dict.fromkeys(v for v in eqn.outvars if v in used and _is_observable(v)))
    return list(observed)


def _described(flat: FlatProgram, eqn: JaxprEqn, index: int, v: Any, comparison: Comparison, *, alone: bool = True) -> FirstDifference:
    operands = tuple(_typed(x, flat.sharding(x)) for x in eqn.invars)
    located = replace(comparison, path=f"{eqn.primitive.name} at {flat.locations[index]}")
    return FirstDifference(eqn.primitive.name, flat.locations[index], located, _typed(v, flat.sharding(v)), operands, alone)


def _typed(v: Any, sharding: TensorSharding | None) -> str:
    shape = v.aval.shape
    cut = sharding.with_dims(sharding.dims[: len(shape)]) if sharding is not None and sharding.rank > len(shape) else sharding
    return format_type(str(v.aval.dtype), shape, cut)


SUMS = frozenset(
    {
        "add",
        "add_any",
        "conv_general_dilated",
        "cumsum",
        "dot_general",
        "fft",
        "mul",
        "ragged_dot_general",
        "reduce_sum",
        "reduce_window_sum",
        "scatter-add",
        "select_and_scatter_add",
    }
)
"""Sums of products: rounding changes them by a part of what they are of the operands' sizes."""
