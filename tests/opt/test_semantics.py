"""The version of Shardy that rules and passes follow, and a module for each change between versions."""

from __future__ import annotations

from importlib import metadata
from typing import Literal, NamedTuple

import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P
from jaxlib.mlir import ir

import shardy_py as sp
from shardy_py.dialect import CHANGES, INSTALLED, Semantics
from shardy_py.opt import run_passes
from tests.reference import run_pipeline

MESH = 'sdy.mesh @mesh = <["x"=2, "y"=2]>\n'
PARTS = ', unreduced={"x"}'
RULES = "func.func(sdy-populate-op-sharding-rules)"


class Case(NamedTuple):
    """A module, and texts that are in what a pipeline makes of it by the older and by the later version; or errors."""

    module: str
    pipeline: str
    older: str
    later: str


def op(text: str, arguments: str, result: str) -> str:
    return f"{MESH}func.func @main({arguments}) -> {result} {{\n%r = {text}\nreturn %r : {result}\n}}"


def sharding(dims: str, rest: str = "") -> str:
    return f"{{sdy.sharding = #sdy.sharding<@mesh, {dims}{rest}>}}"


CASES = {
    "reshape: shared permutation": Case(
        op("stablehlo.reshape %x : (tensor<3x2xf32>) -> tensor<2x3xf32>", "%x: tensor<3x2xf32>", "tensor<2x3xf32>"),
        RULES,
        "<([i, l])->([j, k]) {i=3, j=2, k=3, l=2}>",
        "<([i, k])->([i, j]) {i=3, j=3, k=2} need_replication={j, k} permutation={i}>",
    ),
    "reshape: factors of one side replicate": Case(
        op("stablehlo.reshape %x : (tensor<8x4xf32>) -> tensor<8x1x4xf32>", "%x: tensor<8x4xf32>", "tensor<8x1x4xf32>"),
        RULES,
        "<([i, k])->([i, j, k]) {i=8, j=1, k=4}>",
        "<([i, k])->([i, j, k]) {i=8, j=1, k=4} need_replication={j}>",
    ),
    "convolution: factors of one side": Case(
        op(
            "stablehlo.convolution(%x, %w) dim_numbers = [b, 0, f]x[0, i, o]->[b, 0, f], window = {pad = [[1, 1]]}"
            " {batch_group_count = 1 : i64, feature_group_count = 1 : i64}"
            " : (tensor<2x16x6xf32>, tensor<3x6x8xf32>) -> tensor<2x16x8xf32>",
            "%x: tensor<2x16x6xf32>, %w: tensor<3x6x8xf32>",
            "tensor<2x16x8xf32>",
        ),
        RULES,
        "<([i, j, k], [m, k, l])->([i, j, l]) {i=2, j=16, k=6, l=8, m=1} reduction={k} permutation={j}>",
        "<([i, j, l], [k, l, m])->([i, j, m]) {i=2, j=16, k=3, l=6, m=8} reduction={l} permutation={j, k}>",
    ),
    "pad: equal sizes permute": Case(
        op(
            "stablehlo.pad %x, %c, low = [1, 0], high = [-1, 0], interior = [0, 0] : (tensor<8x4xf32>, tensor<f32>) -> tensor<8x4xf32>",
            "%x: tensor<8x4xf32>, %c: tensor<f32>",
            "tensor<8x4xf32>",
        ),
        RULES,
        "<([i, j], [])->([i, j]) {i=8, j=4}>",
        "<([i, j], [])->([i, j]) {i=8, j=4} permutation={i}>",
    ),
    "dynamic_update_slice: updates permute": Case(
        op(
            "stablehlo.dynamic_update_slice %x, %u, %i : (tensor<8xf32>, tensor<2xf32>, tensor<i32>) -> tensor<8xf32>",
            "%x: tensor<8xf32>, %u: tensor<2xf32>, %i: tensor<i32>",
            "tensor<8xf32>",
        ),
        RULES,
        "<([i], [j], [])->([i]) {i=8, j=2} need_replication={j}>",
        "<([i], [j], [])->([i]) {i=8, j=2} permutation={i, j}>",
    ),
    "constraints: fully open shardings yield": Case(
        op(
            "stablehlo.negate %x {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{?}]>]>} : tensor<8xf32>\n"
            '%s = sdy.sharding_constraint %r <@mesh, [{"x"}]> : tensor<8xf32>',
            "%x: tensor<8xf32>",
            "tensor<8xf32>",
        ),
        "sdy-apply-sharding-constraints",
        "stablehlo.negate %arg0 {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{?}]>]>}",
        'stablehlo.negate %arg0 {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"x"}]>]>}',
    ),
    "debug: every edge has an entry": Case(
        op("stablehlo.optimization_barrier %x : tensor<8xf32>", "%x: tensor<8xf32>", "tensor<8xf32>"),
        "sdy-add-data-flow-edges,func.func(sdy-sink-data-flow-edges{sink-debug-sharding-origins=true})",
        "sdy.result_sharding_origins = []",
        "sdy.result_sharding_origins = [{}]",
    ),
    "calls: unreduced axes stay": Case(
        MESH
        + f"""func.func @main(%x: tensor<8xf32>) -> tensor<8xf32> {{
          %a = call @f(%x) {{sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{{}}]>]>}} : (tensor<8xf32>) -> tensor<8xf32>
          return %a : tensor<8xf32>
        }}
        func.func private @f(%x: tensor<8xf32>) -> (tensor<8xf32> {sharding("[{}]", PARTS)}) {{
          return %x : tensor<8xf32>
        }}""",
        "sdy-insert-func-call-reshards",
        'call @f(%arg0) {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{}], unreduced={"x"}>]>}',
        "call @f(%arg0) {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{}]>]>}",
    ),
    "results: main has shardings": Case(
        op("sdy.reshard %x <@mesh, [{}]> : tensor<8xf32>", "%x: tensor<8xf32>", "tensor<8xf32>"),
        "sdy-propagate-to-func-results",
        "-> tensor<8xf32> {",
        "-> (tensor<8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}]>})",
    ),
    "reshards: reductions by kind": Case(
        op(
            "stablehlo.reduce(%x init: %c) applies stablehlo.maximum across dimensions = [0]"
            " {sdy.sharding = #sdy.sharding_per_value<[<@mesh, []>]>} : (tensor<8xf32>, tensor<f32>) -> tensor<f32>",
            "%x: tensor<8xf32> " + sharding('[{"x"}]') + ", %c: tensor<f32>",
            "tensor<f32>",
        ),
        "func.func(sdy-insert-explicit-reshards{enable-full-version=true})",
        'sdy.all_reduce {"x"} %0',
        'sdy.all_reduce max {"x"} %0',
    ),
    "export: unreduced axes are verified": Case(
        op(
            "stablehlo.add %x, %x {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{}]>]>} : tensor<8xf32>",
            "%x: tensor<8xf32> " + sharding("[{}]", PARTS),
            "tensor<8xf32>",
        ),
        "sdy-export-pipeline{enable-insert-explicit-collectives=true}",
        'sdy.all_reduce {"x"} %arg0',
        "'stablehlo.add' op dropped unreduced axis 'x' without a blessed operation (e.g., sdy.reshard). This is an invalid transition",
    ),
    "text: single-device shardings": Case(
        "sdy.mesh @one = <[], device_ids=[0]>\n"
        + op("sdy.sharding_constraint %x <@one, [{}]> : tensor<8xf32>", "%x: tensor<8xf32>", "tensor<8xf32>"),
        "",
        "a maximal sharding can only have a sharding with rank 0",
        "a single-device sharding can only have a sharding with rank 0",
    ),
    "export: meshes are inlined": Case(
        op("sdy.reshard %x <@mesh, [{}]> : tensor<8xf32>", "%x: tensor<8xf32>", "tensor<8xf32>"),
        "sdy-export-pipeline",
        "sdy.reshard %arg0 <@mesh, [{}]>",
        """sdy.reshard %arg0 <mesh<["x"=2, "y"=2]>, [{}]>""",
    ),
}


def test_the_default_is_what_is_installed() -> None:
    assert str(INSTALLED) == metadata.version("jaxlib")[:4]
    module, pipeline, *_ = CASES["pad: equal sizes permute"]
    assert run_passes(module, pipeline) == run_passes(module, pipeline, semantics=INSTALLED)


def test_a_change_holds_from_its_version_on() -> None:
    for change in CHANGES:
        assert not Semantics("0.10").has(change)
        assert Semantics("0.12").has(change)
    with pytest.raises(KeyError):
        INSTALLED.has("another")


def test_another_version_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"no semantics of jaxlib '0.9' are known; write one of '0.10', '0.12'"):
        Semantics("0.9")


def outcome(case: Case, semantics: Semantics) -> str:
    try:
        return run_passes(case.module, case.pipeline, semantics=semantics)
    except ValueError as error:
        return str(error)


def by_jaxlib(case: Case) -> str:
    try:
        return run_passes(str(run_pipeline(case.module, f"builtin.module({case.pipeline})")))
    except ir.MLIRError as error:
        return error.error_diagnostics[0].message


@pytest.mark.parametrize("change", CHANGES)
def test_what_changed(change: str) -> None:
    """Each version has its text, and what is installed makes the same of the module."""
    case = CASES[change]
    texts = {version: outcome(case, Semantics(version)) for version in ("0.10", "0.12")}
    if INSTALLED != Semantics("0.12") and "all_reduce max" in case.later:
        texts["0.12"] = case.later  # this jaxlib does not read it
    assert case.older in texts["0.10"]
    assert case.older not in texts["0.12"]
    assert case.later in texts["0.12"]
    assert case.later not in texts["0.10"]
    if case.pipeline:
        assert by_jaxlib(case) in texts[str(INSTALLED)]


@pytest.mark.parametrize(("version", "dims"), [("0.10", (None, None)), ("0.12", ("x", None))])
def test_a_plan_follows_the_version_of_its_options(version: Literal["0.10", "0.12"], dims: tuple[str | None, ...]) -> None:
    step = sp.auto_shard(lambda x: jnp.sin(x.reshape(3, 4)), mesh={"x": 2}, in_shardings=P("x"), options=sp.Options(semantics=version))
    x = np.arange(12, dtype=np.float32).reshape(4, 3)
    value = next(value for value in step.plan(x).values if value.primitive == "reshape")
    assert value.sharding is not None
    assert [dim.axes[0].name if dim.axes else None for dim in value.sharding.dims] == list(dims)
    np.testing.assert_allclose(step(x), np.sin(x.reshape(3, 4)), rtol=1e-6)
