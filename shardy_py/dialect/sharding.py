"""TensorSharding: the mesh axes that cut each dimension of a tensor, and the dimensions that may get more."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import final

from shardy_py.dialect._intern import Interned, integer
from shardy_py.dialect._scan import Scanner, symbol
from shardy_py.dialect.axis import REDUCTIONS, AxisRef, UnreducedAxes, num_shards, read_axes, reduction_of
from shardy_py.dialect.mesh import Mesh
from shardy_py.errors import DialectError

_PRIORITY = re.compile(r"p([0-9]+)\Z")


@final
class DimensionSharding(Interned):
    """The axes that cut one dimension, major to minor: `{"x", "y", ?}p1`.

    Args:
        axes: Axes; a plain string stands for the full axis of that name.
        is_closed: Whether propagation must leave it as it is (`?` is written where it need not).
        priority: Round of propagation in which it starts to count, 0 the first and the default.

    Example:
        >>> from shardy_py import DimensionSharding
        >>> print(DimensionSharding(["x", "y"], is_closed=False, priority=1))
        {"x", "y", ?}p1
    """

    mnemonic = "dimension_sharding"

    axes: tuple[AxisRef, ...]
    is_closed: bool
    priority: int | None
    is_open: bool
    _text: str
    __slots__ = tuple(__annotations__)

    def __new__(cls, axes: Iterable[AxisRef | str] = (), is_closed: bool = True, priority: int | None = None) -> DimensionSharding:  # noqa: D102
        axes, is_closed = axis_refs(axes), bool(is_closed)
        priority = None if priority is None else integer(priority)
        parts = [*map(str, axes), *([] if is_closed else ["?"])]
        return cls._interned(
            axes,
            is_closed,
            priority,
            is_open=not is_closed,
            _text=f"{{{', '.join(parts)}}}" + ("" if priority is None else f"p{priority}"),
        )

    @property
    def is_empty(self) -> bool:
        """Whether no axis cuts the dimension."""
        return not self.axes

    def shards(self, mesh: Mesh) -> int:
        """Into how many parts the dimension is cut."""
        return num_shards(self.axes, mesh)

    def sharded(self, axis: AxisRef | str) -> DimensionSharding:
        """With one more axis, the most minor."""
        return DimensionSharding((*self.axes, *axis_refs((axis,))), self.is_closed, self.priority)

    def with_axes(self, axes: Iterable[AxisRef | str]) -> DimensionSharding:
        """Returns the dimension with other axes; closedness and priority stay."""
        return DimensionSharding(axes, self.is_closed, self.priority)

    def closed(self) -> DimensionSharding:
        """The same, closed."""
        return self if self.is_closed else DimensionSharding(self.axes, True, self.priority)

    def without_priority(self) -> DimensionSharding:
        """The same, without a priority."""
        return self if self.priority is None else DimensionSharding(self.axes, self.is_closed)

    @classmethod
    def read(cls, scanner: Scanner) -> DimensionSharding:
        """Reads the sharding of one dimension at the cursor."""
        scanner.expect("{")
        axes: list[AxisRef] = []
        is_open = scanner.accept("?")
        while not is_open and not scanner.at("}"):
            axes.append(AxisRef.read(scanner))
            if scanner.at("}"):
                break
            scanner.expect(",")
            is_open = scanner.accept("?")
            if not is_open and scanner.at("}"):
                scanner.fail("expected string", fix="leave out the comma, or write '?' after it for an open dimension")
        scanner.expect("}")
        start = scanner.position
        word = scanner.keyword()
        return DimensionSharding(tuple(axes), not is_open, None if word is None else _read_priority(scanner, word, start))

    def __str__(self) -> str:
        return self._text


@final
class TensorSharding(Interned):
    """The layout of a tensor over a mesh: one `DimensionSharding` per dimension.

    As `jax.sharding.NamedSharding`, but the mesh may be a name, dimensions may be open, and parts of axes may be used.

    Args:
        mesh: The name of a mesh of the program, or a mesh.
        dims: One entry per dimension; a plain sequence of axes stands for a closed dimension.
        replicated: Axes that must not cut any dimension.
        unreduced: Axes along which each device holds a part of a sum not yet taken, or of a maximum or minimum (`UnreducedAxes`).

    Attributes:
        rank: Number of dimensions.
        has_axes: Whether any axis is mentioned, as replicated or unreduced included.
        is_fully_replicated: Whether no dimension is cut (replicated and unreduced axes do not count).
        is_fully_closed: Whether every dimension is closed.
        is_fully_open: Whether every dimension is open.

    Example:
        >>> TensorSharding("mesh", [["data"], DimensionSharding(is_closed=False)])
        #sdy.sharding<@mesh, [{"data"}, {?}]>
    """

    mnemonic = "sharding"

    mesh: str | Mesh
    dims: tuple[DimensionSharding, ...]
    replicated: tuple[AxisRef, ...]
    unreduced: tuple[AxisRef, ...]
    rank: int
    has_axes: bool
    is_fully_replicated: bool
    is_fully_closed: bool
    is_fully_open: bool
    __slots__ = tuple(__annotations__)

    def __new__(  # noqa: D102
        cls,
        mesh: str | Mesh,
        dims: Iterable[DimensionSharding | Iterable[AxisRef | str]],
        replicated: Iterable[AxisRef | str] = (),
        unreduced: Iterable[AxisRef | str] = (),
    ) -> TensorSharding:
        if type(mesh) is not Mesh:
            if not isinstance(mesh, str):  # pyright: ignore[reportUnnecessaryIsInstance]
                raise TypeError(f"the mesh of a sharding must be a name or a Mesh, got {mesh!r}")
            mesh = str(mesh)
        dim_shardings = tuple(dim if type(dim) is DimensionSharding else DimensionSharding(axis_refs(dim)) for dim in dims)
        replicated = axis_refs(replicated)
        if type(unreduced) is not UnreducedAxes:
            unreduced = axis_refs(unreduced)
        cut = any(dim.axes for dim in dim_shardings)
        return cls._interned(
            mesh,
            dim_shardings,
            replicated,
            unreduced,
            rank=len(dim_shardings),
            has_axes=bool(cut or replicated or unreduced),
            is_fully_replicated=not cut,
            is_fully_closed=all(dim.is_closed for dim in dim_shardings),
            is_fully_open=all(dim.is_open for dim in dim_shardings),
        )

    @classmethod
    def open(cls, mesh: str | Mesh, rank: int) -> TensorSharding:
        """No axis anywhere, every dimension open."""
        return cls(mesh, (_OPEN,) * rank)

    @classmethod
    def closed(cls, mesh: str | Mesh, rank: int) -> TensorSharding:
        """No axis anywhere, every dimension closed: replicated."""
        return cls(mesh, (_CLOSED,) * rank)

    def mesh_in(self, meshes: Mapping[str, Mesh]) -> Mesh:
        """The mesh itself, looked up where the sharding has only its name.

        Raises:
            DialectError: There is no mesh of that name.
        """
        if type(self.mesh) is Mesh:
            return self.mesh
        try:
            return meshes[self.mesh]
        except KeyError:
            names = ", ".join(map(symbol, meshes)) or "none"
            raise DialectError(f"unknown mesh: {self.mesh_text()}", why=f"the meshes defined are: {names}") from None

    def all_axes(self) -> tuple[AxisRef, ...]:
        """Every axis mentioned: dimensions first, then replicated, then unreduced."""
        return (*self.dim_axes(), *self.replicated, *self.unreduced)

    def dim_axes(self) -> tuple[AxisRef, ...]:
        """The axes that cut a dimension, in order."""
        return tuple(axis for dim in self.dims for axis in dim.axes)

    def are_dim_axes_equal(self, other: TensorSharding) -> bool:
        """Whether each dimension is cut by the same axes in both."""
        if self.dims is other.dims:
            return True
        return self.rank == other.rank and all(a.axes == b.axes for a, b in zip(self.dims, other.dims, strict=True))

    def is_equivalent(self, other: TensorSharding | None) -> bool:
        """Whether both lay a tensor out in the same way; None counts as replicated.

        Open or closed, priorities and replicated axes do not matter. Meshes are compared by name, as Shardy does.
        """
        if self is other:
            return True
        if self.is_fully_replicated and (other is None or other.is_fully_replicated):
            return True
        return other is not None and self.mesh == other.mesh and self.are_dim_axes_equal(other)

    def with_dims(self, dims: Iterable[DimensionSharding]) -> TensorSharding:
        """With other dimensions."""
        return TensorSharding(self.mesh, tuple(dims), self.replicated, self.unreduced)

    def sharded(self, i: int, axis: AxisRef | str) -> TensorSharding:
        """With one more axis on dimension `i`, the most minor."""
        return self.with_dims(dim.sharded(axis) if d == i else dim for d, dim in enumerate(self.dims))

    def closed_like(self) -> TensorSharding:
        """Every dimension closed, replicated axes left out; priorities and unreduced axes stay."""
        return TensorSharding(self.mesh, tuple(dim.closed() for dim in self.dims), (), self.unreduced)

    def without_priorities(self) -> TensorSharding:
        """No dimension has a priority."""
        return self.with_dims(dim.without_priority() for dim in self.dims)

    def fully_closed_like(self) -> TensorSharding:
        """Replicated, over the same mesh and with the same rank."""
        return TensorSharding.closed(self.mesh, self.rank)

    def fully_open_like(self) -> TensorSharding:
        """No axes and open, over the same mesh and with the same rank."""
        return TensorSharding.open(self.mesh, self.rank)

    def with_mesh(self, mesh: str | Mesh) -> TensorSharding:
        """Over another mesh, or the same under another name."""
        return TensorSharding(mesh, self.dims, self.replicated, self.unreduced)

    def shards(self, mesh: Mesh | None = None) -> tuple[int, ...]:
        """Into how many parts each dimension is cut; `mesh` may be left out where the sharding has its own."""
        over = self.mesh if type(self.mesh) is Mesh else mesh
        if over is None:
            raise DialectError(f"the mesh of {self} is not known here", fix="pass mesh=")
        return tuple(dim.shards(over) for dim in self.dims)

    def local_shape(self, shape: Iterable[int], mesh: Mesh | None = None, *, allow_uneven: bool = True) -> tuple[int, ...]:
        """The shape of one device's part, the last part padded where the size does not divide.

        Args:
            shape: The global shape.
            mesh: May be left out where the sharding has its own.
            allow_uneven: Whether a size that does not divide is accepted.

        Raises:
            DialectError: The ranks differ, or a size does not divide and must.
        """
        shape = tuple(shape)
        if len(shape) != self.rank:
            raise DialectError(f"sharding doesn't match tensor rank: {self.rank} != {len(shape)}", where=f"{self} of shape {shape}")
        shards = self.shards(mesh)
        if not allow_uneven:
            for i, (n, k) in enumerate(zip(shape, shards, strict=True)):
                if n % k:
                    raise DialectError(
                        f"dimension size {n} is not divisible by the sharded size {k}",
                        where=f"dimension {i} of shape {shape} under {self}",
                    )
        return tuple(-(-n // k) for n, k in zip(shape, shards, strict=True))

    def mesh_text(self) -> str:
        """The mesh as it is written in a sharding: `@mesh`, or `mesh<["x"=2]>`."""
        return f"mesh{self.mesh.text(short=True)}" if type(self.mesh) is Mesh else symbol(str(self.mesh))

    def text(self, *, short: bool = False) -> str:
        """SDY text; `short` leaves out `#sdy.sharding`, as in a list of shardings."""
        tail = f", replicated={axis_list_text(self.replicated)}" if self.replicated else ""
        reduction = reduction_of(self.unreduced).replace(REDUCTIONS[0], "")
        tail += f", unreduced={reduction}{axis_list_text(self.unreduced)}" if self.unreduced else ""
        body = f"<{self.mesh_text()}, [{', '.join(map(str, self.dims))}]{tail}>"
        return body if short else f"#sdy.sharding{body}"

    @classmethod
    def read(cls, scanner: Scanner) -> TensorSharding:
        """Reads the sharding of a tensor at the cursor."""
        scanner.expect("<")
        if scanner.at("@"):
            mesh: str | Mesh = scanner.symbol()
        elif scanner.accept_keyword("mesh"):
            mesh = Mesh.read(scanner)
        else:
            scanner.fail("expected a mesh", fix="""write a mesh's name, '@mesh', or the mesh itself, 'mesh<["x"=2]>'""")
        scanner.expect(",")
        dims = scanner.listed("[", "]", lambda: DimensionSharding.read(scanner))
        named: dict[str, tuple[AxisRef, ...]] = {}
        while scanner.accept(","):
            start = scanner.position
            word = scanner.keyword()
            if word not in ("replicated", "unreduced") or word in named:
                scanner.fail(
                    "expected valid named axis list after comma", start, fix="use 'replicated={...}' and 'unreduced={...}', once each"
                )
            scanner.expect("=")
            reduction = next((each for each in REDUCTIONS[1:] if word == "unreduced" and scanner.accept_keyword(each)), "")
            axes = read_axes(scanner, may_be_empty=False)
            named[word] = UnreducedAxes(axes, reduction) if reduction else axes
        scanner.expect(">")
        return TensorSharding(mesh, dims, named.get("replicated", ()), named.get("unreduced", ()))

    def __str__(self) -> str:
        return self.text()


@final
class TensorShardingPerValue(Interned):
    """The shardings of an op's results, one each."""

    mnemonic = "sharding_per_value"

    shardings: tuple[TensorSharding, ...]
    __slots__ = tuple(__annotations__)

    def __new__(cls, shardings: Iterable[TensorSharding] = ()) -> TensorShardingPerValue:  # noqa: D102
        shardings = tuple(shardings)
        for sharding in shardings:
            if type(sharding) is not TensorSharding:
                raise TypeError(f"expected a TensorSharding, got {sharding!r}")
        return cls._interned(shardings)

    def text(self, *, short: bool = False) -> str:
        """SDY text; `short` leaves out `#sdy.sharding_per_value` and its angle brackets, as in an op."""
        body = f"[{', '.join(sharding.text(short=True) for sharding in self.shardings)}]"
        return body if short else f"#sdy.sharding_per_value<{body}>"

    @classmethod
    def read(cls, scanner: Scanner) -> TensorShardingPerValue:
        """Reads a list of shardings at the cursor, in angle brackets or not."""
        bracketed = scanner.accept("<")
        shardings = scanner.listed("[", "]", lambda: _read_listed(scanner))
        if bracketed:
            scanner.expect(">")
        return TensorShardingPerValue(shardings)

    def __str__(self) -> str:
        return self.text()

    def __len__(self) -> int:
        return len(self.shardings)

    def __getitem__(self, i: int) -> TensorSharding:
        return self.shardings[i]


def axis_refs(axes: Iterable[AxisRef | str]) -> tuple[AxisRef, ...]:
    """A tuple of references; strings stand for full axes."""
    if isinstance(axes, str):
        raise TypeError(f"axes must be a sequence, got the string {axes!r}; write ({axes!r},)")
    return tuple(axis if type(axis) is AxisRef else AxisRef(axis) for axis in axes)


def axis_list_text(axes: Iterable[AxisRef]) -> str:
    """`{"x", "y":(1)2}`."""
    return f"{{{', '.join(map(str, axes))}}}"


def _read_listed(scanner: Scanner) -> TensorSharding:
    scanner.accept("#sdy.sharding")
    return TensorSharding.read(scanner)


def _read_priority(scanner: Scanner, word: str, start: int) -> int:
    match = _PRIORITY.match(word)
    if match is None:
        scanner.fail(f"expecting priority in format 'p<number>', got: {word}", start)
    digits = match.group(1)
    if len(digits) > 1 and digits[0] == "0":
        scanner.fail(f"priorities with leading zeros are not allowed, got: {word}", start)
    if int(digits) >= 1 << 63:
        scanner.fail(f"expecting integer priority, got: {word}", start)
    return int(digits)


_OPEN = DimensionSharding(is_closed=False)
_CLOSED = DimensionSharding()
