"""JAX primitives that call a jaxpr on their operands, in one list for all rooms."""

from __future__ import annotations

from collections.abc import Mapping

PLAIN_CALLS = frozenset(("closed_call", "core_call", "eval_jaxpr", "jit", "remat2"))
"""Calls without rules of their own."""

RULED_CALLS = frozenset(("custom_jvp_call", "custom_vjp_call", "custom_vmap_call"))
"""Calls with a rule for derivatives or batching, which is lost where the call is inlined before it is transformed."""

CALLS = PLAIN_CALLS | RULED_CALLS
"""Calls that may be inlined in a jaxpr that is only run."""

_BODY_PARAMETERS = ("jaxpr", "call_jaxpr", "call", "callee", "fwd_jaxpr")


def body_parameter(params: Mapping[str, object]) -> str:
    """The parameter with the jaxpr of a call, also of one that is not in `CALLS`; its name differs between primitives and versions of JAX.

    Example:
        >>> body_parameter({"name": "f", "call_jaxpr": None})
        'call_jaxpr'
    """
    return next(name for name in _BODY_PARAMETERS if name in params)
