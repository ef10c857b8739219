"""A plan as code to paste into the program that it is of, without this library: setup, and lines of the source rewritten."""

from __future__ import annotations

import ast
import copy
import functools
import itertools
import linecache
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from shardy_py.errors import UserError
from shardy_py.plan.checks.specs import spec_text
from shardy_py.plan.record import PlanRecord, Tree
from shardy_py.plan.values import PlannedValue

Style = Literal["constraints", "explicit", "logical"]
STYLES: tuple[Style, ...] = get_args(Style)

WIDTH = 110
"""Columns of a tree of specs on one line."""


@dataclass(frozen=True, order=True, slots=True)
class SourceSpan:
    """The place of an expression in a source file: lines from 1, columns in bytes from 0, the end excluded."""

    file: str
    line: int
    column: int
    end_line: int
    end_column: int

    def of(self, node: ast.expr) -> SourceSpan:
        """The place of another expression of the file."""
        return SourceSpan(self.file, *_place(node))

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
    return {_place(node): node for node in reversed(nodes)}


def _place(node: ast.expr) -> tuple[int, int, int, int]:
    return node.lineno, node.col_offset, node.end_lineno or 0, node.end_col_offset or 0


@dataclass(frozen=True, slots=True)
class Edit:
    """Lines of the source in the place of others.

    Attributes:
        file: The file.
        first: The first line that is replaced, from 1.
        last: The last.
        text: What stands there instead.

    Example:
        >>> print(Edit("train.py", 7, 7, "x = f(x)"))
        # train.py:7
        x = f(x)
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

    Example:
        >>> import jax, jax.numpy as jnp, shardy_py as sp
        >>> plan = sp.auto_shard(jnp.dot, mesh={"x": 4}, in_shardings=(jax.P(None, "x"), jax.P("x"))).plan(jnp.eye(8), jnp.eye(8))
        >>> print(plan.as_code().setup.splitlines()[2])
        in_shardings = (jax.P(None, 'x'), jax.P('x'))
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
        lines = list(linecache.getlines(file))  # that of linecache is the cached one
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
        why="a stored plan has neither the program's source nor a way to propagate it, so the lines to constrain are unknown",
        fix="plan again, function.plan(*args).as_code(...), or pass the stored plan as in_shardings=",
    )


def without_jax(edits: Sequence[Edit]) -> list[str]:
    """A remark for each file with edits that does not import jax by its name."""
    files = list(dict.fromkeys(edit.file for edit in edits))
    imports = {file: re.search(r"^\s*import (.*, )?jax(,|$|\s)", "".join(linecache.getlines(file)), re.MULTILINE) for file in files}
    return [f"Add `import jax` to {file}." for file in files if imports[file] is None]


Change = Callable[[ast.expr], ast.expr]
"""Makes another expression of one of the source."""


def edits_of(changes: Mapping[SourceSpan, Change]) -> tuple[Edit, ...]:
    """The lines of the source with other expressions; of these the outermost are written anew."""
    blocks: list[list[SourceSpan]] = []
    for span in sorted(changes, key=lambda span: (span.file, span.line, span.column, -span.end_line, -span.end_column)):
        last = blocks[-1][-1] if blocks and blocks[-1][-1].file == span.file else None
        if last is None or span.line > last.end_line:
            blocks.append([span])
        elif (span.line, span.column) >= (last.end_line, last.end_column):
            blocks[-1].append(span)
    edits: list[Edit] = []
    for block in blocks:
        file, first, last_line = block[0].file, block[0].line, block[-1].end_line
        lines = [line.encode() for line in linecache.getlines(file)[first - 1 : last_line]]
        starts, text = list(itertools.accumulate(map(len, lines), initial=0)), b"".join(lines)
        for span in reversed(block):
            start, end = starts[span.line - first] + span.column, starts[span.end_line - first] + span.end_column
            text = text[:start] + ast.unparse(_Changing(changes).written(span)).encode() + text[end:]
        edits.append(Edit(file, first, last_line, text.decode().rstrip("\n")))
    return tuple(edits)


class _Changing(ast.NodeTransformer):
    def __init__(self, changes: Mapping[SourceSpan, Change]) -> None:
        self.changes = {(s.line, s.column, s.end_line, s.end_column): change for s, change in changes.items()}

    def written(self, span: SourceSpan) -> ast.expr:
        """The expression of a span with the changes."""
        return self.visit(copy.deepcopy(span.node) or ast.Constant(None))

    def visit(self, node: ast.AST) -> Any:
        """The node with changes inside made first."""
        change = self.changes.pop(_place(node), None) if isinstance(node, ast.expr) else None
        node = self.generic_visit(node)
        return node if change is None or not isinstance(node, ast.expr) else change(node)


def filled(template: str, *nodes: ast.expr) -> ast.expr:
    """An expression with others in the place of `_0`, `_1`, ..."""
    expression = ast.parse(template, mode="eval")
    names = {f"_{number}": node for number, node in enumerate(nodes)}
    for parent in ast.walk(expression):
        for name, value in ast.iter_fields(parent):
            if isinstance(value, ast.Name) and value.id in names:
                setattr(parent, name, names[value.id])
            elif isinstance(value, list):
                value[:] = [names.get(each.id, each) if isinstance(each, ast.Name) else each for each in value]
    return expression.body


def _is_path(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) or (isinstance(node, ast.Attribute) and _is_path(node.value))


def _is_literal(node: ast.expr) -> bool:
    try:
        ast.literal_eval(node)
    except ValueError:
        return False
    return True


TAKE_OUT_SHARDING = frozenset({"dot", "dot_general", "einsum", "matmul", "reshape"})
"""Functions and methods of JAX that take `out_sharding=`, and whose derivatives have rules then."""


def stated(spec: str, node: ast.expr) -> ast.expr:
    """An expression that JAX has no rule for, with its sharding: with `out_sharding=` where it takes that, else on Auto axes."""
    name = node.func.attr if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) else ""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.MatMult):
        return filled(f"jax.numpy.matmul(_0, _1, out_sharding={spec})", node.left, node.right)
    if isinstance(node, ast.Subscript):
        return filled(f"_0.at[_1].get(out_sharding={spec})", node.value, node.slice)
    if isinstance(node, ast.Call) and name in TAKE_OUT_SHARDING:
        return ast.Call(node.func, node.args, [*node.keywords, ast.keyword("out_sharding", filled(spec))])
    arrays: list[ast.expr] = []

    def parameter(value: ast.expr) -> ast.expr:
        if isinstance(value, ast.Lambda) or _is_literal(value):
            return value
        arrays.append(value)
        return ast.Name(f"x{len(arrays)}")

    if isinstance(node, ast.Call):
        keywords = [ast.keyword(each.arg, parameter(each.value)) for each in node.keywords]
        body: ast.expr = ast.Call(node.func, list(map(parameter, node.args)), keywords)
        if isinstance(node.func, ast.Attribute) and not (arrays and _is_path(node.func.value)):  # a method of an array
            body.func = ast.Attribute(parameter(node.func.value), name)
    elif isinstance(node, ast.BinOp):
        body = ast.BinOp(parameter(node.left), node.op, parameter(node.right))
    else:
        return filled(f"jax.reshard(_0, {spec})", node)
    if isinstance(node, ast.Call) and arrays == node.args and not node.keywords:
        return filled(
            f"jax.sharding.auto_axes(_0, out_sharding={spec})({', '.join(f'_{n + 1}' for n in range(len(arrays)))})", node.func, *arrays
        )
    names = ", ".join(f"x{number + 1}" for number in range(len(arrays)))
    values = ", ".join(f"_{number + 1}" for number in range(len(arrays)))
    return filled(f"jax.sharding.auto_axes(lambda {names}: _0, out_sharding={spec})({values})", body, *arrays)


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


class Trees:
    """Statements that name the shardings of arguments and results, in their structure or, where it has classes, by path."""

    def __init__(self, plan: PlanRecord, named: Sequence[int]) -> None:
        if plan.pytrees is None:
            raise UserError("a plan of MLIR text", where="Plan.as_code", why="it has no source in Python", fix="plan the function itself")
        self.plan = plan
        self.named = named
        self.structure = plan.pytrees.structure(plan)
        self.references: dict[tuple[Tree | str, ...], str] = {}
        self.tables: list[str] = []

    def inputs(self) -> str:
        """A tuple of the specs of positional arguments."""
        args, kwargs = self.structure.inputs.children
        if kwargs.leaves:
            names = ", ".join(map(str, kwargs.keys))
            why = "in_shardings= of jax.jit covers positional arguments only"
            raise UserError(f"keyword arguments {names}", where="Plan.as_code", why=why, fix="plan with positional arguments")
        values, items = iter(self.plan.inputs), list[str]()
        for number, (name, node) in enumerate(zip(self.structure.names, args.children, strict=True)):
            own = [next(values) for _ in range(node.leaves)]
            logical = f"nn.logical_to_mesh_sharding(nn.get_partition_spec({name}), mesh, rules)"
            items.append(logical if number in self.named else self._tree(node, own, name, 4) or "None")
            self.references[(node, *map(spec_code, own))] = f"in_shardings[{number}]"
        return _sequence("(", items, ",)" if len(items) == 1 else ")", 0)

    def outputs(self) -> str:
        """The specs of the result."""
        return self._tree(self.structure.outputs, self.plan.outputs, "result", 0) or "None"

    def _tree(self, node: Tree, values: Sequence[PlannedValue], path: str, indent: int) -> str | None:
        """A tree of specs as code; one spec for a part all of whose leaves have it, None of a part without leaves."""
        specs = list(map(spec_code, values))
        if len(set(specs)) <= 1:
            return specs[0] if specs else None
        if (name := self.references.get((node, *specs))) is not None:
            return name
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


def setup_of(plan: PlanRecord, axis_type: str, rules: Sequence[tuple[str, tuple[str, ...]]] = (), named: Sequence[int] = ()) -> str:
    """The statements that make the mesh and name the shardings of arguments and results; with rules for names, of `named` arguments."""
    trees, shape = Trees(plan, named), plan.mesh.shape
    types = f"(jax.sharding.AxisType.{axis_type},) * {len(shape)}"
    mesh = f"mesh = jax.make_mesh({tuple(shape.values())}, {tuple(shape)}, axis_types={types})"
    inputs, outputs = trees.inputs(), trees.outputs()
    results = (
        f"out_shardings = {outputs}" if "jax.eval_shape" not in outputs else f"with jax.set_mesh(mesh):\n    out_shardings = {outputs}"
    )
    where = "inside `with jax.set_mesh(mesh):`"
    if rules:
        texts = [repr((name, None if not axes else axes[0] if len(axes) == 1 else axes)) for name, axes in rules]
        trees.tables.insert(0, f"from flax import linen as nn\nrules = {_sequence('[', texts, ']', 0)}")
        where = "inside `with jax.set_mesh(mesh), nn.logical_axis_rules(rules):`"
    call = f"# jax.jit({plan.name}, in_shardings=in_shardings, out_shardings=out_shardings), called {where}"
    if axis_type == "Explicit":  # types are those of the arguments, whatever in_shardings say
        call = f"# jax.jit({plan.name}, out_shardings=out_shardings)(*jax.device_put(args, in_shardings)), {where}"
    return "\n".join(["import jax", mesh, *trees.tables, f"in_shardings = {inputs}", results, call])
