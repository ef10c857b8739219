"""Our reading of rule strings against that of `jax.experimental.custom_partitioning`."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax._src.custom_partitioning_sharding_rule import sdy_sharding_rule_to_mlir, str_to_sdy_sharding_rule
from jax._src.interpreters import mlir as jax_mlir
from jaxlib.mlir import ir

from shardy_py.rules import parse_einsum_rule
from tests.rules.test_einsum import BAD, GOOD, MISFITS, Shapes


def jax_rule(rule: str, arguments: dict[str, Any], operands: Shapes, results: Shapes) -> str:
    arguments = {**arguments, **arguments.get("factor_sizes", {})}
    arguments.pop("factor_sizes", None)
    for kind in ("reduction", "need_replication", "permutation"):
        if kind in arguments:
            names = arguments.pop(kind)
            arguments[f"{kind}_factors"] = tuple(names.replace(",", " ").split() if isinstance(names, str) else names)
    with jax_mlir.make_ir_context(), ir.Location.unknown():
        f32 = ir.F32Type.get()
        types = [[ir.RankedTensorType.get(shape, f32) for shape in shapes] for shapes in (operands, results)]
        return str(sdy_sharding_rule_to_mlir(str_to_sdy_sharding_rule(rule, **arguments), *types))


@pytest.mark.parametrize(
    ("rule", "arguments", "operands", "results"),
    [case[:4] for case in GOOD if "blocked_propagation" not in case[1] and case[0] != "i j k -> i"],
)
def test_good_rules(rule: str, arguments: dict[str, Any], operands: Shapes, results: Shapes) -> None:
    assert str(parse_einsum_rule(rule, **arguments).bind(operands, results)) == jax_rule(rule, arguments, operands, results)


STRICTER = ("(i, j) -> i", "i i -> i", "i j (k i) -> i", "(i i) -> i", "k -> i, j i j", "i j -> j, i")


@pytest.mark.parametrize("case", [case for case in BAD if "blocked_propagation" not in case[1] and case[0] not in STRICTER])
def test_what_is_bad_for_us_is_bad_for_jax(case: tuple[Any, ...]) -> None:
    rule, arguments = case[:2]
    if arguments == {"j": 1}:
        return
    with pytest.raises(ValueError):
        jax_rule(rule, arguments, [], [])


@pytest.mark.parametrize(("rule", "arguments", "operands", "results"), [case[:4] for case in MISFITS if "factor of size 1" not in case[4]])
def test_what_does_not_fit_for_us_does_not_fit_for_jax(rule: str, arguments: dict[str, Any], operands: Shapes, results: Shapes) -> None:
    with pytest.raises(ValueError):
        jax_rule(rule, arguments, operands, results)


@st.composite
def bound_rules(draw: st.DrawFn) -> tuple[str, dict[str, Any], Shapes, Shapes]:
    sizes = {name: draw(st.integers(2, 5)) for name in "abcdef"}
    batch = tuple(draw(st.lists(st.integers(1, 3), max_size=2)))
    sides: list[list[str]] = []
    shapes: list[Shapes] = []
    used: set[str] = set()
    whole: set[str] = set()
    in_results: set[str] = set()
    for side in range(2):
        texts, found = [], []
        for _ in range(draw(st.integers(1, 3))):
            names = draw(st.permutations("abcdef"))[: draw(st.integers(0, 4))]
            used.update(names)
            in_results.update(names if side else ())
            shape: tuple[int, ...] = ()
            words = []
            if draw(st.booleans()):
                words.append("...")
                shape = batch
            while names:
                group = [names.pop(0) for _ in range(min(len(names), draw(st.sampled_from((1, 1, 2, 3)))))]
                words.append(group[0] if len(group) == 1 else f"({' '.join(group)})")
                whole.update(group if len(group) == 1 else ())
                size = 1
                for name in group:
                    size *= sizes[name]
                shape = (*shape, size)
            texts.append(draw(st.sampled_from((" ", "  "))).join(words))
            found.append(shape)
        sides.append(texts)
        shapes.append(found)
    arguments: dict[str, Any] = {name: sizes[name] for name in sorted(used - whole)}
    special = draw(st.permutations(sorted(used)))[: draw(st.integers(0, 3))]
    kinds: dict[str, list[str]] = {}
    for name in special:
        options = ("need_replication", "permutation") if name in in_results else ("reduction", "need_replication", "permutation")
        kinds.setdefault(draw(st.sampled_from(options)), []).append(name)
    rule = draw(st.sampled_from((" -> ", "->"))).join([draw(st.sampled_from((", ", ",", " , "))).join(side) for side in sides])
    return rule, {**arguments, **kinds}, *shapes  # pyright: ignore[reportReturnType]


@given(bound_rules())
def test_random_rules(case: tuple[str, dict[str, Any], Shapes, Shapes]) -> None:
    rule, arguments, operands, results = case
    ours = parse_einsum_rule(rule, **arguments).bind(operands, results)
    theirs = jax_rule(rule, arguments, operands, results)
    # JAX lists special factors as they are given; the dialect wants them in order, which ours are.
    head, _, tail = theirs.partition("}")
    assert str(ours).partition("}")[0] == head
    assert sorted(str(ours).partition("}")[2].replace(",", " ").replace("{", "{ ").replace("}", " }").split()) == sorted(
        tail.replace(",", " ").replace("{", "{ ").replace("}", " }").split()
    )
