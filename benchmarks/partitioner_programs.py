"""The programs of `partitioner.py`: a language model with two sets of annotations, and the steps of some examples."""

from __future__ import annotations

import hashlib
import importlib
import pathlib
import random
import runpy
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import gpt
import jax
import jax.numpy as jnp
import numpy as np
import optax
from absl import flags
from flax import nnx
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

Tree = Any


@dataclass(frozen=True)
class Program:
    """A function, its arguments as shapes, and the annotations: a `NamedSharding` or None for each leaf."""

    name: str
    fun: Callable[..., Any]
    args: tuple[Tree, ...]
    annotations: tuple[Tree, ...]
    mesh: Mesh


def own(layers: int, width: int) -> Iterator[Program]:
    """The benchmark's own programs, on a mesh with axes "data" and "model"."""
    mesh = _mesh("data", "model")
    for scanned in (False, True):
        args, specs = gpt.arguments(layers, width, scanned=scanned)
        kind = "scanned" if scanned else "unrolled"
        yield _program(f"gpt_{kind}_megatron", gpt.train_step, args, specs, mesh)
        yield _program(f"gpt_{kind}_fsdp", gpt.train_step, args, (_fully_sharded(args[0]), None, P("data")), mesh)
    yield _program("decode", *_decode(), mesh)
    yield _program("experts", *_experts(), mesh)
    yield _program("resnet", *_resnet(), mesh)


def from_file(path: str, seeds: int, only: str) -> Iterator[Program]:
    """The programs of a file whose `PROGS` maps names to functions that give a function and its arguments as shapes.

    Each comes with several sets of annotations, drawn at random, on a mesh with axes "x" and "y".

    Args:
        path: The file.
        seeds: How many sets of annotations.
        only: Part of the names of the programs to take.
    """
    mesh = _mesh("x", "y")
    built = {name: build() for name, build in runpy.run_path(path)["PROGS"].items() if only in name}
    for seed in range(seeds):
        for name, (fun, args) in built.items():
            yield Program(f"{name}/{seed}", fun, args, draw_annotations(f"{name}/{seed}", mesh, args), mesh)


def draw_annotations(seed: str, mesh: Mesh, args: Tree) -> Tree:
    """About half of the leaves, each cut along one dimension that a mesh axis divides, now and then along two.

    Args:
        seed: Decides.
        mesh: Where axes are taken from.
        args: The arguments as shapes.
    """
    draw = random.Random(hashlib.sha1(seed.encode()).hexdigest())
    leaves, tree = jax.tree.flatten(args)
    chosen = [_drawn(leaf, mesh, draw) for leaf in leaves]
    if not any(chosen):
        which = int(seed.rpartition("/")[2])
        found = next(((i, _ways(leaf, mesh)) for i, leaf in enumerate(leaves) if _ways(leaf, mesh) and not _is_key(leaf)), None)
        if found is not None:
            i, ways = found
            chosen[i] = _cut(leaves[i], mesh, [ways[which % len(ways)]])
    return jax.tree.unflatten(tree, chosen)


def _drawn(leaf: Any, mesh: Mesh, draw: random.Random) -> NamedSharding | None:
    ways = _ways(leaf, mesh)
    if not ways or draw.random() < 0.5 or _is_key(leaf):
        return None
    first = draw.choice(ways)
    others = [way for way in ways if way[0] != first[0] and way[1] != first[1]]
    return _cut(leaf, mesh, [first, draw.choice(others)] if others and draw.random() < 0.3 else [first])


def _ways(leaf: Any, mesh: Mesh) -> list[tuple[int, str]]:
    return [(i, axis) for i, n in enumerate(leaf.shape) for axis in mesh.axis_names if n and n % mesh.shape[axis] == 0]


def _cut(leaf: Any, mesh: Mesh, ways: list[tuple[int, str]]) -> NamedSharding:
    spec: list[str | None] = [None] * len(leaf.shape)
    for i, axis in ways:
        spec[i] = axis
    return NamedSharding(mesh, P(*spec))


def _is_key(leaf: Any) -> bool:
    return jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.extended)


def _mesh(*names: str) -> Mesh:
    return jax.make_mesh((2, 4), names, axis_types=(AxisType.Auto,) * 2)


def _program(name: str, fun: Callable[..., Any], args: tuple[Tree, ...], specs: tuple[Tree, ...], mesh: Mesh) -> Program:
    """Spreads specs, prefixes of the arguments, over their leaves."""

    def of(spec: Any, arg: Tree) -> Tree:
        sharding = None if spec is None else NamedSharding(mesh, spec)
        return jax.tree.map(lambda _: sharding, arg)

    annotations = jax.tree.map(of, specs, args, is_leaf=lambda leaf: leaf is None or isinstance(leaf, P))
    return Program(name, fun, args, annotations, mesh)


def _fully_sharded(params: Tree) -> Tree:
    """Every parameter cut over "data" along its first dimension that it divides."""

    def spec(leaf: Any) -> P | None:
        i = next((i for i, n in enumerate(leaf.shape) if n % 2 == 0), None)
        return None if i is None else P(*[None] * i, "data")

    return jax.tree.map(spec, params)


def _example(name: str) -> Any:
    """A module of the examples; its flags are taken back, for several have flags of one name."""
    sys.path.insert(0, str(pathlib.Path(__file__).parent.parent / "examples"))
    before = set(flags.FLAGS)
    try:
        return importlib.import_module(name)
    finally:
        sys.path.pop(0)
        for flag in set(flags.FLAGS) - before:
            delattr(flags.FLAGS, flag)


def _shapes(tree: Tree) -> Tree:
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(np.shape(leaf), jnp.result_type(leaf)), tree)


def _decode() -> tuple[Callable[..., Any], tuple[Tree, ...], tuple[Tree, ...]]:
    module = _example("decode")
    args = (module.make_params(2), module.empty_cache(2, 8, 24), np.zeros((8, 24), np.int32), np.int32(3))
    return module.decode, _shapes(args), (None, P(None, "data", None, "model"), P("data"), None)


def _experts() -> tuple[Callable[..., Any], tuple[Tree, ...], tuple[Tree, ...]]:
    module = _example("moe")
    model = module.Model(32, 8, nnx.Rngs(0))
    definition, state = nnx.split((model, nnx.Optimizer(model, optax.sgd(0.1, momentum=0.9), wrt=nnx.Param)))

    def step(state: Tree, inputs: jax.Array, targets: jax.Array) -> tuple[Tree, jax.Array]:
        model, optimizer = nnx.merge(definition, state)
        loss = module.train_step(model, optimizer, inputs, targets)
        return nnx.state((model, optimizer)), loss

    shapes = _shapes(state)
    specs = jax.tree.map_with_path(lambda path, leaf: P("model") if len(leaf.shape) == 3 else None, shapes)
    data = (jax.ShapeDtypeStruct((256, 8), jnp.float32), jax.ShapeDtypeStruct((256,), jnp.float32))
    return step, (shapes, *data), (specs, P("data"), P("data"))


def _resnet() -> tuple[Callable[..., Any], tuple[Tree, ...], tuple[Tree, ...]]:
    module = _example("resnet")
    model, optimizer = module.ResNet(16), optax.sgd(0.05, momentum=0.9)
    images, labels = jax.ShapeDtypeStruct((16, 16, 16, 1), jnp.float32), jax.ShapeDtypeStruct((16,), jnp.int32)
    variables = jax.eval_shape(lambda key, x: model.init(key, x, train=False), jax.random.key(0), images)

    def step(variables: Tree, momentum: Tree, images: jax.Array, labels: jax.Array) -> tuple[Tree, Tree, jax.Array]:
        def loss_of(params: Tree) -> tuple[jax.Array, Tree]:
            logits, updated = model.apply({**variables, "params": params}, images, train=True, mutable=["batch_stats"])
            return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean(), updated

        (loss, updated), gradients = jax.value_and_grad(loss_of, has_aux=True)(variables["params"])
        updates, momentum = optimizer.update(gradients, momentum, variables["params"])
        return {"params": optax.apply_updates(variables["params"], updates), **updated}, momentum, loss

    momentum = jax.eval_shape(optimizer.init, variables["params"])
    return step, (variables, momentum, images, labels), (None, None, P("data"), P("data"))
