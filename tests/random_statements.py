"""The statements that random programs are made of.

Each function writes one or a few lines that use earlier values, or raises `Skip` where no earlier value is fit.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

from tests.random_moves import MOVES
from tests.random_parts import dimension, skip, with_size, without

if TYPE_CHECKING:
    from tests.random_programs import Writer


UNARY = (
    "-{x}", "jnp.sin({x})", "jnp.exp({x})", "jnp.tanh({x})", "jnp.abs({x})", "{x} ** 2", "{x} ** 3", "jax.nn.relu({x})", "jax.nn.gelu({x})",
    "jax.nn.silu({x})", "jax.nn.softplus({x})", "jax.nn.sigmoid({x})", "lax.rsqrt(jnp.abs({x}) + 1.0)", "jnp.clip({x}, -1.0, 1.0)",
    "jnp.sqrt(jnp.abs({x}))", "jnp.where({x} > 0, {x}, 0.5)", "lax.stop_gradient({x})", "{x}.astype(jnp.bfloat16).astype(jnp.float32)",
    "jnp.log1p(jnp.abs({x}))", "jnp.floor({x})", "jnp.sign({x})", "lax.erf({x})", "lax.square({x})", "jnp.isnan({x}).astype(jnp.float32)",
    "lax.reduce_precision({x}, 8, 7)", "jax.nn.leaky_relu({x})", "jax.nn.elu({x})", "lax.logistic({x})", "lax.optimization_barrier({x})",
    "jnp.cbrt({x})", "jnp.round({x})", "lax.integer_pow({x}, -3)", "jnp.nan_to_num({x})", "jnp.sinc({x})", "jnp.tan({x})",
    "jnp.arcsinh({x})",
)  # fmt: skip
BINARY = (
    "{x} + {y}", "{x} * {y}", "{x} - {y}", "jnp.maximum({x}, {y})", "jnp.minimum({x}, {y})", "{x} / (jnp.abs({y}) + 1.0)",
    "jnp.where({x} > {y}, {x}, {y})", "jnp.arctan2({x}, {y})", "jnp.where({y} > 0.5, {x}, {y})", "jnp.hypot({x}, {y})",
    "jnp.logaddexp({x}, {y})", "({x} >= {y}).astype(jnp.float32)", "jnp.power(jnp.abs({x}), {y})", "{x} % (jnp.abs({y}) + 1.0)",
    "jnp.where(jnp.logical_and({x} > 0, {y} < 1), {x}, {y})",
)  # fmt: skip


def unary(w: Writer) -> None:
    x = w.any()
    w.let(w.choose.one_of(UNARY).format(x=x.name), x.shape)


def binary(w: Writer) -> None:
    x = w.any()
    y = w.any(lambda v: v.shape == x.shape)
    w.let(w.choose.one_of(BINARY).format(x=x.name, y=y.name), x.shape)


def _broadcast(a: tuple[int, ...], b: tuple[int, ...]) -> tuple[int, ...] | None:
    rank = max(len(a), len(b))
    a, b = (1,) * (rank - len(a)) + a, (1,) * (rank - len(b)) + b
    if any(m != n and 1 not in (m, n) for m, n in zip(a, b)):
        return None
    return tuple(n if m == 1 else m for m, n in zip(a, b))


def broadcasting(w: Writer) -> None:
    x = w.array()
    y = w.any(lambda v: v.shape != x.shape and _broadcast(x.shape, v.shape) is not None)
    shape = _broadcast(x.shape, y.shape)
    assert shape is not None
    w.let(w.choose.one_of(BINARY[:4]).format(x=x.name, y=y.name), shape)


SCALAR = ("{x} * 2.0", "1.0 - {x}", "{x} + {s}", "{s} * {x}", "{x} / 3.0", "lax.max({x}, 0.0)", "lax.mul({x}, lax.full_like({x}, 2))")


def scalar(w: Writer) -> None:
    x = w.any()
    text = w.choose.one_of(SCALAR)
    s = w.any(lambda v: not v.rank).name if "{s}" in text else ""
    w.let(text.format(x=x.name, s=s), x.shape)


def matmul(w: Writer) -> None:
    x = w.array()
    y = w.any(lambda v: v.rank in (1, 2) and v.shape[0] == x.shape[-1])
    w.let(f"{x.name} @ {y.name}", (*x.shape[:-1], *y.shape[1:]))


def dot_general(w: Writer) -> None:
    x = w.array()
    y = w.array()
    pairs = [(i, j) for i, m in enumerate(x.shape) for j, n in enumerate(y.shape) if m == n]
    contracting: list[tuple[int, int]] = []
    batch: list[tuple[int, int]] = []
    for i, j in w.choose.shuffled(pairs):
        if any(i == a or j == b for a, b in contracting + batch):
            continue
        kind = w.choose.integer(0, 2)
        if kind < 2:
            (contracting, batch)[kind].append((i, j))
    if not contracting and not batch:
        skip()
    numbers = tuple((tuple(i for i, _ in kind), tuple(j for _, j in kind)) for kind in (contracting, batch))
    shape = [x.shape[i] for i, _ in batch]
    shape += without(x.shape, *(i for i, _ in contracting + batch)) + without(y.shape, *(j for _, j in contracting + batch))
    w.let(f"lax.dot_general({x.name}, {y.name}, {numbers})", shape)


def einsum(w: Writer) -> None:
    operands = [w.array() for _ in range(w.choose.integer(1, 3))]
    letters: dict[str, int] = {}
    terms = []
    for v in operands:
        term = ""
        for n in v.shape:
            known = [c for c, size in letters.items() if size == n and c not in term]
            if known and w.choose.chance(70):
                term += w.choose.one_of(known)
            else:
                term += "abcdefghijkl"[len(letters)]
                letters[term[-1]] = n
        terms.append(term)
    out = w.choose.shuffled(w.choose.some_of(sorted(letters)))[:4]
    w.let(f'jnp.einsum("{",".join(terms)}->{"".join(out)}", {", ".join(v.name for v in operands)})', [letters[c] for c in out])


def reshape(w: Writer) -> None:
    x = w.array()
    kind = w.choose.integer(0, 4)
    if kind == 0 and x.rank > 1:
        d = w.choose.integer(0, x.rank - 2)
        shape = (*x.shape[:d], x.shape[d] * x.shape[d + 1], *x.shape[d + 2 :])
    elif kind == 1:
        d = dimension(w, x)
        part = w.choose.one_of([n for n in range(2, x.shape[d]) if x.shape[d] % n == 0])
        shape = (*x.shape[:d], part, x.shape[d] // part, *x.shape[d + 1 :])
    elif kind == 2:
        d = w.choose.integer(0, x.rank)
        shape = (*x.shape[:d], 1, *x.shape[d:])
        if len(shape) <= 4:
            w.let(f"jnp.expand_dims({x.name}, {d})", shape)
            return
    elif kind == 3 and 1 in x.shape:
        d = w.choose.one_of([d for d, n in enumerate(x.shape) if n == 1])
        w.let(f"jnp.squeeze({x.name}, {d})", without(x.shape, d))
        return
    else:
        left, sizes = math.prod(x.shape), []
        while left > 1 and len(sizes) < 3:
            sizes.append(w.choose.one_of([n for n in range(2, left + 1) if left % n == 0]))
            left //= sizes[-1]
        shape = (*sizes, left) if left > 1 else tuple(sizes)
    if math.prod(shape) != math.prod(x.shape):
        skip()
    w.let(f"jnp.reshape({x.name}, {tuple(shape)})", shape)


def transpose(w: Writer) -> None:
    x = w.array(2)
    order = w.choose.shuffled(range(x.rank))
    w.let(f"jnp.transpose({x.name}, {tuple(order)})", [x.shape[d] for d in order])


REDUCTIONS = ("jnp.sum", "jnp.max", "jnp.mean", "jnp.min", "jnp.prod", "jnp.var", "jnp.std", "jax.nn.logsumexp", "jnp.linalg.norm")


def reduce(w: Writer) -> None:
    x = w.array()
    name = w.choose.one_of(REDUCTIONS)
    if name == "jnp.linalg.norm" or w.choose.chance(60):
        dims = [dimension(w, x)]
    else:
        dims = w.choose.some_of(range(x.rank)) or list(range(x.rank))
    keep = w.choose.chance(35)
    axis = dims[0] if len(dims) == 1 else tuple(dims)
    shape = [1 if d in dims else n for d, n in enumerate(x.shape)] if keep else without(x.shape, *dims)
    w.let(f"{name}({x.name}, axis={axis}{', keepdims=True' if keep else ''})", shape)


NORMALIZE = (
    "jax.nn.softmax({x}, axis={d})",
    "jax.nn.log_softmax({x}, axis={d})",
    "{x} / jnp.sum({x}, axis={d}, keepdims=True)",
    "({x} - jnp.mean({x}, axis={d}, keepdims=True)) * lax.rsqrt(jnp.var({x}, axis={d}, keepdims=True) + 1e-5)",
    "jax.nn.standardize({x}, axis={d})",
)


def normalize(w: Writer) -> None:
    x = w.array()
    d = dimension(w, x)
    text = w.choose.one_of(NORMALIZE)
    w.let(text.format(x=x.name, d=d), x.shape)


def concatenate(w: Writer) -> None:
    x = w.array()
    d = dimension(w, x)
    y = w.any(lambda v: v.rank == x.rank and without(v.shape, d) == without(x.shape, d))
    if w.choose.chance(25) and y.shape == x.shape:
        w.let(f"jnp.stack([{x.name}, {y.name}], axis={d})", (*x.shape[:d], 2, *x.shape[d:]))
    else:
        w.let(f"jnp.concatenate([{x.name}, {y.name}], axis={d})", with_size(x.shape, d, x.shape[d] + y.shape[d]))


def take_slice(w: Writer) -> None:
    x = w.array()
    d = dimension(w, x)
    n = x.shape[d]
    lead = ":, " * d
    kind = w.choose.integer(0, 4)
    if kind == 0:
        start = w.choose.integer(0, n - 1)
        stop = w.choose.integer(start + 1, n)
        w.let(f"{x.name}[{lead}{start}:{stop}]", with_size(x.shape, d, stop - start))
    elif kind == 1:
        step = w.choose.integer(2, 3)
        w.let(f"{x.name}[{lead}::{step}]", with_size(x.shape, d, -(-n // step)))
    elif kind == 2:
        w.let(f"{x.name}[{lead}{w.choose.integer(0, n - 1)}]", without(x.shape, d))
    elif kind == 3:
        w.let(f"{x.name}[{lead}::-1]", x.shape)
    else:
        parts = w.choose.one_of([k for k in (2, 3, 4) if n % k == 0])
        names = [w.fresh("v") for _ in range(parts)]
        w.line(f"{', '.join(names)} = jnp.split({x.name}, {parts}, axis={d})")
        w.add(*(x._replace(name=name, shape=with_size(x.shape, d, n // parts)) for name in names))


def pad(w: Writer) -> None:
    x = w.array()
    widths = [(w.choose.integer(0, 2), w.choose.integer(0, 2)) if w.choose.chance(60) else (0, 0) for _ in x.shape]
    if w.choose.chance(30):
        inner = [w.choose.integer(0, 1) for _ in x.shape]
        config = tuple((low - 1, high, i) for (low, high), i in zip(widths, inner))
        shape = [n + low + high + i * (n - 1) for n, (low, high, i) in zip(x.shape, config)]
        w.let(f"lax.pad({x.name}, jnp.float32(0), {config})", shape)
    else:
        mode = w.choose.one_of(("constant", "constant", "edge", "wrap" if 1 not in x.shape and 3 not in x.shape else "edge"))
        w.let(f"jnp.pad({x.name}, {tuple(widths)}, mode={mode!r})", [n + low + high for n, (low, high) in zip(x.shape, widths)])


def _index(w: Writer, n: int) -> str:
    """The text of a rank-0 integer."""
    kind = w.choose.integer(0, 2)
    if kind == 0:
        return str(w.choose.integer(0, n - 1))
    if kind == 1:
        found = [v for v in w.values if v.dtype == "int32" and not v.rank]
        if found:
            return w.choose.one_of(found).name
    return f"jnp.argmax({w.array(1, 1).name})"


def dynamic_slice(w: Writer) -> None:
    x = w.array()
    d = dimension(w, x)
    size = w.choose.integer(1, x.shape[d])
    if w.choose.chance(50):
        starts = ", ".join(_index(w, n) if w.choose.chance(50) else "0" for n in x.shape)
        shape = [w.choose.one_of((n, w.choose.integer(1, n))) for n in x.shape]
        w.let(f"lax.dynamic_slice({x.name}, ({starts},), {tuple(shape)})", shape)
    else:
        w.let(f"lax.dynamic_slice_in_dim({x.name}, {_index(w, x.shape[d])}, {size}, axis={d})", with_size(x.shape, d, size))


def dynamic_update_slice(w: Writer) -> None:
    x = w.array()
    y = w.any(lambda v: v.rank == x.rank and all(m <= n for m, n in zip(v.shape, x.shape)))
    starts = ", ".join(_index(w, n) if w.choose.chance(50) else "0" for n in x.shape)
    w.let(f"lax.dynamic_update_slice({x.name}, {y.name}, ({starts},))", x.shape)


def indices(w: Writer) -> None:
    """Integers to index with."""
    kind = w.choose.integer(0, 4)
    if kind == 0:
        x = w.array(2)
        d = dimension(w, x)
        w.let(f"jnp.{w.choose.one_of(('argmax', 'argmin'))}({x.name}, axis={d})", without(x.shape, d), "int32")
    elif kind == 1:
        n = w.size()
        w.let(f"jnp.arange({n})", (n,), "int32")
    elif kind == 2:
        x = w.array()
        w.let(f"jnp.argsort({x.name}, axis={dimension(w, x)})", x.shape, "int32")
    elif kind == 3:
        x = w.array()
        w.let(f"{x.name}.astype(jnp.int32) % {w.size()}", x.shape, "int32")
    else:
        shape = tuple(w.size() for _ in range(w.choose.integer(1, 2)))
        w.let(f"np.arange({math.prod(shape)}, dtype=np.int32).reshape({shape}) % 3", shape, "int32")


def gather(w: Writer) -> None:
    x = w.array()
    i = w.any(lambda v: v.rank <= 2, "int32")
    d = dimension(w, x)
    kind = w.choose.integer(0, 3)
    shape = (*x.shape[:d], *i.shape, *x.shape[d + 1 :])
    if kind == 0:
        mode = w.choose.one_of(("", ", mode='clip'", ", mode='fill'"))
        w.let(f"jnp.take({x.name}, {i.name}, axis={d}{mode})", shape)
    elif kind == 1:
        w.let(f"{x.name}[{':, ' * d}{i.name}]", shape)
    elif kind == 2 and x.rank > 1:
        w.let(f"{x.name}[{i.name}, {i.name}]", (*i.shape, *x.shape[2:]))
    else:
        y = w.any(lambda v: v.rank == x.rank and without(v.shape, d) == without(x.shape, d), "int32")
        w.let(f"jnp.take_along_axis({x.name}, {y.name}, axis={d})", y.shape)


def scatter(w: Writer) -> None:
    x = w.array()
    i = w.any(lambda v: v.rank <= 2, "int32")
    d = dimension(w, x)
    shape = (*x.shape[:d], *i.shape, *x.shape[d + 1 :])
    found = [v for v in reversed(w.values) if v.dtype == "float32" and v.shape == shape]
    update = w.choose.one_of(found).name if found else w.choose.one_of(("1.0", f"jnp.take({x.name}, {i.name}, axis={d})"))
    methods = ("add", "set") if w.smooth else ("add", "set", "max", "min", "multiply")
    w.let(f"{x.name}.at[{':, ' * d}{i.name}].{w.choose.one_of(methods)}({update})", x.shape)


def embed(w: Writer) -> None:
    i = w.any(lambda v: v.rank <= 2, "int32")
    n = w.size()
    w.let(f"jax.nn.one_hot({i.name}, {n})", (*i.shape, n))


def convolution(w: Writer) -> None:
    x = w.array(3)
    spatial = x.rank - 2
    groups, batch_groups = 1, 1
    features = x.shape[-1]
    if w.choose.chance(30):
        groups = w.choose.one_of([g for g in (2, 3, 4, 6, 8) if features % g == 0])
    elif w.choose.chance(15):
        batch_groups = w.choose.one_of([g for g in (2, 4) if x.shape[0] % g == 0])
    out = w.choose.one_of([n for n in {*w.sizes, features} if n % groups == 0 and n % batch_groups == 0])
    window = tuple(w.choose.integer(1, min(3, n)) for n in x.shape[1:-1])
    kernel_shape = (*window, features // groups, out)
    found = [v for v in w.values if v.shape == kernel_shape and v.dtype == "float32"]
    dense = [v for v in w.values if v.shape == kernel_shape[-2:] and v.dtype == "float32"]
    if found:
        kernel = w.choose.one_of(found).name
    elif dense:
        kernel = f"jnp.broadcast_to({w.choose.one_of(dense).name}, {kernel_shape})"
    else:
        kernel = f"jnp.ones({kernel_shape})"
    strides = tuple(w.choose.one_of((1, 1, 2)) for _ in range(spatial))
    padding = w.choose.one_of(("SAME", "VALID"))
    sizes = [-(-n // s) if padding == "SAME" else -(-(n - k + 1) // s) for n, k, s in zip(x.shape[1:-1], window, strides)]
    names = "HW"[:spatial]
    numbers = (f"N{names}C", f"{names}IO", f"N{names}C")
    options = f"dimension_numbers={numbers}"
    if groups > 1:
        options += f", feature_group_count={groups}"
    if batch_groups > 1:
        options += f", batch_group_count={batch_groups}"
    shape = (x.shape[0] // batch_groups, *sizes, out)
    w.let(f"lax.conv_general_dilated({x.name}, {kernel}, {strides}, {padding!r}, {options})", shape)


def pool(w: Writer) -> None:
    x = w.array(2)
    window = tuple(w.choose.integer(1, min(3, n)) for n in x.shape)
    strides = tuple(w.choose.one_of((1, k)) for k in window)
    kind = w.choose.one_of(("-jnp.inf, lax.max", "0.0, lax.add"))
    padding = w.choose.one_of(("SAME", "VALID"))
    shape = [-(-n // s) if padding == "SAME" else -(-(n - k + 1) // s) for n, k, s in zip(x.shape, window, strides)]
    w.let(f"lax.reduce_window({x.name}, {kind}, {window}, {strides}, {padding!r})", shape)


def cumulative(w: Writer) -> None:
    x = w.array()
    name = w.choose.one_of(("jnp.cumsum({x}, axis={d})", "jnp.cumprod({x}, axis={d})", "lax.cummax({x}, axis={d})",
                            "lax.cumsum({x}, axis={d}, reverse=True)", "lax.cumlogsumexp({x}, axis={d})",
                            "lax.associative_scan(jnp.add, {x}, axis={d})"))  # fmt: skip
    w.let(name.format(x=x.name, d=dimension(w, x)), x.shape)


def sort(w: Writer) -> None:
    x = w.array()
    d = dimension(w, x)
    kind = w.choose.integer(0, 2)
    if kind == 0:
        w.let(f"jnp.sort({x.name}, axis={d})", x.shape)
    elif kind == 1:
        y = w.any(lambda v: v.shape == x.shape)
        w.let(f"lax.sort(({x.name}, {y.name}), dimension={d})[1]", x.shape)
    else:
        k = w.choose.integer(1, x.shape[-1])
        w.let(f"lax.top_k({x.name}, {k})[0]", (*x.shape[:-1], k))


def constant(w: Writer) -> None:
    shape = w.choose.one_of([v.shape for v in w.values]) if w.choose.chance(70) else tuple(w.size() for _ in range(w.choose.integer(1, 2)))
    kinds = ["jnp.zeros({s})", "jnp.ones({s})", "jnp.full({s}, 2.5)", "np.arange({n}, dtype=np.float32).reshape({s})"]
    if shape:
        kinds += [f"lax.broadcasted_iota(jnp.float32, {{s}}, {w.choose.integer(0, len(shape) - 1)})"]
    if len(shape) == 2:
        kinds += [f"jnp.eye({shape[0]}, {shape[1]})", f"jnp.tri({shape[0]}, {shape[1]})"]
    if len(shape) == 1:
        kinds += [f"jnp.linspace(0.0, 1.0, {shape[0]})", f"jnp.arange({shape[0]}, dtype=jnp.float32)"]
    if math.prod(shape) > 256:
        kinds.remove("np.arange({n}, dtype=np.float32).reshape({s})")
    w.let(w.choose.one_of(kinds).format(s=shape, n=math.prod(shape)), shape)


def rearrange(w: Writer) -> None:
    x = w.array()
    d = dimension(w, x)
    n = x.shape[d]
    kind = w.choose.integer(0, 7)
    if kind == 0:
        w.let(f"jnp.broadcast_to({x.name}[None], (2, *{x.shape}))", (2, *x.shape))
    elif kind == 1:
        k = w.choose.integer(2, 3)
        w.let(f"jnp.repeat({x.name}, {k}, axis={d})", with_size(x.shape, d, n * k))
    elif kind == 2:
        w.let(f"jnp.roll({x.name}, {w.choose.integer(1, 3)}, axis={d})", x.shape)
    elif kind == 3:
        w.let(f"jnp.tile({x.name}, {tuple(2 if e == d else 1 for e in range(x.rank))})", with_size(x.shape, d, 2 * n))
    elif kind == 4 and x.rank > 1:
        w.let(f"jnp.{w.choose.one_of(('tril', 'triu'))}({x.name})", x.shape)
    elif kind == 5:
        y = w.array(1, 1)
        z = w.array(1, 1)
        w.let(f"jnp.outer({y.name}, {z.name})", (*y.shape, *z.shape))
    elif kind == 6 and x.rank == 2 and x.shape[0] == x.shape[1]:
        w.let(f"jnp.diagonal({x.name})", x.shape[:1])
    else:
        w.let(f"jnp.ravel({x.name})", (math.prod(x.shape),))


def numeric(w: Writer) -> None:
    """Rare primitives."""
    x = w.array()
    kind = w.choose.integer(0, 5)
    if kind == 0:
        w.let(f"jnp.abs(jnp.fft.fft({x.name}, axis={dimension(w, x)}))", x.shape)
    elif kind == 1:
        w.let(f"jax.random.normal(jax.random.key(0), {x.shape})", x.shape)
    elif kind == 2:
        w.let(f"jnp.where(jax.random.bernoulli(jax.random.key(1), 0.5, {x.shape}), {x.name}, 0.0)", x.shape)
    elif kind == 3 and x.rank > 1 and not w.smooth:
        n = x.shape[-2]
        w.let(f"lax.linalg.cholesky({x.name} @ jnp.swapaxes({x.name}, -1, -2) + jnp.eye({n}))", (*x.shape[:-2], n, n))
    elif kind == 4:
        w.let(f"lax.bitcast_convert_type(lax.bitcast_convert_type({x.name}, jnp.int32) & 1023, jnp.float32)", x.shape)
    else:
        w.let(f"lax.clamp(-1.0, {x.name}, 1.0)", x.shape)


def constraint(w: Writer) -> None:
    if not w.constraints:
        skip()
    x = w.any()
    uneven = w.choose.chance(10)
    spec = w.spec(x.shape, uneven=uneven, unconstrained=w.choose.chance(50))
    w.let(f"constrain({x.name}, {spec})", x.shape)


def call(w: Writer) -> None:
    """A jitted function, called once or again."""
    if not w.functions or w.choose.chance(50):
        operands = tuple(w.any() for _ in range(w.choose.integer(1, 3)))
        name, shapes = w.function([(v.shape, v.dtype) for v in operands], None, sequence=True)
        options = ""
        if w.constraints and w.choose.chance(25):
            specs = [w.spec(v.shape) if w.choose.chance(50) else "None" for v in operands]
            wrapped = [f"NamedSharding(mesh, {s})" if s != "None" else "None" for s in specs]
            options = f", in_shardings=({' '.join(s + ',' for s in wrapped)})"
        w.line(f"{name} = jax.jit({name}{options})")
        w.functions.append((name, operands, shapes))
    name, parameters, shapes = w.choose.one_of(w.functions)
    for _ in range(2 if w.choose.chance(40) else 1):
        operands = [w.any(lambda v, p=p: v.shape == p.shape) for p in parameters]
        results = [w.fresh("v") for _ in shapes]
        w.line(f"{', '.join(results)}, = {name}({', '.join(v.name for v in operands)})")
        w.add(*(parameters[0]._replace(name=n, shape=s, dtype="float32") for n, s in zip(results, shapes)))


def scan(w: Writer) -> None:
    carry = w.any()
    xs = w.any(lambda v: 0 < v.rank and v.shape[0] > 0)
    extra = w.choose.chance(40)
    parameters = [(carry.shape, "float32"), (xs.shape[1:], "float32")]
    if extra:
        second = w.any()
        parameters.insert(1, (second.shape, "float32"))
        name, shapes = w.function(parameters, [carry.shape, second.shape, w.any().shape])
        a, b, ys = w.fresh("v"), w.fresh("v"), w.fresh("v")
        step = f"lambda c, x: (lambda r: ((r[0], r[1]), r[2]))({name}(*c, x))"
        w.line(f"({a}, {b}), {ys} = lax.scan({step}, ({carry.name}, {second.name}), {xs.name})")
        w.add(carry._replace(name=a), second._replace(name=b))
    else:
        name, shapes = w.function(parameters, [carry.shape, w.choose.one_of([carry, xs]).shape])
        a, ys = w.fresh("v"), w.fresh("v")
        reverse = ", reverse=True" if w.choose.chance(20) else ", unroll=2" if w.choose.chance(10) else ""
        w.line(f"{a}, {ys} = lax.scan({name}, {carry.name}, {xs.name}{reverse})")
        w.add(carry._replace(name=a))
    stacked = (xs.shape[0], *shapes[-1])
    if len(stacked) <= 4:
        w.add(carry._replace(name=ys, shape=stacked))


def loop(w: Writer) -> None:
    carry = w.any()
    if w.choose.chance(60) or w.smooth:
        name, _ = w.function([(carry.shape, "float32")], [carry.shape])
        w.let(f"lax.fori_loop(0, {w.choose.integer(1, 4)}, lambda i, c: {name}(c), {carry.name})", carry.shape)
    else:
        name, _ = w.function([(carry.shape, "float32")], [carry.shape])
        w.let(f"lax.while_loop(lambda c: jnp.sum(c) < 10.0, {name}, {carry.name})", carry.shape)


def branch(w: Writer) -> None:
    operands = [w.any() for _ in range(w.choose.integer(1, 2))]
    parameters = [(v.shape, "float32") for v in operands]
    shape = w.choose.one_of([v.shape for v in w.values if v.dtype == "float32"])
    names = [w.function(parameters, [shape], statements=3)[0] for _ in range(w.choose.integer(2, 3))]
    arguments = ", ".join(v.name for v in operands)
    which = w.any()
    if len(names) == 2:
        w.let(f"lax.cond(jnp.sum({which.name}) > 0, {names[0]}, {names[1]}, {arguments})", shape)
    else:
        w.let(f"lax.switch(jnp.argmax({which.name}) % 3, [{', '.join(names)}], {arguments})", shape)


def transformed(w: Writer) -> None:
    """remat, a custom derivative, or the gradient of a function."""
    operands = [w.any() for _ in range(w.choose.integer(1, 2))]
    parameters = [(v.shape, "float32") for v in operands]
    arguments = ", ".join(v.name for v in operands)
    kind = w.choose.integer(0, 3)
    if kind == 0:
        name, shapes = w.function(parameters, None, sequence=True)
        w.let(f"jax.checkpoint({name})({arguments})[0]", shapes[0])
    elif kind == 1:
        name, shapes = w.function(parameters, None, smooth=True, sequence=True)
        w.let(f"jax.grad(lambda *p: jnp.sum({name}(*p)[0]))({arguments})", operands[0].shape)
    elif kind == 2:
        name, shapes = w.function(parameters[:1], [operands[0].shape], closure=False)
        rule, _ = w.function([(operands[0].shape, "float32")] * 2, [operands[0].shape], closure=False)
        w.line(f"{name} = jax.custom_jvp({name})")
        w.line(f"{name}.defjvp(lambda p, t: ({name}(*p), t[0] * {rule}(p[0], p[0])))")
        w.let(f"{name}({operands[0].name})", operands[0].shape)
    else:
        name, shapes = w.function(parameters[:1], [operands[0].shape], closure=False)
        rule, _ = w.function([(operands[0].shape, "float32")] * 2, [operands[0].shape], closure=False)
        w.line(f"{name} = jax.custom_vjp({name})")
        w.line(f"{name}.defvjp(lambda x: (x * 2.0, x), lambda x, g: ({rule}(x, g),))")
        w.let(f"{name}({operands[0].name})", operands[0].shape)


def vmap(w: Writer) -> None:
    x = w.array()
    d = dimension(w, x)
    other = w.any()
    axes: list[int | None] = [d, None]
    second = other.shape
    if x.shape[d] in other.shape and w.choose.chance(60):
        axes[1] = other.shape.index(x.shape[d])
        second = without(other.shape, axes[1])
    name, shapes = w.function([(without(x.shape, d), "float32"), (second, "float32")], None, sequence=True)
    w.let(f"jax.vmap({name}, in_axes={tuple(axes)})({x.name}, {other.name})[0]", (x.shape[d], *shapes[0]))


Statement = Callable[["Writer"], None]
LEAVES: tuple[Statement, ...] = (
    unary, binary, binary, broadcasting, scalar, matmul, dot_general, einsum, reshape, reshape, transpose, reduce, reduce, normalize,
    concatenate, take_slice, pad, dynamic_slice, dynamic_update_slice, indices, gather, scatter, embed, convolution, pool, cumulative, sort,
    constant, rearrange, numeric, constraint, constraint, constraint, *MOVES,
)  # fmt: skip
NESTED: tuple[Statement, ...] = (call, call, scan, loop, branch, transformed, transformed, vmap)
