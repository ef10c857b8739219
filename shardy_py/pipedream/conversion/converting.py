"""From a graph with stages to a package of Flax modules."""

from __future__ import annotations

import importlib.util
import json
import os
import pathlib
import re
import sys
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType

from shardy_py.files import write_file
from shardy_py.pipedream.conversion import lines
from shardy_py.pipedream.conversion.descriptions import ConversionError
from shardy_py.pipedream.conversion.expressions import import_line, modules_of, written
from shardy_py.pipedream.conversion.kinds import is_name
from shardy_py.pipedream.conversion.program import ModelStage, StagedModel, cut, read_program
from shardy_py.pipedream.partitions.result import Partition
from shardy_py.pipedream.profiles.graph import ProfileGraph


def write_configs(num_stages: int, ranks: Sequence[int] | None) -> dict[str, str]:
    """The texts of dp_conf.json, mp_conf.json and, where ranks are given, hybrid_conf.json.

    The criterion is a module of its own, in the last stage. Data parallelism has all modules in one stage on all ranks, model
    parallelism has one rank per stage, and the hybrid has neighbouring ranks for each stage.

    Example:
        >>> print(write_configs(2, [3, 1])["hybrid_conf.json"], end="")
        {
            "module_to_stage_map": [0, 1, 1],
            "stage_to_rank_map": {"0": [0, 1, 2], "1": [3]}
        }
    """
    modules = [*range(num_stages), num_stages - 1]
    everyone = list(range(sum(ranks) if ranks is not None else num_stages))
    texts = {
        "dp_conf.json": _conf([0] * len(modules), {"0": everyone}),
        "mp_conf.json": _conf(modules, {str(stage): [stage] for stage in range(num_stages)}),
    }
    if ranks is not None:
        starts = [sum(ranks[:stage]) for stage in range(num_stages)]
        own = {str(stage): list(range(start, start + count)) for stage, (start, count) in enumerate(zip(starts, ranks))}
        texts["hybrid_conf.json"] = _conf(modules, own)
    return texts


def read_ranks(stage_to_num_ranks: Mapping[int, int] | Sequence[int] | str, num_stages: int) -> list[int]:
    """The ranks of each stage, from a mapping, a sequence or "0:3,1:1". Raises ConversionError for unknown or missing stages."""
    where = f"stage_to_num_ranks={stage_to_num_ranks!r}"
    fix = f"give a positive number for each of the {num_stages} stages, such as {dict.fromkeys(range(num_stages), 1)}"
    if isinstance(stage_to_num_ranks, str):
        parts = [part.split(":") for part in stage_to_num_ranks.split(",")]
        if not all(len(pair) == 2 and all(text.strip().isascii() and text.strip().isdigit() for text in pair) for pair in parts):
            raise ConversionError("the number of ranks is malformed", where=where, fix='write "0:3,1:1"')
        pairs = [(int(stage), int(ranks)) for stage, ranks in parts]
    elif isinstance(stage_to_num_ranks, Mapping):
        pairs = list(stage_to_num_ranks.items())
    elif isinstance(stage_to_num_ranks, Sequence):
        pairs = list(enumerate(stage_to_num_ranks))
    else:
        raise TypeError(f"stage_to_num_ranks is a mapping, a sequence or text, not {type(stage_to_num_ranks).__name__}")
    ranks_of = dict(pairs)
    if len(ranks_of) < len(pairs):
        raise ConversionError("a stage is given twice", where=where)
    if sorted(ranks_of, key=str) != sorted(range(num_stages), key=str):
        raise ConversionError(f"the graph has the stages 0 to {num_stages - 1}, ranks are given for {list(ranks_of)}", where=where, fix=fix)
    wrong = next((count for count in ranks_of.values() if type(count) is not int or count < 1), None)
    if wrong is not None:
        raise ConversionError(f"{wrong!r} is no number of ranks", where=where, fix=fix)
    return [ranks_of[stage] for stage in range(num_stages)]


def _conf(modules: list[int], ranks: dict[str, list[int]]) -> str:
    return f'{{\n    "module_to_stage_map": {json.dumps(modules)},\n    "stage_to_rank_map": {json.dumps(ranks)}\n}}\n'


MARK = "# Written by shardy_py."


def write_package(cut: StagedModel, arch: str, model_name: str) -> dict[str, str]:
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
    return texts


def _own_source(name: str) -> str:
    text = (pathlib.Path(__file__).parent / "copied" / f"{name}.py").read_text()
    return f"{MARK}\n{text}"


def _module(cut: StagedModel, stage: ModelStage, class_name: str, about: str) -> str:
    modules = {"flax.linen", *(module for step in stage.steps for module in modules_of(step.call))}
    if any(_crosses_as_shape(cut, id) for id in stage.gives):
        modules.add("jax.numpy")
    own = sorted(modules & {"layers", "recurrent"})
    imports = [*sorted({import_line(module) for module in modules - set(own)}), *(["", f"from . import {', '.join(own)}"] if own else [])]
    count = sum(bool(step.call.kind.module) for step in stage.steps)
    docs = f"{about}: {count} layer{'s' * (count != 1)}."
    return _class_module(class_name, f"{about}.", imports, docs, [cut.names[id] for id in stage.takes], _body(cut, stage))


def _class_module(class_name: str, about: str, imports: Sequence[str], docs: str, takes: Sequence[str], body: Sequence[str]) -> str:
    top = [MARK, f'"""{about}"""', "", "from __future__ import annotations", "", *imports, "", ""]
    head = [f"class {class_name}(nn.Module):", f'    """{docs}"""', "", "    @nn.compact"]
    signature = lines.call("    def __call__", ["self", *takes, "*", "train=False", "key=None"])
    return lines.module(class_name, [*top, *head, f"{signature}:", *(f"        {line}" for line in body), ""])


def _body(cut: StagedModel, stage: ModelStage) -> list[str]:
    program = cut.program
    text: list[str] = []
    local = {step.id: _local(step.name) for step in stage.steps}
    for id in stage.takes:
        local[id] = cut.names[id]
        text.append(lines.comment(f"{cut.names[id]}: {id}, {program.by_id[id].description}"))
    for id in stage.takes:
        if _crosses_as_shape(cut, id):
            # The array has no elements: only its shape is used.
            local[id] = _local(program.by_id[id].name)
            text.append(f"{local[id]} = {cut.names[id]}.shape[{'0' if program.by_id[id].gives == 'size' else ':-1'}]")
    for step in stage.steps:
        gives = [program.by_id[id].gives for id in step.operands]
        operands = ["None" if what == "state" else local[id] for id, what in zip(step.operands, gives)]
        value = written(step.call, step.name, operands, gives)
        text.append(f"{local[step.id]} = {value}")
    results = []
    for id in stage.gives:
        array = {"size": f"jnp.zeros(({local[id]}, 0))", "shape": f"jnp.zeros((*{local[id]}, 0))"}
        results.append(array.get(program.by_id[id].gives, local[id]) if _crosses_as_shape(cut, id) else local[id])
    return [*text, lines.returned(results)]


def _fused(cut: StagedModel, arch: str, model_name: str) -> str:
    body: list[str] = []
    for stage in cut.stages:
        module = f'Stage{stage.index}(name="stage{stage.index}")'
        arguments = [*(cut.names[id] for id in stage.takes), "train=train", "key=key"]
        body += lines.assigned([cut.names[id] for id in stage.gives], lines.call(module, arguments))
    body.append(lines.returned([cut.names[id] for id in cut.program.results]))
    about = f"{arch}: {len(cut.stages)} stages in a row."
    imports = ["import flax.linen as nn", "", *sorted(f"from .stage{stage.index} import Stage{stage.index}" for stage in cut.stages)]
    return _class_module(model_name, about, imports, about, [cut.names[id] for id in cut.program.inputs], body)


def _init(cut: StagedModel, arch: str, model_name: str) -> str:
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
    rows = [lines.call("", [code, *(json.dumps(each) for each in names)]) for code, *names in [*stages, ("criterion", outputs, ["loss"])]]
    text = f'''{MARK}
"""{arch} in {len(stages)} stage{"s" * (len(stages) != 1)}."""

from __future__ import annotations

{chr(10).join(imports)}


def arch():
    """The name of the architecture."""
    return "{arch}"


def model(criterion):
    """Each stage with the names of what it takes and gives; the criterion makes the loss."""
    return [
{chr(10).join(f"        {row}," for row in rows)}
    ]


def full_model():
    """All stages as one {whole[0]}."""
    return {whole[1]}
'''
    return lines.module("__init__", text.split("\n"))


def _crosses_as_shape(cut: StagedModel, id: str) -> bool:
    return cut.program.by_id[id].gives in ("size", "shape")


def _local(name: str) -> str:
    """A variable for a layer; it never hides a name that the code uses."""
    return name if lines.is_free(name) and not re.fullmatch(r"(input|out)\d+", name) else f"{name}_"


# Names of modules and of what modules import, which no model can have.
_RESERVED = frozenset({"layers", "recurrent", "nn", "jax", "jnp", "arch", "model", "full_model", "annotations"})


@dataclass(frozen=True)
class Package:
    """A generated package.

    Args:
        directory: Where it is.
        arch: Name of the architecture.
        files: Names of its files, in the order in which they were written.
        num_stages: Number of stages.

    Example:
        >>> import tempfile, jax, jax.numpy as jnp, shardy_py as sp
        >>> traced = jax.make_jaxpr(lambda w, x: jnp.tanh(x @ w) * 2)(jnp.ones((3, 3)), jnp.ones((2, 3)))
        >>> package = sp.pipedream.convert_jaxpr(traced, [0, 0, 1], tempfile.mkdtemp(), arch="small")
        >>> package.num_stages, package.files[:3]
        (2, ('stage0.py', 'stage1.py', 'small.py'))
    """

    directory: pathlib.Path
    arch: str
    files: tuple[str, ...]
    num_stages: int

    def load(self) -> ModuleType:
        """Imports the package from its directory, under a name of its own."""
        name = f"_shardy_py_{self.arch}_{zlib.crc32(str(self.directory.resolve()).encode()):x}"
        for loaded in [each for each in sys.modules if each == name or each.startswith(f"{name}.")]:
            del sys.modules[loaded]
        path = self.directory / "__init__.py"
        spec = importlib.util.spec_from_file_location(name, path, submodule_search_locations=[str(self.directory)])
        if spec is None or spec.loader is None:
            raise ConversionError(f"{path} cannot be imported")
        importlib.invalidate_caches()
        module = sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module


def convert(
    graph_with_stages: ProfileGraph | Partition,
    directory: str | os.PathLike[str],
    *,
    arch: str,
    model_name: str,
    stage_to_num_ranks: Mapping[int, int] | Sequence[int] | str | None = None,
) -> Package:
    """Writes a package of Flax modules, one per stage, as PipeDream's convert_graph_to_model.py writes PyTorch's.

    Args:
        graph_with_stages: A graph whose nodes have stage ids, or a partition; without stage ids it becomes one module.
        directory: Where the package is written; it is made if it is not there. Files with the names of the package are replaced.
        arch: Name of the architecture and of the whole model's file.
        model_name: Name of the whole model's class.
        stage_to_num_ranks: Number of ranks per stage, for hybrid_conf.json; `{0: 3, 1: 1}`, `[3, 1]` or `"0:3,1:1"`. A partition
            knows its own.

    Returns:
        The package: `<arch>.py` with all stages fused, `stage0.py` and so on if there are several, `__init__.py` with `arch()`,
        `model(criterion)` and `full_model()`, the layers they use, and the configurations dp_conf.json, mp_conf.json and
        hybrid_conf.json.

    Raises:
        ConversionError: If a node, a name, a stage or a number of ranks is wrong. Nothing is written then.
        GraphError: If only some nodes have a stage id, or a number of a stage is missing.

    Example:
        >>> import tempfile
        >>> from shardy_py.pipedream import ProfileGraph, ProfileNode
        >>> nodes = ProfileNode("x", "Input", stage=0), ProfileNode("a", "Linear(2, 2)", stage=0), ProfileNode("b", "ReLU", stage=1)
        >>> graph = ProfileGraph(nodes, (("x", "a"), ("a", "b")))
        >>> convert(graph, tempfile.mkdtemp(), arch="small", model_name="Small").files
        ('layers.py', 'stage0.py', 'stage1.py', 'small.py', '__init__.py', 'dp_conf.json', 'mp_conf.json')
    """
    if isinstance(graph_with_stages, Partition):
        stage_to_num_ranks = graph_with_stages.replication if stage_to_num_ranks is None else stage_to_num_ranks
        graph_with_stages = graph_with_stages.graph
    for what, name in (("arch", arch), ("model_name", model_name)):
        check_name(what, name)
    cuts = cut(read_program(graph_with_stages))
    count = len(cuts.stages)
    ranks = None if stage_to_num_ranks is None else read_ranks(stage_to_num_ranks, count)
    texts = {**write_package(cuts, arch, model_name), **write_configs(count, ranks)}
    path = write_files(directory, texts)
    return Package(path, arch, tuple(texts), count)


def check_name(what: str, name: str) -> None:
    """Raises ConversionError if a name is not an ASCII identifier, or if generated code uses it for something else."""
    if not isinstance(name, str):
        raise TypeError(f"{what} is a str, not {type(name).__name__}")
    if not is_name(name):
        raise ConversionError(f"{what}={name!r} is not an identifier", why="it is the name of a module or class", fix='"vgg16"')
    if name in _RESERVED or name.startswith("__") or re.fullmatch(r"[sS]tage\d+", name):
        raise ConversionError(f"{what}={name!r} is a name that generated code uses itself", fix="choose another name")


def write_files(directory: str | os.PathLike[str], texts: Mapping[str, str | bytes]) -> pathlib.Path:
    """Writes a package's files and removes modules of stages that an earlier conversion left behind."""
    path = pathlib.Path(directory)
    if path.exists() and not path.is_dir():
        raise ConversionError(f"{str(path)!r} is no directory", fix="give the directory of the package")
    path.mkdir(parents=True, exist_ok=True)
    stale = [path / "hybrid_conf.json"] if (path / "__init__.py").exists() and (path / "__init__.py").read_text().startswith(MARK) else []
    stale += [old for old in sorted(path.glob("stage*.py")) if re.fullmatch(r"stage\d+\.py", old.name) and old.read_text().startswith(MARK)]
    for name, text in texts.items():
        write_file(path / name, text)
    for old in stale:  # last, so that a disk that is full costs nothing
        if old.name not in texts:
            old.unlink(missing_ok=True)
    return path
