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
from shardy_py.backends.flat import FlatProgram, element_types, flatten, single
from shardy_py.backends.reference import LEFT_OUT, Reference
from shardy_py.backends.rewriting import scopes_of
from shardy_py.dialect import TensorSharding
from shardy_py.dialect.format import format_type
from shardy_py.frontends.context import is_extended_dtype
from shardy_py.frontends.jaxpr import Scope
from shardy_py.frontends.jaxprs import bodies
from shardy_py.frontends.loops import scan_counts

Run = Callable[[FlatProgram, Sequence[Var]], Callable[[Sequence[Any]], Sequence[Any]]]
"""Compiles a sharded program that gives its outputs and these variables."""

PORTION = 1 << 30
"""So many bytes of intermediates are outputs of one program."""

TRIPS = 4
"""So many trips of a loop are looked into."""

TRIALS = 4
"""So many times operands are perturbed to see what rounding does to an op."""

AMPLE = 64.0
"""An op may differ by that many times what a perturbation of its operands in their last digit changes."""


@dataclass(frozen=True)
class FirstDifference:
    """An op whose result differs.

    Attributes:
        alone: Whether it is wrong on the operands that it had; otherwise the operands differed within tolerance, and so it is the
            first op by which rounding has grown beyond it.
    """

    op: str
    location: str
    result: Comparison
    type: str
    operands: tuple[str, ...]
    trail: tuple[str, ...] = ()
    alone: bool = True

    def __str__(self) -> str:
        inside = "".join(f" in {step}" for step in self.trail)
        times = "" if self.result.factor is None else f", {self.result.factor:.6g} times what it should be"
        how = "is wrong on the operands it had" if self.alone else "differs, on operands that differ by rounding"
        problem = "" if self.result.problem is None else f": it {self.result.problem}"
        lines = [f"{self.op} at {self.location or 'an unknown line'}{inside} {how}{times}{problem}"]
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
    """The relative tolerance of each output: that of the shortest float type its value passed through."""
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
        self._compiled: dict[tuple[Any, ...], Any] = {}

    def first(self, flat: FlatProgram, inputs: Sequence[Any]) -> tuple[FirstDifference | None, FirstDifference | None]:
        """The first op that is wrong on the operands it had, and the first that differs, whatever its operands were."""
        return self._walk(flat, inputs, ())[:2]

    def _walk(
        self, flat: FlatProgram, inputs: Sequence[Any], trail: tuple[str, ...]
    ) -> tuple[FirstDifference | None, FirstDifference | None, list[Any]]:
        outs, apart = list[Any](), None
        for portion in _portions(flat):
            outs, actual, expected = self._values(flat, _variables(flat, portion), inputs)
            judged = [i for i in portion if not flat.jaxpr.eqns[i].effects and flat.jaxpr.eqns[i].primitive.name not in LEFT_OUT]
            self.checked += len(judged)
            differing = list[int]()
            for i in judged:
                eqn = flat.jaxpr.eqns[i]
                pairs = ((v, compare(str(i), expected[v], actual[v], rtol=self._rtol(eqn))) for v in eqn.outvars if v in actual)
                if (bad := next(((v, c) for v, c in pairs if not c.agrees), None)) is not None:
                    differing.append(i)
                    apart = apart or _described(flat, eqn, i, *bad, trail, alone=False)
            values = {**actual, **dict(zip(flat.jaxpr.invars, inputs)), **dict(zip(flat.jaxpr.constvars, map(fetch, flat.closed.consts)))}
            wrong = self._wrong(flat, differing, values, trail)
            if wrong is not None:
                return wrong, apart, outs
        return None, apart, outs

    def _values(
        self, flat: FlatProgram, observed: Sequence[Var], inputs: Sequence[Any]
    ) -> tuple[list[Any], dict[Any, Any], dict[Any, Any]]:
        """The outputs of the sharded run, and what both runs give for variables."""
        key = (id(flat.scope), tuple(observed))
        if key not in self._compiled:
            self._compiled[key] = flat, self.run(flat, observed), self.reference.of(flat.giving(observed))
        _, run, unsharded = self._compiled[key]
        results, count = [fetched_or_error(x) for x in run(inputs)], len(flat.jaxpr.outvars)
        expected = map(fetch, unsharded(inputs)[count:])
        return results[:count], dict(zip(observed, results[count:])), dict(zip(observed, expected))

    def _wrong(self, flat: FlatProgram, indices: Sequence[int], values: dict[Any, Any], trail: tuple[str, ...]) -> FirstDifference | None:
        """The first of some ops that gives something else on the operands it had."""
        alone = {i: single(flat.jaxpr.eqns[i], flat.jaxpr) for i in indices}
        operands = {i: [values[v] for v in names] for i, (_, names) in alone.items()}
        whole = [i for i in indices if not any(isinstance(x, Exception) for x in operands[i])]
        results = self.reference.jitted([(alone[i][0], ()) for i in whole])([operands[i] for i in whole]) if whole else ()
        for i, expected in zip(whole, results):
            eqn = flat.jaxpr.eqns[i]
            bad = self._differing(eqn, alone[i][0], operands[i], [fetch(x) for x in expected], values)
            if bad is not None:
                return self._inside(flat, i, values, trail) or _described(flat, eqn, i, *bad, trail)
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

    def _inside(self, flat: FlatProgram, index: int, env: dict[Any, Any], trail: tuple[str, ...]) -> FirstDifference | None:
        """Looks into a loop or a conditional: runs its body by itself, trip by trip."""
        eqn = flat.jaxpr.eqns[index]
        enter = _BODIES.get(eqn.primitive.name)
        if enter is None or flat.scope.children.get(index) is None:
            return None
        inner_bodies = bodies(eqn)
        scopes = {(name, place): scope for (name, place, _), scope in zip(inner_bodies, scopes_of(flat.scope, index, inner_bodies))}
        values = [np.asarray(v.val, v.aval.dtype) if isinstance(v, Literal) else env[v] for v in eqn.invars]  # pyright: ignore[reportAttributeAccessIssue]
        steps = enter(self.reference, eqn, values)
        body = None
        step = next(steps, None)
        while step is not None:
            name, place, closed, inputs, label = step
            scope = scopes.get((name, place))
            if scope is None:
                return None
            if body is None:
                planned = _planned(scope, closed.jaxpr.invars), _planned(scope, closed.jaxpr.outvars)
                body = flatten(closed, scope, *planned, flat.locations[index])
            wrong, _, outs = self._walk(body, inputs, (*trail, f"{label} of {eqn.primitive.name} at {flat.locations[index]}"))
            if wrong is not None or any(isinstance(x, Exception) for x in outs) or not outs:
                return wrong
            try:
                step = steps.send(outs)
            except StopIteration:
                return None
        return None


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


def _planned(scope: Scope, variables: Sequence[Any]) -> list[TensorSharding | None]:
    values = [None if isinstance(v, Literal) else scope.env.get(v) for v in variables]
    return [None if value is None else value.sharding for value in values]


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


def _described(
    flat: FlatProgram, eqn: JaxprEqn, index: int, v: Any, comparison: Comparison, trail: tuple[str, ...], *, alone: bool = True
) -> FirstDifference:
    operands = tuple(_typed(x, flat.sharding(x)) for x in eqn.invars)
    located = replace(comparison, path=f"{eqn.primitive.name} at {flat.locations[index]}")
    return FirstDifference(eqn.primitive.name, flat.locations[index], located, _typed(v, flat.sharding(v)), operands, trail, alone)


def _typed(v: Any, sharding: TensorSharding | None) -> str:
    shape = v.aval.shape
    cut = sharding.with_dims(sharding.dims[: len(shape)]) if sharding is not None and sharding.rank > len(shape) else sharding
    return format_type(str(v.aval.dtype), shape, cut)


Step = tuple[str, int | None, Any, list[Any], str]
"""A body to run: its parameter, its place there, the body, its inputs, what to call it."""

Steps = Iterator[Any]


def _cond(reference: Reference, eqn: JaxprEqn, values: list[Any]) -> Any:
    branch = min(max(int(values[0]), 0), len(eqn.params["branches"]) - 1)
    yield "branches", branch, eqn.params["branches"][branch], values[1:], f"branch {branch}"


def _scan(reference: Reference, eqn: JaxprEqn, values: list[Any]) -> Any:
    fixed, carried = scan_counts(eqn)
    consts, carry, xs = values[:fixed], values[fixed : fixed + carried], values[fixed + carried :]
    length = eqn.params["length"]
    for trip in range(min(length, TRIPS)):
        at = length - 1 - trip if eqn.params["reverse"] else trip
        outs = yield "jaxpr", None, eqn.params["jaxpr"], [*consts, *carry, *(x[at] for x in xs)], f"trip {trip}"
        carry = outs[:carried]


def _while(reference: Reference, eqn: JaxprEqn, values: list[Any]) -> Any:
    split = eqn.params["cond_nconsts"]
    consts, carry = values[:split], values[split:]
    fixed = eqn.params["body_nconsts"]
    body_consts, carry = carry[:fixed], carry[fixed:]
    goes_on = reference.of(eqn.params["cond_jaxpr"])
    for trip in range(TRIPS):
        if not bool(fetch(goes_on([*consts, *carry])[0])):
            return
        carry = yield "body_jaxpr", None, eqn.params["body_jaxpr"], [*body_consts, *carry], f"trip {trip}"


_BODIES: dict[str, Callable[[Reference, JaxprEqn, list[Any]], Any]] = {"cond": _cond, "scan": _scan, "while": _while}
"""Primitive -> the bodies it runs, one after the other; each is sent the results of the one before."""

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
