"""A headless Chromium for the tests of the page; they are skipped where there is none."""

from __future__ import annotations

import functools
import pathlib
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.view.browser import executables, open_page, started


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    """A selenium driver of its own for each file of tests."""
    pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
    if len(executables()) < 2:
        pytest.skip("chromium or chromedriver is not installed (Debian: apt-get install chromium chromium-driver)")
    with started() as chrome:
        yield chrome


@pytest.fixture
def opened(chromium: Any, tmp_path: pathlib.Path) -> Iterator[Callable[..., Any]]:
    """Opens a page of text in the browser, at a width, light or dark; afterwards nothing may have gone wrong in it."""
    yield functools.partial(open_page, chromium, tmp_path / "page.html")
    texts = chromium.execute_script(
        """const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT), found = [];
        while (walk.nextNode()) if (!walk.currentNode.parentElement.closest("script")) found.push(walk.currentNode.data);
        return found"""
    )
    missing = re.compile(r"\b(null|undefined|NaN)\b|\[object \w+\]")
    assert not [text for text in texts if missing.search(text)], "a value is missing in what the page says"
    said = [entry["message"] for entry in chromium.get_log("browser")]
    assert not said, said
