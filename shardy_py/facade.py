"""`Plan`, the user's view of a plan: the record with its analyses, texts, pages and files as methods."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

from shardy_py.cost.hardware import Hardware
from shardy_py.dialect.format import printable, sizes_text
from shardy_py.errors import ShardyError, UserError
from shardy_py.files import write_file
from shardy_py.ir.printer import print_program
from shardy_py.plan import costing
from shardy_py.plan.checks.table import accepted, findings_of
from shardy_py.plan.code import Code, Style, as_code
from shardy_py.plan.collectives import Collective, CollectivesByModule, by_module
from shardy_py.plan.compiled import CompiledProgram, compiled_of
from shardy_py.plan.cost_analysis import CostAnalysis
from shardy_py.plan.diff import PlanDiff, diff_plans
from shardy_py.plan.executed import collectives_of, explicit_of, reshards_of
from shardy_py.plan.explain import explain
from shardy_py.plan.explanation import Explanation
from shardy_py.plan.findings import Findings
from shardy_py.plan.memory import analysis as memory_analysis
from shardy_py.plan.memory.analysis import MemoryAnalysis
from shardy_py.plan.progress import Timings
from shardy_py.plan.record import PlanError, PlanRecord
from shardy_py.plan.reshards import Reshard
from shardy_py.plan.store.document import load_plan, read_plan, save_text, write_plan
from shardy_py.plan.values import PlannedValue
from shardy_py.view.html.page import Frame, page
from shardy_py.view.perfetto import timeline
from shardy_py.view.text import card, plan_text


def _unpickled(kind: type[Plan], document: str, timings: dict[str, float]) -> Plan:
    return replace(read_plan(document, kind), timings=Timings(timings))


@dataclass(frozen=True, eq=False, repr=False)
class Plan(PlanRecord):
    """The shardings of a function's inputs, outputs and intermediates, and how they came about.

    `PlanRecord` lists its attributes.

    Example:
        >>> import jax, jax.numpy as jnp, shardy_py as sp
        >>> from jax.sharding import PartitionSpec as P
        >>> layer = sp.auto_shard(lambda w, x: x @ w, mesh={"data": 4, "model": 2}, in_shardings=(P(None, "model"), P("data")))
        >>> plan = layer.plan(jax.ShapeDtypeStruct((8, 8), jnp.float32), jax.ShapeDtypeStruct((8, 8), jnp.float32))
        >>> for value in (*plan.inputs, *plan.outputs):
        ...     print(value)
        w: float32[8,8@model]
        x: float32[8@data,8]
        result: float32[8@data,8@model]
    """

    @property
    def input_shardings(self) -> Any:
        """A pytree of `NamedSharding` of the structure of the tuple of arguments; with keyword arguments `(args, kwargs)`."""
        return None if self.pytrees is None else self.pytrees.trees(self).inputs(self)

    @property
    def output_shardings(self) -> Any:
        """A pytree of `NamedSharding` of the structure of the result."""
        return None if self.pytrees is None else self.pytrees.trees(self).outputs(self)

    @property
    def collectives(self) -> tuple[Collective, ...]:
        """The collectives that a call runs, with bytes and trips.

        Under `lowering="shard_map"` those of the partitioned program, which is made when they are first asked for; under
        `lowering="jit"` those that XLA's partitioner is predicted to make on a CPU, where it has an all-reduce and a slice in place of a
        reduce-scatter; benchmarks/README.md says how far that is from what it makes.
        """
        return collectives_of(self)

    def collectives_by_module(self, depth: int | None = None) -> CollectivesByModule:
        """The collectives of each module, those of the forward and of the backward pass apart, with counts and bytes of one call.

        Modules are named scopes: those of Flax, `jax.named_scope`, `shardy_py.named_computation`. Each has the collectives of those inside
        it too; `""` is the whole.

        Args:
            depth: Levels of modules; None for all.

        Raises:
            ShardyError: The depth is less than 0.

        Returns:
            A mapping of paths of modules, whose text is a table.

        Example:
            >>> import jax, jax.numpy as jnp, shardy_py as sp
            >>> def loss(w, x):
            ...     with jax.named_scope("layer"):
            ...         return jnp.sum(x @ w)
            >>> step = sp.auto_shard(jax.grad(loss), mesh={"data": 4}, in_shardings=(None, jax.P("data")))
            >>> print(step.plan(jnp.ones((8, 8)), jnp.ones((8, 8))).collectives_by_module())
            module   forward  backward
            (all)    none     1 all_gather  192 B
              layer  none     1 all_gather  192 B
        """
        return by_module(self.collectives, depth)

    @property
    def region_jaxpr(self) -> Any:
        """The program of one device as a jaxpr, its collectives among the equations: what the region of `lowering="shard_map"` runs.

        Axes of the mesh of which the plan uses parts are several there. None under `lowering="jit"`, where XLA makes that program, and of
        a plan that was read from a file.
        """
        return None if self.partitioner is None or self.lowering == "jit" else self.partitioner.region_jaxpr(self)

    @property
    def reshards(self) -> tuple[Reshard, ...]:
        """The movements of data in a call, in program order, each with its collectives and its reason.

        Together they are `collectives`. Under `lowering="shard_map"` each is of the arrays of one device. `shardy_reshards` are those
        that Shardy makes explicit for the plan's shardings, whatever runs.
        """
        return reshards_of(self)

    @property
    def shardy_reshards(self) -> tuple[Reshard, ...]:
        """The reshards that Shardy makes explicit for the plan's shardings, in program order: values that change their sharding, and sums.

        Computed when first read. The program that runs may move data otherwise; see `Plan.reshards`.
        """
        return explicit_of(self).reshards

    @property
    def findings(self) -> Findings:
        """The findings, in the order of severity and bytes, one for each cause; `plan/checks/table.py` lists the kinds.

        The plan is checked when they are first asked for, and unless under `lowering="jit"` partitioned.
        """
        return findings_of(self)

    def check(self, strict: bool = False, *, ignore: str | Iterable[str] = ()) -> Findings:
        """The findings of the plan; raises if one is an error.

        Args:
            strict: Raise for warnings too.
            ignore: Findings that are accepted, and left out: `"unused-axis"` is a kind, `"replicated-large:params['table']"` a kind and a
                path or a pattern of paths: the last components, as in `rules=`, or all of it with `*` for any characters.

        Raises:
            PlanError: There are such findings.
            ShardyError: `ignore` names no kind of finding.
        """
        findings = accepted(self.findings, ignore)
        bad = [f for f in findings if f.severity == "error" or (strict and f.severity == "warning")]
        if bad:
            listed = "\n".join(f"  {group}" for group in bad)
            raise PlanError(f"the plan of {self.name} has {len(bad)} finding{'s' if len(bad) > 1 else ''}\n{listed}")
        return findings

    def explain(self, target: str | PlannedValue, axis: str | None = None, *, dim: int | None = None) -> Explanation:
        """Why a value has the sharding it has, back to the annotations; or why it lacks an axis.

        Args:
            target: A path (`params['w']`, `result[0]`), the name of an intermediate (`%12`, or one given by `checkpoint_name`), one of
                `plan.values`; or `file.py:line`, the path of a scope or module, or a variable of the source, which stand for the last value
                that the forward computation makes there.
            axis: Only this mesh axis; where the value lacks it, why.
            dim: Only this dimension.

        Returns:
            Its text is made for a terminal; `chains` and `missing` have the same for programs.

        Raises:
            PlanError: There is no such value, axis or dimension, or the plan was made without `Options.provenance`.
        """
        return explain(self, target, axis, dim)

    def cost_analysis(
        self, hardware: str | Hardware | None = None, links: Mapping[str, object] | None = None, *, calibrated: bool = True
    ) -> CostAnalysis:
        """The cost of one call on one device: operations, bytes, communication, and seconds by a roofline.

        Args:
            hardware: A name (`"h100"`, `"v5p"`, see `shardy_py.cost.hardware_table`) or a `shardy_py.Hardware` of your own; None for
                operations and bytes only.
            links: Mesh axis -> what it lies on, `"ici"` (or `"nvlink"`), `"dcn"` (or `"network"`), or a `shardy_py.Links`; of
                axes that are left out the coordinates of the mesh's devices decide where they have some, as TPUs have, else
                `shardy_py.cost.hardware.lay_out`.
            calibrated: Take memory's rates and the fixed time of a kernel from what the hardware's compiler assumes, where a table has
                them (v5e, v5p, v6e); False for the plain roofline of its data sheet.

        Returns:
            The analysis; as a mapping it has the names of `jax.stages.Compiled.cost_analysis()`.

        Raises:
            HardwareError: Such hardware is not known.
            LinkError: The links do not fit the mesh.
        """
        return costing.analyse(self, hardware, links, calibrated)

    def memory_analysis(self, hardware: str | Hardware | int | None = None) -> MemoryAnalysis:
        """The memory that one call takes on one device, from liveness over the program; nothing is compiled.

        Args:
            hardware: The device that it should fit on: a name (`"h100"`, `"v5e"`), a `Hardware` of your own, or a number of bytes.

        Returns:
            Sizes under the names of `jax.stages.Compiled.memory_analysis()`, the peak, where it is and what it is made of, and the
            bytes at every step.

        Raises:
            HardwareError: Such hardware is not known.
        """
        return memory_analysis.analyse(self, hardware)

    def compile_for(self, topology: str | None = None, *, hardware: str | Hardware | int | None = None) -> CompiledProgram:
        """Compiles the program, and says what the compiler made of it: memory, collectives, donated arguments. Nothing runs.

        Args:
            topology: A slice of TPUs, `"v5e:2x4"`, as many as the mesh has devices, which JAX lays out on it; none need be there. Their
                compiler runs in a process of its own and takes seconds to minutes; `pip install "shardy_py[tpu]"` brings it. By default
                the devices of this process.
            hardware: As for `memory_analysis`; the device that it should fit on, in place of the chip or the devices.

        Returns:
            The program, beside the plan, whose text, page and comparisons have a line of it from now on. Where the plan is for another
            platform, the function is planned again for this one.

        Raises:
            CompileError: There is no such topology, or its compiler is not installed, or failed.
            HardwareError: Such hardware is not known.
            MeshError: There are too few devices.
            UserError: The plan was read from a file, or is one of MLIR text.
        """
        if self.variants is None:
            raise UserError(
                f"the plan of {self.name} was read from a file",
                where="Plan.compile_for",
                why="a stored plan has no function to compile",
                fix="plan again, function.plan(*args).compile_for(...)",
            )
        answer = self.variants.compiled(self, topology, hardware)
        compiled_of(self)[answer.target] = answer
        return answer

    def as_text(
        self,
        *,
        where: str | Callable[[PlannedValue], object] | None = None,
        values: bool = True,
        depth: int | None = None,
        limit: int | None = 60,
        width: int = 100,
    ) -> str:
        """The plan as text; the same plan gives the same text in every process.

        Under `lowering="jit"` the head says so. Inputs and outputs come by path, intermediates by module and source line, each with its
        bytes on one device; then `collectives` and `findings`. Layers that are alike are one (`[0..23]`). A part with more lines than
        `limit` is cut to the values with the most bytes, replicated ones first among equals, and says what it leaves out. Broadcasts and
        iotas, which XLA makes inside of what reads them, are shown only where asked for.

        Args:
            where: Shows only some values, with their collectives and findings: a string that a path, primitive, `file:line` or module
                contains; one with `*` or `?`, a pattern as in `ignore=` of `check`; or a function of a `PlannedValue`.
            values: Whether to list the intermediates too.
            depth: Levels of paths and modules that are shown; what is below is counted.
            limit: Lines of each part; None for all.
            width: Where sentences are broken.

        Raises:
            TypeError: `where` is neither a string nor a function.
            ShardyError: `depth` or `limit` is less than 1.
        """
        return printable(plan_text(self, values=values, where=where, depth=depth, limit=limit, width=width))

    def __str__(self) -> str:
        return self.as_text()

    def __repr__(self) -> str:
        axes = sizes_text(self.mesh.shape)
        findings = findings_of(self) if findings_of.is_computed(self) else self.planning_findings  # without partitioning for it
        grave = sum(finding.severity != "info" for finding in findings)
        counts = f"{grave} findings, {len(findings) - grave} notes"
        return printable(f"<Plan of {self.name} on {axes}: {len(self.inputs)} inputs, {len(self.outputs)} outputs, {counts}>")

    def _repr_html_(self) -> str | None:
        """The plan in a notebook: peak, communication, findings, mesh, inputs and outputs; `show` has the page."""
        return card(self)

    def show(self, height: int = 640, *, other: Plan | None = None, hardware: str | Hardware | None = None) -> Frame:
        """The page of `save_html` in a cell of a notebook.

        It is shown as the last expression of a cell, or by `display(plan.show())`.

        Args:
            height: Of the frame, in pixels.
            other: As for `save_html`.
            hardware: As for `save_html`.

        Raises:
            HardwareError: Such hardware is not known.
            ShardyError: The height is not a positive number.
            TypeError: `other` is not a plan.
        """
        if not isinstance(height, int) or height < 1:
            raise ShardyError(f"height is {height!r}", where="Plan.show", why="it counts pixels", fix="a number such as 640")
        return Frame(f"plan of {self.name}", height, page(self, other, hardware))

    def save_html(self, path: str | os.PathLike[str], other: Plan | None = None, *, hardware: str | Hardware | None = None) -> None:
        """Writes one page that shows all of the plan and loads nothing from anywhere.

        It lists every value by path, or by module and source line, and shows for each the part that every device holds, why, and where it
        moves; charts of memory and communication; findings. It is made for a recent browser, by mouse or by keyboard.

        Args:
            path: The file.
            other: A plan to show beside this one, with what differs marked.
            hardware: As for `cost_analysis`; with it the page says how long a call takes and whether it fits.

        Raises:
            HardwareError: Such hardware is not known.
            TypeError: `other` is not a plan.
            OSError: The file cannot be written.
        """
        write_file(path, page(self, other, hardware))

    def as_code(self, style: Style = "constraints") -> Code:
        """The plan as code to paste into the program, which then runs under plain `jax.jit`, sharded as planned, without this library.

        Args:
            style: `"constraints"` for a mesh of Auto axes: `in_shardings`, `out_shardings`, and `jax.lax.with_sharding_constraint` in the
                fewest lines. `"explicit"` for one of Explicit axes: `out_sharding=` or `jax.sharding.auto_axes` where JAX has no rule,
                and `jax.reshard`. `"logical"` for a model whose parameters name their dimensions, by Flax: logical axis rules.

        Returns:
            The code; `print` it. Its `setup` makes the mesh and the shardings, its `edits` are lines of the source as they should read.

        Raises:
            ShardyError: There is no such style, or the plan cannot be written in it: it was read from a file, or cuts along a part of
                a mesh axis.
        """
        return as_code(self, style)

    def as_sdy(self) -> str:
        """The program with its final shardings, as an MLIR module of StableHLO and SDY ops in their generic form.

        It is made for reading and comparing: attributes that say nothing of shardings, such as the direction of a comparison, are not in a
        plan, so `shardy-py opt` reads the text of programs whose ops need none. For a module that compiles, see `lower(...).as_text()` of
        the decorated function.
        """
        return print_program(self.program) + "\n"

    def save_sdy(self, path: str | os.PathLike[str]) -> None:
        """Writes `as_sdy()` to a file.

        Args:
            path: The file.

        Raises:
            OSError: The file cannot be written.
        """
        write_file(path, self.as_sdy())

    def save_perfetto(
        self, path: str | os.PathLike[str], hardware: str | Hardware | None = None, links: Mapping[str, object] | None = None
    ) -> None:
        """Writes the predicted timeline of one call as trace events: ops, collectives per set of mesh axes, live memory.

        Open the file in https://ui.perfetto.dev or chrome://tracing.

        Args:
            path: The file.
            hardware: As for `cost_analysis`; without it, lengths are bytes at nominal speeds.
            links: As for `cost_analysis`.

        Raises:
            HardwareError: Such hardware is not known.
            LinkError: The links do not fit the mesh.
            OSError: The file cannot be written.
        """
        write_file(path, json.dumps(timeline(self, hardware, links), separators=(",", ":"), allow_nan=False) + "\n")

    def to_json(self) -> str:
        """The whole plan as JSON text with a version; see `from_json`.

        Equal plans are equal texts in every process: there are no timings in it. Under `lowering="shard_map"` the collectives and the
        program of each device are part of it, for which the program is partitioned.
        """
        return write_plan(self)

    @classmethod
    def from_json(cls, text: str | bytes) -> Self:
        """A plan from the text of `to_json`; nothing of the text is run, and JAX is not needed.

        It answers as the plan that was stored. `input_shardings` and `output_shardings`, which do need JAX, are over an `AbstractMesh`, in
        dicts, lists and tuples; what was a node of another class is a dict.

        Args:
            text: The text.

        Raises:
            StoreError: It is not a stored plan, a damaged one, or one of another version.
            TypeError: It is no text.
        """
        if not isinstance(text, str | bytes | bytearray):
            raise TypeError(f"from_json takes the text of to_json, got a {type(text).__name__}; Plan.load reads a file")
        return read_plan(text, cls)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes `to_json` to a file.

        Args:
            path: The file, replaced as a whole; packed by gzip where its name ends with `.gz`.

        Raises:
            OSError: It cannot be written.
        """
        save_text(self.to_json(), path)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """A plan from a file that `save` wrote; see `from_json`.

        Args:
            path: The file.

        Raises:
            OSError: It cannot be read.
            StoreError: It is not a stored plan, a damaged one, or one of another version.
        """
        return load_plan(path, cls)

    def diff(self, other: Plan) -> PlanDiff:
        """The differences of another plan: shardings, values that were added or removed, reshards, collectives, findings.

        Values are found again by path, and intermediates by what they are and what is around them, not by source line or number.

        Args:
            other: The plan that this one is changed to.

        Returns:
            The differences; false where there are none.

        Raises:
            TypeError: `other` is not a plan.
        """
        if not isinstance(other, Plan):
            raise TypeError(f"diff takes a plan, got a {type(other).__name__}; Plan.load reads one from a file")
        return diff_plans(self, other)

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
        return None if self.pytrees is None else self.pytrees.trees(self).abstract(self, argument, mesh, like)

    def place(self, args: Any, *, mesh: Any = None) -> Any:
        """Arguments on the devices of the plan, sharded as planned.

        As `jax.device_put(args, plan.input_shardings)`, with classes that refuse shardings, and with several processes, each of which
        passes the whole value.

        Args:
            args: The tuple of arguments, or `(args, kwargs)` where the plan has keyword arguments, as in `input_shardings`.
            mesh: A mesh with devices; by default the plan's mesh, which for a mapping of axis names is the first devices there are.

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
        return None if self.pytrees is None else self.pytrees.place(self, args, mesh)

    def __reduce__(self) -> tuple[Any, ...]:
        """Through `to_json`, with the timings."""
        return (_unpickled, (type(self), self.to_json(), dict(self.timings)))

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self
