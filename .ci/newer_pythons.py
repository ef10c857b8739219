"""Prints the Pythons of this machine that are newer than the one that runs this, the newest first: those on the path, and pyenv's."""

import glob
import os
import subprocess
import sys
from pathlib import Path

ASK = "import sys, venv, ensurepip; print(sys.executable, sys.version_info[0], sys.version_info[1], sys.version_info.releaselevel)"


def version(python: str) -> tuple[str, tuple[int, int]] | None:
    """The path of an interpreter and its version; None if it does not start, is a pre-release, or cannot create environments."""
    try:
        words = subprocess.run([python, "-c", ASK], capture_output=True, text=True, timeout=60).stdout.split()
    except (OSError, subprocess.TimeoutExpired):
        return None
    return (words[0], (int(words[1]), int(words[2]))) if words[-1:] == ["final"] else None


def main() -> None:
    """Prints one path for each minor version."""
    folders = [*os.get_exec_path(), *glob.glob(str(Path(os.environ.get("PYENV_ROOT", "~/.pyenv")).expanduser() / "versions/3.*/bin"))]
    names = {name for folder in folders for digits in ("[0-9]", "[0-9][0-9]") for name in glob.glob(f"{folder}/python3.{digits}")}
    pythons = {number: path for path, number in filter(None, map(version, sorted(names)))}
    for number in sorted(pythons, reverse=True):
        if number > sys.version_info[:2]:
            print(pythons[number])


if __name__ == "__main__":
    main()
