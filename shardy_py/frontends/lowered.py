"""Lowers single JAX equations through JAX's own lowering rules, for primitives without a native template."""

from __future__ import annotations

import functools
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import jax
from jax.extend.core import Primitive
from jax.sharding import AbstractMesh, AxisType
from jax.sharding import PartitionSpec as P

from shardy_py.frontends._jax import lower_jaxpr, trace_context
from shardy_py.frontends.mesh_context import no_mesh
from shardy_py.frontends.mlir import read_module
from shardy_py.ir import Block, Function, Op, Program, TensorType, Type, Value


def lower_fragment(
    primitive: Primitive, params: Mapping[str, Any], avals: Sequence[Any], platform: str = "cpu", *, mesh: AbstractMesh | None = None
) -> Program:
    """The ops of JAX's lowering of one equation, with CHLO ops legalised as XLA does before it partitions.

    Arrays of PRNG keys have their physical type in the result. No device or backend is asked for.

    Args:
        mesh: The mesh around the equation where some axes are manual, `eqn.ctx.cur_abstract_mesh`: collectives over
            these axes need it.

    Returns:
        A program whose `main` takes the operands and returns the results; other functions are those JAX calls out to.
        It is memoised and must not be changed.

    Raises:
        NotImplementedError: If JAX has no lowering rule for the platform.

    Example:
        >>> from jax.extend.core.primitives import reduce_precision_p
        >>> aval = jax.core.ShapedArray((8,), jax.numpy.dtype("float32"))
        >>> fragment = lower_fragment(reduce_precision_p, {"exponent_bits": 5, "mantissa_bits": 10}, [aval])
        >>> [op.name for op in fragment.main.body.ops]
        ['stablehlo.reduce_precision', 'func.return']
    """
    types = tuple((aval.shape, aval.dtype, getattr(aval, "weak_type", False)) for aval in avals)
    return _fragment(primitive, tuple(sorted(params.items())), types, platform, mesh, trace_context())


@functools.lru_cache(maxsize=1024)
def _fragment(
    primitive: Primitive,
    params: tuple[tuple[str, Any], ...],
    types: tuple[tuple[tuple[int, ...], Any, bool], ...],
    platform: str,
    mesh: AbstractMesh | None,
    context: Hashable,
) -> Program:
    def bind(*args: Any) -> Any:
        return primitive.bind(*args, **dict(params))

    arguments = [jax.ShapeDtypeStruct(shape, dtype, weak_type=weak_type) for shape, dtype, weak_type in types]
    manual = tuple(name for name, kind in zip(mesh.axis_names, mesh.axis_types, strict=True) if kind is AxisType.Manual) if mesh else ()
    with no_mesh():
        if mesh is not None and manual:
            around = AbstractMesh(mesh.axis_sizes, mesh.axis_names, axis_types=(AxisType.Auto,) * len(mesh.axis_names))
            mapped = jax.shard_map(bind, mesh=around, in_specs=P(), out_specs=P(), axis_names=set(manual), check_vma=False)
            program = _body(read_module(lower_jaxpr(jax.make_jaxpr(mapped)(*arguments), platform, devices=around.size)))
        else:
            program = read_module(lower_jaxpr(jax.make_jaxpr(bind)(*arguments), platform))
    legalize_chlo(program)
    return program


def _body(program: Program) -> Program:
    """The body of the manual computation that `main` consists of, as `main`."""
    (computation,) = (op for op in program.main.body.ops if op.name == "sdy.manual_computation")
    (block,) = computation.regions
    result_types = [value.type for value in block.terminator.operands]
    block.terminator.name = "func.return"
    others = [function for function in program.functions if function is not program.main]
    return Program([Function("main", block, result_types), *others])


Expansion = tuple[list[Op], list[Value]]
"""Ops and the values that stand for the results of the op they are made from."""

STRAIGHT = frozenset(("chlo.is_inf", "chlo.is_neg_inf", "chlo.is_pos_inf", "chlo.mulhi", "chlo.ragged_dot"))
"""Legalised to a chain in which every value has one use, or to no ops at all."""


def legalize_chlo(program: Program) -> None:
    """Replaces the CHLO ops of a program by their stand-ins; see the module.

    `chlo.top_k` becomes iota, sort and two slices, `chlo.square` a product and `chlo.tan` `stablehlo.tan`, as they do in XLA.
    """
    for function in program.functions:
        _legalize_block(function.body)


def expand(
    name: str, operands: Sequence[Value], result_types: Sequence[Type], attributes: Mapping[str, int], location: object = None
) -> Expansion | None:
    """The stand-in for one CHLO op, not yet in a block; None for an op that stands as it is."""
    if name == "chlo.top_k":
        return _top_k(operands[0], result_types, attributes["k"], location)
    if name == "chlo.tan":
        return _one("stablehlo.tan", operands, result_types, location)
    if not name.startswith("chlo.") or name in STRAIGHT:
        return None
    is_complex = operands[0].type.dtype.startswith("complex")
    if name == "chlo.conj" and not is_complex:
        return [], list(operands)
    if name == "chlo.atan" and not is_complex:
        return None
    if name == "chlo.square" and not is_complex:
        name = "stablehlo.multiply"
    return _one(name, (*operands, *operands), result_types, location)


def _one(name: str, operands: Sequence[Value], result_types: Sequence[Type], location: object) -> Expansion:
    op = Op(name, operands, result_types, location=location)
    return [op], op.results


def _top_k(operand: Value, result_types: Sequence[Type], k: int, location: object) -> Expansion:
    shape = operand.type.shape
    last = len(shape) - 1
    iota = Op("stablehlo.iota", [], [TensorType(shape, result_types[1].dtype)], {"iota_dimension": last}, location=location)
    sort = Op("stablehlo.sort", [operand, iota.result], [operand.type, iota.result.type], {"dimension": last}, location=location)
    attributes = {"start_indices": (0,) * len(shape), "limit_indices": (*shape[:-1], k), "strides": (1,) * len(shape)}
    slices = [
        Op("stablehlo.slice", [result], [type_], attributes, location=location)
        for result, type_ in zip(sort.results, result_types, strict=True)
    ]
    return [iota, sort, *slices], [op.result for op in slices]


def _legalize_block(block: Block) -> None:
    ops: list[Op] = []
    changed = False
    for op in block.ops:
        for region in op.regions:
            _legalize_block(region)
        if not op.name.startswith("chlo."):
            ops.append(op)
            continue
        operands = list(op.operands)
        expansion = expand(op.name, operands, [result.type for result in op.results], op.attributes, op.location)
        if expansion is None:
            ops.append(op)
            continue
        changed = True
        new, results = expansion
        op.drop_uses()
        op.block = None
        for old, value in zip(op.results, results, strict=True):
            value.sharding = old.sharding if value.sharding is None else value.sharding
            old.replace_uses(value)
        ops.extend(new)
    if changed:
        block.set_ops(ops)
