"""Parses MLIR's pass pipeline syntax: `builtin.module(sdy-import-pipeline,func.func(canonicalize{max-iterations=3}))`."""

from __future__ import annotations

import re
from typing import NamedTuple

from shardy_py.errors import ParseError
from shardy_py.passes.base import FUNCTION, MODULE

ANCHORS = (MODULE, FUNCTION, "any")
"""Ops that a pipeline can be nested on."""

_NAME = re.compile(r"[\w.-]+")
_SPACE = re.compile(r"\s*")
_OPTION = re.compile(r"[\w-]+")
_CLOSING = {"{": "}", "[": "]", "(": ")", "<": ">"}


class PipelineError(ParseError):
    """A pipeline text that cannot be read, or names a pass or an option that does not exist."""


class PassCall(NamedTuple):
    """A pass in the text of a pipeline, with its `(option, value, place)`s; a value is "" where only the option is named."""

    name: str
    options: tuple[tuple[str, str, int], ...]
    anchor: str
    position: int


def parse_pipeline(text: str) -> list[PassCall]:
    """The passes of a pipeline, with or without `builtin.module(...)` around it. Raises PipelineError if the text is malformed.

    Example:
        >>> [(each.name, each.anchor) for each in parse_pipeline("symbol-dce,func.func(canonicalize)")]
        [('symbol-dce', 'builtin.module'), ('canonicalize', 'func.func')]
    """
    parser = _Parser(text)
    parser.space()
    if parser.at < len(text):
        parser.elements(MODULE)
    if parser.at < len(text):
        rest = text[parser.at]
        extra = "encountered extra closing ')' creating unbalanced parentheses while parsing pipeline"
        raise parser.error(extra if rest == ")" else f"expected ',' after parsing pipeline, found {rest!r}")
    return parser.calls


class _Parser:
    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.calls: list[PassCall] = []

    def error(self, what: str, at: int | None = None, fix: str | None = None) -> PipelineError:
        return PipelineError(what, self.text, self.at if at is None else at, fix=fix)

    def space(self) -> None:
        self.at = _SPACE.match(self.text, self.at).end()  # type: ignore[union-attr]

    def skip(self, char: str) -> bool:
        """Skips a character if it is next, and the space around it."""
        self.space()
        if not self.text.startswith(char, self.at):
            return False
        self.at += 1
        self.space()
        return True

    def elements(self, anchor: str) -> None:
        """Passes and nested pipelines, with commas between."""
        self.element(anchor)
        while self.skip(","):
            self.element(anchor)

    def element(self, anchor: str) -> None:
        start = self.at
        match = _NAME.match(self.text, start)
        if match is None:
            raise self.error("expected the name of a pass", fix="write passes with commas between, as in 'symbol-dce,sdy-close-shardings'")
        self.at = match.end()
        name = match[0]
        if self.skip("("):
            self.nested(name, anchor, start)
            return
        options = self.options() if self.skip("{") else ()
        self.calls.append(PassCall(name, options, anchor, start))

    def nested(self, name: str, anchor: str, start: int) -> None:
        if name not in ANCHORS:
            raise self.error(f"passes cannot run on '{name}'", start, f"nest passes in {' or '.join(ANCHORS)}")
        if name == MODULE and anchor == FUNCTION:
            raise self.error("a function holds no module to run passes on", start, "end func.func(...) before")
        if self.skip(")"):
            return
        self.elements(anchor if name == "any" else name)
        if not self.skip(")"):
            raise self.error("expected ')' after the passes of a nested pipeline", fix=f"close '{name}('")

    def options(self) -> tuple[tuple[str, str, int], ...]:
        opened = self.at - 1
        options: list[tuple[str, str, int]] = []
        while not self.skip("}"):
            match = _OPTION.match(self.text, self.at)
            if match is None:
                if self.at >= len(self.text):
                    raise self.error("missing closing '}' while processing pass options", opened)
                raise self.error("expected an option", fix="write options as {name=value name=value}")
            self.at = match.end()
            value = self.value() if self.skip("=") else ""
            options.append((match[0], value, match.start()))
        return tuple(options)

    def value(self) -> str:
        """A value: quoted, in brackets, or up to the next space or closing brace."""
        text, start = self.text, self.at
        first = text[start : start + 1]
        if first in ("'", '"'):
            end = text.find(first, start + 1)
            if end < 0:
                raise self.error(f"missing closing {first} of a value", start)
            self.at = end + 1
            return text[start + 1 : end]
        depth: list[str] = []
        while self.at < len(text):
            char = text[self.at]
            if depth and char == depth[-1]:
                depth.pop()
            elif char in _CLOSING:
                depth.append(_CLOSING[char])
            elif not depth and (char.isspace() or char == "}"):
                break
            self.at += 1
        value = text[start : self.at]
        return value[1:-1] if value.startswith("{") and value.endswith("}") else value
