"""What tells a process from a later one of the same number. No clock that may be set counts."""

import sys
from pathlib import Path

PROC = Path("/proc")
ENDED = ("Z", "X")  # a zombie: it ended, and its parent has not looked yet
_STATE, _START_TICKS = 0, 19  # fields of /proc/PID/stat, from its state on


def identity(pid: int, proc: Path = PROC) -> str:
    """The same for as long as that process lives, and of no other one; empty: it ended.

    On Linux the system's start and the ticks from there to the process's; elsewhere its start, as
    the system keeps it. (psutil adds the wall clock's `btime` on Linux, which moves when the clock
    is set.)

    Parameters
    ----------
    pid
        Number of the process.
    proc
        Where Linux tells of processes.
    """
    if sys.platform == "linux":
        return _on_linux(pid, proc)
    import psutil

    try:
        process = psutil.Process(pid)
        return "" if process.status() == psutil.STATUS_ZOMBIE else repr(process.create_time())
    except (psutil.Error, ValueError):
        return ""


def _on_linux(pid: int, proc: Path) -> str:
    fields = _read(proc / str(pid) / "stat").rpartition(")")[2].split()
    if len(fields) <= _START_TICKS or fields[_STATE] in ENDED:
        return ""
    # Android may keep it to itself
    return f"{_read(proc / 'sys/kernel/random/boot_id').strip()} {fields[_START_TICKS]}"


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
