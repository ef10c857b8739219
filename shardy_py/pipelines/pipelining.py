"""`pipeline`: a training step that runs as a pipeline over submeshes."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any, Generic, ParamSpec, Required, TypedDict, Unpack, overload

import jax
import numpy as np
from jax.core import Tracer
from jax.sharding import Mesh

from shardy_py.api import nnx_modules
from shardy_py.api.agreement import covering, passed_value
from shardy_py.api.peers import Watch, peers_of
from shardy_py.api.specs import refuse_host_memory
from shardy_py.api.trees import Leaf, location_of, parameter_names
from shardy_py.backends import compare as arrays
from shardy_py.backends.compare import fetch, plain
from shardy_py.cost.hardware import Hardware
from shardy_py.cost.hardware_table import hardware as hardware_named
from shardy_py.cost.quantity import quantity
from shardy_py.dialect.grouping import grouped
from shardy_py.frontends.context import api_boundary, traced_dtype
from shardy_py.pipelines.building import CallSignature, PipelineOptions, PipelineSearch, StagedStep, batch_leaves, build
from shardy_py.pipelines.errors import PipelineError
from shardy_py.pipelines.jaxprs import is_extended_dtype
from shardy_py.pipelines.markers import Marking
from shardy_py.pipelines.orders import Schedule, check_name
from shardy_py.pipelines.placing import meshes_of
from shardy_py.pipelines.planned import check_planner, planned
from shardy_py.pipelines.report import PipelineReport, check_memory, report, stage_memory
from shardy_py.pipelines.runner import Runner, Statistics, statement
from shardy_py.pipelines.transfers import is_global, is_here, placed, stub
from shardy_py.planner.options import Planner


def compare(results: Any, expected: Any, rtol: float) -> float:
    """The largest difference relative to the largest element of each result; raises PipelineError if one exceeds the tolerance."""
    worst = 0.0
    for (path, a), (_, b) in zip(jax.tree_util.tree_flatten_with_path(results)[0], jax.tree_util.tree_flatten_with_path(expected)[0]):
        want = fetch(b)
        compared = arrays.compare(jax.tree_util.keystr(path), want, fetch(a), rtol=0.0, atol=0.0)
        if jax.dtypes.issubdtype(b.dtype, np.inexact):
            sizes = np.abs(plain(want))
            off = compared.max_abs / (float(sizes[np.isfinite(sizes)].max(initial=0.0)) or 1.0)
        else:
            off = float(not compared.agrees)
        if not off <= rtol:
            raise PipelineError(
                f"the pipeline gives another {'result' + jax.tree_util.keystr(path)}: {off:.3g} away, relative to its largest element",
                where="Pipelined.verify", why=f"more than {rtol:g}, against the step on one device",
                fix="this is expected if the step draws random numbers or normalizes over the batch; otherwise please report it",
            )  # fmt: skip
        worst = max(worst, off)
    return worst


def on_one_device(fun: Callable[..., Any], args: Sequence[Any]) -> Any:
    """The result of the step under `jax.jit` on the first device of this process, which donates nothing."""
    device = jax.local_devices()[0]

    def here(x: Any) -> Any:
        if isinstance(x, jax.Array) and not is_extended_dtype(x.dtype):
            return jax.device_put(np.asarray(x), device)
        return jax.device_put(x, device)

    return jax.jit(lambda *a: fun(*a))(*jax.tree.map(here, tuple(args)))


P = ParamSpec("P")


class PipelineKeywords(TypedDict, total=False):
    """The keyword arguments of `pipeline`."""

    num_microbatches: Required[int]
    num_stages: int | None
    partition: Marking | None
    mesh: Any
    axis: str
    schedule: str | Schedule
    virtual: int
    in_shardings: Any
    batch_argnums: int | Sequence[int] | None
    batch_statistics: str | None
    donate_argnums: int | Sequence[int]
    hardware: str | Hardware
    memory_bytes: float | str | None
    planner: Planner | None
    peer_timeout: float | None


@overload
def pipeline(fun: Callable[P, Any], /, **options: Unpack[PipelineKeywords]) -> Pipelined[P]: ...


@overload
def pipeline(**options: Unpack[PipelineKeywords]) -> Callable[[Callable[P, Any]], Pipelined[P]]: ...


@api_boundary
def pipeline(
    fun: Callable[..., Any] | None = None,
    /,
    *,
    num_microbatches: int,
    num_stages: int | None = None,
    partition: Marking | None = None,
    mesh: Any = None,
    axis: str = "stage",
    schedule: str | Schedule = "1f1b",
    virtual: int = 1,
    in_shardings: Any = None,
    batch_argnums: int | Sequence[int] | None = None,
    batch_statistics: str | None = None,
    donate_argnums: int | Sequence[int] = (),
    hardware: str | Hardware = "h100",
    memory_bytes: float | str | None = None,
    planner: Planner | None = None,
    peer_timeout: float | None = None,
) -> Any:
    """Runs a training step as a pipeline, as PipeDream does, but synchronously: the numbers are those of the step on one device.

    The step is traced; its forward pass is cut into stages, by `sp.stage("name")` or into parts of equal modelled cost; its backward
    pass and its update follow the values they need. Every stage is compiled once per role on a mesh of its own, sharded inside by
    propagation, and a schedule of microbatches drives them.

    Args:
        fun: A training step that takes gradients inside, with its state first and its batch after it, all positional; or a function
            that returns one scalar loss, for which the pipeline returns `(loss, gradients of the first argument)`. Flax NNX modules and
            optimizers may be arguments; what the step changes in them is changed. Without it, a decorator is returned.
        num_microbatches: Number of equal parts that the batch is cut into, along the first dimension.
        num_stages: Number of stages; None for as many as are marked with `sp.stage`, or as the partition has.
        partition: A partition by `sp.pipedream.partition` of a profile of `fun`, where that is a loss; in a training step mark the
            loss with `sp.pipedream.marked` instead.
        mesh: None for one device per mesh, or as many as the partition says; a `jax.sharding.Mesh` or a mapping such as
            `{"stage": 4, "data": 2}`, whose other axes lie inside of a stage; or a list of meshes, one per
            position, which may differ in size (replicated stages).
        axis: The axis along which stages lie.
        schedule: A name that `sp.pipelines.schedule` takes, or a `Schedule`.
        virtual: Stages per mesh, for "interleaved", "circular" and "auto".
        in_shardings: As for `auto_shard`, over the axes inside of a stage. By default the batch lies along the first of them.
        batch_argnums: Arguments that hold the batch; by default all but the first, or all without NNX modules where there are such. PRNG
            keys and scalars in them are left whole.
        batch_statistics: `"microbatch"` lets statistics of the batch that examples use again, as in batch normalization, be those of a
            microbatch; without it such a step is refused, for no pipeline can compute it.
        donate_argnums: Arguments whose memory the results may take.
        hardware: The hardware on which stages are to take equal time, and of `report`: a name such as "h100" or "v5e", or a `Hardware`.
        memory_bytes: Memory of one device in bytes, a number or `"80GiB"`; a stage that does not fit is an error that says by how much.
        planner: Chooses what is left open by the cost of a step on its hardware, within its memory: where to cut, the mesh of every
            stage and the shardings inside. `mesh` is then a number of devices, or None for all devices of this process; with `num_stages`
            left out too, the number of stages is chosen, one of them if that is fastest. `search` of the pipeline says what it found.
        peer_timeout: With several processes, the seconds that one waits for the others in a step, or to compare the pipeline before the
            first; None waits as long as they live.

    Returns:
        A `Pipelined`: call it as the function.

    Raises:
        PipelineError: On a call, where the step cannot be run as asked.

    Example:
        >>> import jax, jax.numpy as jnp, shardy_py as sp
        >>> def loss(w, x):
        ...     for layer in w:
        ...         x = jnp.tanh(x @ layer)
        ...     return jnp.mean(x ** 2)
        >>> run = sp.pipeline(loss, num_stages=2, num_microbatches=4)
        >>> value, gradients = run([jnp.ones((8, 8)) / 8] * 4, jnp.ones((16, 8)))
        >>> run.schedule.name, len(gradients)
        ('1f1b', 4)
    """
    keywords = {name: value for name, value in locals().items() if name != "fun"}
    if fun is None:
        return functools.partial(pipeline, **keywords)
    for label, value in (("num_microbatches", num_microbatches), ("num_stages", num_stages), ("virtual", virtual)):
        if value is None and label == "num_stages":
            continue
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise PipelineError(f"{label} is {value!r}", where="sp.pipeline", why="it is a whole number, 1 or more", fix=f"pass {label}=4")
    memory_bytes = None if memory_bytes is None else quantity(memory_bytes, "sp.pipeline(memory_bytes=)")
    if not callable(fun):
        raise TypeError(f"sp.pipeline takes a function, not {fun!r}")
    if partition is not None:
        num_stages, mesh = _as_partitioned(partition, num_stages, mesh, virtual)
    if batch_statistics not in (None, "microbatch"):
        raise PipelineError(f"batch_statistics is {batch_statistics!r}", where="sp.pipeline", fix='pass "microbatch" or None')
    if not isinstance(schedule, str | Schedule):
        raise TypeError(f"schedule is {schedule!r}; pass a name such as '1f1b', or a result of sp.pipelines.schedule")
    if isinstance(schedule, str):
        check_name(schedule)
    if planner is not None:
        check_planner(planner, mesh, virtual, in_shardings)
    elif isinstance(mesh, int):
        raise PipelineError(
            f"mesh is {mesh}, a number of devices without a shape", where="sp.pipeline(mesh=)",
            why="without a planner nothing divides them", fix=f"pass mesh={{{axis!r}: {mesh}}}, or planner=sp.Planner(...)",
        )  # fmt: skip
    numbers = None if batch_argnums is None else _numbers(batch_argnums, "batch_argnums")
    options = PipelineOptions(
        fun, num_stages, partition, num_microbatches, mesh, axis, schedule, virtual, in_shardings, numbers,
        batch_statistics == "microbatch", _numbers(donate_argnums, "donate_argnums"), memory_bytes,
        hardware_named(hardware) if planner is None else planner.machine, planner, peer_timeout,
    )  # fmt: skip
    return Pipelined(options)


def _as_partitioned(partition: Any, num_stages: int | None, mesh: Any, virtual: int) -> tuple[int, Any]:
    """Number of stages and meshes, where a partition says how many machines run each."""
    if not isinstance(partition, Marking):
        raise TypeError(f"partition is {partition!r}; pass a result of sp.pipedream.partition, or a graph with stage ids")
    count = partition.num_stages
    if num_stages not in (None, count):
        raise PipelineError(
            f"the partition has {count} stages and {num_stages} are asked for", where="sp.pipeline(partition=)",
            fix="leave num_stages out, or make the partition for as many",
        )  # fmt: skip
    if mesh is None and virtual == 1 and max(partition.replication, default=1) > 1:
        mesh = meshes_of([(count,) for count in partition.replication], ("data",))
    return count, mesh


def _numbers(argnums: int | Sequence[int], label: str) -> tuple[int, ...]:
    numbers = (argnums,) if isinstance(argnums, int) else argnums
    if isinstance(numbers, str) or not isinstance(numbers, Sequence) or not all(isinstance(n, int) for n in numbers):
        raise TypeError(f"{label} is {argnums!r}; it is the number of an argument, or several: pass {label}=(0,)")
    return tuple(numbers)


class Pipelined(Generic[P]):
    """The result of `pipeline`: a function that runs as a pipeline, with the signature of the original.

    Args:
        options: The arguments of `pipeline`.

    Example:
        >>> import jax.numpy as jnp, shardy_py as sp
        >>> run = sp.pipeline(lambda w, x: jnp.mean(jnp.tanh(x @ w[0]) @ w[1]), num_stages=2, num_microbatches=4)
        >>> bool(run.verify([jnp.ones((8, 8)) / 8] * 2, jnp.ones((16, 8))) < 1e-5)
        True
    """

    def __init__(self, options: PipelineOptions) -> None:
        functools.update_wrapper(self, options.fun)
        self.__wrapped__ = options.fun
        self._options = options
        self._built: dict[tuple[Any, ...], StagedStep] = {}
        self._runners: dict[tuple[Any, ...], Runner] = {}
        self._last: StagedStep | None = None
        self._runner: Runner | None = None
        self._inner: dict[Any, Pipelined] = {}

    @api_boundary
    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Any:
        """One step; traces, cuts and compiles on the first call of a signature."""
        inner, arguments, call = self._opened(by_position(self._options.fun, args, kwargs) if kwargs else args)
        result = inner._run(arguments, self._options.donate_argnums)
        self._remember(inner)
        if call is None:
            return result
        result, states = result
        call.write_back(states)
        return result

    @api_boundary
    def verify(self, *args: Any, rtol: float = 1e-4, **kwargs: Any) -> float:
        """Runs a call as a pipeline and on one device and compares every result; nothing is donated.

        Args:
            args: As in a call.
            kwargs: As in a call.
            rtol: Largest difference, relative to the largest element of a result; integers have to be equal.

        Returns:
            The largest difference.

        Raises:
            PipelineError: A result differs by more.
        """
        inner, args, _ = self._opened(by_position(self._options.fun, args, kwargs))
        results = inner._run(args, ())
        self._remember(inner)
        if self._runner is not None and self._runner.peers is not None:
            results, args = jax.tree.map(self._runner.local, (results, args))
        fun = jax.value_and_grad(inner._options.fun) if inner._latest().split.is_loss else inner._options.fun
        return compare(results, on_one_device(fun, args), rtol)

    def _opened(self, args: tuple[Any, ...]) -> tuple[Pipelined, tuple[Any, ...], nnx_modules.OpenedModules | None]:
        """The pipeline of the function on states, where there are NNX modules among the arguments, else this one."""
        if not nnx_modules.present(args, {}):
            return self, args, None
        call = nnx_modules.opened(self._options.fun, args, {})
        inner = self._inner.get(call.fun)
        if inner is None:
            numbers = self._options.batch_argnums
            if numbers is None:
                numbers = tuple(i for i, arg in enumerate(args) if not nnx_modules.present((arg,), {}))
            inner = self._inner[call.fun] = Pipelined(replace(self._options, fun=call.fun, batch_argnums=numbers))
        return inner, call.args, call

    def _remember(self, inner: Pipelined) -> None:
        self._last, self._runner = inner._last, inner._runner

    def _run(self, args: tuple[Any, ...], donate: tuple[int, ...]) -> Any:
        leaves, tree = jax.tree.flatten(args)
        if any(isinstance(leaf, Tracer) for leaf in leaves):
            raise PipelineError(
                "a pipeline cannot be part of another program", where="sp.pipeline",
                why="Python hands its programs to several meshes; under jax.jit, grad or vmap there are no values to hand to them",
                fix="call it outside, and move the surrounding code into the function",
            )  # fmt: skip
        for number in donate:
            if not 0 <= number < len(args):
                raise PipelineError(
                    f"donate_argnums names argument {number}", where="sp.pipeline", why=f"the call has {len(args)} arguments",
                    fix=f"use numbers from 0 to {len(args) - 1}",
                )  # fmt: skip
        for i, leaf in enumerate(leaves):
            if isinstance(leaf, jax.Array) and leaf.is_deleted():
                path = self._signature(args).paths[i]
                raise PipelineError(
                    f"the buffer of {path} has been deleted", where="sp.pipeline", why="it was donated to an earlier call",
                    fix="use the result of that call instead",
                )  # fmt: skip
        try:
            kinds = tuple((np.shape(x), jax.dtypes.result_type(x) if not hasattr(x, "dtype") else x.dtype) for x in leaves)
        except TypeError:
            self._signature(args)  # Says which leaf it is.
            raise
        key = (donate, tree, kinds)
        runner = self._runners.get(key)
        if runner is None:
            runner = self._runners[key] = self._new_runner(args, leaves, donate)
        self._runner, self._last = runner, runner.built
        return jax.tree.unflatten(runner.built.split.out_tree, runner.step(leaves))

    def _new_runner(self, args: tuple[Any, ...], leaves: Sequence[Any], donate: tuple[int, ...]) -> Runner:
        """Builds and compiles; of several processes none goes on before all have come with the same pipeline, and compiled it."""
        options, place = self._options, location_of(self._options.fun)
        meshes = options.mesh if isinstance(options.mesh, list | tuple) else (options.mesh,)
        peers = peers_of(device for mesh in meshes if isinstance(mesh, Mesh) for device in mesh.devices.flat)
        with nullcontext() if peers is None else peers.reporting(place):
            built = self.build(*args)
            built.places.check_devices()
            donated = [a in donate for a in built.signature.argument]
            peers = built.places.peers()
            if peers is None:
                return Runner(built, donated)
            text = statement(built, leaves, donated)
            values = [
                (Leaf(path, struct.shape, str(struct.dtype)), None if is_global(x) else passed_value(x))
                for path, struct, x in zip(built.signature.paths, built.signature.structs, leaves)
            ]
            peers.agree(text, place, values, timeout=options.peer_timeout)
            with peers.reporting(place), covering():
                runner = Runner(built, donated, peers, options.peer_timeout)
            peers.agree(f"ready to run\n{text}", place, timeout=options.peer_timeout)
            return runner

    @api_boundary
    def build(self, *args: Any, **kwargs: Any) -> StagedStep:
        """The stages of a call, without running or compiling; arguments are arrays or `jax.ShapeDtypeStruct`s.

        Raises:
            PipelineError: The step cannot be run as asked.
        """
        inner, args, _ = self._opened(by_position(self._options.fun, args, kwargs))
        if inner is not self:
            built = inner.build(*args)
            self._remember(inner)
            return built
        signature = self._signature(args)
        key = (signature.tree, tuple((s.shape, s.dtype) for s in signature.structs))
        built = self._built.get(key)
        if built is None:
            built = (build if self._options.planner is None else planned)(self._options, signature)
            if self._options.memory_bytes is not None:
                check_memory(stage_memory(built), self._options.memory_bytes)
            self._built[key] = built
        self._last = built
        return built

    def _signature(self, args: tuple[Any, ...]) -> CallSignature:
        names = parameter_names(self._options.fun, len(args))
        paths, structs, argument = [], [], []
        for number, (name, arg) in enumerate(zip(names, args)):
            for path, leaf in jax.tree_util.tree_flatten_with_path(arg)[0]:
                paths.append(name + jax.tree_util.keystr(path))
                try:
                    dtype = traced_dtype(leaf) if isinstance(leaf, jax.ShapeDtypeStruct) else jax.typeof(leaf).dtype
                except TypeError as error:
                    raise TypeError(f"{paths[-1]} is {leaf!r}, which is not an array; close over it instead") from error
                refuse_host_memory(leaf, f"{paths[-1]}, argument of {location_of(self._options.fun)}")
                structs.append(jax.ShapeDtypeStruct(np.shape(leaf), dtype))
                argument.append(number)
        batch = batch_leaves(self._options, paths, structs, argument)
        return CallSignature(jax.tree.structure(args), tuple(structs), tuple(argument), tuple(paths), batch)

    @api_boundary
    def shardings(self, *args: Any) -> tuple[Any, ...]:
        """The shardings of the arguments: every leaf of the state on the mesh of the stage that keeps it, as a step returns it.

        Args:
            args: As in a call, arrays or `jax.ShapeDtypeStruct`s; none for the arguments of the last call or `build`.
        """
        built = self.build(*args) if args else self._latest()
        owner = built.updates.owner
        return jax.tree.unflatten(built.signature.tree, [built.places.sharding(v, owner.get(v, 0)) for v in built.split.micro.invars])

    @api_boundary
    def init(self, fun: Callable[..., Any], /, *args: Any) -> Any:
        """The first argument of the step, each leaf computed only where it is kept; in processes without it there is a stub.

        Args:
            fun: Gives the state, such as parameters and those of an optimizer. All processes call it alike.
            args: Its arguments, such as a key.

        Raises:
            PipelineError: The step has not been built, or its state has another structure.
        """
        structs, tree = jax.tree.flatten(jax.eval_shape(fun, *args))
        shardings = self._shardings_of(tree, "init")
        leaves: list[Any] = [stub(x.shape, x.dtype, there) if not is_here(there) else None for x, there in zip(structs, shardings)]
        for here in grouped((i for i, leaf in enumerate(leaves) if leaf is None), lambda i: shardings[i].mesh).values():
            part = jax.jit(lambda *a, here=here: [jax.tree.leaves(fun(*a))[i] for i in here], out_shardings=[shardings[i] for i in here])
            for i, leaf in zip(here, part(*args)):
                leaves[i] = leaf
        return jax.tree.unflatten(tree, leaves)

    def _shardings_of(self, tree: Any, method: str) -> list[Any]:
        """The shardings of a state, whose tree has to equal the tree of the step's first argument."""
        shardings, expected = jax.tree.flatten(self.shardings()[0])
        if tree != expected:
            raise PipelineError(
                f"the state is {tree}", where=f"Pipelined.{method}", why=f"the pipeline was built for {expected}",
                fix="build it first with a state like this: run.build(jax.eval_shape(init, key), batch)",
            )  # fmt: skip
        return shardings

    def _together(self, what: str, work: Callable[[], Any]) -> Any:
        """What all processes do at once, and hear of if one of them fails."""
        peers = self._latest().places.peers()
        if peers is None:
            return work()
        watch = Watch(peers, location_of(self._options.fun), self._options.peer_timeout)
        with watch.running(lambda: what):
            return watch.result(work)

    @api_boundary
    def save(self, folder: Any, state: Any, *, step: int | None = None) -> int:
        """Writes the state with Orbax, as one checkpoint whose arrays have the paths of its tree; all processes call this alike.

        Every process writes the leaves of its stages. A checkpoint counts when all have been written.

        Args:
            folder: A directory that all processes reach.
            state: The first argument of the step, as the last step returned it.
            step: Its number; by default one more than the last one there.

        Returns:
            The number of the step.

        Raises:
            PipelineError: There is a checkpoint of this step.
            PeerFailedError: Another process has failed, or does not come within `peer_timeout`.
        """
        checkpoint = _checkpoint()
        leaves, tree = jax.tree.flatten(state)
        pairs = zip(leaves, self._shardings_of(tree, "save"))
        there = tree.unflatten([x if is_global(x) else placed(x, sharding) for x, sharding in pairs])
        return checkpoint.save(folder, step, there, functools.partial(self._together, "run.save"))

    @api_boundary
    def restore(self, folder: Any, *, step: int | None = None) -> Any:
        """The first argument of the step from a checkpoint, which other numbers of processes and stages may have written.

        Build the pipeline first. Every process reads what it holds.

        Args:
            folder: As in `save`.
            step: Which step; by default the last one that is complete.

        Raises:
            PipelineError: The folder has no checkpoint of this step, or the function has not been built.
        """
        checkpoint, shardings = _checkpoint(), self.shardings()[0]
        structs = jax.tree.unflatten(self._latest().signature.tree, self._latest().signature.structs)[0]
        return checkpoint.restore(folder, step, structs, shardings, functools.partial(self._together, "run.restore"))

    def saved_steps(self, folder: Any) -> list[int]:
        """The steps of which there are complete checkpoints in a folder, the last one last.

        Args:
            folder: As in `save`.
        """
        return _checkpoint().steps_in(folder)

    @property
    def search(self) -> PipelineSearch | None:
        """The search of the planner that chose the last call or `build`; None without a planner."""
        return self._latest().search

    @property
    def schedule(self) -> Schedule:
        """The schedule of the last call or `build`."""
        return self._latest().schedule

    @property
    def statistics(self) -> Statistics:
        """Counts and times of the last call: activations in flight, time of dispatch."""
        if self._runner is None:
            raise PipelineError("nothing has run", where="Pipelined.statistics", fix="call the function first")
        return self._runner.statistics

    @property
    def programs_per_stage(self) -> list[int]:
        """Number of programs of every stage that this process has compiled, updates left out."""
        if self._runner is None:
            raise PipelineError("nothing has run", where="Pipelined.programs_per_stage", fix="call the function first")
        places, programs = self._runner.places, self._runner.programs
        return [sum(s == t and places.is_here(s) for _, t in programs) for s in range(places.stages)]

    def report(self, *args: Any, hardware: str | Hardware | None = None, **kwargs: Any) -> PipelineReport:
        """Predicts the costs of the pipeline: a row per stage and the simulated schedule. Nothing runs or is compiled.

        Args:
            args: As in a call, arrays or `jax.ShapeDtypeStruct`s; none for the arguments of the last call.
            hardware: The hardware to model; by default the hardware of `pipeline`.
            kwargs: As in a call.
        """
        built = self.build(*args, **kwargs) if args or kwargs else self._latest()
        return report(built, self._options.hardware if hardware is None else hardware_named(hardware))

    def _latest(self) -> StagedStep:
        if self._last is None:
            raise PipelineError("nothing has been built", where="Pipelined", fix="call the function, or .build(...), first")
        return self._last

    def __repr__(self) -> str:
        return f"<Pipelined function {getattr(self._options.fun, '__qualname__', self._options.fun)}>"


def _checkpoint() -> Any:
    from shardy_py.pipelines import checkpoint  # needs Orbax

    return checkpoint


def by_position(fun: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
    """Arguments in the order of the function's parameters."""
    try:
        signature = inspect.signature(fun)
    except (TypeError, ValueError):
        if not kwargs:
            return args
        raise
    try:
        bound = signature.bind(*args, **kwargs)
    except TypeError as error:
        raise TypeError(f"{getattr(fun, '__name__', fun)}{signature}: {error}; pass what it takes") from None
    if bound.kwargs:
        raise PipelineError(
            f"{next(iter(bound.kwargs))!r} can only be passed by name", where=f"arguments of {location_of(fun)}",
            why="they are counted by position", fix="make it a positional parameter, or close over it",
        )  # fmt: skip
    return bound.args
