"""Interning: equal values are one object, so that `is` compares them and hashing costs nothing."""

from __future__ import annotations

import inspect
import re
from functools import lru_cache
from operator import index
from typing import Any, ClassVar, Self, SupportsIndex, TypeVar

from shardy_py.dialect._scan import Scanner

_Made = TypeVar("_Made")
_PREFIX = re.compile(r"#sdy([.<])([a-z_]+)")


class _Interning(type):
    """Looks the arguments up before anything is made of them."""

    def __call__(cls: type[_Made], *args: Any, **kwargs: Any) -> _Made:
        if not kwargs:
            try:
                return cls._table[args]  # type: ignore[attr-defined]
            except (KeyError, TypeError):
                pass
        return type.__call__(cls, *args, **kwargs)


class Interned(metaclass=_Interning):
    """Base of the dialect's values: immutable, one object per value, picklable, copied as itself.

    A subclass annotates its attributes; those that its `__new__` takes are its fields, the others are derived of them. Arguments that
    are not in its `_table` come to `__new__`, which brings them into their one proper form and calls `_interned`. The table keeps values
    alive for the life of the process.
    """

    __slots__ = ()

    _fields: ClassVar[tuple[str, ...]] = ()
    _defaults: ClassVar[tuple[object, ...]] = ()
    _table: ClassVar[dict[Any, Any]]
    mnemonic: ClassVar[str]
    """Its name in SDY text, `sharding` in `#sdy.sharding`."""
    __match_args__: ClassVar[tuple[str, ...]] = ()

    def __init_subclass__(cls) -> None:
        cls._table = {}
        parameters = [*inspect.signature(cls.__new__).parameters.values()][1:]
        cls._fields = cls.__match_args__ = tuple(parameter.name for parameter in parameters)
        cls._defaults = tuple(parameter.default for parameter in parameters)

    @classmethod
    def _interned(cls, *key: object, **derived: object) -> Self:
        """The one object for `key`, the constructor's arguments in their proper form, with its derived attributes."""
        interned: Self | None = cls._table.get(key)
        if interned is not None:
            return interned
        new = object.__new__(cls)
        for name, value in (*zip(cls._fields, key, strict=True), *derived.items()):
            object.__setattr__(new, name, value)
        new = cls._table.setdefault(key, new)
        while key and key[-1] is cls._defaults[len(key) - 1]:
            key = key[:-1]
            cls._table[key] = new
        return new

    @classmethod
    def parse(cls, text: str) -> Self:
        """Reads SDY text, with or without the `#sdy...` prefix; the inverse of `str`.

        Raises:
            ParseError: The text is not such a value; the message points at the place.
        """
        return _parse(cls, text)

    @classmethod
    def read(cls, scanner: Scanner) -> Self:
        """Reads the value at the cursor of a larger text, without a prefix."""
        raise NotImplementedError

    def replace(self, **changes: Any) -> Self:
        """The value with some fields changed, as `dataclasses.replace`."""
        values: dict[str, Any] = {name: getattr(self, name) for name in self._fields}
        unknown = [name for name in changes if name not in values]
        if unknown:
            raise TypeError(f"{type(self).__name__} has no field {unknown[0]!r}; its fields are {', '.join(self._fields)}")
        return type(self)(**(values | changes))

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"{type(self).__name__} is immutable; use .replace({name}=...) for a changed one")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"{type(self).__name__} is immutable")

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self), tuple(getattr(self, name) for name in self._fields))

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: object) -> Self:
        return self

    def __repr__(self) -> str:
        return str(self)


_Value = TypeVar("_Value", bound=Interned)


@lru_cache(maxsize=8192)
def _parse(kind: type[_Value], text: str) -> _Value:
    scanner = Scanner(text)
    prefix = _PREFIX.match(text, scanner.position)
    if prefix is None:
        value = kind.read(scanner)
    else:
        if prefix.group(2) != kind.mnemonic:
            scanner.fail(f"expected '#sdy.{kind.mnemonic}', found '{prefix.group()}'")
        scanner.accept(prefix.group())
        value = kind.read(scanner)
        if prefix.group(1) == "<":
            scanner.expect(">")
    scanner.end()
    return value


def mnemonic_of(scanner: Scanner) -> str | None:
    """The name in the `#sdy.name` or `#sdy<name` that comes next; None where none does."""
    prefix = _PREFIX.match(scanner.text, scanner.position)
    return None if prefix is None else prefix.group(2)


def integer(value: SupportsIndex) -> int:
    """A plain int: a NumPy integer or a bool would print differently and be found by the same key."""
    return int(index(value))
