"""The examples in docstrings run and print what they say."""

from __future__ import annotations

import doctest
import importlib
from pathlib import Path

import pytest

import shardy_py

ROOT = Path(shardy_py.__file__).parent
MODULES = sorted(
    ".".join(("shardy_py", *path.relative_to(ROOT).with_suffix("").parts)).removesuffix(".__init__")
    for path in ROOT.rglob("*.py")
    if ">>> " in path.read_text()
)


@pytest.mark.parametrize("name", MODULES)
def test_examples(name: str) -> None:
    result = doctest.testmod(importlib.import_module(name), optionflags=doctest.NORMALIZE_WHITESPACE)
    assert result.failed == 0
    assert result.attempted > 0


def test_the_public_functions_and_classes_have_examples() -> None:
    for name in shardy_py.__all__:
        public = getattr(shardy_py, name)
        if callable(public):
            assert ">>> " in (public.__doc__ or ""), name
