"""The private or version-dependent parts of JAX and jaxlib: MLIR modules and contexts, types, and functions that lowering rules trace.

The only file that touches such parts.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import operator
import sys
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, TypeVar, cast

import jax
from jax import api_util, core, lax
from jax._src import checkify as _checkify
from jax._src import config as _config
from jax._src import core as _core
from jax._src import custom_partitioning_sharding_rule as _sharding_rules
from jax._src import distributed as _distributed
from jax._src import linear_util as _linear_util
from jax._src import mesh as _mesh
from jax._src import sharding_impls as _sharding_impls
from jax._src import source_info_util as _source_info_util
from jax._src import traceback_util as _traceback_util
from jax._src import xla_bridge as _xla_bridge
from jax._src.interpreters import ad as _ad
from jax._src.interpreters import batching as _batching
from jax._src.interpreters import mlir as _mlir
from jax._src.interpreters import partial_eval as _partial_eval
from jax._src.interpreters import pxla as _pxla
from jax._src.lax import parallel as _parallel
from jax._src.lax.control_flow.loops import _scan_impl
from jax._src.random import core as _random
from jax._src.random import prng as _prng
from jax._src.shard_map import shard_map_p as _shard_map_p
from jax._src.sharding_impls import UnspecifiedValue as _UnspecifiedValue
from jax._src.state.discharge import _run_state_impl
from jax.custom_derivatives import SymbolicZero
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Primitive, Var, jaxpr_as_fun, new_jaxpr_eqn, primitives
from jax.interpreters import mlir, partial_eval
from jax.interpreters.ad import Zero
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec
from jaxlib.mlir import ir as ir
from jaxlib.mlir.dialects import chlo as chlo
from jaxlib.mlir.dialects import stablehlo as stablehlo

from shardy_py.frontends.mesh_context import traced_on

_new_context = getattr(_mlir, "_create_ir_context", mlir.make_ir_context)
"""Later versions of JAX hand out one context several times, so its settings are not ours to change, and they have this function."""

_LOWER_PARAMETERS = frozenset(inspect.signature(mlir.lower_jaxpr_to_module).parameters)


def make_context(*, allow_unregistered: bool = False) -> ir.Context:
    """A new MLIR context that knows the dialects JAX emits: func, stablehlo, chlo, mhlo and sdy."""
    context = _new_context()
    # A thread that verifies reports what it finds to a handler that waits for Python's lock, which the thread that waits for it holds.
    context.enable_multithreading(False)
    context.allow_unregistered_dialects = allow_unregistered
    return context


def lower_jaxpr(jaxpr: ClosedJaxpr, platform: str, *, devices: int = 2) -> ir.Module:
    """Lowers a jaxpr for a platform as `jax.jit` does, without asking for a device or a backend.

    `jax.jit(f).lower(lowering_platforms=...)` looks up the default device even where only a module is wanted.

    Args:
        devices: The number of devices that lowering rules are told of; some take a shortcut where it is one.
    """
    arguments: dict[str, Any] = {
        "num_const_args": 0,
        "in_avals": jaxpr.in_avals,
        "out_avals": jaxpr.out_avals,
        "ordered_effects": [],
        "platforms": (platform,),
        "backend": None,
        "axis_context": mlir.ShardingContext(devices),
        "donated_args": [False] * len(jaxpr.in_avals),
        "num_partitions": devices,
        "lowering_parameters": mlir.LoweringParameters(),
    }
    supported = {name: value for name, value in arguments.items() if name in _LOWER_PARAMETERS}
    return mlir.lower_jaxpr_to_module("fragment", jaxpr, **supported).module


def trace_context() -> Hashable:
    """Everything in JAX's configuration on which a lowering can depend, for use in the key of a cache."""
    return _config.trace_context()


def is_tracing() -> bool:
    """Whether this code runs under `jax.jit`, `jax.grad`, `jax.vmap` or the like."""
    return not _core.trace_state_clean()


is_committed: Callable[[jax.Array], bool] = operator.attrgetter("_committed")
"""As `jax.Array.committed`, a property in Python, in half of its time: every call looks at every leaf."""


def is_staged() -> bool:
    """Whether what is called here is written down, to be run later or never, as under `jax.jit` or `jax.make_jaxpr`.

    Not under `jax.grad` or `jax.vmap` alone, which run it at once.
    """
    trace: Any = _core.trace_ctx.trace
    while trace is not None and not isinstance(trace, _partial_eval.DynamicJaxprTrace):
        trace = getattr(trace, "parent_trace", None)
    return trace is not None


def is_lowered_ahead() -> bool:
    """Whether a program is lowered by `.lower()` or a caller of it such as `jax.export`, and so need not run."""
    frame = inspect.currentframe()
    while frame is not None:
        if frame.f_code is _LOWER:
            return True
        frame = frame.f_back
    return False


_LOWER = inspect.unwrap(jax.stages.Traced.lower).__code__


def known_value(x: Any) -> Any:
    """The concrete value of a tracer, as under `jax.grad` alone, or None; values that are no tracers are returned."""
    return _core.to_concrete_value(x)


def context_devices() -> Mesh | None:
    """The mesh of `jax.set_mesh`; unlike `jax.sharding.get_mesh`, under a trace too."""
    mesh = _mesh.get_concrete_mesh()
    return None if mesh is None or mesh.empty else mesh


def no_context_devices() -> AbstractContextManager[Any]:
    """As if no mesh had been set by `jax.set_mesh`, whose axes lowering would use in any region over an abstract mesh."""
    return _sharding_impls._internal_use_concrete_mesh(_mesh.empty_concrete_mesh)


def coordination_client() -> Any:
    """The client of `jax.distributed`'s key-value store; None where `jax.distributed.initialize` was not called."""
    return _distributed.global_state.client


def coordination_number() -> int:
    """As `jax.process_index()` after `jax.distributed.initialize`, without starting the devices."""
    return _distributed.global_state.process_id


def transfers_enabled(device: Any) -> bool:
    """Whether `jax.device_put` moves arrays between processes; with port 0 those that receive would wait for ever."""
    address = _xla_bridge.CROSS_HOST_TRANSFER_SOCKET_ADDRESS.value
    return not address.endswith(":0") if address else getattr(device.client, "supports_cross_host_transfers", False)


Function = TypeVar("Function", bound=Callable[..., Any])


def api_boundary(function: Function) -> Function:
    """Hides frames of JAX, and of `hide_frames`, from tracebacks of exceptions that leave this function."""
    return _traceback_util.api_boundary(function)


def hide_frames(folder: str) -> None:
    """Leaves frames of the files in a folder out of tracebacks, as JAX does with its own, unless JAX_TRACEBACK_FILTERING=off."""
    _traceback_util.register_exclusion(folder)


def devices_started() -> bool:
    """Whether JAX has started its devices, after which settings of them have no effect."""
    return _xla_bridge.backends_are_initialized()


def abstract_argument(aval: Any) -> jax.ShapeDtypeStruct:
    """An argument for `jax.make_jaxpr` that is traced to this abstract value, sharding left out."""
    return jax.ShapeDtypeStruct(aval.shape, aval.dtype, weak_type=getattr(aval, "weak_type", False))


def shard_map_equation(
    jaxpr: Jaxpr,
    mesh: AbstractMesh,
    axes: Sequence[str],
    invars: Sequence[Var],
    outvars: Sequence[Var],
    in_specs: Sequence[PartitionSpec],
    out_specs: Sequence[PartitionSpec],
) -> JaxprEqn:
    """The equation that `jax.shard_map(..., check_vma=False)` makes around a jaxpr of local arrays, whose types need not name a mesh."""
    specs = {"in_specs": tuple(in_specs), "out_specs": tuple(out_specs)}
    params = {"jaxpr": jaxpr, "mesh": mesh, **specs, "check_vma": False, "newly_manual_axes": frozenset(axes)}
    effects = _core.filter_named_axis_effects(jaxpr.effects, axes)
    return new_jaxpr_eqn(list(invars), list(outvars), _shard_map_p, params, effects)


def axes_bound(sizes: Mapping[str, int]) -> AbstractContextManager[Any]:
    """Lets collectives over these axes stand outside of a `jax.shard_map`, for what looks at their jaxprs under `jax_enable_checks`."""
    return _core.extend_axis_env_nd(list(sizes.items()))


def is_extended_dtype(dtype: Any) -> bool:
    """Whether a dtype is an extended one, such as the dtype of PRNG keys."""
    return jax.dtypes.issubdtype(dtype, jax.dtypes.extended)


def physical_aval(aval: Any) -> Any:
    """The abstract value of the array that holds an extended-dtype array."""
    return _core.physical_aval(aval)


def is_specified(sharding: Any) -> bool:
    """Whether a sharding parameter of `jit` says something."""
    return sharding is not None and not isinstance(sharding, _UnspecifiedValue)


def has_explicit_axes(aval: Any) -> bool:
    """Whether JAX puts a sharding constraint after every op with a result of this type."""
    mesh = getattr(getattr(aval, "sharding", None), "mesh", None)
    return mesh is not None and not (mesh.empty or mesh.are_all_axes_manual or mesh.are_all_axes_auto)


def sharding_of(aval: Any) -> Any:
    """The sharding in a type; None for tokens and references."""
    return getattr(aval, "sharding", None)


def physical_sharding(aval: Any, sharding: Any) -> Any:
    """The sharding of the array that holds an extended-dtype array."""
    return _sharding_impls.physical_sharding(aval, sharding) if is_extended_dtype(aval.dtype) else sharding


@dataclasses.dataclass(frozen=True, slots=True)
class ManualContext:
    """The mesh of the shard_map being read and its manual axes, those of shard_maps around it included."""

    mesh: Any
    axes: frozenset[str]


def manual_sharding(mesh: Any, spec: Any, outer: ManualContext | None, aval: Any) -> Any:
    """As `_make_scoped_manual_sharding`: the sharding of an operand or result of a shard_map."""
    mesh = mesh.abstract_mesh
    if outer is not None:
        mesh = mesh.update_axis_types(dict.fromkeys(outer.axes, AxisType.Manual))
    return physical_sharding(aval, NamedSharding(mesh, spec))


Settings = tuple[str | None, bool, tuple[tuple[str, Any], ...]]
"""Settings that an equation is lowered with: `compute_on`, `jax.threefry_partitionable`, `set_xla_metadata`."""


@functools.lru_cache(maxsize=1024)
def _settings(context: Any) -> Settings:
    return context.compute_type, context.threefry_partitionable, tuple(sorted((context.xla_metadata or {}).items()))


def settings(eqn: JaxprEqn) -> Settings:
    """The settings of context managers under which an equation was traced, other than the mesh."""
    return _settings(eqn.ctx)


def context_on(context: Any, change: Callable[[Any], Any]) -> Any:
    """The context of an equation, `eqn.ctx`, on another mesh."""
    with context.manager, traced_on(change(context.cur_abstract_mesh)):
        return _core.JaxprEqnContext()


def changed_rule(thunk: Any, change: Callable[[Any], Any], mesh: AbstractMesh) -> Any:
    """A derivative in the parameters of a `custom_jvp_call` or `custom_vjp_call`, whose jaxpr and constants are changed when traced."""

    def changed(*zeros: bool) -> Any:
        with traced_on(mesh):
            return tuple(map(change, thunk.call_wrapped(*zeros)))

    return _linear_util.wrap_init(changed, debug_info=thunk.debug_info)


def changed_backward(bwd: Any, types: Callable[[], Sequence[Any]], change: Callable[[Any], Any], mesh: AbstractMesh) -> Any:
    """The backward function in the parameters of a `custom_vjp_call`, whose jaxpr is changed once it is traced.

    Args:
        types: The types of its arguments on the mesh, which residuals have once `fwd_jaxpr_thunk` was traced.
        change: Changes a `ClosedJaxpr`, and the type of a zero.
    """

    def changed(*args: Any) -> Any:
        structure: list[Any] = []

        def arrays(*values: Any) -> list[Any]:
            rest = iter(values)
            inputs = [type(x)(aval) if isinstance(x, _ZEROS) else next(rest) for x, aval in zip(args, avals, strict=True)]
            leaves, tree = jax.tree.flatten(bwd.call_wrapped(*inputs))
            structure[:] = tree, [leaf if isinstance(leaf, _ZEROS) else None for leaf in leaves]
            return [leaf for leaf in leaves if not isinstance(leaf, _ZEROS)]

        avals = types()
        with traced_on(mesh):
            closed = traced_locally(arrays, [aval for x, aval in zip(args, avals) if not isinstance(x, _ZEROS)])
        results = iter(jaxpr_as_fun(change(closed))(*(x for x in args if not isinstance(x, _ZEROS))))
        tree, zeros = structure
        return jax.tree.unflatten(tree, [next(results) if zero is None else type(zero)(change(zero.aval)) for zero in zeros])

    return _linear_util.wrap_init(changed, debug_info=bwd.debug_info)


_ZEROS = (Zero, SymbolicZero)


def current_settings() -> Settings:
    """The current settings."""
    return _settings(_core.JaxprEqnContext())


def local_type(aval: Any, shape: Sequence[int]) -> Any:
    """The type of a part of an array, on no mesh."""
    return _array_type(tuple(shape), aval.dtype, aval.weak_type, aval.memory_space)


@functools.lru_cache(maxsize=4096)
def _array_type(shape: tuple[int, ...], dtype: Any, weak_type: bool, memory_space: Any) -> Any:
    return core.ShapedArray(shape, dtype, weak_type=weak_type, memory_space=memory_space)


@contextmanager
def under_settings(eqn: JaxprEqn) -> Iterator[None]:
    """A context with the settings that an equation was traced under, on the current mesh."""
    mesh = jax.sharding.get_abstract_mesh()
    with eqn.ctx.manager, traced_on(mesh):
        yield


def traced_scan(params: Mapping[str, Any], avals: Sequence[Any], context: Any) -> ClosedJaxpr:
    """The jaxpr that the lowering of a scan is made from."""
    with context.manager:
        return traced(functools.partial(_scan_impl, **params), avals)


def with_more_consts(params: Mapping[str, Any], count: int) -> dict[str, Any] | None:
    """The parameters of a scan with more constants, in front of its own; None where this version of JAX keeps no number of constants."""
    return {**params, "num_consts": params["num_consts"] + count} if "num_consts" in params else None


def scan_counts(eqn: JaxprEqn) -> tuple[int, int]:
    """Numbers of constants and carries among the operands of a scan."""
    params = eqn.params
    if "num_consts" in params:
        return params["num_consts"], params["num_carry"]
    consts, carry, _ = params["ft_in"].unpack()  # jax >= 0.12
    return len(list(consts)), len(list(carry))


def without_references(eqn: JaxprEqn) -> ClosedJaxpr:
    """The jaxpr that the lowering of a run_state is made from, with values instead of references."""
    return traced(functools.partial(_run_state_impl, **eqn.params), [v.aval for v in eqn.invars])


def as_lowered(jaxpr: ClosedJaxpr) -> ClosedJaxpr:
    """As `jax.jit` before it lowers: types of several arrays become those arrays, local references become values."""
    if jaxpr.jaxpr.is_high:
        jaxpr = _partial_eval.lower_jaxpr2(jaxpr)
    has_references = any(isinstance(effect, _core.InternalMutableArrayEffect) for effect in jaxpr.effects)
    return _pxla._discharge_internal_refs(jaxpr) if has_references else jaxpr


def traced(fun: Callable[..., Any], avals: Sequence[Any]) -> ClosedJaxpr:
    """The jaxpr of a function, traced as `mlir.lower_fun` does."""
    return as_lowered(_traced("lower_fun", fun, avals, lower=True))


def traced_locally(fun: Callable[..., Any], avals: Sequence[Any]) -> ClosedJaxpr:
    """As `jax.make_jaxpr(fun)(*avals)` for a function from arrays to a sequence of arrays, without a look at its signature."""
    return _traced("make_jaxpr", fun, avals)


def _traced(why: str, fun: Callable[..., Any], avals: Sequence[Any], **how: bool) -> ClosedJaxpr:
    wrapped = _linear_util.wrap_init(fun, debug_info=api_util.debug_info(why, fun, avals, {}))
    jaxpr, _, consts = partial_eval.trace_to_jaxpr_dynamic(wrapped, avals, **how)
    return ClosedJaxpr(jaxpr, consts)


def scoped_sharding(sharding: Any, aval: Any, rank: int, manual: ManualContext | None) -> Any:
    """As `_to_physical_op_sharding`: the sharding of the physical array, with manual axes marked so inside a shard_map."""
    sharding = physical_sharding(aval, sharding)
    if manual is not None and manual.axes:
        context = mlir.SPMDAxisContext(manual.mesh, manual.axes)
        return _mlir.add_manual_axes(context, sharding, rank)
    return sharding


def custom_partitioning_rule(eqn: JaxprEqn, mesh: Any) -> str | None:
    """The text of the rule of a custom_partitioning equation, or None where it has none."""
    rule: Any = eqn.params["sharding_rule"]
    if rule is None:
        return None
    call = eqn.params["call"]
    with make_context(), ir.Location.unknown():
        operands: list[ir.Type] = [ir.RankedTensorType.get(a.shape, mlir.dtype_to_ir_type(a.dtype)) for a in call.in_avals]
        results: list[ir.Type] = [ir.RankedTensorType.get(a.shape, mlir.dtype_to_ir_type(a.dtype)) for a in call.out_avals]
        factors: Any = {}
        if callable(rule):
            rule = rule(*eqn.params["static_args"], mesh, operands, results)
            if isinstance(rule, list | tuple) and len(rule) == 2:
                rule, factors = rule
        if isinstance(rule, str):
            rule = _sharding_rules.str_to_sdy_sharding_rule(rule, **factors)
        sdy_rule: Any = rule
        return str(_sharding_rules.sdy_sharding_rule_to_mlir(sdy_rule, operands, results))


def lowering_function(primitive: Any, params: Mapping[str, Any], platform: str) -> tuple[Callable[..., Any] | None, bool]:
    """The function of a rule made by `mlir.lower_fun`, and whether JAX calls it out of line; (None, False) for other rules."""
    own = _mlir._platform_specific_lowerings[platform].get(primitive)
    common = _mlir._lowerings.get(primitive)
    entry = own or common
    if entry is None or getattr(entry.rule, "__qualname__", "") != "lower_fun.<locals>.f_lowered":
        return None, False
    cells = dict(zip(entry.rule.__code__.co_freevars, entry.rule.__closure__ or ()))  # pyright: ignore[reportAttributeAccessIssue]
    if not {"fun", "multiple_results"} <= cells.keys():
        return None, False
    function = functools.partial(cells["fun"].cell_contents, **params)
    has_own_function = not all(e.inline for e in (own, common) if e is not None)
    return (function if cells["multiple_results"].cell_contents else _single(function)), has_own_function


def _single(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *args: (function(*args),)


def interpreted_kernel(params: Mapping[str, Any], _: Sequence[Any]) -> Callable[..., Any] | None:
    """As `_pallas_call_lowering` for `interpret=True`; None for kernels that are compiled, or simulated as a device would run them."""
    interpreter: Any = sys.modules.get("jax._src.pallas.hlo_interpreter")  # loaded with Pallas, which made the equation
    params = dict(params)
    if params.pop("interpret") is not True or interpreter is None or params["jaxpr"].constvars:
        return None
    return functools.partial(interpreter.pallas_call_hlo_interpret, **params)


def _mapped(function: Callable[..., Any], times: int) -> Callable[..., Any]:
    for _ in range(times):
        function = jax.vmap(function)
    return _single(function)


def random_seed(params: Mapping[str, Any], avals: Sequence[Any]) -> Callable[..., Any]:
    """As `random_seed_lowering`."""
    return _mapped(params["impl"].seed, avals[0].ndim)


def random_split(params: Mapping[str, Any], avals: Sequence[Any]) -> Callable[..., Any]:
    """As `random_split_lowering`."""
    return _mapped(lambda key: avals[0].dtype._impl.split(key, params["shape"]), avals[0].ndim)


gamma_draw: Callable[..., Any] = _random._gamma_one
"""The function by which `random_gamma` draws each number, of a key, a shape parameter and whether to return the logarithm."""


def random_bits(params: Mapping[str, Any], avals: Sequence[Any]) -> Callable[..., Any]:
    """As `random_bits_lowering`."""
    return _mapped(lambda key: avals[0].dtype._impl.random_bits(key, params["bit_width"], params["shape"]), avals[0].ndim)


def random_fold_in(_: Mapping[str, Any], avals: Sequence[Any]) -> Callable[..., Any]:
    """As `random_fold_in_lowering`."""
    keys, messages = avals
    return _single(_prng.iterated_vmap_binary_bcast(keys.shape, messages.shape, keys.dtype._impl.fold_in))


def jvp_jaxpr(jaxpr: ClosedJaxpr, nonzero: Sequence[bool]) -> tuple[ClosedJaxpr, list[bool]]:
    """The forward derivative of a jaxpr, with tangents only where they are not zero, and which results have such a tangent."""
    return _ad.jvp_jaxpr(jaxpr, nonzero, instantiate=False)


def split_jaxpr(jaxpr: ClosedJaxpr, unknown: Sequence[bool]) -> tuple[ClosedJaxpr, ClosedJaxpr, Sequence[bool], Sequence[int | None]]:
    """Splits a jaxpr into the part that depends on known inputs only, and the rest.

    Returns:
        The first part, whose results are the known results and then residuals; the second part, whose inputs are all residuals and then
        the unknown inputs; which results are unknown; and for each residual the known input that it is, None where the first part makes it.
    """
    known, rest, unknown_results, _, forwarded = _partial_eval.partial_eval_jaxpr_nounits_fwd(jaxpr, tuple(unknown), instantiate=False)
    return known, rest, unknown_results, forwarded


def batch_jaxpr(jaxpr: ClosedJaxpr, axis: Any, dims: Sequence[int | None]) -> tuple[ClosedJaxpr, Sequence[int | None]]:
    """The jaxpr mapped over a dimension of each input, and the dimension of each result that is mapped; None where none is."""
    return _batching.batch_jaxpr2(jaxpr, axis, tuple(dims))


def backward_pass(jaxpr: ClosedJaxpr, inputs: Sequence[Any], cotangents: Sequence[Any]) -> list[Any]:
    """Cotangents of the inputs that are `ad.UndefinedPrimal`, in which the jaxpr is linear."""
    return cast(Any, _ad.backward_pass(jaxpr.jaxpr, False, jaxpr.consts, inputs, cotangents))


def close_over_nothing(jaxpr: ClosedJaxpr) -> ClosedJaxpr:
    """The jaxpr with its constants as first inputs."""
    detached = getattr(jaxpr, "with_consts", None)  # jax >= 0.12: one class for open and closed jaxprs
    if detached is not None:
        return detached(())
    return ClosedJaxpr(_partial_eval.convert_constvars_jaxpr(jaxpr.jaxpr), ())


CheckRule = Callable[[tuple[Any, ...], Any, Any, Sequence[Any], dict[str, Any]], tuple[Any, Sequence[Any]]]
"""A rule of checkify: of what JAX's own rules take first, the error so far, the enabled errors, operands and parameters."""


def register_checks(primitive: Primitive, rule: CheckRule) -> None:
    """Lets `jax.experimental.checkify` find the checks inside of a primitive with several results."""
    first = int(jax.__version_info__ >= (0, 12))  # which passes a context in front of the error

    def run(*args: Any, **params: Any) -> tuple[Any, Sequence[Any]]:
        error, enabled, *operands = args[first:]
        return rule(args[:first], error, enabled, operands, params)

    _checkify.error_checks[primitive] = run


def checked_call(context: tuple[Any, ...], error: Any, enabled: Any, operands: Sequence[Any], params: dict[str, Any]) -> Any:
    """The error and the results of an equation of `jax.jit` with checks, arguments as in `CheckRule`."""
    return _checkify.error_checks[primitives.jit_p](*context, error, enabled, *operands, **params)


def checkpoint_rule(update: Callable[..., tuple[dict[str, Any], dict[str, Any]]]) -> Callable[..., Any]:
    """The rule by which `jax.checkpoint` splits a primitive that calls its parameter `jaxpr`, equation by equation."""
    return functools.partial(_partial_eval.closed_call_partial_eval_custom_rule, "jaxpr", update)


pmul_p = Primitive("pmul")
"""The product over mesh axes, with the parameters of `pmax`, by one all-reduce."""
pmul_p.def_effectful_abstract_eval(lax.pmax_p.abstract_eval)
_all_reduce: Any = getattr(_parallel, "_all_reduce_lowering", None) or getattr(_parallel, "_allreduce_lowering")  # noqa: B009 - of jax < 0.12
mlir.register_lowering(pmul_p, functools.partial(_all_reduce, lax.mul_p, None))


def spans_of(source_info: Any) -> list[tuple[str, int, int, int, int]]:
    """File, first line and column, last line and column of the calls in the user's frames, innermost first; columns in bytes."""
    frames = _source_info_util.user_frames(getattr(source_info, "traceback", None))
    return [(f.file_name, f.start_line, f.start_column, f.end_line, f.end_column) for f in frames]
