"""Files that are no plans, damaged plans, and plans that someone made up: an error that says where, and nothing else."""

from __future__ import annotations

import contextlib
import copy
import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import jax
import pytest
from hypothesis import given, settings

import shardy_py as sp
from shardy_py.errors import ShardyError
from shardy_py.facade import Plan
from shardy_py.plan.store.codec import StoreError
from shardy_py.plan.store.document import sealed
from tests.plan.store.programs import small

LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 60),
    st.sampled_from([1 << 31, (1 << 63) - 1, 1 << 63, 10**30, -(10**30), 0.5, "", "block", "end", "function", "stablehlo.while", "nan"]),
    st.text(max_size=4),
)
JSON = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=2), max_leaves=4
)


def stored() -> dict[str, Any]:
    return json.loads(small().to_json())


def read(document: dict[str, Any]) -> Plan:
    """Reads a document that somebody made up, with the digest of what it says."""
    return Plan.from_json(json.dumps(sealed(document)))


def mutated(data: Any, draw: Callable[[st.SearchStrategy[Any]], Any]) -> None:
    """Changes one place of a JSON value: replaced, removed, repeated, exchanged with its neighbour, or counted up or down."""
    node, depth = data, 0
    while True:
        keys = sorted(node) if isinstance(node, dict) else range(len(node))
        key = draw(st.sampled_from(list(keys)))
        inner = node[key]
        depth += 1
        if not isinstance(inner, dict | list) or not inner or (depth > 1 and draw(st.integers(0, 4)) == 0):
            break
        node = inner
    change = draw(st.sampled_from(["replace", "replace", "remove", "repeat", "exchange", "count", "count"]))
    if change == "remove":
        del node[key]
    elif change == "repeat" and isinstance(node, list):
        node.insert(key, copy.deepcopy(inner))
    elif change == "exchange":
        other = draw(st.sampled_from(list(keys)))
        node[key], node[other] = node[other], node[key]
    elif change == "count" and type(inner) is int:
        node[key] = inner + draw(st.sampled_from([-1, 1, 2, 7]))
    else:
        node[key] = draw(JSON)


@settings(max_examples=200)
@given(st.data())
def test_a_changed_plan_is_read_or_refused(data: st.DataObject) -> None:
    document = stored()
    for _ in range(data.draw(st.integers(1, 2))):
        mutated(document, data.draw)
    try:
        plan = read(document)
    except StoreError:
        return
    with contextlib.suppress(ShardyError):
        assert isinstance(plan.as_text(), str)
        assert isinstance(plan.to_json(), str)
        assert plan.values
        assert plan.cost_analysis("h100")
        assert str(plan.memory_analysis())


@settings(max_examples=60)
@given(st.data())
def test_a_damaged_text_is_read_or_refused(data: st.DataObject) -> None:
    content = bytearray(small().to_json().encode())
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(content) - 1))
        match data.draw(st.sampled_from(["flip", "cut", "double"])):
            case "flip":
                content[at] ^= data.draw(st.integers(1, 255))
            case "cut":
                del content[at : at + data.draw(st.integers(1, 200))]
            case _:
                content[at:at] = content[at : at + data.draw(st.integers(1, 200))]
    with contextlib.suppress(StoreError):
        Plan.from_json(bytes(content))


def change(*path: Any, to: Any) -> Callable[[dict[str, Any]], None]:
    """Sets a place of a document."""

    def apply(document: Any) -> None:
        for key in path[:-1]:
            document = document[key]
        document[path[-1]] = to

    return apply


def first_op(document: dict[str, Any]) -> int:
    return next(n for n, row in enumerate(document["program"]) if type(row[0]) is int and row[2])


def forward(document: dict[str, Any]) -> None:
    document["program"][first_op(document)][2][0] = 60


def own_result(document: dict[str, Any]) -> None:
    loop = next(n for n, row in enumerate(document["program"]) if len(row) == 5)
    made = sum(len(row[1]) if row[0] == "block" else len(row[3]) for row in document["program"][:loop] if row[0] != "function")
    document["program"][loop][2][0] = made


def deep_bodies(document: dict[str, Any]) -> None:
    loop = next(row for row in document["program"] if len(row) == 5)
    document["program"][2:2] = [[loop[0], None, [0] * len(loop[2]), [None] * len(loop[3]), 1], ["block", [], []]] * 5000


def of_first(op: str, name: str, value: Any) -> Callable[[dict[str, Any]], None]:
    """Sets an attribute of the first op of a name; None takes it away."""

    def apply(document: dict[str, Any]) -> None:
        kind = next(kind for kind in document["kinds"] if kind[0] == op)
        attributes = document["attributes"][kind[2]]
        del attributes[name]
        if value is not None:
            attributes[name] = value

    return apply


def of_product(name: str, value: Any) -> Callable[[dict[str, Any]], None]:
    """Sets an attribute of the first matrix product; None takes it away."""
    return of_first("stablehlo.dot_general", name, value)


def step_of_fewer_values(document: dict[str, Any]) -> None:
    """Takes a value from among those that a step of the propagation stands between."""
    log, kinds = document["log"], document["kinds"]
    ops = [row for row in (*document["program"], *log["erased"]) if type(row[0]) is int]
    step = next(step for step in log["steps"] if step[3] is not None and kinds[ops[step[3]][0]][0] == "stablehlo.dot_general")
    step[4] = len(log["tensors"])
    log["tensors"].append([step[0]])


def without_operands(op: str) -> Callable[[dict[str, Any]], None]:
    """Takes the operands of the first op of a name, also of one that export erased."""

    def apply(document: dict[str, Any]) -> None:
        rows = [row for row in (*document["program"], *document["log"]["erased"]) if type(row[0]) is int]
        del next(row for row in rows if document["kinds"][row[0]][0] == op)[2][:]

    return apply


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (change("version", to=6), r"the stored plan has the version 6\n  why: this shardy_py reads version 8"),
        (change("version", to=True), "the stored plan has the version true"),
        (change("format", to="model"), "this is not a stored plan"),
        (lambda d: d.pop("log"), "the member 'log' is missing"),
        (change("more", to=1), "unknown member 'more'"),
        (change("mesh", to='#sdy.mesh<["a"=9000000000000000000]>'), r"a mesh of more than 2147483647 devices\n  where: mesh"),
        (change("mesh", to="#sdy.mesh<"), "expected"),
        (change("types", 0, to=["float32", [-1]]), r"a whole number from 0 .*, got -1\n  where: types, entry 0"),
        (change("types", 0, to=["float32", [1 << 62, 4]]), "a type of 18446744073709551616 elements"),
        (
            change("shardings", 0, to='<@mesh, [{"nowhere"}]>'),
            'unknown axis name: "nowhere"\n  where: shardings, entry 0',
        ),
        (change("shardings", 0, to='<@other, [{"data"}]>'), "unknown mesh: @other\n  where: shardings, entry 0"),
        (change("rules", 0, to="<([i])->([i) {i=2}>"), "where: rules, entry 0"),
        (change("program", to=[]), "function"),
        (change("program", to={}), "expected a list, got an object of 0"),
        (forward, r"there is no entry 60: the table has \d+\n  where: program, row \d+"),
        (own_result, r"there is no entry \d+: the table has \d+\n  where: program, row \d+"),
        (deep_bodies, "more than 200 bodies in bodies"),
        (lambda d: d["program"].pop(), "a body has no end"),
        (lambda d: d["program"].append(["end"]), "a function begins where an op stands"),
        (lambda d: d["program"].append([0, None, [], []]), "a function begins where an op stands"),
        (change("log", "steps", 0, 0, to=10**6), r"there is no entry 1000000: the table has \d+\n  where: log, steps, row 0"),
        (change("inputs", "rows", 0, 1, to="output"), "expected an input, got output\n  where: inputs, row 0"),
        (change("inputs", "fields", 0, to="__class__"), "unknown member '__class__'"),
        (change("inputs", "rows", to=[]), "0 values where the program has 3"),
        (change("pytrees", "inputs", to={"kind": "leaf"}), "a tree of 1 leaves where there are 3 values"),
        (change("pytrees", "outputs", to={"kind": "node", "cls": "os.system", "keys": ["a"]}), "one key for each child"),
        (
            of_product("lhs_batching_dimensions", None),
            r"not those of the op\n  where: program, stablehlo.dot_general\n  why: KeyError: 'lhs_batching_dimensions'",
        ),
        (of_product("lhs_contracting_dimensions", [2]), "not those of the op"),
        (of_product("lhs_contracting_dimensions", "0"), "not those of the op"),
        (of_product("rhs_contracting_dimensions", []), "not those of the op"),
        (of_product("lhs_batching_dimensions", [1]), "not those of the op"),
        (without_operands("stablehlo.dot_general"), r"stablehlo.dot_general without operands\n  where: program, row \d+"),
        (without_operands("sdy.data_flow_edge"), r"sdy.data_flow_edge without operands\n  where: log, erased, row \d+"),
        (step_of_fewer_values, r"1 values of a rule for 3\n  where: log, steps, row"),
        (change("inputs", "rows", 0, 0, to=""), "a value without a path\n  where: inputs, row 0"),
        (change("donation", "rows", 0, 8, to=7), "there is no such input or output\n  where: donation"),
        (change("partitioner", to=[]), "expected an object, got a list of 0\n  where: partitioner"),
    ],
)
def test_what_is_wrong_is_said(damage: Callable[[dict[str, Any]], Any], message: str) -> None:
    document = stored()
    damage(document)
    with pytest.raises(StoreError, match=message):
        read(document)


def test_a_file_that_was_changed_is_refused() -> None:
    document = stored()
    document["inputs"]["rows"][0][3] = None
    with pytest.raises(StoreError, match="the stored plan was changed or damaged"):
        Plan.from_json(json.dumps(document))
    assert Plan.from_json(json.dumps(stored(), indent=2, sort_keys=True)).as_text() == small().as_text()


def test_a_barrier_without_a_direction_is_refused() -> None:
    step = sp.auto_shard(lambda x: sp.propagation_barrier(x) * 2, mesh={"x": 2}, in_shardings=jax.P("x"))
    document = json.loads(step.plan(jax.ShapeDtypeStruct((4,), "float32")).to_json())
    of_first("sdy.propagation_barrier", "allowed_direction", "")(document)
    with pytest.raises(StoreError, match="the allowed direction must be a PropagationDirection, got ''"):
        read(document)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "this is not JSON"),
        ("not json", "this is not JSON"),
        (b"\xff\xfe", "not UTF-8"),
        ("[" * 100_000, "nested too deep"),
        ('{"format": ' + "9" * 10_000 + "}", "this is not JSON"),
        ('{"format": "shardy_py.plan", "format": "shardy_py.plan"}', "the member 'format' stands twice"),
        ('{"format": NaN}', "JSON has no number NaN"),
        ("[]", "this is not a stored plan"),
    ],
)
def test_what_is_no_plan(text: str | bytes, message: str) -> None:
    with pytest.raises(StoreError, match=message):
        Plan.from_json(text)


def test_every_cut_is_noticed() -> None:
    text = small().to_json()
    for length in (*range(0, 200, 7), *range(200, len(text) - 2, 997)):
        with pytest.raises(StoreError, match="this is not JSON"):
            Plan.from_json(text[:length])


def test_packed_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "plan.json.gz"
    small().save(path)
    content = path.read_bytes()
    path.write_bytes(content[:-20])
    with pytest.raises(StoreError, match=r"cut short\n  where: .*plan.json.gz"):
        Plan.load(path)
    path.write_bytes(content[:100] + b"\0\0\0\0" + content[104:])
    with pytest.raises(StoreError, match="damaged"):
        Plan.load(path)
    monkeypatch.setattr("shardy_py.plan.store.document.MOST_BYTES", 1 << 16)
    path.write_bytes(gzip.compress(b" " * (1 << 20)))
    with pytest.raises(StoreError, match="a text of more than 65536 bytes"):
        Plan.load(path)
    with pytest.raises(FileNotFoundError):
        Plan.load(tmp_path / "none.json")
