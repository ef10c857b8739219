from __future__ import annotations

import pickle

import pytest

from shardy_py.plan.collectives import KINDS, Collective, Total, lines, received_bytes, summary

GATHER = Collective("all_gather", ("model",), 4, 256, 6, "float32", (8, 8), "params['w']", "dot_general", "/home/me/train.py:12")
REDUCE = Collective("all_reduce", ("data", "model"), 8, 2048, dtype="bfloat16", shape=(32, 32), value="%3", location="/home/me/train.py:7")


@pytest.mark.parametrize(
    ("kind", "once"),
    [("all_gather", 3 * 1000), ("reduce_scatter", 750), ("all_reduce", 1500), ("all_to_all", 750), ("collective_permute", 1000)],
)
def test_what_a_device_receives(kind: str, once: int) -> None:
    one = Collective(kind, ("x",), 4, 1000)
    assert one.received_bytes == one.total_bytes == received_bytes(kind, 4, 1000) == once
    assert Collective(kind, ("x",), 4, 1000, trips=5).total_bytes == 5 * once
    unknown = Collective(kind, ("x",), 4, 1000, trips=None)
    assert (unknown.received_bytes, unknown.total_bytes) == (once, None)


def test_alone_nothing_is_received() -> None:
    for kind in KINDS[:4]:
        assert Collective(kind, ("x",), 1, 1000).received_bytes == 0


def test_one_line() -> None:
    assert str(GATHER) == "all_gather(model)  params['w'] float32[8,8]  768 B x6  train.py:12  dot_general"
    assert str(REDUCE) == "all_reduce(data,model)  %3 bfloat16[32,32]  3.5 KiB  train.py:7"
    assert str(Collective("all_to_all", ("x",), 2, 64, None)) == "all_to_all(x)  32 B each trip"


def test_lines_are_aligned() -> None:
    assert lines([GATHER, REDUCE]) == [
        "all_gather(model)       params['w'] float32[8,8]  768 B x6  train.py:12  dot_general",
        "all_reduce(data,model)  %3 bfloat16[32,32]        3.5 KiB   train.py:7",
    ]
    assert lines([]) == []


def test_summary_is_in_the_order_of_kinds() -> None:
    permute = Collective("collective_permute", ("x",), 2, 100, trips=None)
    found = summary([permute, REDUCE, GATHER, GATHER])
    assert found == (
        Total("all_gather", 2, 2 * 768 * 6, True),
        Total("all_reduce", 1, 2 * 2048 * 7 // 8, True),
        Total("collective_permute", 1, 100, False),
    )
    assert [str(total) for total in found] == ["2 all_gather  9 KiB", "1 all_reduce  3.5 KiB", "1 collective_permute  at least 100 B"]
    assert summary([]) == ()


def test_pickles() -> None:
    assert pickle.loads(pickle.dumps(GATHER)) == GATHER
