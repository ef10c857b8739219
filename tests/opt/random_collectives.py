"""Writes random functions of SDY collectives that can be simplified, as text."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

MESH = 'sdy.mesh @mesh = <["x"=2, "y"=2, "z"=4, "w"=3]>'
_PIECES = ("x", "y", "z:1", "z:2", "w")
_TYPE = "tensor<96x96xf32>"


@dataclass(frozen=True)
class _Layout:
    """Pieces of axes that cut dimensions, are replicated, or are unreduced."""

    dims: tuple[tuple[str, ...], ...]
    replicated: frozenset[str] = frozenset()
    unreduced: frozenset[str] = frozenset()

    @property
    def free(self) -> list[str]:
        used = {piece for dim in self.dims for piece in dim} | self.unreduced | self.replicated
        return [piece for piece in _PIECES if piece not in used]

    def appended(self, added: list[list[str]]) -> _Layout:
        return replace(self, dims=tuple((*dim, *more) for dim, more in zip(self.dims, added, strict=True)))


def collectives(seed: int, *, size: int = 6) -> str:
    """A module with one function of a chain of collectives; some values are used more than once."""
    return _Writer(random.Random(seed)).module(size)


class _Writer:
    def __init__(self, source: random.Random) -> None:
        self.source = source
        self.lines: list[str] = []
        pieces = source.sample(_PIECES, len(_PIECES))
        dims: list[tuple[str, ...]] = [(), ()]
        for piece in pieces[: source.randint(0, 2)]:
            i = source.randrange(2)
            dims[i] = (*dims[i], piece)
        layout = _Layout(tuple(dims))
        replicated = frozenset(piece for piece in layout.free if source.random() < 0.2)
        layout = replace(layout, replicated=replicated)
        self.argument = self.sharding(layout)
        self.values = [("%x", layout)]

    def module(self, size: int) -> str:
        for _ in range(size):
            value, layout = self.values[-1] if self.source.random() < 0.8 else self.source.choice(self.values)
            self.source.choice(_KINDS)(self, value, layout)
        returned = list(dict.fromkeys([self.values[-1][0], self.source.choice(self.values)[0]]))
        types = ", ".join(_TYPE for _ in returned)
        head = f"func.func @main(%x: {_TYPE} {{sdy.sharding = #sdy.sharding{self.argument}}}) -> ({types}) {{"
        return "\n".join((MESH, head, *self.lines, f"  return {', '.join(returned)} : {types}", "}"))

    def sharding(self, layout: _Layout) -> str:
        """The text of a layout, here and there with open dimensions."""
        dims = ", ".join(_braces(_merged(list(dim)), self.source.random() < 0.1) for dim in layout.dims)
        stated = [f"{name}={_braces(_sorted(pieces))}" for name in ("replicated", "unreduced") if (pieces := getattr(layout, name))]
        return f"<@mesh, {', '.join([f'[{dims}]', *stated])}>"

    def add(self, name: str, axes: str, value: str, layout: _Layout) -> str:
        """Adds a collective; its result may state other replicated axes."""
        if self.source.random() < 0.15:
            layout = replace(layout, replicated=frozenset(self.source.sample(layout.free, min(1, len(layout.free)))))
        result = f"%{len(self.lines)}"
        self.lines.append(f"  {result} = sdy.{name} {axes} {value} out_sharding={self.sharding(layout)} : {_TYPE}")
        self.values.append((result, layout))
        return result

    def chosen(self, layout: _Layout) -> list[str]:
        """Some pieces that no dimension has, in random order."""
        return self.source.sample(layout.free, min(len(layout.free), self.source.randint(1, 3)))

    def dealt(self, pieces: list[str]) -> list[list[str]]:
        """Pieces dealt out to the two dimensions."""
        dims: list[list[str]] = [[], []]
        for piece in pieces:
            self.source.choice(dims).append(piece)
        return dims


def _slice(w: _Writer, value: str, layout: _Layout, axes: list[list[str]] | None = None) -> None:
    axes = w.dealt(w.chosen(layout)) if axes is None else axes
    w.add("all_slice", _lists(axes), value, layout.appended(axes))


def _gather(w: _Writer, value: str, layout: _Layout) -> None:
    cuts = [w.source.randint(0, len(dim)) for dim in layout.dims]
    axes = [list(dim[cut:]) for dim, cut in zip(layout.dims, cuts, strict=True)]
    w.add("all_gather", _lists(axes), value, replace(layout, dims=tuple(dim[:cut] for dim, cut in zip(layout.dims, cuts, strict=True))))


def _reduce(w: _Writer, value: str, layout: _Layout) -> None:
    axes = [*w.chosen(layout), *layout.unreduced] if w.source.random() < 0.9 else []
    w.add("all_reduce", _braces(_sorted(axes)), value, replace(layout, unreduced=layout.unreduced - set(axes)))


def _reduce_and_slice(w: _Writer, value: str, layout: _Layout) -> None:
    """An all-reduce and slices of it along at least its axes, mostly."""
    axes = [*w.chosen(layout), *layout.unreduced]
    reduced = replace(layout, unreduced=layout.unreduced - set(axes))
    total = w.add("all_reduce", _braces(_sorted(axes)), value, reduced)
    reduced = w.values[-1][1]
    sliced = [piece for piece in axes if w.source.random() < 0.95 and piece in reduced.free]
    rest = [piece for piece in reduced.free if piece not in axes and w.source.random() < 0.3]
    dims = w.dealt([*sliced, *rest] if w.source.random() < 0.8 else [*rest, *sliced])
    for _ in range(w.source.choice((1, 1, 2))):
        _slice(w, total, reduced, dims)


def _scatter(w: _Writer, value: str, layout: _Layout) -> None:
    axes = w.dealt([*w.chosen(layout), *layout.unreduced])
    pieces = {piece for dim in axes for piece in dim}
    w.add("reduce_scatter", _lists(axes), value, replace(layout.appended(axes), unreduced=layout.unreduced - pieces))


def _to_unreduced(w: _Writer, value: str, layout: _Layout) -> None:
    if layout.replicated:
        new = replace(layout, replicated=frozenset(), unreduced=layout.unreduced | layout.replicated)
        w.add("replicated_to_unreduced", _braces(_sorted(layout.replicated)), value, new)
        return
    cuts = [w.source.randint(0, len(dim)) for dim in layout.dims]
    axes = [list(dim[cut:]) for dim, cut in zip(layout.dims, cuts, strict=True)]
    dims = tuple(dim[:cut] for dim, cut in zip(layout.dims, cuts, strict=True))
    given_up = {piece for dim in axes for piece in dim}
    w.add("sharded_to_unreduced", _lists(axes), value, replace(layout, dims=dims, unreduced=layout.unreduced | given_up))
    if given_up and w.source.random() < 0.7:
        value, layout = w.values[-1]
        w.add("all_reduce", _braces(_sorted(given_up)), value, replace(layout, unreduced=layout.unreduced - given_up))


def _permute(w: _Writer, value: str, layout: _Layout) -> None:
    dims = layout.dims
    if w.source.random() < 0.5 and "x" in (*dims[0], *dims[1]) and "y" in layout.free:
        dims = tuple(tuple("y" if piece == "x" else piece for piece in dim) for dim in dims)
    w.add("collective_permute", "", value, replace(layout, dims=dims))


_KINDS = (_slice, _gather, _reduce, _reduce_and_slice, _reduce_and_slice, _reduce_and_slice, _scatter, _to_unreduced, _permute)


def _merged(pieces: list[str]) -> list[str]:
    """Names of pieces as MLIR writes them; two parts of `z` that follow each other are all of it."""
    names: list[str] = []
    for piece in pieces:
        if piece == "z:2" and names and names[-1] == '"z":(1)2':
            names[-1] = '"z"'
        else:
            name, _, part = piece.partition(":")
            names.append(f'"{name}":({part})2' if part else f'"{name}"')
    return names


def _sorted(pieces: set[str] | frozenset[str] | list[str]) -> list[str]:
    return _merged([piece for piece in _PIECES if piece in pieces])


def _braces(names: list[str], is_open: bool = False) -> str:
    return "{" + ", ".join([*names, "?"] if is_open else names) + "}"


def _lists(dims: list[list[str]]) -> str:
    return "[" + ", ".join(_braces(_merged(dim)) for dim in dims) + "]"
