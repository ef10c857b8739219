"""The same text, given to jaxlib's parser and verifiers and to ours, gives the same value or the same error."""

from __future__ import annotations

import functools
import json
import os
import pathlib
import re
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardy_py.dialect import AxisRef, DimensionSharding, Mesh, OpShardingRule, TensorSharding, parse_attribute
from shardy_py.dialect.verify import verify_rule, verify_sharding
from shardy_py.errors import DialectError, ParseError

ir = pytest.importorskip("jaxlib.mlir.ir")

SHARED = pathlib.Path(os.environ.get("SHARDY_SHARED", pathlib.Path(__file__).resolve().parents[3] / "shared"))
ERROR = re.compile(r'error: "?.*?":\d+:\d+: (.*)')
SUB_AXES = re.compile("sub-axis|both sub-axis|overlapping sub-axes")
LIVE = settings(max_examples=150)


@functools.cache
def context() -> Any:
    from jaxlib.mlir.dialects import sdy, stablehlo

    made = ir.Context()
    made.allow_unregistered_dialects = True
    sdy.register_dialect(made)
    stablehlo.register_dialect(made)
    return made


def jaxlib_attribute(text: str) -> str | None:
    """How jaxlib prints an attribute; None if it refuses it."""
    try:
        return str(ir.Attribute.parse(text, context()))
    except ir.MLIRError:
        return None


def jaxlib_error(module: str) -> str | None:
    """jaxlib's diagnostic of a module, without the place."""
    try:
        ir.Module.parse(module, context())
    except ir.MLIRError as error:
        found = next(match.group(1) for line in str(error).splitlines() if (match := ERROR.match(line)))
        found = found.replace("a single-device sharding can", "a maximal sharding can")  # as later versions say it
        return re.sub(r"^'[a-z_.]+' op ", "", found)
    return None


def tensor(shape: tuple[int, ...]) -> str:
    return f"tensor<{''.join(f'{n}x' for n in shape)}f32>"


def ours(text: str) -> str | None:
    try:
        value = parse_attribute(text)
    except ParseError:
        return None
    return value.text() if hasattr(value, "text") else str(value)


names = st.sampled_from(["a", "b", "x y", "é", 'q"', "c\\d", "\n"])
numbers = st.integers(-1, 12)
axes = st.builds(lambda name, part: AxisRef(name, *part), names, st.one_of(st.just(()), st.tuples(numbers, numbers)))
dims = st.builds(DimensionSharding, st.lists(axes, max_size=3), st.booleans(), st.one_of(st.none(), st.integers(0, 20)))
meshes = st.builds(
    lambda sizes, order: Mesh(sizes, order if sizes else []),
    st.dictionaries(names, st.integers(1, 3), max_size=2),
    st.just(()),
)
shardings = st.builds(
    TensorSharding,
    st.one_of(st.sampled_from(["mesh", "my mesh", "m.1", "1m", "é"]), meshes),
    st.lists(dims, max_size=3),
    st.lists(axes, max_size=2),
    st.lists(axes, max_size=2),
)
factors = st.integers(0, 30)
tensors = st.lists(st.lists(st.lists(factors, min_size=1, max_size=3), max_size=3), min_size=1, max_size=3)
special = st.lists(factors, max_size=3)
rules = st.builds(
    OpShardingRule, st.lists(st.integers(-2, 99), max_size=30), tensors, tensors, special, special, special, special, st.booleans()
)


@LIVE
@given(st.one_of(meshes, shardings, rules))
def test_jaxlib_prints_what_we_print(value: Mesh | TensorSharding | OpShardingRule) -> None:
    assert jaxlib_attribute(str(value)) == str(value)
    assert parse_attribute(str(value)) is value


@st.composite
def damaged(draw: st.DrawFn) -> str:
    """Valid text with a few characters dropped, doubled or put in."""
    text = draw(
        st.sampled_from(
            [
                '#sdy.mesh<["a"=2, "b"=3], device_ids=[1, 0, 2, 3, 5, 4]>',
                '#sdy.sharding<@mesh, [{"a":(1)2, ?}p1, {}, {?}], replicated={"b"}, unreduced={"c":(2)4}>',
                '#sdy.sharding<mesh<["a"=2]>, [{"a"}]>',
                "#sdy.op_sharding_rule<([i, jz_1], [])->([ij, z_2]) {i=2, j=3, k=4} reduction={k} permutation={i}, custom>",
                '#sdy<list_of_axis_ref_lists[{"a", "b":(1)2}, {}]>',
                '#sdy<all_to_all_param_list[{"a"}: 0->1, {"b", "c"}: 2->3]>',
                '#sdy<manual_axes{"a", "b"}>',
            ]
        )
    )
    start = text.index("<") + 1 if "." in text.split("<")[0] else len(re.match(r"#sdy<[a-z_]+", text).group())  # type: ignore[union-attr]
    for _ in range(draw(st.integers(1, 2))):
        at = draw(st.integers(start, len(text) - 1))
        put = draw(st.sampled_from(["", text[at] * 2, text[at] + " ", " " + text[at], ",", "?", "}", "p0", "0", "z_", '"', "-"]))
        text = text[:at] + put + text[at + 1 :]
    return text


def known_difference(text: str) -> bool:
    """Where the reference drops or wraps what it cannot represent, and we refuse it or keep it."""
    if text.startswith("#sdy<") and ours(text) is None:
        return True  # MLIR does not look at what follows a complete value before the last `>`
    several_factors = re.search(r"[,{] *[i-z](_\d+)?[i-z_\d]+[ ,}]", text)
    return bool(several_factors or "#sdy.dim_mapping" in (ours(text) or "") or re.search(r"\d{10}", text))


@LIVE
@given(damaged())
def test_damaged_text_is_refused_where_jaxlib_refuses_it(text: str) -> None:
    if not known_difference(text):
        assert ours(text) == jaxlib_attribute(text)


mesh_axes = {"b": 12, "a": 8, "c": 2, "d": 1}
valid_axes = st.builds(
    lambda name, part: AxisRef(name, *part),
    st.sampled_from(["a", "a", "b", "b", "c", "d", "e"]),
    st.one_of(st.just(()), st.tuples(st.sampled_from([0, 1, 1, 2, 2, 3, 4, 6]), st.sampled_from([1, 2, 2, 3, 4, 6, 8]))),
)
sortable_axes = valid_axes.filter(lambda axis: axis.pre_size != 0)  # a pre-size of 0 has no defined place beside a full axis
likely_dims = st.builds(DimensionSharding, st.lists(valid_axes, max_size=3), st.booleans(), st.sampled_from([None, None, None, 0, 2]))
likely_shardings = st.builds(
    TensorSharding,
    st.sampled_from(["mesh", "mesh", "mesh", "mesh", "other", Mesh.maximal(3), Mesh({"a": 8})]),
    st.lists(likely_dims, max_size=3),
    st.one_of(st.just([]), st.lists(sortable_axes, max_size=3)),
    st.one_of(st.just([]), st.lists(sortable_axes, max_size=3)),
)


@settings(max_examples=400)
@given(likely_shardings, st.integers(0, 9))
def test_shardings_are_checked_alike(sharding: TensorSharding, rank: int) -> None:
    shape = (4,) * (sharding.rank if rank > 0 else 1)
    mesh = Mesh(mesh_axes)
    said = jaxlib_error(
        f"sdy.mesh @mesh = {mesh.text(short=True)}\n"
        f'"test.op"() {{sdy.sharding = #sdy.sharding_per_value<[{sharding.text(short=True)}]>}} : () -> {tensor(shape)}'
    )
    error = error_of(verify_sharding, sharding, shape, {"mesh": mesh})
    split = {axis.name for axis in sharding.all_axes() if not axis.is_full}
    if len(split) > 1 and SUB_AXES.match(error or ""):
        assert SUB_AXES.match((said or "").removeprefix("result - "))  # jaxlib takes the names in the order of a hash table
    else:
        assert said == (error and f"result - {error}")


few = st.integers(0, 4)
few_sizes = st.lists(st.sampled_from([1, 2, 2, 3]), min_size=2, max_size=5)
few_tensors = st.lists(st.lists(st.lists(few, min_size=1, max_size=2), max_size=3), min_size=1, max_size=2)
few_special = st.one_of(st.just([]), st.lists(few, max_size=2))
likely_rules = st.builds(OpShardingRule, few_sizes, few_tensors, few_tensors, few_special, few_special, few_special, few_special)


@settings(max_examples=400)
@given(likely_rules, st.integers(0, 12), st.booleans())
def test_rules_are_checked_alike(rule: OpShardingRule, change: int, all_used: bool) -> None:
    if all_used:  # so that the later checks are reached
        every = [[f] for f in range(rule.num_factors)]
        rule = rule.replace(operand_mappings=(every,), result_mappings=([[0], *every[2:]],))
    operands, results = ([(4,) * len(mapping) for mapping in side] for side in (rule.operand_mappings, rule.result_mappings))
    if change == 0:
        operands.append(())
    if change == 1:
        results[-1] = (*results[-1], 4)
    arguments = ", ".join(f"%{i}" for i in range(len(operands)))
    made = "\n".join(f'%{i} = "test.make"() : () -> {tensor(shape)}' for i, shape in enumerate(operands))
    said = jaxlib_error(
        f"{made}\n%r:{len(results)} = stablehlo.custom_call @foo({arguments}) {{sdy.sharding_rule = {rule}}} : "
        f"({', '.join(map(tensor, operands))}) -> ({', '.join(map(tensor, results))})"
    )
    assert (error_of(verify_rule, rule, operands, results) is None) == (said is None)


def error_of(check: Callable[..., None], *args: object) -> str | None:
    try:
        check(*args)
    except DialectError as error:
        return error.what
    return None


def attributes_of(text: str) -> set[str]:
    """Every `#sdy.name<...>` and `#sdy<name...>` in a module."""
    found = set()
    for match in re.finditer(r"#sdy(\.[a-z_]+)?<", text):
        depth, at = 0, match.end() - 1
        for at in range(match.end() - 1, len(text)):
            char, before = text[at], text[at - 1]
            depth += (char == "<") - (char == ">" and before != "-")
            if depth == 0 or char == "\n":
                break
        if depth == 0:
            found.add(text[match.start() : at + 1])
    return found


@pytest.mark.skipif(not (SHARED / "corpus").is_dir(), reason="needs the corpus of golden cases")
def test_every_attribute_of_the_corpus() -> None:
    texts: set[str] = set()
    for path in sorted((SHARED / "corpus").glob("*.jsonl")):
        for line in path.read_text().splitlines():
            texts |= attributes_of(json.loads(line)["input"])
    known = re.compile(r"#sdy\.(mesh|sharding|sharding_per_value|op_sharding_rule)<|#sdy<(manual_axes|list_of|all_to_all|axis_ref_list)")
    checked = 0
    for text in sorted(filter(known.match, texts)):
        expected = jaxlib_attribute(text)
        if expected is not None and "edge" not in text and "#sdy.dim_mapping" not in expected and "z_922337" not in text:
            assert ours(text) == expected
            checked += 1
    assert checked > 500
