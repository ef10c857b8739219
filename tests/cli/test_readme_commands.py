"""The commands of the README and the guides print what these show.

`python tests/cli/test_readme_commands.py` writes what they print now into them.
"""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys

import pytest

if __name__ == "__main__":
    sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))

from tests.documents import ROOT, blocks, rewrite, trimmed, with_blocks


def printed(commands: str) -> str:
    """The text that a shell prints, with the command of this tree."""
    function = f'shardy-py() {{ "{sys.executable}" -m shardy_py "$@"; }}\n'
    env = {**os.environ, "PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"}
    done = subprocess.run(["bash", "-e", "-c", function + commands], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("document", with_blocks("bash"), ids=lambda document: document.name)
def test_the_commands_print_what_the_document_shows(document: pathlib.Path) -> None:
    for example in blocks(document, "bash"):
        assert trimmed(printed(example.body)) == trimmed(example.expected or "")


if __name__ == "__main__":
    for chosen in with_blocks("bash"):
        rewrite(chosen, "bash", [printed(example.body) for example in blocks(chosen, "bash")])
