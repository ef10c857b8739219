"""Products in pieces along rings: each step multiplies what the step before received, while the next piece is on its way.

A gathered value that products read, or a product whose parts are scattered as sums, is never assembled. The dimension is cut in pieces, one
for each device; half of every piece goes around the ring of devices in one direction, half in the other, and each step multiplies both
halves at once. All that works along the dimension runs on these pieces: elementwise ops between two products, the backward pass of both.
What sums over the dimension, such as the gradient of a weight, adds up over the pieces in the order in which they come, in float32. A sum
that every device needs is scattered so, then gathered.

A *chain* is a set of equations of one body that pass pieces to each other. It runs in pieces where, by the prices of the chip, its
collectives would wait longer than the pieces cost.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from jax import lax
from jax.extend.core import Jaxpr, JaxprEqn, Var

from shardy_py.backends.local import elementwise, products, reductions, shapes
from shardy_py.backends.local.jaxpr_rewriting import Atom, axes_of, retraced, rewrite_bodies
from shardy_py.backends.local.local_rule import Equation, LocalContext, LocalRule, block_index, is_inexact
from shardy_py.backends.local.moved_values import overlapping
from shardy_py.cost.hardware import Hardware

Array = Any

SLOWER = 0.05
"""The part by which products of some rows take longer: TPU's compiler counts 191 us for four of 1,024 rows, 181.5 us for one of 4,096."""

STEP = 2e-6
"""Seconds that each further op takes; an estimate."""


@dataclass(frozen=True)
class Overlap:
    """What chains are chosen by, and how their rings go.

    Attributes:
        machine: The chip; None runs every chain in pieces.
        seconds: Seconds of a collective, given its kind, its axes and the bytes of its operand.
        ring: The devices along axes, each a neighbour of the next where the torus allows it.
    """

    machine: Hardware | None
    seconds: Callable[[str, tuple[str, ...], int], float]
    ring: Callable[[tuple[str, ...]], Sequence[int]]


class Cut(NamedTuple):
    """Pieces of a value along a dimension, which go around the devices of some axes."""

    axes: tuple[str, ...]
    dim: int


@dataclass(frozen=True)
class _Step:
    """How an equation of a chain runs.

    Attributes:
        operands: Per operand the dimension of its pieces; None for one that every piece needs whole.
        result: The dimension of the pieces of the results; None where the pieces of operands add up to one result.
    """

    axes: tuple[str, ...]
    operands: tuple[int | None, ...]
    result: int | None
    local_rule: LocalRule | None = None
    factor: int = 0

    def run(self, eqn: JaxprEqn, sizes: Mapping[str, int], pieces: Sequence[Sequence[Array]]) -> list[Array]:
        """The results, all pieces of the first, then all of the second; or what the pieces add up to.

        Products of numbers of 16 bits add up in float32, so that they are rounded once.
        """
        assert self.local_rule is not None
        equation, out = Equation(eqn), _aval(eqn.outvars[0]).dtype
        is_free = "preferred_element_type" in eqn.params and not isinstance(
            eqn.params["precision"], lax.DotAlgorithm | lax.DotAlgorithmPreset
        )
        if self.result is None and is_free and is_inexact(out) and out.itemsize < 4:
            equation.params = {**eqn.params, "preferred_element_type": np.dtype(np.float32)}
        axes = [self.axes if factor == self.factor else () for factor in range(self.local_rule.rule.num_factors)]
        local = LocalContext(equation, self.local_rule, axes, dict(sizes), "")
        results = [self.local_rule.run(local, list(arrays)) for arrays in zip(*pieces, strict=True)]
        if self.result is not None:
            return [part for of_result in zip(*results, strict=True) for part in of_result]
        total = functools.reduce(_COMBINES[self.local_rule.combine], [result for (result,) in results])
        return [total if total.dtype == out else lax.convert_element_type(total, out)]


def overlapped(jaxpr: Jaxpr, sizes: Mapping[str, int], overlap: Overlap) -> Jaxpr:
    """The jaxpr of a region with its chains in pieces, in bodies too."""
    return rewrite_bodies(jaxpr, lambda body: _Chains(body, sizes, overlap).rewritten())


class _Chains:
    """The chains of a body."""

    def __init__(self, body: Jaxpr, sizes: Mapping[str, int], overlap: Overlap) -> None:
        self.body, self.sizes, self.overlap = body, sizes, overlap
        self.cuts: dict[Any, Cut] = {}
        self.steps: dict[int, _Step] = {}
        self.chains: dict[int, list[JaxprEqn]] = {}
        self.producers: dict[Any, JaxprEqn] = {v: eqn for eqn in body.eqns for v in eqn.outvars}
        self.assembled: set[Any] = set()

    def rewritten(self) -> Jaxpr:
        """The body with the chains that pay."""
        self._find()
        chains = {id(chain): chain for chain in self.chains.values()}.values()
        chosen = {id(eqn) for chain in chains if self._pays(chain) for eqn in chain}
        return self._run(chosen) if chosen else self.body

    def _moves(self, eqn: JaxprEqn) -> list[Cut]:
        """The pieces that a gather makes, or any of which a scatter or a sum takes."""
        name, params = eqn.primitive.name, eqn.params
        if name not in _COLLECTIVES or params["axis_index_groups"] is not None or not params.get("tiled", True) or len(eqn.invars) > 1:
            return []
        whole, axes = _shape(eqn.outvars[0] if name == "all_gather" else eqn.invars[0]), axes_of(eqn)
        n = math.prod(self.sizes.get(axis, 0) for axis in axes)
        dims = range(len(whole)) if name == "psum" else [params[_COLLECTIVES[name]]]
        return [Cut(axes, d) for d in dims if n > 1 and whole[d] and whole[d] % (n * _halves(n)) == 0]

    def _find(self) -> None:
        """Follows pieces through the body. A product of which only a sum or scatter reads the result makes some."""
        uses = Counter(v for v in (*(v for eqn in self.body.eqns for v in eqn.invars), *self.body.outvars) if isinstance(v, Var))
        wanted = {
            eqn.invars[0]: moves[0]
            for eqn in self.body.eqns
            if eqn.primitive.name in _SUMS and (moves := self._moves(eqn)) and isinstance(eqn.invars[0], Var) and uses[eqn.invars[0]] == 1
        }
        for eqn in self.body.eqns:
            name, moves = eqn.primitive.name, self._moves(eqn)
            before = [self.cuts.get(v) if isinstance(v, Var) else None for v in eqn.invars]
            step = None
            if name == "all_gather":
                step = _Step(moves[0].axes, (None,), moves[0].dim) if moves else None
            elif moves:
                step = next((_Step(cut.axes, (cut.dim,), None) for cut in moves if cut == before[0]), None)
            elif any(before) or (name == "dot_general" and eqn.outvars[0] in wanted):
                step = _step(eqn, before, wanted.get(eqn.outvars[0]) if eqn.outvars else None, self.sizes)
            if step is not None:
                self._add(eqn, step)
            if step is None or name == "all_gather":
                self.assembled.update(v for v, cut in zip(eqn.invars, before) if cut is not None)
        self.assembled.update(v for v in self.body.outvars if isinstance(v, Var) and v in self.cuts)

    def _add(self, eqn: JaxprEqn, step: _Step) -> None:
        """Adds an equation to the chain of its pieces, or makes one chain of several."""
        self.steps[id(eqn)] = step
        chain = self.chains.setdefault(id(eqn), [eqn])
        for v, dim in zip(eqn.invars, step.operands, strict=True):
            before = self.chains[id(self.producers[v])] if dim is not None and isinstance(v, Var) and v in self.cuts else chain
            if before is not chain:
                before.extend(chain)
                self.chains.update((id(member), before) for member in chain)
                chain = before
        if step.result is not None:
            self.cuts.update((v, Cut(step.axes, step.result)) for v in eqn.outvars)

    def _pays(self, chain: Sequence[JaxprEqn]) -> bool:
        """Whether collectives would wait for longer than pieces cost.

        What waits of a chain in pieces is what its products do not cover. Pieces cost memory traffic: halves are joined, sums added, other
        operands cut and results assembled.
        """
        names = [eqn.primitive.name for eqn in chain]
        machine = self.overlap.machine
        if "dot_general" not in names or not any(name in _COLLECTIVES for name in names):
            return False
        if machine is None:
            return True
        n = math.prod(self.sizes[axis] for axis in self.steps[id(chain[0])].axes)
        waiting = computing = cost = 0.0
        for eqn, name in zip(chain, names, strict=True):
            step = self.steps[id(eqn)]
            traffic = sum(3 * _bytes(v) for v in eqn.outvars if v in self.assembled)
            if name in _COLLECTIVES:
                kind = "all_gather" if name == "all_gather" else "reduce_scatter"  # the rest of a sum waits in any case
                waiting += self.overlap.seconds(kind, step.axes, _bytes(eqn.invars[0]))
                traffic += 2 * _bytes(eqn.outvars[0]) if name == "all_gather" else 3 * _bytes(eqn.invars[0])
                cost += STEP * n
            for v, dim in zip(eqn.invars, step.operands, strict=True):
                maker = eqn if dim is None or not isinstance(v, Var) or v in self.cuts else self.producers.get(v)
                traffic += 0 if maker is eqn or (maker is not None and maker.primitive.name == "broadcast_in_dim") else 2 * _bytes(v)
            if name == "dot_general":
                pieces, whole = (_product_seconds(eqn, step, parts, machine) for parts in (n, 1))
                computing, cost = computing + pieces, cost + pieces - whole + STEP * n
            cost += traffic / machine.hbm_bandwidth
        return max(0.0, waiting - computing * (n - 1) / n) + cost < waiting

    def _run(self, chosen: set[int]) -> Jaxpr:
        """The body with some equations in pieces."""
        pieces: dict[Any, list[Atom]] = {}
        renamed: dict[Any, Atom] = {}
        eqns: list[JaxprEqn] = []

        def emit(function: Callable[..., list[Array]], like: JaxprEqn, operands: Sequence[Atom]) -> list[Atom]:
            new, results = retraced(function, like, self.sizes, operands)
            eqns.extend(new)
            return results

        for eqn in self.body.eqns:
            operands: list[Atom] = [renamed.get(v, v) if isinstance(v, Var) else v for v in eqn.invars]
            if id(eqn) not in chosen:
                eqns.append(eqn.replace(invars=operands))
                continue
            step = self.steps[id(eqn)]
            around = _Ring(step.axes, self.overlap.ring(step.axes), self.sizes)
            operand_pieces = [
                pieces.get(v, [x]) if dim is not None and isinstance(v, Var) else [x]
                for v, x, dim in zip(eqn.invars, operands, step.operands)
            ]
            run = functools.partial(_in_pieces, eqn, step, around, list(map(len, operand_pieces)))
            results = emit(run, eqn, list(itertools.chain(*operand_pieces)))
            if step.result is None:
                renamed.update(zip(eqn.outvars, results, strict=True))
                continue
            for i, v in enumerate(eqn.outvars):
                pieces[v] = results[i * around.size : (i + 1) * around.size]
                if v in self.assembled:
                    (renamed[v],) = emit(functools.partial(around.assembled, step.result), eqn, pieces[v])
        outvars = [renamed.get(v, v) if isinstance(v, Var) else v for v in self.body.outvars]
        return self.body.replace(eqns=eqns, outvars=outvars)


def _in_pieces(eqn: JaxprEqn, step: _Step, around: _Ring, counts: Sequence[int], *flat: Array) -> list[Array]:
    """The results of an equation, as `_Step.run` gives them."""
    name, parts = eqn.primitive.name, iter(flat)
    if name == "all_gather" and step.result is not None:
        return around.gathered(next(parts), step.result)
    pieces: list[Sequence[Array]] = []
    for count, dim in zip(counts, step.operands, strict=True):
        x = list(itertools.islice(parts, count))
        pieces.append(x if count > 1 else x * around.size if dim is None else around.cut(x[0], dim))
    if step.local_rule is None:
        (dim,) = step.operands
        assert dim is not None
        own = around.scattered(pieces[0], dim)
        return [lax.all_gather(own, step.axes, axis=dim, tiled=True) if name == "psum" else own]
    return step.run(eqn, around.sizes, pieces)


def _halves(n: int) -> int:
    """The parts of a piece that go separate ways: to the other one of two devices there is one way."""
    return 2 if n > 2 else 1


class _Ring:
    """Pieces on their way around the devices of some axes.

    Piece `s` of a device is made of the first half of the block of the device `s` places before it on the ring, and the second half of
    the block of the device `s` places behind it.
    """

    def __init__(self, axes: tuple[str, ...], order: Sequence[int], sizes: Mapping[str, int]) -> None:
        self.axes, self.order, self.size, self.sizes = axes, order, len(order), sizes
        self.in_order = tuple(axis for axis in sizes if axis in axes)  # JAX numbers the devices of a permute so, whatever it is given
        numbers = np.arange(self.size).reshape([sizes[axis] for axis in self.in_order])
        numbers = numbers.transpose([self.in_order.index(axis) for axis in axes]).reshape(-1).tolist()
        self.pairs = [(numbers[order[k - 1]], numbers[device]) for k, device in enumerate(order)]

    def passed_on(self, halves: Sequence[Array]) -> list[Array]:
        """Halves one place further."""
        with overlapping():
            return [lax.ppermute(x, self.in_order, pairs) for x, pairs in zip(halves, (self.pairs, [(b, a) for a, b in self.pairs]))]

    def halves(self, x: Array, dim: int) -> list[Array]:
        """The halves of a piece."""
        parts = _halves(self.size)
        size = x.shape[dim] // parts
        return [lax.slice_in_dim(x, i * size, (i + 1) * size, axis=dim) for i in range(parts)] if parts > 1 else [x]

    def gathered(self, x: Array, dim: int) -> list[Array]:
        """The pieces of a value, given the block of this device."""
        pieces, halves = [x], self.halves(x, dim)
        for _ in range(1, self.size):
            halves = self.passed_on(halves)
            pieces.append(_joined(halves, dim))
        return pieces

    def scattered(self, pieces: Sequence[Array], dim: int) -> Array:
        """The sum over devices of the block of each; that of this device needs its own piece last, so it hides the last hop."""
        sums = self.halves(pieces[1], dim)
        for piece in (*pieces[2:], pieces[0]):
            sums = [lax.add(x, y) for x, y in zip(self.passed_on(sums), self.halves(piece, dim), strict=True)]
        return _joined(sums, dim)

    def cut(self, x: Array, dim: int) -> list[Array]:
        """The pieces of a value that every device has."""
        size = x.shape[dim] // self.size // _halves(self.size)
        return [
            _joined([lax.dynamic_slice_in_dim(x, start, size, axis=dim) for start in starts], dim) for starts in self._starts(x.shape[dim])
        ]

    def assembled(self, dim: int, *pieces: Array) -> list[Array]:
        """The value that pieces are of."""
        shape = list(pieces[0].shape)
        shape[dim] *= self.size
        whole = lax.full(shape, 0, pieces[0].dtype)
        for piece, starts in zip(pieces, self._starts(shape[dim]), strict=True):
            for half, start in zip(self.halves(piece, dim), starts, strict=True):
                whole = lax.dynamic_update_slice_in_dim(whole, half, start, axis=dim)
        return [whole]

    def _starts(self, total: int) -> Iterator[list[Array]]:
        """Where the halves of each piece stand in the whole."""
        index, block = block_index(self.axes), total // self.size
        for s in range(self.size):
            starts: list[Array] = []
            for way in range(_halves(self.size)):
                sources = {device: self.order[(k + (s if way else -s)) % self.size] for k, device in enumerate(self.order)}
                start: Array = lax.full_like(index, sources[0] * block + way * block // 2)
                for device in range(1, self.size):
                    start = lax.select(
                        lax.eq(index, np.int32(device)), lax.full_like(index, sources[device] * block + way * block // 2), start
                    )
                starts.append(start)
            yield starts


def _joined(halves: Sequence[Array], dim: int) -> Array:
    return lax.concatenate(halves, dim) if len(halves) > 1 else halves[0]


def _aval(v: Atom) -> Any:
    return v.aval


def _shape(v: Atom) -> tuple[int, ...]:
    return tuple(_aval(v).shape)


def _bytes(v: Atom) -> int:
    return _aval(v).size * _aval(v).dtype.itemsize


def _product_seconds(eqn: JaxprEqn, step: _Step, n: int, machine: Hardware) -> float:
    """Seconds of a product in so many pieces: of each the longer of computing and of memory traffic."""
    (contracted, _), _ = eqn.params["dimension_numbers"]
    lhs, result = eqn.invars[0], eqn.outvars[0]
    flops = 2.0 * _aval(result).size * math.prod(_shape(lhs)[d] for d in contracted) / n
    moved = sum(_bytes(v) / (1 if dim is None else n) for v, dim in zip((*eqn.invars, result), (*step.operands, step.result), strict=True))
    if n > 1 and step.result is None:
        moved += 8 * _aval(result).size  # what is added up is read, and written
    slower = 1 + SLOWER if n > 1 and step.result is not None else 1.0
    return n * max(flops * slower / machine.matrix_flops(str(_aval(lhs).dtype)), moved / machine.hbm_bandwidth)


def _step(eqn: JaxprEqn, before: Sequence[Cut | None], wanted: Cut | None, sizes: Mapping[str, int]) -> _Step | None:
    """How an equation runs on pieces of its operands, or makes pieces of its result; None where it needs operands whole.

    A piece is what a device would have if the factor of its dimension were sharded over the axes of the ring.
    """
    cuts = [(i, cut) for i, cut in enumerate(before) if cut is not None] or ([(len(before), wanted)] if wanted is not None else [])
    build = _RULES.get(eqn.primitive.name)
    local_rule = None if build is None else build(Equation(eqn))
    if local_rule is None or len({cut.axes for _, cut in cuts}) != 1 or local_rule.bytes_inside is not None:
        return None
    rule, n = local_rule.rule, math.prod(sizes[axis] for axis in cuts[0][1].axes)
    factor = next(iter(rule.mappings[cuts[0][0]][cuts[0][1].dim]), None)
    if factor is None or factor in (*rule.need_replication, *rule.permutation) or rule.factor_sizes[factor] % (n * _halves(n)):
        return None
    dims: list[int | None] = []
    for mapping in rule.mappings:
        places = [d for d, factors in enumerate(mapping) if factor in factors]
        if len(places) > 1 or any(mapping[d][0] != factor for d in places):
            return None
        dims.append(places[0] if places else None)
    results = set(dims[len(before) :])
    if any(dims[i] != cut.dim for i, cut in cuts) or len(results) > 1 or (factor in rule.reduction and local_rule.combine not in _COMBINES):
        return None
    return _Step(cuts[0][1].axes, tuple(dims[: len(before)]), results.pop(), local_rule, factor)


_RULES = {
    "bitcast_convert_type": shapes.leading,
    **elementwise.LOCAL_RULES,
    **products.LOCAL_RULES,
    **reductions.LOCAL_RULES,
    **shapes.LOCAL_RULES,
}

_COMBINES: dict[str, Callable[[Array, Array], Array]] = {"add": lax.add, "max": lax.max, "min": lax.min}
"""Combines partial results, one for each piece of a reduced dimension."""

_COLLECTIVES = {"all_gather": "all_gather_dimension", "psum": "", "reduce_scatter": "scatter_dimension"}
"""Collectives of chains -> the parameter that names their dimension; a sum may be cut along any."""

_SUMS = ("psum", "reduce_scatter")
