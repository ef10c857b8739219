"""The card of a plan in a notebook."""

from __future__ import annotations

import html
import re

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AbstractMesh

import shardy_py as sp
from shardy_py.plan.collectives import format_bytes
from shardy_py.plan.cost_analysis import seconds_text
from shardy_py.plan.executed import collectives_of
from tests.view import plans


def test_the_card_says_what_the_plan_is() -> None:
    plan = plans.training()
    card = plan._repr_html_()
    text = " ".join(html.unescape(re.sub("<[^>]*>", " ", card)).split())
    assert "plan of train_step on mesh data=2 × model=4" in text
    assert "11 inputs" in text
    assert "10 outputs" in text
    assert "params['layers'][0..1]['up'] float32[64,256@model] 16 KiB ×2" in text
    assert "all_reduce" in text
    assert card == plans.train_plan(lowering="jit")._repr_html_()


def test_the_card_says_what_a_planner_reached() -> None:
    search = plans.chosen().search
    assert search is not None
    text = " ".join(html.unescape(re.sub("<[^>]*>", " ", plans.chosen()._repr_html_())).split())
    assert f"planned step on h100 {seconds_text(search.objective_seconds)} at least {seconds_text(search.lower_bound_seconds)}" in text
    assert "planned step" not in plans.training()._repr_html_()


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


def test_layers_are_folded_in_their_order() -> None:
    card = plans.train_plan(layers=9)._repr_html_()
    text = " ".join(html.unescape(re.sub("<[^>]*>", " ", card)).split())
    assert "39 inputs" in text
    assert "params['layers'][0..8]['up'] float32[64,256@model] 16 KiB ×9" in text
    assert text.index("params['head']") < text.index("params['layers']") < text.index("momentum['head']")


def test_long_lists_are_cut_and_say_so() -> None:
    step = sp.auto_shard(lambda p: jax.tree.map(jnp.sin, p), mesh=plans.MESH)
    card = step.plan({f"{chr(97 + i)}": plans.shape(i + 1) for i in range(26)})._repr_html_()
    assert "26 inputs" in card
    assert re.search(r"\.\.\. and 1\d more arrays, of \d+ B or less each", card)


def test_three_facts_come_first() -> None:
    plan = plans.train_plan()
    text = " ".join(html.unescape(re.sub("<[^>]*>", " ", plan._repr_html_())).split())
    memory = plan.memory_analysis()
    moved = sum(collective.total_bytes for collective in plan.collectives)
    facts = (
        f"peak memory per device {format_bytes(memory.peak_memory_in_bytes)} largest: {memory.contributors[0].name},",
        f"communication per device and call {format_bytes(moved)} ",
        f"findings {len(plan.findings) or 'none'} ",
    )
    places = [text.index(fact) for fact in facts]
    assert places == sorted(places)
    assert places[-1] < text.index("11 inputs")


@pytest.mark.parametrize(
    ("mesh", "title", "cells"),
    [
        ({"x": 4}, "x across", "0 1 2 3"),
        ({"a": 2, "b": 2, "c": 2}, "a × b down, c across", "0 1 2 3 4 5 6 7"),
        ({"data": 64, "model": 16}, "data down, model across, the first of 1,024 devices", "0 1 2 3 4 5 6 7 … 16 17"),
    ],
)
def test_the_mesh_is_drawn(mesh: dict[str, int], title: str, cells: str) -> None:
    card = sp.auto_shard(jnp.sin, mesh=AbstractMesh(tuple(mesh.values()), tuple(mesh))).plan(plans.shape(64))._repr_html_()
    text = " ".join(html.unescape(re.sub("<[^>]*>", " ", card)).split())
    assert f"{title} {cells}" in text


def test_the_card_of_a_large_plan_does_not_partition(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shardy_py.view.html.card.MAX_OPS", 3)
    plan = plans.train_plan(lowering="shard_map")
    assert "communication" not in plan._repr_html_()
    assert not collectives_of.is_computed(plan)
    assert plan.collectives
    assert "communication" in plan._repr_html_()


def test_show_says_what_it_is_where_there_is_no_notebook() -> None:
    shown = plans.training().show(height=300)
    assert "page of the plan of train_step" in repr(shown)
    assert "height:300px" in shown._repr_html_()
    with pytest.raises(ValueError, match="height is 0"):
        plans.training().show(height=0)
