"""The layers and ops of PipeDream's profiles, one line each."""

from __future__ import annotations

from collections.abc import Callable

from shardy_py.pipedream.conversion.descriptions import ConversionError, Description, Word
from shardy_py.pipedream.conversion.kinds import Argument, Call, LayerKind, bind_plain


def _count(value: object) -> bool:
    return type(value) is int and value > 0


def _index(value: object) -> bool:
    return type(value) is int


def _real(value: object) -> bool:
    return type(value) in (int, float)


def _share(value: object) -> bool:
    return type(value) in (int, float) and 0 <= value <= 1  # pyright: ignore[reportOperatorIssue]


def _flag(value: object) -> bool:
    return type(value) is bool


def _one_or(count: int, check: Callable[[object], bool]) -> Callable[[object], bool]:
    return lambda value: check(value) or (isinstance(value, tuple) and len(value) == count and all(map(check, value)))


def _not_negative(value: object) -> bool:
    return type(value) is int and value >= 0


def _maybe(check: Callable[[object], bool]) -> Callable[[object], bool]:
    return lambda value: value is None or check(value)


_sizes, _paddings = _one_or(2, _count), _one_or(2, _not_negative)


def _a(name: str, kind: str, needed: bool = False, as_name: str | None = None) -> Argument:
    check, says = _CHECKS[kind]
    return Argument(name, says, check, needed, as_name)


_CHECKS: dict[str, tuple[Callable[[object], bool], str]] = {
    "count": (_count, "a positive integer"),
    "counts": (lambda v: _count(v) or (isinstance(v, tuple) and bool(v) and all(map(_count, v))), "a positive integer, or several"),
    "index": (_index, "an integer"),
    "index or None": (_maybe(_index), "an integer or None"),
    "real": (_real, "a number"),
    "real or None": (_maybe(_real), "a number or None"),
    "share": (_share, "a number between 0 and 1"),
    "flag": (_flag, "True or False"),
    "zero": (lambda v: v == 0, "0"),
    "pair": (_sizes, "a positive integer, or a pair of them"),
    "pair or None": (_maybe(_sizes), "a positive integer, a pair of them, or None"),
    "padding": (_paddings, "a non-negative integer, or a pair of them"),
    "padding or word": (lambda v: _paddings(v) or v in ("same", "valid"), "a non-negative integer, a pair of them, same or valid"),
    "four": (_one_or(4, _index), "an integer, or four"),
    "zeros": (lambda v: v == "zeros", "zeros, the only mode of padding there is"),
    "false": (lambda v: v is False, "False"),
    "count or None": (_maybe(_count), "a positive integer or None"),
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
    _a("momentum", "real or None"),
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


def _layer(name: str, arguments: tuple[Argument, ...] = (), attribute: str = "", **more: object) -> LayerKind:
    return LayerKind(name, "layers", attribute or name, arguments, **more)  # pyright: ignore[reportArgumentType]


def _recurrent(name: str, **more: object) -> LayerKind:
    return LayerKind(name, "recurrent", name, **more)  # pyright: ignore[reportArgumentType]


def _function(name: str, module: str, attribute: str, arguments: tuple[Argument, ...] = ()) -> LayerKind:
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
        (*_POOL, _a("dilation", "pair"), _a("return_indices", "false", as_name=""), _a("ceil_mode", "flag")),
    ),
    _function(
        "AvgPool2d",
        "layers",
        "avg_pool2d",
        (*_POOL, _a("ceil_mode", "flag"), _a("count_include_pad", "flag"), _a("divisor_override", "count or None")),
    ),
    _function("AdaptiveAvgPool2d", "layers", "adaptive_avg_pool2d", (_a("output_size", "pair", True),)),
    _function("ZeroPad2d", "layers", "zero_pad2d", (_a("padding", "four", True),)),
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
