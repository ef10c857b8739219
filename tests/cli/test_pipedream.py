"""`shardy-py pipedream`: profiles, partitions and schedules on the command line."""

from __future__ import annotations

import functools
import json
import re
import runpy
from itertools import pairwise
from pathlib import Path
from typing import Any

import jax
import optax
import pytest

from shardy_py.cli import main
from shardy_py.cli.pipedream import ACTIONS
from shardy_py.cli.pipedream.tables import profile_text
from shardy_py.pipedream import Package, ProfileGraph, ProfileNode, convert, convert_jaxpr, partition, read_graph, write_graph
from shardy_py.pipelines import schedule, simulate
from tests.cli.test_commands import Captured, ran, refused
from tests.pipedream.graphs import chain

MODULE = "tests.cli.sample_module"
SHAPES = ["{'table':f32[100,64],'layers':f32[6,64,64]}", "int32[4,16]"]
MODEL = [f"{MODULE}:loss", "--args", *SHAPES]
RUN = ["pipedream", "run", "net", "batches.py:batch", "--steps", "3", "--learning-rate", "0.5"]
TWO = ["--machines", "2", "--bandwidths", "1e9"]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that is the current one, with graphs: a chain of four layers, whole and in two stages, and a small model."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(Path(__file__).resolve().parents[2]))
    graph = chain(1.0, 1.0, 1.0, 2.0)
    (tmp_path / "chain.txt").write_text(write_graph(graph))
    linear = ProfileNode("a", "Linear(2, 3)", 1.0, 2.0, (24.0,), 36.0, 0)
    small = ProfileNode("x", "Input", stage=0), linear, ProfileNode("b", "ReLU", stage=1)
    (tmp_path / "small.txt").write_text(write_graph(ProfileGraph(small, (("x", "a"), ("a", "b")))))
    (tmp_path / "stages.txt").write_text(write_graph(partition(graph, [2], straight=True).graph))
    return tmp_path


def test_profile_writes_a_graph(folder: Path, capsys: Captured) -> None:
    text = ran(capsys, "pipedream", "profile", *MODEL)
    graph = read_graph((folder / "graph.txt").read_text())
    assert text == f"{profile_text(graph, None)}\nwritten to graph.txt\n"
    assert [line.split()[1] for line in text.splitlines()[1:10]] == [
        "Input0", "layer(embed)", *(f"layer({i})" for i in range(6)), "layer(head)",
    ]  # fmt: skip
    assert text.splitlines()[-2].startswith("9 nodes, ")
    assert text.splitlines()[-2].endswith(" 121 KiB of parameters")
    assert "there is a graph.txt already" in refused(capsys, "pipedream", "profile", *MODEL)
    ran(capsys, "pipedream", "profile", *MODEL, "-o", "graph.txt")


def test_what_a_profile_shows(folder: Path, capsys: Captured) -> None:
    named = [f"{MODULE}:planned_loss", "--args", SHAPES[0], f"tokens={SHAPES[1]}"]
    data = json.loads(ran(capsys, "pipedream", "profile", *named, "-o", "a.txt", "--json", "--by", "scope"))
    assert (data["format"], data["file"]) == ("shardy_py.stages.profile", "a.txt")
    graph = read_graph(Path("a.txt").read_text())
    assert [node["id"] for node in data["nodes"]] == [node.id for node in graph.nodes]
    assert [tuple(edge) for edge in data["edges"]] == list(graph.edges)
    text = ran(capsys, "pipedream", "profile", *MODEL, "-o", "b.txt", "--limit", "2", "--hardware", "v5e")
    assert "... and 7 nodes that take less\n" in text
    assert "layer(0)" in text
    types = [SHAPES[0], "int32[4@data,16]"]
    ran(capsys, "pipedream", "profile", f"{MODULE}:loss", "--args", *types, "--mesh", "data=2", "-o", "c.txt")
    whole, part = (read_graph(Path(name).read_text()) for name in ("b.txt", "c.txt"))
    assert part.nodes[2].activation_bytes == whole.nodes[2].activation_bytes / 2


def test_a_measured_profile(folder: Path, capsys: Captured) -> None:
    ran(capsys, "pipedream", "profile", f"{MODULE}:scaled", "--args", "f32[64]", "f32[]", "--measured", "-o", "graph.txt")
    assert sum(node.time_ms for node in read_graph(Path("graph.txt").read_text()).nodes) > 0


def test_partition(folder: Path, capsys: Captured) -> None:
    found = partition(chain(1.0, 1.0, 1.0, 2.0), [2], [1e9], "exact", 1, straight=True)
    arguments = ["pipedream", "partition", "chain.txt", *TWO, "--mode", "exact", "--activation-compression", "1", "--straight"]
    assert ran(capsys, *arguments, "-o", "out.txt") == f"{found}\nwritten to out.txt\n"
    assert Path("out.txt").read_text() == write_graph(found.graph)
    data = json.loads(ran(capsys, *arguments, "--json"))
    assert (data["format"], data["stage_of"]) == ("shardy_py.stages.partition", dict(found.stage_of))
    assert [stage["bubble"] for stage in data["stages"]] == list(found.bubbles)
    several = ran(
        capsys, "pipedream", "partition", "chain.txt", "--machines", "2,2", "--bandwidths", "300GB/s,1GiB", "--memory-bytes", "80GB"
    )
    assert several == f"{partition(chain(1.0, 1.0, 1.0, 2.0), [2, 2], [300e9, 2**30], memory_bytes='80GB')}\n"
    fewer = ran(capsys, "pipedream", "partition", "chain.txt", "--machines", "9", "--bandwidths", "1", "--straight", "--use-fewer-machines")
    assert fewer == f"{partition(chain(1.0, 1.0, 1.0, 2.0), [9], [1], straight=True, use_fewer_machines=True)}\n"


def test_convert(folder: Path, capsys: Captured) -> None:
    text = ran(capsys, "pipedream", "convert", "small.txt", "made/small_net", "--stage-to-num-ranks", "0:3,1:1")
    assert "files written to made/small_net: layers.py" in text
    assert "class SmallNet(" in Path("made/small_net/small_net.py").read_text()
    assert json.loads(Path("made/small_net/hybrid_conf.json").read_text())["stage_to_rank_map"] == {"0": [0, 1, 2], "1": [3]}
    named = ["--arch", "net", "--model-name", "Net", "--json"]
    data = json.loads(ran(capsys, "pipedream", "convert", "small.txt", "other", *named))
    assert (data["format"], data["model_name"], data["num_stages"]) == ("shardy_py.stages.package", "Net", 2)
    assert all(Path("other", name).exists() for name in data["files"])


@pytest.fixture
def net(folder: Path) -> Path:
    """A package in two stages, on two ranks and one, and a module with its batches."""
    jax.devices()  # started, so that nobody asks for another number of them
    layers = {"x": "Input", "a": "Linear(4, 8)", "b": "BatchNorm1d(8)", "c": "ReLU", "d": "Dropout(p=0.5)", "e": "Linear(8, 3)"}
    nodes = tuple(ProfileNode(id, layer, stage=int(id > "b")) for id, layer in layers.items())
    convert(ProfileGraph(nodes, tuple(pairwise(layers))), "net", arch="net", model_name="Net", stage_to_num_ranks=[2, 1])
    Path("batches.py").write_text(
        "import numpy as np\n\n\n"
        "def batch(step):\n"
        "    draw = np.random.default_rng(step)\n"
        "    return draw.normal(size=(12, 4)).astype('float32'), draw.integers(0, 3, 12)\n"
    )
    return folder / "net"


@pytest.mark.slow
def test_run_trains_the_modules(net: Path, capfd: Captured) -> None:
    """As plain JAX does, in whatever configuration; two processes as one, with the statistics of each microbatch."""
    model, batch = Package(net, "net", (), 2).load().full_model(), runpy.run_path("batches.py")["batch"]
    key, expected = jax.random.key(0), list[float]()
    state: Any = model.init(key, batch(0)[0])

    @functools.partial(jax.value_and_grad, has_aux=True)
    def loss(params: Any, state: Any, x: Any, labels: Any, draw: Any) -> Any:
        logits, changed = model.apply({**state, "params": params}, x, train=True, key=draw, mutable=["batch_stats"])
        return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean(), changed

    for number in range(3):
        key, draw = jax.random.split(key)
        (value, changed), gradients = loss(state["params"], state, *batch(number), draw)
        state = {"params": jax.tree.map(lambda p, g: p - 0.5 * g, state["params"], gradients), **changed}
        expected.append(float(value))
    whole = json.loads(ran(capfd, *RUN, "--conf", "dp", "--microbatches", "1", "--json"))
    assert (whole["format"], whole["ranks"]) == ("shardy_py.stages.training", [[0, 1, 2]])
    assert whole["losses"] == pytest.approx(expected, rel=1e-5)
    texts = [ran(capfd, *RUN, "--microbatches", "2", "--processes", count) for count in "12"]
    one, two = ([float(loss) for loss in re.findall(r"^step \d: loss (.*)$", text, re.MULTILINE)] for text in texts)
    assert one == pytest.approx(two, rel=1e-5)
    assert len(one) == 3
    assert one != pytest.approx(expected, rel=1e-5), "of each microbatch"
    assert "\nstage0 in process 0, stage1 in process 1\n" in texts[1]


def test_what_run_refuses(net: Path, capsys: Captured) -> None:
    (net / "bad_conf.json").write_text('{"module_to_stage_map": [0, 0, 1], "stage_to_rank_map": {"0": [0], "1": [0]}}')
    assert "bad_conf.json does not configure stages" in refused(capsys, *RUN, "--conf", "bad")
    assert "net/other_conf.json does not exist" in refused(capsys, *RUN, "--conf", "other")
    assert "--coordinator is missing" in refused(capsys, *RUN, "--processes", "2", "--process", "1")
    convert_jaxpr(jax.make_jaxpr(lambda x: -x)(1.0), [0], net, arch="net", stage_to_num_ranks=[1])
    assert "net has functions of a jaxpr" in refused(capsys, *RUN)
    convert_jaxpr(jax.make_jaxpr(lambda x: -x)(1.0), [0], net, arch="net", stage_to_num_ranks=[99])
    assert "there are 8 devices" in refused(capsys, *RUN)


def test_simulate(folder: Path, capsys: Captured) -> None:
    result = simulate(schedule("zb-h1", 4, 8))
    asked = ["pipedream", "simulate", "zb-h1", "--stages", "4", "--microbatches", "8"]
    text = ran(capsys, *asked, "--perfetto", "a.json", "--svg", "a.svg")
    assert text.startswith(f"{result}\nmesh  busy ms  bubble  in flight  until W\n   0       24   11.1%          4        4\n")
    assert text.endswith("written to a.json\nwritten to a.svg\n")
    assert Path("a.svg").read_text() == result.as_svg()
    events = json.loads(Path("a.json").read_text())["traceEvents"]
    assert max(event["ts"] + event["dur"] for event in events if event["ph"] == "X") == pytest.approx(27_000)
    data = json.loads(ran(capsys, *asked, "--json"))
    assert (data["format"], data["makespan"], data["in_flight"]) == ("shardy_py.stages.simulation", 27, [4, 3, 2, 1])
    assert len(data["tasks"]) == len(result.spans)
    assert max(len(line) for line in ran(capsys, *asked, "--width", "40").splitlines() if "|" in line) <= 40
    costs = ["--forward", "1,2", "--backward", "2", "--weight", "0", "--transfer", "0.5"]
    slow = ran(capsys, "pipedream", "simulate", "auto", "--stages", "2", "--microbatches", "4", *costs, "--max-in-flight", "2")
    best = schedule("auto", 2, 4, forward=[1, 2], backward=2, weight=0, transfer=0.5, max_in_flight=2)
    assert slow.startswith(str(simulate(best, forward=[1, 2], backward=2, weight=0, transfer=0.5)))


def test_simulate_the_stages_of_a_graph(folder: Path, capsys: Captured) -> None:
    data = json.loads(ran(capsys, "pipedream", "simulate", "1f1b", "--graph", "stages.txt", "--microbatches", "4", "--json"))
    tasks = {(task["kind"], task["stage"]): task["end"] - task["start"] for task in data["tasks"]}
    graph = read_graph(Path("stages.txt").read_text())
    for stage in (0, 1):
        forward = sum(node.forward_ms for node in graph.nodes if node.stage == stage)
        assert (tasks["F", stage], tasks["B", stage]) == pytest.approx((forward, 2 * forward))
    assert data["memory_bytes"] == [2 * 8e6, 8e6]
    more = ["--replicas", "3,1", "--bandwidth", "4GB/s"]
    shared = json.loads(ran(capsys, "pipedream", "simulate", "1f1b", "--graph", "stages.txt", "--microbatches", "4", "--json", *more))
    first = {(task["kind"], task["stage"], task["microbatch"]): task for task in shared["tasks"]}
    assert first["F", 0, 0]["end"] == pytest.approx(2 / 3)
    assert first["F", 1, 0]["start"] == pytest.approx(2 / 3 + 1)


@pytest.mark.parametrize("width", [80, 120])
def test_tables_fit_the_terminal(width: int, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    large = ProfileGraph(tuple(chain(*range(900, 960), activation=1.7e10, parameters=1.7e10).nodes), chain(*range(60)).edges)
    Path("large.txt").write_text(write_graph(large))
    for arguments in (
        ["profile", *MODEL, "-o", "graph.txt"],
        ["partition", "large.txt", "--machines", "16", "--bandwidths", "50GB", "--straight", "-o", "out.txt"],
        ["simulate", "1f1b", "--graph", "out.txt", "--microbatches", "64"],
    ):
        text = ran(capsys, "pipedream", *arguments, "--color", "always")
        assert "\x1b[" in text
        lines = re.sub(r"\x1b\[[0-9;]*m", "", text).splitlines()
        assert max(len(line.rstrip()) for line in lines) <= width
        assert "…" not in "".join(lines)
        assert "\x1b[" not in ran(capsys, "pipedream", *arguments, "--color", "never")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["profile", f"{MODULE}:loss"], "takes params, tokens: say what, --args"),
        (["profile", f"{MODULE}:NUMBER", "--args", "f32[2]"], "is of type int, not a function"),
        (["profile", *MODEL, "--by", "line"], "cannot profile by 'line'"),
        (["profile", *MODEL, "--parameters", "one"], "'one' is no list of whole numbers (--parameters)"),
        (["profile", *MODEL, "--parameters", "4"], "parameters is [4]"),
        (["profile", *MODEL, "--limit", "0"], "--limit is 0"),
        (["profile", *MODEL, "-o", "/no/such/graph.txt"], "/no/such/graph.txt: No such file or directory"),
        (["profile", f"{MODULE}:loss", "--args", "f32[2]", "rate=f32[2]"], "missing a required argument: 'tokens'"),
        (["profile", f"{MODULE}:by_name_alone", "--args", "f32[2]", "rate=f32[2]"], "'rate' can only be passed by name"),
        (["profile", f"{MODULE}:broken", "--args", "f32[1]"], "sample_module.py:"),
        (["partition", "none.txt", *TWO], "none.txt: No such file or directory"),
        (["partition", "bad.txt", *TWO], "this is not a node (bad.txt, line 2, column 1)"),
        (["partition", "binary.txt", *TWO], "binary.txt is no text"),
        (["partition", "chain.txt", "--machines", "4x", "--bandwidths", "1e9"], "'4x' is no list of whole numbers (--machines)"),
        (["partition", "chain.txt", "--machines", "2", "--bandwidths", "fast"], "'fast' is not a number of bytes (--bandwidths; "),
        (["partition", "chain.txt", "--machines", "2", "--bandwidths", "0"], "bandwidths is 0"),
        (["partition", "chain.txt", "--machines", "2,2", "--bandwidths", "1e9"], "2 levels of machines, but 1 bandwidths"),
        (["partition", "chain.txt", *TWO, "--mode", "fast"], "unknown mode 'fast'"),
        (["partition", "chain.txt", "--machines", "5", "--bandwidths", "1", "--straight"], "5 stages, but only 4 ops"),
        (["partition", "chain.txt", *TWO, "--mode", "exact", "--memory", "1MB"], "does not fit in memory"),
        (["convert", "stages.txt", "made"], "Linear needs in_features (node 'n0'"),
        (["convert", "stages.txt", "a-b"], "'a-b' is not an identifier"),
        (["convert", "small.txt", "made", "--stage-to-num-ranks", "0:x"], "number of ranks is malformed"),
        (["convert", "none.txt", "made"], "none.txt: No such file or directory"),
        (["simulate", "2f2b", "--stages", "2", "--microbatches", "2"], "unknown schedule '2f2b'"),
        (["simulate", "1f1b", "--microbatches", "2"], "the number of stages is missing"),
        (["simulate", "1f1b", "--stages", "0", "--microbatches", "2"], "stages is 0"),
        (["simulate", "1f1b", "--stages", "2", "--microbatches", "2", "--forward", "x"], "'x' is no time (--forward)"),
        (["simulate", "1f1b", "--stages", "2", "--microbatches", "2", "--forward", "-1"], "'-1' holds what is no time"),
        (["simulate", "1f1b", "--stages", "2", "--microbatches", "2", "--forward", "1,2,3"], "forward has 3 values"),
        (["simulate", "1f1b", "--stages", "2", "--microbatches", "2", "--bandwidth", "1"], "--bandwidth is for the stages of a graph"),
        (["simulate", "1f1b", "--stages", "2", "--microbatches", "2", "--width", "0"], "--width is 0"),
        (["simulate", "1f1b", "--graph", "chain.txt", "--microbatches", "2"], "chain.txt has no stage ids"),
        (["simulate", "1f1b", "--graph", "stages.txt", "--microbatches", "2", "--stages", "3"], "has 2 stages, not 1 on each of 3"),
        (["simulate", "1f1b", "--graph", "stages.txt", "--microbatches", "2", "--virtual", "0"], "virtual is 0"),
        (["simulate", "1f1b", "--graph", "stages.txt", "--microbatches", "2", "--weight", "1"], "--weight and --graph are both given"),
        (["simulate", "1f1b", "--graph", "stages.txt", "--microbatches", "2", "--replicas", "1"], "for each of 2 stages"),
        (["simulate", "1f1b", "--graph", "stages.txt", "--microbatches", "2", "--bandwidth", "0"], "--bandwidth is 0"),
    ],
)
def test_errors_are_one_line(arguments: list[str], message: str, folder: Path, capsys: Captured) -> None:
    Path("bad.txt").write_text(f"{Path('chain.txt').read_text().splitlines()[0]}\nnode without figures\n")
    Path("binary.txt").write_bytes(b"\xff\xfe\x00")
    assert message in refused(capsys, "pipedream", *arguments)


def test_help(capsys: Captured) -> None:
    for action in ACTIONS:
        assert action.help in " ".join(ran(capsys, "stages", "--help").split())  # the former name
        assert ran(capsys, "pipedream", action.name, "--help").startswith(f"usage: shardy-py pipedream {action.name} ")
    for arguments in (["stages"], ["stages", "draw"], ["pipedream", "partition", "a.txt"]):
        assert main(arguments) == 2
        assert "usage: shardy-py pipedream" in capsys.readouterr().err
