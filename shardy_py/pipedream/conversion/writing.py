"""Writes the files of a generated package."""

from __future__ import annotations

import pathlib
import re
from collections.abc import Sequence

from shardy_py.pipedream.conversion import lines
from shardy_py.pipedream.conversion.cutting import Cut, Stage
from shardy_py.pipedream.conversion.expressions import import_line, modules_of, written
from shardy_py.pipedream.conversion.lines import Code, comment, statement
from shardy_py.pipedream.conversion.program import Step

MARK = "# Written by shardy_py."


def write_package(cut: Cut, arch: str, model_name: str) -> dict[str, str]:
    """All modules of a package by file name: `<arch>.py`, `__init__.py`, the layers, and one per stage if there are several."""
    used = {module for step in cut.program.steps for module in modules_of(step.call)}
    texts = {f"{name}.py": _own_source(name) for name in ("layers", "recurrent") if used & {name, "recurrent"}}
    if len(cut.stages) == 1:
        texts[f"{arch}.py"] = _module(cut, cut.stages[0], model_name, f"{arch} as one module")
    else:
        for stage in cut.stages:
            about = f"Stage {stage.index} of {len(cut.stages)} of {arch}"
            texts[f"stage{stage.index}.py"] = _module(cut, stage, f"Stage{stage.index}", about)
        texts[f"{arch}.py"] = _fused(cut, arch, model_name)
    texts["__init__.py"] = _init(cut, arch, model_name)
    return {name: lines.checked(text, name) for name, text in texts.items()}


def _own_source(name: str) -> str:
    text = (pathlib.Path(__file__).parent / "copied" / f"{name}.py").read_text()
    return f"{MARK}\n{text}"


def _module(cut: Cut, stage: Stage, class_name: str, about: str) -> str:
    body = _body(cut, stage)
    modules = {"flax.linen", *(module for step in stage.steps for module in modules_of(step.call))}
    if any(_crosses_as_shape(cut, id) for id in stage.gives):
        modules.add("jax.numpy")
    count = sum(bool(step.call.kind.module) for step in stage.steps)
    docs = f'    """{about}: {count} layer{"s" * (count != 1)}."""'
    signature = _signature([cut.names[id] for id in stage.takes])
    return "\n".join(
        [*_top(about, modules), f"class {class_name}(nn.Module):", docs, "", "    @nn.compact", *signature, *body, ""],
    )


def _top(about: str, modules: set[str]) -> list[str]:
    own = sorted(modules & {"layers", "recurrent"})
    others = sorted({import_line(module) for module in modules - set(own)})
    blocks = [["from __future__ import annotations"], others, [f"from . import {', '.join(own)}"] if own else []]
    return [MARK, f'"""{about}."""', *(line for block in blocks if block for line in ("", *block)), "", ""]


def _signature(names: Sequence[str]) -> list[str]:
    parts = ["self", *names, "*", "train=False", "key=None"]
    return statement("def __call__", lines.call("", parts), 4, ":")


def _body(cut: Cut, stage: Stage) -> list[str]:
    program, pad = cut.program, 8
    text: list[str] = []
    local = {step.id: _local(step.name) for step in stage.steps}
    for id in stage.takes:
        local[id] = cut.names[id]
        step = program.by_id[id]
        text += comment(f"{cut.names[id]}: {step.id}, {step.description}", pad)
    for id in stage.takes:
        if _crosses_as_shape(cut, id):
            # The array has no elements: only its shape is used.
            local[id] = _local(program.by_id[id].name)
            text += statement(f"{local[id]} = ", f"{cut.names[id]}.shape[{'0' if program.by_id[id].gives == 'size' else ':-1'}]", pad)
    for step in stage.steps:
        text += _statements(step, local, [program.by_id[id].gives for id in step.operands], cut.states.get(step.id, 0), pad)
    results = []
    for id in stage.gives:
        what = program.by_id[id].gives
        array = {"size": f"jnp.zeros(({local[id]}, 0))", "shape": f"jnp.zeros((*{local[id]}, 0))"}
        results.append(array.get(what, local[id]) if _crosses_as_shape(cut, id) else local[id])
    return text + returned(results, pad)


def _statements(step: Step, local: dict[str, str], gives: list[str], states: int, pad: int) -> list[str]:
    layer, value = written(step.call, step.name, [local[id] for id in step.operands], gives, states)
    target = f"{local[step.id]} = "
    if layer is None:
        return statement(target, value, pad)
    whole = Code(value.head.replace("{}", layer.flat), value.parts, value.tail)
    if len(f"{' ' * pad}{target}{whole.flat}") <= lines.WIDTH:
        return statement(target, whole, pad)
    return [*statement("layer = ", layer, pad), *statement(target, Code(value.head.replace("{}", "layer"), value.parts, value.tail), pad)]


def returned(results: Sequence[str], pad: int) -> list[str]:
    """The statement that returns some values."""
    flat = statement("return ", ", ".join(results) or "()", pad)
    return flat if len(flat[0]) <= lines.WIDTH else statement("return ", lines.call("", results), pad)


def assigned(names: Sequence[str], call: Code, pad: int) -> list[str]:
    """Statements that give the results of a call their names."""
    target = ", ".join(names)
    if len(target) > 60:
        return [*statement("outs = ", call, pad), *statement("", Code("(", tuple(names), ")"), pad, " = outs")]
    return statement(f"{target} = " if target else "", call, pad)


def _fused(cut: Cut, arch: str, model_name: str) -> str:
    text: list[str] = []
    for stage in cut.stages:
        arguments = [*(cut.names[id] for id in stage.takes), "train=train", "key=key"]
        call = lines.call(f'Stage{stage.index}(name="stage{stage.index}")', arguments)
        text += assigned([cut.names[id] for id in stage.gives], call, 8)
    text += returned([cut.names[id] for id in cut.program.results], 8)
    about = f"{arch}: {len(cut.stages)} stages in a row"
    stages = [f"from .stage{stage.index} import Stage{stage.index}" for stage in cut.stages]
    head = [MARK, f'"""{about}."""', "", "from __future__ import annotations", "", "import flax.linen as nn", "", *sorted(stages), "", ""]
    signature = _signature([cut.names[id] for id in cut.program.inputs])
    return "\n".join([*head, f"class {model_name}(nn.Module):", f'    """{about}."""', "", "    @nn.compact", *signature, *text, ""])


def _init(cut: Cut, arch: str, model_name: str) -> str:
    several = len(cut.stages) > 1
    modules = [(arch, model_name), *((f"stage{s.index}", f"Stage{s.index}") for s in cut.stages if several)]
    imports = [f"from .{module} import {name}" for module, name in sorted(modules)]
    names = cut.names
    rows = [
        (f"Stage{stage.index}()" if several else f"{model_name}()", [names[id] for id in stage.takes], [names[id] for id in stage.gives])
        for stage in cut.stages
    ]
    first = next((id for stage in reversed(cut.stages) for id in stage.gives if id in cut.program.results), cut.program.results[0])
    return init_module(arch, imports, rows, [names[first]], ("module", f"{model_name}()"))


def init_module(
    arch: str,
    imports: Sequence[str],
    stages: Sequence[tuple[str, Sequence[str], Sequence[str]]],
    outputs: Sequence[str],
    whole: tuple[str, str],
) -> str:
    """The `__init__.py` of a package."""
    table = [lines.call("", [code, *map(_listed, names)]) for code, *names in [*stages, ("criterion", outputs, ["loss"])]]
    statements = "\n".join(imports)
    rows = "\n".join(line for row in table for line in statement("", row, 8, ","))
    return f'''{MARK}
"""{arch} in {len(stages)} stage{"s" * (len(stages) != 1)}."""

from __future__ import annotations

{statements}


def arch():
    """The name of the architecture."""
    return "{arch}"


def model(criterion):
    """Each stage with the names of what it takes and gives; the criterion makes the loss."""
    return [
{rows}
    ]


def full_model():
    """All stages as one {whole[0]}."""
    return {whole[1]}
'''


def _listed(names: Sequence[str]) -> Code:
    return Code("[", tuple(f'"{name}"' for name in names), "]")


def _crosses_as_shape(cut: Cut, id: str) -> bool:
    return cut.program.by_id[id].gives in ("size", "shape")


def _local(name: str) -> str:
    """A variable for a layer; it never hides a name that the code uses."""
    return name if lines.is_free(name) and not re.fullmatch(r"(input|out)\d+", name) else f"{name}_"
