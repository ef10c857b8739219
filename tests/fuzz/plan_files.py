"""Changes plan files by what their entries are: types, kinds of ops, attributes, operands, shardings, rules, meshes; and uses plans."""

from __future__ import annotations

import contextlib
import copy
import functools
import json
import os
import random
import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

import shardy_py as sp
from shardy_py.errors import ShardyError
from shardy_py.facade import Plan
from shardy_py.plan.store.document import sealed
from tests.fuzz.modules import Mesh, random_sharding
from tests.fuzz.texts import FUNCTIONS
from tests.plan.store import programs

Document = dict[str, Any]

_NUMBERS = (-1, 0, 1, 2, 3, 4, 7, 8, 16, 17, 1 << 31, (1 << 63) - 1)
_DTYPES = ("float32", "bool", "int32", "bfloat16", "complex64", "key<fry>", "float0", "none", "!stablehlo.token")


def _of_function(number: int) -> Plan:
    plan = sp.auto_shard(FUNCTIONS[number], mesh=programs.MESH, in_shardings=jax.P("data"))
    return plan.plan(jax.ShapeDtypeStruct((8, 8), jnp.float32))


BASES: tuple[Callable[[], Plan], ...] = (
    programs.small,
    programs.training,
    lambda: programs.training("shard_map"),
    programs.with_constants,
    *(functools.partial(_of_function, number) for number in range(len(FUNCTIONS))),
)
"""Makers of the plans whose files are changed."""


@functools.cache
def base(number: int) -> tuple[Plan, str]:
    """A plan and its file."""
    plan = BASES[number]()
    return plan, plan.to_json()


def _section(draw: random.Random, document: Document) -> Document:
    """The tables of the plan, or of the program of one device."""
    partition = document.get("partitioner")
    return partition["program"] if partition and draw.random() < 0.25 else document


def _entry(draw: random.Random, table: list[Any]) -> int | None:
    return draw.randrange(len(table)) if table else None


def change_type(draw: random.Random, document: Document) -> None:
    """A type gets another shape or element type."""
    types = [type_ for type_ in _section(draw, document)["types"] if isinstance(type_, list)]
    if not types:
        return
    type_ = draw.choice(types)
    shape: list[int] = type_[1]
    kind = draw.randrange(5)
    if kind <= 1 and shape:
        shape[draw.randrange(len(shape))] = draw.choice(_NUMBERS)
    elif kind == 2 and shape:
        del shape[draw.randrange(len(shape))]
    elif kind == 3:
        shape.insert(draw.randint(0, len(shape)), draw.choice(_NUMBERS))
    else:
        type_[0] = draw.choice(_DTYPES)


def change_kind(draw: random.Random, document: Document) -> None:
    """A kind of op gets the name, attributes, rule or result types of another."""
    kinds = _section(draw, document)["kinds"]
    one, other = draw.choice(kinds), draw.choice(kinds)
    field = draw.choice([0, 0, 1, 2, 3, 4, 5, 5])
    one[field] = copy.deepcopy(other[field])
    if field == 5 and draw.random() < 0.4:
        one[field] = one[field][:-1] if one[field] and draw.random() < 0.5 else [*one[field], 0]


def _places(data: Any) -> list[tuple[Any, Any]]:
    """Container and key of everything inside of lists and objects."""
    places: list[tuple[Any, Any]] = []
    stack = [data]
    while stack:
        node = stack.pop()
        for key in sorted(node) if isinstance(node, dict) else range(len(node)):
            places.append((node, key))
            if isinstance(node[key], dict | list):
                stack.append(node[key])
    return places


def change_attribute(draw: random.Random, document: Document) -> None:
    """A part of the attributes of an op becomes another number or something else, or goes."""
    places = _places(_section(draw, document)["attributes"])
    if not places:
        return
    node, key = draw.choice(places)
    if isinstance(node[key], int) and draw.random() < 0.7:
        node[key] = draw.choice(_NUMBERS)
    elif draw.random() < 0.3:
        del node[key]
    else:
        node[key] = draw.choice(
            ["", "x", 0, 1, -1, [], [0], [[0, 1]], None, True, 0.5, {"mlir": "dense<1>"}, {"float": "nan"}, {"enum": []}]
        )


def _is_op(row: Any) -> bool:
    return isinstance(row, list) and len(row) > 2 and isinstance(row[0], int) and isinstance(row[2], list)


def change_row(draw: random.Random, document: Document) -> None:
    """An op gets other operands, another kind or other shardings, or goes, or comes twice."""
    rows = _section(draw, document)["program"]
    number = draw.randrange(len(rows))
    row = rows[number]
    change = draw.randrange(6)
    if change == 0:
        del rows[number]
    elif change == 1:
        rows.insert(number, copy.deepcopy(row))
    elif _is_op(row):
        values = [operand for other in rows if _is_op(other) for operand in other[2]] or [0]
        if change == 2:
            row[0] = draw.choice([other[0] for other in rows if _is_op(other)])
        elif change == 3 and row[2]:
            row[2][draw.randrange(len(row[2]))] = draw.choice(values)
        elif change == 4 and row[2]:
            del row[2][draw.randrange(len(row[2]))]
        else:
            row[2].append(draw.choice(values))
    elif isinstance(row, list):
        inner = [part for part in row if isinstance(part, list) and part]
        if inner:
            part = draw.choice(inner)
            part[draw.randrange(len(part))] = draw.choice([None, 0, 1, 2])


def resize(draw: random.Random, document: Document) -> None:
    """One size becomes another, wherever it stands in types, rules and attributes."""
    section = _section(draw, document)
    sizes = sorted({size for type_ in section["types"] if isinstance(type_, list) for size in type_[1]})
    if not sizes:
        return
    old, new = draw.choice(sizes), draw.choice(_NUMBERS)
    for table in [section["types"], section["attributes"]] if draw.random() < 0.8 else [section["types"]]:
        for node, key in _places(table):
            if type(node[key]) is int and node[key] == old:
                node[key] = new
    section["rules"] = [re.sub(rf"={old}(?=[,}}])", f"={new}", rule) for rule in section["rules"]]


def change_sharding(draw: random.Random, document: Document) -> None:
    """A sharding becomes another one, mostly of its rank."""
    section = _section(draw, document)
    number = _entry(draw, section["shardings"])
    if number is not None:
        rank = section["shardings"][number].count("{")
        section["shardings"][number] = random_sharding(draw, rank, Mesh("mesh", tuple(programs.MESH.items())))


def change_rule(draw: random.Random, document: Document) -> None:
    """A rule gets other sizes or factors."""
    rules = _section(draw, document)["rules"]
    number = _entry(draw, rules)
    if number is not None:
        text = list(rules[number])
        at = [i for i, letter in enumerate(text) if letter.isalnum()]
        if at:
            text[draw.choice(at)] = draw.choice("ijk1248")
        rules[number] = "".join(text)


def change_mesh(draw: random.Random, document: Document) -> None:
    """A mesh gets other sizes; huge ones too."""
    axes = ", ".join(
        f'"{name}"={draw.choice([1, 2, 3, 4, 8, 1 << 20, 1 << 31])}' for name in draw.choice([("data", "model"), ("data",), ("model", "x")])
    )
    text = f"#sdy.mesh<[{axes}]>"
    where = draw.randrange(3)
    if where != 1:
        document["mesh"] = text
    if where != 0:
        for row in document["meshes"]:
            row[1] = text


def change_place(draw: random.Random, document: Document) -> None:
    """Anything anywhere."""
    part = draw.choice([name for name in sorted(document) if isinstance(document[name], dict | list) and document[name]])
    places = _places(document[part])
    node, key = draw.choice(places)
    if isinstance(node[key], int) and not isinstance(node[key], bool) and draw.random() < 0.7:
        node[key] += draw.choice([-1, 1, 2, 7])
    elif draw.random() < 0.3:
        other, place = draw.choice(places)
        node[key] = copy.deepcopy(other[place])
    elif draw.random() < 0.3:
        del node[key]
    else:
        node[key] = draw.choice([None, True, 0, 1, -1, 1 << 40, 0.5, "", "x", [], [0], {}])


CHANGES: tuple[Callable[[random.Random, Document], None], ...] = (
    change_attribute,
    change_kind,
    change_mesh,
    change_place,
    change_row,
    change_rule,
    change_sharding,
    change_type,
    resize,
)


def damaged_plan(draw: random.Random) -> tuple[int, str]:
    """The number of a base, and its file with a few changes."""
    number = draw.randrange(len(BASES))
    document = json.loads(base(number)[1])
    for _ in range(draw.choice([1, 1, 2, 3])):
        with contextlib.suppress(AttributeError, LookupError, TypeError, ValueError):  # of a part that an earlier change has broken
            draw.choice(CHANGES)(draw, document)
    return number, json.dumps(sealed(document))


def _explain(plan: Plan, _: Plan) -> None:
    for value in (*plan.inputs[:2], *plan.outputs[:1], *plan.values[-2:]):
        with contextlib.suppress(ShardyError):
            str(plan.explain(value))
        with contextlib.suppress(ShardyError):
            str(plan.explain(value, "model"))


USES: dict[str, Callable[[Plan, Plan], object]] = {
    "as_text": lambda plan, _: plan.as_text(limit=None),
    "repr": lambda plan, _: repr(plan),
    "where": lambda plan, _: plan.as_text(where="*dot*"),
    "findings": lambda plan, _: plan.check(),
    "cost_analysis": lambda plan, _: str(plan.cost_analysis("h100")),
    "memory_analysis": lambda plan, _: str(plan.memory_analysis("h100")),
    "reshards": lambda plan, _: (plan.reshards, plan.collectives),
    "explain": _explain,
    "as_sdy": lambda plan, _: plan.as_sdy(),
    "save_html": lambda plan, other: (plan.save_html(os.devnull, hardware="h100"), plan.save_html(os.devnull, other)),
    "save_perfetto": lambda plan, _: plan.save_perfetto(os.devnull, "h100"),
    "_repr_html_": lambda plan, _: plan._repr_html_(),
    "shardings": lambda plan, _: (plan.input_shardings, plan.output_shardings),
    "abstract_state": lambda plan, _: plan.abstract_state(),
    "diff": lambda plan, other: str(plan.diff(other)) + str(other.diff(plan)),
    "to_json": lambda plan, _: Plan.from_json(plan.to_json()),
}
"""Calls of a plan that was read, given the plan whose file was changed."""
