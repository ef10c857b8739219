"""A headless Chromium for the tests of the page; they are skipped where there is none."""

from __future__ import annotations

import os
import pathlib
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.view.browser import LONG, settled, until

FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-extensions",
)


def _executable(*names: str) -> str | None:
    return next((path for path in map(shutil.which, names) if path), None)


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    """A selenium driver of its own for each file of tests."""
    webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
    browser, driver = _executable("chromium", "chromium-browser", "google-chrome"), _executable("chromedriver")
    if browser is None or driver is None:
        pytest.skip("chromium or chromedriver is not installed (Debian: apt-get install chromium chromium-driver)")
    options = webdriver.ChromeOptions()
    options.binary_location = browser
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    # A browser may still be writing to its profile when it is gone for selenium.
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile, pytest.MonkeyPatch.context() as environment:
        for name in ("no_proxy", "NO_PROXY"):
            environment.setenv(name, "*")
        for flag in (*FLAGS, f"--user-data-dir={profile}"):
            options.add_argument(flag)
        chrome = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver, log_output=os.devnull))
        chrome.set_script_timeout(LONG)
        chrome.execute_cdp_cmd("Emulation.setFocusEmulationEnabled", {"enabled": True})
        try:
            yield chrome
        finally:
            chrome.quit()


@pytest.fixture
def opened(chromium: Any, tmp_path: pathlib.Path) -> Iterator[Callable[..., Any]]:
    """Opens a page of text in the browser, at a width, light or dark; afterwards nothing may have gone wrong in it."""

    def open_page(text: str, *, width: int = 1280, dark: bool = False, anchor: str = "") -> Any:
        path = tmp_path / "page.html"
        path.write_text(text, encoding="utf-8")
        scheme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        chromium.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": scheme})
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
        chromium.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        chromium.get("about:blank")
        chromium.get(path.as_uri() + anchor)
        assert chromium.execute_script("return document.documentElement.dataset.ready") == "yes"
        until(chromium, lambda: chromium.execute_script("return window.innerWidth") == width, f"the window is not {width} wide")
        settled(chromium)
        return chromium

    yield open_page
    texts = chromium.execute_script(
        """const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT), found = [];
        while (walk.nextNode()) if (!walk.currentNode.parentElement.closest("script")) found.push(walk.currentNode.data);
        return found"""
    )
    missing = re.compile(r"\b(null|undefined|NaN)\b|\[object \w+\]")
    assert not [text for text in texts if missing.search(text)], "a value is missing in what the page says"
    said = [entry["message"] for entry in chromium.get_log("browser")]
    assert not said, said
