"""Packages whose names are imported when they are first used."""

from __future__ import annotations

import importlib
import importlib.util
import re
import sys
from collections.abc import Callable
from typing import Any


def names_of(package: str, former: str = "") -> tuple[list[str], Callable[[str], Any], Callable[[], list[str]]]:
    """The names that a package imports for type checkers, its `__getattr__`, which imports each when it is first used, and its `__dir__`.

    A function must not have the name of a module of its package: importing that module would hide it. `former` is a module by a name that
    it had before, which goes on working and is not listed.
    """
    spec: Any = importlib.util.find_spec(package)
    imports = re.findall(r"^    from (\S+) import (\w+) as \w+$", spec.loader.get_source(package), re.MULTILINE)
    homes = {name: home for home, name in imports}

    def find(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        home = importlib.import_module(homes[name])
        if home is sys.modules[package]:
            return importlib.import_module(f"{package}.{name}")
        value = vars(sys.modules[package])[name] = getattr(home, name)
        return value

    names = [name for name in homes if name != former]
    return names, find, lambda: sorted(names)
