"""Checkpoints of a pipeline's state, one per step: Orbax writes the whole tree, each process its own leaves."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax

from shardy_py.pipelines.errors import PipelineError
from shardy_py.pipelines.jaxprs import is_extended_dtype
from shardy_py.pipelines.transfers import is_here, stub

try:
    import orbax.checkpoint as ocp
    from etils import epath
except ImportError as error:
    raise ImportError('checkpoints of a pipeline are written by Orbax: pip install "shardy_py[checkpoint]"') from error


@dataclass(frozen=True)
class _Shards:
    """The shards of an array in this process. Orbax takes an array of one process for one that is nobody else's, and refuses it."""

    array: jax.Array

    def __getattr__(self, name: str) -> Any:
        return getattr(self.array, name)


class _StageArrays(ocp.type_handlers.ArrayHandler):
    """Lets every process write the arrays of its stages, with their metadata."""

    def __init__(self) -> None:
        super().__init__(primary_host=None, enable_write_sharding_file=False)

    async def serialize(self, values: Sequence[jax.Array], infos: Sequence[Any], args: Sequence[Any] | None = None) -> Sequence[Any]:
        here = [i for i, value in enumerate(values) if value.addressable_shards]
        if not here:
            return []
        shards: Any = [_Shards(values[i]) for i in here]
        return await super().serialize(shards, [infos[i] for i in here], None if args is None else [args[i] for i in here])


Together = Callable[[Callable[[], Any]], Any]
"""Gives what a function gives in which the processes wait for each other."""


def save(folder: Any, step: int | None, state: Any, together: Together) -> int:
    """Writes a checkpoint, which counts when all processes have written their part of it; its step, by default the next one."""
    _path(folder).mkdir(parents=True, exist_ok=True)
    with together(lambda: _manager(folder, clean=True)) as manager:
        steps = manager.all_steps()
        number: int = 1 + max(steps, default=-1) if step is None else step
        if number in steps:
            raise PipelineError(
                f"there is a checkpoint of step {number} in {folder}", where="Pipelined.save(step=)", why="none is ever overwritten",
                fix="pass another step, or none for the next one",
            )  # fmt: skip
        plain = jax.tree.map(lambda x: jax.random.key_data(x) if is_extended_dtype(x.dtype) else x, state)
        together(lambda: manager.save(number, args=ocp.args.PyTreeSave(plain), force=True))
        return number


def restore(folder: Any, step: int | None, structs: Any, shardings: Any, together: Together) -> Any:
    """The state of a step, by default of the last; every process reads what it holds."""

    def plain(struct: Any) -> Any:
        return jax.eval_shape(jax.random.key_data, struct) if is_extended_dtype(struct.dtype) else struct

    def arguments(struct: Any, there: Any) -> Any:
        return ocp.ArrayRestoreArgs(sharding=there, global_shape=plain(struct).shape, dtype=plain(struct).dtype)

    def leaf(struct: Any, there: Any, read: Any) -> jax.Array:
        if read is ocp.PLACEHOLDER:
            return stub(struct.shape, struct.dtype, there)
        return jax.random.wrap_key_data(read, impl=_impl(struct)) if is_extended_dtype(struct.dtype) else read

    item = jax.tree.map(lambda struct, there: plain(struct) if is_here(there) else ocp.PLACEHOLDER, structs, shardings)
    with together(lambda: _manager(folder, clean=False)) as manager:
        steps = manager.all_steps()
        step = max(steps, default=-1) if step is None else step
        if step not in steps:
            raise PipelineError(
                f"{folder} has no checkpoint" + (f" of step {step}" if steps else ""), where="Pipelined.restore",
                why=f"there are those of steps {', '.join(map(str, sorted(steps)))}" if steps else "no save has been completed there",
                fix="pass one of them as step=, or none for the last" if steps else "pass the folder of run.save, or start with run.init",
            )  # fmt: skip
        args = ocp.args.PyTreeRestore(item, jax.tree.map(arguments, structs, shardings))
        read = together(lambda: manager.restore(step, args=args))
    return jax.tree.map(leaf, structs, shardings, read)


def steps_in(folder: Any) -> list[int]:
    """The steps whose checkpoints are complete."""
    return sorted(ocp.utils.checkpoint_steps(_path(folder)))


def _impl(struct: Any) -> Any:
    """Of the algorithm of keys."""
    impls = list[Any]()
    jax.eval_shape(lambda key: impls.append(jax.random.key_impl(key)), struct)
    return impls[0]


def _manager(folder: Any, *, clean: bool) -> Any:
    """The checkpoints in a folder; all processes call this, and what they do with it. What a killed save has left is removed."""
    skipped = type(ocp.PLACEHOLDER), ocp.type_handlers.get_type_handler(type(ocp.PLACEHOLDER))
    registry = ocp.type_handlers.create_type_handler_registry((jax.Array, _StageArrays()), skipped)
    processes = ocp.options.MultiprocessingOptions(active_processes={*range(jax.process_count())}, barrier_sync_key_prefix="shardy_py")
    options = ocp.CheckpointManagerOptions(
        enable_async_checkpointing=False, cleanup_tmp_directories=clean, create=False, multiprocessing_options=processes
    )
    handler = ocp.PyTreeCheckpointHandler(type_handler_registry=registry, multiprocessing_options=processes)
    return ocp.CheckpointManager(_path(folder), options=options, item_handlers=handler)


def _path(folder: Any) -> epath.Path:
    path = os.fspath(folder)
    return epath.Path(path if "://" in path else os.path.abspath(path))
