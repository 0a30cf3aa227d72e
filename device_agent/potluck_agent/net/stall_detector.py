"""A worker that has work before it and does nothing: stopped, or blocked for good. It is told from
one that computes, that the system keeps waiting, or that waits for room, by what Linux says of it.
"""

from pathlib import Path

# so long; a worker that waits for anything of its agent's reads its pipe meanwhile
STILL_S = 1.2
# the agent itself stood still for longer than this: what was before says nothing
AWAKE_S = 0.6
# on a processor or waiting for one; waiting for a disk or for memory
RUNS = ("R", "D")


class StallDetector:
    """Of one process. `proc`: where the system tells of it."""

    def __init__(self, pid: int, proc: Path = Path("/proc")) -> None:
        self._folder = proc / str(pid)
        self._used = -1
        self._since_s = self._looked_s = -AWAKE_S

    def look(self, now_s: float, has_work: bool) -> float:
        """For how long it has now had work and done nothing; 0 where the system does not tell.

        To be asked some times a second.

        Parameters
        ----------
        now_s
            By any monotonic clock.
        has_work
            Whether there is something that it was sent and has not read.
        """
        was_asleep = now_s - self._looked_s > AWAKE_S
        self._looked_s = now_s
        used = self._used_ticks() if has_work else -1
        if used < 0 or used != self._used or was_asleep or self._runs():
            self._used, self._since_s = used, now_s
        return now_s - self._since_s

    def _used_ticks(self) -> int:
        """Processor time so far; -1 where that is not known."""
        fields = _fields(self._folder)
        return int(fields[11]) + int(fields[12]) if len(fields) > 12 else -1

    def _runs(self) -> bool:
        """Whether any of its threads would go on, if it could."""
        return any(
            fields and fields[0] in RUNS for fields in map(_fields, self._folder.glob("task/*"))
        )


def _fields(folder: Path) -> list[str]:
    """What the system tells of a process or thread, from its state on; nothing of one that is
    gone.
    """
    try:
        return (folder / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []
