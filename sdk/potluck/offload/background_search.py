"""A search for splits in a process of its own: requests do not wait for its interpreter, and it can
be ended at any time. It ends with whoever has started it, too, however that one ends.

The process gets the problem as a line of JSON; it says how many searches it has done, and then what
it has found.
"""

import json
import os
import subprocess
import sys
import threading
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import IO, Any

from potluck.offload.cache import alone, read, write
from potluck.offload.plan.bandwidths import Found
from potluck.offload.plan.documents import (
    found_document,
    problem_document,
    read_found,
    read_problem,
)
from potluck.offload.plan.problem import OffloadProblem
from potluck.offload.plan.search_spec import SearchSpec

NICENESS = 19  # requests come first


class BackgroundSearch:
    """It goes on until it is `over` or closed: then `found` says what it has found, if anything.

    Parameters
    ----------
    sharing
        The problem.
    spec
        What is searched for.
    path
        Where the cache of splits is; None keeps none.
    """

    def __init__(self, sharing: OffloadProblem, spec: SearchSpec, path: Path | None) -> None:
        self.done = 0
        self.found: Found | None = None
        self._sharing = sharing
        self._process = subprocess.Popen(
            [sys.executable, *(("-P",) if sys.version_info >= (3, 11) else ()), "-m", __name__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            start_new_session=os.name != "nt",  # Ctrl-C is ours to handle
        )
        order = {"path": str(path) if path is not None else "", **problem_document(sharing, spec)}
        self._thread = threading.Thread(
            target=self._follow, args=(order,), name="potluck search", daemon=True
        )
        self._thread.start()

    def _follow(self, order: dict[str, Any]) -> None:
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        with suppress(OSError, ValueError):  # it was ended
            process.stdin.write(json.dumps(order).encode() + b"\n")
            process.stdin.flush()
            for line in process.stdout:
                report = json.loads(line)
                self.done = report.get("done", self.done)
                self.found = read_found(report, self._sharing) or self.found

    @property
    def over(self) -> bool:
        """Whether it has ended, well or not."""
        return not self._thread.is_alive()

    def close(self) -> None:
        """End it now; safe to call twice."""
        self._process.kill()
        self._thread.join()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with suppress(OSError):
                    pipe.close()
        self._process.wait()


def main(orders: IO[bytes], tell: IO[str]) -> None:
    """Search for what is asked, unless somebody has found it meanwhile."""
    order = json.loads(orders.readline())
    threading.Thread(target=_end_with, args=(orders,), daemon=True).start()
    if hasattr(os, "nice"):
        os.nice(NICENESS)
    sharing, spec = read_problem(order)
    path = Path(order["path"]) if order["path"] else None

    def say(what: dict[str, Any]) -> None:
        tell.write(json.dumps(what) + "\n")
        tell.flush()

    with alone(path.parent) if path is not None else nullcontext():
        found = read(path, sharing) if path is not None else None
        if found is None:
            found = spec.search(sharing, report=lambda done: say({"done": done}))
            if path is not None:
                write(path, found)
    say(found_document(found))


def _end_with(orders: IO[bytes]) -> None:
    """Nothing more is said until whoever has started this closes it, or ends."""
    os.read(orders.fileno(), 1)
    os._exit(1)


if __name__ == "__main__":
    main(sys.stdin.buffer, sys.stdout)
