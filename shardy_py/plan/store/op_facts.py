"""Checks facts of single ops that the views of a plan rely on, for programs read from a file.

The verifier checks the graph, types, shardings and rules, and what SDY ops hold; of StableHLO's ops it takes attributes and shapes as they
are, since front ends make them. A file may say anything. `CHECKS` has an entry for each op whose attributes or shapes something reads;
then rules, costs and predictions are made of each op once, as a view will.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

from shardy_py.cost.compute import work_of
from shardy_py.cost.sizes import LocalSizes
from shardy_py.ir import Op, Program, TensorType, Value
from shardy_py.ir.attribute_text import constant_text
from shardy_py.partition.mispartitioned import cut_in_any_way, is_mispartitioned
from shardy_py.plan.store.checks import LIMIT, StoreError, described
from shardy_py.rules import is_elementwise, rule_for

WITHOUT_OPERANDS = frozenset(
    f"stablehlo.{name}" for name in ("after_all", "constant", "create_token", "custom_call", "iota", "partition_id", "replica_id", "return")
)
"""Ops of StableHLO that may have none."""

SEVERAL_RESULTS = frozenset(
    f"stablehlo.{name}"
    for name in (
        *("all_gather", "all_reduce", "all_to_all", "batch_norm_grad", "batch_norm_training", "case", "composite", "custom_call", "if"),
        *("infeed", "optimization_barrier", "recv", "reduce", "reduce_scatter", "reduce_window", "rng_bit_generator", "scatter", "sort"),
        "while",
    )
)
"""Ops of StableHLO that may have more results than one."""


def check_ops(program: Program) -> None:
    """Raises StoreError if an op of a program, which the verifier has accepted, lacks what its name promises."""
    parts, sizes = cut_in_any_way(program.meshes), LocalSizes(program.meshes)
    valid: set[tuple[object, ...]] = set()
    for op in program.walk():
        shardings = tuple([value.sharding for value in (*op.operands, *op.results)])
        key = (op.name, op.primitive, id(op.attributes), *[v.type for v in op.operands], None, *[v.type for v in op.results], shardings)
        if key in valid:
            continue
        try:
            _check(op)
            if not op.regions:
                rule_for(op)
                work_of(op, sizes)
                is_mispartitioned(op, parts)
        except StoreError as error:
            error.at(op.name)
            raise
        except (ArithmeticError, AssertionError, AttributeError, LookupError, TypeError, ValueError) as error:
            why = f"{type(error).__name__}: {error}"
            raise StoreError("attributes, operands or results are not those of the op", where=op.name, why=why) from error
        valid.add(key)


def _check(op: Op) -> None:
    if op.name.startswith("stablehlo.") and not op.operands and op.name not in WITHOUT_OPERANDS:
        raise StoreError(f"{op.name} has no operands")
    if op.name.startswith("stablehlo.") and len(op.results) > 1 and op.name not in SEVERAL_RESULTS:
        raise StoreError(f"{op.name} has {len(op.results)} results")
    check = CHECKS.get(op.name) or (_elementwise if is_elementwise(op.name) else None)
    if check is not None:
        check(op)


def _require(holds: bool, message: str) -> None:
    if not holds:
        raise StoreError(message)


def _count(op: Op, operands: int, results: int = 1) -> None:
    if len(op.operands) != operands or len(op.results) != results:
        expected = f"{operands} operands and {'a result' if results == 1 else f'{results} results'}"
        raise StoreError(f"expected {expected}, got {len(op.operands)} and {len(op.results)}")


def _number(op: Op, name: str, low: int = 0, high: int = LIMIT) -> int:
    value = op.attributes.get(name)
    if type(value) is not int or not low <= value < high:
        raise StoreError(f"the attribute {name} is {described(value)}, not a number from {low} to {high - 1}")
    return value


def _numbers(op: Op, name: str, low: int, high: int, count: int | None = None, distinct: bool = True) -> list[int]:
    values = op.attributes.get(name)
    if not isinstance(values, tuple | list) or not all(type(value) is int and low <= value < high for value in values):
        raise StoreError(f"the attribute {name} is {described(values)}, not a list of numbers from {low} to {high - 1}")
    if (distinct and len(set(values)) != len(values)) or (count is not None and len(values) != count):
        raise StoreError(f"the attribute {name} has a number twice, or not {count} of them")
    return list(values)


def _dims(op: Op, name: str, rank: int, count: int | None = None) -> list[int]:
    """An attribute of distinct dimensions of a value of a rank."""
    return _numbers(op, name, 0, rank, count)


def _sizes(op: Op, name: str, count: int, low: int = 0) -> list[int]:
    """`count` sizes, each at least `low`."""
    return _numbers(op, name, low, LIMIT, count, distinct=False)


def _pairs(op: Op, name: str, count: int) -> list[tuple[int, int]]:
    pairs = op.attributes.get(name)
    fits = isinstance(pairs, tuple | list) and len(pairs) == count
    if not fits or not all(isinstance(p, tuple | list) and len(p) == 2 and all(type(n) is int for n in p) for p in pairs or ()):
        raise StoreError(f"the {name} is not a pair of numbers for each of {count} dimensions")
    return [(low, high) for low, high in pairs or ()]


def _shape(value: Value) -> tuple[int, ...]:
    return value.type.shape


def _same_shapes(values: Sequence[Value]) -> None:
    _require(len(set(map(_shape, values))) <= 1, f"the shapes {', '.join(str(value.type) for value in values)} differ")


def _result_is(op: Op, shape: Sequence[int], number: int = 0) -> None:
    if _shape(op.results[number]) != tuple(shape):
        raise StoreError(f"the result is {op.results[number].type}, of the shape {list(shape)} by operands and attributes")


_SCALARS_TOO = {"stablehlo.select": (0,), "stablehlo.clamp": (0, 2)}
"""Operands that may be scalars beside arrays."""


_OPERANDS = {
    **dict.fromkeys(
        (
            f"stablehlo.{name}"
            for name in (
                "add and atan2 compare complex divide maximum minimum multiply or power remainder shift_left shift_right_arithmetic "
                "shift_right_logical subtract xor"
            ).split()
        ),
        2,
    ),
    "stablehlo.clamp": 3,
    "stablehlo.select": 3,
}
"""Number of operands of elementwise ops whose second or third operand a view reads."""


def _elementwise(op: Op) -> None:
    _require(bool(op.operands) and len(op.results) == 1, "expected operands and a result")
    _count(op, _OPERANDS.get(op.name, len(op.operands)))
    scalars = _SCALARS_TOO.get(op.name, ())
    _same_shapes([op.result, *(v for i, v in enumerate(op.operands) if i not in scalars or v.type.rank)])


def _broadcast_in_dim(op: Op) -> None:
    _count(op, 1)
    (operand,), result = op.operands, op.result
    dims = _dims(op, "broadcast_dimensions", result.type.rank, operand.type.rank)
    _require(all(n in (1, _shape(result)[d]) for n, d in zip(_shape(operand), dims)), f"{operand.type} does not broadcast to {result.type}")


def _concatenate(op: Op) -> None:
    _require(bool(op.operands) and len(op.results) == 1, "expected operands and a result")
    d = _number(op, "dimension", 0, max(op.result.type.rank, 1))
    shapes = [list(_shape(operand)) for operand in op.operands]
    _require(all(len(shape) == op.result.type.rank > d for shape in shapes), "the ranks of operands and result differ")
    total = sum(shape.pop(d) for shape in shapes)
    _require(all(shape == shapes[0] for shape in shapes), "the operands differ in other dimensions than the one that is joined")
    _result_is(op, [*shapes[0][:d], total, *shapes[0][d:]])


def _convolution(op: Op) -> None:
    _count(op, 2)
    rank = op.result.type.rank
    _require(all(operand.type.rank == rank >= 2 for operand in op.operands), "the ranks of operands and result differ")
    groups = _number(op, "feature_group_count", 1)
    if "batch_group_count" in op.attributes:
        _number(op, "batch_group_count", 1)
    numbers = {}
    for name, single in (
        ("input", ("batch", "feature")),
        ("kernel", ("input_feature", "output_feature")),
        ("output", ("batch", "feature")),
    ):
        spatial = _dims(op, f"{name}_spatial_dimensions", rank, rank - 2)
        numbers |= {f"{name}_{kind}": _number(op, f"{name}_{kind}_dimension", 0, rank) for kind in single}
        if len({*spatial, *(numbers[f"{name}_{kind}"] for kind in single)}) != rank:
            raise StoreError(f"the dimensions of the {name} are not those of a tensor of rank {rank}")
    for name in ("window_strides", "lhs_dilation", "rhs_dilation"):
        _sizes(op, name, rank - 2, low=1)
    _pairs(op, "padding", rank - 2)
    image, kernel = map(_shape, op.operands)
    features = image[numbers["input_feature"]], kernel[numbers["kernel_input_feature"]] * groups
    outputs = _shape(op.result)[numbers["output_feature"]], kernel[numbers["kernel_output_feature"]]
    _require(features[0] == features[1] and outputs[0] == outputs[1], "the numbers of features of image, kernel and result differ")


def _custom_call(op: Op) -> None:
    target: object = op.attributes.get("call_target_name", "")
    if not isinstance(target, str):
        raise StoreError(f"the attribute call_target_name is {described(target)}, not a text")


def _dot(op: Op) -> None:
    _count(op, 2)
    left, right = map(_shape, op.operands)
    _require(1 <= len(left) <= 2 and 1 <= len(right) <= 2 and left[-1] == right[0], "the operands have no dimension in common")
    _result_is(op, (*left[:-1], *right[1:]))


def _dot_general(op: Op) -> None:
    _count(op, 2)
    common, free = [], []
    for side, operand in zip(("lhs", "rhs"), op.operands):
        shape = _shape(operand)
        batch, contracted = (_dims(op, f"{side}_{kind}_dimensions", len(shape)) for kind in ("batching", "contracting"))
        if set(batch) & set(contracted):
            raise StoreError("a dimension is both a batch dimension and contracted")
        common.append(([shape[d] for d in batch], [shape[d] for d in contracted]))
        free += [n for d, n in enumerate(shape) if d not in batch and d not in contracted]
    if [*map(len, common[0])] != [*map(len, common[1])]:
        raise StoreError("the two sides have other numbers of dimensions in common")
    _require(common[0] == common[1], "the sizes of dimensions that the two sides have in common differ")
    _result_is(op, [*common[0][0], *free])


def _dynamic_slice(op: Op) -> None:
    rank = op.operands[0].type.rank
    _count(op, 1 + rank)
    sizes = _sizes(op, "slice_sizes", rank)
    _require(all(n <= of for n, of in zip(sizes, _shape(op.operands[0]))), "a slice is larger than its operand")
    _require(all(not start.type.rank for start in op.operands[1:]), "a start is no scalar")
    _result_is(op, sizes)


def _dynamic_update_slice(op: Op) -> None:
    rank = op.operands[0].type.rank
    _count(op, 2 + rank)
    shape, update = _shape(op.operands[0]), _shape(op.operands[1])
    _require(len(update) == rank and all(n <= of for n, of in zip(update, shape)), "an update is larger than its operand")
    _require(all(not start.type.rank for start in op.operands[2:]), "a start is no scalar")
    _result_is(op, shape)


def _fft(op: Op) -> None:
    _count(op, 1)
    rank = op.operands[0].type.rank
    _require(op.result.type.rank == rank, "the ranks of operand and result differ")
    _require(len(_numbers(op, "fft_length", 0, LIMIT, distinct=False)) <= rank, "more dimensions are transformed than there are")
    _require(isinstance(op.attributes.get("fft_type", ""), str), "the attribute fft_type is no text")


def _indices(op: Op, operand: Value, indices: Value, names: Sequence[str]) -> tuple[list[list[int]], list[int]]:
    """Dimensions of an operand and of indices, and the sizes of the batch dimensions of indices."""
    rank = operand.type.rank
    vector = _number(op, "index_vector_dim", 0, indices.type.rank + 1)
    shape = [n for d, n in enumerate(_shape(indices)) if d != vector]
    length = _shape(indices)[vector] if vector < indices.type.rank else 1
    collapsed, batching = (_dims(op, name, rank) for name in names[:2])
    of_indices = _dims(op, names[2], indices.type.rank, len(batching))
    mapped = _dims(op, names[3], rank, length)
    _require(not {*collapsed} & {*batching} and not {*mapped} & {*batching} and vector not in of_indices, "a dimension has two meanings")
    equal = all(_shape(operand)[d] == _shape(indices)[i] for d, i in zip(batching, of_indices))
    _require(equal, "batch dimensions of operand and indices have different sizes")
    return [collapsed, batching], shape


def _gather(op: Op) -> None:
    _count(op, 2)
    operand, indices = op.operands
    names = ("collapsed_slice_dims", "operand_batching_dims", "start_indices_batching_dims", "start_index_map")
    dropped, batch = _indices(op, operand, indices, names)
    sizes = _sizes(op, "slice_sizes", operand.type.rank)
    _require(all(n <= of for n, of in zip(sizes, _shape(operand))), "a slice is larger than its operand")
    left = [n for d, n in enumerate(sizes) if not any(d in dims for dims in dropped)]
    dims, shape = _dims(op, "offset_dims", op.result.type.rank, len(left)), _shape(op.result)
    fits = [shape[d] for d in dims] == left and [n for d, n in enumerate(shape) if d not in dims] == batch
    _require(fits, f"{op.result.type} has not the sizes of slices and batches of indices")


def _scatter(op: Op) -> None:
    inputs = len(op.results)
    _require(inputs > 0 and len(op.operands) == 2 * inputs + 1, "expected operands and updates for each result, and indices")
    operand, indices, update = op.operands[0], op.operands[inputs], op.operands[inputs + 1]
    _same_shapes([*op.operands[:inputs], *op.results])
    _same_shapes(op.operands[inputs + 1 :])
    names = ("inserted_window_dims", "input_batching_dims", "scatter_indices_batching_dims", "scatter_dims_to_operand_dims")
    dropped, batch = _indices(op, operand, indices, names)
    count = operand.type.rank - sum(map(len, dropped))
    dims = _dims(op, "update_window_dims", update.type.rank, count)
    windows = [n for d, n in enumerate(_shape(operand)) if not any(d in group for group in dropped)]
    shape = _shape(update)
    _require(all(shape[d] <= n for d, n in zip(dims, windows)), "a window of the updates is larger than the operand")
    _require([n for d, n in enumerate(shape) if d not in dims] == batch, "the updates have not the batches of the indices")
    _require(isinstance(op.attributes.get("body", ""), str), "the attribute body is no text")


def _iota(op: Op) -> None:
    _count(op, 0)
    _number(op, "iota_dimension", 0, max(op.result.type.rank, 1))


def _pad(op: Op) -> None:
    _count(op, 2)
    shape = _shape(op.operands[0])
    low, high = (_numbers(op, f"edge_padding_{end}", -LIMIT, LIMIT, len(shape), distinct=False) for end in ("low", "high"))
    between = _sizes(op, "interior_padding", len(shape))
    _result_is(op, [a + n + max(n - 1, 0) * c + b for n, a, b, c in zip(shape, low, high, between)])


def _reduce(op: Op) -> None:
    count = len(op.results)
    _require(count > 0 and len(op.operands) == 2 * count, "expected an operand and a start for each result")
    _same_shapes(op.operands[:count])
    shape = _shape(op.operands[0])
    dims = _dims(op, "dimensions", len(shape))
    for number in range(count):
        _result_is(op, [n for d, n in enumerate(shape) if d not in dims], number)
    _require(isinstance(op.attributes.get("body", ""), str), "the attribute body is no text")


def _reduce_window(op: Op) -> None:
    count = len(op.results)
    _require(count > 0 and len(op.operands) == 2 * count, "expected an operand and a start for each result")
    _same_shapes(op.operands[:count])
    _same_shapes(op.results)
    rank = op.operands[0].type.rank
    _require(op.results[0].type.rank == rank, "the ranks of operand and result differ")
    _window(op, rank)


def _select_and_scatter(op: Op) -> None:
    _count(op, 3)
    rank = op.operands[0].type.rank
    _require(op.operands[1].type.rank == rank, "the ranks of operand and source differ")
    _result_is(op, _shape(op.operands[0]))
    _window(op, rank)


def _window(op: Op, rank: int) -> None:
    _sizes(op, "window_dimensions", rank, low=1)
    for name in ("window_strides", "base_dilations", "window_dilations"):
        if name == "window_strides" or name in op.attributes:
            _sizes(op, name, rank, low=1)
    _pairs(op, "padding", rank)


def _reshape(op: Op) -> None:
    _count(op, 1)
    _require(op.operands[0].type.size == op.result.type.size, f"{op.operands[0].type} has not the elements of {op.result.type}")


def _reverse(op: Op) -> None:
    _count(op, 1)
    _dims(op, "dimensions", op.result.type.rank)
    _result_is(op, _shape(op.operands[0]))


def _slice(op: Op) -> None:
    _count(op, 1)
    shape = _shape(op.operands[0])
    starts, limits = (_sizes(op, name, len(shape)) for name in ("start_indices", "limit_indices"))
    steps = _sizes(op, "strides", len(shape), low=1)
    _require(all(a <= b <= n for n, a, b in zip(shape, starts, limits)), "a slice ends before its start or behind its operand")
    _result_is(op, [-(-(b - a) // step) for a, b, step in zip(starts, limits, steps)])


def _sort(op: Op) -> None:
    _require(bool(op.operands) and len(op.operands) == len(op.results), "expected a result for each operand")
    _same_shapes([*op.operands, *op.results])
    if op.attributes.get("dimension", -1) != -1:
        _number(op, "dimension", 0, max(op.operands[0].type.rank, 1))


def _transpose(op: Op) -> None:
    _count(op, 1)
    shape = _shape(op.operands[0])
    _result_is(op, [shape[d] for d in _dims(op, "permutation", len(shape), len(shape))])


def _triangular_solve(op: Op) -> None:
    _count(op, 2)
    a, b = map(_shape, op.operands)
    _require(len(a) == len(b) >= 2 and a[-1] == a[-2] and a[:-2] == b[:-2], "the operands are no matrices that fit")
    _result_is(op, b)
    for name in ("left_side", "lower", "unit_diagonal"):
        _require(isinstance(op.attributes.get(name, False), bool), f"the attribute {name} is not true or false")


def _cholesky(op: Op) -> None:
    _count(op, 1)
    shape = _shape(op.operands[0])
    _require(len(shape) >= 2 and shape[-1] == shape[-2], "the operand is no square matrix")
    _result_is(op, shape)


def _collective(attribute: str, op: Op) -> None:
    _require(len(op.operands) == len(op.results) >= 1, "expected a result for each operand")
    for operand in op.operands:
        _number(op, attribute, 0, max(operand.type.rank, 1))


def _all_reduce(op: Op) -> None:
    _require(len(op.operands) == len(op.results) >= 1, "expected a result for each operand")
    for operand, result in zip(op.operands, op.results, strict=True):
        _require(operand.type == result.type, f"a sum of {operand.type} is no {result.type}")


def _all_to_all(op: Op) -> None:
    _collective("split_dimension", op)
    _collective("concat_dimension", op)


def _reduction(op: Op) -> None:
    if "reduction_op" in op.attributes:
        _number(op, "reduction_op", 0, 3)


def _constant(op: Op) -> None:
    _require(isinstance(op.result.type, TensorType), "a constant has a static shape")
    value, dtype = op.attributes.get("value"), op.result.type.dtype
    whole, real = dtype.startswith(("int", "uint", "bool")), not dtype.startswith("complex")
    _require(not (isinstance(value, float) and whole) and not (isinstance(value, complex) and real), f"{value} is no value of {dtype}")
    constant_text(value, op.result.type)


CHECKS: dict[str, Callable[[Op], None]] = {
    "sdy.all_reduce": _reduction,
    "sdy.constant": _constant,
    "sdy.reduce_scatter": _reduction,
    "stablehlo.all_gather": functools.partial(_collective, "all_gather_dim"),
    "stablehlo.all_reduce": _all_reduce,
    "stablehlo.all_to_all": _all_to_all,
    "stablehlo.broadcast_in_dim": _broadcast_in_dim,
    "stablehlo.cholesky": _cholesky,
    "stablehlo.concatenate": _concatenate,
    "stablehlo.constant": _constant,
    "stablehlo.convolution": _convolution,
    "stablehlo.custom_call": _custom_call,
    "stablehlo.dot": _dot,
    "stablehlo.dot_general": _dot_general,
    "stablehlo.dynamic_slice": _dynamic_slice,
    "stablehlo.dynamic_update_slice": _dynamic_update_slice,
    "stablehlo.fft": _fft,
    "stablehlo.gather": _gather,
    "stablehlo.iota": _iota,
    "stablehlo.pad": _pad,
    "stablehlo.reduce": _reduce,
    "stablehlo.reduce_scatter": functools.partial(_collective, "scatter_dimension"),
    "stablehlo.reduce_window": _reduce_window,
    "stablehlo.reshape": _reshape,
    "stablehlo.reverse": _reverse,
    "stablehlo.scatter": _scatter,
    "stablehlo.select_and_scatter": _select_and_scatter,
    "stablehlo.slice": _slice,
    "stablehlo.sort": _sort,
    "stablehlo.transpose": _transpose,
    "stablehlo.triangular_solve": _triangular_solve,
}
"""Op name -> its check; elementwise ops have `_elementwise`."""
