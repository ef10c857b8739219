"""Runs examples and benchmarks in the process of the tests: a Python of its own for each takes seconds to import jax."""

from __future__ import annotations

import contextlib
import io
import os
import pathlib
import runpy
import sys
from typing import Any
from unittest import mock

import jax
from absl import app, flags

ROOT = pathlib.Path(__file__).resolve().parent.parent


def run(script: pathlib.Path, *arguments: str) -> str:
    """The text that a script prints."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        names(script, *arguments, run_name="__main__")
    return printed.getvalue()


def names(script: pathlib.Path, *arguments: str, run_name: str = "script") -> dict[str, Any]:
    """The names that a script defines; its flags, modules and environment are gone afterwards."""
    before, imported, update = set(flags.FLAGS), set(sys.modules), jax.config.update

    def setting(name: str, value: Any) -> None:
        if name != "jax_num_cpu_devices":  # the tests have their eight already
            update(name, value)

    with (
        mock.patch.object(sys, "argv", [str(script), *arguments]),
        mock.patch.object(sys, "path", [str(script.parent), *sys.path]),
        mock.patch.dict(os.environ),
        mock.patch.object(jax.config, "update", setting),
        mock.patch.object(app, "run", lambda main: main(flags.FLAGS(sys.argv))),
    ):
        try:
            return runpy.run_path(str(script), run_name=run_name)
        finally:
            for name in set(flags.FLAGS) - before:
                delattr(flags.FLAGS, name)
            flags.FLAGS.unparse_flags()
            for name in set(sys.modules) - imported:
                if str(getattr(sys.modules[name], "__file__", None)).startswith(str(script.parent)):
                    del sys.modules[name]
