# Written by shardy_py.
"""small_net: 2 stages in a row."""

from __future__ import annotations

import flax.linen as nn

from .stage0 import Stage0
from .stage1 import Stage1


class SmallNet(nn.Module):
    """small_net: 2 stages in a row."""

    @nn.compact
    def __call__(self, input0, *, train=False, key=None):
        out0 = Stage0(name="stage0")(input0, train=train, key=key)
        out1 = Stage1(name="stage1")(out0, train=train, key=key)
        return out1
