from __future__ import annotations

import json
from pathlib import Path

import pytest
from jax.sharding import PartitionSpec as P

from shardy_py.facade import Plan
from shardy_py.plan.store.codec import StoreError
from shardy_py.testing import assert_plan_matches
from shardy_py.testing.pinned import pinned, pinned_text
from tests.plan.store.programs import training
from tests.plan.test_diff import SPEC, edited, plan_of

OTHER = {"up": P("data", "model"), "down": None}
SECTIONS = ("mesh", "inputs", "outputs", "reshards", "collectives")


def test_a_plan_is_pinned(tmp_path: Path) -> None:
    file = tmp_path / "plans" / "model.json"
    with pytest.raises(AssertionError, match=r"is not pinned yet: there is no file .*model.json\nto write it, run with SHARDY_PY_UPDATE=1"):
        assert_plan_matches(plan_of(), file)
    assert_plan_matches(plan_of(), file, update=True)
    text = file.read_text()
    assert_plan_matches(plan_of(), file)
    assert_plan_matches(Plan.from_json(plan_of().to_json()), str(file))
    assert '    "params[0][\'up\']": "float32[16,32@model]",\n' in text
    assert "test_diff" not in text
    assert "%" not in text
    assert len(text.splitlines()) < 30


def test_an_edit_that_changes_no_sharding_is_no_failure(tmp_path: Path) -> None:
    assert_plan_matches(plan_of(), tmp_path / "a.json", update=True)
    assert_plan_matches(plan_of(edited), tmp_path / "a.json")
    assert_plan_matches(plan_of(), tmp_path / "b.json", update=True, intermediates=True)
    with pytest.raises(AssertionError, match=r"values\n  \+ sin float32\[8@data,16\]  x2"):
        assert_plan_matches(plan_of(edited), tmp_path / "b.json", intermediates=True)


def test_the_message_is_the_difference(tmp_path: Path) -> None:
    file = tmp_path / "model.json"
    assert_plan_matches(plan_of(), file, update=True)
    with pytest.raises(AssertionError) as caught:
        assert_plan_matches(plan_of(specs=(SPEC, OTHER)), file)
    lines = str(caught.value).splitlines()
    assert lines[0] == f"the plan of model is no longer as in {file}"
    assert lines[1:3] == ["inputs", "  ~ params[1]['up']  float32[16,32@model] -> float32[16@data,32@model]"]
    assert "collectives" in lines
    assert lines[-1].startswith("if this is intended, run with SHARDY_PY_UPDATE=1")
    with pytest.raises(AssertionError, match="\nmesh  data=2, model=4 -> data=4, model=2\n"):
        assert_plan_matches(plan_of(mesh={"data": 4, "model": 2}), file)
    with pytest.raises(AssertionError, match=r"  - params\[1\]\['up'\]  float32\[16,32@model\]\n"):
        assert_plan_matches(plan_of(specs=(SPEC,)), file)


def test_the_environment_updates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "model.json"
    monkeypatch.setenv("SHARDY_PY_UPDATE", "1")
    assert_plan_matches(plan_of(), file)
    assert_plan_matches(plan_of(specs=(SPEC, OTHER)), file)
    monkeypatch.setenv("SHARDY_PY_UPDATE", "0")
    with pytest.raises(AssertionError, match="no longer"):
        assert_plan_matches(plan_of(), file)


def test_the_collectives_are_those_of_the_lowering(tmp_path: Path) -> None:
    assert_plan_matches(training("shard_map"), tmp_path / "a.json", update=True)
    assert_plan_matches(training("shard_map"), tmp_path / "a.json")
    with pytest.raises(AssertionError, match="collectives\n"):
        assert_plan_matches(training("jit"), tmp_path / "a.json")


def test_reshards_are_those_of_the_lowering_since_version_2(tmp_path: Path) -> None:
    plan = training("shard_map")
    files = [pinned(plan), pinned(plan, version=1)]
    sums = [sum(entry["bytes"] for entry in data["reshards"].values()) for data in files]
    totals = [sum(r.total_bytes_per_device or 0 for r in reshards) for reshards in (plan.reshards, plan.shardy_reshards)]
    assert sums == totals
    assert files[0]["reshards"] != files[1]["reshards"]
    for data in files:
        (tmp_path / "model.json").write_text(pinned_text(data))
        assert_plan_matches(plan, tmp_path / "model.json")


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"format": "shardy_py.pinned", "version": 3}', '{"format": "shardy_py.pinned", "version": 1}']
)
def test_files_that_are_something_else(text: str, tmp_path: Path) -> None:
    file = tmp_path / "model.json"
    file.write_text(text)
    with pytest.raises(StoreError, match="write it again with update=True"):
        assert_plan_matches(plan_of(), file)
    file.write_text(json.dumps({"format": "shardy_py.pinned", "version": 1, **{key: {} for key in SECTIONS}}))
    with pytest.raises(AssertionError, match="no longer"):
        assert_plan_matches(plan_of(), file)
