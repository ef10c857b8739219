"""`python -m shardy_py.opt`."""

import sys

from shardy_py.opt import main

sys.exit(main())
