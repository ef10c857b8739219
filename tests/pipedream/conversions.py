"""Small graphs that are converted in tests, and what compares a package with its graph."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from shardy_py.pipedream import Package, ProfileGraph, ProfileNode, fuse_weights, merge_weights, split_weights, whole_model

# Programs run once here: compiling them well would take longer than all else.
QUICK = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}

CONVNET = {
    "x": ("Input", ()),
    "conv": ("Conv2d(3, 4, kernel_size=(3, 3), stride=(1, 1), padding=(1, 1), bias=False)", ("x",)),
    "norm": ("BatchNorm2d(4, eps=1e-05, momentum=0.1, affine=True, track_running_stats=True)", ("conv",)),
    "relu": ("ReLU(inplace)", ("norm",)),
    "left": ("Conv2d(4, 4, kernel_size=(1, 1), stride=(1, 1))", ("relu",)),
    "sum": ("Add(inplace)", ("left", "relu")),
    "pool": ("MaxPool2d(kernel_size=3, stride=2, padding=0, dilation=1, ceil_mode=True)", ("sum",)),
    "both": ("Concat(1)", ("pool", "pool")),
    "size": ("Size(0)", ("both",)),
    "flat": ("View(-1)", ("both", "size")),
    "drop": ("Dropout(p=0.5)", ("flat",)),
    "line": ("Linear(in_features=128, out_features=5, bias=True)", ("drop",)),
}

# PipeDream writes an Add over one of its operands, here one that is used again: its converter gives other numbers.
ADD = {
    "x": ("Input", ()),
    "a": ("Linear(in_features=4, out_features=4, bias=True)", ("x",)),
    "b": ("Linear(in_features=4, out_features=4, bias=True)", ("x",)),
    "sum": ("Add(inplace)", ("a", "b")),
    "left": ("Mul", ("a", "sum")),
    "right": ("Mul", ("b", "sum")),
    "out": ("Concat(1)", ("left", "right", "sum")),
}

ATTENTION = (
    "RecurrentAttention(  (rnn): LSTM(4, 4)  (attn): BahdanauAttention(    (linear_q): Linear(in_features=4, out_features=4, bias=False)"
    "    (linear_k): Linear(in_features=4, out_features=4, bias=False)    (dropout): Dropout(p=0)  )  (dropout): Dropout(p=0))"
)
GNMT = {
    "node1": ("Input0", ()),
    "node4": ("Embedding(20, 4, padding_idx=0)", ("node1",)),
    "node2": ("Input1", ()),
    "node5": (
        "EmuBidirLSTM(  (bidir): LSTM(4, 4, bidirectional=True)  (layer1): LSTM(4, 4)  (layer2): LSTM(4, 4))",
        ("node4", "node2"),
    ),
    "node6": ("Dropout(p=0.2)", ("node5",)),
    "node7": ("LSTM(8, 4)", ("node6",)),
    "node8": ("__getitem__(0)", ("node7",)),
    "node9": ("__getitem__(1)", ("node7",)),
    "node3": ("Input2", ()),
    "node21": ("Embedding(20, 4, padding_idx=0)", ("node3",)),
    "node20": ("hidden", ()),
    "node22": ("__getitem__(0)", ("node20",)),
    "node23": (ATTENTION, ("node21", "node22", "node8", "node2")),
    "node24": ("__getitem__(0)", ("node23",)),
    "node26": ("__getitem__(2)", ("node23",)),
    "node29": ("Concat(2)", ("node24", "node26")),
    "node30": ("__getitem__(1)", ("node20",)),
    "node31": ("LSTM(8, 4)", ("node29", "node30")),
    "node32": ("__getitem__(0)", ("node31",)),
    "node40": ("Add", ("node32", "node24")),
    "node48": ("Classifier(  (classifier): Linear(in_features=4, out_features=20, bias=True))", ("node40",)),
}


_EXPECTED: dict[Any, Any] = {}


def quick(f: Any) -> Any:
    return jax.jit(f, compiler_options=QUICK)


def make(nodes: Mapping[str, tuple[str, Sequence[str]]], stages: Sequence[int] | None = None) -> ProfileGraph:
    """A graph of descriptions and operands; `stages` has one number per node."""
    made = tuple(ProfileNode(id, text, stage=None if stages is None else stages[i]) for i, (id, (text, _)) in enumerate(nodes.items()))
    return ProfileGraph(made, tuple((operand, id) for id, (_, operands) in nodes.items() for operand in operands))


def inputs_of(graph: ProfileGraph, size: int = 8) -> tuple[jax.Array, ...]:
    random = np.random.default_rng(0)
    if any(node.description.startswith("Embedding") for node in graph.nodes):
        ids = random.integers(0, 20, (5, 2)), np.array([5, 3]), random.integers(0, 20, (4, 2))
        return tuple(map(jnp.asarray, ids))
    if any(node.description.startswith("Conv2d") for node in graph.nodes):
        return (jnp.asarray(random.normal(size=(2, 3, size, size)), jnp.float32),)
    return (jnp.asarray(random.normal(size=(3, 4)), jnp.float32),)


def compare(graph: ProfileGraph, package: Package, inputs: Sequence[jax.Array], train: bool = False, both: bool = True) -> float:
    """Asserts that the package gives what the graph gives, forward and backward; the greatest difference.

    It is run stage by stage, and with `both` fused as well.
    """
    whole = whole_model(graph)
    plain_graph = graph.with_nodes(lambda node: dataclasses.replace(node, stage=None))
    known = plain_graph.nodes, plain_graph.edges, train, tuple(each.shape for each in inputs)
    if known in _EXPECTED:
        variables, expected = _EXPECTED[known]
    else:
        variables, expected = quick(whole.init)(jax.random.key(0), *inputs), None
    parts = split_weights(variables, graph)
    merged = merge_weights(parts)
    assert jax.tree.structure(dict(merged)) == jax.tree.structure(dict(variables))
    assert all(a is b for a, b in zip(jax.tree.leaves(merged), jax.tree.leaves(variables)))
    plain, staged = functions_of(graph, package, variables, inputs, train, both)

    def run(f: Any) -> Any:
        def loss(params: Any) -> Any:
            out = f(params)
            return sum(jnp.sum(jnp.sin(leaf)) for leaf in jax.tree.leaves(out)), out

        return quick(jax.grad(loss, has_aux=True))(variables["params"])

    if expected is None:
        expected = run(plain)
        _EXPECTED[known] = variables, expected
    worst = 0.0
    for other in map(run, staged):
        assert jax.tree.structure(other) == jax.tree.structure(expected)
        for a, b in zip(jax.tree.leaves(other), jax.tree.leaves(expected)):
            worst = max(worst, float(jnp.max(jnp.abs(a - b)) / (jnp.max(jnp.abs(b)) + 1e-6)) if a.size else 0.0)
    assert worst < 1e-5
    return worst


def compare_equations(graph: ProfileGraph, package: Package, inputs: Sequence[jax.Array], train: bool = False, both: bool = True) -> None:
    """As `compare`, of the equations that the results are made of; nothing is compiled."""
    types, tree = jax.tree.flatten(jax.eval_shape(whole_model(graph).init, jax.random.key(0), *inputs))
    variables = jax.tree.unflatten(tree, [jnp.full(each.shape, i, each.dtype) for i, each in enumerate(types)])  # no two are equal
    plain, staged = functions_of(graph, package, variables, inputs, train, both)
    numbers: dict[Any, int] = {}
    expected = numbered(plain, variables["params"], numbers)
    assert all(numbered(f, variables["params"], numbers) == expected for f in staged)


def numbered(f: Any, params: Any, numbers: dict[Any, int]) -> list[int]:
    """The numbers of a function's results, where equal equations of equal operands have one number; new equations are added."""
    closed = jax.make_jaxpr(f)(params)
    env = {v: numbers.setdefault(("input", i), len(numbers)) for i, v in enumerate(closed.jaxpr.invars)}
    for v, const in zip(closed.jaxpr.constvars, closed.consts, strict=True):
        array = jax.random.key_data(const) if jnp.issubdtype(const.dtype, jax.dtypes.prng_key) else const
        env[v] = numbers.setdefault(("constant", v.aval.str_short(), np.asarray(array).tobytes()), len(numbers))

    def number(v: Any) -> int:
        return numbers.setdefault(("literal", v.aval.str_short(), str(v.val)), len(numbers)) if hasattr(v, "val") else env[v]

    for eqn in closed.jaxpr.eqns:
        key = eqn.primitive.name, re.sub(r" at 0x\w+", "", str(eqn.params)), tuple(map(number, eqn.invars))
        env.update({v: numbers.setdefault((*key, i), len(numbers)) for i, v in enumerate(eqn.outvars)})
    return list(map(number, closed.jaxpr.outvars))


def functions_of(
    graph: ProfileGraph, package: Package, variables: Any, inputs: Sequence[jax.Array], train: bool, both: bool
) -> tuple[Any, tuple[Any, ...]]:
    """The results of the graph by its parameters; those of the package's stages one by one, and with `both` fused as well."""
    whole, module = whole_model(graph), package.load()
    options = {"train": train, "key": jax.random.key(7) if train else None}

    def by_names(params: Any) -> Any:
        values = {f"input{i}": value for i, value in enumerate(inputs)}
        *stages, (criterion, (result,), (loss,)) = module.model("criterion")
        assert (criterion, loss) == ("criterion", "loss")
        own = {name: value for name, value in variables.items() if name != "params"}
        for (stage, takes, gives), weights in zip(stages, split_weights({"params": params, **own}, graph), strict=True):
            out = stage.apply(weights, *(values[name] for name in takes), **options)
            values.update(zip(gives, (out,) if len(gives) == 1 else out, strict=True))
        return values[result]

    def fused(params: Any) -> Any:
        return module.full_model().apply(fuse_weights(split_weights({**variables, "params": params}, graph)), *inputs, **options)

    def plain(params: Any) -> Any:
        return whole.apply({**variables, "params": params}, *inputs, **options)

    return plain, (by_names, fused) if both else (by_names,)
