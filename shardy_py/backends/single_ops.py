"""Equations that are one StableHLO op, or little more."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import ShapedArray
from jax.extend.core import Literal
from jax.interpreters import mlir

from shardy_py.frontends.context import stablehlo

Value = Any


class Writer:
    """What equations of one block share.

    Args:
        context: What the block is lowered under.
    """

    def __init__(self, context: mlir.LoweringRuleContext) -> None:
        self.context = context
        self._types: dict[tuple[tuple[int, ...], Any], Any] = {}
        self._scalars: dict[tuple[Any, bytes], Value] = {}
        self._attributes: dict[Any, Any] = {}
        self._filled: dict[tuple[Any, bytes, tuple[int, ...]], Value] = {}

    def type(self, shape: tuple[int, ...], dtype: Any) -> Any:
        """The MLIR type of an array of numbers."""
        found = self._types.get((shape, dtype))
        if found is None:
            found = self._types[shape, dtype] = mlir.aval_to_ir_type(self.context.module_context, ShapedArray(shape, dtype))
        return found

    def integers(self, values: Sequence[int]) -> Any:
        """An attribute of several integers."""
        return self.attribute(tuple(values), mlir.dense_int_array)

    def attribute(self, value: Any, make: Callable[[Any], Any]) -> Any:
        """An attribute, made once."""
        found = self._attributes.get(value)
        if found is None:
            found = self._attributes[value] = make(value)
        return found

    def literal(self, literal: Any) -> Value:
        """A constant; scalars that are equal are one."""
        return self.constant(literal.val, literal.aval)

    def constant(self, value: Any, aval: Any) -> Value:
        """The same of a value."""
        if aval.shape:
            return mlir.ir_constant(value, const_lowering=self.context.const_lowering, aval=aval)
        return self.scalar(np.asarray(value, aval.dtype))

    def scalar(self, value: Any) -> Value:
        """A constant scalar."""
        key = (value.dtype, value.tobytes())
        found = self._scalars.get(key)
        if found is None:
            found = self._scalars[key] = mlir.ir_constant(value)
        return found

    def filled(self, value: Any, shape: tuple[int, ...], loc: Any) -> Value:
        """An array all of whose elements are a scalar; those that are equal are one."""
        key = (value.dtype, value.tobytes(), shape)
        found = self._filled.get(key)
        if found is None:
            type_ = self.type(shape, value.dtype)
            found = self._filled[key] = stablehlo.broadcast_in_dim(type_, self.scalar(value), mlir.dense_int_array([]), loc=loc)
        return found

    def combining(self, op: Any, combine: Callable[..., Value], dtype: Any, loc: Any) -> None:
        """Fills the region of a reduction: two elements, combined by an op."""
        scalar = self.type((), dtype)
        block = op.regions[0].blocks.append(scalar, scalar)
        with mlir.ir.InsertionPoint(block):
            stablehlo.return_([combine(*block.arguments, loc=loc)], loc=loc)


Rule = Callable[[Writer, Any, Sequence[Value], Any], Value | None]
"""The op of an equation, given its operands and the location; None where that is not all there is to it."""


def _elementwise(op: Callable[..., Value]) -> Rule:
    """An op whose operands have the shape of its result; those of lax may have fewer dimensions, or some of size 1."""

    def rule(writer: Writer, eqn: Any, operands: Sequence[Value], loc: Any) -> Value | None:
        if any(param is not None for param in eqn.params.values()):
            return None
        shape = eqn.outvars[0].aval.shape
        found = list(operands)
        for i, v in enumerate(eqn.invars):
            aval = v.aval
            if aval.shape != shape:
                if isinstance(v, Literal) and not aval.shape:
                    found[i] = writer.filled(np.asarray(v.val, aval.dtype), shape, loc)
                    continue
                dims = writer.integers(range(len(shape) - len(aval.shape), len(shape)))
                found[i] = stablehlo.broadcast_in_dim(writer.type(shape, aval.dtype), found[i], dims, loc=loc)
        return op(*found, loc=loc)

    return rule


def _real(rule: Rule) -> Rule:
    """What StableHLO has an op for on real numbers only."""
    return lambda writer, eqn, operands, loc: None if eqn.invars[0].aval.dtype.kind == "c" else rule(writer, eqn, operands, loc)


def compared(direction: str, kind: str, x: Value, y: Value, *, loc: Any) -> Value:
    """A comparison, such as `LT` of `SIGNED` integers."""
    types = stablehlo.ComparisonTypeAttr.get(kind)
    return stablehlo.compare(x, y, stablehlo.ComparisonDirectionAttr.get(direction), compare_type=types, loc=loc)


def _compare(direction: str) -> Rule:
    rules = {kind: _elementwise(functools.partial(compared, direction, kind)) for kind in ("FLOAT", "SIGNED", "UNSIGNED")}

    def rule(writer: Writer, eqn: Any, operands: Sequence[Value], loc: Any) -> Value | None:
        dtype = eqn.invars[0].aval.dtype
        kind = "FLOAT" if jnp.issubdtype(dtype, np.inexact) else "SIGNED" if jnp.issubdtype(dtype, np.signedinteger) else "UNSIGNED"
        return rules[kind](writer, eqn, operands, loc)

    return rule


def _select_n(writer: Writer, eqn: Any, operands: Sequence[Value], loc: Any) -> Value | None:
    if len(operands) != 3 or eqn.invars[0].aval.dtype != bool:
        return None
    which, if_false, if_true = operands
    return stablehlo.select(which, if_true, if_false, loc=loc)


def _convert_element_type(writer: Writer, eqn: Any, operands: Sequence[Value], loc: Any) -> Value | None:
    now, new = eqn.invars[0].aval, eqn.outvars[0].aval
    if new.dtype == bool or now.dtype.kind == "c":  # numbers are compared with 0, and of complex ones the real part is taken
        return None
    return stablehlo.convert(writer.type(new.shape, new.dtype), operands[0], loc=loc)


def _broadcast_in_dim(writer: Writer, eqn: Any, operands: Sequence[Value], loc: Any) -> Value | None:
    if len(operands) != 1:
        return None
    aval = eqn.outvars[0].aval
    dims = writer.integers(eqn.params["broadcast_dimensions"])
    return stablehlo.broadcast_in_dim(writer.type(aval.shape, aval.dtype), operands[0], dims, loc=loc)


def _reshape(writer: Writer, eqn: Any, operands: Sequence[Value], loc: Any) -> Value | None:
    if len(operands) != 1 or (eqn.primitive.name == "reshape" and eqn.params["dimensions"] is not None):
        return None
    aval = eqn.outvars[0].aval
    return stablehlo.reshape(writer.type(aval.shape, aval.dtype), operands[0], loc=loc)


def _transpose(writer: Writer, eqn: Any, operands: Sequence[Value], loc: Any) -> Value | None:
    return stablehlo.transpose(operands[0], writer.integers(eqn.params["permutation"]), loc=loc)


def _slice(writer: Writer, eqn: Any, operands: Sequence[Value], loc: Any) -> Value | None:
    starts, limits = eqn.params["start_indices"], eqn.params["limit_indices"]
    strides = eqn.params["strides"] or (1,) * len(starts)
    return stablehlo.slice(*operands, *map(writer.integers, (starts, limits, strides)), loc=loc)


def _pad(writer: Writer, eqn: Any, operands: Sequence[Value], loc: Any) -> Value | None:
    low, high, inner = (writer.integers(part) for part in zip(*eqn.params["padding_config"]))
    return stablehlo.pad(operands[0], operands[1], low, high, inner, loc=loc)


def _dynamic_slice(writer: Writer, eqn: Any, operands: Sequence[Value], loc: Any) -> Value | None:
    sizes = eqn.params["slice_sizes"]
    if len(operands) != 1 + len(sizes):
        return None
    return stablehlo.dynamic_slice(operands[0], operands[1:], writer.integers(sizes), loc=loc)


def _dynamic_update_slice(writer: Writer, eqn: Any, operands: Sequence[Value], loc: Any) -> Value | None:
    return stablehlo.dynamic_update_slice(operands[0], operands[1], operands[2:], loc=loc)


def _rev(writer: Writer, eqn: Any, operands: Sequence[Value], loc: Any) -> Value | None:
    return stablehlo.reverse(operands[0], writer.integers(eqn.params["dimensions"]), loc=loc)


def _iota(writer: Writer, eqn: Any, operands: Sequence[Value], loc: Any) -> Value | None:
    if operands:
        return None
    aval = eqn.outvars[0].aval
    return stablehlo.iota(writer.type(aval.shape, aval.dtype), mlir.i64_attr(eqn.params["dimension"]), loc=loc)


def _concatenate(writer: Writer, eqn: Any, operands: Sequence[Value], loc: Any) -> Value | None:
    if len(operands) > 16:  # a tree of concatenations, which XLA compiles sooner
        return None
    return operands[0] if len(operands) == 1 else stablehlo.concatenate(operands, mlir.i64_attr(eqn.params["dimension"]), loc=loc)


def _integer_pow(writer: Writer, eqn: Any, operands: Sequence[Value], loc: Any) -> Value | None:
    power, (x,) = eqn.params["y"], operands
    if power < 1:
        return None
    made: Value | None = None
    while power:
        if power & 1:
            made = x if made is None else stablehlo.multiply(made, x, loc=loc)
        power >>= 1
        x = stablehlo.multiply(x, x, loc=loc) if power else x
    return made


def _reduce(combine: Callable[..., Value], start: Callable[[Any], Any]) -> Rule:
    """A reduction by an op on two elements, from a start that changes nothing."""

    def rule(writer: Writer, eqn: Any, operands: Sequence[Value], loc: Any) -> Value | None:
        aval = eqn.outvars[0].aval
        first = writer.scalar(np.asarray(start(aval.dtype), aval.dtype))
        op = stablehlo.ReduceOp([writer.type(aval.shape, aval.dtype)], operands, [first], writer.integers(eqn.params["axes"]), loc=loc)
        writer.combining(op, combine, aval.dtype, loc)
        return op.result

    return rule


def _lowest(dtype: Any) -> Any:
    return False if dtype.kind == "b" else jnp.iinfo(dtype).min if dtype.kind in "iu" else -np.inf


def _highest(dtype: Any) -> Any:
    return True if dtype.kind == "b" else jnp.iinfo(dtype).max if dtype.kind in "iu" else np.inf


def _common(rule: Rule) -> Rule:
    """For the usual types of numbers: some floats have no infinities, and complex numbers are not compared by one op."""

    def checked(writer: Writer, eqn: Any, operands: Sequence[Value], loc: Any) -> Value | None:
        dtype = eqn.outvars[0].aval.dtype
        return rule(writer, eqn, operands, loc) if dtype.kind in "biuf" or dtype == jnp.bfloat16 else None

    return checked


def _dot_dimension_numbers(numbers: Any) -> Any:
    (lhs_contracting, rhs_contracting), (lhs_batch, rhs_batch) = numbers
    return stablehlo.DotDimensionNumbers.get(
        lhs_batching_dimensions=list(lhs_batch),
        rhs_batching_dimensions=list(rhs_batch),
        lhs_contracting_dimensions=list(lhs_contracting),
        rhs_contracting_dimensions=list(rhs_contracting),
    )


def _precision_config(precision: Sequence[Any]) -> Any:
    return mlir.ir.ArrayAttr.get([stablehlo.PrecisionAttr.get(str(each)) for each in precision])


def _dot_general(writer: Writer, eqn: Any, operands: Sequence[Value], loc: Any) -> Value | None:
    (lhs, rhs), precision = (v.aval.dtype for v in eqn.invars), eqn.params["precision"] or (jax.lax.Precision.DEFAULT,) * 2
    if lhs != rhs or not isinstance(precision, tuple):  # operands are converted, by rules of each platform, or there is an algorithm
        return None
    aval = eqn.outvars[0].aval
    numbers = writer.attribute(eqn.params["dimension_numbers"], _dot_dimension_numbers)
    config = writer.attribute(precision, _precision_config)
    type_ = writer.type(aval.shape, aval.dtype)
    return stablehlo.dot_general(type_, operands[0], operands[1], numbers, precision_config=config, loc=loc)


RULES: Mapping[str, Rule] = {
    "abs": _real(_elementwise(stablehlo.abs)),
    "add": _elementwise(stablehlo.add),
    "add_any": _elementwise(stablehlo.add),
    "and": _elementwise(stablehlo.and_),
    "broadcast_in_dim": _broadcast_in_dim,
    "ceil": _elementwise(stablehlo.ceil),
    "clamp": _elementwise(stablehlo.clamp),
    "concatenate": _concatenate,
    "convert_element_type": _convert_element_type,
    "cos": _real(_elementwise(stablehlo.cosine)),
    "div": _elementwise(stablehlo.divide),
    "dot_general": _dot_general,
    "dynamic_slice": _dynamic_slice,
    "dynamic_update_slice": _dynamic_update_slice,
    "eq": _compare("EQ"),
    "exp": _elementwise(stablehlo.exponential),
    "expm1": _elementwise(stablehlo.exponential_minus_one),
    "floor": _elementwise(stablehlo.floor),
    "ge": _compare("GE"),
    "gt": _compare("GT"),
    "imag": _elementwise(stablehlo.imag),
    "integer_pow": _integer_pow,
    "iota": _iota,
    "is_finite": _elementwise(stablehlo.is_finite),
    "le": _compare("LE"),
    "log": _elementwise(stablehlo.log),
    "log1p": _elementwise(stablehlo.log_plus_one),
    "lt": _compare("LT"),
    "max": _real(_elementwise(stablehlo.maximum)),
    "min": _real(_elementwise(stablehlo.minimum)),
    "mul": _elementwise(stablehlo.multiply),
    "ne": _compare("NE"),
    "neg": _elementwise(stablehlo.negate),
    "not": _elementwise(stablehlo.not_),
    "or": _elementwise(stablehlo.or_),
    "pad": _pad,
    "real": _elementwise(stablehlo.real),
    "reduce_and": _reduce(stablehlo.and_, lambda dtype: ~dtype.type(0)),
    "reduce_max": _common(_reduce(stablehlo.maximum, _lowest)),
    "reduce_min": _common(_reduce(stablehlo.minimum, _highest)),
    "reduce_or": _reduce(stablehlo.or_, lambda dtype: 0),
    "reduce_prod": _reduce(stablehlo.multiply, lambda dtype: 1),
    "reduce_sum": _reduce(stablehlo.add, lambda dtype: 0),
    "reduce_xor": _reduce(stablehlo.xor, lambda dtype: 0),
    "rem": _elementwise(stablehlo.remainder),
    "reshape": _reshape,
    "rev": _rev,
    "rsqrt": _elementwise(stablehlo.rsqrt),
    "select_n": _select_n,
    "shift_left": _elementwise(stablehlo.shift_left),
    "shift_right_arithmetic": _elementwise(stablehlo.shift_right_arithmetic),
    "shift_right_logical": _elementwise(stablehlo.shift_right_logical),
    "sin": _real(_elementwise(stablehlo.sine)),
    "slice": _slice,
    "sqrt": _elementwise(stablehlo.sqrt),
    "squeeze": _reshape,
    "sub": _elementwise(stablehlo.subtract),
    "tanh": _elementwise(stablehlo.tanh),
    "transpose": _transpose,
    "xor": _elementwise(stablehlo.xor),
}
"""Primitive -> the op that its equations are where nothing but the types of values is asked for."""
