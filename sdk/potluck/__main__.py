"""`python -m potluck`: the same as `potluck`."""

import sys

from potluck.cli import main

sys.exit(main())
