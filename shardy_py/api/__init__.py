"""The surface for JAX users: `auto_shard` and the annotations."""

from __future__ import annotations

import functools
import pathlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ParamSpec, TypedDict, TypeVar, Unpack, overload

from jax.extend.source_info_util import register_exclusion

from shardy_py.api.annotations import manual_computation as manual_computation
from shardy_py.api.annotations import named_computation as named_computation
from shardy_py.api.annotations import propagation_barrier as propagation_barrier
from shardy_py.api.annotations import sharding_group as sharding_group
from shardy_py.api.annotations import sharding_rule as sharding_rule
from shardy_py.api.annotations import with_sharding_constraint as with_sharding_constraint
from shardy_py.api.attention import ring_attention as ring_attention
from shardy_py.api.auto import AutoSharded as AutoSharded
from shardy_py.api.auto import Traced as Traced
from shardy_py.api.auto import clear_caches as clear_caches
from shardy_py.api.auto import decorate
from shardy_py.api.calls import Settings
from shardy_py.api.compiling import CompileError as CompileError
from shardy_py.api.compiling import topology as topology
from shardy_py.api.logical_axes import LogicalAxisRules
from shardy_py.api.meshes import AnyMesh
from shardy_py.api.name_rules import NameRules
from shardy_py.api.options import Options as Options
from shardy_py.api.undecorated import check as check
from shardy_py.api.undecorated import plan_of as plan_of
from shardy_py.api.verifying import DifferenceError as DifferenceError
from shardy_py.api.verifying import Verification as Verification
from shardy_py.backends import host_threads
from shardy_py.frontends.context import api_boundary, hide_frames
from shardy_py.planner.options import Planner

# Source lines of a program are those of its author, not of this package; so are those that tracebacks show.
_PACKAGE = str(pathlib.Path(__file__).parent.parent)
register_exclusion(_PACKAGE)
hide_frames(_PACKAGE)

# Again, here and with every decoration, for programs that set jax_num_cpu_devices after the package was imported.
host_threads.provide()


P = ParamSpec("P")
R = TypeVar("R")


class AutoShardOptions(TypedDict, total=False):
    """The keyword arguments of `auto_shard`."""

    mesh: AnyMesh | int | None
    in_shardings: Any
    out_shardings: Any
    rules: NameRules | None
    logical_axis_rules: LogicalAxisRules | None
    options: Options | None
    planner: Planner | None
    lowering: str
    static_argnums: int | Sequence[int] | None
    static_argnames: str | Iterable[str] | None
    donate_argnums: int | Sequence[int] | None
    donate_argnames: str | Iterable[str] | None
    keep_unused: bool
    inline: bool
    compiler_options: Mapping[str, Any] | None


@overload
def auto_shard(fun: Callable[P, R], /, **options: Unpack[AutoShardOptions]) -> AutoSharded[P, R]: ...


@overload
def auto_shard(**options: Unpack[AutoShardOptions]) -> Callable[[Callable[P, R]], AutoSharded[P, R]]: ...


@api_boundary
def auto_shard(
    fun: Callable[..., Any] | None = None,
    /,
    *,
    mesh: AnyMesh | int | None = None,
    in_shardings: Any = None,
    out_shardings: Any = None,
    rules: NameRules | None = None,
    logical_axis_rules: LogicalAxisRules | None = None,
    options: Options | None = None,
    planner: Planner | None = None,
    lowering: str = "auto",
    static_argnums: int | Sequence[int] | None = None,
    static_argnames: str | Iterable[str] | None = None,
    donate_argnums: int | Sequence[int] | None = None,
    donate_argnames: str | Iterable[str] | None = None,
    keep_unused: bool = False,
    inline: bool = False,
    compiler_options: Mapping[str, Any] | None = None,
) -> Any:
    """As `jax.jit`, but shardings propagate from a few annotations, and the plan can be read before anything runs.

    Args:
        fun: The function; without it, a decorator is returned.
        mesh: `jax.sharding.Mesh` (Auto or Explicit axes), `AbstractMesh`, or a mapping `{"data": 4, "model": 2}`; by default the mesh
            of the `NamedSharding`s below or of `jax.set_mesh`. Planning needs no devices; running on a mapping takes the mesh of the
            arguments, or the first devices there are.
        in_shardings: A prefix of the tuple of parameters that are not static, however they are passed, or a dict by their names:
            `PartitionSpec`, `NamedSharding` or `TensorSharding`. None lets propagation decide, `P()` replicates, `P.UNCONSTRAINED`
            leaves one dimension open. In place of a spec or of a tree of them: a function of the path of a leaf,
            `"params['layers'][0]['kernel']"`, and of its `jax.ShapeDtypeStruct`; or a plan, whose inputs, results and constraints
            (`plan.search.constraints`) are taken, so that a planner's plan comes back.
        out_shardings: The same for the result.
        rules: Shardings by name, `[("layers/*/kernel", P("fsdp", "tp")), ...]`; the first that matches the path of an argument or of a
            named part of the result wins.
        logical_axis_rules: For parameters and results that name their dimensions, as Flax's boxes and variables do: `[("batch", ("data",
            "fsdp")), ("mlp", "model"), ("embed", None)]`. In order, as in Flax; a name that has no rule and is not a mesh axis, and a mesh
            axis for two dimensions of one array, are errors. Flax's own constraints in the function see these rules too.
        options: Options of the propagation.
        planner: Chooses the shardings that are not annotated, by their cost on some hardware; None propagates annotations alone.
        lowering: `"jit"`: `jax.jit` with constraints that pin the plan; XLA's partitioner places the collectives. `"shard_map"`: one
            `jax.shard_map` region of local arrays with the collectives of `plan.collectives`; nothing is left to XLA's partitioner.
            `"auto"`: `"shard_map"` where every op of size can run on local arrays, else `"jit"`, and a finding says why; `plan.lowering`
            is what was chosen. Either can be differentiated, mapped and called inside of other transformations.
        static_argnums: As in `jax.jit`.
        static_argnames: As in `jax.jit`.
        donate_argnums: As in `jax.jit`.
        donate_argnames: As in `jax.jit`.
        keep_unused: As in `jax.jit`.
        inline: As in `jax.jit`.
        compiler_options: As in `jax.jit`.

    Returns:
        An `AutoSharded`: call it as the function; `.plan`, `.trace`, `.lower`, `.eval_shape` take the same arguments.

    Raises:
        PlannerInfeasible: The planner finds no plan within its memory budget.

    Example:
        >>> import jax, jax.numpy as jnp, shardy_py as sp
        >>> from jax.sharding import PartitionSpec as P
        >>> @sp.auto_shard(mesh={"data": 4, "model": 2}, in_shardings=(P(None, "model"), P("data")))
        ... def layer(w, x):
        ...     return jnp.tanh(x @ w)
        >>> plan = layer.plan(jax.ShapeDtypeStruct((64, 256), "float32"), jax.ShapeDtypeStruct((32, 64), "float32"))
        >>> print(plan.outputs[0])
        result: float32[32@data,256@model]
    """
    jit = {"keep_unused": keep_unused, "inline": inline, "compiler_options": None if compiler_options is None else dict(compiler_options)}
    arguments = (static_argnums, static_argnames, donate_argnums, donate_argnames)
    settings = Settings(fun, mesh, in_shardings, out_shardings, rules, logical_axis_rules, options, planner, lowering, *arguments, jit=jit)
    return functools.partial(decorate, settings) if fun is None else decorate(settings, fun)
