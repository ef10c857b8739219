"""The card of a plan in a notebook."""

from __future__ import annotations

import html
import re

import pytest

from shardy_py.plan.collectives import format_bytes
from shardy_py.plan.executed import collectives_of
from tests.view import plans


def test_the_card_is_the_text_under_the_peak() -> None:
    plan = plans.chosen()
    head, peak, *text = html.unescape(re.sub("</?pre>", "", plan._repr_html_() or "")).splitlines()
    assert [head, *text] == plan.as_text(values=False, limit=16).splitlines()
    assert peak == f"peak memory  {format_bytes(plan.memory_analysis().peak_memory_in_bytes)} on each device"


def test_names_are_no_markup() -> None:
    card = plans.hostile()._repr_html_() or ""
    assert "injected" in card
    assert re.findall("<[^>]*>", card) == ["<pre>", "</pre>"]


def test_a_large_plan_is_not_partitioned_for_its_card(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shardy_py.view.text.CARD_OPS", 3)
    plan = plans.train_plan(lowering="shard_map")
    assert plan._repr_html_() is None
    assert not collectives_of.is_computed(plan)
    assert plan.collectives
    assert "collectives  " in (plan._repr_html_() or "")


def test_show_says_what_it_is_where_there_is_no_notebook() -> None:
    shown = plans.training().show(height=300)
    assert "page of the plan of train_step" in repr(shown)
    assert "height:300px" in shown._repr_html_()
    with pytest.raises(ValueError, match="height is 0"):
        plans.training().show(height=0)
