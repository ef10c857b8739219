# Written by shardy_py.
"""Stage 1 of 2 of small_net."""

from __future__ import annotations

import flax.linen as nn

from . import layers


class Stage1(nn.Module):
    """Stage 1 of 2 of small_net: 1 layer."""

    @nn.compact
    def __call__(self, out0, *, train=False, key=None):
        # out0: node4, MaxPool2d(kernel_size=2, stride=2)
        node5 = out0.shape[0]
        node6 = out0.reshape(node5, -1)
        node7 = layers.Linear(in_features=128, out_features=10, use_bias=True, name="node7")(node6)
        return node7
