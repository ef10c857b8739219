"""A plan pinned to a small file: shardings of inputs and outputs, reshards, collectives."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from shardy_py.facade import Plan
from shardy_py.files import write_file
from shardy_py.plan.collectives import format_bytes
from shardy_py.plan.reshards import Reshard
from shardy_py.plan.store.codec import StoreError
from shardy_py.plan.values import typed

FORMAT = "shardy_py.pinned"
VERSION = 2
"""In files of version 1, reshards are those that Shardy makes explicit for the plan's shardings."""
UPDATE = "SHARDY_PY_UPDATE"
"""Environment variable: with `1` in it, files are written in place of being compared."""

_OPTIONAL = "values"
_SECTIONS = ("mesh", "inputs", "outputs", "values", "reshards", "collectives")
_LONGEST = 40


def assert_plan_matches(plan: Plan, file: str | os.PathLike[str], *, update: bool = False, intermediates: bool = False) -> None:
    """Asserts that a plan equals a pinned one in a file.

    The file is JSON that is meant to lie in a repository and to be read in reviews: one line per input, output, kind of reshard and kind
    of collective. Source lines, names of intermediates and numbers of ops are not in it, so that an edit that leaves the shardings alone
    leaves the file alone.

    Args:
        plan: The plan.
        file: The file. To write it, the first time or after an intended change, run the test with `SHARDY_PY_UPDATE=1` in the environment,
            or call this with `update=True` once, and look at what changed in it before you keep it.
        update: Write the file.
        intermediates: Pin the shardings of intermediates too, by module and primitive; such a file changes more often.

    Raises:
        AssertionError: The plan differs, as the message lists; or there is no such file.
        StoreError: The file is something else.

    Example:
        >>> import tempfile, jax, jax.numpy as jnp, shardy_py as sp
        >>> plan = sp.auto_shard(jnp.sin, mesh={"x": 2}, in_shardings=jax.P("x")).plan(jnp.ones(4))
        >>> file = tempfile.mkdtemp() + "/plan.json"
        >>> assert_plan_matches(plan, file, update=True)
        >>> assert_plan_matches(plan, file)
    """
    __tracebackhide__ = True
    path = Path(file)
    how = f"if this is intended, run with {UPDATE}=1, or once with update=True, and commit the file"
    if update or os.environ.get(UPDATE, "") not in ("", "0"):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_file(path, pinned_text(pinned(plan, intermediates=intermediates)))
        return
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        first = f"to write it, run with {UPDATE}=1, or once with update=True, and look at it before you keep it"
        raise AssertionError(f"the plan of {plan.name} is not pinned yet: there is no file {path}\n{first}") from None
    before = _read(content, path)
    differences = _differences(before, pinned(plan, intermediates=intermediates, version=before["version"]))
    if differences:
        shown = differences[:_LONGEST]
        more = [f"  ... and {len(differences) - _LONGEST} more"] if len(differences) > _LONGEST else []
        raise AssertionError("\n".join((f"the plan of {plan.name} is no longer as in {path}", *shown, *more, how)))


def pinned(plan: Plan, *, intermediates: bool = False, version: int = VERSION) -> dict[str, Any]:
    """Shardings, reshards and collectives of a plan, as JSON for a file that pins them."""
    values: dict[str, int] = {}
    for value in plan.values if intermediates else ():
        if value.kind == "intermediate" and value.shape:
            key = " ".join(part for part in (value.module, value.primitive, typed(value.type, value.sharding)) if part)
            values[key] = values.get(key, 0) + 1
    return {
        "format": FORMAT,
        "version": version,
        "mesh": dict(plan.mesh.shape),
        "inputs": {value.path: typed(value.type, value.sharding) for value in plan.inputs},
        "outputs": {value.path: typed(value.type, value.sharding) for value in plan.outputs},
        **({"values": dict(sorted(values.items()))} if intermediates else {}),
        "reshards": _reshards(plan, plan.shardy_reshards if version == 1 else plan.reshards),
        "collectives": _collectives(plan),
    }


def _reshards(plan: Plan, reshards: Sequence[Reshard]) -> dict[str, Any]:
    entries: dict[str, dict[str, int]] = {}
    inputs = {value.path for value in plan.inputs}
    for reshard in reshards:
        entry = entries.setdefault(_described(reshard, inputs), {"count": 0, "bytes": 0})
        entry["count"] += 1
        entry["bytes"] += reshard.call_bytes
    return dict(sorted(entries.items()))


def _described(reshard: Reshard, inputs: set[str]) -> str:
    name = f"{reshard.value} " if reshard.value in inputs else ""
    reason = re.sub(r"_\d+\b", "", reshard.reason)
    return f"{name}{reshard.change}: {reshard.steps}; {reason}"


def _collectives(plan: Plan) -> dict[str, Any]:
    entries: dict[str, dict[str, int]] = {}
    for c in plan.collectives:
        entry = entries.setdefault(c.title, {"count": 0, "bytes": 0})
        entry["count"] += 1
        entry["bytes"] += c.call_bytes
    return dict(sorted(entries.items()))


def pinned_text(data: Mapping[str, Any]) -> str:
    """The text of a file, one entry per line."""
    parts: list[str] = []
    for name, value in data.items():
        if isinstance(value, dict) and value and name != "mesh":
            entries = ",\n".join(f"    {json.dumps(key)}: {json.dumps(entry)}" for key, entry in value.items())
            parts.append(f"  {json.dumps(name)}: {{\n{entries}\n  }}")
        else:
            parts.append(f"  {json.dumps(name)}: {json.dumps(value)}")
    return "{\n" + ",\n".join(parts) + "\n}\n"


def _read(content: bytes, path: Path) -> dict[str, Any]:
    try:
        data = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise StoreError(f"this is not JSON: {error}", where=str(path), fix="write it again with update=True") from None
    if not isinstance(data, dict) or data.get("format") != FORMAT or data.get("version") not in (1, VERSION):
        raise StoreError(
            "this is no pinned plan of this version",
            where=str(path),
            why=f"its format is not {FORMAT!r}, or its version is above {VERSION}",
            fix="write it again with update=True",
        )
    for name in _SECTIONS:
        if not isinstance(data.get(name, {} if name == _OPTIONAL else None), dict):
            raise StoreError(f"the member {name!r} is missing", where=str(path), fix="write it again with update=True")
    return data


def _differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    if before["mesh"] != now["mesh"]:
        shown = [", ".join(f"{name}={size}" for name, size in data["mesh"].items()) for data in (before, now)]
        differences = [f"mesh  {shown[0]} -> {shown[1]}"]
    else:
        differences = []
    for name in _SECTIONS[1:]:
        old, new = before.get(name, {}), now.get(name, {})
        keys = [*old, *(key for key in new if key not in old)]
        rows = [
            f"  {'~' if key in old and key in new else '-' if key in old else '+'} {key}  {_change(old.get(key), new.get(key))}"
            for key in keys
            if old.get(key) != new.get(key)
        ]
        differences += [name, *rows] if rows else []
    return differences


def _change(old: Any, new: Any) -> str:
    return " -> ".join(_shown(data) for data in (old, new) if data is not None)


def _shown(data: Any) -> str:
    if isinstance(data, dict) and isinstance(data.get("bytes"), int):
        return f"x{data.get('count')} {format_bytes(data['bytes'])}"
    return f"x{data}" if isinstance(data, int) else str(data)
