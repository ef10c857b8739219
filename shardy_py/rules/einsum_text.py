"""Reads the string form of sharding rules into patterns of tensors.

rule     = tensors "->" tensors
tensors  = tensor ("," tensor)*
tensor   = ellipsis? dim*              nothing at all is a scalar
dim      = factor | "(" factor factor+ ")"
factor   = a letter, then letters, digits or "_"
ellipsis = "..." digits?               any number of leading dimensions; equal numbers stand for equal dimensions
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from shardy_py.errors import ParseError

FACTOR_NAME = re.compile(r"[^\W\d_]\w*")

_TOKEN = re.compile(rf"(?P<arrow>->)|(?P<ellipsis>\.\.\.(?P<group>[0-9]*))|(?P<name>{FACTOR_NAME.pattern})|(?P<mark>[(),])|(?P<space>\s+)")


class ShardingRuleError(ParseError):
    """A sharding rule that cannot be read, or does not fit the op it is used for; shows the rule with a caret."""


class Dim(NamedTuple):
    """One dimension: the factors it is made of, major to minor, and where it stands in the string."""

    factors: tuple[str, ...]
    position: int


class Tensor(NamedTuple):
    """An operand or result: the group of its leading ellipsis (None without one), then named dimensions."""

    dims: tuple[Dim, ...]
    ellipsis: int | None
    position: int

    @property
    def pattern(self) -> str:
        """The text of the tensor, with single spaces."""
        words = [] if self.ellipsis is None else [f"...{self.ellipsis or ''}"]
        words += [d.factors[0] if len(d.factors) == 1 else f"({' '.join(d.factors)})" for d in self.dims]
        return " ".join(words)


class _Token(NamedTuple):
    kind: str
    word: str
    position: int


def read_rule(text: str) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    """Reads operands and results of a rule.

    Raises ShardingRuleError if the string breaks the grammar or names a factor twice in one tensor.
    """
    tokens = list(_split(text))
    arrows = [i for i, token in enumerate(tokens) if token.kind == "arrow"]
    if not arrows:
        raise ShardingRuleError("there is no '->' in the rule", text, len(text), fix="write the operands, '->', and the results")
    if len(arrows) > 1:
        raise ShardingRuleError("there is a second '->' in the rule", text, tokens[arrows[1]].position, fix="keep one")
    (arrow,) = arrows
    end = tokens[arrow].position
    return _read_tensors(tokens[:arrow], text, end), _read_tensors(tokens[arrow + 1 :], text, len(text))


def _split(text: str) -> Iterator[_Token]:
    position = 0
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            raise _unknown_character(text, position)
        if match["ellipsis"] is not None:
            yield _Token("ellipsis", match["group"], position)
        elif match["mark"] is not None:
            yield _Token(match[0], match[0], position)
        elif match["space"] is None:
            yield _Token("arrow" if match["arrow"] is not None else "name", match[0], position)
        position = match.end()


def _unknown_character(text: str, position: int) -> ShardingRuleError:
    char = text[position]
    if char == ".":
        return ShardingRuleError("'.' is not part of an ellipsis", text, position, fix="write three: '...'")
    if char == "_" or char.isdigit():
        return ShardingRuleError(f"factor names start with a letter, got '{char}'", text, position, fix=f"put a letter before '{char}'")
    fix = "factors are names separated by spaces, tensors are separated by commas"
    return ShardingRuleError(f"unknown character '{char}'", text, position, fix=fix)


def _read_tensors(tokens: list[_Token], text: str, end: int) -> tuple[Tensor, ...]:
    groups: list[list[_Token]] = [[]]
    starts = [tokens[0].position if tokens else end]
    depth = 0
    for i, token in enumerate(tokens):
        if token.kind == "," and depth == 0:
            groups.append([])
            starts.append(tokens[i + 1].position if i + 1 < len(tokens) else end)
            continue
        depth += (token.kind == "(") - (token.kind == ")")
        groups[-1].append(token)
    return tuple([_read_tensor(group, text, start) for group, start in zip(groups, starts, strict=True)])


def _read_tensor(tokens: list[_Token], text: str, start: int) -> Tensor:
    dims: list[Dim] = []
    ellipsis: int | None = None
    opened: _Token | None = None
    inside: list[str] = []
    seen: set[str] = set()
    for token in tokens:
        kind, word, position = token
        if kind == "name":
            if word in seen:
                fix = "give the second dimension a name of its own"
                raise ShardingRuleError(f"factor '{word}' stands twice in one tensor", text, position, fix=fix)
            seen.add(word)
            if opened is None:
                dims.append(Dim((word,), position))
            else:
                inside.append(word)
        elif kind == "ellipsis":
            if opened is not None or dims or ellipsis is not None:
                fix = "put it first, and not into parentheses"
                raise ShardingRuleError("'...' can only be the first thing of an operand or result", text, position, fix=fix)
            ellipsis = int(word or "0")
        elif kind == "(":
            if opened is not None:
                raise ShardingRuleError("parentheses inside parentheses", text, position, fix="list all factors in one pair")
            opened, inside = token, []
        elif kind == ")":
            if opened is None:
                raise ShardingRuleError("')' without a '(' before it", text, position, fix="remove it, or add the '('")
            if len(inside) < 2:
                fix = "a single factor needs no parentheses"
                raise ShardingRuleError("parentheses hold at least two factors", text, opened.position, fix=fix)
            dims.append(Dim(tuple(inside), opened.position))
            opened = None
        else:
            raise ShardingRuleError("',' inside parentheses", text, position, fix="separate factors by spaces, or add the ')' before it")
    if opened is not None:
        raise ShardingRuleError("'(' is never closed", text, opened.position, fix="add a ')'")
    return Tensor(tuple(dims), ellipsis, start)
