"""Waiting for what a browser does in its own time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

LONG = 120.0
"""Seconds after which a wait is a failure: far more than a loaded machine takes."""

FRAMES = "const done = arguments[0]; requestAnimationFrame(() => requestAnimationFrame(() => done()))"


def until(browser: Any, holds: Callable[[], bool], what: str = "") -> None:
    """Waits until something holds, such as the answer to an event that the page puts off, or the size of a window."""
    from selenium.webdriver.support.wait import WebDriverWait

    WebDriverWait(browser, LONG, poll_frequency=0.05).until(lambda _: holds(), what)


def settled(browser: Any) -> None:
    """Waits for two frames: events of scrolling and of sizes belong to a frame, so those of all that was done so far are over then."""
    browser.execute_async_script(FRAMES)
