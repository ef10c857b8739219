"""Descriptions are read as data, and what is not data is refused with its node and line."""

from __future__ import annotations

import pathlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardy_py.pipedream import ConversionError, convert, read_graph
from shardy_py.pipedream.conversion.descriptions import Word, parse_description

from .conversions import ATTENTION, CONVNET, make

CODE = [
    "__import__('os').system('touch {marker}')",
    "Linear(__import__('os').system('touch {marker}'), 4)",
    "Linear(4, 4); open('{marker}', 'w')",
    "Linear(4, 4) or open('{marker}', 'w')",
    "Linear(4, 4), open('{marker}', 'w')",
    "ReLU(open('{marker}', 'w'))",
    "Linear(in_features=(lambda: open('{marker}', 'w'))(), out_features=4)",
    "Dropout(p=[open('{marker}', 'w') for _ in range(1)])",
    "Linear(4, 4) + Linear(4, 4)",
    "Linear(*[4, 4])",
    "Linear(**{{'in_features': 4}})",
    "Linear(4, 4, name='a'))(x) + open('{marker}', 'w'",
    "torch.nn.Linear(4, 4)",
    "Linear(os, sys)",
    "Linear(4, 4, bias=f'{{1}}')",
    "__getitem__(slice(open('{marker}', 'w')))",
    "__getitem__(print(1))",
    'View(4)"""',
    "Linear(10**9, 4)",
    "Linear(" + "(" * 300 + "4",
    "Classifier(  (classifier): Linear(in_features=open('{marker}', 'w'), out_features=4, bias=True))",
    "exec",
    "",
]


@pytest.mark.parametrize("text", CODE)
def test_code_is_refused(tmp_path: pathlib.Path, text: str) -> None:
    marker = tmp_path / "ran"
    graph = make({**CONVNET, "line": (text.format(marker=marker), ("drop",))})
    with pytest.raises(ConversionError, match=r"node 'line', line 12"):
        convert(graph, tmp_path / "out", arch="net", model_name="Net")
    assert not marker.exists()
    assert not (tmp_path / "out").exists()


@given(st.text(max_size=60) | st.text("Linear(4, )[]{}'\"=:*.-\\#@", max_size=40))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        parse_description(text)
    except ConversionError:
        pass


def test_ids_with_code_are_refused(tmp_path: pathlib.Path) -> None:
    graph = make({"x": ("Input", ()), "a; import os": ("ReLU", ("x",))})
    with pytest.raises(ConversionError, match="cannot be a name in code"):
        convert(graph, tmp_path / "out", arch="net", model_name="Net")


def test_what_pytorch_prints() -> None:
    read = parse_description("Conv2d(3, 64, kernel_size=(3, 3), padding=same, bias=False)")
    assert (read.kind, read.positional) == ("Conv2d", (3, 64))
    assert read.named == {"kernel_size": (3, 3), "padding": Word("same"), "bias": False}
    assert parse_description("ReLU(inplace)").positional == (Word("inplace"),)
    assert parse_description("__getitem__((slice(None, None, None), slice(1, None, None)))").positional == ((slice(None), slice(1, None)),)
    attention = parse_description(ATTENTION)
    assert list(attention.children) == ["rnn", "attn", "dropout"]
    assert list(attention.children["attn"].children) == ["linear_q", "linear_k", "dropout"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("Linear(4)", "Linear needs out_features"),
        ("Linear(4, -1)", "out_features of Linear is -1"),
        ("Linear(4, 4, size=3)", "Linear has no argument 'size'"),
        ("Linear(4, 4, in_features=4)", "Linear is given twice 'in_features'"),
        ("Conv2d(4, 4, kernel_size=(3, 3), padding_mode=reflect)", "padding_mode of Conv2d is 'reflect'"),
        ("Dropout(p=1.5)", "p of Dropout is 1.5"),
        ("Wavelet(4)", "no layer is called 'Wavelet'"),
        ("Branch 3", "is a compressed branch"),
        ("Classifier(4, 4)", "has no layer (classifier)"),
        ("Concat(1, 2)", "Concat is given 2 arguments and has 1"),
        ("Add", "Add has 1 operands and takes 2 or more"),
        ("View(-1, -1)", "the sizes of View are wrong"),
    ],
)
def test_wrong_layers(tmp_path: pathlib.Path, text: str, message: str) -> None:
    with pytest.raises(ConversionError) as caught:
        convert(make({**CONVNET, "line": (text, ("drop",))}), tmp_path, arch="net", model_name="Net")
    assert message in str(caught.value)
    assert "node 'line', line 12" in str(caught.value)


def test_the_line_is_that_of_the_file(tmp_path: pathlib.Path) -> None:
    figures = "forward_compute_time=0.0, backward_compute_time=0.0, activation_size=0.0, parameter_size=0.0"
    text = f"a -- Input -- {figures}\nb -- exit() -- {figures}\n\ta -- b"
    with pytest.raises(ConversionError, match="node 'b', line 2"):
        convert(read_graph(text), tmp_path, arch="net", model_name="Net")
