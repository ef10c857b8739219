"""The page as text: complete, deterministic, inert, self-contained."""

from __future__ import annotations

import base64
import hashlib
import html
import html.parser
import json
import pathlib
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import shardy_py
from shardy_py.cost.hardware import HardwareError
from shardy_py.facade import Plan
from shardy_py.plan.diff import partners
from shardy_py.plan.explanation import KINDS
from shardy_py.plan.paths import path_parts
from shardy_py.view.html.page import SCRIPTS, inert_json, page
from shardy_py.view.html.payload import POINTS, payload, thinned, values_to_explain
from tests.view import plans

PAGE = pathlib.Path(shardy_py.__file__).parent / "view" / "html"
ALL = {
    "training": plans.training,
    "scanned": plans.scanned,
    "ranks": plans.ranks,
    "cube": plans.cube,
    "offloaded": plans.offloaded,
    "hostile": plans.hostile,
}


class Elements(html.parser.HTMLParser):
    """Start tags with their attributes, and the text of scripts."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.texts: dict[int, str] = {}
        self.closed: set[int] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        self.closed.add(len(self.found) - 1)

    def handle_data(self, data: str) -> None:
        here = len(self.found) - 1
        if here not in self.closed:
            self.texts[here] = self.texts.get(here, "") + data


def parsed(text: str) -> Elements:
    elements = Elements()
    elements.feed(text)
    elements.close()
    return elements


def data_of(text: str) -> dict[str, Any]:
    elements = parsed(text)
    (at,) = (i for i, (tag, attrs) in enumerate(elements.found) if tag == "script" and attrs.get("type") == "application/json")
    return json.loads(elements.texts[at])


def names(data: dict[str, Any]) -> list[str]:
    """The names of the values, read as the page reads them."""
    values, strings = data["values"], data["tables"]["strings"]
    paths = ["".join(strings[s] for s in parts) for parts in values["paths"]]
    n = len(values["types"]) - values["inputs"] - values["outputs"]
    inner = [f"%{i}" for i in range(n)] if values["names"] is None else values["names"]
    return [*paths[: values["inputs"]], *inner, *paths[values["inputs"] :]]


@pytest.mark.parametrize("name", ALL)
def test_every_value_is_there(name: str) -> None:
    plan = ALL[name]()
    data = payload(plan)
    types, values = data["tables"]["types"], data["values"]
    assert names(data) == [value.path for value in plan.values]
    described = [f"{value.path}: {types[t]['text']}" for value, t in zip(plan.values, values["types"], strict=True)]
    assert described == list(map(str, plan.values))
    in_host = [types[t]["host"] for t in (*values["types"][: values["inputs"]], *values["types"][-values["outputs"] :])]
    assert in_host == [bool(value.memory_kind) for value in (*plan.inputs, *plan.outputs)]
    strings = data["tables"]["strings"]
    assert [strings[p] for p in values["primitives"]] == [value.primitive for value in plan.values]
    assert [strings[data["tables"]["places"][p][2]] for p in values["places"]] == [value.module for value in plan.values]
    assert len(data["collectives"]) == len(plan.collectives)
    assert len(data["findings"]) == len(plan.findings)


@pytest.mark.parametrize("name", ALL)
def test_links_lead_where_explanations_do(name: str) -> None:
    plan = ALL[name]()
    data = payload(plan)
    links, strings, at = data["links"], data["tables"]["strings"], 0
    every = [*names(data), *data["unlisted"]]
    for value in plan.values:
        for chain in plan.explain(value).chains:
            order: list[int] = []
            stack = [links["first"][at]]
            at += 1
            while stack:
                link = stack.pop()
                if link not in order:
                    order.append(link)
                    needs = links["needs"][link]
                    stack += reversed(needs if isinstance(needs, list) else [needs] if needs >= 0 else [])
            told = [(every[links["holders"][n]], *links["spot_rows"][links["spots"][n]], links["steps"][n]) for n in order]
            assert told == [(reason.value, reason.dim, list(reason.axes), reason.step) for reason in chain]
            ways = [links["way_rows"][links["ways"][n]] for n in order]
            assert [strings[way[0]] for way in ways] == [reason.cause for reason in chain]
            assert [strings[way[2]] for way in ways] == [reason.rule for reason in chain]
    assert at == len(links["first"])


@pytest.mark.parametrize("name", ALL)
def test_absences_are_those_that_explanations_give(name: str) -> None:
    plan = ALL[name]()
    data = payload(plan)
    told = {(plan.values[number].path, axis): (message, fix) for number, axis, message, fix in data["absences"]}
    assert len(told) == len(data["absences"])
    for value in (*plan.inputs, *plan.outputs):
        there = () if value.sharding is None else [axis.name for dim in value.sharding.dims for axis in dim.axes]
        for axis in plan.mesh.shape:
            missing = {why.kind: (why.message, why.fix) for why in reversed(plan.explain(value, axis=axis).missing)}
            stopped = [kind for kind in KINDS if kind in missing and kind not in ("absent", "unrelated")]
            expected = missing[stopped[0]] if stopped and axis not in there else None
            assert told.get((value.path, axis)) == expected


def test_absences_are_looked_for_at_few_values() -> None:
    plan = plans.training()
    sizes = [n % 7 for n in range(len(plan.values))]
    ends = [*range(len(plan.inputs)), *range(len(plan.values) - len(plan.outputs), len(plan.values))]
    inner = len(plan.inputs)
    assert values_to_explain(plan, [inner, inner], sizes) == sorted([inner, *(n for n in ends if plan.values[n].shape)])
    few = values_to_explain(plan, [inner], sizes, most=4)
    assert len(few) == 4
    assert inner in few
    left = [sizes[n] for n in ends if n not in few and plan.values[n].shape]
    assert min(sizes[n] for n in few if n != inner) >= max(left)


def test_the_same_plan_is_the_same_page() -> None:
    assert page(plans.train_plan()) == page(plans.train_plan())
    assert page(plans.training(), plans.other_training()) == page(plans.training(), plans.other_training())


@pytest.mark.parametrize("name", ALL)
def test_a_stored_plan_has_the_same_page(name: str) -> None:
    plan = ALL[name]()
    assert page(Plan.from_json(plan.to_json())) == page(plan)


def test_names_are_no_markup() -> None:
    text = page(plans.hostile())
    tags = [tag for tag, _ in parsed(text).found]
    assert sorted(tags) == sorted(
        ["html", "head", "meta", "meta", "meta", "meta", "link", "title", "style", "body", "noscript", "script", "script"]
    )
    assert plans.HOSTILE not in text
    assert f"tree[{plans.HOSTILE!r}]" in names(data_of(text)["plans"][0])
    assert "alert(1)" in html.unescape(re.findall("<title>(.*)</title>", text)[0])


@given(st.text())
def test_json_of_any_text_is_inert(text: str) -> None:
    written = inert_json([text, {text: 1}])
    assert not set("<>&\u2028\u2029") & set(written)
    assert json.loads(written) == [text, {text: 1}]


def test_nothing_is_loaded_and_only_the_pages_own_code_may_run() -> None:
    text = page(plans.training(), plans.other_training())
    elements = parsed(text)
    for tag, attributes in elements.found:
        assert not attributes.keys() & {"src", "srcset", "action", "style", "onclick", "onload"}, tag
        assert attributes.get("href") in (None, "data:,")
    code = {tag: elements.texts[i] for i, (tag, attributes) in enumerate(elements.found) if tag in ("style", "script") and not attributes}
    (policy,) = (a["content"] or "" for _, a in elements.found if a.get("http-equiv") == "Content-Security-Policy")
    for tag in ("style", "script"):
        digest = base64.b64encode(hashlib.sha256(code[tag].encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in policy
    assert policy.startswith("default-src 'none'")
    assert "innerHTML" not in code["script"]
    assert "http" not in code["script"].replace("http://www.w3.org/2000/svg", "")
    assert "url(" not in code["style"]


def test_every_script_is_used() -> None:
    assert sorted(SCRIPTS) == sorted(path.name for path in PAGE.glob("*.js"))
    assert all(len(path.read_text().splitlines()) < 400 for path in PAGE.glob("*.[jch]*s"))


def test_saved_page(tmp_path: pathlib.Path) -> None:
    plan, other = plans.training(), plans.other_training()
    plan.save_html(tmp_path / "one.html")
    plan.save_html(str(tmp_path / "two.html"), other)
    assert (tmp_path / "one.html").read_text(encoding="utf-8") == page(plan)
    assert data_of((tmp_path / "two.html").read_text(encoding="utf-8"))["partners"] == partners(plan, other)
    with pytest.raises(FileNotFoundError):
        plan.save_html(tmp_path / "missing" / "page.html")


def test_a_plan_without_provenance_has_a_page() -> None:
    plan = plans.train_plan(options=shardy_py.Options(provenance=False))
    assert payload(plan)["links"] is None
    assert payload(plan)["absences"] == []


@given(st.lists(st.sampled_from(["a", ".b", "['c']", "[0]", '["d]"]', r"['\'']", "[<flat index 1>]", ".", "[", "''", "x y"])))
def test_parts_make_the_path_again(parts: list[str]) -> None:
    path = "".join(parts)
    assert "".join(path_parts(path)) == path


@given(st.text())
def test_parts_of_any_text_make_it_again(text: str) -> None:
    assert "".join(path_parts(text)) == text


def test_the_curve_of_live_memory_keeps_its_peak() -> None:
    plan = plans.training()
    memory = payload(plan)["memory"]
    assert memory["peak"] == plan.memory_analysis().peak_memory_in_bytes >= max(memory["bytes"])
    at = max(n for n, start in enumerate(memory["at"]) if start <= memory["peak_at"])
    assert memory["bytes"][at] == max(memory["bytes"])


@given(st.lists(st.integers(0, 9), max_size=4000))
def test_a_long_series_is_thinned_to_its_heights(series: list[int]) -> None:
    at, heights = thinned(series)
    assert len(at) <= POINTS
    assert max(heights, default=0) == max(series, default=0)
    if len(series) <= POINTS:
        shown = [heights[max(n for n, start in enumerate(at) if start <= i)] for i in range(len(series))]
        assert shown == series


def test_unknown_hardware_is_an_error(tmp_path: pathlib.Path) -> None:
    with pytest.raises(HardwareError, match="h1000"):
        plans.training().save_html(tmp_path / "page.html", hardware="h1000")
    with pytest.raises(TypeError, match="hardware='h100'"):
        plans.training().save_html(tmp_path / "page.html", "h100")  # type: ignore[arg-type]
    assert not (tmp_path / "page.html").exists()
