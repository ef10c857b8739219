"""Writes random functions of nested named and manual computations without data-flow edges, as text."""

from __future__ import annotations

import random
from dataclasses import dataclass

_AXES = {"row": 2, "col": 2, "deep": 4}
Shape = tuple[int, int]


@dataclass
class _Scope:
    """Where ops are written: axes that may be used there, and the values at hand."""

    free: tuple[str, ...]
    values: list[tuple[str, Shape]]


def computations(seed: int, *, priorities: bool = True) -> str:
    """A module with one function; shardings have parts of axes, replicated axes and, in every other module, priorities."""
    return _Writer(random.Random(seed), priorities).module()


class _Writer:
    def __init__(self, source: random.Random, priorities: bool) -> None:
        self.source = source
        self.lines: list[str] = []
        self.count = 0
        self.priorities = source.random() < 0.5 and priorities

    def module(self) -> str:
        scope = _Scope(tuple(_AXES), [("%x", (16, 16)), ("%y", (16, 16))])
        self.body(scope, 5, 2)
        (value, shape), other = scope.values[-1], self.source.choice(scope.values)
        types = f"{_type(shape)}{self.attribute(scope)}, {_type(other[1])}{self.attribute(scope)}"
        head = (
            f"func.func @main(%x: {_type((16, 16))}{self.attribute(scope)}, %y: {_type((16, 16))}{self.attribute(scope)}) -> ({types}) {{"
        )
        mesh = "sdy.mesh @mesh = <[" + ", ".join(f'"{name}"={size}' for name, size in _AXES.items()) + "]>"
        tail = f"  return {value}, {other[0]} : {_type(shape)}, {_type(other[1])}"
        return "\n".join((mesh, head, *self.lines, tail, "}"))

    def body(self, scope: _Scope, size: int, depth: int) -> None:
        kinds = [_unary, _unary, _binary, _dot, _transpose, _constraint, _group] + [_manual, _manual, _named] * (depth > 0)
        for _ in range(size):
            self.source.choice(kinds)(self, scope, depth)

    def any(self, scope: _Scope, shape: Shape | None = None) -> tuple[str, Shape]:
        fitting = [value for value in scope.values if shape is None or value[1] == shape]
        return fitting[-1] if self.source.random() < 0.5 else self.source.choice(fitting)

    def new(self, scope: _Scope, shape: Shape) -> str:
        self.count += 1
        scope.values.append((f"%{self.count}", shape))
        return f"%{self.count}"

    def sharding(self, scope: _Scope, lead: tuple[tuple[str, ...], tuple[str, ...]] = ((), ()), manual: tuple[str, ...] = ()) -> str:
        """A random sharding over the free axes; `lead` are manual axes that stand first, of `manual` the rest is replicated."""
        pieces = []
        for axis in scope.free:
            if axis in manual:
                continue
            split = _AXES[axis] == 4 and self.source.random() < 0.3
            pieces += [f'"{axis}":(1)2', f'"{axis}":(2)2'] if split else [f'"{axis}"']
        self.source.shuffle(pieces)
        dims: list[list[str]] = [[f'"{axis}"' for axis in axes] for axes in lead]
        replicated = [f'"{axis}"' for axis in manual if axis not in (*lead[0], *lead[1])]
        for piece in pieces:
            chance = self.source.random()
            dim = self.source.choice(dims)
            if chance < 0.4 and not (dim and ":(1)" in dim[-1] and piece.endswith("(2)2")):
                dim.append(piece)
            elif chance > 0.95:
                replicated.append(piece)
        order = [name for axis in _AXES for name in (f'"{axis}"', f'"{axis}":(1)2', f'"{axis}":(2)2') if name in replicated]
        text = ", ".join(order).replace('"deep":(1)2, "deep":(2)2', '"deep"')
        written = ", ".join(self.dimension(dim, self.source.random() < 0.6) for dim in dims)
        return f"<@mesh, [{written}]{f', replicated={{{text}}}' if text else ''}>"

    def dimension(self, axes: list[str], is_open: bool) -> str:
        stated = "{" + ", ".join([*axes, "?"] if is_open else axes) + "}"
        may_have = self.priorities and (axes or is_open)
        return stated + (f"p{self.source.randint(0, 2)}" if may_have and self.source.random() < 0.4 else "")

    def attribute(self, scope: _Scope) -> str:
        return f" {{sdy.sharding = #sdy.sharding{self.sharding(scope)}}}" if self.source.random() < 0.4 else ""


def _type(shape: Shape) -> str:
    return f"tensor<{shape[0]}x{shape[1]}xf32>"


def _unary(w: _Writer, scope: _Scope, _: int) -> None:
    value, shape = w.any(scope)
    w.lines.append(f"{w.new(scope, shape)} = stablehlo.negate {value} : {_type(shape)}")


def _binary(w: _Writer, scope: _Scope, _: int) -> None:
    value, shape = w.any(scope)
    other, _shape = w.any(scope, shape)
    w.lines.append(f"{w.new(scope, shape)} = stablehlo.add {value}, {other} : {_type(shape)}")


def _dot(w: _Writer, scope: _Scope, _: int) -> None:
    value, shape = w.any(scope)
    others = [each for each in scope.values if each[1][0] == shape[1]]
    if others:
        other, right = w.source.choice(others)
        types = f"({_type(shape)}, {_type(right)}) -> {_type((shape[0], right[1]))}"
        w.lines.append(f"{w.new(scope, (shape[0], right[1]))} = stablehlo.dot {value}, {other} : {types}")


def _transpose(w: _Writer, scope: _Scope, _: int) -> None:
    value, shape = w.any(scope)
    types = f"({_type(shape)}) -> {_type(shape[::-1])}"
    w.lines.append(f"{w.new(scope, shape[::-1])} = stablehlo.transpose {value}, dims = [1, 0] : {types}")


def _constraint(w: _Writer, scope: _Scope, _: int) -> None:
    value, shape = w.any(scope)
    sharding = w.sharding(scope)
    w.lines.append(f"{w.new(scope, shape)} = sdy.sharding_constraint {value} {sharding} : {_type(shape)}")


def _group(w: _Writer, scope: _Scope, _: int) -> None:
    """A group of two new values of one shape; no value is in two groups."""
    value, shape = w.any(scope)
    w.count += 1
    group = w.count
    for _member in range(2):
        other, _shape = w.any(scope, shape)
        made = w.new(scope, shape)
        w.lines.append(f"{made} = stablehlo.add {value}, {other} : {_type(shape)}")
        w.lines.append(f"sdy.sharding_group {made} group_id={group} : {_type(shape)}")


def _manual(w: _Writer, scope: _Scope, depth: int) -> None:
    operands = [w.any(scope) for _ in range(w.source.randint(1, 2))]
    manual = tuple(axis for axis in scope.free if w.source.random() < 0.3)
    inner = _Scope(tuple(axis for axis in scope.free if axis not in manual), [])
    stated, arguments = [], []
    for _value, shape in operands:
        lead: tuple[list[str], list[str]] = ([], [])
        local = list(shape)
        for axis in manual:
            i = w.source.randrange(2)
            if w.source.random() < 0.6 and local[i] % _AXES[axis] == 0:
                lead[i].append(axis)
                local[i] //= _AXES[axis]
        stated.append(w.sharding(scope, (tuple(lead[0]), tuple(lead[1])), manual))
        arguments.append(f"{w.new(inner, (local[0], local[1]))}: {_type((local[0], local[1]))}")
    names, types = ", ".join(value for value, _ in operands), ", ".join(_type(shape) for _, shape in operands)
    start = len(w.lines)
    w.lines.append("")
    w.body(inner, 3, depth - 1)
    result, shape = w.any(inner)
    axes = [axis for axis in manual if w.source.random() < 0.6]
    out = w.sharding(scope, (tuple(axes), ()), manual)
    whole = shape[0]
    for axis in axes:
        whole *= _AXES[axis]
    listed = ", ".join(f'"{axis}"' for axis in manual)
    w.lines.append(f"sdy.return {result} : {_type(shape)}")
    made = w.new(scope, (whole, shape[1]))
    w.lines[start] = (
        f"{made} = sdy.manual_computation({names}) in_shardings=[{', '.join(stated)}] out_shardings=[{out}] "
        f"manual_axes={{{listed}}} ({', '.join(arguments)}) {{"
    )
    w.lines.append(f"}} : ({types}) -> {_type((whole, shape[1]))}")


def _named(w: _Writer, scope: _Scope, depth: int) -> None:
    value, shape = w.any(scope)
    inner = _Scope(scope.free, [])
    argument = w.new(inner, shape)
    start = len(w.lines)
    w.lines.append("")
    w.body(inner, 3, depth - 1)
    result, out = w.any(inner)
    stated = [f"{name}=[{w.sharding(scope)}]" for name in ("in_shardings", "out_shardings") if w.source.random() < 0.6]
    w.lines.append(f"sdy.return {result} : {_type(out)}")
    made = w.new(scope, out)
    w.lines[start] = f'{made} = sdy.named_computation<"f{w.count}">({value}) {" ".join(stated)} ({argument}: {_type(shape)}) {{'
    w.lines.append(f"}} : ({_type(shape)}) -> {_type(out)}")
