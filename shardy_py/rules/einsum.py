"""Rules written by users, in the string form of `jax.experimental.custom_partitioning`: "i k, k j -> i j".

A string is parsed once into a `RuleSpec`, which knows no shapes; `RuleSpec.bind` makes the rule for given shapes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from shardy_py.dialect import OpShardingRule
from shardy_py.rules.builder import Shape
from shardy_py.rules.einsum_text import FACTOR_NAME, Dim, ShardingRuleError, Tensor, read_rule

Names = tuple[str, ...]

KINDS = ("reduction", "need_replication", "permutation", "blocked_propagation")


@dataclass(frozen=True)
class RuleSpec:
    """A sharding rule without shapes, as `parse_einsum_rule` returns it; equal rules are equal whatever their spacing."""

    pattern: str
    reduction: Names
    need_replication: Names
    permutation: Names
    blocked_propagation: Names
    factor_sizes: tuple[tuple[str, int], ...]
    text: str = field(compare=False, repr=False)
    operands: tuple[Tensor, ...] = field(compare=False, repr=False)
    results: tuple[Tensor, ...] = field(compare=False, repr=False)

    def __str__(self) -> str:
        parts = [self.pattern]
        for kind in KINDS:
            if factors := getattr(self, kind):
                parts.append(f"{kind}={{{', '.join(factors)}}}")
        parts += [f"{name}={size}" for name, size in self.factor_sizes]
        return " ".join(parts)

    def bind(self, operand_shapes: Iterable[Iterable[int]], result_shapes: Iterable[Iterable[int]]) -> OpShardingRule:
        """Makes the rule for an op with these shapes.

        A factor that is a dimension in several tensors has the smallest of their sizes. Raises ShardingRuleError if the number of tensors,
        their ranks or their sizes do not fit.

        Example:
            >>> str(parse_einsum_rule("... i, i j -> ... j", reduction="i").bind([(2, 8, 4), (4, 16)], [(2, 8, 16)]))
            '#sdy.op_sharding_rule<([i, j, k], [k, l])->([i, j, l]) {i=2, j=8, k=4, l=16} reduction={k}, custom>'
        """
        return _Binding(self, tuple(map(tuple, operand_shapes)), tuple(map(tuple, result_shapes))).rule()


class _Binding:
    """The sizes of the factors of a spec for given shapes."""

    def __init__(self, spec: RuleSpec, operand_shapes: tuple[Shape, ...], result_shapes: tuple[Shape, ...]) -> None:
        self.spec = spec
        self.stated_sizes = dict(spec.factor_sizes)
        # Keys are names of factors, and (group, dimension) for the dimensions of an ellipsis; in order of appearance.
        self.sizes: dict[str | tuple[int, int], int | None] = {}
        self.ellipsis_shapes: dict[int, Shape] = {}
        self.tensors = [*self.pair("operand", spec.operands, operand_shapes), *self.pair("result", spec.results, result_shapes)]

    def error(self, what: str, position: int, fix: str) -> ShardingRuleError:
        return ShardingRuleError(what, self.spec.text, position, fix=fix)

    def pair(self, kind: str, tensors: tuple[Tensor, ...], shapes: tuple[Shape, ...]) -> list[tuple[str, Tensor, Shape]]:
        if len(tensors) != len(shapes):
            first_wrong = tensors[min(len(tensors) - 1, len(shapes))]
            what = f"the rule has {_count(len(tensors), kind)}, but the op has {_count(len(shapes), kind)}"
            raise self.error(what, first_wrong.position, f"write one pattern per {kind}, separated by commas")
        return [(f"{kind} {i}", tensor, shape) for i, (tensor, shape) in enumerate(zip(tensors, shapes, strict=True))]

    def rule(self) -> OpShardingRule:
        for where, tensor, shape in self.tensors:
            self.read_sizes(where, tensor, shape)
        index = {key: i for i, key in enumerate(self.sizes)}
        mappings: list[list[tuple[int, ...]]] = []
        for where, tensor, shape in self.tensors:
            mapping: list[tuple[int, ...]] = []
            if tensor.ellipsis is not None:
                mapping += [(index[tensor.ellipsis, i],) for i in range(len(self.ellipsis_shapes[tensor.ellipsis]))]
            for dim, size in zip(tensor.dims, shape[len(mapping) :], strict=True):
                if len(dim.factors) > 1:
                    self.check_compound(where, dim, size)
                mapping.append(tuple([index[name] for name in dim.factors]))
            mappings.append(mapping)
        operands = len(self.spec.operands)
        special = {kind: sorted(index[name] for name in getattr(self.spec, kind)) for kind in KINDS}
        sizes = [size or 0 for size in self.sizes.values()]
        return OpShardingRule(sizes, mappings[:operands], mappings[operands:], **special, is_custom=True)

    def read_sizes(self, where: str, tensor: Tensor, shape: Shape) -> None:
        named = len(tensor.dims)
        if len(shape) < named or (tensor.ellipsis is None and len(shape) > named):
            what = f"{where} '{tensor.pattern}' names {_count(named, 'dimension')}, but its shape is {list(shape)}"
            fix = "name one factor per dimension" + ("" if len(shape) < named else ", or start it with '...'")
            raise self.error(what, tensor.position, fix)
        leading = shape[: len(shape) - named]
        if tensor.ellipsis is not None:
            self.read_ellipsis(where, tensor.ellipsis, leading, tensor.position)
        for dim, size in zip(tensor.dims, shape[len(leading) :], strict=True):
            name, *more = dim.factors
            if more:
                for name in dim.factors:
                    if self.sizes.get(name) is None:
                        self.sizes[name] = self.stated_sizes.get(name)
                continue
            smallest = self.sizes.get(name)
            self.sizes[name] = size if smallest is None else min(smallest, size)

    def read_ellipsis(self, where: str, group: int, leading: Shape, position: int) -> None:
        seen = self.ellipsis_shapes.setdefault(group, leading)
        if seen != leading:
            what = f"the '...' of {where} stands for dimensions {list(leading)}, but for {list(seen)} earlier in the rule"
            raise self.error(what, position, "number ellipses that differ ('...1', '...2'), or name these dimensions")
        for i, size in enumerate(leading):
            self.sizes[group, i] = size

    def check_compound(self, where: str, dim: Dim, size: int) -> None:
        product = 1
        for name in dim.factors:
            product *= self.sizes[name] or 0
        sizes = ", ".join(f"{name}={self.sizes[name]}" for name in dim.factors)
        if product != size:
            what = f"a dimension of {where} has size {size}, but its factors multiply to {product} ({sizes})"
            raise self.error(what, dim.position, "give factors that multiply to the size of the dimension")
        if any(self.sizes[name] == 1 for name in dim.factors):
            raise self.error(f"a compound dimension of {where} has a factor of size 1 ({sizes})", dim.position, "leave that factor out")


def parse_einsum_rule(
    rule: str,
    *,
    reduction: str | Iterable[str] = (),
    need_replication: str | Iterable[str] = (),
    permutation: str | Iterable[str] = (),
    blocked_propagation: str | Iterable[str] = (),
    factor_sizes: Mapping[str, int] | None = None,
    **sizes: int,
) -> RuleSpec:
    """Reads a rule as JAX's `custom_partitioning` does, but says where and why it cannot.

    Beyond JAX's form, `blocked_propagation` can be given; a comma inside parentheses, a factor twice in one tensor and
    a reduction factor in a result are errors here, where JAX leaves them to the compiler. Raises ShardingRuleError if the string or an
    argument is wrong; points at the place. Raises TypeError if `rule` is not a string or a size not an integer.

    Args:
        rule: Operands and results, such as `"... (h d) k, k j -> ... h d j"`; the grammar is in `einsum_text.py`.
        reduction: Factors that are reduced over, as names in a tuple or in one string (`"k l"`).
        need_replication: Factors that must not be sharded where the op runs.
        permutation: Factors that need data of neighbours when sharded.
        blocked_propagation: Factors along which shardings do not propagate.
        factor_sizes: Size of each factor that only stands in compound dimensions.

    Example:
        >>> print(parse_einsum_rule("i k, k j -> i j", reduction="k").bind([(8, 4), (4, 2)], [(8, 2)]))
        #sdy.op_sharding_rule<([i, j], [j, k])->([i, k]) {i=8, j=4, k=2} reduction={j}, custom>
    """
    if not isinstance(rule, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(f'a sharding rule is a string such as "i k, k j -> i j", got {type(rule).__name__}')
    operands, results = read_rule(rule)
    all_sizes = {**(factor_sizes or {}), **sizes}
    factors = _check_sizes(rule, operands + results, all_sizes)
    special = {
        "reduction": _names(rule, "reduction", reduction),
        "need_replication": _names(rule, "need_replication", need_replication),
        "permutation": _names(rule, "permutation", permutation),
        "blocked_propagation": _names(rule, "blocked_propagation", blocked_propagation),
    }
    _check_special(rule, special, factors)
    for dim in (dim for tensor in results for dim in tensor.dims):
        if reduced := [name for name in dim.factors if name in special["reduction"]]:
            fix = "only operands can have factors that are reduced over; remove it from the results, or from reduction"
            raise ShardingRuleError(f"reduction factor '{reduced[0]}' is in a result", rule, dim.position, fix=fix)
    pattern = " -> ".join(", ".join(tensor.pattern for tensor in side) for side in (operands, results)).strip()
    return RuleSpec(pattern, **special, factor_sizes=tuple(sorted(all_sizes.items())), text=rule, operands=operands, results=results)


def _check_sizes(rule: str, tensors: tuple[Tensor, ...], sizes: Mapping[str, int]) -> dict[str, Dim]:
    """Checks that exactly the factors that are never a dimension of their own have a size; returns all factors."""
    dims = [dim for tensor in tensors for dim in tensor.dims]
    whole = {dim.factors[0] for dim in dims if len(dim.factors) == 1}
    factors: dict[str, Dim] = {}
    for dim in dims:
        for name in dim.factors:
            factors.setdefault(name, dim)
    for name, size in sizes.items():
        if not isinstance(size, int) or isinstance(size, bool):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f"the size of factor '{name}' must be an integer, got {size!r}")
        text, position = f'"{rule}", {name}={size}', len(rule) + 4
        if name not in factors:
            raise ShardingRuleError(f"factor '{name}' has a size but is not in the rule", text, position, fix="remove the size")
        if name in whole:
            what = f"factor '{name}' is a dimension of its own, which gives its size"
            raise ShardingRuleError(what, text, position, fix="remove the size")
        if size < 2:
            fix = "give a larger size, or leave the factor out of the rule"
            raise ShardingRuleError(f"factor '{name}' in a compound dimension has size {size}", text, position, fix=fix)
    for name, dim in factors.items():
        if name not in whole and name not in sizes:
            what = f"factor '{name}' only stands in compound dimensions, so its size is not known"
            raise ShardingRuleError(what, rule, dim.position, fix=f"give its size, as in {name}=2")
    return factors


def _names(rule: str, kind: str, factors: str | Iterable[str]) -> Names:
    names = tuple(factors.replace(",", " ").split() if isinstance(factors, str) else factors)
    for i, name in enumerate(names):
        if not isinstance(name, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f"{kind} must hold names of factors, got {name!r}")
        if not FACTOR_NAME.fullmatch(name):
            raise _list_error(f"'{name}' is no name of a factor", rule, kind, names, i, "names are letters, digits and '_'")
        if name in names[:i]:
            raise _list_error(f"factor '{name}' is given twice", rule, kind, names, i, "remove one")
    return names


def _check_special(rule: str, special: Mapping[str, Names], factors: Mapping[str, Dim]) -> None:
    kind_of: dict[str, str] = {}
    for kind, names in special.items():
        for i, name in enumerate(names):
            if name not in factors:
                fix = f"name factors of the rule: {', '.join(factors)}" if factors else "the rule has only scalars; remove the argument"
                raise _list_error(f"factor '{name}' is not in the rule", rule, kind, names, i, fix)
            if kind == "blocked_propagation":
                continue
            if name in kind_of:
                raise _list_error(f"factor '{name}' is in {kind_of[name]} already", rule, kind, names, i, "keep it in one of the two")
            kind_of[name] = kind


def _list_error(what: str, rule: str, kind: str, names: Names, i: int, fix: str) -> ShardingRuleError:
    before = f'"{rule}", {kind}="'
    position = len(before) + sum(len(name) + 1 for name in names[:i])
    return ShardingRuleError(what, f'{before}{" ".join(names)}"', position, fix=fix)


def _count(n: int, what: str) -> str:
    return f"{n} {what}" if n == 1 else f"{n} {what}s"
