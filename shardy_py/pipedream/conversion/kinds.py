"""Kinds of layers that generated code can call, and the check of their arguments."""

from __future__ import annotations

import keyword
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from shardy_py.pipedream.conversion.descriptions import ConversionError, Description, Word

Check = Callable[[object], bool]


@dataclass(frozen=True)
class LayerArgument:
    """One argument of a layer; `as_name` is its name in the Flax layer, empty if that has no such argument."""

    name: str
    says: str
    check: Check
    needed: bool = False
    as_name: str | None = None

    @property
    def target(self) -> str:
        """The name under which the layer takes it."""
        return self.name if self.as_name is None else self.as_name


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
    argument_of = {argument.name: argument for argument in kind.arguments}
    if len(positional) > len(argument_of):
        raise ConversionError(f"{kind.name} is given {len(positional)} arguments and has {len(argument_of)}")
    places = dict(zip(argument_of, positional))
    for name in named:
        if name not in argument_of or name in places:
            why = f"its arguments are {', '.join(argument_of)}" if argument_of else "it has none"
            raise ConversionError(f"{kind.name} {'is given twice' if name in argument_of else 'has no argument'} {name!r}", why=why)
    values = {name: _plain(value) for name, value in {**places, **named}.items()}
    for name, argument in argument_of.items():
        if name not in values and argument.needed:
            raise ConversionError(f"{kind.name} needs {name}")
        if name in values and not argument.check(values[name]):
            raise ConversionError(f"{name} of {kind.name} is {values[name]!r}", why=f"it is {argument.says}")
    first = tuple(values[name] for name in places if argument_of[name].target)
    return Call(kind, first, {argument_of[name].target: values[name] for name in named if argument_of[name].target})


def _without_inplace(description: Description) -> tuple[tuple[object, ...], dict[str, object]]:
    """PyTorch writes `inplace` as a word or a name; here nothing is overwritten."""
    positional = tuple(value for value in description.positional if value != Word("inplace"))
    return positional, {name: value for name, value in description.named.items() if name != "inplace"}


def _plain(value: object) -> object:
    return value.text if isinstance(value, Word) else value


def _count(value: object) -> bool:
    return type(value) is int and value > 0


def _index(value: object) -> bool:
    return type(value) is int


def _pair_of(check: Check) -> Check:
    return lambda value: check(value) or (isinstance(value, tuple) and len(value) == 2 and all(map(check, value)))


_sizes = _pair_of(_count)
_paddings = _pair_of(lambda value: type(value) is int and value >= 0)


def _a(name: str, kind: str, needed: bool = False, as_name: str | None = None) -> LayerArgument:
    check, says = _CHECKS[kind]
    return LayerArgument(name, says, check, needed, as_name)


_CHECKS: dict[str, tuple[Check, str]] = {
    "count": (_count, "a positive integer"),
    "counts": (lambda v: _count(v) or (isinstance(v, tuple) and bool(v) and all(map(_count, v))), "a positive integer, or several"),
    "index": (_index, "an integer"),
    "index or None": (lambda v: v is None or _index(v), "an integer or None"),
    "real": (lambda v: type(v) in (int, float), "a number"),
    "share": (lambda v: isinstance(v, int | float) and not isinstance(v, bool) and 0 <= v <= 1, "a number between 0 and 1"),
    "flag": (lambda v: isinstance(v, bool), "True or False"),
    "zero": (lambda v: v == 0, "0"),
    "one": (lambda v: v in (1, (1, 1)), "1, the only dilation of a pool that there is"),
    "pair": (_sizes, "a positive integer, or a pair of them"),
    "pair or None": (lambda v: v is None or _sizes(v), "a positive integer, a pair of them, or None"),
    "padding": (_paddings, "a non-negative integer, or a pair of them"),
    "padding or word": (lambda v: _paddings(v) or v in ("same", "valid"), "a non-negative integer, a pair of them, same or valid"),
    "zeros": (lambda v: v == "zeros", "zeros, the only mode of padding there is"),
    "false": (lambda v: v is False, "False"),
}

_BIAS = _a("bias", "flag", as_name="use_bias")
_LINEAR = (_a("in_features", "count", True), _a("out_features", "count", True), _BIAS)
_CONV = (
    _a("in_channels", "count", True),
    _a("out_channels", "count", True),
    _a("kernel_size", "pair", True),
    _a("stride", "pair"),
    _a("padding", "padding or word"),
    _a("dilation", "pair"),
    _a("groups", "count"),
    _BIAS,
    _a("padding_mode", "zeros", as_name=""),
)
_POOL = (_a("kernel_size", "pair", True), _a("stride", "pair or None"), _a("padding", "padding"))
_NORM = (
    _a("num_features", "count", True),
    _a("eps", "real"),
    _a("momentum", "real"),
    _a("affine", "flag"),
    _a("track_running_stats", "flag"),
)
_LSTM = (
    _a("input_size", "count", True),
    _a("hidden_size", "count", True),
    _a("num_layers", "count"),
    _BIAS,
    _a("batch_first", "flag"),
    _a("dropout", "share"),
    _a("bidirectional", "flag"),
    _a("proj_size", "zero", as_name=""),
)


def _conv(kind: LayerKind, description: Description) -> Call:
    call = bind_plain(kind, description)
    values = dict(zip(("in_channels", "out_channels"), call.positional)) | dict(call.named)
    groups = values.get("groups", 1)
    for name in ("in_channels", "out_channels"):
        if int(str(values[name])) % int(str(groups)):
            raise ConversionError(f"{name} of Conv2d is {values[name]}, which {groups} groups do not divide")
    return call


def _child(kind: LayerKind, description: Description, name: str, expected: str) -> Description:
    child = description.children.get(name)
    if child is None or child.kind != expected:
        raise ConversionError(f"{kind.name} has no layer ({name}): {expected}(...) inside", fix="give the description that PyTorch prints")
    return child


def _sizes_of(child: Description) -> dict[str, object]:
    """Arguments of a layer inside another by their Flax names."""
    kind = KINDS[child.kind]
    call = bind_plain(kind, child)
    return dict(zip((argument.target for argument in kind.arguments or ()), call.positional)) | dict(call.named)


def _bidirectional(kind: LayerKind, description: Description) -> Call:
    values = _sizes_of(_child(kind, description, "bidir", "LSTM"))
    only = {"input_size", "hidden_size", "use_bias", "bidirectional"}
    if not values.pop("bidirectional", False) or set(values) - only:
        raise ConversionError("(bidir) of EmuBidirLSTM is not one bidirectional layer", fix="(bidir): LSTM(n, m, bidirectional=True)")
    return Call(kind, (values.pop("input_size"), values.pop("hidden_size")), values)


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
    named = {"num_units": keys["out_features"]}
    for name, place in (("p", description), ("attention_p", attention)):
        if "dropout" in place.children:
            p = _sizes_of(_child(kind, place, "dropout", "Dropout")).get("p", 0.5)
            named |= {name: p} if p else {}
    if rnn.get("use_bias") is False:
        named["use_bias"] = False
    return Call(kind, (rnn["input_size"], keys["in_features"], rnn["hidden_size"]), named)


def _classifier(kind: LayerKind, description: Description) -> Call:
    values = _sizes_of(_child(kind, description, "classifier", "Linear"))
    return Call(kind, (values.pop("in_features"), values.pop("out_features")), values)


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


def _bare(kind: LayerKind, description: Description) -> Call:
    rest = [*(value for value in description.positional if value != Word("inplace")), *(set(description.named) - {"inplace"})]
    if rest or description.children:
        raise ConversionError(f"{kind.name} takes no arguments")
    return Call(kind)


def _layer(name: str, arguments: tuple[LayerArgument, ...] = (), attribute: str = "", **more: object) -> LayerKind:
    return LayerKind(name, "layers", attribute or name, arguments, **more)  # pyright: ignore[reportArgumentType]


def _recurrent(name: str, **more: object) -> LayerKind:
    return LayerKind(name, "recurrent", name, **more)  # pyright: ignore[reportArgumentType]


def _function(name: str, module: str, attribute: str, arguments: tuple[LayerArgument, ...] = ()) -> LayerKind:
    return LayerKind(name, module, attribute, arguments, layer=False)


_BOTH = ("train", "key")

# Ops without a module are written in place: expressions.py says how.
_ALL = (
    _layer("Conv2d", _CONV, bind=_conv),
    _layer("Linear", _LINEAR),
    _layer("BatchNorm1d", _NORM, "BatchNorm", training=("train",)),
    _layer("BatchNorm2d", _NORM, "BatchNorm", training=("train",)),
    _layer("LayerNorm", (_a("normalized_shape", "counts", True), _a("eps", "real"), _a("elementwise_affine", "flag"), _BIAS)),
    _layer("Embedding", (_a("num_embeddings", "count", True), _a("embedding_dim", "count", True), _a("padding_idx", "index or None"))),
    _layer("Dropout", (_a("p", "share"),), training=_BOTH),
    _recurrent("LSTM", arguments=_LSTM, most=2, gives="parts", training=_BOTH),
    _recurrent("EmuBidirLSTM", bind=_bidirectional, fewest=2, most=2),
    _recurrent("RecurrentAttention", bind=_attention, fewest=4, most=4, gives="parts", training=_BOTH),
    _recurrent("Classifier", bind=_classifier),
    _function(
        "MaxPool2d",
        "layers",
        "max_pool2d",
        (*_POOL, _a("dilation", "one", as_name=""), _a("return_indices", "false", as_name=""), _a("ceil_mode", "flag")),
    ),
    _function("AvgPool2d", "layers", "avg_pool2d", _POOL),
    _function("AdaptiveAvgPool2d", "layers", "adaptive_avg_pool2d", (_a("output_size", "pair", True),)),
    _function("ReLU", "jax.nn", "relu"),
    _function("ReLU6", "jax.nn", "relu6"),
    _function("Sigmoid", "jax.nn", "sigmoid"),
    _function("SiLU", "jax.nn", "silu"),
    _function("Tanh", "jax.numpy", "tanh"),
    _function("LeakyReLU", "jax.nn", "leaky_relu", (_a("negative_slope", "real"),)),
    _function("Softmax", "jax.nn", "softmax", (_a("dim", "index", True, "axis"),)),
    _function("LogSoftmax", "jax.nn", "log_softmax", (_a("dim", "index", True, "axis"),)),
    LayerKind("Add", bind=_bare, fewest=2, most=None),
    LayerKind("Mul", bind=_bare, fewest=2, most=None),
    LayerKind("Concat", arguments=(_a("dim", "index"),), most=None),
    LayerKind("Size", arguments=(_a("dim", "index"),), gives="size"),
    LayerKind("View", bind=_view, most=None),
    LayerKind("Transpose", arguments=(_a("dim0", "index", True), _a("dim1", "index", True))),
    LayerKind("__getitem__", bind=_item),
    LayerKind("hidden", bind=_bare, fewest=0, most=0, gives="state"),
    LayerKind("Input", bind=_bare, fewest=0, most=0),
)

KINDS: dict[str, LayerKind] = {kind.name: kind for kind in _ALL}
if len(KINDS) < len(_ALL):
    raise AssertionError("two layers have one name")


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
    listed = None if arguments is None else tuple(LayerArgument(each, "", lambda _: True) for each in arguments)
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
