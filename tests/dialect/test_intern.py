"""Equal values are one object, whatever they were made from; they cannot change, and they survive pickling and copying."""

from __future__ import annotations

import copy
import pickle
import threading

import pytest

from shardy_py.dialect import (
    AllToAllParam,
    AllToAllParamList,
    AxisRef,
    AxisRefList,
    DimensionSharding,
    ListOfAxisRefLists,
    ManualAxes,
    Mesh,
    MeshAxis,
    OpShardingRule,
    TensorSharding,
    TensorShardingPerValue,
)


def samples() -> list:
    mesh = Mesh([("x", 4), ("y", 2)])
    sharding = TensorSharding("mesh", [["x"], DimensionSharding((AxisRef("y", 1, 2),), False, 3)], ["z"], ["w"])
    return [
        MeshAxis("x", 4),
        mesh,
        Mesh([("x", 2)], [1, 0]),
        Mesh.maximal(3),
        Mesh(),
        AxisRef("x"),
        AxisRef("x", 2, 4),
        DimensionSharding(),
        DimensionSharding(["x"], False, 0),
        sharding,
        sharding.with_mesh(mesh),
        TensorShardingPerValue([sharding]),
        TensorShardingPerValue(),
        OpShardingRule([8, 4, 2], [[[0], [2]], [[2], [1]]], [[[0], [1]]], [2], is_custom=True),
        AxisRefList(["x"]),
        ListOfAxisRefLists([["x"], []]),
        AllToAllParam(["x"], 0, 1),
        AllToAllParamList([AllToAllParam(["x"], 0, 1)]),
        ManualAxes(["x"]),
    ]


VALUES = pytest.mark.parametrize("value", samples(), ids=lambda value: f"{type(value).__name__}-{value}")


@VALUES
def test_remade_from_its_fields_is_the_same_object(value) -> None:
    fields = {name: getattr(value, name) for name in value._fields}
    assert type(value)(**fields) is value
    assert type(value)(*fields.values()) is value


@VALUES
def test_remade_from_lists_is_the_same_object(value) -> None:
    def listed(field):
        return [listed(item) for item in field] if isinstance(field, tuple) else field

    assert type(value)(**{name: listed(getattr(value, name)) for name in value._fields}) is value


@VALUES
def test_copies_are_the_value_itself(value) -> None:
    assert copy.copy(value) is value
    assert copy.deepcopy([value])[0] is value
    for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1):
        assert pickle.loads(pickle.dumps(value, protocol)) is value


@VALUES
def test_cannot_change(value) -> None:
    with pytest.raises(AttributeError, match="immutable"):
        setattr(value, value._fields[0], None)
    with pytest.raises(AttributeError, match="immutable"):
        delattr(value, value._fields[0])
    with pytest.raises(AttributeError):
        value.something_else = 1


@VALUES
def test_text_reads_back(value) -> None:
    assert type(value).parse(str(value)) is value
    assert repr(value) == str(value)
    if hasattr(value, "text"):
        assert type(value).parse(value.text()) is value
        assert type(value).parse(value.text(short=True)) is value


def test_equality_is_identity_and_values_are_keys() -> None:
    values = samples()
    assert len(set(values)) == len(values)
    assert {value: i for i, value in enumerate(values)}[Mesh([("x", 4), ("y", 2)])] == values.index(Mesh({"x": 4, "y": 2}))
    assert AxisRef("x") != "x"


def test_hash_is_that_of_the_object() -> None:
    for value in samples():
        assert hash(value) == object.__hash__(value)


def test_numbers_are_plain_ints() -> None:
    numpy = pytest.importorskip("numpy")
    axis = AxisRef("numpy_made", numpy.int64(1), numpy.int32(2))
    assert type(axis.pre_size) is int
    assert axis is AxisRef("numpy_made", 1, 2)
    assert str(AxisRef("bool_made", True, 7)) == '"bool_made":(1)7'
    assert str(Mesh([("numpy_made", numpy.int64(3))])) == '#sdy.mesh<["numpy_made"=3]>'
    assert DimensionSharding(["numpy_made"], numpy.bool_(True)).is_closed is True


def test_replace() -> None:
    sharding = TensorSharding("mesh", [["x"], []])
    assert sharding.replace(mesh="other") is TensorSharding("other", [["x"], []])
    assert sharding.replace() is sharding
    with pytest.raises(TypeError, match="has no field 'dim'"):
        sharding.replace(dim=[])


def test_match_statement() -> None:
    match AxisRef("x", 1, 2):
        case AxisRef(name, 1, size):  # pyright: ignore[reportGeneralTypeIssues]
            assert (name, size) == ("x", 2)
        case _:
            pytest.fail("did not match")


def test_threads_agree() -> None:
    made: list[list[TensorSharding]] = [[] for _ in range(4)]

    def make(into: list[TensorSharding]) -> None:
        into.extend(TensorSharding(f"thread{i}", [[f"a{i}"]]) for i in range(200))

    threads = [threading.Thread(target=make, args=(into,)) for into in made]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(a is b for other in made[1:] for a, b in zip(made[0], other, strict=True))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: AxisRef("x", 1), "needs both pre_size and size"),
        (lambda: AxisRef("x", None, 2), "needs both pre_size and size"),
        (lambda: AxisRef(3), "must be a string"),
        (lambda: AxisRef("x", 1.5, 2), "float"),
        (lambda: MeshAxis(3, 3), "must be a string"),
        (lambda: Mesh([("x", 2.5)]), "float"),
        (lambda: DimensionSharding("xy"), "write \\('xy',\\)"),
        (lambda: DimensionSharding([3]), "must be a string"),
        (lambda: TensorSharding(3, []), "must be a name or a Mesh"),
        (lambda: TensorSharding("mesh", ["x"]), "write \\('x',\\)"),
        (lambda: ManualAxes("x"), "write \\('x',\\)"),
        (lambda: TensorShardingPerValue(["x"]), "expected a TensorSharding"),
    ],
)
def test_wrong_types(make, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        make()
