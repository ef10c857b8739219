"""JAX primitives that call a jaxpr on their operands: the one list of them, for all that looks into calls or past them."""

from __future__ import annotations

from collections.abc import Mapping

PLAIN_CALLS: Mapping[str, str] = {
    "closed_call": "call_jaxpr",
    "core_call": "call_jaxpr",
    "eval_jaxpr": "jaxpr",
    "jit": "jaxpr",
    "remat2": "jaxpr",
}
"""Primitive -> its parameter with the jaxpr, for calls without rules of their own."""

RULED_CALLS: Mapping[str, str] = {
    "custom_jvp_call": "call_jaxpr",
    "custom_vjp_call": "call_jaxpr",
    "custom_vmap_call": "call",
}
"""The same for calls with a rule for derivatives or batching, which is lost where the call is inlined before it is transformed."""

CALLS: Mapping[str, str] = {**PLAIN_CALLS, **RULED_CALLS}
"""Calls that may be inlined in a jaxpr that is only run."""

BODY_PARAMETERS = ("jaxpr", "call_jaxpr", "call", "callee", "fwd_jaxpr")
"""Parameters with the jaxpr of a call, also of those that are not in `CALLS`."""
