"""Layers by name: those of the table, and those that users register."""

from __future__ import annotations

import re
from collections.abc import Sequence

from shardy_py.pipedream.conversion.descriptions import ConversionError, Description
from shardy_py.pipedream.conversion.kinds import Argument, Call, LayerKind, bind_plain, is_name
from shardy_py.pipedream.conversion.table import KINDS

_ADDED: dict[str, LayerKind] = {}


def register_layer(
    name: str,
    target: str,
    *,
    arguments: Sequence[str] | None = None,
    layer: bool = True,
    operands: tuple[int, int | None] = (1, 1),
    training: Sequence[str] = (),
) -> None:
    """Makes a kind of node known to `convert`.

    Args:
        name: The name in descriptions: `Scale` for `Scale(64, eps=1e-5)`.
        target: `module:attribute` of a Flax module class, or of a function; generated code imports it from there.
        arguments: Names of the arguments that may be given; None takes all. They are literals always.
        layer: True for a Flax module, which is made with the arguments and `name=` and then called with the operands; False for a
            function, which is called with the operands and the arguments.
        operands: Fewest and most operands; None for any number.
        training: Of `train` and `key` those that the call takes by name.

    Raises:
        ConversionError: If the kind exists, or a name is not an identifier.

    Example:
        >>> register_layer("Softplus", "jax.nn:softplus", layer=False)
    """
    module, colon, attribute = target.partition(":") if isinstance(target, str) else ("", "", "")
    for part in (name, attribute, *module.split("."), *(arguments or ())):
        if not (isinstance(part, str) and is_name(part)):
            raise ConversionError(
                f"{part!r} is not an identifier",
                where=f"layer {name!r} with target {target!r}",
                fix='register_layer("Scale", "my_package.layers:Scale")',
            )
    if not colon or set(training) - {"train", "key"}:
        raise ConversionError(f"training={training!r} has other words than 'train' and 'key'", where=f"layer {name!r}")
    if kind_named(name) is not None:
        raise ConversionError(f"layer {name!r} is known already", fix="choose another name")
    listed = None if arguments is None else tuple(Argument(each, "", lambda _: True) for each in arguments)
    _ADDED[name] = LayerKind(name, module, attribute, listed, layer, *operands, tuple(dict.fromkeys(training)))


def kind_named(name: str) -> LayerKind | None:
    """The kind of a name, built in or added."""
    return KINDS.get("Input" if re.fullmatch(r"Input\d*", name) else name) or _ADDED.get(name)


def kind_names() -> tuple[str, ...]:
    """All names known, sorted."""
    return tuple(sorted({*KINDS, *_ADDED}))


def bind(description: Description) -> Call:
    """The call of a layer for a description. Raises ConversionError if the kind is unknown or an argument is wrong."""
    kind = kind_named(description.kind)
    if kind is None:
        raise ConversionError(
            f"no layer is called {description.kind!r}",
            why=f"known are {', '.join(kind_names())}",
            fix=f'say what it is: sp.pipedream.register_layer({description.kind!r}, "my_package.layers:Layer"), with layer=False for '
            "a function and operands=(0, None) for any number of operands; for a profile of a JAX function there is convert_jaxpr",
        )
    if kind.bind is not None:
        return kind.bind(kind, description)
    if description.children:
        raise ConversionError(f"{kind.name} has layers inside: {', '.join(description.children)}")
    return bind_plain(kind, description)
