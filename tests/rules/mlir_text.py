"""Writes functions of one op in MLIR's generic form."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import NamedTuple

Shape = tuple[int, ...]
Tensor = tuple[Shape, str]

_names = itertools.count()


def tensor(shape: Sequence[int], element: str = "f32") -> str:
    return f"tensor<{''.join(f'{n}x' for n in shape)}{element}>"


def function(name: str, operands: Sequence[Tensor], results: Sequence[Tensor], attributes: str = "", regions: str = "") -> str:
    """A function with one op whose operands are the arguments."""
    types = [tensor(*operand) for operand in operands]
    arguments = ", ".join(f"%a{i}: {t}" for i, t in enumerate(types))
    values = ", ".join(f"%a{i}" for i in range(len(types)))
    region = f" ({regions})" if regions else ""
    out = ", ".join(tensor(*result) for result in results)
    return (
        f"func.func @f{next(_names)}({arguments}) {{\n"
        f'  %0:{len(results)} = "{name}"({values}){region} {{{attributes}}} : ({", ".join(types)}) -> ({out})\n'
        "  return\n}"
    )


def body(text: str) -> str:
    """A function without results around lines of MLIR; `%x` names arguments as `{name: type}` in the first line."""
    arguments, _, lines = text.strip().partition("\n")
    return f"func.func @f{next(_names)}({arguments}) {{\n{lines}\n  return\n}}"


def array(values: Iterable[int | bool]) -> str:
    values = list(values)
    kind = "i1" if values and isinstance(values[0], bool) else "i64"
    text = ", ".join(str(v).lower() for v in values)
    return f"array<{kind}: {text}>" if values else f"array<{kind}>"


def pairs(values: Sequence[tuple[int, int]]) -> str:
    return f"dense<[{', '.join(f'[{low}, {high}]' for low, high in values)}]> : tensor<{len(values)}x2xi64>"


def numbers(**lists: Sequence[int] | int) -> str:
    """The inside of `#stablehlo.gather<...>` and the like; empty lists are left out."""
    return ", ".join(f"{k} = {list(v) if not isinstance(v, int) else v}" for k, v in lists.items() if v != () and v != [])


def combiner(op: str = "stablehlo.add", element: str = "f32", count: int = 1) -> str:
    """A region that applies an op to (accumulator i, element i)."""
    left = [f"%l{i}" for i in range(count)]
    right = [f"%r{i}" for i in range(count)]
    arguments = ", ".join(f"{v}: tensor<{element}>" for v in left + right)
    lines = "\n".join(
        f'%o{i} = "{op}"({x}, {y}) : (tensor<{element}>, tensor<{element}>) -> tensor<{element}>'
        for i, (x, y) in enumerate(zip(left, right))
    )
    outs = ", ".join(f"%o{i}" for i in range(count))
    types = ", ".join([f"tensor<{element}>"] * count)
    return f"{{\n^bb0({arguments}):\n{lines}\nstablehlo.return {outs} : {types}\n}}"


COMPARE = """{
^bb0(%l: tensor<f32>, %r: tensor<f32>):
  %o = "stablehlo.compare"(%l, %r) {comparison_direction = #stablehlo<comparison_direction GE>} : (tensor<f32>, tensor<f32>) -> tensor<i1>
  stablehlo.return %o : tensor<i1>
}"""


def comparator(elements: Sequence[str]) -> str:
    """A region that compares the first of several pairs."""
    arguments = ", ".join(f"%l{i}: tensor<{e}>, %r{i}: tensor<{e}>" for i, e in enumerate(elements))
    e = elements[0]
    direction = "{comparison_direction = #stablehlo<comparison_direction LT>}"
    return (
        f'{{\n^bb0({arguments}):\n  %o = "stablehlo.compare"(%l0, %r0) {direction} : (tensor<{e}>, tensor<{e}>) -> tensor<i1>\n'
        "  stablehlo.return %o : tensor<i1>\n}"
    )


class Slicing(NamedTuple):
    """Parameters that gather and scatter have in common."""

    operand: Shape
    indices: Shape
    window_dims: Shape
    collapsed: Shape
    operand_batching: Shape
    indices_batching: Shape
    index_map: Shape
    index_vector_dim: int
    sizes: Shape

    @property
    def slices(self) -> Shape:
        """Shape of what is gathered, or of the updates to scatter."""
        batch = [n for i, n in enumerate(self.indices) if i != self.index_vector_dim]
        window = [n for i, n in enumerate(self.sizes) if i not in self.collapsed and i not in self.operand_batching]
        rank = len(batch) + len(window)
        return tuple(window.pop(0) if i in self.window_dims else batch.pop(0) for i in range(rank))


def gather(case: Slicing) -> str:
    dims = numbers(
        offset_dims=case.window_dims,
        collapsed_slice_dims=case.collapsed,
        operand_batching_dims=case.operand_batching,
        start_indices_batching_dims=case.indices_batching,
        start_index_map=case.index_map,
        index_vector_dim=case.index_vector_dim,
    )
    text = f"dimension_numbers = #stablehlo.gather<{dims}>, slice_sizes = {array(case.sizes)}, indices_are_sorted = false"
    return function("stablehlo.gather", [(case.operand, "f32"), (case.indices, "i32")], [(case.slices, "f32")], text)


def scatter(case: Slicing, *, op: str = "stablehlo.add", element: str = "f32", inputs: int = 1) -> str:
    dims = numbers(
        update_window_dims=case.window_dims,
        inserted_window_dims=case.collapsed,
        input_batching_dims=case.operand_batching,
        scatter_indices_batching_dims=case.indices_batching,
        scatter_dims_to_operand_dims=case.index_map,
        index_vector_dim=case.index_vector_dim,
    )
    text = f"scatter_dimension_numbers = #stablehlo.scatter<{dims}>, indices_are_sorted = false, unique_indices = false"
    operands = [(case.operand, element)] * inputs + [(case.indices, "i32")] + [(case.slices, element)] * inputs
    return function("stablehlo.scatter", operands, [(case.operand, element)] * inputs, text, combiner(op, element, inputs))
