"""From a jaxpr with a stage for each equation to a package of plain JAX functions."""

from __future__ import annotations

import io
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jax.extend.core import ClosedJaxpr, JaxprEqn, Literal, Var

from shardy_py.pipedream.conversion import lines
from shardy_py.pipedream.conversion.configs import read_ranks, write_configs
from shardy_py.pipedream.conversion.converting import Package, check_name, write_files
from shardy_py.pipedream.conversion.descriptions import ConversionError
from shardy_py.pipedream.conversion.equations import scalar
from shardy_py.pipedream.conversion.functions import Writer, argument_names
from shardy_py.pipedream.conversion.lines import comment, statement
from shardy_py.pipedream.conversion.writing import MARK, assigned, init_module, returned

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
        writer = Writer(names, count)
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
    files = {name: lines.checked(text, name) if isinstance(text, str) else text for name, text in files.items()}
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
        late = next((v for v in _read(eqn) if stage_of.get(v, 0) > stage), None)
        if late is not None:
            raise ConversionError(
                f"equation {i}, {eqn.primitive.name}, of stage {stage} needs a value of stage {stage_of[late]}",
                why="a stage is given values by earlier stages only",
            )
    inputs = {v: i for i, v in enumerate(closed.jaxpr.invars)}
    takes = []
    for number in range(count):
        read = dict.fromkeys(v for eqn, stage in zip(equations, stages) if stage == number for v in _read(eqn))
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


def _read(eqn: JaxprEqn) -> list[Var]:
    return [v for v in eqn.invars if not isinstance(v, Literal)]


def _stage(writer: Writer, part: _Part, number: int, count: int, arch: str) -> str:
    body = [line for eqn in part.equations for line in writer.equation(eqn)]
    takes = [line for v in part.takes for line in comment(f"{writer.names[v]}: {v.aval.str_short(short_dtypes=False)}", 4)]
    head = statement(f"def stage{number}", lines.call("", [writer.names[v] for v in part.takes]), 0, ":")
    docs = f'    """Stage {number} of {count} of {arch}: {len(part.equations)} equation{"s" * (len(part.equations) != 1)}."""'
    inner = [line for function in writer.functions for line in ("", "", *function)]
    text = "\n".join([*inner, "", "", *head, docs, *takes, *body, *returned([writer.names[v] for v in part.gives], 4), ""])
    imports = [
        line
        for word, line in (("jax.", "import jax"), ("jnp.", "import jax.numpy as jnp"), ("lax.", "from jax import lax"))
        if word in text
    ]
    own = ["", "from .constants import CONSTANTS"] if "CONSTANTS[" in text else []
    top = [MARK, f'"""Stage {number} of {count} of {arch}."""', "", "from __future__ import annotations"]
    return "\n".join([*top, *(["", *imports] if imports else []), *own, text])


def _whole(parts: Sequence[_Part], names: Mapping[Var, str], inputs: Sequence[str], results: Sequence[str], arch: str) -> str:
    body: list[str] = []
    for number, part in enumerate(parts):
        call = lines.call(f"stage{number}", [names[v] for v in part.takes])
        body += assigned([names[v] for v in part.gives], call, 4)
    head = statement(f"def {arch}", lines.call("", inputs), 0, ":")
    about = f'"""{arch}: {len(parts)} stage{"s" * (len(parts) != 1)} in a row."""'
    imports = ["import jax.numpy as jnp", ""] if any(result.startswith("jnp.") for result in results) else []
    own = ["from .constants import CONSTANTS"] if any("CONSTANTS[" in result for result in results) else []
    own += sorted(f"from .stage{number} import stage{number}" for number in range(len(parts)))
    top = [MARK, about, "", "from __future__ import annotations", "", *imports, *own, "", ""]
    return "\n".join([*top, *head, f"    {about}", *body, *returned(results, 4), ""])


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
