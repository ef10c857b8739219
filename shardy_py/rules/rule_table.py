"""RuleTable: the rules a user registers, as a value that is passed along instead of global state."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType

from shardy_py.rules.einsum import RuleSpec


class RuleTable(Mapping[str, RuleSpec]):
    """Name of an op, primitive or call target -> rule; immutable, hashable, so that two plans can use different ones.

    Args:
        rules: Names and rules.

    Raises:
        TypeError: If a rule is something else.

    Example:
        >>> from shardy_py.rules import parse_einsum_rule
        >>> table = RuleTable().with_rule("my_kernel", parse_einsum_rule("i k, k j -> i j", reduction="k"))
        >>> str(table["my_kernel"])
        'i k, k j -> i j reduction={k}'
    """

    __slots__ = ("_hash", "_rules")

    def __init__(self, rules: Mapping[str, RuleSpec] | None = None) -> None:
        table = dict(rules or {})
        for name, spec in table.items():
            if not isinstance(spec, RuleSpec):  # pyright: ignore[reportUnnecessaryIsInstance]
                raise TypeError(f"the rule of '{name}' must come from parse_einsum_rule, got {type(spec).__name__}")
        self._rules = MappingProxyType(table)
        self._hash = hash(frozenset(table.items()))

    def with_rule(self, name: str, spec: RuleSpec, *, replace: bool = False) -> RuleTable:
        """Returns a copy of the table with one more rule.

        Args:
            name: Name of the op, primitive or call target.
            spec: The rule.
            replace: Whether it may take the place of another one.

        Raises:
            ValueError: If there is a different rule for the name and `replace` is not set.
        """
        if not replace and self._rules.get(name, spec) != spec:
            raise ValueError(f"there is a rule for '{name}' already, '{self._rules[name]}'; pass replace=True to use '{spec}' instead")
        return RuleTable({**self._rules, name: spec})

    def __getitem__(self, name: str) -> RuleSpec:
        return self._rules[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._rules)

    def __len__(self) -> int:
        return len(self._rules)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RuleTable) and self._rules == other._rules

    def __reduce__(self) -> tuple[type[RuleTable], tuple[dict[str, RuleSpec]]]:
        return RuleTable, (dict(self._rules),)

    def __repr__(self) -> str:
        return f"RuleTable({{{', '.join(f'{name!r}: {str(spec)!r}' for name, spec in self._rules.items())}}})"
