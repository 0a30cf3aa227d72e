"""Problems of shared requests, what is wanted of them, and the splits found, as JSON documents.

Pure.

What an operator reads is written down row by row: how it was known to the model is of no account to
a search.
"""

from dataclasses import asdict, dataclass, replace
from typing import Any

from potluck.offload.plan.bandwidths import Found
from potluck.offload.plan.problem import Interval, OffloadProblem, Operator, Reads, SharedLink
from potluck.offload.plan.search_spec import SearchSpec
from potluck.offload.plan.split import Split

Document = dict[str, Any]


@dataclass(frozen=True, slots=True)
class RowWindow:
    """Of each row: the first row that it reads, and the end of those."""

    firsts: tuple[int, ...]
    ends: tuple[int, ...]

    def rows(self, start: int, stop: int) -> tuple[int, int]:
        return self.firsts[start], self.ends[stop - 1]


def problem_document(sharing: OffloadProblem, spec: SearchSpec) -> Document:
    """A problem and what is wanted; each window is written once."""
    windows: dict[RowWindow, int] = {}
    read: dict[tuple[Reads, int], int] = {}

    def number(reads: Reads | None, count: int) -> int | None:
        if reads is None:
            return None
        if (reads, count) not in read:
            firsts, ends = zip(*(reads.rows(row, row + 1) for row in range(count)), strict=True)
            read[reads, count] = windows.setdefault(RowWindow(firsts, ends), len(windows))
        return read[reads, count]

    operators = [
        {
            "name": o.name,
            "count": o.count,
            "row_bytes": o.row_bytes,
            "side_s": o.side_s,
            "divisible": o.divisible,
            "side_fixed_s": o.side_fixed_s,
            "side_halo_s": o.side_halo_s,
            "inputs": [(source, number(reads, o.count)) for source, reads in o.inputs],
        }
        for o in sharing.operators
    ]
    lines = [(*pair, line.media, line.latency_s) for pair, line in sharing.lines.items()]
    plain = asdict(replace(sharing, operators=sharing.operators[:2], lines={}))
    return {
        "sharing": plain | {"operators": operators, "lines": lines},
        "windows": [(window.firsts, window.ends) for window in windows],
        "spec": asdict(spec),
    }


def read_problem(document: Document) -> tuple[OffloadProblem, SearchSpec]:
    """What `problem_document` has written."""
    windows = [RowWindow(tuple(firsts), tuple(ends)) for firsts, ends in document["windows"]]
    known = document["sharing"]
    operators = tuple(_operator(row, windows) for row in known["operators"])
    lines = {
        (a, b): SharedLink(media=tuple((m, n) for m, n in media), latency_s=latency_s)
        for a, b, media, latency_s in known["lines"]
    }
    media = tuple(known["media_bytes_per_s"])
    sharing = OffloadProblem(
        **(known | {"operators": operators, "lines": lines, "media_bytes_per_s": media})
    )
    spec = document["spec"]
    return sharing, SearchSpec(**(spec | {"bandwidths": tuple(spec["bandwidths"])}))


def _operator(row: Document, windows: list[RowWindow]) -> Operator:
    inputs = tuple(
        (source, windows[which] if which is not None else None) for source, which in row["inputs"]
    )
    times: Document = {key: tuple(row[key]) for key in ("side_s", "side_fixed_s", "side_halo_s")}
    return Operator(**(row | times | {"inputs": inputs}))


def found_document(found: Found) -> Document:
    """Splits, each from so many bytes per second on."""
    return {
        "entries": [
            {"bytes_per_s": bytes_per_s, "split": asdict(split)} for bytes_per_s, split in found
        ]
    }


def read_found(document: Any, sharing: OffloadProblem) -> Found | None:
    """What `found_document` has written of this problem; None for anything else."""
    try:
        found = tuple(
            (float(row["bytes_per_s"]), _split(row["split"])) for row in document["entries"]
        )
    except (ValueError, KeyError, TypeError, OverflowError):
        return None
    is_valid = found and found[0][0] == 0 and all(_fits(split, sharing) for _, split in found)
    return found if is_valid else None


def _fits(split: Split, sharing: OffloadProblem) -> bool:
    if len(split.divisions) != len(sharing.operators) or split.tiles < 1:
        return False
    figures = (split.latency_s, split.energy_j, split.sent_bytes, split.received_bytes)
    if not all(figure >= 0 for figure in figures):  # nor NaN
        return False
    pairs = zip(split.divisions, sharing.operators, strict=True)
    return all(
        len(division) == sharing.n_sides
        and all(0 <= start <= stop <= operator.count for start, stop in division)
        for division, operator in pairs
    )


def _split(row: Document) -> Split:
    divisions = tuple(tuple(map(_rows, division)) for division in row["divisions"])
    return Split(
        divisions=divisions,
        tiles=int(row["tiles"]),
        latency_s=float(row["latency_s"]),
        energy_j=float(row["energy_j"]),
        sent_bytes=int(row["sent_bytes"]),
        received_bytes=int(row["received_bytes"]),
    )


def _rows(row: Any) -> Interval:
    start, stop = row
    return int(start), int(stop)
