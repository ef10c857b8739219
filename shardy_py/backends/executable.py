"""Executable: what a plan runs behind one `jax.jit`, for calls of one signature."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from keyword import iskeyword
from typing import Any

import jax
from jax.sharding import AbstractMesh, Mesh, NamedSharding

from shardy_py.backends.leaf_order import Inputs, Outputs, Rearranged
from shardy_py.frontends.context import explicit_sharding
from shardy_py.plan.donation import Arrangement


class SignatureChanged(Exception):
    """A call is not of the signature that the executable was made for; it has to be planned anew."""


@dataclass(frozen=True)
class Signature:
    """What an executable was made for.

    Attributes:
        tree: Structure of the dynamic slots.
        types: Shape, element type and weak type of each leaf.
        statics: The static arguments.
        configuration: Settings of JAX.
    """

    tree: Any
    types: tuple[tuple[tuple[int, ...], Any, bool], ...]
    statics: tuple[Any, ...]
    configuration: tuple[Any, ...]


def executable(
    name: str,
    labels: Sequence[str],
    replay: Callable[..., Sequence[Any]],
    out_tree: Any,
    signature: Signature,
    *,
    mesh: Mesh | AbstractMesh,
    explicit: bool,
    in_shardings: Sequence[NamedSharding],
    out_shardings: Sequence[NamedSharding],
    static_slots: Sequence[int],
    arrangement: Arrangement,
    configuration: Callable[[], tuple[Any, ...]],
) -> Any:
    """A jitted function of slots.

    JAX's own dispatch finds the compiled program; only where it finds none does the body run, and raises `SignatureChanged` unless the
    call is of the signature it was made for. So repeated calls cost what they cost with `jax.jit`.

    Args:
        name: The function's name, for profiles.
        labels: The names of the slots, for messages of JAX and names of parameters in compiled programs.
        replay: What to run, from leaves to leaves.
        out_tree: Structure of the result.
        signature: What the jaxpr was traced for.
        mesh: The mesh with its devices, or an abstract one to lower for other platforms.
        explicit: Whether the mesh has Explicit axes, so that arguments and results carry their shardings in their types.
        in_shardings: Of the leaves of the dynamic slots.
        out_shardings: Of the leaves of the result.
        static_slots: Slots of static arguments.
        arrangement: What is donated, and the order of the results that pairs it as planned.
        configuration: Gives the settings of JAX at the time of a call.
    """
    static = frozenset(static_slots)

    run: Callable[..., Any] = replay
    if explicit:
        run = jax.sharding.auto_axes(replay, axes=mesh.axis_names, out_sharding=list(out_shardings))

    leaves = arrangement.leaves
    inputs = None if leaves is None else Inputs(signature.tree, leaves, static_slots, SignatureChanged)
    outputs = None if arrangement.outputs is None else Outputs(out_tree, arrangement.outputs)
    outs: Any = jax.tree.unflatten(out_tree, out_shardings) if outputs is None else outputs.ordered(out_shardings)

    def checked(leaves: Sequence[Any], statics: Sequence[Any]) -> Any:
        if (
            configuration() != signature.configuration
            or tuple((x.aval.shape, x.aval.dtype, x.aval.weak_type) for x in leaves) != signature.types
            or tuple((type(static), static) for static in statics) != signature.statics
            or (not explicit and any(explicit_sharding(x) is not None for x in leaves))
        ):
            raise SignatureChanged
        results = run(*leaves)
        return jax.tree.unflatten(out_tree, results) if outputs is None else outputs.ordered(results)

    def by_slot(*slots: Any) -> Any:
        leaves, tree = jax.tree.flatten(tuple(slot for i, slot in enumerate(slots) if i not in static))
        if tree != signature.tree:
            raise SignatureChanged
        return checked(leaves, [slots[i] for i in static_slots])

    if inputs is not None and leaves is not None:

        def by_leaf(donated: Sequence[Any], others: Sequence[Any], *statics: Any) -> Any:
            return checked(inputs.leaves(donated, others), statics)

        by_leaf.__name__ = by_leaf.__qualname__ = name
        jitted = jax.jit(
            by_leaf,
            in_shardings=inputs.dynamic(jax.tree.unflatten(signature.tree, in_shardings)),
            out_shardings=outs,
            static_argnums=tuple(range(2, 2 + len(static_slots))),
            donate_argnums=0,
        )
        return Rearranged(jitted, inputs, outputs)

    by_slot.__name__ = by_slot.__qualname__ = name
    if len(set(labels)) == len(labels) and all(label.isidentifier() and not iskeyword(label) for label in labels):
        positional = inspect.Parameter.POSITIONAL_ONLY
        by_slot.__signature__ = inspect.Signature([inspect.Parameter(label, positional) for label in labels])  # type: ignore[attr-defined]
    jitted = jax.jit(
        by_slot,
        in_shardings=jax.tree.unflatten(signature.tree, in_shardings),
        out_shardings=outs,
        static_argnums=tuple(static_slots),
        donate_argnums=arrangement.slots,
    )
    return jitted if outputs is None else Rearranged(jitted, None, outputs)
