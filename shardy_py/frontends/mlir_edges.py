"""Data-flow edges on results of ops that jaxlib does not know: the verifier of SDY asks for the dialect of the op, and the process ends.

MLIR verifies as it parses, so these are looked for in the text. A name stands for the last value of that name before it that is in scope.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

from shardy_py.errors import ShardyError
from shardy_py.frontends.mlir_limits import place

_EDGE = "sdy.data_flow_edge"

_TOKEN = re.compile(
    r'(?://[^\n]*|\s+)|(?P<name>%[\w.$-]+)|(?P<op>"(?:[^"\\\n]|\\.)*"|[A-Za-z_][\w$]*(?:\.[\w$]+)+)|(?P<mark>[{},=^])|(?P<count>:\s*\d+|#\d+)|\S'
)


class _Definition(NamedTuple):
    """The position in a text of an op that jaxlib does not know, and its name."""

    op: str
    position: int


def check_edges(text: str, is_registered: Callable[[str], bool]) -> None:
    """Raises ShardyError if an edge is on a result of an op that jaxlib does not know."""
    if "data_flow_edge" not in text:
        return
    scopes: list[dict[str, _Definition | None]] = [{}]
    anywhere: dict[str, _Definition] = {}
    edges_before: list[tuple[str, int]] = []
    names: list[str] = []  # before an `=`, or the first behind an edge
    op, has_blocks = "", False
    for token in _TOKEN.finditer(text):
        kind, written = token.lastgroup, token[0]
        if kind is None and (written.isspace() or written.startswith("//")):
            continue
        if kind == "name":
            if op == _EDGE:
                definition = next((scope[written] for scope in reversed(scopes) if written in scope), _MISSING)
                if definition is _MISSING:
                    edges_before.append((written, token.start()))
                elif definition is not None:
                    raise _error(text, token.start(), definition)
                op = ""
            names.append(written)
        elif kind == "op":
            op = written.strip('"')
            if names and names[-1] == "=":
                definition = None if is_registered(op) else _Definition(op, token.start())
                for name in names[:-1]:
                    scopes[-1][name] = definition
                    if definition is not None:
                        anywhere[name] = definition
            names = []
        elif written == "=":
            names.append(written)
        elif written != "," and kind != "count":
            names = []
            op = "" if written != "(" else op
            if written == "{":
                scopes.append({})
            elif written == "}" and len(scopes) > 1:
                scopes.pop()
            has_blocks |= written == "^"
    # A block may use what a later one makes, and a module what stands further down; an argument has no op at all.
    for name, position in edges_before:
        if name in anywhere and (has_blocks or anywhere[name].position > position):
            raise _error(text, position, anywhere[name])


_MISSING = _Definition("", -1)


def _error(text: str, position: int, definition: _Definition) -> ShardyError:
    return ShardyError(
        f"an {_EDGE} is on a result of '{definition.op}'",
        where=place(text, position),
        why=f"jaxlib does not know the dialect of the op at {place(text, definition.position)}, and its verifier ends the process there",
        fix="put the edge on the result of a stablehlo.optimization_barrier of that value",
    )
