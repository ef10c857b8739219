"""Jaxprs as functions: a line per equation, and a function for each jaxpr inside of one."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Var

from shardy_py.frontends.loops import scan_counts
from shardy_py.ir.jax_calls import PLAIN_CALLS, body_parameter
from shardy_py.pipedream.conversion import lines
from shardy_py.pipedream.conversion.descriptions import ConversionError
from shardy_py.pipedream.conversion.equations import call_of, function_with_rule, scalar, value
from shardy_py.pipedream.conversion.lines import Code, statement


class Writer:
    """Writes the functions of one module."""

    def __init__(self, names: Mapping[Var, str], count: int = 0) -> None:
        self.names = dict(names)
        self.functions: list[list[str]] = []
        self.constants: dict[str, Any] = {}
        self.count = count

    def equation(self, eqn: JaxprEqn) -> list[str]:
        """The statement of an equation; its results get the names they have already, or new ones."""
        operands = [self.operand(atom) for atom in eqn.invars]
        for v in eqn.outvars:
            if v not in self.names:
                self.names[v] = (
                    self.fresh(str(eqn.params.get("name", eqn.primitive.name)).strip("_")) if type(v).__name__ != "DropVar" else "_"
                )
        try:
            code, many = self._call(eqn, operands)
        except ConversionError as error:
            raise error.at(f"equation {' '.join(str(eqn).split())[:100]!r}") from None
        targets = [self.names[v] for v in eqn.outvars]
        shapes = "; ".join(_shape(v.aval) for v in eqn.outvars)
        target = f"({targets[0]},)" if many and len(targets) == 1 else ", ".join(targets)
        if not targets:
            return []
        code_lines = statement(f"{target} = ", code, 4)
        if len(code_lines) == 1 and len(code_lines[0]) + len(shapes) + 4 <= lines.WIDTH:
            return [f"{code_lines[0]}  # {shapes}"]
        return [*lines.comment(shapes, 4), *code_lines]

    def operand(self, atom: Any) -> str:
        """The code of a variable or literal."""
        return scalar(atom) if isinstance(atom, Literal) else self.names[atom]

    def fresh(self, base: str) -> str:
        """A name that was not used yet."""
        self.count += 1
        return f"{re.sub(r'[^A-Za-z0-9_]', '_', base)}_{self.count}"

    def function(self, closed: ClosedJaxpr | Jaxpr, base: str) -> str:
        """Writes the function of a jaxpr inside; returns its name."""
        jaxpr, consts = (closed.jaxpr, closed.consts) if isinstance(closed, ClosedJaxpr) else (closed, ())
        name = self.fresh(f"_{base.strip('_')}")
        for var, const in zip(jaxpr.constvars, consts):
            self.names[var] = self.constant(const)
        for var in jaxpr.invars:
            self.names[var] = self.fresh("x")
        body = [line for eqn in jaxpr.eqns for line in self.equation(eqn)]
        results = [self.operand(atom) for atom in jaxpr.outvars]
        head = statement(f"def {name}", lines.call("", [self.names[var] for var in jaxpr.invars]), 0, ":")
        returned = statement("return ", results[0] if len(results) == 1 else Code("(", tuple(results), ")"), 4)
        self.functions.append([*head, *body, *returned])
        return name

    def constant(self, const: Any) -> str:
        """The code of a constant; arrays are kept apart."""
        name = self.fresh("const")
        self.constants[name] = const
        return f'CONSTANTS["{name}"]'

    def _call(self, eqn: JaxprEqn, operands: list[str]) -> tuple[Code | str, bool]:
        name, params = eqn.primitive.name, eqn.params
        if name in PLAIN_CALLS:
            inner = params[body_parameter(params)]
            if not isinstance(inner, ClosedJaxpr | Jaxpr):
                raise ConversionError(f"the primitive {name!r} cannot be written as code")
            function = self.function(inner, str(params.get("name", name)))
            if name == "remat2":
                if params.get("policy") is not None:
                    raise ConversionError("a checkpoint with a policy cannot be written as code")
                function = f"jax.checkpoint({function})"
            return lines.call(function, operands), len(eqn.outvars) != 1
        if name.startswith(("custom_jvp_call", "custom_vjp_call")):
            function_of_rule = function_with_rule(eqn)
            if function_of_rule is None:
                raise ConversionError(
                    f"the primitive {name!r} cannot be written as code",
                    why="its derivative rule is a Python function",
                    fix="a function of jax.nn with one argument can",
                )
            return lines.call(function_of_rule, operands), False
        if name == "scan":
            return self._scan(eqn, operands), True
        if name == "while":
            return self._while(params, operands), True
        if name == "cond":
            branches = tuple(self.function(branch, "branch") for branch in params["branches"])
            return lines.call("lax.switch", [f"jnp.int32({operands[0]})", Code("[", branches, "]"), *operands[1:]]), len(eqn.outvars) != 1
        function, parts = call_of(eqn, operands)
        return lines.call(function, parts), eqn.primitive.multiple_results

    def _scan(self, eqn: JaxprEqn, operands: list[str]) -> Code:
        params = eqn.params
        consts, carry = scan_counts(eqn)
        body = self.function(params["jaxpr"], "step")
        step = self.fresh("_scan")
        body_call = f"{body}(*consts, *carry, *x)"
        body_call = f"({body_call},)" if len(params["jaxpr"].jaxpr.outvars) == 1 else body_call
        self.functions.append(
            [
                f"def {step}(consts, start, xs):",
                "    def step(carry, x):",
                f"        out = {body_call}",
                f"        return out[:{carry}], out[{carry}:]",
                "",
                *statement(
                    "last, rows = ",
                    lines.call(
                        "lax.scan", ["step", "start", "xs", *(f"{key}={value(params[key])}" for key in ("length", "reverse", "unroll"))]
                    ),
                    4,
                ),
                "    return (*last, *rows)",
            ]
        )
        parts = [operands[:consts], operands[consts : consts + carry], operands[consts + carry :]]
        return lines.call(step, [Code("(", tuple(part), ",)" if len(part) == 1 else ")") for part in parts])

    def _while(self, params: Mapping[str, Any], operands: list[str]) -> Code:
        tested, body_consts = params["cond_nconsts"], params["body_nconsts"]
        test, body = self.function(params["cond_jaxpr"], "test"), self.function(params["body_jaxpr"], "body")
        loop = self.fresh("_while")
        body_call = f"{body}(*body_consts, *carry)"
        self.functions.append(
            [
                f"def {loop}(test_consts, body_consts, start):",
                "    def test(carry):",
                f"        return {test}(*test_consts, *carry)",
                "",
                "    def body(carry):",
                f"        return {f'({body_call},)' if len(params['body_jaxpr'].jaxpr.outvars) == 1 else body_call}",
                "",
                "    return lax.while_loop(test, body, start)",
            ]
        )
        parts = [operands[:tested], operands[tested : tested + body_consts], operands[tested + body_consts :]]
        return lines.call(loop, [Code("(", tuple(part), ",)" if len(part) == 1 else ")") for part in parts])


def _shape(aval: Any) -> str:
    return aval.str_short(short_dtypes=False) if hasattr(aval, "str_short") else str(aval)


def argument_names(jaxpr: Sequence[Var], arg_paths: Sequence[str] | None) -> list[str]:
    """An identifier for each input, made from its path, such as params_w of params['w']."""
    paths = arg_paths if arg_paths and len(arg_paths) == len(jaxpr) else [f"arg{i}" for i in range(len(jaxpr))]
    names: list[str] = []
    for i, path in enumerate(paths):
        name = re.sub(r"_+", "_", re.sub(r"[^A-Za-z0-9]+", "_", str(path or f"arg{i}"))).strip("_") or f"arg{i}"
        # The end tells such a name from that of a result, which ends in a number, and from Python's own.
        name = f"{name}_" if re.search(r"_\d+$", name) or not lines.is_free(name) else name
        names.append(name if name not in names and lines.is_free(name) else f"arg{i}_")
    return names
