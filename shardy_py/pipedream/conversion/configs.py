"""PipeDream's configuration files: which stage each module is in, and which ranks run each stage."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from shardy_py.pipedream.conversion.descriptions import ConversionError


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
