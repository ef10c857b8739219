"""A headless Chromium, pages opened in it, and waiting for what it does in its own time."""

from __future__ import annotations

import contextlib
import os
import pathlib
import shutil
import tempfile
from collections.abc import Callable, Iterator
from typing import Any

import pytest

LONG = 120.0
"""Seconds after which a wait is a failure: far more than a loaded machine takes."""

FRAMES = "const done = arguments[0]; requestAnimationFrame(() => requestAnimationFrame(() => done()))"

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


def executables() -> list[str]:
    """Paths of Chromium and of its driver, each only if it is installed."""
    names = (("chromium", "chromium-browser", "google-chrome"), ("chromedriver",))
    return [path for several in names if (path := next(filter(None, map(shutil.which, several)), None))]


@contextlib.contextmanager
def started() -> Iterator[Any]:
    """A selenium driver."""
    from selenium import webdriver

    browser, driver = executables()
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


def open_page(browser: Any, path: pathlib.Path, text: str, *, width: int = 1280, dark: bool = False, anchor: str = "") -> Any:
    """Opens a page of text, written to a file, at a width, light or dark."""
    path.write_text(text, encoding="utf-8")
    scheme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": scheme})
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    browser.get("about:blank")
    browser.get(path.as_uri() + anchor)
    assert browser.execute_script("return document.documentElement.dataset.ready") == "yes"
    until(browser, lambda: browser.execute_script("return window.innerWidth") == width, f"the window is not {width} wide")
    settled(browser)
    return browser


def until(browser: Any, holds: Callable[[], bool], what: str = "") -> None:
    """Waits until something holds, such as the answer to an event that the page puts off, or the size of a window."""
    from selenium.webdriver.support.wait import WebDriverWait

    WebDriverWait(browser, LONG, poll_frequency=0.05).until(lambda _: holds(), what)


def settled(browser: Any) -> None:
    """Waits for two frames: events of scrolling and of sizes belong to a frame, so those of all that was done so far are over then."""
    browser.execute_async_script(FRAMES)
