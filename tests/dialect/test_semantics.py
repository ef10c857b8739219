"""The version of Shardy that rules and passes follow."""

from __future__ import annotations

from importlib import metadata

import pytest

from shardy_py.dialect import CHANGES, INSTALLED, Semantics
from shardy_py.opt import run_passes

RESHAPE = """func.func @main(%x: tensor<8x4xf32>) -> tensor<8x1x4xf32> {
  %y = stablehlo.reshape %x : (tensor<8x4xf32>) -> tensor<8x1x4xf32>
  return %y : tensor<8x1x4xf32>
}"""


def test_the_default_is_what_is_installed() -> None:
    assert str(INSTALLED) == metadata.version("jaxlib")[:4]
    assert run_passes(RESHAPE, "sdy-populate-op-sharding-rules") == run_passes(
        RESHAPE, "sdy-populate-op-sharding-rules", semantics=INSTALLED
    )


def test_a_change_holds_from_its_version_on() -> None:
    for change in CHANGES:
        assert not Semantics("0.10").has(change)
        assert Semantics("0.12").has(change)
    with pytest.raises(KeyError):
        INSTALLED.has("another")


def test_another_version_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"no semantics of jaxlib '0.9' are known; write one of '0.10', '0.12'"):
        Semantics("0.9")


@pytest.mark.parametrize(("version", "replicated"), [("0.10", ""), ("0.12", " need_replication={j}")])
def test_rules_are_those_of_the_version(version: str, replicated: str) -> None:
    text = run_passes(RESHAPE, "sdy-populate-op-sharding-rules", semantics=Semantics(version))
    assert f"#sdy.op_sharding_rule<([i, k])->([i, j, k]) {{i=8, j=1, k=4}}{replicated}>" in text
