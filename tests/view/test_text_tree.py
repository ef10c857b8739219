"""Trees of lines: what is merged, what is left out, how columns align."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from shardy_py.view.text_tree import TreeNode, fitted, joined, lines_of, repeated, tree_of, written


def leaf(size: int, text: str = "f32", replicated: bool = False) -> TreeNode:
    return TreeNode("", text, size, replicated=replicated)


def tree(*entries: tuple[str, int], depth: int | None = None) -> tuple[TreeNode, ...]:
    return tree_of([(path.split("/"), leaf(size)) for path, size in entries], depth)


def test_equal_siblings_that_count_up_are_one() -> None:
    nodes = tree(*((f"a/l{i}/w", 8) for i in (0, 1, 2, 4)), ("a/l3/w", 16))
    assert [(node.label, node.times, node.bytes) for node in nodes[0].children] == [("l0..2", 3, 8), ("l4", 1, 8), ("l3", 1, 16)]
    assert (nodes[0].count, nodes[0].bytes) == (5, 48)


def test_only_one_number_may_differ() -> None:
    nodes = tree(("a0b0", 1), ("a0b1", 1), ("a1b0", 1), ("a1b2", 1))
    assert [(node.label, node.times) for node in nodes] == [("a0b0..1", 2), ("a1b0", 1), ("a1b2", 1)]


def test_small_subtrees_carry_their_label() -> None:
    nodes = joined(tree(("p/a", 1), ("p/b", 2), ("q/x", 1), ("q/y", 2), ("q/z", 3), ("q/u", 4), ("q/v", 5)))
    assert [node.label for node in nodes] == ["pa", "pb", "q"]
    assert [child.label for child in nodes[2].children] == ["x", "y", "z", "u", "v"]


def test_times_multiply_where_levels_are_joined() -> None:
    (node,) = joined(tree(*((f"a{i}/b{k}/w", 4) for i in range(3) for k in range(2))))
    assert (node.label, node.times, node.bytes) == ("a0..2b0..1w", 6, 4)


def test_depth() -> None:
    (a, b) = tree(("a/x/1", 1), ("a/x/2", 2), ("a/y", 4), ("b", 8), depth=1)
    assert (a.label, a.text, a.bytes, a.children) == ("a ...", "3 arrays", 7, ())
    assert b.label == "b"
    (a, b) = tree(("a/x/1", 1), ("a/x/2", 2), ("a/y", 4), ("b", 8), depth=2)
    assert [child.label for child in a.children] == ["x ...", "y"]


def test_repeated_subtrees_name_the_first() -> None:
    nodes = tree(*((f"{name}/{k}", k) for name in "pq" for k in range(1, 6)))
    first, second = repeated(nodes, {})
    assert first.children
    assert (second.text, second.children) == ("5 arrays, as p", ())


def test_what_is_left_out_is_counted() -> None:
    nodes = fitted([TreeNode(str(i), "f32", 10 * i) for i in range(10)], 4)
    assert [node.label for node in nodes] == ["7", "8", "9", "... and 7 more arrays, of 60 B or less each"]


def test_replicated_ones_come_first_among_equals() -> None:
    nodes = [TreeNode("a", "f32", 10), TreeNode("b", "f32", 10, replicated=True), TreeNode("c", "f32", 10)]
    assert [node.label for node in fitted(nodes, 2)] == ["b", "... and 2 more arrays, of 10 B or less each"]


def test_bytes_of_all_or_of_each() -> None:
    nodes = [TreeNode("many", "f32", 10, times=5), TreeNode("large", "f32", 20)]
    assert fitted(nodes, 1)[0].label == "many"
    assert fitted(nodes, 1, each=True)[0].label == "large"


def test_columns() -> None:
    assert written(joined(tree(*((f"p/{k * 'k'}", 1 << (4 * k)) for k in range(1, 6)), ("long_name", 3 << 20)))) == [
        "  p          5 arrays  1.07 MiB",
        "    k        f32           16 B",
        "    kk       f32          256 B",
        "    kkk      f32          4 KiB",
        "    kkkk     f32         64 KiB",
        "    kkkkk    f32          1 MiB",
        "  long_name  f32          3 MiB",
    ]


paths = st.lists(
    st.tuples(st.lists(st.sampled_from(["a", "b0", "b1", "b2", "c"]), min_size=1, max_size=4), st.integers(0, 99)), max_size=40
)


@given(paths, st.integers(1, 30))
def test_nothing_is_lost(entries: list[tuple[list[str], int]], limit: int) -> None:
    """Every value is on a line, in a line that counts it, or in one that says how many are left out."""
    unique = {("/".join(path) + "/leaf"): size for path, size in entries}
    nodes = joined(tree(*unique.items()))
    total = sum(unique.values())
    assert sum(node.bytes * node.times for node in nodes) == total
    assert sum(node.count * node.times for node in nodes) == len(unique)
    kept = fitted(nodes, limit)
    assert sum(map(lines_of, kept)) <= max(limit, 9)
    assert _counted(kept) == len(unique)
    assert len(written(kept)) == sum(map(lines_of, kept))


def _counted(nodes: list[TreeNode] | tuple[TreeNode, ...], times: int = 1) -> int:
    total = 0
    for node in nodes:
        if node.children:
            total += _counted(node.children, times * node.times)
        elif node.label.startswith("... and "):
            total += times * int(node.label.split()[2].replace(",", ""))
        else:
            total += times * node.times * node.count
    return total


def test_a_wide_tree_is_quick_to_fit() -> None:
    nodes = tree(*((f"n{i % 100}x/{i}y{'z' * (i % 3)}", i) for i in range(20_000)))
    kept = fitted(joined(nodes), 50)
    assert sum(map(lines_of, kept)) <= 60
    assert math.isfinite(sum(node.bytes for node in kept))
