"""From a graph with stages to a package of Flax modules."""

from __future__ import annotations

import importlib.util
import os
import pathlib
import re
import sys
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType

from shardy_py.files import write_file
from shardy_py.pipedream.conversion.configs import read_ranks, write_configs
from shardy_py.pipedream.conversion.cutting import cut
from shardy_py.pipedream.conversion.descriptions import ConversionError
from shardy_py.pipedream.conversion.kinds import is_name
from shardy_py.pipedream.conversion.program import read_program
from shardy_py.pipedream.conversion.writing import MARK, write_package
from shardy_py.pipedream.partitions.result import Partition
from shardy_py.pipedream.profiles.graph import ProfileGraph

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
