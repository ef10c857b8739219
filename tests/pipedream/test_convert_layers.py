"""The layers written into packages do what PyTorch's do, here as loops over elements."""

from __future__ import annotations

import itertools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shardy_py.pipedream.conversion.copied import layers, recurrent


def pooled(x: Any, k: int, s: int, p: int, ceil: bool, mean: bool) -> Any:
    """PyTorch's rules: a window starts inside of the array or the padding before it, and padding is never the maximum."""
    size = x.shape[-1]
    count = (math.ceil if ceil else math.floor)((size + 2 * p - k) / s) + 1
    count -= ceil and (count - 1) * s >= size + p
    out = np.zeros((*x.shape[:2], count, count), np.float32)
    for i, j in itertools.product(range(count), repeat=2):
        rows, columns = ([start * s - p + t for t in range(k)] for start in (i, j))
        inside = [(r, c) for r in rows for c in columns if 0 <= r < size and 0 <= c < size]
        values = np.stack([x[:, :, r, c] for r, c in inside])
        out[:, :, i, j] = values.sum(0) / k**2 if mean else values.max(0)
    return out


@pytest.mark.parametrize("ceil", [False, True])
@pytest.mark.parametrize(("k", "s", "p"), [(3, 2, 0), (3, 2, 1), (2, 3, 1)])
def test_pools(k: int, s: int, p: int, ceil: bool) -> None:
    x = np.random.default_rng(0).normal(size=(2, 3, 8, 8)).astype(np.float32)
    np.testing.assert_allclose(layers.max_pool2d(jnp.asarray(x), k, s, p, ceil), pooled(x, k, s, p, ceil, False))
    if not ceil:
        np.testing.assert_allclose(layers.avg_pool2d(jnp.asarray(x), k, s, p), pooled(x, k, s, p, ceil, True), rtol=1e-5, atol=1e-6)


def cells(x: Any, weights: Any, end: str = "", lengths: Any = None, reverse: bool = False) -> Any:
    """Outputs of an LSTM, one example and one step at a time."""
    w = {name: np.asarray(weights[f"{name}_l0{end}"]) for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")}
    size = w["weight_hh"].shape[1]
    out = np.zeros((*x.shape[:2], size), np.float32)
    for b in range(x.shape[1]):
        h = c = np.zeros(size)
        steps = range(x.shape[0] if lengths is None else lengths[b])
        for t in reversed(steps) if reverse else steps:
            gates = w["weight_ih"] @ x[t, b] + w["bias_ih"] + w["weight_hh"] @ h + w["bias_hh"]
            i, f, g, o = np.split(gates, 4)
            c = c / (1 + np.exp(-f)) + np.tanh(g) / (1 + np.exp(-i))
            h = out[t, b] = np.tanh(c) / (1 + np.exp(-o))
    return out


def test_recurrent_layers() -> None:
    x = np.random.default_rng(0).normal(size=(4, 2, 3)).astype(np.float32)
    lstm = recurrent.LSTM(3, 5)
    (found, (h, _)), variables = lstm.init_with_output(jax.random.key(0), x)
    expected = cells(x, variables["params"])
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(h[0], expected[-1], rtol=1e-5, atol=1e-6)
    lengths = np.array([4, 2])
    both, variables = recurrent.EmuBidirLSTM(3, 5).init_with_output(jax.random.key(0), x, jnp.asarray(lengths))
    ways = [cells(x, variables["params"]["bidir"], end, lengths, bool(end)) for end in ("", "_reverse")]
    np.testing.assert_allclose(both, np.concatenate(ways, -1), rtol=1e-5, atol=1e-6)
    assert sum(leaf.size for leaf in jax.tree.leaves(variables)) == 2 * 4 * (3 * 5 + 5 * 5 + 5 + 5)


def test_attention_looks_at_no_padding() -> None:
    random = np.random.default_rng(0)
    x, context = (jnp.asarray(random.normal(size=(t, 2, 3)), jnp.float32) for t in (4, 5))
    layer = recurrent.RecurrentAttention(3, 3, 3, 3)
    arguments = (False, None)
    out, variables = layer.init_with_output(jax.random.key(0), x, None, context, jnp.array([5, 2]), *arguments)
    changed = layer.apply(variables, x, None, context.at[2:, 1].set(9.0), jnp.array([5, 2]), *arguments)
    for a, b in zip(jax.tree.leaves(out), jax.tree.leaves(changed), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6)
    assert out[3].shape == (2, 4, 5)
    np.testing.assert_allclose(out[3].sum(-1), 1, rtol=1e-5)
    # As many parameters as PipeDream's profile of GNMT says: 41,979,904 bytes at a width of 1,024.
    wide = recurrent.RecurrentAttention(1024, 1024, 1024, 1024)
    shapes = jax.eval_shape(lambda: wide.init(jax.random.key(0), *_wide(), *arguments))
    assert 4 * sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(shapes)) == 41_979_904


def _wide() -> tuple[Any, ...]:
    array = jnp.zeros((1, 1, 1024))
    return array, None, array, jnp.array([1])


def test_padding_rows_get_no_gradient() -> None:
    layer = layers.Embedding(4, 3, padding_idx=1)
    ids = jnp.array([0, 1, 3])
    variables = layer.init(jax.random.key(0), ids)
    assert not variables["params"]["weight"][1].any()
    gradient = jax.grad(lambda v: layer.apply(v, ids).sum())(variables)["params"]["weight"]
    assert gradient.sum(-1).tolist() == [3, 0, 0, 3]


def test_dropout_draws_by_name() -> None:
    x, key = jnp.ones((1000,)), jax.random.key(0)
    out = layers.Dropout(0.25, name="a").apply({}, x, True, key)
    np.testing.assert_allclose(np.unique(out), [0, 4 / 3], rtol=1e-6)
    assert abs(float(out.mean()) - 1) < 0.1
    assert (layers.Dropout(0.25, name="b").apply({}, x, True, key) != out).any()
    with pytest.raises(ValueError, match="give the model key"):
        layers.Dropout(0.25, name="a").apply({}, x, True, None)
    assert layers.Dropout(0.25, name="a").apply({}, x, False, None) is x


def test_smaller_layers() -> None:
    x = jnp.arange(1.0, 37.0).reshape(1, 1, 6, 6)
    np.testing.assert_allclose(layers.adaptive_avg_pool2d(x, 1)[0, 0, 0, 0], x.mean())
    np.testing.assert_allclose(layers.adaptive_avg_pool2d(x, (4, 3))[0, 0, 1], x[0, 0, 1:3].reshape(2, 3, 2).mean((0, 2)))
    norm = layers.LayerNorm(6)
    out = norm.apply(norm.init(jax.random.key(0), x), x)
    np.testing.assert_allclose(out.std(-1), 1, rtol=1e-3)
