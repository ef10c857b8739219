"""Makes the notebooks from the Python files beside them, and runs them: `python notebooks/make.py [NAME ...]`.

A cell begins with `# %%`, one of text with `# %% [markdown]`, as editors know it. The output of a cell stays in the notebook, and a test
compares it with what it prints then; so nothing that differs between runs may be shown.
"""

from __future__ import annotations

import os
import pathlib
import re
import sys
import tempfile
from importlib.metadata import version
from typing import Any

HERE = pathlib.Path(__file__).resolve().parent
KERNEL = {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}, "language_info": {"name": "python"}}
MARK = re.compile(r"^# %%(?P<text> \[markdown\])?$\n?", re.MULTILINE)
LONG = 600
"""Seconds after which a wait is a failure."""


def sources() -> list[pathlib.Path]:
    """The files that notebooks are made of, in order."""
    return sorted(HERE.glob("[0-9]*.py"))


def cells(source: str) -> list[tuple[str, str]]:
    """Kind (`markdown` or `code`) and text of each cell."""
    marks = [*MARK.finditer(source)]
    found = []
    for mark, following in zip(marks, [*marks[1:], None]):
        text = source[mark.end() : None if following is None else following.start()].strip("\n")
        if mark["text"]:
            text = "\n".join(line.removeprefix("#").removeprefix(" ") for line in text.splitlines())
        found.append(("markdown" if mark["text"] else "code", text))
    return found


def notebook(source: str) -> Any:
    """A notebook that has not run."""
    from nbformat import v4

    made = v4.new_notebook(metadata=KERNEL)
    for number, (kind, text) in enumerate(cells(source)):
        new = v4.new_markdown_cell if kind == "markdown" else v4.new_code_cell
        made.cells.append(new(text, id=f"cell-{number}"))
    return made


def run(made: Any) -> None:
    """Runs a notebook in a process of its own; an exception in a cell is one here.

    Only what is shown stays: no times and no numbers of processes.
    """
    from nbclient import NotebookClient
    from traitlets.config import Config

    root = str(HERE.parent)  # for checkouts whose package is not installed
    paths = os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH"))))
    where = {"metadata": {"path": str(HERE)}}
    with tempfile.TemporaryDirectory() as folder:
        # Sockets that are files: ports can be taken by others between their choice and their use. Nothing in the user's home is needed.
        config = Config({"KernelManager": {"transport": "ipc", "connection_file": os.path.join(folder, "kernel.json")}})
        environment = {key: value for key, value in os.environ.items() if key != "XLA_FLAGS"} | {"PYTHONPATH": paths, "IPYTHONDIR": folder}
        client = NotebookClient(
            made, timeout=LONG, startup_timeout=LONG, iopub_timeout=LONG, raise_on_iopub_timeout=True, kernel_name="python3",
            extra_arguments=["--log-level=ERROR"], config=config, resources=where,
        )  # fmt: skip
        # The kernel of this Python, not one of that name in the user's home.
        client.create_kernel_manager().kernel_spec_manager.kernel_dirs = []
        client.execute(env=environment)
    made.metadata = KERNEL | {"shardy_py": {"jax": version("jax")}}
    for cell in made.cells:
        cell.metadata = {}
        if cell.cell_type == "code":
            cell.outputs = joined(cell.outputs)


def joined(outputs: list[Any]) -> list[Any]:
    """Outputs in which what was printed is one piece, in however many it came; without lines of progress, which are empty in the end."""
    found: list[Any] = []
    for output in outputs:
        if output.output_type == "display_data" and output.data == {"text/plain": ""}:
            continue
        if found and output.output_type == found[-1].output_type == "stream" and output.name == found[-1].name:
            found[-1].text += output.text
        else:
            found.append(output)
    return found


def text_of(made: Any) -> str:
    """A notebook as the text of its file."""
    import nbformat

    return nbformat.writes(made, version=4) + "\n"


def main(names: list[str]) -> None:
    """Makes all notebooks, or those whose names begin so."""
    for path in sources():
        if not names or any(path.name.startswith(name) for name in names):
            made = notebook(path.read_text(encoding="utf-8"))
            run(made)
            path.with_suffix(".ipynb").write_text(text_of(made), encoding="utf-8")
            print(path.with_suffix(".ipynb").name)


if __name__ == "__main__":
    main(sys.argv[1:])
