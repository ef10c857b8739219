"""The page in Chromium: what it shows, and that mouse, keyboard, light, dark and narrow windows work."""

from __future__ import annotations

import pathlib
import re
import urllib.parse
from collections.abc import Callable
from typing import Any

import jax
import pytest

import shardy_py
from shardy_py.facade import Plan
from shardy_py.plan.collectives import format_bytes
from shardy_py.plan.cost_analysis import seconds_text
from shardy_py.plan.diff import partners
from shardy_py.plan.explanation import Reason
from shardy_py.view.html.page import assembled, page
from shardy_py.view.html.payload import payload
from tests.scripts import names
from tests.view import plans
from tests.view.browser import settled, until

By = pytest.importorskip("selenium.webdriver.common.by", reason="selenium is not installed").By
ActionChains = pytest.importorskip("selenium.webdriver", reason="selenium is not installed").ActionChains
Keys = pytest.importorskip("selenium.webdriver.common.keys", reason="selenium is not installed").Keys

PAGE = pathlib.Path(shardy_py.__file__).parent / "view" / "html"
Opened = Callable[..., Any]


def anchor(path: str) -> str:
    return "#" + urllib.parse.quote(path, safe="")


def texts(browser: Any, selector: str) -> list[str]:
    return browser.execute_script("return [...document.querySelectorAll(arguments[0])].map((e) => e.textContent)", selector)


def rows(browser: Any) -> list[str]:
    return texts(browser, ".row .label")


def press(browser: Any, *keys: str) -> None:
    """Keys go to what has the focus."""
    ActionChains(browser).send_keys(*keys).perform()


def title(browser: Any) -> str:
    return browser.execute_script("return document.querySelector('.panel h2').textContent")


def test_header_and_figures(opened: Opened) -> None:
    plan = plans.training()
    browser = opened(page(plan))
    assert browser.title == "plan of train_step"
    assert texts(browser, "header .mesh") == ["mesh data=2 × model=4, 8 devices, lowered by jit; figures are per device and call"]
    figures = dict(zip(texts(browser, ".card .what"), texts(browser, ".card .much"), strict=True))
    assert re.search(rf"^inputs .*, {figures['inputs']} on each device", plan.as_text(), re.MULTILINE)
    assert re.search(rf"^outputs .*, {figures['outputs']} on each device", plan.as_text(), re.MULTILINE)
    assert figures["peak memory"] == format_bytes(plan.memory_analysis().peak_memory_in_bytes)
    assert texts(browser, ".found") == [f"{len(plan.values)} values"]


@pytest.mark.parametrize(("width", "dark"), [(1280, False), (800, True)])
def test_the_search_of_a_planner(opened: Opened, width: int, dark: bool) -> None:
    plan = plans.chosen()
    search = plan.search
    assert search is not None
    browser = opened(page(plan), width=width, dark=dark)
    figures = dict(zip(texts(browser, ".card .what"), texts(browser, ".card .much"), strict=True))
    assert figures["planned step"] == f"{seconds_text(search.objective_seconds)}, {search.gap:.1%} gap"
    browser.find_element(By.ID, "tab-search").click()
    facts = dict(zip(texts(browser, "#view-search dt"), texts(browser, "#view-search dd"), strict=True))
    assert facts["step"] == f"{seconds_text(search.objective_seconds)} on h100"
    assert facts["lower bound"] == search.bound_text
    assert facts["peak on h100"] == f"{format_bytes(search.peak_bytes)} of {format_bytes(search.budget_bytes or 0)}"
    assert [facts[name] for name in search.space] == list(map(str, search.space.values()))
    listed = browser.execute_script(
        "return [...document.querySelectorAll('#view-search tbody tr')].map((row) => [...row.cells].map((cell) => cell.textContent))"
    )
    assert [(name, step) for name, _, step, _ in listed] == [(a.name, seconds_text(a.objective_seconds)) for a in search.alternatives]
    cut = next(a for a in search.alternatives if a.name == "data parallel over data and model")
    (inputs,) = [text for name, text, _, _ in listed if name == cut.name]
    assert f"x {cut.inputs['x']}" in inputs or cut.inputs["x"] == "P('data', 'model')"
    wide = browser.execute_script("return document.querySelector('#view-search').scrollWidth <= document.documentElement.clientWidth")
    assert wide


def test_annotations_alone_have_no_search(opened: Opened) -> None:
    browser = opened(page(plans.training()))
    assert "Planner" not in texts(browser, ".tabs button")
    browser = opened(page(plans.chosen(), plans.training()))
    browser.find_element(By.ID, "tab-search").click()
    assert "nothing was searched" in texts(browser, "#view-search .empty")[0]


def test_figures_for_hardware(opened: Opened) -> None:
    plan = plans.training()
    browser = opened(page(plan, hardware="h100"))
    figures = dict(zip(texts(browser, ".card .what"), texts(browser, ".card .much"), strict=True))
    step = plan.cost_analysis("h100").step_seconds
    assert step is not None
    assert figures["step"] == str(step)
    assert figures["fits"].endswith(" GiB left")
    browser.find_element(By.ID, "tab-charts").click()
    captions = texts(browser, "#view-charts figcaption")
    assert captions[0] == "Live memory over the program"
    assert {"Time per module", "Time per source line", "Time per primitive"} < set(captions)
    said = " ".join(texts(browser, "#view-charts svg text"))
    assert f"peak {format_bytes(plan.memory_analysis('h100').peak_memory_in_bytes)}" in said


def test_tree_has_every_value_once_its_groups_are_open(opened: Opened) -> None:
    plan = plans.training()
    browser = opened(page(plan))
    here = """const r = document.querySelector(".row.here");
    return [r.id, r.getAttribute("aria-expanded"), r.querySelector(".label").title, document.querySelector(".panel h2").textContent]"""
    seen: dict[str, int] = {}
    browser.execute_script("tree.focus()")
    press(browser, Keys.HOME)
    last = ""
    for _ in range(1000):
        row, expanded, label, shown = browser.execute_script(here)
        if row == last:
            break
        if expanded is None:
            seen[label] = seen.get(label, 0) + 1
            assert shown == label
        last = "" if expanded == "false" else row
        press(browser, Keys.ARROW_RIGHT if expanded == "false" else Keys.ARROW_DOWN)
    assert seen == dict.fromkeys((value.path for value in plan.values), 1)


def test_search_by_path_primitive_place_and_sharding(opened: Opened) -> None:
    plan = plans.training()
    browser = opened(page(plan))
    press(browser, "/")
    search = browser.find_element(By.ID, "search")
    assert browser.switch_to.active_element == search
    line = next(v.location for v in plan.values if v.primitive == "dot_general")
    for query, wanted in {
        "momentum layers": lambda v: v.path.startswith("momentum['layers']"),
        "dot_general": lambda v: v.primitive == "dot_general",
        line.rpartition("/")[2]: lambda v: v.location.endswith(line.rpartition("/")[2]),
        "256@model": lambda v: "256@model" in str(v),
        "layer_1/down": lambda v: v.module.startswith("layer_1/down"),
        "no such thing": lambda v: False,
    }.items():
        search.clear()
        search.send_keys(query)
        expected = [v.path for v in plan.values if wanted(v)]
        assert texts(browser, ".found") == [f"{len(expected)} of {len(plan.values)} values"]
        shown = browser.execute_script("return [...document.querySelectorAll('.row:not(.group) .label')].map((e) => e.title)")
        assert set(shown) <= set(expected)
        assert bool(shown) == bool(expected)
    press(browser, Keys.ESCAPE)
    assert texts(browser, ".found") == [f"{len(plan.values)} values"]
    assert browser.execute_script("return document.activeElement.id") == "tree"


def test_a_search_without_a_hit_says_so_and_leads_on(opened: Opened) -> None:
    plan = plans.training()
    browser = opened(page(plan))
    search = browser.find_element(By.ID, "search")
    search.send_keys("all_reduce")
    (said, moves) = texts(browser, ".none:not(.hidden) p")
    assert said == "No value has “all_reduce” in its path, primitive, source line, module or sharding."
    with_it = [c for c in plan.collectives if c.kind == "all_reduce"]
    assert moves == f"Among collectives there are {len(with_it)}: Data movement."
    browser.find_element(By.CSS_SELECTOR, ".none .link").click()
    assert browser.find_element(By.ID, "view-moves").is_displayed()
    browser.find_element(By.ID, "tab-values").click()
    search.clear()
    search.send_keys("zebra")
    assert texts(browser, ".none:not(.hidden) p")[1] == "What moves between devices is under Data movement."
    search.clear()
    search.send_keys("up")
    assert texts(browser, ".none:not(.hidden) p") == []


def test_the_value_that_is_shown_first_is_chosen_in_the_tree(opened: Opened) -> None:
    browser = opened(page(plans.training()))
    (chosen,) = browser.find_elements(By.CSS_SELECTOR, ".row[aria-selected='true']")
    assert title(browser).endswith(chosen.find_element(By.CSS_SELECTOR, ".label").text)
    tree = browser.find_element(By.ID, "tree").rect
    assert tree["y"] < chosen.rect["y"] < tree["y"] + tree["height"] - chosen.rect["height"]


def test_findings_of_layers_are_one(opened: Opened) -> None:
    plan = plans.replicated_layers()
    browser = opened(page(plan))
    browser.find_element(By.ID, "tab-findings").click()
    counts = [len(finding.all_paths) for finding in plan.findings]
    assert len(counts) < sum(counts)
    assert len(browser.find_elements(By.CSS_SELECTOR, "#view-findings > ul > li")) == len(counts)
    assert texts(browser, "#view-findings summary") == [f"and {count - 1} more like it" for count in counts if count > 1]
    assert len(texts(browser, "#view-findings li")) == sum(counts)


def test_the_page_in_a_cell_of_a_notebook(chromium: Any, tmp_path: pathlib.Path) -> None:
    (tmp_path / "cell.html").write_text(f"<body>{plans.training().show(height=400)._repr_html_()}</body>")
    chromium.get((tmp_path / "cell.html").as_uri())
    frame = chromium.find_element(By.TAG_NAME, "iframe")
    assert frame.size["height"] in range(398, 404)
    chromium.switch_to.frame(frame)
    try:
        until(chromium, lambda: chromium.execute_script("return document.documentElement.dataset.ready") == "yes")
        assert title(chromium)
    finally:
        chromium.switch_to.default_content()


def test_filters(opened: Opened) -> None:
    plan = plans.training()
    browser = opened(page(plan))
    moving = {r.value for r in plan.reshards} & {v.path for v in plan.values}
    for choice, count in {
        "replicated": sum(bool(v.shape) and (v.sharding is None or v.sharding.is_fully_replicated) for v in plan.values),
        "moving": len(moving),
        "found": len({f.path for f in plan.findings} & {v.path for v in plan.values}),
    }.items():
        browser.execute_script("only.value = arguments[0]; only.dispatchEvent(new Event('change'))", choice)
        assert texts(browser, ".found") == [f"{count} of {len(plan.values)} values"], choice


@pytest.mark.parametrize("name", ["ranks", "cube"])
def test_the_drawing_has_the_slices_that_jax_has(opened: Opened, name: str) -> None:
    plan: Plan = getattr(plans, name)()
    described = zip((*plan.inputs, *plan.outputs), (*plan.input_shardings, *jax.tree.leaves(plan.output_shardings)), strict=True)
    text = page(plan)
    for value, sharding in described:
        browser = opened(text, anchor=anchor(value.path))
        assert title(browser) == value.path
        labels = browser.execute_script("return [...document.querySelectorAll('.cell')].map((e) => e.getAttribute('aria-label'))")
        shown = {int(m[1]): m[2] for label in labels if (m := re.fullmatch(r"Device (\d+) holds \[(.*)\]", label))}
        assert shown == {
            device.id: ", ".join(
                ":" if (start, stop) == (0, size) else f"{start}:{stop}"
                for (start, stop, _), size in zip((part.indices(n) for part, n in zip(index, value.shape)), value.shape)
            )
            for device, index in sharding.devices_indices_map(value.shape).items()
        }
        tiles = [m for label in labels if (m := re.fullmatch(r"Tile \S+ is \[(.*)\], on \d+ devices?: (.*)", label))]
        assert {m[1] for m in tiles} == set(shown.values())
        for m in tiles:
            assert _numbers(m[2]) == {device for device, held in shown.items() if held == m[1]}


def test_parts_of_axes_are_drawn(opened: Opened) -> None:
    plan = plans.ranks()
    value = next(v for v in plan.values if str(v).endswith("float32[2@x:(1)2,4@x:(2)4,4]"))
    browser = opened(page(plan), anchor=anchor(value.path))
    labels = browser.execute_script("return [...document.querySelectorAll('.cell')].map((e) => e.getAttribute('aria-label'))")
    order = [5, 2, 7, 0, 3, 6, 1, 4]
    wanted = [f"Device {order[p]} holds [{p // 4}:{p // 4 + 1}, {p % 4}:{p % 4 + 1}, :]" for p in range(8)]
    assert [label for label in labels if label.startswith("Device")] == wanted
    assert "dimension 0 of 2 in 2 by x:(1)2; dimension 1 of 4 in 4 by x:(2)4" in texts(browser, "figcaption")[0]


def _numbers(ranges: str) -> set[int]:
    """Reads `0–2, 5`."""
    found: set[int] = set()
    for part in ranges.split(", "):
        first, _, last = part.partition("–")
        found.update(range(int(first), int(last or first) + 1))
    return found


def test_choosing_a_tile_lights_its_devices(opened: Opened) -> None:
    browser = opened(page(plans.training()), anchor=anchor("params['layers'][0]['up']"))
    browser.find_element(By.CSS_SELECTOR, ".cell[data-tile='2']").click()
    lit = texts(browser, ".cell.lit b")
    assert lit == ["tile 2", "d2", "d6"]
    assert "128:192" in texts(browser, ".says")[0]
    press(browser, Keys.ARROW_RIGHT)
    first = browser.find_element(By.CSS_SELECTOR, ".cell[tabindex='0']")
    first.send_keys(Keys.ENTER)
    assert texts(browser, ".cell.lit b")[0] == "tile 0"


def test_a_large_mesh_is_drawn_in_part_and_says_what_a_device_holds(opened: Opened) -> None:
    from jax.sharding import AbstractMesh
    from jax.sharding import PartitionSpec as P

    import shardy_py as sp
    from shardy_py.dialect import Mesh

    mesh = AbstractMesh((8, 128, 8), ("data", "fsdp", "model"))
    plan = sp.auto_shard(lambda x: x + 1, mesh=mesh, in_shardings=P(("data", "fsdp"), "model")).plan(plans.shape(4096, 64))
    assert isinstance(plan.mesh, Mesh)
    browser = opened(page(plan), anchor=anchor("x"))
    assert len(texts(browser, ".cell")) < 400
    browser.find_element(By.CSS_SELECTOR, ".ask input").send_keys("8191")
    assert texts(browser, ".says") == ["Device 8191 (data 7, fsdp 127, model 7) holds tile 1023,7: [4092:4096, 56:64]"]
    browser.find_element(By.CSS_SELECTOR, ".ask input").send_keys("9")
    assert "There is no device 81919" in texts(browser, ".says")[0]


@pytest.mark.parametrize("path", ["params['layers'][1]['down']", "momentum['head']", "%3", "result[0]['layers'][0]['up']"])
def test_why_is_what_explain_says(opened: Opened, path: str) -> None:
    plan = plans.training()
    browser = opened(page(plan), anchor=anchor(path))
    browser.execute_script("document.querySelectorAll('.chain button').forEach((b) => b.textContent.startsWith('show') && b.click())")
    chains = plan.explain(path).chains
    told = [f"{reason.value} dim {reason.dim}" for chain in chains for reason in chain]
    said = texts(browser, ".chain li")
    assert len(said) == len(told)
    assert all(line.startswith(begin + ":") for line, begin in zip(said, told))
    ends = [reason.annotation for chain in chains for reason in chain if not reason.needs]
    assert [line for line in said if "given by" in line] == [line for line in said if any(f"given by {end}" in line for end in ends)]
    assert len(ends) == len(texts(browser, ".chain li.start"))


def test_it_says_how_to_ask_why_an_axis_is_missing(opened: Opened) -> None:
    plan = plans.training()
    browser = opened(page(plan), anchor=anchor("params['head']"))
    (line,) = [text for text in texts(browser, ".panel code") if text.startswith("plan.explain")]
    assert line == """plan.explain("params['head']", axis="data")"""
    assert plan.explain("params['head']", axis="data").missing


def test_it_says_what_keeps_an_axis_away(opened: Opened) -> None:
    plan = plans.training()
    browser = opened(page(plan), anchor=anchor("params['layers'][0]['up']"))
    why = next(why for why in plan.explain("params['layers'][0]['up']", axis="data").missing if why.kind == "closed")
    assert texts(browser, ".absent li") == [f"No data: {why.message}.to have it: {why.fix}"]
    (line,) = [text for text in texts(browser, ".panel code") if text.startswith("plan.explain")]
    assert line == """plan.explain("params['layers'][0]['up']", axis="data")"""


def test_every_cause_has_its_words() -> None:
    causes = {"propagated", "entry", "carry", "exit", "barrier", "group", "result", "constraint", "priority"}
    script = (PAGE / "panel.js").read_text()
    words = script[script.index("const words = {") : script.index("const ranks = [")]
    assert causes == set(re.findall(r"(\w+): \[", words))
    described = (Reason.__doc__ or "").partition("cause:")[2].partition("through:")[0]
    assert causes <= set(re.findall(r"`(\w+)`", described))


def test_links_in_an_explanation_lead_on(opened: Opened) -> None:
    plan = plans.training()
    browser = opened(page(plan), anchor=anchor("params['layers'][1]['down']"))
    second = plan.explain("params['layers'][1]['down']").chains[0][1].value
    browser.execute_script("document.querySelectorAll('.chain .link')[1].click()")
    assert title(browser) == second
    assert browser.execute_script("return decodeURIComponent(location.hash)") == "#" + second
    assert texts(browser, ".row[aria-selected='true'] .label") == [second.rpartition("]")[2] or second]


def test_values_inside_of_loops_are_named(opened: Opened) -> None:
    plan = plans.scanned()
    browser = opened(page(plan), anchor=anchor("result"))
    told = [reason.value for chain in plan.explain("result").chains for reason in chain]
    said = texts(browser, ".chain li")
    assert all(line.startswith(value) for line, value in zip(said, told))


def test_movement_and_findings_and_charts(opened: Opened) -> None:
    plan = plans.training()
    browser = opened(page(plan))
    browser.find_element(By.ID, "tab-moves").click()
    kinds = " ".join(texts(browser, "#view-moves td"))
    assert all(step.kind in kinds for reshard in plan.reshards for step in reshard.collectives)
    browser.find_element(By.CSS_SELECTOR, "#view-moves .link").click()
    assert browser.find_element(By.ID, "values").is_displayed()
    assert any("all_" in line for line in texts(browser, ".panel li b"))
    browser.find_element(By.ID, "tab-findings").click()
    assert len(texts(browser, "#view-findings li")) == max(len(plan.findings), 0)
    browser.find_element(By.ID, "tab-charts").click()
    captions = texts(browser, "#view-charts figcaption")
    assert "Communication per mesh axis" in captions
    assert "Communication per kind" in captions
    said = " ".join(texts(browser, "#view-charts svg text"))
    assert "bytes received by each device in one call" in said
    assert "data" in said
    for box in browser.find_elements(By.CSS_SELECTOR, "#view-charts svg"):
        edge = box.rect
        for text in box.find_elements(By.CSS_SELECTOR, "text"):
            inside = text.rect
            assert inside["x"] >= edge["x"] - 1, text.text
            assert inside["x"] + inside["width"] <= edge["x"] + edge["width"] + 1, text.text


def test_two_plans(opened: Opened) -> None:
    plan, other = plans.training(), plans.other_training()
    browser = opened(page(plan, other), anchor=anchor("x"))
    there = partners(plan, other)
    differ = sum(j < 0 or str(v).partition(": ")[2] != str(other.values[j]).partition(": ")[2] for v, j in zip(plan.values, there))
    extra = len(other.values) - sum(j >= 0 for j in there)
    assert texts(browser, ".found") == [f"{len(plan.values) + extra} values, {differ + extra} of them different"]
    changed = texts(browser, ".row.changed[aria-selected='true'] .of")
    assert changed == ["Afloat32[32@data,64]", "Bfloat32[32@(data,model),64]", "4 KiB", "1 KiB"]
    assert "The plans differ here." in texts(browser, ".panel p")
    browser.execute_script("only.value = 'changed'; only.dispatchEvent(new Event('change'))")
    assert len(texts(browser, ".row:not(.group):not(.changed)")) == 0
    for tab in ("moves", "charts", "findings"):
        browser.find_element(By.ID, f"tab-{tab}").click()
    assert texts(browser, "#view-moves h2") == ["A train_step", "B train_step"]


def test_names_are_shown_as_they_are(opened: Opened) -> None:
    plan = plans.hostile()
    path = f"tree[{plans.HOSTILE!r}]"
    browser = opened(page(plan), anchor=anchor(path))
    assert title(browser) == path
    assert "<i>=2" in texts(browser, ".mesh")[0]
    assert texts(browser, "h1") == ["Plan of <script>alert(1)</script>"]
    assert browser.execute_script("return document.querySelectorAll('img, #injected, i').length") == 0
    assert browser.execute_script("return document.scripts.length") == 2
    for tab in ("moves", "charts", "findings"):
        browser.find_element(By.ID, f"tab-{tab}").click()


def test_light_and_dark(opened: Opened) -> None:
    text = page(plans.training())
    colour = "return getComputedStyle(document.body).backgroundColor"
    light = opened(text).execute_script(colour)
    browser = opened(text, dark=True)
    dark = browser.execute_script(colour)
    assert (light, dark) == ("rgb(255, 255, 255)", "rgb(20, 23, 28)")
    browser.find_element(By.ID, "theme").click()
    assert browser.execute_script(colour) == light


@pytest.mark.parametrize("dark", [False, True])
def test_text_can_be_read(opened: Opened, dark: bool) -> None:
    """Every text has a contrast of 4.5 to 1 with what is behind it, as WCAG asks."""
    for tab in ("values", "moves", "charts", "findings"):
        browser = opened(page(plans.training(), plans.other_training(), "v5e"), dark=dark, anchor=anchor("%3"))
        browser.find_element(By.ID, f"tab-{tab}").click()
        assert browser.execute_script(CONTRAST) == []


CONTRAST = """
const lum = (c) => { const [r, g, b] = c.map((v) => { v /= 255; return v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4; });
  return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
const rgba = (text) => { const n = text.match(/[\\d.]+/g).map(Number); return [n.slice(0, 3), n.length > 3 ? n[3] : 1]; };
const found = [];
const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
while (walk.nextNode()) {
  const e = walk.currentNode.parentElement;
  if (!walk.currentNode.data.trim() || !e.checkVisibility() || e.closest("script, noscript, option, [aria-hidden=true]")) continue;
  const style = getComputedStyle(e);
  const front = rgba(e.ownerSVGElement ? style.fill : style.color)[0];
  let back = [255, 255, 255];
  for (let up = e; up; up = up.parentElement) {
    const [colour, alpha] = rgba(getComputedStyle(up).backgroundColor);
    if (alpha === 1) { back = colour; break; }
  }
  const [a, b] = [lum(front), lum(back)].sort((x, y) => y - x);
  if ((a + 0.05) / (b + 0.05) < 4.5) found.push(`${walk.currentNode.data.trim()}: ${front} on ${back}`);
}
return found;
"""


@pytest.mark.parametrize("width", [1280, 800])
@pytest.mark.parametrize("both", [False, True])
def test_nothing_is_cut(opened: Opened, width: int, both: bool) -> None:
    text = page(plans.training(), plans.other_training() if both else None, "v5e")
    browser = opened(text, width=width, anchor=anchor("params['layers'][0]['up']"))
    for tab in ("moves", "charts", "findings", "values"):
        browser.find_element(By.ID, f"tab-{tab}").click()
        assert browser.execute_script("return document.documentElement.scrollWidth") <= width
        cut = browser.execute_script(
            """return [...document.querySelectorAll("header *, .tools *, .row *, .panel *, main > section")]
            .filter((e) => e.checkVisibility() && e.clientWidth && e.scrollWidth > e.clientWidth + 1 && !e.closest("svg, .cells"))
            .map((e) => `${e.tagName} ${e.className} ${e.textContent.slice(0, 60)} ${e.scrollWidth} > ${e.clientWidth}`)"""
        )
        assert cut == [], tab
    left, right = browser.find_element(By.CSS_SELECTOR, ".left").rect, browser.find_element(By.CSS_SELECTOR, ".panel").rect
    beside = right["x"] >= left["x"] + left["width"] - 1
    assert beside == (width == 1280)
    assert min(left["height"], right["height"]) > 200


def test_keyboard_alone_reaches_everything(opened: Opened) -> None:
    browser = opened(page(plans.training()))
    stops = []
    for _ in range(40):
        press(browser, Keys.TAB)
        here = browser.execute_script(
            """const e = document.activeElement, s = getComputedStyle(e);
            return [e.id || e.className || e.tagName, e.matches(":focus-visible") ? parseFloat(s.outlineWidth) : 0]"""
        )
        if here[0] in ("BODY", stops[0] if stops else None):
            break
        assert here[1] >= 2, f"the focus cannot be seen on {here[0]}"
        stops.append(here[0])
    assert stops[:6] == ["theme", "tab-values", "search", "only", "order", "tree"]
    browser.find_element(By.ID, "tab-values").send_keys(Keys.ARROW_RIGHT)
    assert browser.execute_script("return document.activeElement.id") == "tab-moves"
    assert browser.find_element(By.ID, "view-moves").is_displayed()


def test_roles(opened: Opened) -> None:
    browser = opened(page(plans.training()))
    counts = browser.execute_script(
        """return Object.fromEntries(["tree", "treeitem", "tablist", "tab", "tabpanel", "status"].map(
        (role) => [role, document.querySelectorAll(`[role=${role}]`).length]))"""
    )
    assert counts["tree"] == counts["tablist"] == 1
    assert counts["tab"] == counts["tabpanel"] == 4
    assert counts["treeitem"] > 5
    unnamed = browser.execute_script(
        """return [...document.querySelectorAll("button, input, select, [role=tree], [role=button], svg[role=img]")].filter((e) =>
        e.checkVisibility() && !(e.textContent.trim() || e.getAttribute("aria-label"))).map((e) => e.outerHTML)"""
    )
    assert unnamed == []


def test_two_hundred_thousand_values(opened: Opened) -> None:
    """Only what is in view is drawn."""
    data = payload(plans.training())
    values, first = data["values"], data["values"]["inputs"]
    n = len(values["types"]) - values["outputs"]
    more = 200_000 // (n - first)
    for name in ("types", "primitives", "places", "depths"):
        column = values[name]
        values[name] = [*column[:first], *column[first:n] * more, *column[n:]]
    data["links"] = None
    browser = opened(assembled({"plans": [data], "partners": None}, "large"), anchor=anchor("%150000"))
    count = len(values["types"])
    assert count > 199_000
    assert texts(browser, ".found") == [f"{count:,} values"]
    assert title(browser) == "%150000"
    assert texts(browser, ".row[aria-selected='true'] .label") == ["%150000"]
    tree = browser.find_element(By.ID, "tree")
    for key in (Keys.PAGE_DOWN, Keys.END, Keys.PAGE_UP, Keys.HOME):
        tree.send_keys(key)
        assert 10 < len(texts(browser, ".row")) < 120
        assert len(texts(browser, ".row.here")) == 1
    browser.execute_script("order.value = 'size'; order.dispatchEvent(new Event('change'))")
    assert len(texts(browser, ".row")) < 120
    browser.find_element(By.ID, "search").send_keys("dot_general")
    found = sum(data["tables"]["strings"][p] == "dot_general" for p in values["primitives"])
    until(browser, lambda: texts(browser, ".found") == [f"{found:,} of {count:,} values"])
    assert len(texts(browser, ".row")) < 120


def test_scrolling_draws_what_comes_into_view_and_nothing_else(opened: Opened) -> None:
    """A click in between must find the row that was pointed at."""
    browser = opened(page(plans.training()), anchor=anchor("%40"))
    names = texts(browser, ".row .label")
    assert "%40" in names
    chosen = browser.find_element(By.CSS_SELECTOR, ".row[aria-selected='true']")
    settled(browser)
    browser.execute_script("tree.scrollTop += 1")
    settled(browser)
    assert chosen.get_attribute("aria-selected") == "true"
    browser.execute_script("tree.scrollTop = 0")
    until(browser, lambda: texts(browser, ".row .label")[0] == "inputs")
    assert texts(browser, ".row .label") != names


def test_nothing_is_fetched(opened: Opened) -> None:
    browser = opened(page(plans.training(), plans.other_training()))
    for tab in ("moves", "charts", "findings"):
        browser.find_element(By.ID, f"tab-{tab}").click()
    assert browser.execute_script("return performance.getEntriesByType('resource').map((e) => e.name)") == []


def test_the_benchmark_of_the_page_finds_what_it_times(opened: Opened) -> None:
    browser = opened(page(plans.training()))
    times = browser.execute_async_script(names(PAGE.parents[2] / "benchmarks" / "page.py")["ANSWERS"])
    assert {"scroll", "click a value", "show what is replicated", "show all", "search", "open a view"} <= set(times)
    assert all(each >= 0 for found in times.values() for each in found)
