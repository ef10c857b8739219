"""The target of a command: a stored plan, or a function that is planned."""

from __future__ import annotations

import ast
import dataclasses
import difflib
import functools
import importlib
import importlib.util
import inspect
import os
import re
import sys
import sysconfig
import warnings
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from shardy_py.cli.errors import CommandError
from shardy_py.cli.progress import progress
from shardy_py.cost.hardware_table import hardware

if TYPE_CHECKING:
    from jax import ShapeDtypeStruct

    from shardy_py.facade import Plan
    from shardy_py.planner.options import Planner

HOW = "write MODULE:FUNCTION (train:step, or train.py:step), or the file of a stored plan"


def plan_of(target: str, options: Namespace, *, as_it_is: bool = False) -> Plan:
    """The plan that a target names. Raises CommandError if there is nothing of that name, or the options do not fit it.

    Args:
        target: The file of a stored plan, or `MODULE:FUNCTION`: a function under `auto_shard`, any other function of JAX arrays, a function
            that returns a plan, or a plan.
        as_it_is: Whether a function that is not under `auto_shard` is planned as `sp.plan_of` does, and not as if it were.
    """
    from shardy_py.facade import Plan

    mesh_of(options.mesh)  # so that a mistake in it is told before modules are imported
    path = Path(target)
    if path.is_file() and not (":" in target and path.suffix == ".py"):
        if path.suffix == ".py":
            raise CommandError(f"{target} is a module, not a plan", fix=f"name a function in it, {target}:step")
        _refuse_planning(target, options)
        with progress(f"reading {target}"):
            return Plan.load(path)
    if ":" not in target:
        named_as_file = (bool(target) and path.exists()) or path.suffix in (".json", ".gz") or os.sep in target
        raise CommandError(_not_a_file(path) if named_as_file else f"{target!r} names no function", fix=HOW)
    named = lookup(target, options.flags)
    if isinstance(named, Plan):
        return named
    return _planned(named, target, options, as_it_is)


_PLANNING = ("mesh", "args", "args_from", "lowering", "platform")


def _refuse_planning(target: str, options: Namespace) -> None:
    """Rejects planning options for a stored plan; where another target may be a function, they apply to that."""
    planning = [name for name in _PLANNING if getattr(options, name) is not None]
    if planning and not any(hasattr(options, name) for name in ("after", "other")):
        raise CommandError(f"--{planning[0].replace('_', '-')} is for functions", where=target, why="a stored plan is as it was made")


def lookup(target: str, flags: list[str]) -> Any:
    """The object that `MODULE:NAME` names. Raises CommandError if the module or name does not exist."""
    module, _, name = target.rpartition(":")
    if not module or not name:
        raise CommandError(f"{target!r} names no function", fix=HOW)
    with progress(f"importing {module}"):
        named: Any = _imported(module)
    _parse_flags(flags)
    owner = module
    for part in name.split("."):
        if not hasattr(named, part):
            public = {key: value for key, value in getattr(named, "__dict__", {}).items() if not key.startswith("_")}
            names = difflib.get_close_matches(part, public) or [key for key, value in public.items() if callable(value)][:8]
            raise CommandError(f"{owner} has no {part}", fix=f"it has {', '.join(names)}" if names else HOW)
        named, owner = getattr(named, part), f"{owner}:{part}" if owner is module else f"{owner}.{part}"
    return named


def _imported(module: str) -> ModuleType:
    path = Path(module)
    if path.suffix == ".py" or os.sep in module:
        if not path.is_file():
            raise CommandError(_not_a_file(path), fix=HOW)
        return _imported_file(path.resolve())
    if os.getcwd() not in sys.path and "" not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not (module == error.name or module.startswith(f"{error.name}.")):
            raise
        raise CommandError(f"there is no module {module}", fix=HOW) from None


def _not_a_file(path: Path) -> str:
    if path.is_dir():
        return f"{path} is a folder"
    return f"{path} is no regular file" if path.exists() else f"there is no file {path}"


def _imported_file(path: Path) -> ModuleType:
    """The module of a file; it never stands in place of another module, whatever the file is called."""
    name, folder = path.stem, str(path.parent)
    loaded = sys.modules.get(name)
    if loaded is not None and getattr(loaded, "__file__", None) == str(path):
        return loaded
    elsewhere = None if loaded is not None else importlib.util.find_spec(name)
    taken = loaded is not None or name in sys.stdlib_module_names or (elsewhere is not None and elsewhere.origin != str(path))
    if folder not in sys.path:
        # Modules beside the file come before installed ones, as for a script; last where the file itself would hide an installed module.
        # The standard library is never hidden.
        sys.path.insert(len(sys.path) if taken else _behind_standard_library(), folder)
    while name in sys.modules or (taken and name == path.stem):
        name += "_"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise CommandError(f"{path} is no Python file", fix=HOW)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _behind_standard_library() -> int:
    """The first position of `sys.path` from which no entry can hide a module of the standard library."""
    standard = {sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib"), os.path.dirname(os.__file__)}
    return 1 + max((i for i, entry in enumerate(sys.path) if entry in standard or entry.endswith("lib-dynload")), default=-1)


def _parse_flags(flags: list[str]) -> None:
    """Lets modules read the absl flags that they define."""
    from absl import flags as absl_flags

    if flags or not absl_flags.FLAGS.is_parsed():
        try:
            rest = absl_flags.FLAGS(["shardy-py", *flags])
        except absl_flags.Error as error:
            raise CommandError(str(error), where="flags behind --") from None
        if rest[1:]:
            raise CommandError(f"{rest[1]!r} is not a flag of the module", where="behind --")


def _planned(function: Any, target: str, options: Namespace, as_it_is: bool) -> Plan:
    from shardy_py.api import AutoSharded, Options, auto_shard
    from shardy_py.api import check as check_undecorated
    from shardy_py.api.auto import BoundAutoSharded
    from shardy_py.errors import MeshError
    from shardy_py.facade import Plan

    mesh = mesh_of(options.mesh)
    if not callable(function):
        raise CommandError(f"{target} is of type {type(function).__name__}, not a function", fix=HOW)
    has_arguments = options.args is not None or options.args_from is not None
    name = getattr(function, "__name__", target)
    _refuse_unbound(function, target)
    instance = (function.__self__,) if isinstance(function, BoundAutoSharded) else ()
    function = function.__func__ if isinstance(function, BoundAutoSharded) else function
    if not isinstance(function, AutoSharded) and not has_arguments:
        refuse_missing(function, target)
        with progress(f"calling {name}"):
            result = function()
        if isinstance(result, Plan):
            return result
        raise CommandError(
            f"{target} returns something of type {type(result).__name__}, not a plan",
            why="it was called without arguments, since neither --args nor --args-from is given",
            fix="say what to plan for, --args 'float32[8,128]'",
        )
    changes = {} if options.lowering is None else {"lowering": options.lowering}
    changes |= {} if mesh is None else {"mesh": mesh}
    changes |= {} if options.planner is None else {"planner": planner_of(options.planner)}
    named = None if options.planner else getattr(options, "hardware", None)
    platform = options.platform or (hardware(named).platform if named and mesh is not None else None)  # that mesh has no devices
    if platform is not None:
        own = function.options if isinstance(function, AutoSharded) else Options()
        changes["options"] = dataclasses.replace(own, platform=platform)
    without_mesh = f"{target} is under no auto_shard that gives it a mesh"
    step: Any
    if isinstance(function, AutoSharded):
        step = function.replace(**changes) if changes else function
    elif options.planner is None and options.lowering in (None, "jit") and (mesh is None or (as_it_is and not isinstance(mesh, int))):
        args, kwargs = arguments_of(options)
        try:
            with progress(f"planning {name}"):
                step = check_undecorated(function, *args, mesh=mesh, hardware=named, options=changes.get("options"), **kwargs)
                return step.plan
        except MeshError as error:
            raise (CommandError(without_mesh, fix="say which, --mesh data=4,model=2") if mesh is None else error) from None
    elif mesh is None:
        raise CommandError(without_mesh, fix="say which, --mesh data=4,model=2")
    elif isinstance(mesh, int) and options.planner is None:
        fix = "write --mesh data=4,model=2, or add --planner h100"
        raise CommandError(f"--mesh {mesh} names no axes", where=target, why="only a planner chooses them", fix=fix)
    else:
        step = auto_shard(function, **changes)
    if not has_arguments:
        refuse_missing(functools.partial(step.__wrapped__, *instance), target)
    args, kwargs = arguments_of(options)
    with progress(f"planning {name}"):
        return step.plan(*instance, *args, **kwargs)


def _refuse_unbound(function: Any, target: str) -> None:
    """Refuses an unbound method, which has no `self`."""
    *classes, name = target.rpartition(":")[2].split(".")
    try:
        first = next(iter(inspect.signature(function).parameters), "")
    except (TypeError, ValueError):
        return
    if classes and first == "self":
        where = target.removesuffix(f"{classes[-1]}.{name}")
        fix = f"name it of an instance that the module has, {where}INSTANCE.{name}"
        raise CommandError(f"{target} is a method, and {classes[-1]} no instance", fix=fix)


def refuse_missing(function: Any, target: str) -> None:
    """Raises CommandError if a function needs arguments and none are given."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return
    open_kinds = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    needed = [p.name for p in parameters if p.default is p.empty and p.kind not in open_kinds]
    if needed:
        raise CommandError(
            f"{target} takes {', '.join(needed)}",
            fix="say what, --args 'float32[8,128]' ..., or --args-from MODULE:NAME, which gives a tuple of them",
        )


def mesh_of(text: str | None) -> _AnyMesh:
    """A mesh from `data=4,model=2`, or a number of devices whose shape a planner chooses. Raises CommandError for any other text.

    Example:
        >>> mesh_of("data=4,model=2"), mesh_of("8")
        ({'data': 4, 'model': 2}, 8)
    """
    if text is None:
        return None
    if text.strip().isdecimal():
        return int(text)
    sizes: dict[str, int] = {}
    for part in text.split(","):
        name, _, size = part.partition("=")
        name = name.strip()
        if name in sizes:
            raise CommandError(f"axis {name!r} is given twice", where=f"--mesh {text}", fix="give each axis a name of its own")
        if not name or not size.strip().isdecimal() or not 0 < int(size) < 1 << 31:
            raise CommandError(f"{part.strip()!r} is no axis of a mesh", where=f"--mesh {text}", fix="write --mesh data=4,model=2")
        sizes[name] = int(size)
    return sizes


def arguments_of(options: Namespace) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of the traced function, positional and named. Raises CommandError if both options are given or a type is invalid."""
    if options.args is not None and options.args_from is not None:
        raise CommandError("--args and --args-from are both given", fix="give one of them")
    if options.args_from is not None:
        arguments = lookup(options.args_from, [])
        if callable(arguments):
            with progress(f"calling {options.args_from}"):
                arguments = arguments()
        return (arguments if isinstance(arguments, tuple) else (arguments,)), {}
    return parse_arguments(options.args or [], mesh_of(options.mesh))


_FIELDS: dict[str, Callable[[str], Any]] = {
    **dict.fromkeys(("hardware", "memory_bytes", "annotations"), str),
    **dict.fromkeys(("time_limit_s", "gap", "overlap"), float),
    "constraints": {"true": True, "false": False}.__getitem__,
}
"""Fields of `Planner` that have a key -> what reads their values."""

_OLD = {"memory": "memory_bytes", "seconds": "time_limit_s"}
"""Keys of earlier versions, which scripts have."""


def planner_of(text: str) -> Planner:
    """The planner that a text describes. Raises CommandError if a key is unknown, or a value is not of its kind.

    Args:
        text: Fields of `Planner` and their values, `hardware=v5e,memory_bytes=16GiB,time_limit_s=10,gap=0.01,constraints=false`,
            `annotations=ignore`; a name alone is the hardware.
    """
    from shardy_py.planner.options import Planner

    fields: dict[str, Any] = {}
    for part in text.split(","):
        key, _, value = part.strip().partition("=") if "=" in part else ("hardware", "=", part.strip())
        key = _OLD.get(key, key)
        if key not in _FIELDS:
            keys = ", ".join(f"{each}=..." for each in _FIELDS)
            raise CommandError(f"unknown planner option {key!r}", where="--planner", fix=f"use {keys}")
        if key in fields:
            raise CommandError(f"{key} is given twice", where=f"--planner {text}", fix="give it once")
        try:
            fields[key] = _FIELDS[key](value)
        except (KeyError, ValueError):
            kind = "neither true nor false" if key == "constraints" else "no number"
            raise CommandError(f"the value of {part.strip()!r} is {kind}", where="--planner") from None
    if "hardware" not in fields:
        raise CommandError("a planner without hardware", where="--planner", fix="say what to plan for, --planner h100")
    return Planner(**fields)


SHORT = {
    **{f"f{n}": f"float{n}" for n in (16, 32, 64)},
    **{f"{kind[0]}{n}": f"{kind}{n}" for kind in ("int", "uint") for n in (2, 4, 8, 16, 32, 64)},
    **{f"c{n}": f"complex{n}" for n in (64, 128)},
    "bf16": "bfloat16",
}
"""Short names of element types, as in jaxprs."""

_QUOTED = r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*\""""
_SCALAR = re.compile(rf"{_QUOTED}|(?P<name>\w\s*)\[\s*\]")
_NAMED = re.compile(r"(?P<name>[A-Za-z_]\w*)=(?P<value>.*)", re.DOTALL)

_AnyMesh = dict[str, int] | int | None


def parse_arguments(texts: list[str], mesh: _AnyMesh = None) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Positional and keyword arguments, `x=float32[8]`, sharded over axes of a mesh. Raises CommandError if one cannot be read.

    Example:
        >>> parse_arguments(["f32[8,4]", "rate=0.1"])
        ((ShapeDtypeStruct(shape=(8, 4), dtype=float32),), {'rate': 0.1})
    """
    positional: list[Any] = []
    named: dict[str, Any] = {}
    for text in texts:
        match = _NAMED.fullmatch(text.strip())
        if match is None:
            if named:
                raise CommandError(f"the argument {text!r} has no name and stands behind one that has", where="--args")
            positional.append(parse_argument(text, mesh))
        elif match["name"] in named:
            raise CommandError(f"the argument {match['name']} is given twice", where="--args")
        else:
            named[match["name"]] = parse_argument(match["value"], mesh)
    return tuple(positional), named


def parse_argument(text: str, mesh: _AnyMesh = None) -> Any:
    """Parses one argument: a Python literal, in which types may stand for arrays. Raises CommandError if it cannot be read."""
    python = _SCALAR.sub(lambda match: f"{match['name']}[()]" if match["name"] else match.group(), text).strip()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # an escape that Python only warns of is a mistake here
            return _value(ast.parse(python, mode="eval").body, mesh, text)
    except CommandError:
        raise
    except (SyntaxError, TypeError, ValueError, Warning, MemoryError, RecursionError):
        raise _refused("no type and no value", text) from None


def _value(node: ast.expr, mesh: _AnyMesh, text: str) -> Any:
    match node:
        case ast.Subscript(ast.Name(dtype), ast.Tuple(dims)):
            return _struct(dtype, dims, mesh, text)
        case ast.Subscript(ast.Name(dtype), dim):
            return _struct(dtype, [dim], mesh, text)
        case ast.List():
            return [_value(item, mesh, text) for item in node.elts]
        case ast.Tuple():
            return tuple(_value(item, mesh, text) for item in node.elts)
        case ast.Dict():
            keys = [ast.literal_eval(key) for key in node.keys if key is not None]
            if len(set(keys)) < len(node.values):
                raise _refused("a name that stands twice", text)
            return dict(zip(keys, (_value(value, mesh, text) for value in node.values)))
        case _:
            return ast.literal_eval(node)


def _struct(name: str, dims: list[ast.expr], mesh: _AnyMesh, text: str) -> ShapeDtypeStruct:
    """An array by its type, `float32[8@data,4@(x,y)]`."""
    import jax
    import jax.numpy as jnp
    from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec

    shape: list[int] = []
    spec: list[tuple[str, ...]] = []
    for dim in dims:
        size, axes = (dim.left, dim.right) if isinstance(dim, ast.BinOp) and isinstance(dim.op, ast.MatMult) else (dim, ast.Tuple([]))
        if not isinstance(size, ast.Constant) or type(size.value) is not int:
            raise _refused(f"{ast.unparse(dim)!r} is not a dimension", text)
        shape.append(size.value)
        spec.append(tuple(map(ast.unparse, axes.elts if isinstance(axes, ast.Tuple) else [axes])))
    try:
        dtype = jnp.dtype(SHORT.get(name, name))
    except TypeError:
        raise CommandError(f"unknown element type {name!r}", where="--args", fix="write float32, bfloat16, int32, ...") from None
    if not any(spec):
        return jax.ShapeDtypeStruct(shape, dtype)
    if not isinstance(mesh, dict):
        lacks = "there is no --mesh" if mesh is None else f"--mesh {mesh} names none"
        raise CommandError(f"an argument has mesh axes, and {lacks}", where="--args", fix="write --mesh data=4,model=2")
    unknown = next((axis for axes in spec for axis in axes if axis not in mesh), None)
    if unknown is not None:
        raise CommandError(f"the mesh has no axis {unknown!r}", where="--args", fix=f"its axes are {', '.join(mesh)}")
    over = AbstractMesh(tuple(mesh.values()), tuple(mesh), axis_types=(AxisType.Auto,) * len(mesh))
    return jax.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(over, PartitionSpec(*(axes or None for axes in spec))))


def _refused(what: str, text: str) -> CommandError:
    fix = "write types as float32[8,128] or float32[8@data,128], in {'name': ...}, [...] or (...), or numbers, strings, None"
    return CommandError(what, where=f"--args {text}", fix=fix)
