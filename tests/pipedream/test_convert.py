"""Packages of modules: they give what the graph gives, in whatever way it is cut."""

from __future__ import annotations

import dataclasses
import json
import pathlib
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shardy_py.pipedream import ConversionError, ProfileGraph, convert, partition, read_graph, register_layer, whole_model
from shardy_py.pipedream.conversion.kinds import _ADDED  # pyright: ignore[reportPrivateUsage]

from .conversions import ADD, CONVNET, GNMT, compare, compare_equations, inputs_of, make, numbered
from .graphs import SHARED, needs_shared

CONVNET_STAGES = {
    "one": None,
    "two": [0] * 5 + [1] * 7,
    "through the size": [0] * 9 + [1] * 3,
    "size alone": [0] * 8 + [1] + [2] * 3,
    "every node": list(range(12)),
    "a long skip": [0, 0, 0, 0, 1, 2, 2, 2, 3, 3, 3, 3],
}


# Of these numbers and gradients are compared; of other cuts the equations, which takes no compilation.
NUMBERS = ("every node",)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "train"), [("every node", False), *((name, True) for name in CONVNET_STAGES)])
def test_convolutions(tmp_path: pathlib.Path, name: str, train: bool) -> None:
    stages = CONVNET_STAGES[name]
    graph = make(CONVNET, stages)
    package = convert(graph, tmp_path, arch="net", model_name="Net")
    compare_equations(graph, package, inputs_of(graph), train)
    if name in NUMBERS:
        compare(graph, package, inputs_of(graph), train)
    assert package.num_stages == (1 if stages is None else max(stages) + 1)


GNMT_STAGES = {
    "between layers": [0] * 8 + [1] * 8 + [2] * 5,
    "through the tuple": [0] * 6 + [1] * 4 + [1] * 3 + [2] * 4 + [3] * 4,
    "every node": [0, 1, 0, 2, 3, 4, 5, 6, 0, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18],
    "through hidden": [0] * 11 + [1] * 10,
}


@pytest.mark.slow
@pytest.mark.parametrize("name", GNMT_STAGES)
def test_recurrent_layers(tmp_path: pathlib.Path, name: str) -> None:
    graph = make(GNMT, GNMT_STAGES[name])
    package = convert(graph, tmp_path, arch="gnmt", model_name="GNMT")
    compare_equations(graph, package, inputs_of(graph), train=True)
    if name in NUMBERS:
        compare(graph, package, inputs_of(graph), train=True)


@pytest.mark.parametrize("stages", [None, [0, 0, 0, 0, 0, 0, 1], [0, 0, 0, 1, 1, 1, 1], [0, 0, 1, 2, 2, 3, 4]])
def test_an_add_overwrites_nothing(tmp_path: pathlib.Path, stages: list[int] | None) -> None:
    graph = make(ADD, stages)
    package = convert(graph, tmp_path, arch="add", model_name="Add2")
    (x,) = inputs_of(graph)
    compare(graph, package, (x,))
    params = whole_model(graph).init(jax.random.key(0), x)["params"]
    a, b = (np.asarray(x) @ np.asarray(params[name]["weight"]).T + np.asarray(params[name]["bias"]) for name in "ab")
    found = whole_model(graph).apply({"params": params}, x)
    np.testing.assert_allclose(found, np.concatenate([a * (a + b), b * (a + b), a + b], 1), rtol=1e-5)


def test_running_statistics_move(tmp_path: pathlib.Path) -> None:
    graph = make(CONVNET)
    (x,) = inputs_of(graph)
    package = convert(graph, tmp_path, arch="net", model_name="Net")
    variables = whole_model(graph).init(jax.random.key(0), x)
    results = [
        model.apply(variables, x, train=True, key=jax.random.key(1), mutable=["batch_stats"])[1]["batch_stats"]["norm"]
        for model in (whole_model(graph), package.load().full_model())
    ]
    out = jax.lax.conv_general_dilated(x, variables["params"]["conv"]["weight"], (1, 1), [(1, 1)] * 2)
    for found in results:
        np.testing.assert_allclose(found["mean"], 0.1 * jnp.mean(out, (0, 2, 3)), atol=1e-6)
        np.testing.assert_allclose(found["var"], 0.9 + 0.1 * jnp.var(out, (0, 2, 3), ddof=1), rtol=1e-5)


def test_configurations(tmp_path: pathlib.Path) -> None:
    package = convert(make(CONVNET, CONVNET_STAGES["two"]), tmp_path, arch="net", model_name="Net", stage_to_num_ranks={0: 3, 1: 1})
    read = {name: json.loads((tmp_path / f"{name}_conf.json").read_text()) for name in ("dp", "mp", "hybrid")}
    assert read == {
        "dp": {"module_to_stage_map": [0, 0, 0], "stage_to_rank_map": {"0": [0, 1, 2, 3]}},
        "mp": {"module_to_stage_map": [0, 1, 1], "stage_to_rank_map": {"0": [0], "1": [1]}},
        "hybrid": {"module_to_stage_map": [0, 1, 1], "stage_to_rank_map": {"0": [0, 1, 2], "1": [3]}},
    }
    assert package.load().arch() == "net"
    text = (tmp_path / "hybrid_conf.json").read_text()
    for same in ("0:3,1:1", [3, 1]):
        convert(make(CONVNET, CONVNET_STAGES["two"]), tmp_path, arch="net", model_name="Net", stage_to_num_ranks=same)
        assert (tmp_path / "hybrid_conf.json").read_text() == text
    # One stage on several ranks, on which PipeDream's converter fails.
    convert(make(CONVNET), tmp_path, arch="net", model_name="Net", stage_to_num_ranks=[4])
    assert json.loads((tmp_path / "hybrid_conf.json").read_text())["stage_to_rank_map"] == {"0": [0, 1, 2, 3]}
    assert not list(tmp_path.glob("stage*.py"))


def test_a_partition_knows_its_ranks(tmp_path: pathlib.Path) -> None:
    graph = make(CONVNET).with_nodes(lambda node: dataclasses.replace(node, forward_ms=1.0, activations=(4e6,)))
    found = partition(graph, machines=[4], bandwidths=[1e9])
    compare(found.graph, convert(found, tmp_path, arch="net", model_name="Net"), inputs_of(graph))
    ranks = json.loads((tmp_path / "hybrid_conf.json").read_text())["stage_to_rank_map"]
    assert [len(each) for each in ranks.values()] == list(found.replication)


def test_sizes_keep_what_is_static(tmp_path: pathlib.Path) -> None:
    """A size crosses without bytes, and a jitted stage still reshapes with it."""
    nodes = {
        "x": ("Input", ()),
        "wide": ("Linear(in_features=4, out_features=8, bias=True)", ("x",)),
        "size": ("Size(0)", ("wide",)),
        "shape": ("Size", ("wide",)),
        "narrow": ("Linear(in_features=8, out_features=4, bias=True)", ("wide",)),
        "flat": ("View(2, -1)", ("narrow", "size")),
        "turned": ("Transpose(0, 1)", ("flat",)),
        "back": ("View", ("wide", "shape")),
    }
    graph = make(nodes, [0, 0, 0, 0, 1, 2, 2, 2])
    package = convert(graph, tmp_path, arch="sizes", model_name="Sizes")
    (x,) = inputs_of(graph)
    assert [out.shape for out in whole_model(graph).init_with_output(jax.random.key(0), x)[0]] == [(3, 8), (2, 3, 2)]
    module = package.load()
    weights = module.full_model().init(jax.random.key(0), x)
    out = jax.jit(module.full_model().apply)(weights, x)
    assert [each.shape for each in out] == [(3, 8), (2, 3, 2)]


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ({"arch": "a; import os"}, "arch='a; import os' is not an identifier"),
        ({"arch": "stage0"}, "generated code uses itself"),
        ({"arch": "../up"}, "is not an identifier"),
        ({"model_name": "class"}, "is not an identifier"),
        ({"model_name": 'X"""'}, "is not an identifier"),
        ({"stage_to_num_ranks": {0: 1}}, "the graph has the stages 0 to 1"),
        ({"stage_to_num_ranks": "0:1;1:1"}, "malformed"),
        ({"stage_to_num_ranks": [1, 0]}, "0 is no number of ranks"),
    ],
)
def test_names_and_ranks_are_checked(tmp_path: pathlib.Path, what: dict[str, str], message: str) -> None:
    with pytest.raises(ConversionError, match=re.escape(message)):
        convert(make(CONVNET, CONVNET_STAGES["two"]), tmp_path / "out", **{"arch": "net", "model_name": "Net", **what})  # pyright: ignore
    assert not (tmp_path / "out").exists()


def test_stages_go_forward(tmp_path: pathlib.Path) -> None:
    with pytest.raises(ConversionError, match="node 'left' of stage 0 needs node 'relu' of stage 1"):
        convert(make(CONVNET, [0, 0, 0, 1, 0, 1, 1, 1, 1, 1, 1, 1]), tmp_path, arch="net", model_name="Net")


def test_registered_layers(tmp_path: pathlib.Path) -> None:
    nodes = {"x": ("Input", ()), "a": ("Squash(negative_slope=0.25)", ("x",)), "b": ("Dense(3)", ("a",))}
    try:
        register_layer("Squash", "jax.nn:leaky_relu", arguments=["negative_slope"], layer=False)
        register_layer("Dense", "flax.linen:Dense")
        graph = make(nodes, [0, 0, 1])
        package = convert(graph, tmp_path, arch="own", model_name="Own")
        compare(graph, package, inputs_of(graph))
        assert 'nn.Dense(3, name="b")' in (tmp_path / "stage1.py").read_text()
        with pytest.raises(ConversionError, match="known already"):
            register_layer("Dense", "flax.linen:Dense")
        with pytest.raises(ConversionError, match="is not an identifier"):
            register_layer("Other", "os;x:system")
    finally:
        for name in ("Squash", "Dense"):
            _ADDED.pop(name, None)


def test_an_unknown_layer_says_how_to_register_one(tmp_path: pathlib.Path) -> None:
    """PipeDream's own test.txt has nodes test0 to test5."""
    times = "forward_compute_time=0.0, backward_compute_time=0.0"
    graph = read_graph(f"0 -- test0 -- {times}, activation_size=0.0, parameter_size=0.0 -- stage_id=0")
    with pytest.raises(ConversionError, match="no layer is called 'test0'") as told:
        convert(graph, tmp_path / "out", arch="net", model_name="Net")
    assert "node '0', line 1" in str(told.value)
    assert """sp.pipedream.register_layer('test0', "my_package.layers:Layer")""" in str(told.value)
    assert not (tmp_path / "out").exists()


def test_text_does_not_depend_on_what_was_there(tmp_path: pathlib.Path) -> None:
    graph = make(GNMT, GNMT_STAGES["between layers"])
    first, second = (convert(graph, tmp_path / name, arch="gnmt", model_name="GNMT") for name in ("a", "b"))
    assert first.files == second.files
    for name in first.files:
        text = (tmp_path / "a" / name).read_text()
        assert text == (tmp_path / "b" / name).read_text()
        assert max(map(len, text.split("\n"))) <= 100


@needs_shared
@pytest.mark.slow
@pytest.mark.parametrize(("first", "name"), list(enumerate(["alexnet", "squeezenet1_0", "resnet18", "gnmt"])))
def test_all_profiles_on_all_machines(tmp_path: pathlib.Path, name: str, first: int) -> None:
    """Every third configuration of machines, each with two models; channels are a sixteenth of what they are.

    The equations of the stages are those of the graph; for one configuration of two models numbers and gradients are compared, too.
    """
    graph = read_graph((SHARED / "graphs" / f"{name}.txt").read_text())
    plain = {"bandwidths": [1e9]}
    configurations = [
        *({**plain, "machines": [n]} for n in (2, 4, 8)),
        *({**plain, "machines": [n], "activation_compression": 1.0} for n in (4, 16)),
        *({**plain, "machines": [n], "straight": True} for n in (4, 8)),
        {"machines": [2, 2], "bandwidths": [1e10, 1e9]},
    ]
    chosen = list(enumerate(configurations))[first % 3 :: 3]
    for i, configuration in chosen:
        found = partition(graph, **configuration)
        small = narrow(found.graph)
        package = convert(small, tmp_path / str(i), arch=name, model_name="Model", stage_to_num_ranks=found.replication)
        both = i % 4 < 2
        compare_equations(small, package, inputs_of(small, 224), train=i % 2 == 1, both=both)
        if name in ("alexnet", "resnet18") and i == chosen[0][0]:
            compare(small, package, inputs_of(small, 224), train=i % 2 == 1, both=both)


def test_numbers_of_equations_tell_programs_apart() -> None:
    x, numbers = jnp.ones(3), {}
    first = numbered(lambda x: jnp.sin(x) * 2 + x, x, numbers)
    assert first == numbered(lambda x: jnp.add(jnp.sin(x) * 2, x), x, numbers)
    for other in (lambda x: jnp.sin(x) * 3 + x, lambda x: jnp.cos(x) * 2 + x, lambda x: x + jnp.sin(x) * 2):
        assert numbered(other, x, numbers) != first


def narrow(graph: ProfileGraph) -> ProfileGraph:
    """The graph with all channels that 16 divides divided by it."""

    def number(match: re.Match[str]) -> str:
        value = int(match[0])
        return str(value // 16 if value >= 16 and value % 16 == 0 else value)

    def description(text: str) -> str:
        kind = text.partition("(")[0]
        if kind in ("Conv2d", "BatchNorm2d"):
            head, word, rest = text.partition("kernel_size" if kind == "Conv2d" else "eps")
            return re.sub(r"(?<=[( ])\d+", number, head) + word + rest
        wide = ("Linear", "View", "Embedding", "LSTM", "EmuBidirLSTM", "RecurrentAttention", "Classifier")
        return re.sub(r"(?<=[( =])\d+", number, text) if kind in wide else text

    return graph.with_nodes(lambda node: dataclasses.replace(node, description=description(node.description)))
