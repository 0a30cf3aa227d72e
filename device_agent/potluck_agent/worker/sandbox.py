"""What keeps a worker in its bounds: memory, files, processes, signals, network.

Each limit says whether it holds here.

First line of defence is the closed set of operators; these bounds are for bugs in native libraries
and for honest programs that ask for too much. Linux has all of them; elsewhere the answer says what
is missing.
"""

import contextlib
import ctypes
import os
import socket
import sys
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path

from potluck_agent.worker import landlock, seccomp

# On top of tensors: Python objects of graphs and documents (4 MiB of JSON become some 25 MiB), and
# onnxruntime, which is loaded when it is first needed (25 MiB).
OWN_BYTES = 64 << 20
# Of addresses, more than there is memory for them: libraries that are loaded later, and stacks of
# threads. To read where nothing was written takes the system's tables alone, 2 MiB for each GiB.
ADDRESSES_BYTES = 16 << 30
# A tensor of more than such a part of the memory is given back at once. Fetched anew, page by
# page, it is slower: where there is much memory, the bound is that of `launch.MALLOC`.
HEAP_PARTS = 64
LEAST_MAPPED_BYTES, MOST_MAPPED_BYTES = 128 << 10, 32 << 20
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # of glibc's malloc.h
MAX_FILES = 64  # open at once; torch and onnxruntime keep none open
MAX_FILES_OF_DRIVERS = 1024  # a driver opens its device file once for each mapping of its memory

CLONE_NEWUSER, CLONE_NEWNET = 0x10000000, 0x40000000
_PR_SET_PDEATHSIG = 1
_PR_SET_TIMERSLACK = 29
_PR_SET_NO_NEW_PRIVS = 38
_SIGKILL = 9

READS_ALL = "not limited: whatever its user may read"
READS_LITTLE = (
    "its libraries and the system's; in "
    + ", ".join(f"/{name}" for name in landlock.PRIVATE)
    + " nothing else"
)
CHANGES_NONE = "none opened for writing, made, renamed or removed; no core"
CHANGES_DEVICES = (
    "none opened for writing but its accelerator's and the system's of its own threads, none made, "
    "renamed or removed; no core"
)
_WHY_NOT = {
    True: "not limited: the agent is run by root",
    False: "not limited: the system does not tell them from threads, of which it has several",
}
GROWS_NONE = "none grows; its user's may be changed, renamed or removed; no core"


def nowhere() -> int | str:
    """A folder that does not exist any more, to stand in later: no relative path leads anywhere.

    Made before `isolate`, which permits no folder to be made. On Windows it exists until then.
    """
    folder = tempfile.mkdtemp(prefix="potluck-")
    if os.chdir not in os.supports_fd:
        return folder
    handle = os.open(folder, os.O_RDONLY)
    os.rmdir(folder)
    return handle


def isolate(pipe: socket.socket, uses: Sequence[str] = ()) -> dict[str, str]:
    """Before any library is loaded (a new namespace needs a process with one thread).

    Says what is in force. `uses`: the accelerators whose device files it may use.
    """
    if not sys.platform.startswith("linux"):
        threading.Thread(target=_die_with, args=(pipe.fileno(),), daemon=True).start()
        return {"network": "not cut off: only Linux has network namespaces", "reading": READS_ALL}
    libc = ctypes.CDLL(None, use_errno=True)
    network = "not cut off: this system permits no network namespace"
    # With a user namespace the worker also loses every privilege over the rest of the system, even
    # when run by root.
    for flags in (CLONE_NEWUSER | CLONE_NEWNET, CLONE_NEWNET):
        if libc.unshare(flags) == 0:
            network = "cut off"
            break
    libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    libc.prctl(_PR_SET_TIMERSLACK, 1000, 0, 0, 0)  # nanoseconds: emulated devices sleep precisely
    libc.prctl(_PR_SET_PDEATHSIG, _SIGKILL, 0, 0, 0)  # after unshare, which clears it
    nodes = landlock.nodes_of(uses)
    if not landlock.restrict(nodes, landlock.facts_of(uses)):
        return {"network": network, "reading": READS_ALL}
    besides = f"; it uses {', '.join(nodes)}" if nodes else ""
    return {"network": network, "reading": READS_LITTLE + besides}


def confine(
    memory_bytes: int,
    folder: int | str,
    threads: int = 1,
    uses: Sequence[str] = (),
    reading: str = READS_ALL,
) -> dict[str, str]:
    """After the libraries are loaded and warm: no files, processes or signals, `memory_bytes` more
    than now. `folder` is what `nowhere` gave.

    With several `threads` others may be started: OpenMP ends those that a small piece of work does
    not need, and would end the worker where it gets none for the next, large one. The same holds
    where the worker `uses` an accelerator, whose driver starts threads and opens its device files:
    it may where `reading`, as `isolate` says it, is limited, so that it opens no other file.

    Shared memory (the two arenas) is not part of `memory_bytes`: its size is fixed at the start.
    """
    _stand_in(folder)
    if sys.platform == "win32":
        return dict.fromkeys(("memory", "files", "processes"), "not limited: Windows") | {
            "signals": seccomp.ABSENT
        }
    import resource

    def limit(which: int, bound: int) -> None:
        hard = resource.getrlimit(which)[1]
        bound = bound if hard == resource.RLIM_INFINITY else min(bound, hard)
        resource.setrlimit(which, (bound, bound))

    limit(resource.RLIMIT_CORE, 0)
    limit(resource.RLIMIT_FSIZE, 0)
    nodes = landlock.nodes_of(uses)
    limit(resource.RLIMIT_NOFILE, MAX_FILES_OF_DRIVERS if nodes else MAX_FILES)
    opens_devices = bool(nodes) and reading != READS_ALL
    is_alone = threads == 1 and not any(uses)
    if is_alone:
        limit(resource.RLIMIT_NPROC, 0)
    data_bytes = private_bytes()
    if data_bytes is not None:  # its agent may lower and raise that from outside
        limit(resource.RLIMIT_DATA, data_bytes + memory_bytes + OWN_BYTES)
        if not any(uses):  # a driver reserves addresses for all memory that there is
            reserved_bytes = _told_bytes("VmSize") or 0
            limit(resource.RLIMIT_AS, reserved_bytes + memory_bytes + ADDRESSES_BYTES)
        _keep_little(memory_bytes)
    refused = seccomp.refuse(os.getpid(), opens_devices=opens_devices, has_driver=any(uses))
    bounds = {"signals": refused}
    is_filtered = bounds["signals"] == seccomp.IN_FORCE
    bounds["files"] = CHANGES_NONE if is_filtered else GROWS_NONE
    if is_filtered and opens_devices:
        bounds["files"] = CHANGES_DEVICES
    bounds["processes"] = _WHY_NOT[is_alone] if _can_fork() else "none started"
    if data_bytes is None:
        return bounds | {"memory": "not limited: only Linux counts a process's own memory"}
    return bounds | {"memory": "limited"}


def _keep_little(memory_bytes: int) -> None:
    """Have glibc give back at once what is large beside `memory_bytes`.

    In its heap it would leave holes, which count as taken: a worker of 59 MiB held 71 MiB of them
    after one training, and had no room for the next.
    """
    with contextlib.suppress(OSError, AttributeError):  # not glibc
        mallopt = ctypes.CDLL(None).mallopt
        most = min(max(memory_bytes // HEAP_PARTS, LEAST_MAPPED_BYTES), MOST_MAPPED_BYTES)
        mallopt(M_MMAP_THRESHOLD, most)
        mallopt(M_TRIM_THRESHOLD, 2 * most)


def _stand_in(folder: int | str) -> None:
    """Not at the start: oneMKL ends the process when it is loaded in a folder that is gone."""
    os.chdir(folder)
    if isinstance(folder, int):
        os.close(folder)
    else:
        with contextlib.suppress(OSError):  # Windows keeps it until the process ends
            os.rmdir(folder)


def _can_fork() -> bool:
    """Tried, because whom the limit on processes binds depends on more than the user."""
    try:
        child = os.fork()
    except OSError:
        return False
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
    return True


def private_bytes() -> int | None:
    """Private writable memory of this process, as RLIMIT_DATA counts it."""
    return _told_bytes("VmData")


def _told_bytes(what: str) -> int | None:
    """What Linux tells of this process's memory; None elsewhere."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return None
    return next(
        (int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{what}:")), None
    )


def _die_with(fd: int) -> None:
    """End this process when the other end of `fd` is gone, whatever the main thread does."""
    import select

    if not hasattr(select, "poll"):
        return  # Windows: the main loop notices at its next read
    poller = select.poll()
    poller.register(fd, 0)  # hang-ups are always reported
    poller.poll()
    os._exit(0)
