"""`python -m potluck_agent`: the same as `potluck agent`."""

import sys

from potluck_agent.cli.arguments import read

given = read(sys.argv[1:])  # --help ends here

from potluck_agent.cli.main import run  # noqa: E402 - what help does not need

sys.exit(run(given))
