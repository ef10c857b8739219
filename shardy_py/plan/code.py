"""A plan as code to paste into the program that it is of, without this library: setup, and lines of the source rewritten."""

from __future__ import annotations

import ast
import functools
import itertools
import linecache
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from shardy_py.errors import UserError
from shardy_py.plan.checks.specs import spec_text
from shardy_py.plan.record import PlanRecord, Tree
from shardy_py.plan.values import PlannedValue

Style = Literal["constraints", "explicit", "logical"]
STYLES: tuple[Style, ...] = get_args(Style)

WIDTH = 110
"""Columns of a tree of specs on one line."""


@dataclass(frozen=True, order=True, slots=True)
class Span:
    """The place of an expression in a source file: lines from 1, columns in bytes from 0, the end excluded."""

    file: str
    line: int
    column: int
    end_line: int
    end_column: int

    @property
    def node(self) -> ast.expr | None:
        """The expression; None where the source has no such."""
        return _expressions(self.file, tuple(linecache.getlines(self.file))).get((self.line, self.column, self.end_line, self.end_column))


@functools.lru_cache(maxsize=64)
def _expressions(file: str, lines: tuple[str, ...]) -> Mapping[tuple[int, int, int, int], ast.expr]:
    try:
        tree = ast.parse("".join(lines), file)
    except (SyntaxError, ValueError):
        return {}
    nodes = [node for node in ast.walk(tree) if isinstance(node, ast.expr)]
    return {(n.lineno, n.col_offset, n.end_lineno or 0, n.end_col_offset or 0): n for n in reversed(nodes)}


@dataclass(frozen=True, slots=True)
class Splice:
    """A text in the place of a part of the source; of those that start at one place, the one with the lower rank comes first."""

    span: Span
    text: str
    rank: int = 0


def wrapped(span: Span, before: str, after: str) -> tuple[Splice, Splice]:
    """Texts in front of an expression and behind it; those of outer expressions are outside."""
    start = Span(span.file, span.line, span.column, span.line, span.column)
    end = Span(span.file, span.end_line, span.end_column, span.end_line, span.end_column)
    size = (span.end_line - span.line) * 100_000 + span.end_column - span.column
    return Splice(start, before, -size), Splice(end, after, size)


@dataclass(frozen=True, slots=True)
class Edit:
    """Lines of the source in the place of others.

    Attributes:
        file: The file.
        first: The first line that is replaced, from 1.
        last: The last.
        text: What stands there instead.
    """

    file: str
    first: int
    last: int
    text: str

    def __str__(self) -> str:
        lines = str(self.first) if self.first == self.last else f"{self.first}-{self.last}"
        return f"# {self.file}:{lines}\n{self.text}"


@dataclass(frozen=True)
class Code:
    """A plan as code to paste; its text is all of it.

    Attributes:
        style: As in `Plan.as_code`.
        setup: Statements that make the mesh and name the shardings of arguments and results.
        edits: Lines of the source to replace, each under a comment with its place.
        remarks: What the code leaves to be done.
    """

    style: Style
    setup: str
    edits: tuple[Edit, ...] = ()
    remarks: tuple[str, ...] = ()

    def __str__(self) -> str:
        return "\n".join([*(f"# {remark}" for remark in self.remarks), self.setup, *map(str, self.edits)])

    def patched(self, file: str) -> str:
        """The source of a file with the edits of it.

        Args:
            file: As in `edits`.
        """
        lines = linecache.getlines(file)
        for edit in sorted((edit for edit in self.edits if edit.file == file), key=lambda edit: -edit.first):
            lines[edit.first - 1 : edit.last] = [f"{edit.text}\n"]
        return "".join(lines)


def as_code(plan: PlanRecord, style: str) -> Code:
    """The plan as code, see `Plan.as_code`."""
    if style not in STYLES:
        raise UserError(
            f"there is no style {style!r}", where="Plan.as_code", why=f"styles are {', '.join(map(repr, STYLES))}", fix="use one of these"
        )
    if plan.variants is not None:
        return plan.variants.code(plan, style)
    raise UserError(
        "the plan was read from a file",
        where="Plan.as_code",
        why="a stored plan has neither the program's source nor a way to propagate it, so that nothing tells which lines it needs",
        fix="plan again, function.plan(*args).as_code(...), or pass the stored plan as in_shardings=",
    )


def without_jax(edits: Sequence[Edit]) -> list[str]:
    """A remark for each file with edits that does not import jax by its name."""
    files = list(dict.fromkeys(edit.file for edit in edits))
    imports = {file: re.search(r"^\s*import (.*, )?jax(,|$|\s)", "".join(linecache.getlines(file)), re.MULTILINE) for file in files}
    return [f"Add `import jax` to {file}." for file in files if imports[file] is None]


def edits_of(splices: Sequence[Splice]) -> tuple[Edit, ...]:
    """The edits of splices: whole lines, those that follow each other as one."""
    edits: list[Edit] = []
    for file in sorted({splice.span.file for splice in splices}):
        own = sorted({s for s in splices if s.span.file == file}, key=lambda s: (s.span.line, s.span.column, s.rank))
        lines = [line.encode() for line in linecache.getlines(file)]
        starts = list(itertools.accumulate(map(len, lines), initial=0))
        blocks: list[list[Splice]] = []
        for splice in own:
            if blocks and splice.span.line <= blocks[-1][-1].span.end_line + 1:
                blocks[-1].append(splice)
            else:
                blocks.append([splice])
        for block in blocks:
            first, last = block[0].span.line, block[-1].span.end_line
            text, offset = b"".join(lines[first - 1 : last]), starts[first - 1]
            for splice in reversed(block):
                start, end = starts[splice.span.line - 1] + splice.span.column, starts[splice.span.end_line - 1] + splice.span.end_column
                text = text[: start - offset] + splice.text.encode() + text[end - offset :]
            edits.append(Edit(file, first, last, text.decode().rstrip("\n")))
    return tuple(edits)


def spec_code(value: PlannedValue) -> str:
    """The sharding of an input or output as code. Raises UserError where a spec cannot name it."""
    sharding = value.sharding
    text = "P()" if sharding is None else spec_text(sharding.with_dims(sharding.dims[: len(value.shape)]))
    if text is None:
        raise UserError(
            f"{value.path} is cut along a part of a mesh axis: {value.text}",
            where="Plan.as_code",
            why="a PartitionSpec names whole axes",
            fix="plan on a mesh whose axes are these parts",
        )
    spec = f"jax.{text}"
    return f"jax.NamedSharding(mesh, {spec}, memory_kind={value.memory_kind!r})" if value.memory_kind else spec


def mesh_code(plan: PlanRecord, axis_type: str) -> str:
    """The statement that makes the mesh."""
    names, sizes = tuple(plan.mesh.shape), tuple(plan.mesh.shape.values())
    return f"mesh = jax.make_mesh({sizes}, {names}, axis_types=(jax.sharding.AxisType.{axis_type},) * {len(sizes)})"


class Trees:
    """Statements that name the shardings of arguments and results, in their structure or, where it has classes, by path."""

    def __init__(self, plan: PlanRecord) -> None:
        if plan.pytrees is None:
            raise UserError("a plan of MLIR text", where="Plan.as_code", why="it has no source in Python", fix="plan the function itself")
        self.plan = plan
        self.structure = plan.pytrees.structure(plan)
        self.known: dict[tuple[Tree | str, ...], str] = {}
        self.tables: list[str] = []

    def inputs(self) -> str:
        """A tuple of the specs of positional arguments."""
        args, kwargs = self.structure.inputs.children
        if kwargs.leaves:
            names = ", ".join(map(str, kwargs.keys))
            why = "in_shardings= of jax.jit are of positional arguments"
            raise UserError(f"keyword arguments {names}", where="Plan.as_code", why=why, fix="plan with positional arguments")
        values, items = iter(self.plan.inputs), list[str]()
        for number, (name, node) in enumerate(zip(self.structure.names, args.children, strict=True)):
            own = [next(values) for _ in range(node.leaves)]
            items.append(self._tree(node, own, name, 4) or "None")
            self.known[(node, *map(spec_code, own))] = f"in_shardings[{number}]"
        return _sequence("(", items, ",)" if len(items) == 1 else ")", 0)

    def outputs(self) -> str:
        """The specs of the result."""
        return self._tree(self.structure.outputs, self.plan.outputs, "result", 0) or "None"

    def _tree(self, node: Tree, values: Sequence[PlannedValue], path: str, indent: int) -> str | None:
        """A tree of specs as code; one spec for a part all of whose leaves have it, None of a part without leaves."""
        specs = list(map(spec_code, values))
        if len(set(specs)) <= 1:
            return specs[0] if specs else None
        if (known := self.known.get((node, *specs))) is not None:
            return known
        if node.kind == "node":
            return self._table(values, specs, path)
        keys = node.keys or range(len(node.children))
        rest = iter(values)
        children = [(child, [next(rest) for _ in range(child.leaves)]) for child in node.children]
        if node.kind == "list" and len({(child, *map(spec_code, own)) for child, own in children}) == 1:
            return f"[{self._tree(*children[0], f'{path}[0]', indent)}] * {len(children)}"
        items = [self._tree(child, own, f"{path}[{key!r}]", indent + 4) or "None" for key, (child, own) in zip(keys, children, strict=True)]
        if node.kind == "dict":
            return _sequence("{", [f"{key!r}: {item}" for key, item in zip(keys, items, strict=True)], "}", indent)
        return (
            _sequence("[", items, "]", indent) if node.kind == "list" else _sequence("(", items, ",)" if len(items) == 1 else ")", indent)
        )

    def _table(self, values: Sequence[PlannedValue], specs: Sequence[str], path: str) -> str:
        name = f"SPECS_{len(self.tables)}" if self.tables else "SPECS"
        rows = [f"    {value.path.removeprefix(path)!r}: {spec}," for value, spec in zip(values, specs, strict=True)]
        self.tables.append("\n".join([f"{name} = {{", *rows, "}"]))
        result = f"jax.eval_shape({self.plan.name}, {', '.join(self.structure.names)})"
        example = result + path.removeprefix("result") if values[0].kind == "output" else path
        return f"jax.tree_util.tree_map_with_path(lambda path, _: {name}[jax.tree_util.keystr(path)], {example})"


def _sequence(start: str, items: Sequence[str], end: str, indent: int) -> str:
    text = f"{start}{', '.join(items)}{end}"
    if len(text) + indent <= WIDTH and "\n" not in text:
        return text
    inner = " " * (indent + 4)
    return "\n".join([start, *(f"{inner}{item}," for item in items), " " * indent + end.removeprefix(",")])


def setup_of(plan: PlanRecord, axis_type: str) -> str:
    """The statements that make the mesh and name the shardings of arguments and results."""
    trees = Trees(plan)
    inputs, outputs = trees.inputs(), trees.outputs()
    results = (
        f"out_shardings = {outputs}" if "jax.eval_shape" not in outputs else f"with jax.set_mesh(mesh):\n    out_shardings = {outputs}"
    )
    call = f"# jax.jit({plan.name}, in_shardings=in_shardings, out_shardings=out_shardings), called inside `with jax.set_mesh(mesh):`"
    return "\n".join(["import jax", mesh_code(plan, axis_type), *trees.tables, f"in_shardings = {inputs}", results, call])
