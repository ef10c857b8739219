"""Lists of axes as collectives and manual computations carry them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import final

from shardy_py.dialect._intern import Interned, integer
from shardy_py.dialect._scan import Scanner, quoted
from shardy_py.dialect.axis import AxisRef, read_axes
from shardy_py.dialect.sharding import axis_list_text, axis_refs


class _Attribute(Interned):
    """An attribute printed in an op by its body alone, and elsewhere as `#sdy<name body>`."""

    __slots__ = ()

    @property
    def _body(self) -> str:
        raise NotImplementedError

    def text(self, *, short: bool = False) -> str:
        """SDY text; `short` leaves out `#sdy<name >`."""
        return self._body if short else f"#sdy<{self.mnemonic}{self._body}>"

    def __str__(self) -> str:
        return self._body


@final
class AxisRefList(_Attribute):
    """`{"x", "y"}`: the axes of a collective along one dimension."""

    mnemonic = "axis_ref_list"

    axes: tuple[AxisRef, ...]
    __slots__ = tuple(__annotations__)

    def __new__(cls, axes: Iterable[AxisRef | str] = ()) -> AxisRefList:  # noqa: D102
        axes = axis_refs(axes)
        return cls._interned(axes)

    @property
    def _body(self) -> str:
        return axis_list_text(self.axes)

    @classmethod
    def read(cls, scanner: Scanner) -> AxisRefList:
        """Reads `{"x"}` at the cursor."""
        return AxisRefList(read_axes(scanner, may_be_empty=True))


@final
class ListOfAxisRefLists(_Attribute):
    """`[{"x"}, {}]`: the axes of a collective, one list per dimension."""

    mnemonic = "list_of_axis_ref_lists"

    lists: tuple[AxisRefList, ...]
    __slots__ = tuple(__annotations__)

    def __new__(cls, lists: Iterable[AxisRefList | Iterable[AxisRef | str]] = ()) -> ListOfAxisRefLists:  # noqa: D102
        items = tuple(item if type(item) is AxisRefList else AxisRefList(tuple(item)) for item in lists)
        return cls._interned(items)

    @property
    def _body(self) -> str:
        return f"[{', '.join(map(str, self.lists))}]"

    @classmethod
    def read(cls, scanner: Scanner) -> ListOfAxisRefLists:
        """Reads `[{"x"}, {}]` at the cursor."""
        return ListOfAxisRefLists(scanner.listed("[", "]", lambda: AxisRefList.read(scanner)))


@final
class AllToAllParam(_Attribute):
    """`{"x"}: 0->1`: move the axes, major to minor, from the end of one dimension to the end of another."""

    mnemonic = "all_to_all_param"

    axes: tuple[AxisRef, ...]
    source: int
    target: int
    __slots__ = tuple(__annotations__)

    def __new__(cls, axes: Iterable[AxisRef | str], source: int, target: int) -> AllToAllParam:  # noqa: D102
        axes, source, target = axis_refs(axes), integer(source), integer(target)
        return cls._interned(axes, source, target)

    @property
    def _body(self) -> str:
        return f"{axis_list_text(self.axes)}: {self.source}->{self.target}"

    @classmethod
    def read(cls, scanner: Scanner) -> AllToAllParam:
        """Reads `{"x"}: 0->1` at the cursor."""
        axes = read_axes(scanner, may_be_empty=False)
        scanner.expect(":")
        source = scanner.integer()
        scanner.expect("->")
        return AllToAllParam(axes, source, scanner.integer())


@final
class AllToAllParamList(_Attribute):
    """`[{"x"}: 0->1, {"y"}: 2->3]`: the moves of one all-to-all."""

    mnemonic = "all_to_all_param_list"

    params: tuple[AllToAllParam, ...]
    __slots__ = tuple(__annotations__)

    def __new__(cls, params: Iterable[AllToAllParam | tuple[Iterable[AxisRef | str], int, int]]) -> AllToAllParamList:  # noqa: D102
        items = tuple(param if type(param) is AllToAllParam else AllToAllParam(*param) for param in params)
        return cls._interned(items)

    @property
    def _body(self) -> str:
        return f"[{', '.join(map(str, self.params))}]"

    @classmethod
    def read(cls, scanner: Scanner) -> AllToAllParamList:
        """Reads `[{"x"}: 0->1]` at the cursor."""
        return AllToAllParamList(scanner.listed("[", "]", lambda: AllToAllParam.read(scanner)))


@final
class ManualAxes(_Attribute):
    """`{"x", "y"}`: the mesh axes that a manual computation's body does not see."""

    mnemonic = "manual_axes"

    axes: tuple[str, ...]
    __slots__ = tuple(__annotations__)

    def __new__(cls, axes: Iterable[str] = ()) -> ManualAxes:  # noqa: D102
        if isinstance(axes, str):
            raise TypeError(f"manual axes must be a sequence of names, got the string {axes!r}; write ({axes!r},)")
        axes = tuple(map(str, axes))
        return cls._interned(axes)

    @property
    def _body(self) -> str:
        return f"{{{', '.join(map(quoted, self.axes))}}}"

    @classmethod
    def read(cls, scanner: Scanner) -> ManualAxes:
        """Reads `{"x", "y"}` at the cursor."""
        return ManualAxes(scanner.listed("{", "}", scanner.string))


AXES_OF: Mapping[str, str] = {
    "sdy.all_gather": "gathering_axes",
    "sdy.all_reduce": "reduction_axes",
    "sdy.all_slice": "slicing_axes",
    "sdy.all_to_all": "params",
    "sdy.reduce_scatter": "reduce_scatter_axes",
    "sdy.replicated_to_unreduced": "axes",
    "sdy.sharded_to_unreduced": "axes",
}
"""Name of a collective -> the attribute that holds its axes; a `sdy.collective_permute` has none."""


def moved_axes(attribute: AxisRefList | ListOfAxisRefLists | AllToAllParamList) -> tuple[AxisRef, ...]:
    """The axes in the attribute of a collective, in order."""
    if isinstance(attribute, AxisRefList):
        return attribute.axes
    parts = attribute.params if isinstance(attribute, AllToAllParamList) else attribute.lists
    return tuple(axis for part in parts for axis in part.axes)
