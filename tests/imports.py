"""The imports of the package, read off its source: what the tests of its structure and the picture of its rooms go by."""

from __future__ import annotations

import ast
import functools
import pathlib
from collections.abc import Container, Iterable, Iterator

ROOT = pathlib.Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "shardy_py"

# A room may import itself and the rooms before it. Rooms up to and including "facade" must not need jax.
ORDER = (
    "errors",
    "files",
    "lazy",
    "dialect",
    "ir",
    "rules",
    "passes",
    "cost",
    "partition",
    "plan",
    "planner",
    "view",
    "facade",
    "frontends",
    "backends",
    "api",
    "pipelines",
    "pipedream",
    "stages",
    "opt",
    "cli",
    "testing",
    "__main__",
    "",
)


def modules() -> Iterator[tuple[str, pathlib.Path]]:
    """(dotted name, file) of every module of the package."""
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts), path


def room(module: str) -> str:
    """The first name below the package: 'dialect' of 'shardy_py.dialect.axis', '' of the package itself."""
    return [*module.split("."), ""][1]


@functools.cache
def nodes(path: pathlib.Path) -> tuple[ast.AST, ...]:
    """All nodes of a file, parsed once in a process."""
    return tuple(ast.walk(ast.parse(path.read_text(), str(path))))


@functools.cache
def imported(module: str, path: pathlib.Path) -> tuple[tuple[str, str, int], ...]:
    """(module, name or '', line) of everything of this package that a file imports, type-checking blocks included."""
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    return tuple(_imported(package, nodes(path)))


def target_of(base: str, name: str, exists: Container[str]) -> str:
    """The module that an import reaches: `base.name` where that is one, else `base`."""
    return f"{base}.{name}" if f"{base}.{name}" in exists else base


def imported_late(path: pathlib.Path) -> set[int]:
    """Lines of the imports that stand inside a function."""
    functions = [node for node in nodes(path) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    return {node.lineno for function in functions for node in ast.walk(function) if isinstance(node, ast.Import | ast.ImportFrom)}


def _imported(package: str, nodes_of_file: Iterable[ast.AST]) -> Iterator[tuple[str, str, int]]:
    for node in nodes_of_file:
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.split(".")[0] == "shardy_py":
                    yield alias.name, "", node.lineno
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parents = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*parents, base] if base else parents)
            if base.split(".")[0] == "shardy_py":
                for alias in node.names:
                    yield base, alias.name, node.lineno
