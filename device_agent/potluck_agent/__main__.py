"""`python -m potluck_agent`: the same as `potluck agent`."""

import sys

from potluck_agent.main import run

sys.exit(run())
