"""Two processes of four CPU devices each beside one process of eight; each process is one run of multi_process_worker.py.

Every process has a time limit of its own, kept by `timeout -s KILL` too where there is that command, so that nothing is left behind when
the tests are stopped: jax.distributed takes SIGTERM for itself.
"""

from __future__ import annotations

import json
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from typing import IO, Any

import numpy as np
import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent
WORKER = ROOT / "tests" / "multi_process_worker.py"
LIMIT = 240


class Workers:
    """Processes of one group, their output in files."""

    def __init__(self, folder: pathlib.Path, command: list[list[str]], **environment: str) -> None:
        guard = [shutil.which("timeout"), "-s", "KILL", str(LIMIT + 30)] if shutil.which("timeout") else []
        own = {name: value for name, value in os.environ.items() if name not in ("NPROC", "PJRT_NPROC")}
        own |= {"PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT), own.get("PYTHONPATH")))), **environment}
        self.deadline = time.monotonic() + LIMIT
        self.outputs = [folder / f"out{i}" for i in range(len(command))]
        self.errors = [folder / f"err{i}" for i in range(len(command))]
        self.processes = []
        for arguments, out, err in zip(command, self.outputs, self.errors):
            with out.open("w") as to, err.open("w") as errors:
                self.processes.append(self._start([*guard, sys.executable, *arguments], to, errors, own))

    def _start(self, command: list[str], out: IO[str], err: IO[str], environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
        # A group of its own, so that the process can be ended together with the `timeout` around it.
        return subprocess.Popen(command, stdout=out, stderr=err, env=environment, cwd=ROOT, start_new_session=True)

    def wait(self, number: int, limit: float | None = None) -> int:
        left = self.deadline - time.monotonic() if limit is None else limit
        return self.processes[number].wait(max(1.0, left))

    def end(self) -> None:
        for process in self.processes:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait(30)

    def told(self, number: int) -> str:
        return f"{self.outputs[number].read_text()[-2000:]}\n{self.errors[number].read_text()[-20000:]}"

    def said(self, number: int) -> bool:
        """Waits until a process has printed its result, or ended."""
        while "\n{" not in "\n" + self.outputs[number].read_text():
            if self.processes[number].poll() is not None or time.monotonic() > self.deadline:
                return False
            time.sleep(0.2)
        return True

    def results(self) -> list[dict[str, Any]]:
        for number in range(len(self.processes)):
            assert self.wait(number) == 0, self.told(number)
        return [self.result(number) for number in range(len(self.processes))]

    def result(self, number: int) -> dict[str, Any]:
        lines = reversed(self.outputs[number].read_text().splitlines())
        return json.loads(next(line for line in lines if line.startswith("{")))  # Gloo prints too


@pytest.fixture
def start(tmp_path: pathlib.Path) -> Iterator[Any]:
    """Starts a group of workers in a mode; whatever happens, they are gone afterwards."""
    started: list[Workers] = []

    def start(mode: str, processes: int, lowering: str = "jit", **environment: str) -> Workers:
        folder = tmp_path / str(len(started))
        folder.mkdir()
        port = free_port()
        command = [[str(WORKER), mode, str(i), str(processes), str(port), lowering] for i in range(processes)]
        started.append(Workers(folder, command, **environment))
        return started[-1]

    yield start
    for workers in started:
        workers.end()


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


@pytest.mark.slow
def test_two_processes_train_as_one(start: Any) -> None:
    """300 un-blocked steps with donation; global, process-local, uncommitted and numpy arguments."""
    started = [start("train", processes, "shard_map") for processes in (1, 2)]
    (whole,), (first, second) = (workers.results() for workers in started)
    assert first["plan"] == second["plan"] == whole["plan"]
    assert first["digests"] == second["digests"]
    assert first["losses"] == second["losses"]
    np.testing.assert_allclose(first["losses"], whole["losses"], rtol=1e-4)
    assert first["losses"][-1] < first["losses"][0] / 4
    for found in (whole, first, second):
        assert found["deleted"] == [True, True]
        assert found["plans"] == 1
        np.testing.assert_allclose(list(found["calls"].values()), whole["losses"][0], rtol=1e-5)
        assert found["reused"][0] == "DeletedBufferError"
        assert found["errors"]["one device"][0] == "SpecError"
    assert whole["errors"]["numpy"] == []
    for found in (first, second):
        assert found["errors"]["numpy"][0] == "SpecError"
        message = found["errors"]["numpy"][-1]
        assert "batch['x']" in message
        assert "make_array_from_process_local_data" in message


DIFFERENCES = {
    "sharding": "process 0: `input x: float32[16@data,16]`, process 1: `input x: float32[16,16@data]`",
    "number": r"process 0: `.*dense<2\.0.*`, process 1: `.*dense<3\.0",
    "shape": "process 0: `input x: float32[16@data,16]`, process 1: `input x: float32[32@data,16]`",
    "function": "process 0: `function total`, process 1: `function largest`",
    "constant": r"process 0: `closed over float32\[8388608\] \w+ 1, 1, 1, .*`, process 1: `closed over float32\[8388608\] \w+ 2, 2, 2, ",
    "setting": "process 0: `jax_default_matmul_precision = 'default'`, process 1: `jax_default_matmul_precision = 'highest'`",
}
VALUES = {
    "values": "params['down'], params['up'] have other values in process 1 than in process 0",
    "rate": "rate has other values in process 1 than in process 0",
    "key": "key has other values in process 1 than in process 0",
}


@pytest.mark.slow
def test_processes_that_differ_end_in_errors(start: Any) -> None:
    """In whatever way the function is called, in both processes; what agrees runs afterwards."""
    for own, found in enumerate(start("mismatch", 2).results()):
        assert found.pop("same") == pytest.approx([256.0, -12.7], rel=0.01)
        kinds, message = found["pipeline"][:-1], found.pop("pipeline")[-1]
        assert kinds[0] == "PipelineError"
        assert "devices of processes 0, 1, and nothing moves values between them" in message
        assert f"where: mesh=, in process {own}" in message
        assert len(found) == 17
        for case, (*kinds, message) in found.items():
            assert {"PlanMismatchError", "ValueError", "RuntimeError"} <= set(kinds), case
            assert f"in process {own}" in message
            what = case.partition(",")[0]
            if what in DIFFERENCES:
                assert "process 0 and process 1 are about to run different programs" in message
                pattern = DIFFERENCES[what]
                assert pattern in message or re.search(pattern, message), message
            else:
                assert kinds[0] == "ValueMismatchError"
                assert VALUES[what] in message
        assert "process 0: 0.1; process 1: 0.2" in found["rate"][-1]


@pytest.mark.slow
def test_processes_that_wait(start: Any) -> None:
    """For those that look alone, come late, or fail; the others hear why."""
    both = start("waiting", 2).results()
    for own, found in enumerate(both):
        assert found["same"] == [256.0, 256.0]
        for late in (0, 1):
            *kinds, message = found[f"late {late}"]
            assert kinds[:2] == (["PeerFailedError", "PeerMissingError"] if own == late else ["PeerMissingError", "UserError"])
            assert f"process {late} did not come within 1 s" in message
        assert found["after"] == 256.0
        assert found["both"][0] == "ArgumentTypeError"
        assert found["caught"] == 259.0
        assert found["idle"] == []  # also where a process has no device of the mesh
    first, second = both
    assert first["again"].startswith("plan of total")
    for case, words in {
        "traced": "KeyError: 'no part-3'",
        "traced, jit": "KeyError: 'no part-3'",
        "compiled": "RuntimeError: no memory",
    }.items():
        assert second[case][0] == words.partition(":")[0]
        *kinds, message = first[case]
        assert kinds[:2] == ["PeerFailedError", "PeerMissingError"]
        assert f"process 1 has failed: {words}" in message
    assert "total on mesh data=4 agrees with the unsharded run" in first["verified"]
    assert second["verified"].endswith("process 1 has none of the mesh's devices, which belong to process 0")


@pytest.mark.slow
def test_one_process_searches_and_all_run_its_plan(start: Any) -> None:
    """Its errors are those of all, and nobody waits for what does not come."""
    first, second = start("planned", 2, "auto").results()
    assert first["searches"] > 0 == second["searches"]
    for same in ("texts", "figures", "loss", "shaped", "infeasible"):
        assert first[same] == second[same]
    assert first["loss"] == pytest.approx(first["shaped"], rel=1e-5)
    assert first["infeasible"][0] == "PlannerInfeasible"
    assert first["failed"] == ["RuntimeError", "Exception", "BaseException", "object", "no solver"]
    assert second["failed"][0] == "PeerFailedError"
    assert "process 0 has failed: RuntimeError: no solver" in second["failed"][-1]
    for found in (first, second):
        assert found["different"][0] == "PlanMismatchError"
        assert "process 0: `function total`, process 1: `function largest`" in found["different"][-1]


@pytest.mark.slow
def test_a_process_that_ends_says_why(start: Any) -> None:
    """Before it has called anything, while another one waits for it."""
    workers = start("ending", 2)
    assert workers.wait(1) == 1
    assert workers.wait(0) == 0, workers.told(0)
    found = workers.result(0)
    assert found["error"][0] == "PeerFailedError"
    assert "process 1 has ended: OSError: no part-3" in found["error"][-1]
    assert found["seconds"] < 15


@pytest.mark.parametrize("killed", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_the_others_end_when_one_is_killed(start: Any, killed: int) -> None:
    """Process 0 keeps the books: without it the other ends at once, without another when its heartbeat has been missed for 15 seconds."""
    workers = start("loop", 2)
    running = re.compile(r"running as (\d+)")
    while not all(running.search(out.read_text()) for out in workers.outputs):
        assert time.monotonic() < workers.deadline, workers.told(killed)
        assert all(process.poll() is None for process in workers.processes), workers.told(0) + workers.told(1)
        time.sleep(0.2)
    found = running.search(workers.outputs[killed].read_text())
    assert found is not None
    os.kill(int(found[1]), signal.SIGKILL)
    assert workers.wait(1 - killed, 60) != 0
    assert re.search("unhealthy|died|Socket closed|[Cc]onnection", workers.told(1 - killed))


@pytest.mark.slow
def test_a_slow_process_is_waited_for(start: Any) -> None:
    """One line on stderr says whom the other waits for."""
    first, second = (workers := start("slow", 2)).results()
    assert first["total"] == second["total"] == 256.0
    assert first["seconds"] > 30
    assert re.search(
        r"process 0 has waited 3\d s for process 1 at the first call of .*multi_process_worker.py:\d+ \(total\)", workers.told(0)
    )


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["many", "late_threads"])
def test_a_long_loop_without_blocking_ends(start: Any, mode: str) -> None:
    """Nobody sets NPROC: the package asks for threads, or waits for each call where the devices started before it could."""
    (found,) = start(mode, 1, "shard_map").results()
    assert found["loss"] < 0.01
    if mode == "late_threads":
        assert found["threads"] is None
