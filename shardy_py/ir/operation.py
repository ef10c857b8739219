"""An op without values and shardings: what `Op` has in common with specifications of ops."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from shardy_py.ir.types import Type


class OperationTensor(Protocol):
    """An operand or a result."""

    @property
    def type(self) -> Type:
        """Shape and element type."""
        ...


class Operation(Protocol):
    """Name, attributes, operands and results of an op."""

    @property
    def name(self) -> str:
        """As in `Op`."""
        ...

    @property
    def primitive(self) -> str | None:
        """As in `Op`."""
        ...

    @property
    def attributes(self) -> Mapping[str, Any]:
        """As in `Op`."""
        ...

    @property
    def operands(self) -> Sequence[OperationTensor]:
        """Tensors that it reads."""
        ...

    @property
    def results(self) -> Sequence[OperationTensor]:
        """Tensors that it makes."""
        ...

    @property
    def result(self) -> OperationTensor:
        """The only result."""
        ...
