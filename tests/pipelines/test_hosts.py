"""Pipelines over 2 and 4 processes of this machine; each process is one run of hosts_worker.py, 8 CPU devices in all."""

from __future__ import annotations

import contextlib
import pathlib
import random
import socket
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.test_multi_process import Workers, free_port

WORKER = str(pathlib.Path(__file__).parent / "hosts_worker.py")

pytestmark = pytest.mark.slow


@pytest.fixture
def start(tmp_path: pathlib.Path) -> Iterator[Callable[..., Workers]]:
    started: list[Workers] = []

    def start(mode: str, processes: int, **environment: str) -> Workers:
        port = str(free_port())
        command = [[WORKER, mode, str(i), str(processes), port] for i in range(processes)]
        started.append(Workers(tmp_path, command, **environment))
        return started[-1]

    yield start
    for workers in started:
        workers.end()


@pytest.mark.parametrize("processes", [2, 4])
def test_numbers_are_those_of_one_process(start: Callable[..., Workers], processes: int) -> None:
    """Of every layout and schedule; scalars can be read everywhere, and each process compiles its own stages alone."""
    results = start("numbers", processes).results()
    for case in results[0]:
        found = [result[case] for result in results]
        assert max(each["worst"] for each in found) < 1e-6, case
        if case in ("noisy", "verified", "init"):
            continue
        assert all(each["scalars"] == found[0]["scalars"] for each in found), case
        assert all(each["simulated"] == found[0]["simulated"] for each in found), case
        assert sum(each["sent"] for each in found) == found[0]["reported"], case
        assert all(each["compiled"] == [s for s, count in enumerate(each["per_stage"]) if count] for each in found), case
        if case not in ("across", "uneven"):
            assert all(s % processes == own for own, each in enumerate(found) for s in each["compiled"]), case
    assert results[0]["gpt"]["shared"] > 0, "the tied embedding is sent once per step"
    if processes == 2:
        assert {result["across"]["sent"] for result in results} == {0}
        assert [result["uneven"]["compiled"] for result in results] == [[0, 1, 2], [2, 3]]


def test_a_checkpoint_is_read_by_any_number_of_processes(start: Callable[..., Workers], tmp_path: pathlib.Path) -> None:
    """Written by 2 and by 4, of which one is killed between steps or in a save, and by 1: losses and state are those of one run."""
    folder = tmp_path / "checkpoints"
    for turn, processes in enumerate((2, 4, 1)):
        killed = {2: "1 between steps", 4: "2 in a save"}.get(processes)
        workers = start("resumed", processes, FOLDER=str(folder), **({"KILLED": killed} if killed else {}))
        results = [_answer(workers, i) for i in range(processes)]
        for number, each in enumerate(results):
            assert each["losses"] == pytest.approx(each["expected"], abs=1e-6)
            assert each["worst"] < 1e-6
            assert [each["before"], each["step"]] == [list(range(turn)), turn]
            assert each["twice"][0] == each["missing"][0] == "PipelineError"
            assert f"there is a checkpoint of step {turn} in {folder}" in each["twice"][1]
            assert f"{folder} has no checkpoint of step 99" in each["missing"][1]
            if killed and number != int(killed[0]):
                assert each["killed"][0] == "PeerFailedError"
                assert each["killed"][1].startswith(f"process {killed[0]} did not answer")
        if killed:
            workers.end()
        else:
            assert workers.wait(0) == 0, workers.told(0)
        assert sum(each["held"] for each in results) == 10, "each parameter is in one process"


def test_the_first_process_plans_for_all(start: Callable[..., Workers]) -> None:
    results = one, other = start("planned", 2).results()
    assert all(each["worst"] < 1e-6 for each in results)
    assert one["search"] == other["search"]
    assert one["report"] == other["report"]
    assert "stage0 in process 0, stage1 in process 1\nstage0 -> stage1 512 B, stage1 -> stage0 512 B" in one["report"]
    assert one["seconds"] > 40e-6, "10 us of the network for each of four transfers in a row"
    assert one["tight"] == other["tight"]
    assert "no pipeline fits 100 B" in one["tight"][1]


def test_what_cannot_run_is_refused_in_every_process(start: Callable[..., Workers]) -> None:
    for own, found in enumerate(start("refused", 2).results()):
        kind, message = found["port"]
        assert kind == "PipelineError"
        assert "devices of processes 0, 1, and nothing moves values between them" in message
        assert 'jax.config.update("jax_cross_host_transfer_socket_address"' in message
        assert found["different"][0] == "PlanMismatchError"
        assert f"in process {own}" in found["different"][1]
        assert found["values"][0] == "ValueMismatchError"
        assert "params['in']" in found["values"][1]
        if own == 0:
            assert found["part"] == []
        else:
            assert "the mesh has devices of process 0\n  where: mesh=, in process 1 of 2" in found["part"][1]


def test_the_example(tmp_path: pathlib.Path) -> None:
    """Trained by 2 processes, which save every two steps and which SLURM's variables number, and then by one."""
    flags = ["--layers=4", "--width=16", "--schedule=gpipe", f"--checkpoints={tmp_path / 'saved'}", "--save_every=2"]
    ports = range(61440, 65536)  # JAX takes the one with the number of the job, modulo their count
    with contextlib.closing(socket.socket()) as free:
        job = next(number for number in random.sample(range(len(ports)), 100) if free.connect_ex(("127.0.0.1", ports[number])))
    for processes, steps, lines in ((2, 3, "steps 1 to 3"), (1, 5, "steps 3 to 5")):
        for number in range(processes):
            (tmp_path / f"{processes} {number}").mkdir()
        command = ["examples/pipeline_hosts.py", f"--steps={steps}", *flags, "--cluster" if processes > 1 else "--processes=1"]
        slurm = {"SLURM_JOB_ID": str(job), "SLURM_STEP_NODELIST": "localhost", "SLURM_NTASKS": str(processes)}
        own = [{"SLURM_PROCID": str(i), "SLURM_LOCALID": str(i), **slurm} for i in range(processes)]
        workers = [Workers(tmp_path / f"{processes} {i}", [command], **each) for i, each in enumerate(own)]
        for number, worker in enumerate(workers):
            assert worker.wait(0) == 0, worker.told(0)
            printed = worker.outputs[0].read_text()
            assert f"process {number} of {processes}: holds {4 // processes} of 4 layers" in printed
            assert lines in printed
            assert "unsharded" in printed


@pytest.mark.parametrize("how", ["raises", "killed", "stays away"])
def test_a_process_that_fails_is_named(start: Callable[..., Workers], how: str) -> None:
    """By those that get nothing of it, too: nobody waits for ever."""
    workers = start("failing", 4 if how == "killed" else 2, HOW=how)
    found = {i: _answer(workers, i) for i in range(len(workers.processes)) if not (i == 1 and how == "killed")}
    first, message = found[0]["error"]
    assert first == "PeerFailedError"
    if how == "raises":
        assert "process 1 has failed in B of stage 'stage1', microbatch 0: OSError: no part-3" in message
        assert found[1]["error"] == ["OSError", "no part-3"]
    else:
        assert message.startswith("process 1 did not answer")
    if how == "killed":
        assert "process 1 did not answer" in found[2]["error"][1]


def _answer(workers: Workers, number: int) -> dict[str, Any]:
    assert workers.said(number), workers.told(number)
    return workers.result(number)
