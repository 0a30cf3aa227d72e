"""Which weights this device keeps between runs, by the notebook that they are of and their content:
what is found, and what goes first where room is needed. Pure; the files are the edge's.

A notebook finds its own alone, so none learns what another one has. Room is made at the notebook
that keeps most, so none drives out others: those of its weights go that were used longest ago, but
never those of runs that are loaded.
"""

import json
from collections import Counter, OrderedDict
from collections.abc import Callable, Container, Iterable, Iterator
from dataclasses import dataclass

from potluck_wire.documents import dump

MAX_ENTRIES = 1 << 14  # of all notebooks: each is a file


@dataclass(slots=True)
class _Entry:
    nbytes: int
    run: str  # that used it last
    is_whole: bool  # it is on the disk, not only on its way there

    def may_go(self, loaded: Container[str]) -> bool:
        """Whether it may go, where the runs of these names are loaded."""
        return self.is_whole and self.run not in loaded


class WeightCache:
    """`limit_bytes`: of all weights together; 0 keeps none. `kept`: what is on the disk already, as
    of `kept_rows`. `loaded()` gives the names of the runs that are loaded.
    """

    def __init__(
        self, limit_bytes: int, kept: str = "", loaded: Callable[[], Container[str]] = tuple
    ) -> None:
        self.limit_bytes, self.loaded = limit_bytes, loaded
        self._of: dict[str, OrderedDict[bytes, _Entry]] = {}
        self._bytes_of: Counter[str] = Counter()
        self._begun: dict[int, tuple[str, bytes]] = {}
        self.used_bytes = self._n_tickets = 0
        for row in json.loads(kept) if kept else ():
            self._add(row["owner"], bytes.fromhex(row["content"]), _Entry(row["nbytes"], "", True))

    def contents(self, owner: str) -> tuple[bytes, ...]:
        """What is kept for this notebook, those first that were used longest ago."""
        return tuple(self._entries(owner))

    @property
    def n_entries(self) -> int:
        """How many are kept."""
        return sum(map(len, self._of.values()))

    def has(self, owner: str, content: bytes, run: str) -> bool:
        """Whether it is kept for this notebook; it is used by this run then."""
        entry = self._entries(owner).get(content)
        if entry is None or not entry.is_whole:
            return False
        entry.run = run
        self._of[owner].move_to_end(content)
        return True

    def begin(
        self, owner: str, content: bytes, nbytes: int, run: str
    ) -> tuple[int, list[tuple[str, bytes]]]:
        """Make room for one that will be kept: the number that `end` knows it by, and what has to
        go for it, by owner and content. Number 0: it is kept already, or no room can be made.
        """
        if nbytes > self.limit_bytes or content in self._entries(owner):
            return 0, []
        gone = self._room(owner, nbytes)
        if gone is None:
            return 0, []
        for victim in gone:
            self.forget(*victim)
        self._add(owner, content, _Entry(nbytes, run, False))
        ticket = self.ticket()
        self._begun[ticket] = owner, content
        return ticket, gone

    def _may_go(self) -> dict[str, Iterator[bytes]]:
        """Of each notebook what may go, the oldest first; each is looked at once."""
        loaded = self.loaded()

        def of(entries: OrderedDict[bytes, _Entry]) -> Iterator[bytes]:
            return (each for each in tuple(entries) if entries[each].may_go(loaded))

        return {key: of(entries) for key, entries in self._of.items()}

    def _room(self, owner: str, nbytes: int) -> list[tuple[str, bytes]] | None:
        """What has to go for one more of so many bytes, each time of who keeps most by then: bytes,
        or files where these are full. None: there is no room whatever goes, so nothing does.
        """
        bytes_of = Counter({**self._bytes_of, owner: self._bytes_of[owner] + nbytes})
        files_of = Counter({key: len(entries) for key, entries in self._of.items()})
        files_of[owner] += 1
        may_go: dict[str, Iterator[bytes]] | None = None
        gone: list[tuple[str, bytes]] = []
        while (has_many := files_of.total() > MAX_ENTRIES) or bytes_of.total() > self.limit_bytes:
            may_go = self._may_go() if may_go is None else may_go
            kept = files_of if has_many else bytes_of
            key = max(may_go, key=lambda key: (kept[key], key == owner), default=owner)
            if kept[key] < kept[owner]:  # those who keep less give nothing for it
                return None
            content = next(may_go.get(key, iter(())), None)
            if content is not None:
                gone.append((key, content))
                bytes_of[key] -= self._of[key][content].nbytes
                files_of[key] -= 1
            elif key == owner:
                return None
            else:
                del may_go[key]
        return gone

    def end(self, ticket: int, *, is_whole: bool) -> None:
        """What was begun under this number is on the disk now, or will not be."""
        owner, content = self._begun.pop(ticket, ("", b""))
        entry = self._entries(owner).get(content)
        if entry is not None and is_whole:
            entry.is_whole = True
        else:
            self.forget(owner, content)

    def forget(self, owner: str, content: bytes) -> None:
        """It is not kept any more."""
        entry = self._entries(owner).pop(content, None)
        if entry is not None:
            self.used_bytes -= entry.nbytes
            self._bytes_of[owner] -= entry.nbytes
            if not self._of[owner]:
                del self._of[owner], self._bytes_of[owner]

    def ticket(self) -> int:
        """The number of one more thing that the disk is asked for; none is used twice."""
        self._n_tickets += 1
        return self._n_tickets

    def leave(self, owner: str) -> bool:
        """This notebook is trusted no longer: nothing is kept for it. Whether anything was."""
        gone = self.contents(owner)
        for content in gone:
            self.forget(owner, content)
        return bool(gone)

    def _entries(self, owner: str) -> OrderedDict[bytes, _Entry]:
        return self._of.get(owner) or OrderedDict()

    def _add(self, owner: str, content: bytes, entry: _Entry) -> None:
        self._of.setdefault(owner, OrderedDict())[content] = entry
        self.used_bytes += entry.nbytes
        self._bytes_of[owner] += entry.nbytes


def kept_rows(rows: Iterable[tuple[str, bytes, int]]) -> str:
    """Rows for `WeightCache`, as JSON.

    Parameters
    ----------
    rows
        Notebook's key, content and bytes of each, those first that were used longest ago.
    """
    return dump(
        [{"owner": key, "content": content.hex(), "nbytes": size} for key, content, size in rows]
    ).decode()
