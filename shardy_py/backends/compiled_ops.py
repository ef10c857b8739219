"""The ops in the text of a compiled program (optimized HLO)."""

from __future__ import annotations

import re
from dataclasses import dataclass

NAME = r"%?([\w.\-]+)"
NAMES = re.compile(NAME)
STRING = re.compile(r'"(?:[^"\\]|\\.)*"')

_INSTRUCTION = re.compile(rf"\s+(ROOT\s+)?{NAME}\s*=\s*")
_OPCODE = re.compile(r"\s*([a-z][\w\-]*)\(")
_BRACKETS = re.compile(r'"(?:[^"\\]|\\.)*"|[(){}\[\]]')
_COMMENT = re.compile(r"/\*.*?\*/")
_TYPED = re.compile(r"\S+\[[^\]]*\]\S*\s+")
_CALLED = re.compile(
    r"\b(condition|body|to_apply|calls|branch_computations|true_computation|false_computation|called_computations)=(\{[^}]*\}|%?[\w.\-]+)"
)


@dataclass(frozen=True, slots=True)
class CompiledOp:
    """One op of a computation, `%name = type opcode(operands), attributes`."""

    name: str
    type: str
    opcode: str
    operands: str
    attributes: str
    is_root: bool

    @property
    def operand_names(self) -> list[str]:
        """The ops that it reads."""
        return NAMES.findall(_TYPED.sub("", _COMMENT.sub("", self.operands)))

    @property
    def called(self) -> list[tuple[str, str]]:
        """`(role, computation)` for each called computation; `role` is the attribute that names it: `body`, `calls`, ..."""
        text = STRING.sub('""', self.attributes)
        return [(role, name) for role, names in _CALLED.findall(text) for name in NAMES.findall(names)]


def op_of(line: str) -> CompiledOp | None:
    """The op of a line; None where the line holds no op.

    Example:
        >>> op = op_of("  ROOT %sum = f32[] add(%a, f32[] %b), metadata={}")
        >>> op.name, op.opcode, op.operand_names, op.is_root
        ('sum', 'add', ['a', 'b'], True)
    """
    match = _INSTRUCTION.match(line)
    if match is None:
        return None
    start = match.end()
    end = closing(line, start) if line.startswith("(", start) else line.find(" ", start)
    opcode = _OPCODE.match(line, end) if end >= 0 else None
    if opcode is None:
        return None
    close = closing(line, opcode.end() - 1)
    return CompiledOp(match[2], line[start:end], opcode[1], line[opcode.end() : close - 1], line[close:], match[1] is not None)


def closing(text: str, start: int) -> int:
    """The position behind the bracket that closes the one at `start`; the end of the text where none does."""
    depth = 0
    for match in _BRACKETS.finditer(text, start):
        if match[0] in "([{":
            depth += 1
        elif match[0] in ")]}":
            depth -= 1
            if not depth:
                return match.end()
    return len(text)
