"""Docstrings: the examples run and print what they say, public names have complete sections, and no entry repeats a name."""

from __future__ import annotations

import ast
import doctest
import functools
import importlib
import inspect
import re
import types
from collections.abc import Iterator
from pathlib import Path

import pytest

import shardy_py
from tests.imports import modules
from tests.test_docs import listed

ROOT = Path(shardy_py.__file__).parent
MODULES = sorted(
    ".".join(("shardy_py", *path.relative_to(ROOT).with_suffix("").parts)).removesuffix(".__init__")
    for path in ROOT.rglob("*.py")
    if ">>> " in path.read_text()
)

SECTION = re.compile(r"^(Args|Attributes|Returns|Raises|Yields):\n((?:(?: +.*)?(?:\n|$))+)", re.MULTILINE)
ENTRY = re.compile(r"^    (?:\*{0,2}([\w.]+): )?(\S.*(?:\n {5,}.*)*)", re.MULTILINE)
COMMON = frozenset(
    "a all an and any are as at be been by do each every for from given has have if in into is it its no none not of on one or own per s "
    "so that the their them there they this to was were what when where which whose will with".split()
)


@pytest.mark.parametrize("name", MODULES)
def test_examples(name: str) -> None:
    result = doctest.testmod(importlib.import_module(name), optionflags=doctest.NORMALIZE_WHITESPACE)
    assert result.failed == 0
    assert result.attempted > 0


@pytest.mark.parametrize("name", listed())
def test_a_name_of_the_reference_has_an_example(name: str) -> None:
    module, _, attribute = name.rpartition(".")
    assert ">>> " in (getattr(importlib.import_module(module), attribute).__doc__ or "")


def entries(doc: str) -> Iterator[tuple[str, str, str]]:
    """(section, name or "", text) of every entry of a docstring's sections."""
    for section in SECTION.finditer(doc):
        for entry in ENTRY.finditer(section[2]):
            yield section[1], entry[1] or "", entry[2]


def plain(member: object) -> object:
    """The function behind a property, a cached property, a class method or a decorator."""
    if isinstance(member, property):
        member = member.fget
    elif isinstance(member, functools.cached_property):
        member = member.func
    elif isinstance(member, staticmethod | classmethod):
        member = member.__func__
    return inspect.unwrap(member) if callable(member) else member


@functools.cache
def documented() -> dict[str, object]:
    """What the reference shows, by module and name in it: the names that it lists, and the public members of its classes."""
    shown: dict[str, object] = {}
    for name in listed():
        module, _, attribute = name.rpartition(".")
        value = plain(getattr(importlib.import_module(module), attribute))
        members = [m for base in value.__mro__ for n, m in vars(base).items() if not n.startswith("_")] if isinstance(value, type) else []
        for each in [value, *map(plain, members)]:
            if isinstance(each, type | types.FunctionType) and each.__module__.startswith("shardy_py"):
                shown[f"{each.__module__}.{each.__qualname__}"] = each
    return shown


def test_public_functions_describe_all_of_their_parameters() -> None:
    wrong = []
    for name, value in documented().items():
        if not isinstance(value, types.FunctionType):
            continue
        parameters = set(inspect.signature(value).parameters) - {"self", "cls"}
        described = {entry for section, entry, _ in entries(inspect.cleandoc(value.__doc__ or "")) if section == "Args"}
        is_method = "." in value.__qualname__  # its first line may say all
        if parameters - described and (described or not is_method):
            wrong.append(f"{name}: no entry under Args for {', '.join(sorted(parameters - described))}")
    assert not wrong, "\n".join(wrong)


def words(text: str) -> set[str]:
    """The stems of the words of a text or a name."""
    parts = re.findall(r"[a-z0-9]+", re.sub(r"([a-z])([A-Z])", r"\1 \2", text).lower())
    return {re.sub(r"(?<=...)(ies|es|s|ing|ed|y)$", "", part) for part in parts}


def definitions(node: ast.AST, prefix: str) -> Iterator[tuple[str, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef]]:
    """(module and qualified name, node) of every class and function below a node."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield f"{prefix}.{child.name}", child
            yield from definitions(child, f"{prefix}.{child.name}" + ("" if isinstance(child, ast.ClassDef) else ".<locals>"))
        elif isinstance(child, ast.stmt):
            yield from definitions(child, prefix)


def types_in(node: ast.AST) -> dict[str, str]:
    """The annotations in a class or function, by the names of fields and parameters."""
    annotated: dict[str, str] = {}
    for child in ast.walk(node):
        if isinstance(child, ast.arg) and child.annotation:
            annotated.setdefault(child.arg, ast.unparse(child.annotation))
        elif isinstance(child, ast.AnnAssign) and isinstance(child.target, ast.Name):
            annotated.setdefault(child.target.id, ast.unparse(child.annotation))
    return annotated


def repeated(name: str, node: ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) -> list[str]:
    """The entries of a docstring that say no more than the name, the type, and the first line."""
    doc = ast.get_docstring(node) or ""
    if not SECTION.search(doc):
        return []
    types_of = types_in(node)
    first_line = words(doc.partition("\n")[0]) | words(name.rpartition(".")[2]) | words(" ".join(COMMON)) | COMMON
    return [
        f"{name}: {section}: {entry}: {text}"
        for section, entry, text in entries(doc)
        if not words(text) - first_line - words(entry) - words(types_of.get(entry, ""))
    ]


def test_no_entry_of_an_internal_name_repeats_what_its_signature_says() -> None:
    """Sections belong to public names; elsewhere one line, and an entry where it says more: a unit, an order, an owner, a reason."""
    wrong = []
    for module, path in modules():
        for name, node in definitions(ast.parse(path.read_text()), module):
            if name not in documented():
                wrong += repeated(name, node)
    assert not wrong, "\n".join(wrong)


def test_an_entry_that_repeats_the_name_is_found() -> None:
    source = '''
def lay_out(mesh: Mesh, seconds: float) -> Layout:
    """Lays a value out.

    Args:
        mesh: The mesh.
        seconds: Of one call, all trips of loops
            together.
    """
'''
    (function,) = ast.parse(source).body
    assert isinstance(function, ast.FunctionDef)
    assert repeated("module.lay_out", function) == ["module.lay_out: Args: mesh: The mesh."]
