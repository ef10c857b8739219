"""Executable: the function of a plan under one `jax.jit`, for calls of one signature."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from operator import itemgetter
from types import SimpleNamespace
from typing import Any

import jax
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec
from jax.tree_util import treedef_tuple

from shardy_py.api.agreement import Agreement, gated
from shardy_py.api.signature import configuration
from shardy_py.api.tracing import TracedCall
from shardy_py.errors import ShardyError
from shardy_py.frontends.context import explicit_sharding, is_staged
from shardy_py.frontends.leaves import Leaves, Outline
from shardy_py.plan.donation import Arrangement


class SignatureChanged(Exception):
    """A call is not of the signature that the executable was made for; it has to be planned anew."""


class CompiledForOthersError(ShardyError, TypeError):
    """A compiled function is called with arguments of another structure; a TypeError in JAX."""


class _Order:
    """Puts leaves into an order of our choice, and `back`; None leaves them as they are."""

    def __init__(self, order: Sequence[int] | None) -> None:
        self.of = self.back = _selection(order)
        if order is not None:
            self.back = _selection(sorted(range(len(order)), key=order.__getitem__))


def _selection(places: Sequence[int] | None) -> Callable[[Sequence[Any]], Sequence[Any]]:
    """A fast function that selects the elements at some places of a sequence."""
    if places is None:
        return lambda leaves: leaves
    return itemgetter(*places) if len(places) > 1 else lambda leaves: tuple(leaves[i] for i in places)


class _Paths(inspect.Signature):
    """Gives JAX the paths of leaves, which are not identifiers, as the names of arguments."""

    def __init__(self, paths: Sequence[str]) -> None:
        super().__init__([inspect.Parameter("leaves", inspect.Parameter.VAR_POSITIONAL)])
        self.paths = paths

    def bind(self, *args: Any) -> Any:
        """The arguments by name."""
        return SimpleNamespace(arguments=dict(zip(self.paths, args, strict=True)))


class Executable:
    """A jitted function of leaves, called with the pytrees that the user's function takes and returns.

    Each leaf is an argument, so that single leaves of a pytree can be donated. Their order makes JAX pair donated inputs with results as
    planned.

    JAX's own dispatch finds the compiled program; only where it finds none does the body run, and raises `SignatureChanged` unless the
    call is of the signature it was made for. So repeated calls cost what they cost with `jax.jit`, a flattening of the arguments, and an
    unflattening of the result. (A node of pytrees that unflattens to the user's result would not do: the fast path of `jax.jit` takes the
    structure from the first result.)
    """

    def __init__(
        self,
        traced: TracedCall,
        replay: Callable[..., Sequence[Any]],
        arrangement: Arrangement,
        mesh: Mesh | AbstractMesh,
        in_shardings: Sequence[NamedSharding],
        out_shardings: Sequence[NamedSharding],
        agreement: Agreement | None,
    ) -> None:
        request, outline, donated = traced.request, traced.result.outline, arrangement.donated
        self.in_tree, self.out_tree = request.in_tree, outline.tree
        self.agreement = agreement
        self._tree = treedef_tuple([each.tree for each in request.outlines])
        self._static = frozenset(request.layout.static)
        count = len(in_shardings)
        is_sorted = arrangement.is_fixed or list(donated) == sorted(donated)
        inputs = self.inputs = _Order(None if is_sorted else (*donated, *(i for i in range(count) if i not in set(donated))))
        outputs = self._outputs = _Order(None if arrangement.is_fixed else arrangement.outputs)
        paths = Outline(outline.tree, tuple(outputs.of(outline.paths)))
        types, statics, made_with = request.key[2], request.key[4], configuration()
        explicit = request.view.explicit
        run: Callable[..., Any] = replay
        if explicit:
            axes = tuple(name for name, kind in zip(mesh.axis_names, mesh.axis_types, strict=True) if kind is AxisType.Explicit)
            run = jax.sharding.auto_axes(replay, axes=axes, out_sharding=[_over(axes, sharding) for sharding in out_shardings])

        def checked(*args: Any) -> Leaves:
            leaves = inputs.back(args[:count])
            if not is_staged():  # under jax_debug_nans and jax_debug_infs, JAX looks for the op that the number came from
                return Leaves(paths, outputs.of(traced.eagerly(*leaves)))
            if (
                configuration() != made_with
                or tuple((x.aval.shape, x.aval.dtype, x.aval.weak_type) for x in leaves) != types
                or tuple((type(x), x) for x in args[count:]) != statics
                or (not explicit and any(explicit_sharding(x) is not None for x in leaves))
            ):
                raise SignatureChanged
            results = run(*leaves)
            return Leaves(paths, outputs.of(results if agreement is None else gated(agreement, results)))

        checked.__name__ = checked.__qualname__ = request.name
        names = [*inputs.of([leaf.path for leaf in request.leaves]), *(request.layout.labels[i] for i in request.layout.static)]
        if len(set(names)) == len(names):
            checked.__signature__ = _Paths(names)  # type: ignore[attr-defined]
        self._jitted = jax.jit(
            checked,
            in_shardings=tuple(inputs.of(in_shardings)),
            out_shardings=Leaves(paths, outputs.of(out_shardings)),
            static_argnums=tuple(range(count, len(names))),
            donate_argnums=tuple(donated if is_sorted else range(len(donated))),
            **request.settings.jit,
        )

    def flat(self, slots: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        """The leaves of all arguments, and the static arguments."""
        static = self._static
        statics = [slot for i, slot in enumerate(slots) if i in static] if static else []
        leaves, tree = jax.tree.flatten(tuple(slot for i, slot in enumerate(slots) if i not in static) if static else tuple(slots))
        if tree != self._tree:
            raise SignatureChanged
        return leaves, statics

    def run(self, leaves: Sequence[Any], statics: Sequence[Any]) -> Any:
        """Calls the function."""
        return self.restored(self._jitted(*self.inputs.of(leaves), *statics))

    def restored(self, result: Leaves) -> Any:
        """The user's result."""
        return self.out_tree.unflatten(self._outputs.back(result.values))

    def trace(self, leaves: Sequence[Any], statics: Sequence[Any]) -> Stage:
        """As `jax.stages.Wrapped.trace`; see `run`."""
        return Stage(self._jitted.trace(*self.inputs.of(leaves), *statics), self)


def _over(axes: Sequence[str], sharding: NamedSharding) -> NamedSharding:
    """The part of a sharding that types say on a mesh of which only these axes are Explicit."""
    entries = [entry if isinstance(entry, tuple) else () if entry is None else (entry,) for entry in sharding.spec]
    return NamedSharding(sharding.mesh, PartitionSpec(*[tuple(name for name in entry if name in axes) or None for entry in entries]))


class Stage:
    """A stage of JAX: traced, lowered or compiled. It takes and returns the user's pytrees.

    The processes of a mesh agree before a compiled one runs for the first time.
    """

    def __init__(self, stage: Any, executable: Executable) -> None:
        self._stage = stage
        self._executable = executable

    def __getattr__(self, name: str) -> Any:
        if name in ("_stage", "_executable"):  # While it is copied.
            raise AttributeError(name)
        executable = self._executable
        if name in ("in_tree", "out_tree"):
            return getattr(executable, name)
        value = getattr(self._stage, name)
        if name in ("out_info", "output_shardings", "output_formats"):
            return executable.restored(value)
        if name in ("args_info", "in_avals", "input_shardings", "input_formats"):
            return executable.in_tree.unflatten(executable.inputs.back(value[0]))
        return value

    def lower(self, **options: Any) -> Stage:
        """As `jax.stages.Traced.lower`."""
        return Stage(self._stage.lower(**options), self._executable)

    def compile(self, *args: Any, **options: Any) -> Stage:
        """As `jax.stages.Lowered.compile`."""
        return Stage(self._stage.compile(*args, **options), self._executable)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """As `jax.stages.Compiled.__call__`."""
        executable = self._executable
        leaves, tree = jax.tree.flatten((args, kwargs))
        if tree != executable.in_tree:
            raise CompiledForOthersError(
                "the arguments differ from those that the function was compiled for",
                where=f"call of the compiled function, with {_described(tree)}",
                why=f"it was compiled for {_described(executable.in_tree)}",
                fix="pass those, without static arguments, or compile for these: .lower(*args).compile()",
            )
        if executable.agreement is not None and not is_staged():
            executable.agreement.settle(leaves, lambda: None)
        return executable.restored(self._stage(*executable.inputs.of(leaves)))


def _described(tree: Any) -> str:
    """The structure of positional and keyword arguments."""
    args, kwargs = tree.unflatten(["*"] * tree.num_leaves)
    return ", ".join([*map(str, args), *(f"{name}={value}" for name, value in kwargs.items())]) or "no arguments"
