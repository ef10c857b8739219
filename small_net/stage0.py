# Written by shardy_py.
"""Stage 0 of 2 of small_net."""

from __future__ import annotations

import flax.linen as nn
import jax

from . import layers


class Stage0(nn.Module):
    """Stage 0 of 2 of small_net: 3 layers."""

    @nn.compact
    def __call__(self, input0, *, train=False, key=None):
        # input0: node1, Input
        layer = layers.Conv2d(3, 8, kernel_size=(3, 3), stride=(1, 1), padding=(1, 1), name="node2")
        node2 = layer(input0)
        node3 = jax.nn.relu(node2)
        node4 = layers.max_pool2d(node3, kernel_size=2, stride=2)
        node5 = node4.shape[0]
        return node4
