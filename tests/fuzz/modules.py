"""Changes modules by their grammar: types, shardings, meshes, ops, operands, attributes, regions, and now and then single tokens."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from typing import NamedTuple

from tests.fuzz.texts import draw_module, is_readable

_TENSOR = re.compile(r"tensor<((?:[\d?]+x)*)([a-z]\w*(?:<\w+>)?)>")
_SHARDING = re.compile(r"<@([\w.]+), \[((?:\{[^{}]*\}p?\d*(?:, )?)*)\][^<>\n]*>")
_MESH = re.compile(r"sdy\.mesh @([\w.]+) = <\[([^\]]*)\][^>\n]*>")
_AXIS = re.compile(r'"([^"]+)"=(\d+)')
_NUMBER = re.compile(r"(?<![\w.%@#?>-])-?\d+(?![\w.x])")
_VALUE = re.compile(r"%\w+(?:#\d+)?")
_ASSIGNED = re.compile(r"^\s*(%\w+) = .*(tensor<[^<>]*(?:<\w+>)?>)$", re.MULTILINE)
_TOKEN = re.compile(r'"[^"\n]*"|->|[#%@!]?[\w.$]+|\S')
_SIZES = ("1", "2", "3", "4", "6", "7", "8", "12", "16", "0", "?", "4611686018427387904")
_DTYPES = ("f32", "bf16", "i32", "i1", "f64", "complex<f32>", "ui8", "i4", "f8E4M3FN", "index")
_NUMBERS = ("-1", "0", "1", "2", "3", "5", "7", "16", "4294967296", "9223372036854775807", "-9223372036854775808")
_UNARY = "abs negate tanh exponential not floor sign sqrt cosine real imag popcnt is_finite reverse transpose reshape convert".split()
_BINARY = "add multiply subtract divide maximum and or power dot complex atan2 shift_left".split()


class Mesh(NamedTuple):
    """A mesh of a module.

    Attributes:
        name: Its name.
        axes: Name and size of each axis.
    """

    name: str
    axes: tuple[tuple[str, int], ...]


def random_axis(draw: random.Random, mesh: Mesh, unused: list[str]) -> str:
    """A reference to an axis or to a part of one, mostly a valid one.

    Args:
        draw: Where choices come from.
        mesh: The mesh.
        unused: Axes that are not yet referred to; the one that is taken is removed.
    """
    if not mesh.axes or draw.random() < 0.02:
        return '"nowhere"'
    name = draw.choice(unused or [axis for axis, _ in mesh.axes])
    if name in unused:
        unused.remove(name)
    size = dict(mesh.axes)[name]
    if draw.random() < 0.75:
        return f'"{name}"'
    pre = draw.choice([n for n in range(1, min(size, 64) + 1) if size % n == 0] + [3])
    return f'"{name}":({pre}){draw.choice([2, 2, 2, 4, 1, size])}'


def random_sharding(draw: random.Random, rank: int, mesh: Mesh) -> str:
    """A sharding of a value, mostly a valid one.

    Args:
        draw: Where choices come from.
        rank: The rank of the value.
        mesh: The mesh.
    """
    unused = [name for name, _ in mesh.axes]
    dims = []
    for _ in range(rank if draw.random() < 0.98 else rank + 1):
        count = draw.choice([0, 1, 1, 2]) if unused and draw.random() < 0.6 else 0
        axes = ", ".join(random_axis(draw, mesh, unused) for _ in range(count))
        is_open = "?" if draw.random() < 0.4 else ""
        priority = f"p{draw.randint(0, 3)}" if draw.random() < 0.08 else ""
        dims.append(f"{{{', '.join(filter(None, (axes, is_open)))}}}{priority}")
    rest = [f", {kind}={{{random_axis(draw, mesh, unused)}}}" for kind in ("replicated", "unreduced") if unused and draw.random() < 0.08]
    return f"<@{mesh.name}, [{', '.join(dims)}]{''.join(rest)}>"


class Editor:
    """A module while it is changed.

    Args:
        draw: Where choices come from.
    """

    def __init__(self, draw: random.Random) -> None:
        self.draw = draw
        self.text = draw_module(draw)
        self.count = 0

    def mesh(self) -> Mesh:
        """One of the meshes, or one that is not declared."""
        meshes = [Mesh(name, tuple((axis, int(size)) for axis, size in _AXIS.findall(axes))) for name, axes in _MESH.findall(self.text)]
        return self.draw.choice(meshes) if meshes and self.draw.random() < 0.97 else Mesh("other", (("a", 2),))

    def axis(self, mesh: Mesh, unused: list[str]) -> str:
        """As `random_axis`."""
        return random_axis(self.draw, mesh, unused)

    def axes(self, mesh: Mesh, unused: list[str]) -> str:
        """References with commas between."""
        return ", ".join(self.axis(mesh, unused) for _ in range(self.draw.choice([0, 1, 1, 2])))

    def sharding(self, rank: int, mesh: Mesh | None = None) -> str:
        """As `random_sharding`, over one of the meshes."""
        return random_sharding(self.draw, rank, self.mesh() if mesh is None else mesh)

    def replace(self, match: re.Match[str], new: str) -> None:
        """Puts a text in place of what was matched."""
        self.text = self.text[: match.start()] + new + self.text[match.end() :]

    def any(self, pattern: re.Pattern[str]) -> re.Match[str] | None:
        """A place that matches, or None."""
        matches = list(pattern.finditer(self.text))
        return self.draw.choice(matches) if matches else None

    def new_name(self) -> str:
        """A name of a value that the module does not have."""
        self.count += 1
        return f"%new{self.count}"

    def insert(self, make: Callable[[str, str, int], tuple[str, str | None]]) -> None:
        """Adds an op behind a value, and lets what follows use its result.

        Args:
            make: Gives the text of the op and the name of its result, from the value, its type and its rank.
        """
        match = self.any(_ASSIGNED)
        if match is None:
            return
        value, type_ = match[1], match[2]
        text, result = make(value, type_, type_.count("x") - ("complex" in type_))
        rest = self.text[match.end() :]
        if result is not None and self.draw.random() < 0.8:
            rest = re.sub(rf"{re.escape(value)}(?![\w#])", result, rest, count=self.draw.choice([0, 1]))
        self.text = f"{self.text[: match.end()]}\n    {text}{rest}"


def resize(e: Editor) -> None:
    """One size becomes another, wherever it stands in a type."""
    sizes = sorted({size for dims, _ in _TENSOR.findall(e.text) for size in dims.split("x") if size})
    if sizes:
        old, new = e.draw.choice(sizes), e.draw.choice(_SIZES)
        e.text = re.sub(rf"(?<=[<x]){re.escape(old)}(?=x)", new, e.text)


def change_shape(e: Editor) -> None:
    """A type gets another shape or element type, everywhere or in one place."""
    match = e.any(_TENSOR)
    if match is None:
        return
    dims, dtype = [dim for dim in match[1].split("x") if dim], match[2]
    kind = e.draw.randrange(4)
    if kind == 0 and dims:
        dims[e.draw.randrange(len(dims))] = e.draw.choice(_SIZES)
    elif kind == 1 and dims:
        del dims[e.draw.randrange(len(dims))]
    elif kind == 2:
        dims.insert(e.draw.randint(0, len(dims)), e.draw.choice(_SIZES))
    else:
        dtype = e.draw.choice(_DTYPES)
    new = f"tensor<{'x'.join([*dims, dtype])}>"
    if e.draw.random() < 0.7:
        e.text = e.text.replace(match[0], new)
    else:
        e.replace(match, new)


def change_sharding(e: Editor) -> None:
    """A sharding becomes another of its rank."""
    match = e.any(_SHARDING)
    if match is not None:
        e.replace(match, e.sharding(match[2].count("{")))


def change_mesh(e: Editor) -> None:
    """A mesh gets, loses or changes axes."""
    match = e.any(_MESH)
    if match is None:
        return
    axes = [[name, size] for name, size in _AXIS.findall(match[2])]
    kind = e.draw.randrange(6)
    if kind <= 1 and axes:
        e.draw.choice(axes)[1] = e.draw.choice(["1", "2", "3", "4", "6", "8", "4294967296"])
    elif kind == 2 and axes:
        axes.remove(e.draw.choice(axes))
    elif kind == 3:
        axes.append([e.draw.choice(["new", "a b", "\\22", "é"]), "2"])
    elif kind == 4 and len(axes) > 1:
        e.draw.shuffle(axes)
    else:
        e.replace(match, f"sdy.mesh @{match[1]} = <[], device_ids=[{e.draw.randint(0, 3)}]>")
        return
    listed = ", ".join(f'"{name}"={size}' for name, size in axes)
    ids = ", device_ids=[1, 0, 2, 3]" if e.draw.random() < 0.1 else ""
    e.replace(match, f"sdy.mesh @{match[1]} = <[{listed}]{ids}>")


def add_sharding(e: Editor) -> None:
    """An op states the sharding of its result."""
    match = e.any(_ASSIGNED)
    if match is None or " : " not in match[0]:
        return
    before, _, type_ = match[0].rpartition(" : ")
    stated = f"{{sdy.sharding = #sdy.sharding_per_value<[{e.sharding(match[2].count('x'))}]>}}"
    e.replace(match, f"{before} {stated} : {type_}")


def add_rule(e: Editor) -> None:
    """An op says a sharding rule of its own."""
    match = e.any(_ASSIGNED)
    if match is None or " : " not in match[0]:
        return
    before, _, type_ = match[0].rpartition(" : ")
    sides = [[_TENSOR.match(found[0]) for found in _TENSOR.finditer(side)] for side in type_.partition("->")[::2]]
    if not sides[1]:
        sides = [sides[0] * len(_VALUE.findall(before.partition("=")[2])), sides[0]]
    letters = "ijklmn"
    sizes: dict[str, str] = {}

    def factors(side: list[re.Match[str] | None]) -> str:
        parts = []
        for tensor in side:
            dims = [dim for dim in tensor[1].split("x") if dim] if tensor else []
            named = [letters[k] if e.draw.random() < 0.9 else e.draw.choice(letters) for k in range(min(len(dims), 6))]
            sizes.update(zip(named, dims))
            parts.append(f"[{', '.join(named)}]")
        return ", ".join(parts)

    written = f"({factors(sides[0])})->({factors(sides[1])})"
    listed = ", ".join(f"{name}={size}" for name, size in sorted(sizes.items()))
    chosen = [kind for kind in ("reduction", "need_replication", "permutation") if e.draw.random() < 0.2]
    kinds = "".join(f" {kind}={{{e.draw.choice(letters)}}}" for kind in chosen)
    rule = f"#sdy.op_sharding_rule<{written} {{{listed}}}{kinds}{', custom' if e.draw.random() < 0.5 else ''}>"
    e.replace(match, f"{before} {{sdy.sharding_rule = {rule}}} : {type_}")


def add_sdy_op(e: Editor) -> None:
    """A value passes through an op of SDY."""

    def make(value: str, type_: str, rank: int) -> tuple[str, str | None]:
        result, mesh = e.new_name(), e.mesh()
        unused = [name for name, _ in mesh.axes]
        lists = ", ".join(f"{{{e.axes(mesh, unused)}}}" for _ in range(rank))
        out = f"out_sharding={e.sharding(rank, mesh)} : {type_}"
        dims = [e.draw.randint(0, max(rank, 1)) for _ in range(2)]
        kind = e.draw.choice(
            [
                f"sdy.sharding_constraint {value} {e.sharding(rank)} : {type_}",
                f"sdy.reshard {value} {e.sharding(rank)} : {type_}",
                f"sdy.propagation_barrier {value} allowed_direction={e.draw.choice(['NONE', 'FORWARD', 'BACKWARD'])} : {type_}",
                f"sdy.data_flow_edge {value} sharding={e.sharding(rank)} : {type_}",
                f"sdy.data_flow_edge {value} : {type_}",
                f"sdy.func_data_flow_edge {value} : {type_}",
                f"sdy.all_gather [{lists}] {value} {out}",
                f"sdy.all_slice [{lists}] {value} {out}",
                f"sdy.reduce_scatter [{lists}] {value} {out}",
                f"sdy.all_reduce {{{e.axes(mesh, unused)}}} {value} {out}",
                f"sdy.all_to_all [{{{e.axis(mesh, unused)}}}: {dims[0]}->{dims[1]}] {value} {out}",
                f"sdy.collective_permute {value} {out}",
                f"sdy.sharded_to_unreduced [{lists}] {value} {out}",
                f"sdy.replicated_to_unreduced {{{e.axes(mesh, unused)}}} {value} {out}",
                "group",
            ]
        )
        if kind == "group":
            return f"sdy.sharding_group {value} group_id={e.draw.randint(0, 3)} : {type_}", None
        return f"{result} = {kind}", result

    e.insert(make)


def add_op(e: Editor) -> None:
    """A value passes through an op of StableHLO, or one that nobody knows."""

    def make(value: str, type_: str, rank: int) -> tuple[str, str | None]:
        result = e.new_name()
        target = e.draw.choice(["Sharding", "foo", "xla.sdy.X", "annotate_device_placement"])
        numbers = ", ".join(map(str, e.draw.sample(range(rank), rank)))
        text = e.draw.choice(
            [
                f"stablehlo.{e.draw.choice(_UNARY)} {value} : {type_}",
                f"stablehlo.{e.draw.choice(_BINARY)} {value}, {value} : {type_}",
                f"stablehlo.optimization_barrier {value} : {type_}",
                f"stablehlo.custom_call @{target}({value}) : ({type_}) -> {type_}",
                f'"other.op"({value}) {{"k": 1}} : ({type_}) -> {type_}',
                f'"other.op"({value}) : ({type_}) -> {type_}',
                f"stablehlo.reverse {value}, dims = [{numbers}] : {type_}",
                f"stablehlo.transpose {value}, dims = [{numbers}] : ({type_}) -> {type_}",
                f"stablehlo.reshape {value} : ({type_}) -> {type_}",
                f"stablehlo.broadcast_in_dim {value}, dims = [{numbers}] : ({type_}) -> {type_}",
                f"stablehlo.concatenate {value}, {value}, dim = {e.draw.randint(0, 1)} : ({type_}, {type_}) -> {type_}",
                f"stablehlo.dot_general {value}, {value}, contracting_dims = [0] x [1] : ({type_}, {type_}) -> {type_}",
            ]
        )
        return f"{result} = {text}", result

    e.insert(make)


def add_region(e: Editor) -> None:
    """A value passes through a computation, a loop or a branch, or several inside each other."""

    def make(value: str, type_: str, rank: int) -> tuple[str, str | None]:
        depth = e.draw.choice([1, 1, 1, 1, 2, 3, 60, 140])
        kinds = e.draw.choices(["named", "manual", "while", "if"], k=min(depth, 3))
        arguments = [value]
        for level in range(depth):
            arguments.append(arguments[-1] if kinds[level % len(kinds)] == "if" else e.new_name())
        last = e.new_name()
        text = f"{last} = stablehlo.abs {arguments[-1]} : {type_}\n"
        for level in reversed(range(depth)):
            result = e.new_name()
            text = _region(e, kinds[level % len(kinds)], result, arguments[level], arguments[level + 1], text, last, type_, rank)
            last = result
        return text, last

    e.insert(make)


def _region(e: Editor, kind: str, result: str, operand: str, argument: str, body: str, last: str, type_: str, rank: int) -> str:
    """An op that takes `operand` into its region, as `argument`, and gives `last` of the region as `result`."""
    if kind in ("if", "while"):
        condition = e.new_name()
        constant = f"{condition} = stablehlo.constant dense<false> : tensor<i1>\n"
        end = f"stablehlo.return {last} : {type_} }}"
        if kind == "if":
            other = f"{{ stablehlo.return {operand} : {type_} }}"
            return f'{constant}{result} = "stablehlo.if"({condition}) ({{ {body}{end}, {other}) : (tensor<i1>) -> {type_}\n'
        head = f"{result} = stablehlo.while({argument} = {operand}) : {type_}\n"
        return f"{head}cond {{ {constant}stablehlo.return {condition} : tensor<i1> }} do {{ {body}{end}\n"
    stated = e.sharding(rank)
    shardings = f"in_shardings=[{stated}] out_shardings=[{stated if e.draw.random() < 0.8 else e.sharding(rank)}]"
    if kind == "named":
        head = f'sdy.named_computation<"named{e.draw.randrange(3)}">({operand}) {shardings} ({argument}: {type_}) {{\n'
    else:
        head = f"sdy.manual_computation({operand}) {shardings} manual_axes={{{e.axes(e.mesh(), [])}}} ({argument}: {type_}) {{\n"
    return f"{result} = {head}{body}sdy.return {last} : {type_} }} : ({type_}) -> {type_}\n"


_MAIN = re.compile(r"func\.func (?:public )?@main\((?P<arguments>.*)\) -> \(?(?P<result>tensor<[^<>]*>)[^,\n]*\{$", re.MULTILINE)


def call_deeper(e: Editor) -> None:
    """Functions that call the main one, or each other many times."""
    match = _MAIN.search(e.text)
    if match is None:
        return
    types, result = re.findall(r"%\w+: (tensor<[^<>]*(?:<\w+>)?>)", match["arguments"]), match["result"]
    arguments = ", ".join(f"%arg{i}: {type_}" for i, type_ in enumerate(types))
    operands = ", ".join(f"%arg{i}" for i in range(len(types)))
    depth, calls = e.draw.choice([1, 1, 2, 5, 25, 150]), e.draw.choice([1, 2])
    functions = []
    for level in range(1, depth + 1):
        name = "@main" if level == depth else f"private @level{level}"
        body = [f"%{k} = call @level{level - 1}({operands}) : ({', '.join(types)}) -> {result}" for k in range(calls)]
        functions.append("\n".join([f"func.func {name}({arguments}) -> {result} {{", *body, f"return %{calls - 1} : {result}", "}"]))
    head = match[0].replace("public ", "").replace("@main", "private @level0")
    text = (e.text[: match.start()] + head + e.text[match.end() :]).rstrip()
    inside = text.startswith("module")
    e.text = "\n".join([text[:-1] if inside else text, *functions, "}" if inside else ""])


def change_number(e: Editor) -> None:
    """A number becomes another."""
    match = e.any(_NUMBER)
    if match is not None:
        e.replace(match, e.draw.choice(_NUMBERS))


def change_operand(e: Editor) -> None:
    """A value is used in place of another."""
    match, other = e.any(_VALUE), e.any(_VALUE)
    if match is not None and other is not None:
        e.replace(match, other[0])


def change_op(e: Editor) -> None:
    """An op becomes another with as many operands."""
    names = e.draw.choice([_UNARY, _BINARY])
    match = e.any(re.compile(rf"stablehlo\.(?:{'|'.join(names)})\b"))
    if match is not None:
        e.replace(match, f"stablehlo.{e.draw.choice(names)}")


def change_lines(e: Editor) -> None:
    """A line goes, comes twice, or goes elsewhere."""
    lines = e.text.split("\n")
    at = e.draw.randrange(len(lines))
    kind = e.draw.randrange(3)
    line = lines[at] if kind == 1 else lines.pop(at)
    if kind:
        lines.insert(e.draw.randint(0, len(lines)), re.sub(r"^(\s*%\w+)( =)", r"\1_2\2", line) if kind == 1 else line)
    e.text = "\n".join(lines)


def change_token(e: Editor) -> None:
    """A token goes, comes twice, or becomes another one of the module."""
    match, other = e.any(_TOKEN), e.any(_TOKEN)
    if match is not None and other is not None:
        e.replace(match, e.draw.choice(["", f"{match[0]} {match[0]}", other[0]]))


def add_attribute(e: Editor) -> None:
    """An argument, a function or a module gets an attribute, of the right kind or another."""
    rank = e.draw.randint(0, 3)
    sharding = e.sharding(rank)
    stated = (f"#sdy.sharding{sharding}", f"#sdy.sharding_per_value<[{sharding}]>")
    value = e.draw.choice([*stated, "3 : i64", '"text"', "unit", "[]", "{}", "dense<1> : tensor<2xi32>"])
    names = ("sharding", "sharding", "sharding_rule", "propagation_edges", "sharding_origins", "original_func_name", "func_manual_axes")
    name = e.draw.choice([*(f"sdy.{name}" for name in names), "execution_thread", "mhlo.sharding", "x.y"])
    if e.draw.random() < 0.6:
        match = e.any(re.compile(r"%\w+: tensor<[^<>]*>(?=[,)])"))
        if match is not None:
            e.replace(match, f"{match[0]} {{{name} = {value}}}")
        return
    match = e.any(re.compile(r"^ *(?:func\.func .*|module *)(?=\{\n)", re.MULTILINE))
    if match is not None:
        e.replace(match, f"{match[0].rstrip()} attributes {{{name} = {value}}} ")


CHANGES: tuple[tuple[Callable[[Editor], None], int], ...] = (
    (add_attribute, 2),
    (add_op, 4),
    (add_region, 3),
    (add_rule, 3),
    (add_sdy_op, 8),
    (add_sharding, 6),
    (call_deeper, 4),
    (change_lines, 2),
    (change_mesh, 3),
    (change_number, 2),
    (change_op, 2),
    (change_operand, 3),
    (change_shape, 2),
    (change_sharding, 8),
    (change_token, 1),
    (resize, 3),
)
"""Each change with how often it is drawn."""


def damaged_module(draw: random.Random) -> str:
    """A module with a few changes. Most changes that MLIR refuses are taken back, for passes see nothing of them."""
    editor = Editor(draw)
    changes, weights = [change for change, _ in CHANGES], [weight for _, weight in CHANGES]
    for _ in range(draw.choice([1, 2, 3, 3, 4, 5, 6])):
        before = editor.text
        draw.choices(changes, weights)[0](editor)
        if draw.random() < 0.97 and not is_readable(editor.text):
            editor.text = before
    return editor.text
