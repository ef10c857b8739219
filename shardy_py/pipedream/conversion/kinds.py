"""Kinds of layers that generated code can call, and the check of their arguments.

The arguments of a package's own layers are read off their source: fields of a class, parameters of a function behind the array.
"""

from __future__ import annotations

import ast
import functools
import keyword
import pathlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from shardy_py.pipedream.conversion.descriptions import ConversionError, Description, Word


@dataclass(frozen=True)
class LayerArgument:
    """One argument of a layer; `target` is its name there and `type` its annotation."""

    name: str
    target: str
    type: str
    needed: bool = False

    @property
    def says(self) -> str:
        """The values that it takes, in words."""
        return ", or ".join(_TYPES[each][0] for each in self.type.split(" | "))

    def takes(self, value: object) -> bool:
        """Whether it takes a value."""
        return any(_TYPES[each][1](value) for each in self.type.split(" | "))


@dataclass(frozen=True)
class Call:
    """A layer with its arguments checked, to be written as code or run."""

    kind: LayerKind
    positional: tuple[Any, ...] = ()
    named: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class LayerKind:
    """A kind of layer: the code that is written for it, and the arguments that it takes.

    Args:
        attribute: Name of the layer in that module; empty for an op that is written in place.
        arguments: Its arguments, in the order in which they are passed by place. None takes any.
        gives: Its result: "array", "parts", "state", or a "size" or "shape", which is known while tracing and must stay so.
        bind: Makes the call from a description, in place of `arguments`.
        only: PyTorch's arguments that the layer does not have, and the values of them that change nothing.
    """

    name: str
    module: str = ""
    attribute: str = ""
    arguments: tuple[LayerArgument, ...] | None = ()
    layer: bool = True
    fewest: int = 1
    most: int | None = 1
    training: tuple[str, ...] = ()
    gives: str = "array"
    bind: Callable[[LayerKind, Description], Call] | None = None
    only: Mapping[str, tuple[object, ...]] = field(default_factory=dict)


def is_name(text: str) -> bool:
    """Whether a text is an ASCII identifier and no keyword."""
    return bool(re.fullmatch(r"[A-Za-z_]\w*", text, re.ASCII)) and not keyword.iskeyword(text)


def bind_plain(kind: LayerKind, description: Description) -> Call:
    """The call of a kind whose description lists single arguments."""
    positional, named = _without_inplace(description)
    if kind.arguments is None:
        for value in (*positional, *named.values()):
            if isinstance(value, Word):
                raise ConversionError(f"{kind.name} is given {value}, which is no literal")
        wrong = next((name for name in named if not is_name(name)), None)
        if wrong is not None:
            raise ConversionError(f"{wrong!r} is not an identifier", where=f"arguments of {kind.name}")
        return Call(kind, positional, named)
    named = {name: _plain(value) for name, value in named.items()}
    for name, values in kind.only.items():
        if (value := named.pop(name, values[0])) not in values:
            raise ConversionError(f"{name} of {kind.name} is {value!r}", why=f"{values[0]} is the only value that there is")
    argument_of = {argument.name: argument for argument in kind.arguments}
    if len(positional) > len(argument_of):
        raise ConversionError(f"{kind.name} is given {len(positional)} arguments and has {len(argument_of)}")
    values = dict(zip(argument_of, map(_plain, positional)))
    for name, value in named.items():
        if name not in argument_of or name in values:
            why = f"its arguments are {', '.join(argument_of)}" if argument_of else "it has none"
            raise ConversionError(f"{kind.name} {'is given twice' if name in argument_of else 'has no argument'} {name!r}", why=why)
        values[name] = value
    for name, argument in argument_of.items():
        if name not in values and argument.needed:
            raise ConversionError(f"{kind.name} needs {name}")
        if name in values and not argument.takes(values[name]):
            raise ConversionError(f"{name} of {kind.name} is {values[name]!r}", why=f"it is {argument.says}")
    return Call(kind, named={argument.target: values[name] for name, argument in argument_of.items() if name in values})


def _without_inplace(description: Description) -> tuple[tuple[object, ...], dict[str, object]]:
    """PyTorch writes `inplace` as a word or a name; here nothing is overwritten."""
    positional = tuple(value for value in description.positional if value != Word("inplace"))
    return positional, {name: value for name, value in description.named.items() if name != "inplace"}


def _plain(value: object) -> object:
    return value.text if isinstance(value, Word) else value


def _is_number(least: float) -> Callable[[object], bool]:
    return lambda value: type(value) is int and value >= least


def _is_pair(least: int) -> Callable[[object], bool]:
    check = _is_number(least)
    return lambda value: check(value) or (isinstance(value, tuple) and len(value) == 2 and all(map(check, value)))


# Word of an annotation -> the values in words, and the check.
_TYPES: dict[str, tuple[str, Callable[[object], bool]]] = {
    "int": ("a positive integer", _is_number(1)),
    "Sequence[int]": ("several", lambda value: isinstance(value, tuple) and bool(value) and all(map(_is_number(1), value))),
    "Pair": ("a positive integer, or a pair of them", _is_pair(1)),
    "Padding": ("a non-negative integer, or a pair of them", _is_pair(0)),
    "Index": ("an integer", _is_number(float("-inf"))),
    "float": ("a number between 0 and 1", lambda value: type(value) in (int, float) and 0 <= value <= 1),  # pyright: ignore
    "bool": ("True or False", lambda value: isinstance(value, bool)),
    "str": ("same or valid", lambda value: value in ("same", "valid")),
    "None": ("None", lambda value: value is None),
    "Any": ("anything", lambda _: True),
}


@functools.cache
def _own_layers(module: str) -> dict[str, ast.stmt]:
    tree = ast.parse((pathlib.Path(__file__).parent / "copied" / f"{module}.py").read_text())
    return {node.name: node for node in tree.body if isinstance(node, ast.ClassDef | ast.FunctionDef)}


def _arguments_of(node: ast.stmt) -> tuple[LayerArgument, ...]:
    """The fields of a class, or the parameters of a function behind the first."""
    if isinstance(node, ast.ClassDef):
        fields = [(each.target, each.annotation, each.value is None) for each in node.body if isinstance(each, ast.AnnAssign)]
    else:
        assert isinstance(node, ast.FunctionDef)
        needed = len(node.args.args) - len(node.args.defaults)
        fields = [(ast.Name(each.arg), each.annotation or ast.Constant(None), i < needed) for i, each in enumerate(node.args.args)][1:]
    return tuple(_argument(*map(ast.unparse, field), needed=needed) for *field, needed in fields)


def _argument(target: str, type: str, *, needed: bool = False) -> LayerArgument:
    """An argument under PyTorch's name."""
    return LayerArgument({"use_bias": "bias", "axis": "dim"}.get(target, target), target, type, needed)


def _child(kind: LayerKind, description: Description, name: str, expected: str) -> Description:
    child = description.children.get(name)
    if child is None or child.kind != expected:
        raise ConversionError(f"{kind.name} has no layer ({name}): {expected}(...) inside", fix="give the description that PyTorch prints")
    return child


def _sizes_of(child: Description) -> dict[str, object]:
    """Arguments of a layer inside another by their Flax names."""
    return dict(bind_plain(KINDS[child.kind], child).named)


def _bidirectional(kind: LayerKind, description: Description) -> Call:
    values = _sizes_of(_child(kind, description, "bidir", "LSTM"))
    only = {"input_size", "hidden_size", "use_bias", "bidirectional"}
    if not values.pop("bidirectional", False) or set(values) - only:
        raise ConversionError("(bidir) of EmuBidirLSTM is not one bidirectional layer", fix="(bidir): LSTM(n, m, bidirectional=True)")
    return Call(kind, named=values)


def _attention(kind: LayerKind, description: Description) -> Call:
    rnn = _sizes_of(_child(kind, description, "rnn", "LSTM"))
    if set(rnn) - {"input_size", "hidden_size", "use_bias"}:
        raise ConversionError("(rnn) of RecurrentAttention is not one plain layer", fix="(rnn): LSTM(n, m)")
    attention = _child(kind, description, "attn", "BahdanauAttention")
    query = _sizes_of(_child(kind, attention, "linear_q", "Linear"))
    keys = _sizes_of(_child(kind, attention, "linear_k", "Linear"))
    if query["in_features"] != rnn["hidden_size"] or query["out_features"] != keys["out_features"]:
        raise ConversionError(
            "the sizes inside of RecurrentAttention do not fit",
            why="linear_q reads what rnn gives, and linear_q and linear_k are added",
        )
    named = {"input_size": rnn["input_size"], "context_size": keys["in_features"], "hidden_size": rnn["hidden_size"]}
    named["num_units"] = keys["out_features"]
    for name, place in (("p", description), ("attention_p", attention)):
        if "dropout" in place.children:
            p = _sizes_of(_child(kind, place, "dropout", "Dropout")).get("p", 0.5)
            named |= {name: p} if p else {}
    if rnn.get("use_bias") is False:
        named["use_bias"] = False
    return Call(kind, named=named)


def _classifier(kind: LayerKind, description: Description) -> Call:
    return Call(kind, named=_sizes_of(_child(kind, description, "classifier", "Linear")))


def _view(kind: LayerKind, description: Description) -> Call:
    """Sizes behind the first one, which PipeDream leaves out."""
    sizes = description.positional
    if description.named or not all(type(size) is int and size >= -1 for size in sizes) or sizes.count(-1) > 1:
        raise ConversionError("the sizes of View are wrong", why="they are integers, with at most one -1 among them")
    return Call(kind, sizes)


def _item(kind: LayerKind, description: Description) -> Call:
    parts = description.positional
    if len(parts) != 1 or description.named or not _is_key(parts[0]):
        raise ConversionError("the key of __getitem__ is wrong", why="it is an integer, a slice, or a tuple of them")
    return Call(kind, parts)


def _is_key(key: object) -> bool:
    if isinstance(key, tuple):
        return all(map(_is_key, key))
    return key is None or key is Ellipsis or type(key) is int or isinstance(key, slice)


def _own(name: str, module: str = "layers", attribute: str = "", **more: Any) -> LayerKind:
    """A layer of the package's own."""
    node = _own_layers(module)[attribute or name]
    return LayerKind(name, module, attribute or name, _arguments_of(node), isinstance(node, ast.ClassDef), **more)


def _function(name: str, target: str, *arguments: LayerArgument) -> LayerKind:
    module, _, attribute = target.rpartition(".")
    return LayerKind(name, module, attribute, arguments, layer=False)


_BOTH = ("train", "key")
_AXIS = _argument("axis", "Index", needed=True)

# Ops without a module are written in place: expressions.py says how.
_ALL = (
    _own("Conv2d", only={"padding_mode": ("zeros",)}),
    _own("Linear"),
    _own("BatchNorm1d", attribute="BatchNorm", training=("train",)),
    _own("BatchNorm2d", attribute="BatchNorm", training=("train",)),
    _own("LayerNorm"),
    _own("Embedding"),
    _own("Dropout", training=_BOTH),
    _own("LSTM", "recurrent", most=2, gives="parts", training=_BOTH, only={"proj_size": (0,)}),
    _own("EmuBidirLSTM", "recurrent", bind=_bidirectional, fewest=2, most=2),
    _own("RecurrentAttention", "recurrent", bind=_attention, fewest=4, most=4, gives="parts", training=_BOTH),
    _own("Classifier", "recurrent", bind=_classifier),
    _own("MaxPool2d", attribute="max_pool2d", only={"dilation": (1, (1, 1)), "return_indices": (False,)}),
    _own("AvgPool2d", attribute="avg_pool2d"),
    _own("AdaptiveAvgPool2d", attribute="adaptive_avg_pool2d"),
    _function("ReLU", "jax.nn.relu"),
    _function("ReLU6", "jax.nn.relu6"),
    _function("Sigmoid", "jax.nn.sigmoid"),
    _function("SiLU", "jax.nn.silu"),
    _function("Tanh", "jax.numpy.tanh"),
    _function("LeakyReLU", "jax.nn.leaky_relu", _argument("negative_slope", "float")),
    _function("Softmax", "jax.nn.softmax", _AXIS),
    _function("LogSoftmax", "jax.nn.log_softmax", _AXIS),
    LayerKind("Add", fewest=2, most=None),
    LayerKind("Mul", fewest=2, most=None),
    LayerKind("Concat", arguments=(_argument("dim", "Index"),), most=None),
    LayerKind("Size", arguments=(_argument("dim", "Index"),), gives="size"),
    LayerKind("View", bind=_view, most=None),
    LayerKind("Transpose", arguments=(_argument("dim0", "Index", needed=True), _argument("dim1", "Index", needed=True))),
    LayerKind("__getitem__", bind=_item),
    LayerKind("hidden", fewest=0, most=0, gives="state"),
    LayerKind("Input", fewest=0, most=0),
)

KINDS: dict[str, LayerKind] = {kind.name: kind for kind in _ALL}

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
    listed = None if arguments is None else tuple(LayerArgument(each, each, "Any") for each in arguments)
    _ADDED[name] = LayerKind(name, module, attribute, listed, layer, *operands, tuple(dict.fromkeys(training)))


def kind_named(name: str) -> LayerKind | None:
    """The kind of a name, built in or added."""
    return KINDS.get("Input" if re.fullmatch(r"Input\d*", name) else name) or _ADDED.get(name)


def bind(description: Description) -> Call:
    """The call of a layer for a description. Raises ConversionError if the kind is unknown or an argument is wrong."""
    kind = kind_named(description.kind)
    if kind is None:
        raise ConversionError(
            f"no layer is called {description.kind!r}",
            why=f"known are {', '.join(sorted({*KINDS, *_ADDED}))}",
            fix=f'say what it is: sp.pipedream.register_layer({description.kind!r}, "my_package.layers:Layer"), with layer=False for '
            "a function and operands=(0, None) for any number of operands; for a profile of a JAX function there is convert_jaxpr",
        )
    if kind.bind is not None:
        return kind.bind(kind, description)
    if description.children:
        raise ConversionError(f"{kind.name} has layers inside: {', '.join(description.children)}")
    return bind_plain(kind, description)
