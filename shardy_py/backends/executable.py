"""Executable: the function of a plan under one `jax.jit`, for calls of one signature."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from keyword import iskeyword
from typing import Any

import jax
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec
from jax.tree_util import treedef_tuple

from shardy_py.backends.leaf_order import ByLeaf, BySlot, Outputs, Rearranged
from shardy_py.frontends.context import explicit_sharding, is_staged
from shardy_py.frontends.leaves import Leaves, Outline
from shardy_py.plan.donation import Arrangement


class SignatureChanged(Exception):
    """A call is not of the signature that the executable was made for; it has to be planned anew."""


@dataclass(frozen=True)
class JitSignature:
    """The signature that an executable was compiled for."""

    in_tree: Any
    outlines: tuple[Outline, ...]
    types: tuple[tuple[tuple[int, ...], Any, bool], ...]
    statics: tuple[Any, ...]
    configuration: tuple[Any, ...]

    @property
    def tree(self) -> Any:
        """Structure of the tuple of dynamic slots."""
        return treedef_tuple([outline.tree for outline in self.outlines])


def executable(
    name: str,
    labels: Sequence[str],
    replay: Callable[..., Sequence[Any]],
    eagerly: Callable[..., Sequence[Any]],
    out_outline: Outline,
    signature: JitSignature,
    *,
    mesh: Mesh | AbstractMesh,
    explicit: bool,
    in_shardings: Sequence[NamedSharding],
    out_shardings: Sequence[NamedSharding],
    static_slots: Sequence[int],
    arrangement: Arrangement,
    configuration: Callable[[], tuple[Any, ...]],
    keywords: Mapping[str, Any],
    gate: Callable[[Sequence[Any]], Sequence[Any]] | None = None,
) -> Rearranged:
    """A jitted function of slots.

    JAX's own dispatch finds the compiled program; only where it finds none does the body run, and raises `SignatureChanged` unless the
    call is of the signature it was made for. So repeated calls cost what they cost with `jax.jit`.
    """
    run: Callable[..., Any] = replay
    if explicit:
        axes = tuple(name for name, kind in zip(mesh.axis_names, mesh.axis_types, strict=True) if kind is AxisType.Explicit)
        run = jax.sharding.auto_axes(replay, axes=axes, out_sharding=[_over(axes, sharding) for sharding in out_shardings])
    by_leaf = arrangement.leaves is not None
    inputs = (
        BySlot(signature.outlines, static_slots, SignatureChanged)
        if arrangement.leaves is None
        else ByLeaf(signature.tree, arrangement.leaves, static_slots, SignatureChanged)
    )
    outputs = Outputs(out_outline, arrangement.outputs)
    positions = tuple(range(2, 2 + len(static_slots))) if by_leaf else tuple(static_slots)
    static = frozenset(positions)

    def checked(*args: Any) -> Leaves:
        leaves = inputs.unpacked([arg for i, arg in enumerate(args) if i not in static])
        if not is_staged():  # under jax_debug_nans and jax_debug_infs, JAX looks for the op that the number came from
            return outputs.packed(eagerly(*leaves))
        if (
            configuration() != signature.configuration
            or tuple((x.aval.shape, x.aval.dtype, x.aval.weak_type) for x in leaves) != signature.types
            or tuple((type(args[i]), args[i]) for i in positions) != signature.statics
            or (not explicit and any(explicit_sharding(x) is not None for x in leaves))
        ):
            raise SignatureChanged
        results = run(*leaves)
        return outputs.packed(results if gate is None else gate(results))

    checked.__name__ = checked.__qualname__ = name
    if not by_leaf and len(set(labels)) == len(labels) and all(label.isidentifier() and not iskeyword(label) for label in labels):
        positional = inspect.Parameter.POSITIONAL_ONLY
        checked.__signature__ = inspect.Signature([inspect.Parameter(label, positional) for label in labels])  # type: ignore[attr-defined]
    jitted = jax.jit(
        checked,
        in_shardings=inputs.packed(in_shardings),
        out_shardings=outputs.packed(out_shardings),
        static_argnums=positions,
        donate_argnums=0 if by_leaf else arrangement.slots,
        **keywords,
    )
    return Rearranged(jitted, inputs, outputs, signature.in_tree)


def _over(axes: Sequence[str], sharding: NamedSharding) -> NamedSharding:
    """The part of a sharding that types say on a mesh of which only these axes are Explicit."""
    entries = [entry if isinstance(entry, tuple) else () if entry is None else (entry,) for entry in sharding.spec]
    return NamedSharding(sharding.mesh, PartitionSpec(*[tuple(name for name in entry if name in axes) or None for entry in entries]))
