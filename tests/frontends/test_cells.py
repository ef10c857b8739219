"""Cells of notebooks are called as IPython calls them."""

from __future__ import annotations

import linecache
import sys
import types

import pytest

from shardy_py.frontends.cells import cell_name

FILE = "/tmp/ipykernel_4711/123456789.py"


class Compiler:
    def format_code_name(self, name: str) -> tuple[str, str] | None:
        return ("Cell", "In[3]") if name == FILE else None


def in_ipython(monkeypatch: pytest.MonkeyPatch, shell: object) -> None:
    module = types.ModuleType("IPython")
    module.get_ipython = lambda: shell  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "IPython", module)


def test_a_cell_has_its_number_and_its_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    in_ipython(monkeypatch, types.SimpleNamespace(compile=Compiler()))
    monkeypatch.setitem(linecache.cache, FILE, (6, None, ["x = 1\n"], FILE))
    monkeypatch.delitem(linecache.cache, "In[3]", raising=False)
    assert cell_name(FILE) == "In[3]"
    linecache.checkcache()
    assert linecache.getlines("In[3]") == ["x = 1\n"]
    linecache.cache.pop("In[3]")


@pytest.mark.parametrize("file", ["/home/me/train.py", "C:\\me\\train.py", "/home/ipykernel_1/x/train.py", ""])
def test_other_files_stay(monkeypatch: pytest.MonkeyPatch, file: str) -> None:
    in_ipython(monkeypatch, types.SimpleNamespace(compile=Compiler()))
    assert cell_name(file) == file


def test_without_a_shell_that_knows_it_the_name_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    for shell in (None, types.SimpleNamespace(), types.SimpleNamespace(compile=compile)):
        in_ipython(monkeypatch, shell)
        assert cell_name(FILE) == FILE
    monkeypatch.delitem(sys.modules, "IPython")
    assert cell_name(FILE) == FILE
