"""The modules that are damaged: those in the tests of this project, what JAX lowers functions to, and random ones."""

from __future__ import annotations

import ast
import functools
import pathlib
import random
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from shardy_py.errors import ShardyError
from shardy_py.opt.from_mlir import parse_module
from tests.passes.random_modules import module

ROOT = pathlib.Path(__file__).resolve().parents[1]
LONGEST = 3000
_HEAD = """sdy.mesh @mesh = <["a"=2, "b"=4]>\n"""


@functools.cache
def modules_of_tests() -> tuple[str, ...]:
    """Strings in the tests of this project that hold a function, in the order of files and lines."""
    modules: dict[str, None] = {}
    for path in sorted(ROOT.rglob("*.py")):
        source = path.read_text(encoding="utf-8")
        if "func.func" not in source or path.parent.name == "fuzz":
            continue
        for node in ast.walk(ast.parse(source)):
            text = node.value if isinstance(node, ast.Constant) else None
            if isinstance(text, str) and "func.func " in text and len(text) <= LONGEST:
                modules |= dict.fromkeys(each for each in (text, _HEAD + text) if is_readable(each))
    return tuple(modules)


@functools.cache
def _context() -> Any:
    return parse_module("").context


def is_readable(text: str) -> bool:
    """Whether MLIR takes a module, and the limits of the library."""
    try:
        parse_module(text, _context())
    except ShardyError:
        return False
    return True


def _scan(x: jax.Array) -> Any:
    return lax.scan(lambda c, w: (jnp.tanh(c @ w), c.sum()), x, jnp.stack([x, x]))


def _gather(x: jax.Array) -> Any:
    return x[jnp.arange(8) % 3], x.at[jnp.array([1, 2]), 0].add(1.0), lax.dynamic_slice(x, (x[0, 0].astype(int), 0), (2, 8))


FUNCTIONS: tuple[Callable[[jax.Array], Any], ...] = (
    lambda x: jax.grad(lambda w: jnp.sum(jax.nn.relu(x @ w) ** 2))(x),
    lambda x: lax.conv_general_dilated(x.reshape(1, 1, 8, 8), x[:4].reshape(2, 1, 4, 4), (2, 1), "SAME", rhs_dilation=(1, 2)),
    _scan,
    _gather,
    lambda x: lax.while_loop(lambda c: c[0] < 3, lambda c: (c[0] + 1, c[1].T * 2), (0, x)),
    lambda x: lax.cond(x.sum() > 0, jnp.sin, lambda y: jnp.sort(y, 0), x),
    lambda x: (jnp.cumsum(x, 0), lax.reduce_window(x, 0.0, lax.add, (2, 2), (2, 1), "SAME"), jnp.argmax(x, 1)),
    lambda x: (jnp.fft.fft2(x).real, jnp.linalg.cholesky(x @ x.T), lax.linalg.triangular_solve(x, x, left_side=True)),
    lambda x: jnp.concatenate([jnp.pad(x, ((1, 2), (0, 1)))[::2, :8], x[::-1], jnp.roll(x, 1, 0)]),
    lambda x: (jax.nn.softmax(x), jnp.einsum("ab,ac->bc", x, x), jax.vmap(jnp.dot)(x, x), lax.top_k(x, 2)),
    lambda x: (
        jax.random.normal(jax.random.key(0), (4, 8)),
        jnp.where(x > 0, x.astype(jnp.bfloat16), 1),
        x.reshape(4, 2, 8).swapaxes(0, 1),
    ),
    lambda x: jax.jit(lambda y: jax.jit(jnp.tanh)(y) + jax.checkpoint(jnp.sin)(y))(x),
)


@functools.cache
def lowered_modules() -> tuple[str, ...]:
    """Modules that JAX lowers functions to, with a mesh and the sharding of an argument."""
    texts = []
    for function in FUNCTIONS:
        text = jax.jit(function).lower(jax.ShapeDtypeStruct((8, 8), jnp.float32)).as_text()
        head, rest = text.split("\n", 1)
        stated = 'tensor<8x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"a"}, {?}]>}'
        texts.append(f"{head}\n{_HEAD}{rest.replace('tensor<8x8xf32>', stated, 1)}")
    return tuple(texts)


def draw_module(draw: random.Random) -> str:
    """One of the project's modules, what JAX made of a function, or a random one."""
    kind = draw.random()
    if kind < 0.3:
        return module(draw.randrange(1 << 30), size=draw.randint(2, 7))
    return draw.choice(lowered_modules() if kind < 0.55 else modules_of_tests())
