"""Split tables that were searched for: kept on disk, so that the next `accelerate` of the same
model on the same devices need not search, and in memory.

One JSON file per model, times of all sides, links and search spec. A file that is corrupt, or of
another version, is made anew. One search at a time writes there: who wants one meanwhile waits,
and reads what was found.
"""

import hashlib
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from potluck.documents import read_json, write_whole
from potluck.errors import FileError
from potluck.offload.plan.bandwidths import Found
from potluck.offload.plan.documents import found_document, read_found
from potluck.offload.plan.problem import OffloadProblem
from potluck.offload.plan.search_spec import SearchSpec
from potluck.profile.layer_times_store import cache_dir
from potluck_wire.file_reading import read_file

MAX_BYTES = 64 * 2**20  # of a file
SCHEMA = 7  # a change of the search or of the file makes tables anew
LOCK = "searching.lock"


class SplitCache:
    """The splits of one model; without a `directory` in memory alone."""

    def __init__(self, directory: Path | None, signature: str) -> None:
        self.directory, self._signature = directory, signature
        self._kept: dict[str, Found] = {}

    def name(self, sharing: OffloadProblem, spec: SearchSpec) -> str:
        """What a table is called: by all that the search depends on."""
        operators = [
            (o.name, o.count, o.row_bytes, o.side_s, o.side_fixed_s, o.side_halo_s)
            for o in sharing.operators
        ]
        watts = sharing.idle_w, sharing.busy_w, sharing.radio_w
        links = (
            sharing.latency_s,
            sharing.piece_s,
            sorted(sharing.lines.items()),
            sharing.media_bytes_per_s,
        )
        wanted = spec.deadline_s, spec.bandwidths, spec.n_searches, spec.baseline
        about = self._signature, operators, links, watts, wanted
        return f"{hashlib.sha256(repr((SCHEMA, about)).encode()).hexdigest()[:32]}.json"

    def path(self, sharing: OffloadProblem, spec: SearchSpec) -> Path | None:
        """Where it is kept; None: on no disk."""
        return self.directory / self.name(sharing, spec) if self.directory is not None else None

    def known(self, sharing: OffloadProblem, spec: SearchSpec) -> Found | None:
        """What was found before, here or by another."""
        path = self.path(sharing, spec)
        return self._kept.get(self.name(sharing, spec)) or (
            read(path, sharing) if path is not None else None
        )

    def keep(self, sharing: OffloadProblem, spec: SearchSpec, found: Found) -> None:
        """For as long as this process lasts.

        Parameters
        ----------
        sharing
            The problem.
        spec
            What was searched for.
        found
            What was found.
        """
        self._kept[self.name(sharing, spec)] = found

    def found(
        self,
        sharing: OffloadProblem,
        spec: SearchSpec,
        report: Callable[[int], None] = lambda done: None,
    ) -> Found:
        """What was found before, or is searched for and kept now.

        Parameters
        ----------
        sharing
            The problem.
        spec
            What is searched for.
        report
            Called with the number of searches done.
        """
        found = self.known(sharing, spec)
        if found is None:
            found = spec.search(sharing, report=report)
            self.keep(sharing, spec, found)
            if path := self.path(sharing, spec):
                write(path, found)
        return found


def default_directory() -> Path:
    """Where the tables of this user are."""
    return cache_dir() / "splits"


def read(path: Path, sharing: OffloadProblem) -> Found | None:
    """The splits in a file; None where there is none, or another thing."""
    try:
        return read_found(read_json(read_file(path, MAX_BYTES), str(path)), sharing)
    except (OSError, FileError, ValueError):
        return None


def write(path: Path, found: Found) -> None:
    """All at once, or not at all: a folder that cannot be written costs a search the next time, no
    more.
    """
    with suppress(FileError):
        write_whole(path, json.dumps(found_document(found)))


@contextmanager
def alone(directory: Path) -> Iterator[None]:
    """Wait until nobody else searches for this folder; where it cannot be known, at once."""
    try:
        import fcntl

        directory.mkdir(parents=True, exist_ok=True)
        file = (directory / LOCK).open("a")
    except (ImportError, OSError):  # Windows; a folder that cannot be written
        yield
        return
    with file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
