"""Reads the text of small modules without verifying them, which the parser of jaxlib cannot do.

It knows as much syntax as tests of the verifier need: functions, SDY ops, ops of the form `name operands {...} : types`,
and ops in generic form with one region.
"""

from __future__ import annotations

import re
from typing import Any

from shardy_py import dialect
from shardy_py.ir import Block, Function, Op, OpaqueType, Program, TensorType, Type, Value
from shardy_py.ir.op_checks import COMPUTATIONS

ELEMENTS = {"f32": "float32", "i32": "int32", "i1": "bool", "bf16": "bfloat16", "f64": "float64"}
_CLOSERS = {"(": ")", "[": "]", "{": "}", "<": ">"}
_AXES: dict[str, tuple[str, Any]] = {
    "sdy.all_gather": ("gathering_axes", dialect.ListOfAxisRefLists.parse),
    "sdy.all_slice": ("slicing_axes", dialect.ListOfAxisRefLists.parse),
    "sdy.reduce_scatter": ("reduce_scatter_axes", dialect.ListOfAxisRefLists.parse),
    "sdy.sharded_to_unreduced": ("axes", dialect.ListOfAxisRefLists.parse),
    "sdy.all_reduce": ("reduction_axes", dialect.AxisRefList.parse),
    "sdy.replicated_to_unreduced": ("axes", dialect.AxisRefList.parse),
    "sdy.all_to_all": ("params", dialect.AllToAllParamList.parse),
}


def read_unverified(text: str) -> Program:
    """A program from text that need not be a valid module, but must be well-formed in the syntax above."""
    return _Reader(re.sub(r"(?m)//.*$", "", text)).program()


class _Reader:
    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.values: dict[str, Value] = {}

    def take(self, pattern: str) -> re.Match[str] | None:
        found = re.compile(r"\s*(?:" + pattern + ")").match(self.text, self.at)
        if found is not None:
            self.at = found.end()
        return found

    def need(self, pattern: str) -> re.Match[str]:
        found = self.take(pattern)
        assert found is not None, f"expected {pattern} at: {self.text[self.at : self.at + 60]}"
        return found

    def bracket(self) -> str:
        """A bracket with what is in it."""
        self.need(r"(?=[(\[{<])")
        start, closers = self.at, []
        while True:
            char = self.text[self.at]
            if char == '"':
                self.at = self.text.index('"', self.at + 1)
            elif char in _CLOSERS:
                closers.append(_CLOSERS[char])
            elif closers and char == closers[-1] and not (char == ">" and self.text[self.at - 1] == "-"):
                closers.pop()
            self.at += 1
            if not closers:
                return self.text[start : self.at]

    def program(self) -> Program:
        program = Program()
        wrapped = self.take(r"module \{") is not None
        while self.at < len(self.text.rstrip()):
            if wrapped and self.take(r"\}"):
                break
            if found := self.take(r"sdy\.mesh @(\w+) *= *"):
                program.meshes[found[1]] = dialect.Mesh.parse(self.bracket())
            else:
                program.functions.append(self.function())
        return program

    def function(self) -> Function:
        self.values = {}
        name = self.need(r"func\.func @(\w+)")[1]
        arguments = self.arguments()
        results: list[tuple[Type, dict[str, Any]]] = []
        if self.take("->"):
            if self.take(r"\("):
                while not self.take(r"\)"):
                    results.append((self.type(), self.attributes()))
                    self.take(",")
            else:
                results.append((self.type(), self.attributes()))
        body = self.block(arguments)
        function = Function(name, body, [t for t, _ in results])
        for value, (_, _, attributes) in zip(body.arguments, arguments, strict=True):
            value.sharding = attributes.get("sdy.sharding")
        function.result_shardings = [attributes.get("sdy.sharding") for _, attributes in results]
        return function

    def arguments(self) -> list[tuple[str, Type, dict[str, Any]]]:
        found: list[tuple[str, Type, dict[str, Any]]] = []
        self.need(r"\(")
        while not self.take(r"\)"):
            name = self.need(r"(%\w+) *:")[1]
            found.append((name, self.type(), self.attributes()))
            self.take(",")
        return found

    def type(self) -> Type:
        if self.take(r"!stablehlo\.token"):
            return OpaqueType("token")
        name = self.need(r"tensor|tuple")[0].strip()
        text = name + self.bracket()
        static = re.fullmatch(r"tensor<((?:\d+x)*)(\w+)>", text)
        if static is None:
            return OpaqueType(text)
        return TensorType(tuple(map(int, static[1].split("x")[:-1])), ELEMENTS[static[2]])

    def types(self) -> list[Type]:
        if self.take(r"\("):
            found: list[Type] = []
            while not self.take(r"\)"):
                found.append(self.type())
                self.take(",")
            return found
        found = [self.type()]
        while self.take(r",(?=\s*(?:tensor|tuple|!))"):
            found.append(self.type())
        return found

    def attributes(self) -> dict[str, Any]:
        """`{name = value, ...}` if there is one here."""
        if not self.take(r"(?=\{\s*[\w.]+\s*=)"):
            return {}
        body = self.bracket()[1:-1]
        found: dict[str, Any] = {}
        for part in _split(body):
            name, _, value = part.partition("=")
            value = value.strip()
            parsed: Any = dialect.parse_attribute(value) if value.startswith("#sdy.") else value
            found[name.strip()] = parsed
        return found

    def block(self, arguments: list[tuple[str, Type, dict[str, Any]]]) -> Block:
        block = Block([t for _, t, _ in arguments])
        for (name, _, _), value in zip(arguments, block.arguments, strict=True):
            self.values[name] = value
        self.need(r"\{")
        if self.take(r"\^\w+(?=\()"):
            arguments = self.arguments()
            block = Block([t for _, t, _ in arguments])
            self.values.update({name: value for (name, _, _), value in zip(arguments, block.arguments, strict=True)})
            self.need(":")
        while not self.take(r"\}"):
            block.append(self.op())
        return block

    def op(self) -> Op:
        named = self.take(r"(%\w+)(?::\d+)? *=")
        name = self.need(r'"?([a-z]\w*(?:\.\w+)?)"?')[1]
        name = {"return": "func.return", "call": "func.call"}.get(name, name)
        attributes: dict[str, Any] = {}
        sharding = None
        regions: list[Block] = []
        operands: list[Value] = []
        if name in _AXES:
            key, parse = _AXES[name]
            attributes[key] = parse(self.bracket())
        while not (bare := name.endswith("return") and not operands and not self.take(r"(?=[%{(])")) and not self.take(":"):
            if found := self.take(r"(%\w+)(?:#(\d+))?"):
                operands.append(self.values[f"{found[1]}#{found[2]}" if found[2] else found[1]])
            elif found := self.take(r"(?:out_)?sharding="):
                sharding = dialect.TensorSharding.parse(self.bracket())
            elif found := self.take(r"(in_shardings|out_shardings)="):
                attributes[found[1]] = dialect.TensorShardingPerValue.parse(self.bracket()).shardings
            elif self.take("manual_axes="):
                attributes["manual_axes"] = dialect.ManualAxes.parse(self.bracket()).axes
            elif found := self.take(r"allowed_direction=(\w+)"):
                attributes["allowed_direction"] = dialect.PropagationDirection[found[1]]
            elif found := self.take(r"group_id=(\d+)"):
                attributes["group_id"] = int(found[1])
            elif found := self.take(r"@(\w+)"):
                attributes["callee" if name == "func.call" else "call_target_name"] = found[1]
            elif found := self.take(r"dense(?=<)"):
                attributes["value"] = f"dense{self.bracket()}"
            elif name in ("sdy.sharding_constraint", "sdy.reshard") and self.take("(?=<)"):
                sharding = dialect.TensorSharding.parse(self.bracket())
            elif name in COMPUTATIONS and self.take(r"(?=\((?:\)|%\w+ *:))"):
                regions.append(self.block(self.arguments()))
            elif self.take(r"\((?=\s*\{)"):
                regions.append(self.block([]))
                while self.take(","):
                    regions.append(self.block([]))
                self.need(r"\)")
            elif self.take(r"(?=\{\s*[\w.]+\s*=)"):
                attributes.update(self.attributes())
            elif self.take(r"(?=[<\[])"):
                self.bracket()
            else:
                self.need(r"init:|[(),=]|\w+")
        operand_types = [] if bare else self.types()
        result_types = self.types() if self.take("->") else operand_types
        if name == "stablehlo.reduce" and self.take("reducer"):
            while self.take(r"(?=[({])"):
                self.bracket()
        if named is None:
            result_types = []
        for key in ("in_shardings", "out_shardings"):
            if name == "sdy.named_computation":
                attributes.setdefault(key, None)
        op = Op(name, operands, result_types, attributes, regions)
        self.shard(op, sharding)
        if named is not None:
            self.values[named[1]] = op.results[0]
            self.values.update({f"{named[1]}#{value.index}": value for value in op.results})
        return op

    @staticmethod
    def shard(op: Op, sharding: dialect.TensorSharding | None) -> None:
        if sharding is not None:
            op.results[0].sharding = sharding
        stated = op.attributes.get("sdy.sharding")
        if isinstance(stated, dialect.TensorShardingPerValue) and len(stated) == len(op.results):
            del op.attributes["sdy.sharding"]
            for value, one in zip(op.results, stated.shardings, strict=True):
                value.sharding = one
        op.rule = op.attributes.pop("sdy.sharding_rule", None)


def _split(text: str) -> list[str]:
    """Splits at the commas outside brackets and strings."""
    parts, depth, start, quoted = [], 0, 0, False
    for i, char in enumerate(text):
        if char == '"':
            quoted = not quoted
        elif quoted:
            continue
        elif char in "([{<":
            depth += 1
        elif char in ")]}" or (char == ">" and text[i - 1] != "-"):
            depth -= 1
        elif char == "," and depth == 0:
            parts.append(text[start:i])
            start = i + 1
    return [*parts, text[start:]]
