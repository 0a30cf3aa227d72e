"""Split tables on disk, so that the next `accelerate` of the same model on the same devices need not search.

One JSON file per model, times of all sides, links and wishes. A file that is corrupt, or of another version, is
made anew.
"""

import hashlib
import json
import os
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from potluck.plan.sharing.bandwidths import Found
from potluck.plan.sharing.problem import Sharing
from potluck.plan.sharing.split import Split
from potluck.profile.store import cache_dir
from potluck.run.sharing.table import SplitCase, SplitTable

SCHEMA = 6  # a change of the search or of the file makes tables anew


class SplitStore:
    """The tables of `directory`."""

    def __init__(self, directory: Path | None = None) -> None:
        self.directory = directory or cache_dir() / "splits"

    def path(self, case: SplitCase) -> Path:
        """Where the table of a case is kept: by all that the search depends on."""
        sharing = case.sharing
        operators = [(o.name, o.count, o.row_bytes, o.side_s, o.side_fixed_s, o.side_seam_s) for o in sharing.operators]
        watts = sharing.idle_w, sharing.busy_w, sharing.radio_w
        links = sharing.latency_s, sharing.piece_s, sorted(sharing.lines.items()), sharing.media_bytes_per_s
        wishes = case.deadline_s, case.bandwidths, case.n_searches, case.rival
        about = case.model.signature, case.batch, operators, links, watts, wishes
        return self.directory / f"{hashlib.sha256(repr((SCHEMA, about)).encode()).hexdigest()[:32]}.json"

    def table(self, case: SplitCase) -> SplitTable:
        """The table of a case: as it was kept, or searched for and kept."""
        path = self.path(case)
        found = _read(path, case.sharing)
        if found is None:
            found = case.search()
            _write(path, found)
        return case.table(found)


def _read(path: Path, sharing: Sharing) -> Found | None:
    try:
        document = json.loads(path.read_bytes())
        found = tuple((float(row["bytes_per_s"]), _split(row["split"])) for row in document["entries"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
    whole = found and found[0][0] == 0 and all(_fits(split, sharing) for _, split in found)
    return found if whole else None


def _fits(split: Split, sharing: Sharing) -> bool:
    if len(split.divisions) != len(sharing.operators) or split.tiles < 1:
        return False
    pairs = zip(split.divisions, sharing.operators, strict=True)
    return all(
        len(division) == sharing.n_sides and all(0 <= start <= stop <= operator.count for start, stop in division)
        for division, operator in pairs
    )


def _split(row: dict[str, Any]) -> Split:
    divisions = tuple(tuple(map(_rows, division)) for division in row["divisions"])
    return Split(
        divisions=divisions, tiles=int(row["tiles"]), latency_s=float(row["latency_s"]),
        energy_j=float(row["energy_j"]), sent_bytes=int(row["sent_bytes"]), received_bytes=int(row["received_bytes"]),
    )  # fmt: skip


def _rows(row: Any) -> tuple[int, int]:
    start, stop = row
    return int(start), int(stop)


def _write(path: Path, found: Found) -> None:
    entries = [{"bytes_per_s": bytes_per_s, "split": asdict(split)} for bytes_per_s, split in found]
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    with suppress(OSError):  # a folder that cannot be written costs a search the next time, no more
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            part.write_text(json.dumps({"entries": entries}))
            part.replace(path)
        finally:
            part.unlink(missing_ok=True)
