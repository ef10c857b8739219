"""Small faults put into the library on purpose, one at a time: what no test notices is not tested.

`python -m tests.mutants --seed 1 --count 200` draws faults evenly over the rooms and runs the tests of each room, and all default tests
where those pass (`--room-only` leaves these out). It works on a copy of the checkout. A line says of each fault whether it was noticed; the
last one counts. A fault that only costs time, or that makes an equal program, goes unnoticed rightly: read the list.
"""

from __future__ import annotations

import argparse
import ast
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
PACKAGE = "shardy_py"
LEFT_OUT = shutil.ignore_patterns(".git", ".venv*", "build", "_build", "__pycache__", ".hypothesis", ".pytest_cache", ".ruff_cache")
OPPOSITES: dict[type[ast.AST], type[ast.AST]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Add,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv,
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.And: ast.Or,
    ast.Or: ast.And,
}
"""Operator -> the one that takes its place."""


def faults(tree: ast.Module) -> Iterator[tuple[int, str, Callable[[], None]]]:
    """Line and name of each fault of a module, and what puts it in."""
    for node in ast.walk(tree):
        match node:
            case ast.BinOp() | ast.BoolOp() if type(node.op) in OPPOSITES:
                yield node.lineno, type(node.op).__name__, lambda node=node: setattr(node, "op", OPPOSITES[type(node.op)]())
            case ast.Compare() if type(node.ops[0]) in OPPOSITES:
                yield node.lineno, type(node.ops[0]).__name__, lambda node=node: node.ops.__setitem__(0, OPPOSITES[type(node.ops[0])]())
            case ast.Constant(value=int(value)) if not isinstance(value, bool):
                yield node.lineno, f"{value} + 1", lambda node=node, value=value: setattr(node, "value", value + 1)
            case ast.Call() if len(node.args) > 1 and not isinstance(node.args[0], ast.Starred):
                yield node.lineno, "arguments swapped", lambda node=node: node.args.__setitem__(slice(0, 2), node.args[1::-1])
            case ast.FunctionDef() | ast.For() | ast.If() | ast.With():
                for i, statement in enumerate(node.body):
                    if isinstance(statement, ast.AugAssign | ast.Raise) or (
                        isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call)
                    ):
                        yield statement.lineno, "statement dropped", lambda node=node, i=i: node.body.__setitem__(i, ast.Pass())
            case _:
                pass


def drawn(random_: random.Random, room: Path) -> tuple[Path, int, str, str]:
    """A module of a room, the line and the name of its fault, and its text with the fault."""
    modules = sorted(room.rglob("*.py")) if room.is_dir() else [room]
    while True:
        path = random_.choices(modules, [module.stat().st_size + 1 for module in modules])[0]
        tree = ast.parse(path.read_text())
        possible = list(faults(tree))
        if possible:
            line, fault, put_in = random_.choice(possible)
            put_in()
            return path, line, fault, ast.unparse(tree)


def is_noticed(checkout: Path, tests: str, seconds: int) -> bool:
    """Whether tests fail, or do not end."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-n", "2", "--no-header", "-p", "no:cacheprovider", tests]
    try:
        return subprocess.run(command, cwd=checkout, capture_output=True, timeout=seconds, check=False).returncode not in (0, 5)
    except subprocess.TimeoutExpired:
        return True


def main() -> None:
    """Runs the tests on faults."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--room", help="faults of this room only")
    parser.add_argument("--room-only", action="store_true", help="run no other tests than those of the room")
    options = parser.parse_args()
    random_ = random.Random(options.seed)
    rooms = sorted(path.parent for path in (ROOT / PACKAGE).glob("*/__init__.py"))
    rooms = [room for room in rooms if (ROOT / "tests" / room.name).is_dir() and options.room in (None, room.name)]
    noticed = 0
    with tempfile.TemporaryDirectory() as folder:
        checkout = Path(folder) / "checkout"
        shutil.copytree(ROOT, checkout, ignore=LEFT_OUT)
        for _ in range(options.count):
            room = random_.choice(rooms)
            path, line, fault, text = drawn(random_, room)
            place = checkout / path.relative_to(ROOT)
            place.write_text(text)
            is_found = is_noticed(checkout, f"tests/{room.name}", 1800)
            is_found = is_found or (not options.room_only and is_noticed(checkout, "tests", 7200))
            shutil.copy(path, place)
            noticed += is_found
            print(f"{'noticed' if is_found else 'MISSED '}  {path.relative_to(ROOT)}:{line}  {fault}", flush=True)
    print(f"{noticed} of {options.count} noticed")


if __name__ == "__main__":
    main()
