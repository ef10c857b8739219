"""Maps values of a program to the variables of the traced function."""

from __future__ import annotations

from shardy_py.ir import Value
from shardy_py.rules.traits import CONSTANTS


def variable_of(value: Value) -> Value:
    """The value that stands for the variable of a value.

    A constant is one op per use, the last of which is the variable's.
    """
    op = value.defining_op
    if op is None or op.name not in CONSTANTS or op.block is None:
        return value
    ops = op.block.ops
    last = op
    for other in ops[ops.index(op) + 1 :]:
        if other.name != op.name or other.location is not op.location or other.result.type != value.type:
            break
        last = other
    return last.result
