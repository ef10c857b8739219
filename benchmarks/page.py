"""Times the web page of a plan of Llama 3 405B in Chromium: writing it, opening it, and answering clicks, a search and a scroll.

    python benchmarks/page.py --layers=126

Opening lasts from the start of the navigation to the moment at which the page can be used. An answer lasts from the event to the frame that
shows it. The smallest and the largest of several are given.
"""

from __future__ import annotations

import os

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import dataclasses
import pathlib
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from absl import app, flags
from jax.sharding import AbstractMesh
from llama import Config, arguments, train_step

import shardy_py as sp
from shardy_py.facade import Plan

LAYERS = flags.DEFINE_integer("layers", 126, "Blocks of the model, unrolled.", lower_bound=1)
HARDWARE = flags.DEFINE_string("hardware", None, "What times and memory are worked out for; a name, such as v5p.")
REPEAT = flags.DEFINE_integer("repeat", 5, "Times that the page is opened.", lower_bound=1)

FLAGS = (
    *("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--disable-dev-shm-usage", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
)

ANSWERS = """
const done = arguments[0], found = {};
const rows = () => [...document.querySelectorAll(".row:not(.group)")];
const tree = document.getElementById("tree"), search = document.getElementById("search"), only = document.getElementById("only");
const timed = (name, act) => new Promise((resolve) => {
  const start = performance.now();
  act();
  requestAnimationFrame(() => setTimeout(() => { (found[name] ||= []).push(performance.now() - start); resolve(); }, 0));
});
const change = (field, value) => { field.value = value; field.dispatchEvent(new Event("change")); };
(async () => {
  const closed = [...document.querySelectorAll(".row.group[aria-expanded=false]")].pop();
  if (closed) await timed("open a group", () => closed.click());
  for (const at of [0, 0.3, 0.6, 0.9]) {
    await timed("scroll", () => { tree.scrollTop = tree.scrollHeight * at; });
    for (const n of [0, 0.5, 0.99]) await timed("click a value", () => rows().length && rows()[Math.floor(rows().length * n)].click());
  }
  await timed("show what is replicated", () => change(only, "replicated"));
  await timed("click a value", () => rows()[0] && rows()[0].click());
  await timed("show all", () => change(only, "all"));
  search.value = "dot_general model";
  await timed("search", () => search.dispatchEvent(new Event("input")));
  for (const tab of ["moves", "charts", "findings"]) await timed("open a view", () => document.getElementById(`tab-${tab}`).click());
  const link = document.querySelector("#view-findings .link");
  if (link) await timed("follow a link", () => link.click());
  done(found);
})().catch((error) => done({ [String(error)]: [NaN] }));
"""


def planned(layers: int) -> Plan:
    """The plan of a step on 8,192 devices."""
    given, specs = arguments(dataclasses.replace(Config(), layers=layers), scanned=False)
    mesh = AbstractMesh((8, 128, 8), ("data", "fsdp", "model"))
    return sp.auto_shard(train_step, mesh=mesh, in_shardings=specs, donate_argnums=(0, 1)).plan(*given)


@contextmanager
def chromium() -> Iterator[Any]:
    """A headless browser."""
    from selenium import webdriver

    browser, driver = shutil.which("chromium") or shutil.which("google-chrome"), shutil.which("chromedriver")
    if browser is None or driver is None:
        raise SystemExit("chromium and chromedriver are needed (Debian: apt-get install chromium chromium-driver)")
    options = webdriver.ChromeOptions()
    options.binary_location = browser
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:  # the browser may still be writing to it
        for flag in (*FLAGS, f"--user-data-dir={profile}", "--window-size=1280,900"):
            options.add_argument(flag)
        made = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
        made.set_script_timeout(120)
        try:
            yield made
        finally:
            made.quit()


def took(name: str, act: Callable[[], Any]) -> Any:
    """Prints how long something took."""
    start = time.perf_counter()
    result = act()
    print(f"{name:32} {time.perf_counter() - start:8.2f} s")
    return result


def main(argv: list[str]) -> None:
    del argv
    plan = took("plan", lambda: planned(LAYERS.value))
    took("reshards and findings", lambda: (plan.shardy_reshards, plan.collectives, plan.findings))
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "plan.html"
        took("write the page", lambda: plan.save_html(path, hardware=HARDWARE.value))
        print(f"{len(plan.values):,} values, {path.stat().st_size / 1e6:.1f} MB")
        opened: list[float] = []
        answers: dict[str, list[float]] = {}
        with chromium() as browser:
            for _ in range(REPEAT.value):
                browser.get("about:blank")
                browser.get(path.as_uri())
                opened.append(browser.execute_script("return performance.getEntriesByName('ready')[0].startTime"))
                for name, times in browser.execute_async_script(ANSWERS).items():
                    answers.setdefault(name, []).extend(times)
    for name, times in {"open the page": opened, **answers}.items():
        print(f"{name:32} {min(times):6.0f} to {max(times):5.0f} ms")


if __name__ == "__main__":
    app.run(main)
