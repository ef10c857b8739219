"""Recurrent layers of PyTorch and PipeDream's GNMT in Flax: arrays are [time, batch, features]."""

from __future__ import annotations

import math
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import lax

from . import layers

State = tuple[jax.Array, jax.Array]


def one_pass(
    x: jax.Array,
    state: State,
    weights: tuple[jax.Array, ...],
    valid: jax.Array | None = None,
    reverse: bool = False,
) -> tuple[jax.Array, State]:
    """One direction of one LSTM layer; where `valid` is false the state stays."""
    w_ih, w_hh, *biases = weights
    from_input = x @ w_ih.T
    for bias in biases:
        from_input = from_input + bias

    def step(state: State, now: tuple[jax.Array, jax.Array | None]) -> tuple[State, jax.Array]:
        h, c = state
        gates, keep = now
        i, f, g, o = jnp.split(gates + h @ w_hh.T, 4, axis=-1)
        new_c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
        new_h = jax.nn.sigmoid(o) * jnp.tanh(new_c)
        if keep is not None:
            new_h, new_c = jnp.where(keep, new_h, h), jnp.where(keep, new_c, c)
        return (new_h, new_c), new_h

    state, out = lax.scan(step, state, (from_input, valid), reverse=reverse)
    return out, state


class LSTM(nn.Module):
    """As torch.nn.LSTM: gives (output, (h, c)); an initial state of None is zeros."""

    input_size: int
    hidden_size: int
    num_layers: int = 1
    use_bias: bool = True
    batch_first: bool = False
    dropout: float = 0.0
    bidirectional: bool = False

    @nn.compact
    def __call__(
        self,
        x: jax.Array,
        state: Any = None,
        *,
        valid: jax.Array | None = None,
        train: bool = False,
        key: jax.Array | None = None,
    ) -> tuple[jax.Array, State]:
        """[time, batch, input_size] to [time, batch, directions * hidden_size]; a mask `valid`."""
        if self.batch_first:
            x = jnp.swapaxes(x, 0, 1)
        init = layers.uniform(1 / math.sqrt(self.hidden_size))
        directions = ("", "_reverse") if self.bidirectional else ("",)
        zeros = jnp.zeros((x.shape[1], self.hidden_size), x.dtype)
        last_h, last_c = [], []
        for layer in range(self.num_layers):
            outs = []
            for direction in directions:
                gates, end = 4 * self.hidden_size, f"_l{layer}{direction}"
                sizes = {"weight_ih": (gates, x.shape[-1]), "weight_hh": (gates, self.hidden_size)}
                if self.use_bias:
                    sizes |= {"bias_ih": (gates,), "bias_hh": (gates,)}
                weights = tuple(self.param(name + end, init, size) for name, size in sizes.items())
                at = len(last_h)
                first = (zeros, zeros) if state is None else (state[0][at], state[1][at])
                out, (h, c) = one_pass(x, first, weights, valid, reverse=bool(direction))
                outs.append(out)
                last_h.append(h)
                last_c.append(c)
            x = jnp.concatenate(outs, -1)
            if layer + 1 < self.num_layers:
                x = layers.dropout(x, self.dropout, train, key, f"{self.name}.{layer}")
        if self.batch_first:
            x = jnp.swapaxes(x, 0, 1)
        return x, (jnp.stack(last_h), jnp.stack(last_c))


class EmuBidirLSTM(nn.Module):
    """GNMT's first encoder layer: an LSTM in both directions over sequences of given lengths.

    Behind the end of a sequence are zeros. PipeDream's has two more LSTMs, `layer1` and `layer2`,
    which share the weights of this one.
    """

    input_size: int
    hidden_size: int
    use_bias: bool = True

    @nn.compact
    def __call__(self, x: jax.Array, lengths: jax.Array) -> jax.Array:
        """Shape [time, batch, input_size] and [batch] to [time, batch, 2 * hidden_size]."""
        valid = (jnp.arange(x.shape[0])[:, None] < lengths)[..., None]
        lstm = LSTM(
            self.input_size,
            self.hidden_size,
            use_bias=self.use_bias,
            bidirectional=True,
            name="bidir",
        )
        return jnp.where(valid, lstm(x, valid=valid)[0], 0)


class BahdanauAttention(nn.Module):
    """Attention by the tanh of a sum."""

    query_size: int
    key_size: int
    num_units: int
    p: float = 0.0

    @nn.compact
    def __call__(
        self,
        query: jax.Array,
        keys: jax.Array,
        lengths: jax.Array,
        train: bool,
        key: jax.Array | None,
    ) -> tuple[jax.Array, jax.Array]:
        """Attended keys, [t_q, batch, key_size], and scores, [batch, t_q, t_k]."""
        query, keys = jnp.swapaxes(query, 0, 1), jnp.swapaxes(keys, 0, 1)
        queries = layers.Linear(self.query_size, self.num_units, use_bias=False, name="linear_q")(
            query
        )
        projected = layers.Linear(self.key_size, self.num_units, use_bias=False, name="linear_k")(
            keys
        )
        init = layers.uniform(1 / math.sqrt(self.num_units))
        vector = self.param("linear_att", init, (self.num_units,))
        total = queries[:, :, None] + projected[:, None]
        scores = jnp.tanh(total) @ vector
        scores = jnp.where(jnp.arange(keys.shape[1]) < lengths[:, None, None], scores, -65504.0)
        scores = layers.dropout(jax.nn.softmax(scores), self.p, train, key, "attention")
        return jnp.swapaxes(scores @ keys, 0, 1), scores


class RecurrentAttention(nn.Module):
    """GNMT's first decoder layer: an LSTM whose outputs attend to a context."""

    input_size: int
    context_size: int
    hidden_size: int
    num_units: int
    p: float = 0.0
    attention_p: float = 0.0
    use_bias: bool = True

    @nn.compact
    def __call__(
        self,
        x: jax.Array,
        state: Any,
        context: jax.Array,
        lengths: jax.Array,
        train: bool,
        key: jax.Array | None,
    ) -> tuple[jax.Array, State, jax.Array, jax.Array]:
        """Outputs, state, attention and scores for `x`, a `context` and its lengths, [batch]."""
        inner = layers.layer_key(key, self.name) if train and (self.p or self.attention_p) else None
        outputs, state = LSTM(
            self.input_size, self.hidden_size, use_bias=self.use_bias, name="rnn"
        )(x, state)
        attend = BahdanauAttention(
            self.hidden_size,
            self.context_size,
            self.num_units,
            self.attention_p,
            name="attn",
        )
        attention, scores = attend(outputs, context, lengths, train, inner)
        return layers.dropout(outputs, self.p, train, inner, "outputs"), state, attention, scores


class Classifier(nn.Module):
    """GNMT's last layer: one product with a bias."""

    in_features: int
    out_features: int
    use_bias: bool = True

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Shape [..., in_features] to [..., out_features]."""
        return layers.Linear(self.in_features, self.out_features, self.use_bias, name="classifier")(
            x
        )
