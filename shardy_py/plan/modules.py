"""Modules: the named scopes around an op, as a user reads them."""

from __future__ import annotations

import functools
import re

_OF_JAX = frozenset(("rematted_computation", "checkpoint"))

_WRAPPED = re.compile(r"[\w-]+\((.*)\)", re.DOTALL)


def is_backward(scope: str) -> bool:
    """Whether an op is of a backward pass: of the transposition of a derivative, what is computed again for it included.

    Example:
        >>> is_backward("transpose(jvp(Model))/up"), is_backward("jvp(Model)/up")
        (True, False)
    """
    return any(part.startswith("transpose(") for part in scope.split("/"))


@functools.lru_cache(maxsize=1 << 16)
def module_path(scope: str, around: str = "") -> str:
    """The name stack of an op as a path of modules: without the transformations that JAX wraps around names, and without einsum strings.

    Flax opens a scope per module, `jax.named_scope` and `shardy_py.named_computation` open others. Names inside of a body (`scan`, `jit`)
    begin at the body, so that those of the op around it come first.

    Example:
        >>> module_path("transpose(jvp(Transformer))/block_0/attention/bqhd,bkhd->bhqk")
        'Transformer/block_0/attention'
        >>> module_path("jvp()/softmax", "Transformer/block_0")
        'Transformer/block_0/softmax'
        >>> module_path("transpose(jvp(Model))/up/jvp(Model)/up/rematted_computation/gelu")
        'Model/up/gelu'
    """
    names = [around] if around else []
    repeats = scope.startswith("transpose(")
    for i, part in enumerate(scope.split("/")):
        name = part
        if repeats and i and part.startswith("jvp("):  # what is computed again says where it was computed first
            names = [around] if around else []
        if name in _OF_JAX:
            continue
        while (match := _WRAPPED.fullmatch(name)) is not None:
            name = match[1]
        if name and "->" not in name and "(" not in name and ")" not in name:
            names.append(name)
    return "/".join(names)
