"""Runs pass pipelines of jaxlib's Shardy on modules read from stdin, one JSON request per line, one JSON answer per line.

A process of its own, because a failed check in the C++ code ends the process.
"""

from __future__ import annotations

import json
import os
import sys

from jaxlib.mlir import ir, passmanager
from jaxlib.mlir._mlir_libs import _jax_mlir_ext
from jaxlib.mlir.dialects import chlo, sdy, stablehlo


def make_context() -> ir.Context:
    context = ir.Context()
    registry = ir.DialectRegistry()
    _jax_mlir_ext.register_dialects(registry)
    context.append_dialect_registry(registry)
    context.load_all_available_dialects()
    sdy.register_dialect(context)
    chlo.register_dialect(context)
    stablehlo.register_dialect(context)
    stablehlo.register_stablehlo_passes()
    return context


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    context = make_context()
    for line in sys.stdin:
        request = json.loads(line)
        try:
            with context:
                module = ir.Module.parse(request["module"])
                passmanager.PassManager.parse(f"builtin.module({request['pipeline']})").run(module.operation)
                answer = {"module": module.operation.get_asm(print_generic_op_form=True)}
        except Exception as error:
            answer = {"error": str(error)}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
