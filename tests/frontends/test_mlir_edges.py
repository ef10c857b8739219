"""Edges on results of ops that jaxlib does not know are refused with their place, since jaxlib ends the process there; others are taken."""

from __future__ import annotations

import pytest

from shardy_py.errors import ShardyError
from shardy_py.opt.from_mlir import parse_module

T = "tensor<8xf32>"
HEAD = f"func.func @main(%x: {T}) -> {T} {{\n"
UNKNOWN = f'"other.op"(%x) : ({T}) -> {T}'
EDGE = f"%e = sdy.data_flow_edge %y : {T}\n"
END = f"return %e : {T} }}"

REFUSED = {
    "next to it": f"{HEAD}%y = {UNKNOWN}\n{EDGE}{END}",
    "generic": f'{HEAD}%y = {UNKNOWN}\n%e = "sdy.data_flow_edge" ( // %x\n %y) : ({T}) -> {T}\n{END}',
    "comments": f"{HEAD}%y = // = stablehlo.abs\n {UNKNOWN}\n%e = sdy.data_flow_edge // %x\n %y : {T}\n{END}",
    "one of several": f'{HEAD}%z, %y = "other.op"(%x) : ({T}) -> ({T}, {T})\n{EDGE}{END}',
    "a number of results": f'{HEAD}%y:2 = "other.op"(%x) : ({T}) -> ({T}, {T})\n{EDGE.replace("%y", "%y#1")}{END}',
    "an unknown op of a known dialect": f"{HEAD}%y = {UNKNOWN.replace('other.op', 'no.op')}\n{EDGE}{END}",
    "from outside of a region": (
        f'{HEAD}%c = stablehlo.constant dense<true> : tensor<i1>\n%y = {UNKNOWN}\n%e = "stablehlo.if"(%c) ({{\n'
        f"%f = sdy.data_flow_edge %y : {T}\nstablehlo.return %f : {T} }}, {{ stablehlo.return %x : {T} }}) : (tensor<i1>) -> {T}\n{END}"
    ),
    "a later block": f"{HEAD}cf.br ^b\n^a:\n{EDGE}{END[:-1]}\n^b:\n%y = {UNKNOWN}\ncf.br ^a }}",
    "further down in the module": f'"a.b"() ({{ %e = sdy.data_flow_edge %y : {T}\n%y = "other.op"() : () -> {T} }}) : () -> ()',
}

TAKEN = {
    "an argument": f"{HEAD}%e = sdy.data_flow_edge %x : {T}\n{END}",
    "a known op": f"{HEAD}%y = stablehlo.abs %x : {T}\n{EDGE}{END}",
    "a generic op": f'{HEAD}%y = "stablehlo.abs"(%x) : ({T}) -> {T}\n{EDGE}{END}',
    "an unknown op beside it": f"{HEAD}%z = {UNKNOWN}\n%y = stablehlo.abs %z : {T}\n{EDGE}{END}",
    "an unknown op of that name in another function": (
        f"func.func @other(%x: {T}) -> {T} {{ %y = {UNKNOWN}\nreturn %y : {T} }}\n{HEAD}%y = stablehlo.abs %x : {T}\n{EDGE}{END}"
    ),
    "an unknown op of the argument's name in another function": (
        f"func.func @other(%z: {T}) -> {T} {{ %x = {UNKNOWN.replace('%x', '%z')}\nreturn %x : {T} }}\n"
        f"{HEAD}%e = sdy.data_flow_edge %x : {T}\n{END}"
    ),
    "an unknown op inside of a region": (
        f'{HEAD}%r = sdy.named_computation<"n">(%x) (%a: {T}) {{ %y = "other.op"(%a) : ({T}) -> {T}\n'
        f"sdy.return %y : {T} }} : ({T}) -> {T}\n%y = stablehlo.abs %r : {T}\n{EDGE}{END}"
    ),
    "an edge in a string": f'{HEAD}%y = {UNKNOWN}\n%e = stablehlo.abs %y {{x.y = "sdy.data_flow_edge %y"}} : {T}\n{END}',
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    with pytest.raises(ShardyError, match=r"an sdy\.data_flow_edge is on a result of") as error:
        parse_module(REFUSED[name])
    assert (error.value.where or "").startswith("-:")


@pytest.mark.parametrize("name", TAKEN)
def test_taken(name: str) -> None:
    parse_module(TAKEN[name])
