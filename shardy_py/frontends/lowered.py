"""Lowers single JAX equations through JAX's own lowering rules, for primitives without a native template."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import jax
from jax.extend.core import Primitive
from jax.sharding import AbstractMesh, AxisType, use_abstract_mesh
from jax.sharding import PartitionSpec as P

from shardy_py.frontends._jax import abstract_argument, lower_jaxpr, trace_context
from shardy_py.frontends.legalize_chlo import legalize_chlo
from shardy_py.frontends.mlir import from_mlir
from shardy_py.ir import Function, Program

_CACHE: OrderedDict[Hashable, Program] = OrderedDict()
_CACHE_SIZE = 1024


def lower_fragment(
    primitive: Primitive, params: Mapping[str, Any], avals: Sequence[Any], platform: str = "cpu", *, mesh: AbstractMesh | None = None
) -> Program:
    """The ops that JAX lowers one equation to, CHLO ops legalised as XLA does before it partitions.

    Arrays of PRNG keys have their physical type in the result. No device or backend is asked for.

    Args:
        primitive: The primitive of the equation.
        params: Its parameters, which JAX requires to be hashable.
        avals: Abstract values of the operands.
        platform: The platform to lower for.
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
    key = (primitive, tuple(sorted(params.items())), types, platform, mesh, trace_context())
    program = _CACHE.get(key)
    if program is not None:
        return program

    def bind(*args: Any) -> Any:
        return primitive.bind(*args, **params)

    arguments = [abstract_argument(aval) for aval in avals]
    manual = tuple(name for name, kind in zip(mesh.axis_names, mesh.axis_types, strict=True) if kind is AxisType.Manual) if mesh else ()
    with use_abstract_mesh(AbstractMesh((), ())):
        if mesh is not None and manual:
            around = AbstractMesh(mesh.axis_sizes, mesh.axis_names, axis_types=(AxisType.Auto,) * len(mesh.axis_names))
            mapped = jax.shard_map(bind, mesh=around, in_specs=P(), out_specs=P(), axis_names=set(manual), check_vma=False)
            program = _body(from_mlir(lower_jaxpr(jax.make_jaxpr(mapped)(*arguments), platform, devices=around.size)))
        else:
            program = from_mlir(lower_jaxpr(jax.make_jaxpr(bind)(*arguments), platform))
    legalize_chlo(program)
    _CACHE[key] = program
    if len(_CACHE) > _CACHE_SIZE:
        _CACHE.popitem(last=False)
    return program


def _body(program: Program) -> Program:
    """The body of the manual computation that `main` consists of, as `main`."""
    (computation,) = (op for op in program.main.body.ops if op.name == "sdy.manual_computation")
    (block,) = computation.regions
    result_types = [value.type for value in block.terminator.operands]
    block.terminator.name = "func.return"
    others = [function for function in program.functions if function is not program.main]
    return Program([Function("main", block, result_types), *others])
