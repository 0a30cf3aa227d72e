"""What tells this machine from all others: many of a kind come with the same host name."""

import hashlib
import platform
import uuid
from pathlib import Path

PROC = Path("/proc")
BOOT_ID = "sys/kernel/random/boot_id"
MARK_CHARS = 8


def machine_name(proc: Path = PROC) -> str:
    """The host name and a mark: the same for all processes of this machine until it starts anew,
    and of no other one.

    Raspberry Pis, Jetsons and phones keep the host name that their system came with, so a name
    alone would make one machine of two. The mark tells neither the system's start nor an address.

    Parameters
    ----------
    proc
        Where Linux tells of itself.
    """
    known = _boot_id(proc) or f"{uuid.getnode():x}"
    mark = hashlib.sha256(f"potluck {known}".encode()).hexdigest()[:MARK_CHARS]
    return f"{platform.node()} {mark}"


def _boot_id(proc: Path) -> str:
    """Of this start of the system; empty where it is not told."""
    try:
        return (proc / BOOT_ID).read_text(errors="replace").strip()
    except OSError:
        return ""
