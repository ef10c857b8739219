"""Passes on MLIR modules: pipelines as text, the table of passes, and the command line."""

from __future__ import annotations

import dataclasses
import functools
import io
import json
import os
import pathlib
import subprocess
import sys
from typing import Any

import pytest

from shardy_py import opt
from shardy_py.dialect import Semantics
from shardy_py.opt import UnknownOpWarning, run_passes, run_pipeline
from shardy_py.opt.from_mlir import parse_module
from shardy_py.opt.pipeline_text import PipelineError, parse_pipeline
from shardy_py.opt.table import OLD_NAMES, PASSES
from tests import reference
from tests.passes.random_modules import module

OLDER = Semantics("0.10")
SHARED = pathlib.Path(os.environ.get("SHARDY_SHARED") or pathlib.Path(__file__).parents[3] / "shared")
MODULE = """sdy.mesh @mesh = <["a"=2, "b"=4]>
func.func @main(%x: tensor<8x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"a", ?}, {?}]>}) -> tensor<8x8xf32> {
  %0 = stablehlo.tanh %x : tensor<8x8xf32>
  %1 = sdy.sharding_constraint %0 <@mesh, [{?}, {"b"}]> : tensor<8x8xf32>
  return %1 : tensor<8x8xf32>
}
"""


def test_the_propagation_pipeline() -> None:
    assert run_passes(MODULE, "builtin.module(sdy-propagation-pipeline)") == (
        "module {\n"
        '  sdy.mesh @mesh = <["a"=2, "b"=4]> {stablehlo.mesh = {axes = [{name = "a", size = 2 : i64}, {name = "b", size = 4 : i64}]}}\n'
        '  func.func @main(%arg0: tensor<8x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"a"}, {"b"}]>})'
        ' -> (tensor<8x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"a"}, {"b"}]>}) {\n'
        '    %0 = stablehlo.tanh %arg0 {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"a"}, {"b"}]>]>} : tensor<8x8xf32>\n'
        '    %1 = sdy.reshard %0 <@mesh, [{"a"}, {"b"}]> : tensor<8x8xf32>\n'
        "    return %1 : tensor<8x8xf32>\n"
        "  }\n"
        "}\n"
    )


def test_no_pipeline_reads_verifies_and_prints() -> None:
    assert run_passes(MODULE, "") == str(parse_module(MODULE))
    with pytest.raises(ValueError, match="unknown axis name"):
        run_passes(MODULE.replace('"b"}', '"c"}'), "")


def test_passes_may_be_nested_or_not() -> None:
    nested = run_passes(MODULE, "builtin.module(func.func(sdy-sharding-constraint-to-reshard,sdy-drop-sharding-rules))")
    assert "sdy.reshard" in nested
    assert run_passes(MODULE, "sdy-sharding-constraint-to-reshard") == nested


@pytest.mark.parametrize(
    ("text", "passes"),
    [
        ("", []),
        ("  ", []),
        ("builtin.module()", []),
        ("symbol-dce", [("symbol-dce", ())]),
        (" builtin.module( a , func.func( b ) ) ", [("a", ()), ("b", ())]),
        ("a{x=1 y-z=true}", [("a", (("x", "1"), ("y-z", "true")))]),
        ("a{x}", [("a", (("x", ""),))]),
        ("a{x='b c' y=\"d\"}", [("a", (("x", "b c"), ("y", "d")))]),
        ("a{list=b,c nested={d=1 e=2}}", [("a", (("list", "b,c"), ("nested", "d=1 e=2")))]),
        ("any(a),b", [("a", ()), ("b", ())]),
    ],
)
def test_pipelines(text: str, passes: list[tuple[str, tuple[tuple[str, str], ...]]]) -> None:
    assert [(call.name, tuple((name, value) for name, value, _ in call.options)) for call in parse_pipeline(text)] == passes


@pytest.mark.parametrize(
    ("text", "message", "place"),
    [
        ("sdy-nope", "'sdy-nope' does not refer to a registered pass or pass pipeline", "column 1"),
        ("symbol-dce,sdy-close-sharding", "write 'sdy-close-shardings'", "column 12"),
        ("close-shardings", "write 'sdy-close-shardings'", "column 1"),
        ("sdy-close-shardings{foo=1}", "no such option foo", "column 21"),
        ("sdy-import-func-calls{add-data-flow-edges-on-named-computations=2}", "write true or false", "column 23"),
        ("sdy-aggressive-propagate{propagation-strategy=x}", "basic or aggressive or basic-then-aggressive", "column 26"),
        ("sdy-close-shardings{", "missing closing '}' while processing pass options", "column 20"),
        ("sdy-close-shardings)", "encountered extra closing ')'", "column 20"),
        ("func.func(symbol-dce", "expected ')'", "column 21"),
        ("func.func(sdy-close-shardings)", "cannot be nested in 'func.func'", "column 11"),
        ("func.func(builtin.module(symbol-dce))", "a function holds no module", "column 11"),
        ("scf.for(symbol-dce)", "passes cannot run on 'scf.for'", "column 1"),
        ("symbol-dce,,symbol-dce", "expected the name of a pass", "column 12"),
        ("symbol-dce symbol-dce", "expected ','", "column 12"),
        ("sdy-close-shardings{x='}", "missing closing ' of a value", "column 23"),
        ("sdy-close-shardings{,}", "expected an option", "column 21"),
    ],
)
def test_pipelines_that_are_wrong(text: str, message: str, place: str) -> None:
    with pytest.raises(PipelineError) as error:
        run_passes(MODULE, text)
    assert message in str(error.value)
    assert place in str(error.value)


def test_nothing_runs_where_a_later_pass_is_wrong() -> None:
    class Untouched:
        def __getattr__(self, name: str) -> Any:
            raise AssertionError(name)

    with pytest.raises(PipelineError):
        run_pipeline(Untouched(), "symbol-dce,sdy-nope")  # type: ignore[arg-type]


def test_old_names() -> None:
    assert set(OLD_NAMES) >= {"sdy-constant-splitter", "sdy-constant-merger", "sdy-temp-explicit-reshards-for-optimizations"}
    assert set(OLD_NAMES.values()) <= set(PASSES)
    for old, new in OLD_NAMES.items():
        assert run_passes(MODULE, old) == run_passes(MODULE, new)


def test_options_have_types() -> None:
    for name, pass_ in PASSES.items():
        for option in pass_.options():
            assert option.read(option.shown_default) == option.default, (name, option)
            assert option.doc
        assert pass_.doc()
        assert pass_.anchor in ("func.func", "builtin.module")


def test_passes_are_frozen_values_and_refuse_options_that_they_do_not_have() -> None:
    for name, pass_ in PASSES.items():
        assert pass_() == pass_(), name
        with pytest.raises(dataclasses.FrozenInstanceError):
            pass_().spelling = True  # type: ignore[attr-defined]
        with pytest.raises(TypeError, match="enable_full_verison"):
            pass_(enable_full_verison=True)  # type: ignore[call-arg]
        for option in pass_.options():
            field = option.name.replace("-", "_")
            assert getattr(pass_(**{field: option.default}), field) == option.default


@pytest.mark.parametrize("name", sorted(PASSES))
def test_every_pass_runs_with_its_defaults(name: str) -> None:
    options = " ".join(f"{o.name}={o.shown_default}" for o in PASSES[name].options() if o.shown_default)
    text = f"{name}{{{options}}}" if options else name
    free = MODULE.replace('sdy.sharding_constraint %0 <@mesh, [{?}, {"b"}]>', "stablehlo.abs %0")
    # The first leaves a constraint with a mesh that is gone, the second takes programs whose shardings are settled.
    others = {"sdy-drop-sharding-and-mesh": free, "sdy-convert-global-to-local": free.replace('{"a", ?}', "{?}")}
    module = others.get(name, MODULE)
    assert run_passes(module, text, verify_each=True) == run_passes(module, name)


def test_rules_stay_where_asked_for() -> None:
    assert "sharding_rule" not in run_passes(MODULE, "sdy-basic-propagate")
    assert "sdy.sharding_rule = #sdy.op_sharding_rule<([i, j])->([i, j])" in run_passes(
        MODULE, "sdy-basic-propagate{keep-sharding-rules=true}"
    )


def test_unknown_ops_are_kept_with_a_warning() -> None:
    text = MODULE.replace("stablehlo.tanh %x : tensor<8x8xf32>", '"other.op"(%x) <{p = 1 : i32}> : (tensor<8x8xf32>) -> tensor<8x8xf32>')
    with pytest.warns(UnknownOpWarning, match=r"op 'other\.op' is not known"):
        out = run_passes(text, "sdy-propagation-pipeline")
    assert '"other.op"(%arg0) <{p = 1 : i32}>' in out


def test_functions_that_call_themselves_are_an_error() -> None:
    text = "func.func @main() {\n  call @f() : () -> ()\n  return\n}\n" + "".join(
        f"func.func private @{a}() {{\n  call @{b}() : () -> ()\n  return\n}}\n" for a, b in (("f", "g"), ("g", "f"))
    )
    with pytest.raises(ValueError, match="cannot be copied") as error:
        run_passes(text, "sdy-propagation-pipeline")
    assert "@g calls @f, which calls @g in turn" in str(error.value)


@pytest.mark.filterwarnings("ignore::shardy_py.passes.propagation.rounds.ShardingGroupConflictWarning")
@pytest.mark.parametrize("seed", range(8))
def test_calls_that_stay_calls(seed: int) -> None:
    passes = "builtin.module(sdy-propagation-pipeline{dedup-functions-fully=true})"
    assert run_passes(module(seed), passes) == str(reference.run_pipeline(module(seed), passes))


def test_locations_on_request() -> None:
    assert "loc(" not in run_passes(MODULE)
    assert 'loc("-":3:8)' in run_passes(MODULE, locations=True).replace('#loc3 = loc("-":3:8)', 'loc("-":3:8)')


@pytest.fixture
def file(tmp_path: pathlib.Path) -> pathlib.Path:
    path = tmp_path / "module.mlir"
    path.write_text(MODULE)
    return path


def test_command_line(file: pathlib.Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert opt.main([str(file), "--pass-pipeline=sdy-close-shardings", "--verify-each"]) == 0
    closed = capsys.readouterr().out
    assert closed == run_passes(MODULE, "sdy-close-shardings")
    output = file.with_name("out.mlir")
    assert opt.main([str(file), "--pass-pipeline=sdy-close-shardings", "-o", str(output)]) == 0
    assert capsys.readouterr().out == ""
    assert output.read_text() == closed
    monkeypatch.setattr(sys, "stdin", io.StringIO(MODULE))
    assert opt.main(["--pass-pipeline", "sdy-close-shardings"]) == 0
    assert capsys.readouterr().out == closed


def test_list_has_one_line_per_pass(capsys: pytest.CaptureFixture[str]) -> None:
    assert opt.main(["--list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == list(PASSES)
    assert any("{enable-full-version=false}" in line for line in lines)


def test_the_help_names_every_option_of_every_pass(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        opt.main(["--help"])
    text = capsys.readouterr().out
    for name, pass_ in PASSES.items():
        start = text.index(f"\n  {name}: {pass_.doc()}\n")
        for option in pass_.options():
            start = text.index(f"\n    {option.name}={option.shown_default}: {option.doc}", start)


@pytest.mark.parametrize(
    ("text", "pipeline", "message"),
    [
        ("func.func @f( {", "", "module.mlir:1:14: error: expected"),
        (MODULE.replace('"a", ?', '"z", ?'), "", "module.mlir:2:1: error: 'func.func' op arg 0 - unknown axis name: \"z\""),
        (
            MODULE.replace('[{?}, {"b"}]', "[{?}]"),
            "",
            "module.mlir:4:8: error: 'sdy.sharding_constraint' op sharding doesn't match tensor rank: 1 != 2",
        ),
        (MODULE, "sdy-nope", "module.mlir: error: 'sdy-nope' does not refer"),
        (
            "func.func @f(%x: tensor<?xf32>) -> tensor<?xf32> {\n  %0 = stablehlo.abs %x : tensor<?xf32>\n  return %0 : tensor<?xf32>\n}",
            "sdy-basic-propagate",
            "module.mlir:2: error: Shardy propagation only supports ranked tensors with a static shape",
        ),
    ],
)
def test_errors_on_the_command_line(text: str, pipeline: str, message: str, file: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    file.write_text(text)
    assert opt.main([str(file), f"--pass-pipeline={pipeline}"]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert message in captured.err
    assert "Traceback" not in captured.err


def test_files_that_cannot_be_used(file: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert opt.main([str(file.with_name("none.mlir"))]) == 1
    assert "error: cannot read" in capsys.readouterr().err
    assert opt.main([str(file), "-o", str(file / "out.mlir")]) == 1
    assert "error: cannot write" in capsys.readouterr().err


def test_warnings_on_the_command_line(file: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    file.write_text('"other.op"() : () -> ()\nfunc.func @main() {\n  "other.op"() : () -> ()\n  return\n}')
    assert opt.main([str(file)]) == 0
    assert capsys.readouterr().err == "warning: op 'other.op' is not known: it is kept and nothing propagates through it\n"


NAMES = """sdy.mesh @mesh = <["a\\1B[31m"=2]>
func.func @main(%x: tensor<8xf32>) -> tensor<8xf32> {
  %0 = "acme.\\1B]0;stop\\C2\\9B"(%x) : (tensor<8xf32>) -> tensor<8xf32>
  %1 = sdy.all_reduce {"a\\1B[31m"PART} %0 out_sharding=<@mesh, [{}]> : tensor<8xf32>
  return %1 : tensor<8xf32>
}
"""


@pytest.mark.parametrize(("part", "status"), [(":(3)2", 1), (":(x\x1b[2J)2", 1), ("", 0)])
def test_names_do_not_steer_the_terminal(part: str, status: int, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "\x1b[31m.mlir"
    file.write_text(NAMES.replace("PART", part))
    assert opt.main([str(file), "--pass-pipeline", "sdy-close-shardings"]) == status
    out, err = capsys.readouterr()
    assert ("module {" in out) is not bool(status)
    assert "\\x1b" in err
    assert all(char.isprintable() or char == "\n" for char in out + err)


@pytest.mark.slow
@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no /dev/full")
def test_output_that_is_full_or_closed_is_no_traceback(file: pathlib.Path) -> None:
    command = [sys.executable, "-m", "shardy_py.opt", str(file)]
    with open("/dev/full", "w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr) == (1, "error: cannot write to standard output: [Errno 28] No space left on device\n")
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, text=True, check=False)
    os.close(writing)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("error", [RecursionError("maximum recursion depth exceeded"), MemoryError()])
def test_what_runs_out_is_no_traceback(
    error: Exception, file: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(*_: object, **__: object) -> str:
        raise error

    monkeypatch.setattr(opt, "run_passes", run)
    assert opt.main([str(file)]) == 1
    assert capsys.readouterr().err.startswith("error: the module is too large or nested too deep: ")


def test_as_a_module(file: pathlib.Path) -> None:
    command = [sys.executable, "-m", "shardy_py.opt", "--pass-pipeline=sdy-nope", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=pathlib.Path(__file__).parents[2], timeout=120)
    assert done.returncode == 1
    assert "does not refer to a registered pass" in done.stderr


@functools.cache
def normal(text: str) -> str:
    """The text as MLIR prints it."""
    return str(parse_module(text))


MANY_CASES = ("sdy-insert-explicit-reshards", "sdy-reshard-to-collectives")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.slow] * (name in MANY_CASES)) for name in sorted(PASSES)])
def test_golden_cases(name: str) -> None:
    path = SHARED / "corpus" / f"{name}.jsonl"
    cases = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    if not cases:
        pytest.skip("the golden corpus is not here, or has no cases of this pass")
    for case in cases:
        if case["status"] == "ok":
            assert run_passes(case["input"], case["pipeline"], semantics=OLDER) == normal(case["output"]), case["id"]
            continue
        with pytest.raises(ValueError) as error:
            run_passes(case["input"], case["pipeline"], semantics=OLDER)
        assert all(d["text"] in str(error.value) for d in case["diagnostics"] if d["severity"] == "error"), case["id"]
