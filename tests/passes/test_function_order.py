"""Functions stand, and are copied, in the order in which the passes of jaxlib have them."""

from __future__ import annotations

import random

from shardy_py.opt.from_mlir import from_mlir
from shardy_py.opt.function_graph import FlattenCallGraph, PreOrderFuncs
from shardy_py.passes.walk import calls_in
from tests.passes.oracle import jaxlib_program


def functions(*calls: tuple[str, str]) -> str:
    """A module of functions, each given as its name and the names of those it calls."""
    text = []
    for name, callees in calls:
        body = "".join(f"  func.call @{callee}() : () -> ()\n" for callee in callees.split())
        text.append(f"func.func @{name}() {{\n{body}  return\n}}")
    return "\n".join(text)


def random_functions(seed: int) -> str:
    source = random.Random(seed)
    names = [f"f{i}" for i in range(source.randint(2, 6))]
    if source.random() < 0.8:
        names[source.randrange(len(names))] = "main"
    order = source.sample(names, len(names))
    calls = {name: [callee for callee in order[i + 1 :] if source.random() < 0.3] for i, name in enumerate(order)}
    return functions(*((name, " ".join(source.sample(calls[name], len(calls[name])))) for name in names))


def order(text: str) -> list[str]:
    program = from_mlir(text)
    PreOrderFuncs().run(program)
    return [function.name for function in program.functions]


def test_callers_come_before_those_they_call_and_the_last_one_first() -> None:
    assert order(functions(("main", "a b"), ("a", ""), ("b", ""))) == ["main", "b", "a"]
    assert order(functions(("a", ""), ("main", "a"))) == ["main", "a"]


def test_a_function_that_nobody_calls_can_stand_before_main() -> None:
    assert order(functions(("comparator", ""), ("main", ""))) == ["main", "comparator"]
    assert order(functions(("main", ""), ("comparator", ""))) == ["comparator", "main"]


def test_random_call_graphs() -> None:
    for seed in range(60):
        text = random_functions(seed)
        for each in (PreOrderFuncs, FlattenCallGraph):
            ours = from_mlir(text)
            each().run(ours)
            theirs = jaxlib_program(text, each.name)
            found, expected = (
                [(function.name, [call.attributes["callee"] for call in calls_in(function)]) for function in program.functions]
                for program in (ours, theirs)
            )
            assert found == expected, text
