"""User-written shardings (`PartitionSpec`, `NamedSharding`, `TensorSharding`, None) as `TensorSharding`s.

As in `jax.jit`: a spec is closed in every dimension, `None` leaves a value to the propagation, and a tree of specs is a prefix of
the tree of values. Beyond `jax.jit`: `P.UNCONSTRAINED` leaves one dimension open, a `TensorSharding` may carry priorities, and a function
of a path and a leaf gives the spec of each leaf.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.sharding import AbstractMesh, NamedSharding, PartitionSpec, Sharding, SingleDeviceSharding
from jax.sharding import Mesh as JaxMesh

from shardy_py.api.calls import UserCall
from shardy_py.api.meshes import MESH_NAME, MeshView, same_axes
from shardy_py.api.trees import Leaf, one_level
from shardy_py.dialect import AxisRef, DimensionSharding, Mesh, TensorSharding
from shardy_py.dialect.verify import verify_sharding
from shardy_py.errors import ShardyError, SpecError, did_you_mean
from shardy_py.ir import TensorType
from shardy_py.ir.types import local_bytes
from shardy_py.plan.checks.specs import nearest, sharding_text
from shardy_py.plan.checks.wording import graded
from shardy_py.plan.findings import Finding
from shardy_py.plan.values import PlannedValue


def is_spec_leaf(x: object) -> bool:
    """Whether a node of a tree of specs is a spec, None included."""
    return x is None or isinstance(x, (PartitionSpec, Sharding, TensorSharding))


def to_tensor_sharding(
    spec: object, view: MeshView, leaf: Leaf, source: str, *, uneven: bool = False, location: str | Callable[[], str] = ""
) -> TensorSharding | None:
    """The sharding a user's spec stands for on one value. Raises SpecError if the spec does not fit the value or the mesh.

    Args:
        uneven: Accept dimensions that the mesh axes do not divide.
    """
    if spec is None:
        return None
    try:
        return _convert(spec, view, leaf.shape, uneven)
    except SpecError as wrong:
        line = location() if callable(location) else location
        where = f"{source} of {leaf}" + (f", {line}" if line else "")
        raise SpecError(f"{source}: {wrong.what}", where=where, why=wrong.why, fix=wrong.fix) from None


def check_spec(spec: object, view: MeshView, source: str, location: str) -> None:
    """Checks a user's spec that no value has, as a rule that matches nothing: the mesh has its axes, and each is used once.

    Raises SpecError if the spec does not fit the mesh.
    """
    if spec is None:
        return
    rank = len(spec.dims) if isinstance(spec, TensorSharding) else len(getattr(getattr(spec, "spec", spec), "partitions", ()))
    try:
        _convert(spec, view, (0,) * rank, False)  # every number of shards divides 0
    except SpecError as wrong:
        raise SpecError(f"{source}: {wrong.what}", where=f"{source}, {location}", why=wrong.why, fix=wrong.fix) from None


def to_fitting_sharding(spec: object, leaf: Leaf, source: str, call: UserCall) -> tuple[TensorSharding | None, list[Finding]]:
    """As `to_tensor_sharding`; where `Options.indivisible` is `"drop"`, without axes that do not divide dimensions, which is a finding.

    Raises SpecError if the spec does not fit the value or the mesh.
    """
    view, drops = call.view, call.settings.options.indivisible == "drop"
    sharding = to_tensor_sharding(spec, view, leaf, source, uneven=drops, location=call.location)
    if sharding is None or not drops:
        return sharding, []
    fitting = sharding.with_dims(map(functools.partial(_dividing, view.dialect_mesh), leaf.shape, sharding.dims))
    if fitting is sharding:
        return sharding, []
    size = local_bytes(TensorType(leaf.shape, leaf.dtype), fitting, {MESH_NAME: view.dialect_mesh})
    cut = [(d, n, dim) for d, (n, dim) in enumerate(zip(leaf.shape, sharding.dims)) if n % dim.shards(view.dialect_mesh)]
    message = "; ".join(
        f"dimension {d} of size {n} is not a multiple of {dim.shards(view.dialect_mesh)} ({_sizes(dim, view)})" for d, n, dim in cut
    )
    fix = ", ".join(f"make dimension {d} {nearest(n, dim.shards(view.dialect_mesh))}" for d, n, dim in cut)
    remark = f"{source} says {sharding_text(sharding)}, and it is cut by {sharding_text(fitting)}: {message}"
    return fitting, [Finding("indivisible", remark, leaf.path, call.place, graded(size), size, fix)]


def _dividing(mesh: Mesh, size: int, dim: DimensionSharding) -> DimensionSharding:
    """The first axes of a dimension, as many as divide it together."""
    count = next(k for k in range(len(dim.axes), -1, -1) if size % DimensionSharding(dim.axes[:k]).shards(mesh) == 0)
    return dim if count == len(dim.axes) else DimensionSharding(dim.axes[:count], dim.is_closed)


def host_kind(value: Any) -> str:
    """The memory kind of an array, a type, a `ShapeDtypeStruct` or a `NamedSharding` in the host's memory; empty for others."""
    sharding = value if isinstance(value, NamedSharding) else getattr(value, "sharding", None)
    kind = getattr(sharding, "memory_kind", None) or ""
    if kind.endswith("_host") and isinstance(sharding, NamedSharding) and not _in_device_memory(sharding):
        return kind
    aval = jax.typeof(value) if isinstance(value, jax.Array) else value
    return "pinned_host" if getattr(aval, "memory_space", None) is jax.memory.Space.Host else ""


def refuse_host_memory(value: Any, where: str, *, is_result: bool = False) -> None:
    """Raises SpecError if an argument, or what a function is traced to return, is in the host's memory."""
    if not host_kind(value):
        return
    if is_result:
        what, fix = "result is moved to", "return it as it is, and move it after the call, jax.device_put(y, jax.memory.Space.Host)"
    else:
        what, fix = "argument is in", "move it before the call, jax.device_put(x, jax.memory.Space.Device)"
    raise SpecError(f"the {what} the host's memory", where=where, why="stages hand on arrays in the memory of devices", fix=fix)


@functools.lru_cache(maxsize=4096)
def _convert(spec: object, view: MeshView, shape: tuple[int, ...], uneven: bool) -> TensorSharding:
    if isinstance(spec, PartitionSpec):
        sharding = _from_partition_spec(spec, view, len(shape))
    elif isinstance(spec, NamedSharding):
        if not same_axes(view, spec.mesh):
            raise _other_mesh(f"the sharding {spec.spec}", spec.mesh, view)
        sharding = _from_partition_spec(spec.spec, view, len(shape))
    elif isinstance(spec, TensorSharding):
        sharding = _from_tensor_sharding(spec, view)
    elif isinstance(spec, SingleDeviceSharding):
        raise _on_one_device()
    else:
        raise SpecError(
            f"{spec!r} is not a sharding",
            why=f"expected a PartitionSpec, NamedSharding, TensorSharding or None, found {type(spec).__name__}",
            fix="write P('axis', None), P() to replicate, or None to let propagation decide",
        )
    if isinstance(spec, TensorSharding) or sharding.unreduced:  # whole axes, each of which is used once, break no rule
        try:
            verify_sharding(sharding, shape, view.dialect_mesh)
        except ShardyError as error:
            fix = f"write a sharding of {len(shape)} dimensions, each with its own axes"
            raise SpecError(str(error), why="the sharding breaks a rule of the dialect", fix=fix) from None
    _check_fit(sharding, view, shape, uneven)
    return sharding


def has_rank(spec: object, rank: int) -> bool:
    """Whether a sharding may be of a value with so many dimensions."""
    if isinstance(spec, TensorSharding):
        return len(spec.dims) == rank
    spec = spec.spec if isinstance(spec, NamedSharding) else spec
    return not isinstance(spec, PartitionSpec) or len(spec.partitions) <= rank


def _in_device_memory(sharding: NamedSharding) -> bool:
    kind, mesh = sharding.memory_kind, sharding.mesh
    return kind in (None, "device") or (isinstance(mesh, JaxMesh) and kind == mesh.devices.flat[0].default_memory().kind)


def mesh_of(specs: object) -> JaxMesh | AbstractMesh | None:
    """The mesh of the first `NamedSharding` in a tree of specs; None where there is none."""
    for spec in jax.tree.leaves(specs, is_leaf=is_spec_leaf):
        if isinstance(spec, NamedSharding):
            return spec.mesh
    return None


def _from_partition_spec(spec: PartitionSpec, view: MeshView, rank: int) -> TensorSharding:
    entries = spec.partitions
    if len(entries) > rank:
        raise SpecError(
            f"{_spec_text(spec)} has {len(entries)} {'entry' if len(entries) == 1 else 'entries'} for a value of rank {rank}",
            why="a spec has at most one entry per dimension",
            fix=("drop it" if len(entries) == 1 else f"drop {len(entries) - rank} of them")
            + (", or use None to let propagation decide" if rank == 0 else ""),
        )
    for name in spec.unreduced:
        if name not in view.sizes:
            raise _unknown_axis(str(name), view)
    kind = getattr(getattr(spec, "unreduced_kind", None), "name", "sum")  # later versions of JAX have it
    if spec.unreduced and kind != "sum":
        what = f"{_spec_text(spec)} asks for partial results of a {kind}"
        raise SpecError(what, why="a plan can only sum the parts along unreduced axes", fix="leave unreduced_kind= out")
    dims = []
    for entry in (*entries, *(None for _ in range(rank - len(entries)))):
        if entry is PartitionSpec.UNCONSTRAINED:
            dims.append(DimensionSharding((), False))
            continue
        names = () if entry is None else entry if isinstance(entry, tuple) else (entry,)
        for name in names:
            if name not in view.sizes:
                raise _unknown_axis(str(name), view)
        dims.append(DimensionSharding(tuple(AxisRef(name) for name in names), True))
    return TensorSharding(MESH_NAME, tuple(dims), (), tuple(AxisRef(name) for name in view.auto_mesh.axis_names if name in spec.unreduced))


def _from_tensor_sharding(spec: TensorSharding, view: MeshView) -> TensorSharding:
    if isinstance(spec.mesh, Mesh):
        if spec.mesh.is_maximal:
            raise _on_one_device()
        if spec.mesh.shape != view.dialect_mesh.shape:
            raise _other_mesh("the sharding", spec.mesh, view)
    for name in [axis.name for axis in (*spec.dim_axes(), *spec.replicated, *spec.unreduced)]:
        if name not in view.sizes:
            raise _unknown_axis(name, view)
    return TensorSharding(MESH_NAME, spec.dims, spec.replicated, spec.unreduced)


def _on_one_device() -> SpecError:
    return SpecError(
        "the sharding is on a single device",
        why="a maximal mesh (one device) puts the whole value on that device; it cannot be mixed with a mesh of several axes",
        fix="use P() to replicate the value, or shard it over an axis",
    )


def _other_mesh(sharding: str, mesh: Any, view: MeshView) -> SpecError:
    axes = ", ".join(f"{name}={mesh.shape[name]}" for name in mesh.axis_names) or "no axes"
    return SpecError(
        f"{sharding} is over another mesh",
        why=f"it refers to {axes}; the mesh of this function has {view.describe()}",
        fix="build all shardings over one mesh, or pass a bare PartitionSpec",
    )


def _check_fit(sharding: TensorSharding, view: MeshView, shape: tuple[int, ...], uneven: bool) -> None:
    seen: set[str] = set()
    for d, dim in enumerate(sharding.dims):
        for axis in dim.axes:
            if axis.pre_size is None and axis.name in seen:
                raise SpecError(
                    f"mesh axis {axis.name!r} is used twice",
                    why=f"it shards dimension {d} and another part of the same value; an axis can shard a value once",
                    fix="give each dimension its own axis",
                )
            if axis.pre_size is None:
                seen.add(axis.name)
        num_shards = dim.shards(view.dialect_mesh)
        if shape[d] % num_shards and not uneven:
            raise _indivisible(d, shape[d], num_shards, dim, view)


def _indivisible(d: int, size: int, num_shards: int, dim: DimensionSharding, view: MeshView) -> SpecError:
    fits = [name for name, n in view.sizes.items() if n > 1 and size % n == 0]
    return SpecError(
        f"dimension {d} of size {size} is not divisible by {num_shards}",
        why=f"it is sharded over {_sizes(dim, view)}, {num_shards} ways",
        fix=f"the nearest divisible size{' is' if size < num_shards else 's are'} {nearest(size, num_shards)}"
        + (f"; axes that divide {size}: {', '.join(map(repr, fits))}" if fits else ""),
    )


def _sizes(dim: DimensionSharding, view: MeshView) -> str:
    return " x ".join(f"{axis.name}={view.dialect_mesh.axis_size(axis)}" for axis in dim.axes)


def _unknown_axis(name: str, view: MeshView) -> SpecError:
    return SpecError(f"unknown mesh axis {name!r}", why=f"the mesh has {view.describe()}", fix=did_you_mean(name, view.sizes))


def _spec_text(spec: PartitionSpec) -> str:
    entries = ("P.UNCONSTRAINED" if e is PartitionSpec.UNCONSTRAINED else repr(e) for e in spec.partitions)
    return f"P({', '.join(entries)})"


def is_spec_function(specs: object) -> bool:
    """Whether `in_shardings` or `out_shardings` is a function of a path and a leaf; a class of pytrees that can be called is a tree."""
    return callable(specs) and jax.tree_util.treedef_is_leaf(jax.tree.structure(specs))


def as_planned(values: Sequence[PlannedValue], source: str) -> Callable[[str, object], TensorSharding]:
    """The spec of each leaf where a plan stands for specs."""
    shardings = {value.path: value.sharding or TensorSharding.closed(MESH_NAME, len(value.shape)) for value in values}
    ranks = {value.path: len(value.shape) for value in values}

    def spec(path: str, leaf: object) -> TensorSharding:
        if path not in shardings:
            raise SpecError(
                f"{source}: the plan has no {path!r}",
                where=f"{source} of {path}",
                why="it is the plan of a function with other arguments or results",
                fix=did_you_mean(path, shardings),
            )
        planned = shardings[path]
        return planned.with_dims(planned.dims[: ranks[path]]).closed_like()  # PRNG keys are stored as several numbers

    return spec


def call_specs(specs: Sequence[object], leaves: Sequence[Leaf], structs: Sequence[jax.ShapeDtypeStruct]) -> list[object]:
    """Replaces specs that are functions by their results, leaf by leaf."""
    return [spec(leaf.path, struct) if callable(spec) else spec for spec, leaf, struct in zip(specs, leaves, structs, strict=True)]


def broadcast_specs(specs: object, tree: object, source: str, root: Callable[[str], str], location: str = "") -> list[object]:
    """One spec per leaf of `tree`, from specs that are a prefix of it. Raises SpecError if `specs` is not a prefix of `tree`.

    Args:
        specs: A tree of specs; a list at the top counts as a tuple where the values are one, as in `jax.jit`.
    """
    if isinstance(specs, list) and not isinstance(tree, list):
        specs = tuple(specs)
    leaves, prefix = jax.tree.flatten(specs, is_leaf=is_spec_leaf)
    try:
        parts = prefix.flatten_up_to(tree)
    except (ValueError, TypeError):
        raise _no_prefix(specs, tree, source, root, location) from None
    out: list[object] = []
    for spec, part in zip(leaves, parts):
        out += [spec] * jax.tree.structure(part).num_leaves
    return out


def _no_prefix(specs: object, tree: object, source: str, root: Callable[[str], str], location: str) -> SpecError:
    path, spec, value = _first_difference(specs, tree, "")
    where = f"{source} at {root(path) or 'the top'}" + (f", {location}" if location else "")
    mine, theirs = one_level(spec), one_level(value)
    whole = "the result" if source == "out_shardings" else root("") or "the arguments"
    fix = "give one spec for the whole subtree, or the same keys as the value has"
    if theirs is None and isinstance(spec, tuple):
        why = f"the spec is a tuple and the value is {_array_text(value)}"
        fix = "write P(...) instead of a plain tuple for the sharding of one array"
    elif type(spec) is not type(value):
        why = f"the specs have a {type(spec).__name__} where the value has a {type(value).__name__}"
    elif isinstance(spec, tuple):
        why = f"the specs are a {type(spec).__name__} of {len(mine or ())}, the value is one of {len(theirs or ())}"
        if whole == "the arguments" and not path:
            fix = f"{source} has one entry per positional argument that is not static"
    else:
        have, need = [k for k, _ in mine or ()], [k for k, _ in theirs or ()]
        extra, missing = [k for k in have if k not in need], [k for k in need if k not in have]
        parts = [f"not in the value: {', '.join(extra)}"] if extra else []
        parts += [f"missing from the specs: {', '.join(missing)}"] if missing else []
        why = "; ".join(parts) or "the two have different structure"
    return SpecError(f"{source} is not a prefix of {whole}", where=where, why=why, fix=fix)


def _array_text(value: object) -> str:
    """An array by its type, anything else by its class."""
    try:
        aval = jax.typeof(value)
    except TypeError:
        return f"a single leaf of class {type(value).__name__}"
    return f"one array, {aval.dtype}[{','.join(map(str, aval.shape))}]"


def _first_difference(spec: object, value: object, path: str) -> tuple[str, object, object]:
    if is_spec_leaf(spec):
        return path, spec, value
    mine, theirs = one_level(spec), one_level(value)
    if mine is None or theirs is None or type(spec) is not type(value) or [k for k, _ in mine] != [k for k, _ in theirs]:
        return path, spec, value
    for (key, a), (_, b) in zip(mine, theirs):
        try:
            jax.tree.structure(a, is_leaf=is_spec_leaf).flatten_up_to(b)
        except (ValueError, TypeError):
            return _first_difference(a, b, path + key)
    return path, spec, value
