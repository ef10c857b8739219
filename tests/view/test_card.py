"""What a notebook shows of a plan."""

from __future__ import annotations

import html
import re

from tests.view import plans


def test_the_card_says_what_the_plan_is() -> None:
    plan = plans.training()
    card = plan._repr_html_()
    text = " ".join(html.unescape(re.sub("<[^>]*>", " ", card)).split())
    assert "plan of train_step on mesh data=2 × model=4" in text
    assert "11 inputs" in text
    assert "10 outputs" in text
    assert "params['layers'][0]['up'] float32[64,256@model] 16 KiB" in text
    assert "all_reduce" in text
    assert card == plans.train_plan(lowering="jit")._repr_html_()


def test_the_card_is_balanced_and_has_no_script() -> None:
    card = plans.training()._repr_html_()
    assert "<script" not in card
    open_tags = re.findall("<([a-z]+)", card)
    assert sorted(open_tags) == sorted(re.findall("</([a-z]+)", card))


def test_names_are_no_markup() -> None:
    card = plans.hostile()._repr_html_()
    assert "injected" in card
    assert "<b id" not in card
    assert "<script" not in card


def test_long_lists_are_cut_and_say_so() -> None:
    card = plans.train_plan(layers=9)._repr_html_()
    assert "39 inputs" in card
    assert "… and 15 more" in card


def test_a_card_does_not_partition() -> None:
    plan = plans.train_plan(lowering="shard_map")
    assert "communication" not in plan._repr_html_()
    assert "collectives" not in plan.__dict__
    assert plan.collectives
    assert "communication" in plan._repr_html_()
