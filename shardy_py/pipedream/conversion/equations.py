"""Writes equations of a jaxpr as code; the table has an entry for each primitive with arguments of its own."""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax import lax
from jax.extend.core import ClosedJaxpr, JaxprEqn, Literal

from shardy_py.pipedream.conversion.descriptions import ConversionError
from shardy_py.pipedream.conversion.lines import Code

# Arguments that say nothing about the values, where they are unset.
_SILENT = frozenset({"accuracy", "out_dtype", "out_sharding", "sharding", "precision", "preferred_element_type", "dimensions", "strides"})

_OTHER_NAMES = {
    "add_any": "add",
    "and": "bitwise_and",
    "or": "bitwise_or",
    "xor": "bitwise_xor",
    "not": "bitwise_not",
    "scatter-add": "scatter_add",
    "scatter-mul": "scatter_mul",
    "population_count": "population_count",
}

# Primitive -> its arguments that are passed to the function of `jax.lax`, all by name.
_NAMED: dict[str, tuple[str, ...]] = {
    "broadcast_in_dim": ("shape", "broadcast_dimensions"),
    "convert_element_type": ("new_dtype",),
    "cumlogsumexp": ("axis", "reverse"),
    "cummax": ("axis", "reverse"),
    "cummin": ("axis", "reverse"),
    "cumprod": ("axis", "reverse"),
    "cumsum": ("axis", "reverse"),
    "dot_general": ("dimension_numbers", "precision", "preferred_element_type"),
    "gather": ("dimension_numbers", "slice_sizes", "unique_indices", "indices_are_sorted", "mode", "fill_value"),
    "integer_pow": ("y",),
    "pad": ("padding_config",),
    "reduce_and": ("axes",),
    "reduce_max": ("axes",),
    "reduce_min": ("axes",),
    "reduce_or": ("axes",),
    "reduce_prod": ("axes",),
    "reduce_sum": ("axes",),
    "reshape": ("new_sizes", "dimensions"),
    "rev": ("dimensions",),
    "round": ("rounding_method",),
    "scatter": ("dimension_numbers", "indices_are_sorted", "unique_indices", "mode"),
    "scatter-add": ("dimension_numbers", "indices_are_sorted", "unique_indices", "mode"),
    "scatter-mul": ("dimension_numbers", "indices_are_sorted", "unique_indices", "mode"),
    "slice": ("start_indices", "limit_indices", "strides"),
    "split": ("sizes", "axis"),
    "squeeze": ("dimensions",),
    "transpose": ("permutation",),
    "conv_general_dilated": (
        "window_strides",
        "padding",
        "lhs_dilation",
        "rhs_dilation",
        "dimension_numbers",
        "feature_group_count",
        "batch_group_count",
        "precision",
        "preferred_element_type",
    ),
}

# Primitive -> its call, where operands are not simply passed one by one.
_SPECIAL: dict[str, Callable[[dict[str, Any], Sequence[str]], tuple[str, Sequence[str | Code]]]] = {
    "argmax": lambda p, o: ("lax.argmax", [*o, f"axis={value(p['axes'][0])}", f"index_dtype={value(p['index_dtype'])}"]),
    "argmin": lambda p, o: ("lax.argmin", [*o, f"axis={value(p['axes'][0])}", f"index_dtype={value(p['index_dtype'])}"]),
    "concatenate": lambda p, o: ("lax.concatenate", [f"[{', '.join(o)}]", f"dimension={value(p['dimension'])}"]),
    "copy": lambda p, o: ("jnp.copy", list(o)),
    "dynamic_slice": lambda p, o: ("lax.dynamic_slice", [o[0], f"[{', '.join(o[1:])}]", value(p["slice_sizes"])]),
    "dynamic_update_slice": lambda p, o: ("lax.dynamic_update_slice", [o[0], o[1], f"[{', '.join(o[2:])}]"]),
    "iota": lambda p, o: ("lax.broadcasted_iota", [value(p["dtype"]), value(p["shape"]), value(p["dimension"])]),
    "sort": lambda p, o: (
        "lax.sort",
        [f"({', '.join(o)},)", *(f"{key}={value(p[key])}" for key in ("dimension", "is_stable", "num_keys"))],
    ),
}


def call_of(eqn: JaxprEqn, operands: Sequence[str]) -> tuple[str, Sequence[str | Code]]:
    """The code of an equation's function and arguments; raises ConversionError if no function of `jax.lax` takes these."""
    name, params = eqn.primitive.name, eqn.params
    if name in _SPECIAL:
        return _SPECIAL[name](params, operands)
    function = _OTHER_NAMES.get(name, name)
    named_parameters = _NAMED.get(name)
    rest = set(params) - set(named_parameters or ()) - {"update_jaxpr", "update_consts", "weak_type"}
    unsupported = sorted(key for key in rest if not (key in _SILENT and params[key] is None))
    if (
        not hasattr(lax, function)
        or (named_parameters is None and unsupported)
        or any(key in unsupported for key in ("sharding", "out_sharding"))
    ):
        why = f"its arguments {', '.join(unsupported)} are not known here" if unsupported else "it is no function of jax.lax"
        raise ConversionError(f"the primitive {name!r} cannot be written as code", why=why, fix="move it out of the stages")
    named = [argument(key, params[key]) for key in named_parameters or () if params.get(key) is not None]
    return f"lax.{function}", [*operands, *named]


def value(parameter: Any) -> str:
    """An argument of an equation as code; raises ConversionError if it cannot be written."""
    if parameter is None or isinstance(parameter, bool | str):
        return repr(parameter)
    if isinstance(parameter, int | np.integer) and not isinstance(parameter, enum.Enum):
        return str(int(parameter))
    if isinstance(parameter, float | np.floating):
        return repr(float(parameter)) if np.isfinite(parameter) else f'float("{float(parameter)}")'
    if isinstance(parameter, enum.Enum) and hasattr(lax, type(parameter).__name__):
        return f"lax.{type(parameter).__name__}.{parameter.name}"
    if isinstance(parameter, tuple | list):
        if hasattr(parameter, "_fields") and hasattr(lax, type(parameter).__name__):
            return f"lax.{type(parameter).__name__}({', '.join(f'{key}={value(part)}' for key, part in zip(parameter._fields, parameter))})"  # pyright: ignore
        return f"({', '.join(map(value, parameter))}{',' if len(parameter) == 1 else ''})"
    fields = getattr(parameter, "__dataclass_fields__", None)
    if fields is not None and hasattr(lax, type(parameter).__name__):
        return f"lax.{type(parameter).__name__}({', '.join(f'{key}={value(getattr(parameter, key))}' for key in fields)})"
    if isinstance(parameter, np.dtype) or (isinstance(parameter, type) and issubclass(parameter, np.generic)):
        return f"jnp.{np.dtype(parameter).name}" if np.dtype(parameter).name != "bool" else "jnp.bool_"
    raise ConversionError(f"an argument {str(parameter)[:60]!r} of type {type(parameter).__name__} cannot be written as code")


def argument(name: str, parameter: Any) -> str | Code:
    """An argument by name, broken inside its brackets where it is long."""
    text = f"{name}={value(parameter)}"
    if len(text) < 70 or (not isinstance(parameter, tuple | list) and not hasattr(parameter, "__dataclass_fields__")):
        return text
    if hasattr(parameter, "_fields"):
        parts = [argument(key, part) for key, part in zip(parameter._fields, parameter)]  # pyright: ignore
        return Code(f"{name}=lax.{type(parameter).__name__}(", tuple(parts), ")")
    fields = getattr(parameter, "__dataclass_fields__", None)
    if fields is not None:
        parts = [argument(key, getattr(parameter, key)) for key in fields]
        return Code(f"{name}=lax.{type(parameter).__name__}(", tuple(parts), ")")
    return Code(f"{name}=(", tuple(map(value, parameter)), ")")


def scalar(literal: Literal) -> str:
    """A literal of a jaxpr as code, with its type."""
    array = np.asarray(literal.val, literal.aval.dtype)  # pyright: ignore
    if array.ndim or (array.dtype.kind == "V" and array.dtype.name == "void"):
        raise ConversionError(f"a literal of shape {array.shape} and type {array.dtype} cannot be written as code")
    number = array.item()
    if isinstance(number, complex):
        return f"jnp.{array.dtype.name}({number!r})"
    return f"{value(array.dtype)}({value(number)})"


def function_with_rule(eqn: JaxprEqn) -> str | None:
    """The function of `jax.nn` that an equation with a derivative rule is, such as relu; None if it is none."""
    inner = next((each for each in eqn.params.values() if isinstance(each, ClosedJaxpr)), None)
    if inner is None or len(eqn.invars) != 1:
        return None
    names = [each.params.get("name") for each in inner.jaxpr.eqns if each.primitive.name == "jit"]
    for name in names or ["relu", "silu", "relu6"]:
        function = getattr(jax.nn, str(name), None)
        if function is None or not str(name).isidentifier():
            continue
        struct = jax.ShapeDtypeStruct(eqn.invars[0].aval.shape, eqn.invars[0].aval.dtype)  # pyright: ignore
        try:
            traced = jax.make_jaxpr(function)(struct)
        except TypeError:
            continue
        outer = [each for each in traced.jaxpr.eqns if each.primitive is eqn.primitive]
        # relu may stand in a jit of its own.
        if not outer and len(traced.jaxpr.eqns) == 1 and "jaxpr" in traced.jaxpr.eqns[0].params:
            outer = [each for each in traced.jaxpr.eqns[0].params["jaxpr"].jaxpr.eqns if each.primitive is eqn.primitive]
        if len(outer) == 1 and any(str(each) == str(inner) for each in outer[0].params.values() if isinstance(each, ClosedJaxpr)):
            return f"jax.nn.{name}"
    return None
