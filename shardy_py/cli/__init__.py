"""`shardy-py` on the command line; `python -m shardy_py` is the same.

`COMMANDS` in `main.py` is the table of subcommands.
"""

from shardy_py.cli.main import main as main
