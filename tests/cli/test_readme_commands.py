"""The commands of the README print what it shows.

`python tests/cli/test_readme_commands.py` writes what they print now into the README.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
README = ROOT / "README.md"
BLOCK = re.compile(r"^```bash\n(?P<commands>(?:shardy-py [^\n]*\n)+)```\n```text\n(?P<shown>.*?)^```$", re.MULTILINE | re.DOTALL)


def printed(commands: str) -> str:
    """What a shell prints, with the command of this tree."""
    function = f'shardy-py() {{ "{sys.executable}" -m shardy_py "$@"; }}\n'
    env = {**os.environ, "PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"}
    done = subprocess.run(["bash", "-e", "-c", function + commands], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return "".join(f"{line.rstrip()}\n" for line in done.stdout.splitlines())


def test_the_commands_print_what_the_readme_shows() -> None:
    found = list(BLOCK.finditer(README.read_text()))
    assert found
    for block in found:
        assert printed(block["commands"]) == block["shown"]


if __name__ == "__main__":
    text = README.read_text()
    for block in reversed(list(BLOCK.finditer(text))):
        text = text[: block.start("shown")] + printed(block["commands"]) + text[block.end("shown") :]
    README.write_text(text)
