"""What of a plan outlives its process: texts, files, and the comparison with another plan."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Self, cast

if TYPE_CHECKING:
    from shardy_py.plan.diff import PlanDiff
    from shardy_py.plan.plan import Plan


class Stored:
    """What `Plan` offers for plans that are kept."""

    __slots__ = ()

    def to_json(self) -> str:
        """The whole plan as JSON text with a version; see `from_json`.

        Equal plans are equal texts in every process: there are no timings in it. Under `lowering="shard_map"` the collectives and the
        program of each device are part of it, for which the program is partitioned.
        """
        from shardy_py.plan.store.document import write_plan

        return write_plan(cast("Plan", self))

    @classmethod
    def from_json(cls, text: str | bytes) -> Plan:
        """A plan from the text of `to_json`; nothing of the text is run, and JAX is not needed.

        It answers as the plan that was stored. `input_shardings` and `output_shardings`, which do need JAX, are over an `AbstractMesh`, in
        dicts, lists and tuples; what was a node of another class is a dict.

        Args:
            text: The text.

        Raises:
            StoreError: It is no stored plan, a damaged one, or one of another version.
            TypeError: It is no text.
        """
        from shardy_py.plan.store.document import read_plan

        if not isinstance(text, str | bytes | bytearray):
            raise TypeError(f"from_json takes the text of to_json, got a {type(text).__name__}; Plan.load reads a file")
        return read_plan(text)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes `to_json` to a file.

        Args:
            path: The file, replaced as a whole; packed by gzip where its name ends with `.gz`.

        Raises:
            OSError: It cannot be written.
        """
        from shardy_py.plan.store.files import save_text

        save_text(self.to_json(), path)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Plan:
        """A plan from a file that `save` wrote; see `from_json`.

        Args:
            path: The file.

        Raises:
            OSError: It cannot be read.
            StoreError: It is no stored plan, a damaged one, or one of another version.
        """
        from shardy_py.plan.store.files import load_plan

        return load_plan(path)

    def diff(self, other: Plan) -> PlanDiff:
        """What differs in another plan: shardings, values that were added or removed, reshards, collectives, findings.

        Values are found again by path, and intermediates by what they are and what is around them, not by source line or number.

        Args:
            other: The plan that this one is changed to.

        Returns:
            The differences; false where there are none.

        Raises:
            TypeError: The other is no plan.
        """
        from shardy_py.plan.diff import diff_plans

        if not isinstance(other, Stored):
            raise TypeError(f"diff takes a plan, got a {type(other).__name__}; Plan.load reads one from a file")
        return diff_plans(cast("Plan", self), other)

    def abstract_state(self, argument: str | int | None = None, *, mesh: Any = None, like: Any = None) -> Any:
        """The arguments as `jax.ShapeDtypeStruct`s with their planned shardings: what Orbax restores a checkpoint to.

        Args:
            argument: Name or position of an argument; None for all of them, as in `input_shardings`.
            mesh: The mesh that the shardings are over, with the axes of the plan: a `jax.sharding.Mesh`, or a mapping of names to sizes,
                which takes the first devices there are. By default the mesh that was planned for. That has no devices where it was an
                `AbstractMesh`, or a mapping before JAX started any, or where the plan was read from a file; a restore needs devices.
            like: A tree of arrays or structs whose structure to give. A plan that was read from a file knows dicts, lists and tuples, and
                gives other nodes, a `TrainState` or the states of optax, as dicts of their fields unless `like` has them.

        Raises:
            ShardyError: There is no such argument, the mesh has other axes, or `like` has other leaves.

        Example:
            >>> import jax, jax.numpy as jnp, shardy_py as sp
            >>> params = {"w": jax.ShapeDtypeStruct((8, 16), jnp.float32)}
            >>> plan = sp.auto_shard(lambda params: params["w"].sum(), mesh={"x": 4}, in_shardings=jax.P("x")).plan(params)
            >>> plan.abstract_state("params")["w"].sharding.spec
            P('x',)
        """
        trees = cast("Plan", self).trees
        return None if trees is None else trees.abstract(cast("Plan", self), argument, mesh, like)

    def place(self, args: Any, *, mesh: Any = None) -> Any:
        """Arguments on the devices of the plan, sharded as planned.

        As `jax.device_put(args, plan.input_shardings)`, with classes that refuse shardings, and with several processes, each of which
        passes the whole value.

        Args:
            args: The tuple of arguments, or `(args, kwargs)` where the plan has keyword arguments, as in `input_shardings`.
            mesh: A mesh with devices; by default that of the plan, which for a mapping of axis names is the first devices there are.

        Raises:
            ShardyError: The arguments are not those that were planned for.
            MeshError: The mesh has other axes, or no devices.

        Example:
            >>> import jax, jax.numpy as jnp, shardy_py as sp
            >>> double = sp.auto_shard(lambda x: x * 2, mesh={"data": 4}, in_shardings=jax.P("data"))
            >>> (x,) = double.plan(jnp.ones(8)).place((jnp.ones(8),))
            >>> x.sharding.spec, len(x.devices())
            (P('data',), 4)
        """
        trees = cast("Plan", self).trees
        return None if trees is None else trees.place(cast("Plan", self), args, mesh)

    def __reduce__(self) -> tuple[Any, ...]:
        """Through `to_json`, with the timings."""
        from shardy_py.plan.store.document import unpickled

        return (unpickled, (self.to_json(), dict(cast("Plan", self).timings)))

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self
