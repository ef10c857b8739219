"""Writes random modules with calls, loops, branches, constants, constraints and groups as text."""

from __future__ import annotations

import random

TENSOR = "tensor<8x8xf32>"
SCALAR = "tensor<f32>"
INDEX = "tensor<i32>"
DIMS = ("{}", "{?}", '{"a"}', '{"b"}', '{"a", ?}', '{"b", ?}', '{"a", "b"}', '{"c", ?}')


def module(seed: int, *, size: int = 12, plain_arguments: bool = False) -> str:
    """A module whose main calls functions that call further ones; `plain_arguments` have no shardings."""
    return _Writer(random.Random(seed), size, plain_arguments).module()


class _Writer:
    def __init__(self, source: random.Random, size: int, plain_arguments: bool) -> None:
        self.plain_arguments = plain_arguments
        self.source = source
        self.size = size
        self.count = 0
        self.functions = source.randint(1, 4)
        self.lines: list[str] = []

    def module(self) -> str:
        self.lines = ['sdy.mesh @mesh = <["a"=2, "b"=2, "c"=1]>']
        for i in range(self.functions):
            name, visibility = ("main", "") if i == 0 else (f"f{i}", "private ")
            result = f"({TENSOR}{self.attribute()}, {TENSOR}{self.attribute()})"
            attribute = "" if self.plain_arguments else self.attribute()
            arguments = f"%x{i}: {TENSOR}{attribute}, %s{i}: {SCALAR}, %i{i}: {INDEX}"
            self.lines.append(f"func.func {visibility}@{name}({arguments}) -> {result} {{")
            values = [f"%x{i}"]
            self.body(i, values, self.size, 2)
            self.lines.append(f"  return {self.any(values)}, {self.any(values)} : {TENSOR}, {TENSOR}")
            self.lines.append("}")
        return "\n".join(self.lines)

    def body(self, function: int, values: list[str], size: int, depth: int) -> None:
        kinds = ["unary", "binary", "constant", "iota", "broadcast", "constant_broadcast", "constraint", "group", "barrier"]
        kinds += ["unary", "binary", "slice_free", "constraint"] + ["call"] * 2 * (function + 1 < self.functions)
        kinds += ["loop", "branch", "manual"] * (depth > 0)
        for _ in range(size):
            getattr(self, self.source.choice(kinds))(function, values, depth)

    def any(self, values: list[str]) -> str:
        return values[-1] if self.source.random() < 0.4 else self.source.choice(values)

    def new(self, values: list[str]) -> str:
        self.count += 1
        values.append(f"%v{self.count}")
        return values[-1]

    def add(self, line: str) -> None:
        self.lines.append(f"  {line}")

    def sharding(self) -> str:
        while True:
            dims = [self.source.choice(DIMS) for _ in range(2)]
            if not any(dims[0].count(f'"{axis}"') and dims[1].count(f'"{axis}"') for axis in "abc"):
                return f"<@mesh, [{dims[0]}, {dims[1]}]>"

    def attribute(self) -> str:
        return f" {{sdy.sharding = #sdy.sharding{self.sharding()}}}" if self.source.random() < 0.3 else ""

    def stated(self) -> str:
        return f" {{sdy.sharding = #sdy.sharding_per_value<[{self.sharding()}]>}}" if self.source.random() < 0.1 else ""

    def unary(self, _: int, values: list[str], __: int) -> None:
        operand = self.any(values)
        self.add(f"{self.new(values)} = stablehlo.{self.source.choice(('negate', 'abs'))} {operand}{self.stated()} : {TENSOR}")

    def binary(self, _: int, values: list[str], __: int) -> None:
        operands = f"{self.any(values)}, {self.any(values)}"
        self.add(f"{self.new(values)} = stablehlo.{self.source.choice(('add', 'multiply'))} {operands} : {TENSOR}")

    def slice_free(self, _: int, values: list[str], __: int) -> None:
        operands = f"{self.any(values)}, {self.any(values)}"
        self.add(f"{self.new(values)} = stablehlo.dot {operands} : ({TENSOR}, {TENSOR}) -> {TENSOR}")

    def constant(self, _: int, values: list[str], __: int) -> None:
        self.add(f"{self.new(values)} = stablehlo.constant dense<{self.source.randint(0, 2)}.0> : {TENSOR}")

    def iota(self, _: int, values: list[str], __: int) -> None:
        self.add(f"{self.new(values)} = stablehlo.iota dim = {self.source.randint(0, 1)} : {TENSOR}")

    def broadcast(self, function: int, values: list[str], _: int) -> None:
        self.add(f"{self.new(values)} = stablehlo.broadcast_in_dim %s{function}, dims = [] : ({SCALAR}) -> {TENSOR}")

    def constant_broadcast(self, _: int, values: list[str], __: int) -> None:
        self.count += 1
        self.add(f"%k{self.count} = stablehlo.constant dense<1.0> : {SCALAR}")
        self.add(f"%v{self.count} = stablehlo.broadcast_in_dim %k{self.count}, dims = [] : ({SCALAR}) -> {TENSOR}")
        values.append(f"%v{self.count}")

    def constraint(self, _: int, values: list[str], __: int) -> None:
        operand = self.any(values)
        self.add(f"{self.new(values)} = sdy.sharding_constraint {operand} {self.sharding()} : {TENSOR}")

    def group(self, _: int, values: list[str], __: int) -> None:
        self.add(f"sdy.sharding_group {self.any(values)} group_id={self.source.randint(0, 5)} : {TENSOR}")

    def barrier(self, _: int, values: list[str], __: int) -> None:
        operands = f"{self.any(values)}, {self.any(values)}"
        self.count += 1
        self.add(f"%v{self.count}:2 = stablehlo.optimization_barrier {operands} : {TENSOR}, {TENSOR}")
        values += [f"%v{self.count}#0", f"%v{self.count}#1"]

    def call(self, function: int, values: list[str], _: int) -> None:
        callee = self.source.randint(function + 1, self.functions - 1)
        self.count += 1
        types = f"({TENSOR}, {SCALAR}, {INDEX}) -> ({TENSOR}, {TENSOR})"
        self.add(f"%v{self.count}:2 = func.call @f{callee}({self.any(values)}, %s{function}, %i{function}) : {types}")
        values += [f"%v{self.count}#0", f"%v{self.count}#1"]

    def loop(self, function: int, values: list[str], depth: int) -> None:
        self.count += 1
        n = self.count
        a, b = self.any(values), self.any(values)
        self.add(f"%v{n}:3 = stablehlo.while(%p{n} = {a}, %q{n} = {b}, %j{n} = %i{function}) : {TENSOR}, {TENSOR}, {INDEX}")
        self.add(f"cond {{ %c{n} = stablehlo.compare LT, %j{n}, %i{function} : ({INDEX}, {INDEX}) -> tensor<i1>")
        self.add(f"stablehlo.return %c{n} : tensor<i1> }} do {{")
        inner = [*values, f"%p{n}", f"%q{n}"]
        self.body(function, inner, self.size // 3, depth - 1)
        self.add(f"stablehlo.return {self.any(inner)}, {self.any(inner)}, %j{n} : {TENSOR}, {TENSOR}, {INDEX} }}")
        values += [f"%v{n}#0", f"%v{n}#1"]

    def branch(self, function: int, values: list[str], depth: int) -> None:
        result = f"%v{self.count + 1}"
        self.count += 1
        self.add(f'{result} = "stablehlo.case"(%i{function}) ({{')
        for i in range(2):
            inner = list(values)
            self.body(function, inner, self.size // 4, depth - 1)
            self.add(f"stablehlo.return {self.any(inner)} : {TENSOR} }}" + (", {" if i == 0 else f") : ({INDEX}) -> {TENSOR}"))
        values.append(result)

    def manual(self, _: int, values: list[str], __: int) -> None:
        operands = f"{self.any(values)}, {self.any(values)}"
        self.count += 1
        n = self.count
        rest = self.source.choice(("{}", "{?}", '{"b"}', '{"b", ?}'))
        first, local = self.source.choice((('<@mesh, [{"a"}, %s]>', "tensor<4x8xf32>"), ("<@mesh, [{}, %s]>", TENSOR)))
        stated = first % rest
        self.add(f"%v{n} = sdy.manual_computation({operands}) in_shardings=[{stated}, {stated}] out_shardings=[{stated}]")
        self.add(f'manual_axes={{"a"}} (%m{n}: {local}, %n{n}: {local}) {{')
        self.add(f"%o{n} = stablehlo.add %m{n}, %n{n} : {local}")
        self.add(f"sdy.return %o{n} : {local} }} : ({TENSOR}, {TENSOR}) -> {TENSOR}")
        values.append(f"%v{n}")
