from __future__ import annotations

import pickle
from typing import Any

import pytest

from shardy_py.errors import ShardyError
from shardy_py.rules import RuleTable, ShardingRuleError, parse_einsum_rule

Shapes = list[tuple[int, ...]]

GOOD: list[tuple[str, dict[str, Any], Shapes, Shapes, str]] = [
    ("->", {}, [()], [()], "([])->([])"),
    ("i->i", {}, [(4,)], [(4,)], "([i])->([i]) {i=4}"),
    ("  a   b->b  a ", {}, [(4, 2)], [(2, 4)], "([i, j])->([j, i]) {i=4, j=2}"),
    ("i k, k j -> i j", {"reduction": "k"}, [(8, 4), (4, 2)], [(8, 2)], "([i, j], [j, k])->([i, k]) {i=8, j=4, k=2} reduction={j}"),
    ("i, -> i", {}, [(4,), ()], [(4,)], "([i], [])->([i]) {i=4}"),
    (", i -> ,", {}, [(), (4,)], [(), ()], "([], [i])->([], []) {i=4}"),
    ("... -> ...", {}, [(4, 2)], [(4, 2)], "([i, j])->([i, j]) {i=4, j=2}"),
    ("... -> ...", {}, [()], [()], "([])->([])"),
    ("... i -> ...", {"reduction": ("i",)}, [(4, 2)], [(4,)], "([i, j])->([i]) {i=4, j=2} reduction={j}"),
    ("... i -> ... i", {}, [(4,)], [(4,)], "([i])->([i]) {i=4}"),
    ("...i,...j -> ...i j", {}, [(3, 4), (3, 2)], [(3, 4, 2)], "([i, j], [i, k])->([i, j, k]) {i=3, j=4, k=2}"),
    ("...1 i, ...2 i -> ...2", {}, [(2, 4), (3, 5, 4)], [(3, 5)], "([i, j], [k, l, j])->([k, l]) {i=2, j=4, k=3, l=5}"),
    ("...0 i, ... -> ...", {}, [(2, 4), (2,)], [(2,)], "([i, j], [i])->([i]) {i=2, j=4}"),
    ("...01 i, ...1 -> ...1", {}, [(2, 4), (2,)], [(2,)], "([i, j], [i])->([i]) {i=2, j=4}"),
    ("(i j) -> i j", {}, [(8,)], [(2, 4)], "([ij])->([i, j]) {i=2, j=4}"),
    ("(i j) k -> (i j) k", {"i": 2, "j": 4}, [(8, 3)], [(8, 3)], "([ij, k])->([ij, k]) {i=2, j=4, k=3}"),
    ("(i j) -> (j i)", {"factor_sizes": {"i": 2, "j": 4}}, [(8,)], [(8,)], "([ij])->([ji]) {i=2, j=4}"),
    ("i j -> (i j)", {}, [(2, 4)], [(8,)], "([i, j])->([ij]) {i=2, j=4}"),
    ("(h d) -> h d, (h x)", {"x": 2}, [(8,)], [(2, 4), (4,)], "([ij])->([i, j], [ik]) {i=2, j=4, k=2}"),
    ("i, i -> i", {}, [(4,), (2,)], [(4,)], "([i], [i])->([i]) {i=2}"),
    ("i j -> j i", {"need_replication": "i", "permutation": "j"}, [(4, 2)], [(2, 4)],
     "([i, j])->([j, i]) {i=4, j=2} need_replication={i} permutation={j}"),
    ("i j -> i", {"reduction": "j", "blocked_propagation": "i, j"}, [(4, 2)], [(4,)],
     "([i, j])->([i]) {i=4, j=2} reduction={j} blocked_propagation={i, j}"),
    ("i j k -> i", {"reduction": "k j"}, [(4, 2, 3)], [(4,)], "([i, j, k])->([i]) {i=4, j=2, k=3} reduction={j, k}"),
    ("batch_0 Head2 -> Head2", {}, [(4, 2)], [(2,)], "([i, j])->([j]) {i=4, j=2}"),
    ("α β -> β", {}, [(4, 2)], [(2,)], "([i, j])->([j]) {i=4, j=2}"),
    ("i -> i", {}, [(1,)], [(1,)], "([i])->([i]) {i=1}"),
    ("i -> i", {}, [(0,)], [(0,)], "([i])->([i]) {i=0}"),
]  # fmt: skip


@pytest.mark.parametrize(("rule", "arguments", "operands", "results", "expected"), GOOD)
def test_good_rules(rule: str, arguments: dict[str, Any], operands: Shapes, results: Shapes, expected: str) -> None:
    bound = parse_einsum_rule(rule, **arguments).bind(operands, results)
    assert str(bound) == f"#sdy.op_sharding_rule<{expected}, custom>"
    assert bound.is_custom


BAD = [
    # The caret of the second line stands under the place that the message is about.
    ("i j", {}, "there is no '->'",
     "   ^"),
    ("", {}, "there is no '->'",
     "^"),
    ("i -> i -> i", {}, "a second '->'",
     "       ^"),
    ("i - > i", {}, "unknown character '-'",
     "  ^"),
    ("i; j -> i", {}, "unknown character ';'",
     " ^"),
    ("i [j] -> i", {}, "unknown character '['",
     "  ^"),
    ("i* -> i", {}, "unknown character '*'",
     " ^"),
    ("… i -> i", {}, "unknown character '…'",
     "^"),
    (".. i -> i", {}, "'.' is not part of an ellipsis",
     "^"),
    ("i . j -> i", {}, "'.' is not part of an ellipsis",
     "  ^"),
    ("2i -> i", {}, "start with a letter, got '2'",
     "^"),
    ("i 3 -> i", {}, "start with a letter, got '3'",
     "  ^"),
    ("_i -> i", {}, "start with a letter, got '_'",
     "^"),
    ("i ... -> i", {}, "'...' can only be the first",
     "  ^"),
    ("... ... -> i", {}, "'...' can only be the first",
     "    ^"),
    ("i -> i ...", {}, "'...' can only be the first",
     "       ^"),
    ("(... i) -> i", {}, "'...' can only be the first",
     " ^"),
    ("(i (j k)) -> i", {}, "parentheses inside parentheses",
     "   ^"),
    ("i j) -> i", {}, "')' without a '('",
     "   ^"),
    ("(i j -> i", {}, "'(' is never closed",
     "^"),
    ("i, (j k -> i", {}, "'(' is never closed",
     "   ^"),
    ("(i) -> i", {}, "at least two factors",
     "^"),
    ("i () -> i", {}, "at least two factors",
     "  ^"),
    ("(i, j) -> i", {}, "',' inside parentheses",
     "  ^"),
    ("i i -> i", {}, "factor 'i' stands twice",
     "  ^"),
    ("i j (k i) -> i", {}, "factor 'i' stands twice",
     "       ^"),
    ("(i i) -> i", {}, "factor 'i' stands twice",
     "   ^"),
    ("k -> i, j i j", {}, "factor 'j' stands twice",
     "            ^"),
    ("(i j) -> k", {}, "its size is not known",
     "^"),
    ("k (i j) -> i", {}, "its size is not known",
     "  ^"),
    ("i -> i", {"i": 4}, "is a dimension of its own",
     '"i -> i", i=4', "          ^"),
    ("i -> i", {"q": 4}, "has a size but is not in the rule",
     '"i -> i", q=4', "          ^"),
    ("(i j) -> i", {"j": 1}, "has size 1",
     '"(i j) -> i", j=1', "              ^"),
    ("i j -> i", {"reduction": "j q"}, "factor 'q' is not in the rule",
     '"i j -> i", reduction="j q"', "                         ^"),
    ("i j -> i", {"reduction": "j j"}, "given twice",
     '"i j -> i", reduction="j j"', "                         ^"),
    ("i j -> i", {"reduction": "j", "permutation": "j"}, "is in reduction already",
     '"i j -> i", permutation="j"', "                         ^"),
    ("i j -> i", {"need_replication": "i", "permutation": "j i"}, "is in need_replication already",
     '"i j -> i", permutation="j i"', "                           ^"),
    ("i j -> i", {"blocked_propagation": "k"}, "factor 'k' is not in the rule",
     '"i j -> i", blocked_propagation="k"', "                                 ^"),
    ("i j -> i", {"reduction": "j-"}, "no name of a factor",
     '"i j -> i", reduction="j-"', "                       ^"),
    ("i j -> j, i", {"reduction": "i"}, "reduction factor 'i' is in a result",
     "          ^"),
    ("->", {"reduction": "i"}, "factor 'i' is not in the rule",
     '"->", reduction="i"', "                 ^"),
]  # fmt: skip


@pytest.mark.parametrize("case", BAD, ids=[f"{case[0]} {case[1] or ''}" for case in BAD])
def test_bad_rules(case: tuple[Any, ...]) -> None:
    rule, arguments, message, *shown = case
    line, caret = shown if len(shown) == 2 else (rule, *shown)
    with pytest.raises(ShardingRuleError) as caught:
        parse_einsum_rule(rule, **arguments)
    text = str(caught.value)
    assert message in text
    assert f"\n    {line}\n    {caret}\n" in text
    assert "\n  fix: " in text
    assert isinstance(caught.value, ShardyError)
    assert isinstance(caught.value, ValueError)


MISFITS: list[tuple[str, dict[str, Any], Shapes, Shapes, str, str]] = [
    ("i, j -> i", {}, [(4,)], [(4,)], "the rule has 2 operands, but the op has 1 operand", "   ^"),
    ("i -> i", {}, [(4,), (4,)], [(4,)], "the rule has 1 operand, but the op has 2 operands", "^"),
    ("i -> i", {}, [(4,)], [(4,), (4,)], "the rule has 1 result, but the op has 2 results", "     ^"),
    ("i -> i, i", {}, [(4,)], [(4,)], "the rule has 2 results, but the op has 1 result", "        ^"),
    ("i -> i j", {}, [(4,)], [(4,)], "result 0 'i j' names 2 dimensions, but its shape is [4]", "     ^"),
    ("i -> i", {}, [(4, 2)], [(4,)], "operand 0 'i' names 1 dimension, but its shape is [4, 2]", "^"),
    ("... i j -> ...", {}, [(4,)], [()], "operand 0 '... i j' names 2 dimensions, but its shape is [4]", "^"),
    ("... i, ... -> i", {}, [(2, 4), (3,)], [(4,)], "the '...' of operand 1 stands for dimensions [3], but for [2]", "       ^"),
    ("... i, ... -> i", {}, [(2, 4), (2, 2)], [(4,)], "the '...' of operand 1 stands for dimensions [2, 2], but for [2]", "       ^"),
    ("(i j) -> i j", {}, [(8,)], [(2, 3)], "a dimension of operand 0 has size 8, but its factors multiply to 6 (i=2, j=3)", "^"),
    ("i j -> (i j)", {}, [(1, 4)], [(4,)], "a compound dimension of result 0 has a factor of size 1 (i=1, j=4)", "       ^"),
    ("k (i j) -> k", {"i": 2, "j": 2}, [(1, 5)], [(1,)], "has size 5, but its factors multiply to 4", "  ^"),
]


@pytest.mark.parametrize(("rule", "arguments", "operands", "results", "message", "caret"), MISFITS)
def test_shapes_that_do_not_fit(rule: str, arguments: dict[str, Any], operands: Shapes, results: Shapes, message: str, caret: str) -> None:
    spec = parse_einsum_rule(rule, **arguments)
    with pytest.raises(ShardingRuleError) as caught:
        spec.bind(operands, results)
    text = str(caught.value)
    assert message in text
    assert f"\n    {rule}\n    {caret}\n  fix: " in text


@pytest.mark.parametrize(
    ("rule", "arguments", "message"),
    [
        (3, {}, "a sharding rule is a string"),
        ("(i j) -> i", {"j": 2.0}, "must be an integer, got 2.0"),
        ("(i j) -> i", {"j": True}, "must be an integer, got True"),
        ("i -> i", {"permutation": (3,)}, "must hold names of factors, got 3"),
    ],
)
def test_arguments_of_a_wrong_type(rule: Any, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(TypeError, match=message):
        parse_einsum_rule(rule, **arguments)


def test_specs_are_values() -> None:
    one = parse_einsum_rule("... (i j),k->... i", reduction="k", j=2)
    two = parse_einsum_rule(" ...0 (i  j) , k -> ... i", reduction=["k"], factor_sizes={"j": 2})
    assert one == two
    assert hash(one) == hash(two)
    assert str(one) == "... (i j), k -> ... i reduction={k} j=2"
    assert pickle.loads(pickle.dumps(one)) == one
    assert pickle.loads(pickle.dumps(one)).bind([(3, 8), (5,)], [(3, 4)]) is one.bind([(3, 8), (5,)], [(3, 4)])
    assert one != parse_einsum_rule("... (i j), k -> ... i", j=2)


def test_tables_are_values() -> None:
    matmul, copy = parse_einsum_rule("i k, k j -> i j", reduction="k"), parse_einsum_rule("... -> ...")
    empty = RuleTable()
    table = empty.with_rule("my_matmul", matmul).with_rule("my_copy", copy)
    assert not empty
    assert list(table) == ["my_matmul", "my_copy"]
    assert table["my_copy"] is copy
    assert table == RuleTable({"my_copy": copy, "my_matmul": matmul})
    assert hash(table) == hash(RuleTable({"my_copy": copy, "my_matmul": matmul}))
    assert pickle.loads(pickle.dumps(table)) == table
    assert repr(table) == "RuleTable({'my_matmul': 'i k, k j -> i j reduction={k}', 'my_copy': '... -> ...'})"


def test_a_second_rule_for_a_name_must_be_asked_for() -> None:
    first, second = parse_einsum_rule("i -> i"), parse_einsum_rule("i j -> i j")
    table = RuleTable({"my_op": first})
    assert table.with_rule("my_op", first) == table
    assert table.with_rule("my_op", second, replace=True)["my_op"] is second
    with pytest.raises(ValueError, match="there is a rule for 'my_op' already, 'i -> i'; pass replace=True"):
        table.with_rule("my_op", second)
    with pytest.raises(TypeError, match="must come from parse_einsum_rule, got str"):
        RuleTable({"my_op": "i -> i"})  # type: ignore[dict-item]
