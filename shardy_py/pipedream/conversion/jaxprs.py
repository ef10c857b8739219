"""From a jaxpr with a stage for each equation to a package of plain JAX functions."""

from __future__ import annotations

import enum
import inspect
import io
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax import lax
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Var

from shardy_py.frontends.loops import scan_counts
from shardy_py.ir.jax_calls import PLAIN_CALLS, body_parameter
from shardy_py.pipedream.conversion import lines
from shardy_py.pipedream.conversion.converting import (
    MARK,
    Package,
    check_name,
    init_module,
    read_ranks,
    write_configs,
    write_files,
)
from shardy_py.pipedream.conversion.descriptions import ConversionError
from shardy_py.pipelines.jaxprs import reads

# Parameters that are no arguments of the function of `jax.lax`, and say nothing that others do not.
_SILENT = frozenset({"update_jaxpr", "update_consts", "weak_type"})

_OTHER_NAMES = {"add_any": "add", "and": "bitwise_and", "or": "bitwise_or", "xor": "bitwise_xor", "not": "bitwise_not"}


def _argument_position(p: dict[str, Any], o: Sequence[str]) -> list[str]:
    return [*o, f"axis={value(p['axes'][0])}", f"index_dtype={value(p['index_dtype'])}"]


# Primitive -> its function and arguments, where operands are not simply passed one by one.
_SPECIAL: dict[str, tuple[str, Callable[[dict[str, Any], Sequence[str]], Sequence[str]]]] = {
    "argmax": ("lax.argmax", _argument_position),
    "argmin": ("lax.argmin", _argument_position),
    "concatenate": ("lax.concatenate", lambda p, o: [f"[{', '.join(o)}]", f"dimension={value(p['dimension'])}"]),
    "copy": ("jnp.copy", lambda p, o: o),
    "dynamic_slice": ("lax.dynamic_slice", lambda p, o: [o[0], f"[{', '.join(o[1:])}]", value(p["slice_sizes"])]),
    "dynamic_update_slice": ("lax.dynamic_update_slice", lambda p, o: [o[0], o[1], f"[{', '.join(o[2:])}]"]),
    "iota": ("lax.broadcasted_iota", lambda p, o: [value(p["dtype"]), value(p["shape"]), value(p["dimension"])]),
    "sort": ("lax.sort", lambda p, o: [lines.several(o), *(f"{key}={value(p[key])}" for key in ("dimension", "is_stable", "num_keys"))]),
}


def call_of(eqn: JaxprEqn, operands: Sequence[str]) -> str:
    """The call of an equation's function; raises ConversionError if no function of `jax.lax` takes its operands and parameters."""
    name, params = eqn.primitive.name, {key: each for key, each in eqn.params.items() if each is not None}
    if name in _SPECIAL:
        function, arguments = _SPECIAL[name]
        return lines.call(function, arguments(params, operands))
    function = _OTHER_NAMES.get(name, name.replace("-", "_"))
    try:
        signature = inspect.signature(getattr(lax, function))
        named = {key: params[key] for key in signature.parameters if key in params}
        signature.bind(*operands, **named)
    except (AttributeError, TypeError, ValueError):
        raise _unwritten(name, "it is no function of jax.lax") from None
    unsupported = sorted(params.keys() - named.keys() - _SILENT)
    if unsupported:
        raise _unwritten(name, f"its arguments {', '.join(unsupported)} are not known here")
    return lines.call(f"lax.{function}", [*operands, *(f"{key}={value(each)}" for key, each in named.items())])


def _unwritten(name: str, why: str, fix: str = "move it out of the stages") -> ConversionError:
    return ConversionError(f"the primitive {name!r} cannot be written as code", why=why, fix=fix)


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
        return lines.several(list(map(value, parameter)))
    fields = getattr(parameter, "__dataclass_fields__", None)
    if fields is not None and hasattr(lax, type(parameter).__name__):
        return f"lax.{type(parameter).__name__}({', '.join(f'{key}={value(getattr(parameter, key))}' for key in fields)})"
    if isinstance(parameter, np.dtype) or (isinstance(parameter, type) and issubclass(parameter, np.generic)):
        return f"jnp.{np.dtype(parameter).name}" if np.dtype(parameter).name != "bool" else "jnp.bool_"
    raise ConversionError(f"an argument {str(parameter)[:60]!r} of type {type(parameter).__name__} cannot be written as code")


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


class FunctionWriter:
    """Writes the functions of one module."""

    def __init__(self, names: Mapping[Var, str], count: int = 0) -> None:
        self.names = dict(names)
        self.functions: list[list[str]] = []
        self.constants: dict[str, Any] = {}
        self.count = count

    def equation(self, eqn: JaxprEqn) -> list[str]:
        """The statement of an equation; its results get the names they have already, or new ones."""
        operands = [self.operand(atom) for atom in eqn.invars]
        for v in eqn.outvars:
            if v not in self.names:
                self.names[v] = (
                    self.fresh(str(eqn.params.get("name", eqn.primitive.name)).strip("_")) if type(v).__name__ != "DropVar" else "_"
                )
        try:
            code, many = self._call(eqn, operands)
        except ConversionError as error:
            raise error.at(f"equation {' '.join(str(eqn).split())[:100]!r}") from None
        targets = [self.names[v] for v in eqn.outvars]
        if not targets:
            return []
        statement = f"    {lines.several(targets) if many else targets[0]} = {code}"
        shapes = lines.comment("; ".join(_shape(v.aval) for v in eqn.outvars))
        return [f"{statement}  {shapes}"] if len(statement) + 2 + len(shapes) <= lines.WIDTH else [f"    {shapes}", statement]

    def operand(self, atom: Any) -> str:
        """The code of a variable or literal."""
        return scalar(atom) if isinstance(atom, Literal) else self.names[atom]

    def fresh(self, base: str) -> str:
        """A name that was not used yet."""
        self.count += 1
        return f"{re.sub(r'[^A-Za-z0-9_]', '_', base)}_{self.count}"

    def function(self, closed: ClosedJaxpr | Jaxpr, base: str) -> str:
        """Writes the function of a jaxpr inside; returns its name."""
        jaxpr, consts = (closed.jaxpr, closed.consts) if isinstance(closed, ClosedJaxpr) else (closed, ())
        name = self.fresh(f"_{base.strip('_')}")
        for var, const in zip(jaxpr.constvars, consts):
            self.names[var] = self.constant(const)
        for var in jaxpr.invars:
            self.names[var] = self.fresh("x")
        body = [line for eqn in jaxpr.eqns for line in self.equation(eqn)]
        head = lines.call(f"def {name}", [self.names[var] for var in jaxpr.invars])
        results = lines.several([self.operand(atom) for atom in jaxpr.outvars])
        self.functions.append([f"{head}:", *body, f"    return {results}"])
        return name

    def constant(self, const: Any) -> str:
        """The code of a constant; arrays are kept apart."""
        name = self.fresh("const")
        self.constants[name] = const
        return f'CONSTANTS["{name}"]'

    def _call(self, eqn: JaxprEqn, operands: list[str]) -> tuple[str, bool]:
        """The code of an equation, and whether it gives a sequence of results."""
        name, params = eqn.primitive.name, eqn.params
        if name in PLAIN_CALLS:
            inner = params[body_parameter(params)]
            if not isinstance(inner, ClosedJaxpr | Jaxpr):
                raise _unwritten(name, "it has no jaxpr")
            function = self.function(inner, str(params.get("name", name)))
            if name == "remat2":
                if params.get("policy") is not None:
                    raise ConversionError("a checkpoint with a policy cannot be written as code")
                function = f"jax.checkpoint({function})"
            return lines.call(function, operands), True
        if name.startswith(("custom_jvp_call", "custom_vjp_call")):
            function_of_rule = function_with_rule(eqn)
            if function_of_rule is None:
                raise _unwritten(name, "its derivative rule is a Python function", "a function of jax.nn with one argument can")
            return lines.call(function_of_rule, operands), False
        if name == "scan":
            consts, carry = scan_counts(eqn)
            parts = operands[:consts], operands[consts : consts + carry], operands[consts + carry :]
            options = [f"{key}={value(params[key])}" for key in ("length", "reverse", "unroll")]
            return lines.call("_scan", [self.function(params["jaxpr"], "step"), *map(lines.several, parts), *options]), True
        if name == "while":
            test, body = params["cond_nconsts"], params["cond_nconsts"] + params["body_nconsts"]
            functions = [self.function(params["cond_jaxpr"], "test"), self.function(params["body_jaxpr"], "body")]
            parts = operands[:test], operands[test:body], operands[body:]
            return lines.call("_while", [*functions, *map(lines.several, parts)]), True
        if name == "cond":
            branches = [self.function(branch, "branch") for branch in params["branches"]]
            return lines.call("lax.switch", [f"jnp.int32({operands[0]})", f"[{', '.join(branches)}]", *operands[1:]]), True
        return call_of(eqn, operands), eqn.primitive.multiple_results


_LOOPS = {
    "_scan(": """
def _scan(step, consts, start, xs, **options):
    def body(carry, x):
        out = step(*consts, *carry, *x)
        return out[: len(start)], out[len(start) :]

    last, rows = lax.scan(body, start, xs, **options)
    return (*last, *rows)
""",
    "_while(": """
def _while(test, body, test_consts, body_consts, start):
    def goes_on(carry):
        return test(*test_consts, *carry)[0]

    return lax.while_loop(goes_on, lambda carry: body(*body_consts, *carry), start)
""",
}
"""Functions of loops that a module has where it calls them."""


def _shape(aval: Any) -> str:
    return aval.str_short(short_dtypes=False) if hasattr(aval, "str_short") else str(aval)


def argument_names(jaxpr: Sequence[Var], arg_paths: Sequence[str] | None) -> list[str]:
    """An identifier for each input, made from its path, such as params_w of params['w']."""
    paths = arg_paths if arg_paths and len(arg_paths) == len(jaxpr) else [f"arg{i}" for i in range(len(jaxpr))]
    names: list[str] = []
    for i, path in enumerate(paths):
        name = re.sub(r"_+", "_", re.sub(r"[^A-Za-z0-9]+", "_", str(path or f"arg{i}"))).strip("_") or f"arg{i}"
        # The end tells such a name from that of a result, which ends in a number, and from Python's own.
        name = f"{name}_" if re.search(r"_\d+$", name) or not lines.is_free(name) else name
        names.append(name if name not in names and lines.is_free(name) else f"arg{i}_")
    return names


_SOURCE = f'''{MARK}
"""Arrays that the stages use."""

from __future__ import annotations

import pathlib

import numpy as np

with np.load(pathlib.Path(__file__).with_name("constants.npz"), allow_pickle=False) as stored:
    CONSTANTS = dict(stored)
'''


@dataclass(frozen=True)
class _Part:
    """The equations of one stage, and the variables it takes and gives."""

    equations: tuple[JaxprEqn, ...]
    takes: tuple[Var, ...]
    gives: tuple[Var, ...]


def convert_jaxpr(
    jaxpr: ClosedJaxpr,
    stages: Sequence[int],
    directory: str | os.PathLike[str],
    *,
    arch: str,
    stage_to_num_ranks: Mapping[int, int] | Sequence[int] | str | None = None,
) -> Package:
    """Writes a package of plain JAX functions, one per stage, from a jaxpr of `jax.make_jaxpr`.

    A line is an equation, with the type of its result behind it; jaxprs inside of equations become functions.

    Args:
        jaxpr: The program.
        stages: The stage of each of its equations, from 0; a stage is given values by earlier ones only.
        directory: Where the package is written.
        arch: Name of the package, of its whole model's file and of the function there.
        stage_to_num_ranks: Number of ranks per stage, for hybrid_conf.json.

    Returns:
        The package; `full_model()` there is a function of the inputs, one by one, and `model(criterion)` has the stages with the
        names of what they take and give.

    Raises:
        ConversionError: If a primitive cannot be written, naming it, or the stages do not go forward. Nothing is written then.

    Example:
        >>> import tempfile, jax, jax.numpy as jnp
        >>> traced = jax.make_jaxpr(lambda w, x: jnp.tanh(x @ w) * 2)(jnp.ones((3, 3)), jnp.ones((2, 3)))
        >>> package = convert_jaxpr(traced, [0, 0, 1], tempfile.mkdtemp(), arch="small")
        >>> float(package.load().full_model()(jnp.eye(3), jnp.zeros((2, 3))).sum())
        0.0
    """
    if not isinstance(jaxpr, ClosedJaxpr):
        raise TypeError(f"convert_jaxpr takes what jax.make_jaxpr gives, not {type(jaxpr).__name__}")
    check_name("arch", arch)
    if jaxpr.effects:
        raise ConversionError(f"the program has effects, {', '.join(sorted(map(str, jaxpr.effects)))}", why="functions of stages are pure")
    parts = _parts(jaxpr, stages)
    ranks = None if stage_to_num_ranks is None else read_ranks(stage_to_num_ranks, len(parts))
    inputs = jaxpr.jaxpr.invars
    info = getattr(jaxpr.jaxpr, "debug_info", None)
    names = dict(zip(inputs, argument_names(inputs, getattr(info, "arg_names", None))))
    constants: dict[str, Any] = {}
    files: dict[str, str | bytes] = {}
    count = 0
    for number, part in enumerate(parts):
        writer = FunctionWriter(names, count)
        for var, const in zip(jaxpr.jaxpr.constvars, jaxpr.consts):
            if any(var in eqn.invars for eqn in part.equations):
                writer.names[var] = writer.constant(const)
        files[f"stage{number}.py"] = _stage(writer, part, number, len(parts), arch)
        # Names of results are kept, so that one value has one name in all stages.
        names |= {v: writer.names[v] for v in part.gives}
        constants |= writer.constants
        count = writer.count
    if constants:
        files |= {"constants.py": _SOURCE, "constants.npz": _stored(constants)}
    results = [_result(atom, names) for atom in jaxpr.jaxpr.outvars]
    files[f"{arch}.py"] = _whole(parts, names, [names[v] for v in inputs], results, arch)
    files["__init__.py"] = _init(parts, names, results, arch)
    files |= write_configs(len(parts), ranks)
    return Package(write_files(directory, files), arch, tuple(files), len(parts))


def _parts(closed: ClosedJaxpr, stages: Sequence[int]) -> list[_Part]:
    equations = closed.jaxpr.eqns
    if len(stages) != len(equations):
        raise ConversionError(f"stages are given for {len(stages)} equations", why=f"the jaxpr has {len(equations)}")
    if not equations:
        raise ConversionError("the jaxpr has no equations")
    wrong = next((stage for stage in stages if type(stage) is not int or stage < 0), None)
    if wrong is not None:
        raise ConversionError(f"{wrong!r} is no stage", fix="number the stages from 0")
    count = max(stages) + 1
    empty = sorted(set(range(count)) - set(stages))
    if empty:
        raise ConversionError(f"no equation is in stage {empty[0]}, but some are in stage {count - 1}", fix="number the stages from 0")
    stage_of = {v: stage for eqn, stage in zip(equations, stages) for v in eqn.outvars}
    for i, (eqn, stage) in enumerate(zip(equations, stages)):
        late = next((v for v in reads(eqn) if stage_of.get(v, 0) > stage), None)
        if late is not None:
            raise ConversionError(
                f"equation {i}, {eqn.primitive.name}, of stage {stage} needs a value of stage {stage_of[late]}",
                why="a stage is given values by earlier stages only",
            )
    inputs = {v: i for i, v in enumerate(closed.jaxpr.invars)}
    takes = []
    for number in range(count):
        read = dict.fromkeys(v for eqn, stage in zip(equations, stages) if stage == number for v in reads(eqn))
        own = sorted((v for v in read if v in inputs), key=lambda v: inputs[v])
        takes.append((*own, *(v for v in read if v in stage_of and stage_of[v] != number)))
    outputs = {v for values in takes for v in values} | {v for v in closed.jaxpr.outvars if isinstance(v, Var)}
    return [
        _Part(
            tuple(eqn for eqn, stage in zip(equations, stages) if stage == number),
            takes[number],
            tuple(v for eqn, stage in zip(equations, stages) if stage == number for v in eqn.outvars if v in outputs),
        )
        for number in range(count)
    ]


def _stage(writer: FunctionWriter, part: _Part, number: int, count: int, arch: str) -> str:
    body = [line for eqn in part.equations for line in writer.equation(eqn)]
    takes = [f"    {lines.comment(f'{writer.names[v]}: {_shape(v.aval)}')}" for v in part.takes]
    head = lines.call(f"def stage{number}", [writer.names[v] for v in part.takes])
    docs = f'    """Stage {number} of {count} of {arch}: {len(part.equations)} equation{"s" * (len(part.equations) != 1)}."""'
    inner = [line for function in writer.functions for line in ("", "", *function)]
    results = f"    {lines.returned([writer.names[v] for v in part.gives])}"
    text = [*inner, "", "", f"{head}:", docs, *takes, *body, results, ""]
    code = "\n".join(text)
    loops = [line for word, loop in _LOOPS.items() if word in code for line in ("", *loop.rstrip().split("\n"))]
    code += "\n".join(loops)
    imports = [
        line
        for word, line in (("jax.", "import jax"), ("jnp.", "import jax.numpy as jnp"), ("lax.", "from jax import lax"))
        if word in code
    ]
    own = ["", "from .constants import CONSTANTS"] if "CONSTANTS[" in code else []
    top = [MARK, f'"""Stage {number} of {count} of {arch}."""', "", "from __future__ import annotations"]
    return lines.module(f"stage{number}", [*top, *(["", *imports] if imports else []), *own, *loops, *text])


def _whole(parts: Sequence[_Part], names: Mapping[Var, str], inputs: Sequence[str], results: Sequence[str], arch: str) -> str:
    body: list[str] = []
    for number, part in enumerate(parts):
        body += lines.assigned([names[v] for v in part.gives], lines.call(f"stage{number}", [names[v] for v in part.takes]))
    body.append(lines.returned(results))
    about = f'"""{arch}: {len(parts)} stage{"s" * (len(parts) != 1)} in a row."""'
    imports = ["import jax.numpy as jnp", ""] if any(result.startswith("jnp.") for result in results) else []
    own = ["from .constants import CONSTANTS"] if any("CONSTANTS[" in result for result in results) else []
    own += sorted(f"from .stage{number} import stage{number}" for number in range(len(parts)))
    top = [MARK, about, "", "from __future__ import annotations", "", *imports, *own, "", ""]
    head = lines.call(f"def {arch}", inputs)
    return lines.module(arch, [*top, f"{head}:", f"    {about}", *(f"    {line}" for line in body), ""])


def _init(parts: Sequence[_Part], names: Mapping[Var, str], results: Sequence[str], arch: str) -> str:
    imports = [f"from .{arch} import {arch} as whole", *(f"from .stage{number} import stage{number}" for number in range(len(parts)))]
    rows = [(f"stage{number}", [names[v] for v in part.takes], [names[v] for v in part.gives]) for number, part in enumerate(parts)]
    outputs = [result for result in results if result.isidentifier()][:1]
    return init_module(arch, sorted(imports), rows, outputs, ("function", "whole"))


def _result(atom: Any, names: Mapping[Var, str]) -> str:
    if isinstance(atom, Literal):
        return scalar(atom)
    if atom not in names:
        raise ConversionError("a result of the program is a constant", fix="leave it out of the program")
    return names[atom]


def _stored(constants: Mapping[str, Any]) -> bytes:
    arrays = {}
    for name, const in constants.items():
        try:
            arrays[name] = np.asarray(const)
        except TypeError:
            raise ConversionError(f"a constant of type {type(const).__name__} cannot be stored", fix="pass it as an argument") from None
        if arrays[name].dtype.kind not in "biufc":
            raise ConversionError(f"a constant of type {arrays[name].dtype} cannot be stored", fix="pass it as an argument")
    file = io.BytesIO()
    np.savez(file, **arrays)
    return file.getvalue()
