"""`python -m shardy_py`: see `shardy_py.cli`."""

import sys

from shardy_py.cli import main

if __name__ == "__main__":
    sys.exit(main())
