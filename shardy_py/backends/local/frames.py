"""Slices, pads, updates and rotations of sharded dimensions: only what crosses from one block to the next is sent.

A slice of a sharded dimension has blocks of another size, so its elements are not where those of the array are. What is computed of it
here stays in a frame, an array of the size of the one that was sliced, with the elements on the devices of their neighbours; the others
are never read. `u.at[1:-1].set((u[2:] - u[:-2]) / 2)` then sends one row in each direction, and selects between
`u` and the quotient.

Slices, pads and concatenations are views until something computes with them, so that a pad that a slice cuts off again is not sent, and
what several views read of one array is sent once (`moves`).
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from jax import lax
from jax import numpy as jnp
from jax.extend.core import Jaxpr, JaxprEqn, Literal, Var

from shardy_py.backends.flat import without_calls
from shardy_py.backends.local.elementwise import POINTWISE
from shardy_py.backends.local.in_bounds import COMBINATIONS
from shardy_py.backends.local.local_rule import identity_fill, is_key
from shardy_py.backends.local.moves import ANY, FILL, Runs, WindowPlace, exchange, place, whole, windows_p
from shardy_py.frontends.context import local_type
from shardy_py.frontends.importer import Scope
from shardy_py.frontends.jaxprs import inlined, with_bodies
from shardy_py.frontends.loops import scan_counts
from shardy_py.frontends.mesh_context import no_mesh
from shardy_py.frontends.transforms import traced_locally
from shardy_py.ir import Value

Atom = Any
Cuts = Callable[[Value], tuple[int, ...]]
"""The number of parts of each dimension of a planned value."""
Frame = tuple[int, int]
"""The size of a dimension of an array that holds a value, and the position of the value's first element in it."""


def framed(scope: Scope, cuts: Cuts, vectors: Mapping[Any, list[int]] | None = None) -> Scope:
    """The scope of a jaxpr that computes the same, in frames; the same scope where nothing moves between blocks."""
    return (_Framing(_flat(scope), cuts, vectors or {}).run() or scope) if _is_windowed(scope, cuts) else scope


def _is_windowed(scope: Scope, cuts: Cuts) -> bool:
    """Whether a window of a sharded dimension is read or written."""
    for eqn in scope.jaxpr.eqns:
        if eqn.primitive.name in _WINDOWS:
            values = [scope.env[v] for v in (*eqn.invars, *eqn.outvars) if not isinstance(v, Literal) and v in scope.env]
            sizes = [set(of) for of in itertools.zip_longest(*(value.type.shape for value in values))]
            if any(k > 1 and len(sizes[d] - {None}) > 1 for value in values for d, k in enumerate(cuts(value))):
                return True
    return any(_is_windowed(child, cuts) for children in scope.children.values() for child in children)


def _flat(scope: Scope) -> Scope:
    """The scope with the bodies of calls, and slices for splits, in their place."""
    slices: Callable[[JaxprEqn], Sequence[JaxprEqn]] = lambda eqn: _slices(eqn) if eqn.primitive is lax.split_p else [eqn]  # noqa: E731
    return without_calls(scope, lambda eqn: eqn.primitive.name in _CALLS, slices)


def _slices(eqn: JaxprEqn) -> list[JaxprEqn]:
    """The slices that a split is."""
    shape, dim, at, eqns = _shape(eqn.invars[0]), eqn.params["axis"], 0, []
    for out, n in zip(eqn.outvars, eqn.params["sizes"]):
        start, limit = (tuple(end if d == dim else m for d, m in enumerate(of)) for end, of in ((at, [0] * len(shape)), (at + n, shape)))
        params = {"start_indices": start, "limit_indices": limit, "strides": None}
        eqns.append(eqn.replace(primitive=lax.slice_p, params=params, outvars=[out]))
        at += n
    return eqns


@dataclass(frozen=True, eq=False)
class _View:
    """A value as runs of elements of an array, in each dimension; `is_framed` if the equation computes the base, of which it is a part."""

    base: Any
    runs: tuple[Runs, ...]
    like: JaxprEqn | None = None
    fill: Literal | None = None
    is_framed: bool = False


@dataclass(frozen=True, eq=False)
class _Windows:
    """Windows of the array of a view that come together: the places of each, and the variable."""

    first: _View
    results: dict[tuple[WindowPlace, ...], Var]

    def equation(self) -> JaxprEqn:
        """The equation that brings them; where there is only one, from an array itself, the equation that makes it."""
        like, outs, base = self.first.like, list(self.results.values()), self.first.base
        assert like is not None
        if outs == list(like.outvars) and like.invars[0] is base and like.primitive.name in _OF_ONE:
            return like
        fill = self.first.fill or Literal(np.zeros((), base.aval.dtype), local_type(base.aval, ()))
        params = {"places": tuple(self.results)}
        return like.replace(primitive=windows_p, params=params, invars=[base, fill], outvars=outs, effects=frozenset())


class _Framing:
    def __init__(self, scope: Scope, cuts: Cuts, vectors: Mapping[Any, list[int]]) -> None:
        self.scope, self.cuts = scope, cuts
        self.env = dict(scope.env)
        self.children: dict[int, list[Scope]] = {}
        self.eqns: list[JaxprEqn | _Windows] = []
        self.views: dict[Atom, _View] = {}
        self.names: dict[Atom, Atom] = {}
        self.windows: dict[Any, _Windows] = {}
        self.is_changed = False
        self.scalars: dict[Atom, Literal] = {}  # of which arrays consist
        self.vectors = dict(vectors)
        self.broadcasts: dict[Atom, JaxprEqn] = {}
        for eqn in scope.jaxpr.eqns:
            self._note(eqn)
        self.demands, self.needs = _demands(scope.jaxpr, self._starts)

    def run(self) -> Scope | None:
        """The scope in frames; None where it would be the same."""
        jaxpr = self.scope.jaxpr
        for index, eqn in enumerate(jaxpr.eqns):
            out: Any = eqn.outvars[0] if len(eqn.outvars) == 1 and eqn.invars and _is_plain(eqn.outvars[0]) else None
            view = None if out is None else self._view(eqn, out)
            if view is not None:
                self.views[out] = view
            elif out is None or not (self._updated(eqn, out) or self._computed(eqn, out) or self._reduced(eqn, out)):
                self._keep(eqn, index)
        outs = [self._natural(v) for v in jaxpr.outvars]
        eqns = [each.equation() if isinstance(each, _Windows) else each for each in self.eqns]
        is_changed = self.is_changed or any(eqn.primitive is windows_p for eqn in eqns)
        return Scope(jaxpr.replace(eqns=eqns, outvars=outs), self.env, self.children) if is_changed else None

    def _note(self, eqn: JaxprEqn) -> None:
        """Notes what is known of the elements of an equation's result."""
        name, out = eqn.primitive.name, eqn.outvars[0] if eqn.outvars else None
        if (name == "broadcast_in_dim" or (name == "convert_element_type" and not _shape(out))) and _is_plain(out):
            scalar = self._scalar(eqn.invars[0])
            if scalar is not None:
                self.scalars[out] = Literal(np.asarray(scalar.val, _aval(out).dtype), local_type(_aval(out), ()))
            if scalar is not None and len(_shape(out)) == 1 and _aval(out).dtype.kind in "iu":
                self.vectors[out] = [int(scalar.val)] * _shape(out)[0]
            if name == "broadcast_in_dim":
                self.broadcasts[out] = eqn
        elif name == "concatenate" and all(not isinstance(v, Literal) and v in self.vectors for v in eqn.invars):
            self.vectors[out] = [n for v in eqn.invars for n in self.vectors[v]]

    def _keep(self, eqn: JaxprEqn, index: int = -1) -> None:
        """The equation as it is, on arrays of their own size."""
        scopes = self.scope.children.get(index, [])
        count = scan_counts(eqn)[0] if eqn.primitive.name == "scan" else len(eqn.invars) * (eqn.primitive.name == "remat2")
        vectors = [None if isinstance(v, Literal) else self.vectors.get(v) for v in eqn.invars[:count]]
        inner = [framed(child, self.cuts, {v: at for v, at in zip(child.jaxpr.invars, vectors) if at}) for child in scopes]
        bodies = {id(old.jaxpr): new.jaxpr for old, new in zip(scopes, inner)}
        inner = inner if len(bodies) == len(scopes) else scopes  # a body that is there twice stays
        if any(new is not old for new, old in zip(inner, scopes)):
            self.is_changed, eqn = True, eqn.replace(params=with_bodies(eqn, lambda _, body: bodies.get(id(body), body)))
        eqn = eqn.replace(invars=[self._natural(v) for v in eqn.invars])
        if inner:
            self.children[len(self.eqns)] = inner
        self.eqns.append(eqn)

    # What values are made of.

    def _of(self, v: Atom) -> _View:
        return self.views.get(v) or _View(self.names.get(v, v), tuple(((0, n),) for n in _shape(v)))

    def _parts(self, v: Atom) -> tuple[int, ...]:
        return self.cuts(self.env[v]) if v in self.env else (1,) * len(_shape(v))

    def _moved(self, view: _View) -> list[int]:
        """The sharded dimensions of its array of which a view is not the whole."""
        return [
            d for d, (n, runs, k) in enumerate(zip(_shape(view.base), view.runs, self._parts(view.base))) if k > 1 and runs != ((0, n),)
        ]

    def _scalar(self, v: Atom) -> Literal | None:
        return self.scalars.get(v) if not isinstance(v, Literal) else None if _shape(v) else v

    def _natural(self, v: Atom) -> Atom:
        """A value as an array of its own size."""
        if isinstance(v, Literal) or v in self.names or v not in self.views:
            return v if isinstance(v, Literal) else self.names.get(v, v)
        view = self.views[v]
        if not view.is_framed and any(place(runs, n) is None for runs, n in zip(view.runs, _shape(view.base))):
            assert view.like is not None
            self._keep(view.like)
            self.names[v] = v
        else:
            self.names[v] = self._window(view, view.runs, v)
        return self.names[v]

    def _window(self, view: _View, runs: Sequence[Runs], v: Var | None = None) -> Atom:
        """The window of a view's array that consists of some runs in each dimension."""
        sizes = _shape(view.base)
        places = tuple(at for runs_, n in zip(runs, sizes) if (at := place(runs_, n)))
        if places == tuple(map(whole, sizes)):
            return view.base
        shape, alone = tuple(at.size for at in places), None if self._moved(view) else v
        key = view.base, shape, alone, None if view.fill is None else np.asarray(view.fill.val).tobytes()
        group = self.windows.get(key)
        if group is None:
            group = self.windows[key] = _Windows(view, {})
            self.eqns.append(group)
        if places not in group.results:
            out = group.results[places] = v or Var(local_type(_aval(view.base), shape))
            if view.base in self.env:
                self.env.setdefault(out, self.env[view.base])
        return group.results[places]

    def _in_frames(self, v: Atom, frames: Sequence[Frame], like: JaxprEqn) -> Atom:
        """An array that holds a value in frames, for an equation."""
        shape, sizes = _shape(v), tuple(size for size, _ in frames)
        if not shape or all(frame == (n, 0) for n, frame in zip(shape, frames)):
            return self._natural(v)
        if v in self.broadcasts:
            eqn = self.broadcasts[v]
            own = list(zip(_shape(eqn.invars[0]), eqn.params["broadcast_dimensions"]))
            source = self._in_frames(eqn.invars[0], [(1, 0) if n == 1 else frames[d] for n, d in own], eqn)
            return self._emit(eqn, [source], sizes, v, shape=sizes)

        def around(view: _View) -> list[tuple[Runs, int]]:
            ends = [(max(0, at), max(0, -at), size - at, max(0, size - at - n)) for n, (size, at) in zip(shape, frames)]
            runs = [_joined([((ANY, b),), _cut(own, start, stop), ((ANY, a),)]) for own, (b, start, stop, a) in zip(view.runs, ends)]
            return list(zip(runs, _shape(view.base)))

        view = self._of(v)
        if any(place(*own) is None for own in around(view)):  # nothing but the fill, or the fill in between
            view = _View(self._natural(v), tuple(((0, n),) for n in shape))
        return self._window(view if view.like else _View(view.base, view.runs, like), [runs for runs, _ in around(view)])

    def _repeats(self, v: Atom, d: int) -> bool:
        """Whether a value is the same all along a dimension."""
        if v not in self.broadcasts:
            return False
        operand, dims = self.broadcasts[v].invars[0], self.broadcasts[v].params["broadcast_dimensions"]
        return d not in dims or _shape(operand)[dims.index(d)] == 1

    def _emit(self, like: JaxprEqn, operands: Sequence[Atom], sizes: Sequence[int], v: Atom, **params: Any) -> Var:
        """An equation with a result of another shape."""
        out = Var(local_type(_aval(v), sizes))
        if v in self.env:
            self.env[out] = self.env[v]
        self.eqns.append(like.replace(invars=list(operands), outvars=[out], params={**like.params, **params}))
        self.is_changed = True
        return out

    def _traced(self, function: Callable[..., Any], operands: Sequence[Atom], v: Atom, like: JaxprEqn) -> Atom:
        """The result of a function of arrays, with the plan of a value."""
        with like.ctx.manager, no_mesh():
            jaxpr = traced_locally(lambda *xs: [function(*xs)], [local_type(_aval(x), _shape(x)) for x in operands]).jaxpr
        eqns, (out,) = inlined(jaxpr, operands, lambda _: like.source_info)
        self.eqns += eqns
        if v in self.env:
            self.env[out] = self.env[v]
        self.is_changed = True
        return out

    # Equations.

    def _starts(self, eqn: JaxprEqn) -> Sequence[int] | None:
        """Where the window begins that an equation reads or writes; None where that is not known, or it is several."""
        name, params, shape = eqn.primitive.name, eqn.params, _shape(eqn.invars[0])
        if name == "pad":
            return (
                None
                if any(between for _, _, between in params["padding_config"])
                else [-int(low) for low, _, _ in params["padding_config"]]
            )
        if name == "slice":
            return params["start_indices"] if all(n == 1 for n in params["strides"] or ()) else None
        window = params["slice_sizes"] if "slice_sizes" in params else _shape(_update(eqn))
        if name in ("dynamic_slice", "dynamic_update_slice"):
            scalars = [self._scalar(v) for v in eqn.invars[1 if name == "dynamic_slice" else 2 :]]
            return None if None in scalars else [min(max(0, int(s.val)), n - m) for s, n, m in zip(scalars, shape, window) if s]
        numbers, at = params["dimension_numbers"], [] if isinstance(eqn.invars[1], Literal) else self.vectors.get(eqn.invars[1], [])
        dims, indexed = (numbers[:1], numbers.start_index_map) if name == "gather" else (numbers[:1], numbers.scatter_dims_to_operand_dims)
        starts = [dict(zip(indexed, at)).get(d, 0) for d in range(len(shape))]
        is_single = len(dims[0]) == len(shape) and len(at) == len(indexed) and len(_shape(eqn.invars[1])) == 1
        return starts if is_single and all(0 <= s <= n - m for s, n, m in zip(starts, shape, window)) else None

    def _view(self, eqn: JaxprEqn, out: Var) -> _View | None:
        name, operand = eqn.primitive.name, eqn.invars[0]
        if any(isinstance(v, Literal) and _shape(v) for v in eqn.invars):
            return None
        if name == "concatenate":
            return self._concatenated(eqn)
        if name == "reshape" and not isinstance(operand, Literal) and operand in self.broadcasts:
            operand = self.broadcasts[operand].invars[0]  # an edge of one element, as `jnp.pad` repeats it
        if isinstance(operand, Literal):
            return None
        if name in ("reshape", "rev") and operand in self.views and _shape(operand) == _shape(out):
            is_same = math.prod(_shape(eqn.invars[0])) == math.prod(_shape(out)) and all(
                _shape(out)[d] == 1 for d in eqn.params["dimensions"] or ()
            )
            return replace(self.views[operand], like=eqn) if is_same else None
        starts = self._starts(eqn) if name in _OF_ONE and _is_plain(operand) else None
        if starts is None:
            return None
        source, fill = self._of(operand), self._scalar(eqn.invars[1]) if name == "pad" else None
        if name == "pad" and (fill is None or not _is_same(source.fill or fill, fill)):
            return None
        ranges = [(own, start, start + n, sum(length for _, length in own)) for own, start, n in zip(source.runs, starts, _shape(out))]
        runs = [_joined([((FILL, -start),), _cut(own, start, stop), ((FILL, stop - n),)]) for own, start, stop, n in ranges]
        return _View(source.base, tuple(runs), eqn, fill or source.fill)

    def _concatenated(self, eqn: JaxprEqn) -> _View | None:
        """The view of parts of one array, and of a scalar, one behind the other."""
        dim = eqn.params["dimension"]
        parts = [v for v in eqn.invars if _shape(v)[dim]]
        views = {v: self._of(v) for v in parts if v not in self.scalars}
        fills = [fill for v in parts if (fill := views[v].fill if v in views else self._scalar(v)) is not None]
        first = next(iter(views.values()), None)
        if first is None or not all(_is_same(fills[0], fill) for fill in fills):
            return None
        across = [(view.base, *view.runs[:dim], *view.runs[dim + 1 :]) for view in views.values()]
        runs = _joined([views[v].runs[dim] if v in views else ((FILL, _shape(v)[dim]),) for v in parts])
        if any(each != across[0] for each in across) or place(runs, _shape(first.base)[dim]) is None:
            return None
        return _View(first.base, (*first.runs[:dim], runs, *first.runs[dim + 1 :]), eqn, fills[0] if fills else None)

    def _computed(self, eqn: JaxprEqn, out: Var) -> bool:
        """Whether the operands and the result of an elementwise equation are put into frames."""
        shape = _shape(out)
        operands = [v for v in eqn.invars if _shape(v) and self._scalar(v) is None]
        if eqn.primitive.name not in _POINTWISE or any(isinstance(v, Literal) or _shape(v) != shape for v in operands):
            return False
        wanted = any(frame != (n, 0) for d, n in enumerate(shape) for frame in self.demands.get(out, {}).get(d, ()))
        if not operands or not (wanted or any(self._moved(self._of(v)) for v in operands)):
            return False
        frames = [self._frame(d, [v for v in operands if not self._repeats(v, d)], out) for d in range(len(shape))]
        if all(frame == (n, 0) for n, frame in zip(shape, frames)):
            return False
        base = self._emit(eqn, [self._in_frames(v, frames, eqn) for v in eqn.invars], [size for size, _ in frames], out)
        if any(k == 1 and frame != (n, 0) for n, frame, k in zip(shape, frames, self._parts(out))):  # the plan cuts what it is of
            self.env.update((base, self.env[view.base]) for v in operands if self._moved(view := self._of(v)))
        self.views[out] = _View(base, _part(shape, frames), eqn, None, True)
        return True

    def _frame(self, d: int, operands: Sequence[Atom], out: Var) -> Frame:
        """The frame of a dimension in which the fewest elements move, on the way to the operands and from the result to its next uses."""
        n, views = _shape(out)[d], [self._of(v) for v in operands]
        places = [at for view in views if (at := place(view.runs[d], _shape(view.base)[d]))]
        parts = max((self._parts(view.base)[d] for view in views), default=1)
        if parts == 1 or len(places) < len(views):
            return n, 0
        wanted: Sequence[Frame] = self.demands.get(out, {}).get(d, ())
        low, high = self.needs.get(out, {}).get(d, (0, n))
        choices = [*wanted, (n, 0)]
        for view, at in zip(views, places):
            size = _shape(view.base)[d]
            choices += [(size, at.start), (size, (size - n) // 2)] if d in self._moved(view) else []

        def received(frame: Frame) -> int:
            """Elements that arrive, of each line of arrays, by the windows from the first to the last."""
            starts: dict[Any, list[int]] = {}
            for view, at in zip(views, places):
                starts.setdefault((_shape(view.base)[d], at._replace(start=0, size=frame[0]), view.base), []).append(at.start - frame[1])
            for size, at in wanted:
                starts.setdefault((frame[0], whole(size), None), []).append(frame[1] - at)
            return sum(
                exchange(size, at._replace(start=min(those)), max(those) - min(those), parts).received
                for (size, at, _), those in starts.items()
            )

        possible = [(size, at) for size, at in choices if n <= 2 * size <= 4 * n and -at <= low and high <= size - at]
        return min(possible, key=received, default=(n, 0))

    def _updated(self, eqn: JaxprEqn, out: Var) -> bool:
        """Whether a window of an array, or a part of several arrays one behind the other, is replaced where it is."""
        name, shape = eqn.primitive.name, _shape(out)
        if any(isinstance(v, Literal) and _shape(v) for v in eqn.invars):
            return False
        if name == "concatenate":
            dim = eqn.params["dimension"]
            ends = np.cumsum([0, *(_shape(v)[dim] for v in eqn.invars)])
            pieces = [(v, [int(at) * (d == dim) for d in range(len(shape))]) for v, at in zip(eqn.invars, ends) if _shape(v)[dim]]
            views = [self._of(v) for v, _ in pieces if 2 * _shape(v)[dim] >= shape[dim]]
            is_cut = len(pieces) <= _MOST_PIECES and any(dim in self._moved(view) for view in views)
        elif name in _UPDATES and (starts := self._starts(eqn)) is not None:
            pieces = [(eqn.invars[0], [0] * len(shape)), (_update(eqn), starts)]
            cuts = zip(shape, _shape(_update(eqn)), self._parts(self._of(_update(eqn)).base), self._parts(out))
            is_cut = any(n != m and k > 1 and own > 1 for n, m, k, own in cuts)
        else:
            return False
        if not is_cut:
            return False

        def select(x: Any, *others: Any) -> Any:
            for y, (v, starts) in zip(others, pieces[1:]):
                new = COMBINATIONS[name](x, y) if name in COMBINATIONS else y
                x = _within(new, x, {d: (at, at + n) for d, (at, n) in enumerate(zip(starts, _shape(v))) if n != shape[d]})
            return x

        self.names[out] = self._traced(select, [self._in_frames(v, list(zip(shape, starts)), eqn) for v, starts in pieces], out, eqn)
        return True

    def _reduced(self, eqn: JaxprEqn, out: Var) -> bool:
        """Whether a reduction reads its operand in frames."""
        operand, combine = eqn.invars[0], _REDUCTIONS.get(eqn.primitive.name)
        if combine is None or isinstance(operand, Literal):
            return False
        view, shape, axes = self._of(operand), _shape(operand), eqn.params["axes"]
        moved = self._moved(view)
        if not moved or any(len(view.runs[d]) > 1 or view.runs[d][0][0] < 0 or 2 * shape[d] < _shape(view.base)[d] for d in moved):
            return False
        frames = [(_shape(view.base)[d], view.runs[d][0][0]) if d in moved else (n, 0) for d, n in enumerate(shape)]
        ranges = {d: (frames[d][1], frames[d][1] + shape[d]) for d in moved if d in axes}
        x = self._in_frames(operand, frames, eqn)
        if ranges:
            x = self._traced(lambda x: _within(x, lax.full(x.shape, identity_fill(combine, x.dtype), x.dtype), ranges), [x], operand, eqn)
        dims = [d for d in range(len(shape)) if d not in axes]
        base = self._emit(eqn, [x], [frames[d][0] for d in dims], out)
        self.views[out] = _View(base, _part([shape[d] for d in dims], [frames[d] for d in dims]), eqn, None, True)
        return True


def _demands(jaxpr: Jaxpr, starts_of: Callable[[JaxprEqn], Sequence[int] | None]) -> tuple[dict[Any, Any], dict[Any, Any]]:
    """For each dimension of each value, the frames in which it is read next, none where any will do; and the range that is read at all."""
    demands: dict[Any, dict[int, tuple[Frame, ...]]] = {}
    needs: dict[Any, dict[int, tuple[int, int]]] = {}

    def want(v: Atom, frames: Mapping[int, Iterable[Frame]] | None = None, read: Mapping[int, tuple[int, int]] | None = None) -> None:
        for d, n in enumerate(() if isinstance(v, Literal) else _shape(v)):
            demand, need = demands.setdefault(v, {}), needs.setdefault(v, {})
            low, high = (0, n) if read is None else read[d]
            demand[d] = tuple(dict.fromkeys((*demand.get(d, ()), *(((n, 0),) if frames is None else frames[d]))))
            need[d] = min(low, need.get(d, (low, 0))[0]), max(high, need.get(d, (0, high))[1])

    for v in jaxpr.outvars:
        want(v)
    for eqn in reversed(jaxpr.eqns):
        name, first = eqn.primitive.name, eqn.invars[0] if eqn.invars else None
        out, read = (demands.get(eqn.outvars[0]), needs.get(eqn.outvars[0])) if eqn.outvars else (None, None)
        starts = starts_of(eqn) if name in _OF_ONE or name in _UPDATES else None
        if out is None or read is None or (starts is None and name not in _FOLLOWED):
            for v in eqn.invars:
                want(v)
            continue
        sizes = _shape(first)
        if name in _POINTWISE:
            for v in eqn.invars:
                if len(_shape(v)) == len(out):  # it is moved once, and the result to its several uses from there
                    want(v, {d: sorted(frames)[(len(frames) - 1) // 2 :][:1] for d, frames in out.items()}, read)
        elif name in _UPDATES and starts is not None:
            want(first)
            want(_update(eqn), {d: [frame] for d, frame in enumerate(zip(sizes, starts))})
        elif starts is not None:
            ends = {d: (min(n - 1, read[d][0] + starts[d]), min(n, read[d][1] + starts[d])) for d, n in enumerate(sizes)}
            shifted = {d: [(size, at - starts[d]) for size, at in frames] for d, frames in out.items()}
            want(first, shifted, {d: (max(0, low), max(1, high)) for d, (low, high) in ends.items()})
        elif name == "concatenate":
            at, dim = 0, eqn.params["dimension"]
            for v in eqn.invars:
                n, size = _shape(v)[dim], _shape(eqn.outvars[0])[dim]
                want(v, {d: [(size, at) if d == dim and 2 * n > size else (m, 0)] for d, m in enumerate(_shape(v))})
                at += n
    return demands, needs


def _within(new: Any, old: Any, ranges: Mapping[int, tuple[int, int]]) -> Any:
    """An array in a range of each of some dimensions, another one elsewhere."""
    masks = []
    for d, (start, stop) in ranges.items():
        position = lax.broadcasted_iota(jnp.int32, old.shape, d)
        masks.append(lax.bitwise_and(lax.ge(position, np.int32(start)), lax.lt(position, np.int32(stop))))
    return lax.select(functools.reduce(lax.bitwise_and, masks), new, old) if masks else new


def _update(eqn: JaxprEqn) -> Atom:
    """The window that an equation writes."""
    return eqn.invars[1 if eqn.primitive.name == "dynamic_update_slice" else 2]


def _part(shape: Sequence[int], frames: Sequence[Frame]) -> tuple[Runs, ...]:
    """The runs of a value in an array that holds it in frames; elements that do not fit are never read."""
    ranges = [(max(0, -at), min(n, size - at), at) for n, (size, at) in zip(shape, frames)]
    return tuple(_joined([((ANY, low),), ((at + low, high - low),), ((ANY, n - high),)]) for n, (low, high, at) in zip(shape, ranges))


def _joined(pieces: Sequence[Runs]) -> Runs:
    """Runs one behind the other, those of neighbours as one."""
    runs: list[tuple[int, int]] = []
    for start, length in (run for piece in pieces for run in piece if run[1] > 0):
        before = runs[-1] if runs else (0, 0)
        if runs and (start == before[0] if start < 0 else before[0] >= 0 and start == sum(before)):
            runs[-1] = before[0], before[1] + length
        else:
            runs.append((start, length))
    return tuple(runs)


def _cut(runs: Runs, start: int, stop: int) -> Runs:
    """The part of some runs from one position to another."""
    at, part = 0, []
    for first, length in runs:
        low, high = max(0, start - at), min(length, stop - at)
        part += [(first if first < 0 else first + low, high - low)] if low < high else []
        at += length
    return tuple(part)


def _shape(v: Atom) -> tuple[int, ...]:
    return getattr(getattr(v, "aval", None), "shape", ())


def _aval(v: Atom) -> Any:
    return v.aval


def _is_plain(v: Atom) -> bool:
    dtype = getattr(v.aval, "dtype", None)
    return dtype is not None and not is_key(dtype) and 0 not in _shape(v)


def _is_same(a: Literal, b: Literal) -> bool:
    return np.asarray(a.val).tobytes() == np.asarray(b.val).tobytes()


_CALLS = frozenset({"closed_call", "custom_jvp_call", "custom_vjp_call", "jit"})
_OF_ONE = frozenset({"dynamic_slice", "gather", "pad", "slice"})
_UPDATES = frozenset({"dynamic_update_slice", "scatter", *COMBINATIONS})
_WINDOWS = _OF_ONE | _UPDATES | {"concatenate", "split"}
_POINTWISE = frozenset(POINTWISE.split())
_REDUCTIONS = {"reduce_sum": "add", "reduce_max": "max", "reduce_min": "min", "reduce_prod": "mul", "reduce_and": "and", "reduce_or": "or"}
_FOLLOWED = _POINTWISE | {"concatenate"}
_MOST_PIECES = 3
