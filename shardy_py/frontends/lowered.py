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
from shardy_py.frontends.legalize_chlo import legalize_chlo
from shardy_py.frontends.mesh_context import no_mesh
from shardy_py.frontends.mlir import read_module
from shardy_py.ir import Function, Program


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
