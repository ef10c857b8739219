"""Every example and benchmark runs, small; each example compares its numbers with the unsharded function."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys

import pytest

from shardy_py.api import auto
from shardy_py.api.partitioning import Planned
from tests.fixes import judge, small_programs_count
from tests.scripts import ROOT, run

SMALL = {
    "train_lm.py": ["--steps=4", "--layers=1", "--width=32", "--length=16", "--batch=4"],
    "resnet.py": ["--steps=2", "--size=8", "--channels=8", "--batch=8"],
    "train_without_annotations.py": ["--steps=2", "--batch=512", "--width=128"],
    "moe.py": ["--steps=3", "--tokens=32", "--width=16"],
    "decode.py": ["--tokens=8", "--batch=4", "--layers=1"],
}
IN_PROCESSES = {
    "pipeline_hosts.py": ["--processes=1", "--steps=3", "--layers=2", "--width=16"],
    "multi_process.py": ["--processes=1", "--steps=3", "--batch=8", "--width=16"],  # two of them: test_multi_process.py
}


def process(script: pathlib.Path, *flags: str) -> str:
    # The path is for checkouts whose package is not installed.
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))}
    done = subprocess.run([sys.executable, str(script), *flags], capture_output=True, text=True, cwd=ROOT, env=environment, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_every_example_is_listed() -> None:
    assert sorted(SMALL | IN_PROCESSES) == sorted(path.name for path in (ROOT / "examples").glob("*.py"))


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(SMALL))
def test_example(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its numbers are right, and every fix that a finding of its plans offers makes a better plan."""
    report, plans = auto.report, []

    def reported(planned: Planned) -> None:
        plans.append(planned.plan)
        report(planned)

    monkeypatch.setattr(auto, "report", reported)
    printed = run(ROOT / "examples" / name, *SMALL[name])
    assert "unsharded" in printed
    assert "model" in printed or "expert" in printed
    assert plans
    with small_programs_count():
        for plan in plans:
            judge(plan)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(IN_PROCESSES))
def test_example_of_several_processes(name: str) -> None:
    printed = process(ROOT / "examples" / name, *IN_PROCESSES[name])
    assert "unsharded" in printed
    assert "model" in printed or "holds 2 of 2 layers" in printed


@pytest.mark.slow
def test_dispatch_benchmark_runs() -> None:
    printed = run(ROOT / "benchmarks" / "dispatch.py", "--calls=10", "--leaves=10")
    for name in ("auto_shard", "jit"):
        assert any(line.startswith(name) and line.endswith("us with 10 leaves") for line in printed.splitlines())


@pytest.mark.slow
def test_accelerators_benchmark_runs() -> None:
    """It compiles for TPUs where their compiler is installed, else it says that it does not."""
    printed = process(ROOT / "benchmarks" / "accelerators.py", "--only=decode", "--nojit")
    answers = ("skipped: the compiler for TPUs is not installed", "Bytes are within 5 % in 1 of 1, peaks within 15 % in 1")
    assert any(answer in printed for answer in answers)


@pytest.mark.slow
def test_many_parameters_benchmark_runs() -> None:
    printed = run(ROOT / "benchmarks" / "many_parameters.py", "--parameters=100", "--rounds=1")
    ratios = {line.split()[0]: float(line.split()[-1]) for line in printed.splitlines()[-2:]}
    assert ratios["jax.jit"] == 1
    assert ratios["auto"] > 0


@pytest.mark.slow
def test_partitioner_benchmark_runs() -> None:
    printed = run(ROOT / "benchmarks" / "partitioner.py", "--depth=1", "--blocks=1", "--only=decode")
    assert "failed" not in printed
    assert "shard_map: 1 programs" in printed


@pytest.mark.slow
def test_the_planner_is_no_worse_than_an_expert() -> None:
    printed = run(ROOT / "benchmarks" / "planner_models.py", "--models=graph,decoder", "--devices=8", "--seconds=600")
    rows = [line.split(" | ") for line in printed.splitlines()[-2:]]
    assert [row[0] for row in rows] == ["| graph, 8", "| decoder, 8"]
    for row in rows:
        planned, expert = map(float, row[2].split(" / "))
        assert planned <= expert


@pytest.mark.slow
def test_propagation_benchmark_runs() -> None:
    assert "median ratio" in run(ROOT / "benchmarks" / "propagation.py", "--layers=2", "--repeat=1")


@pytest.mark.slow
@pytest.mark.parametrize("layers", ["scanned", "noscanned"])
def test_predictions_are_what_compiled_programs_move(layers: str) -> None:
    assert run(ROOT / "benchmarks" / "communication.py", "--plans=2", f"--{layers}").endswith("2 of 2 exact\n")


@pytest.mark.slow
def test_llama_benchmark() -> None:
    printed = process(ROOT / "benchmarks" / "llama405b.py", "--scanned", "--text")  # which looks at its peak of memory
    assert "405.9 billion parameters" in printed
    assert "cost of train_step per device, on mesh data=16, fsdp=64, model=8 of v5p" in printed


def test_stages_benchmark() -> None:
    printed = run(ROOT / "benchmarks" / "pipedream.py", "--noprofiles", "--large=inception", "--machines=2")
    assert "inception: 326 nodes" in printed
    assert printed.count("gap") == 6


@pytest.mark.slow
def test_the_planner_is_no_worse_than_templates_in_a_sample_of_its_sweep() -> None:
    printed = process(ROOT / "benchmarks" / "planner_sweep.py", "--cheap", "--count=2", "--seconds=5")  # which replaces the clock
    assert printed.endswith("0 of 2 draws have faults\n")
