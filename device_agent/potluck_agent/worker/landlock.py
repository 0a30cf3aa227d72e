"""Which files a worker may touch at all, told to the kernel (Landlock, Linux): it writes none, and
reads none of the places where people and services keep theirs.

Before its libraries are loaded, since threads that are there already would be left out. What is in
force holds for good, and for whatever memory of other processes the system shows as files, too.
"""

import ctypes
import glob
import os
import stat
import struct
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

# Where files of people and services are, and what devices and processes show of themselves: of
# those below, only what the libraries need is read.
PRIVATE = ("home", "root", "var", "run", "tmp", "mnt", "media", "srv", "dev", "proc")
NEEDED = (
    *("/dev/zero", "/dev/random", "/dev/urandom"),
    *("/proc/self", "/proc/sys", "/proc/cpuinfo", "/proc/meminfo", "/proc/stat", "/proc/version"),
)
# The files of accelerators, as patterns: they are read and written.
NODES = {
    **dict.fromkeys(
        ("cuda", "tensorrt"), ("/dev/nvidia*", "/dev/nvhost-*", "/dev/nvmap", "/dev/dxg")
    ),
    "xpu": ("/dev/dri/renderD*",),
    "migraphx": ("/dev/kfd", "/dev/dri/renderD*"),
    "openvino": ("/dev/dri/renderD*", "/dev/accel/accel*"),
    "qnn": ("/dev/adsprpc*", "/dev/cdsp*", "/dev/fastrpc-*"),
}
# What a driver reads of the system beside them.
FACTS = {
    **dict.fromkeys(("cuda", "tensorrt"), ("/proc/driver/nvidia", "/proc/devices", "/proc/modules"))
}
# Its threads' names are written there, and CUDA computes only where it may write them.
OWN_THREADS = "/proc/self/task"
# one number everywhere
_CREATE = 444
_ADD = 445
_RESTRICT = 446
_VERSION, _BENEATH = 1, 1
_EXECUTE = 1 << 0
_WRITE = 1 << 1
_READ = 1 << 2
_LIST = 1 << 3
_EMPTY = 1 << 14  # a file that is written
_COMMAND = 1 << 15  # a device, by `ioctl`
# How many kinds of access each version of it knows, the first ones alike.
_KINDS = {1: 13, 2: 14, 3: 15, 4: 15}
_KINDS_NOW = 16
_O_PATH = getattr(os, "O_PATH", 0)


def nodes_of(uses: Sequence[str]) -> list[str]:
    """The files of these accelerators that are here; `cuda:1` is one of the kind `cuda`."""
    patterns = {pattern for used in uses for pattern in NODES.get(_kind(used), ())}
    return sorted({path for pattern in patterns for path in glob.glob(pattern)})


def facts_of(uses: Sequence[str]) -> list[str]:
    """What the drivers of these accelerators read of the system beside their own files."""
    return _existing({path for used in uses for path in FACTS.get(_kind(used), ())})


def _kind(used: str) -> str:
    return used.partition(":")[0]


def restrict(nodes: Sequence[str] = (), facts: Sequence[str] = ()) -> bool:
    """Have the kernel refuse all other files, to this thread and those that it starts.

    `nodes` may be written, too, and `facts` be read; with nodes, the names of its own threads may
    be written.
    """
    if not sys.platform.startswith("linux"):
        return False
    libc = ctypes.CDLL(None, use_errno=True)
    version = libc.syscall(_CREATE, None, 0, _VERSION)
    if version < 1:
        return False
    known = (1 << _KINDS.get(version, _KINDS_NOW)) - 1
    rules = libc.syscall(_CREATE, struct.pack("=Q", known), 8, 0)
    if rules < 0:
        return False
    try:
        for path in (*readable(), *facts):
            _permit(libc, rules, path, _READ | _LIST | _EXECUTE)
        for path in (os.devnull, *nodes):
            _permit(libc, rules, path, (_READ | _WRITE | _COMMAND) & known)
        if nodes:
            _permit(libc, rules, OWN_THREADS, (_READ | _WRITE | _EMPTY) & known)
        return bool(libc.syscall(_RESTRICT, rules, 0) == 0)
    finally:
        os.close(rules)


def readable() -> list[str]:
    """Folders and files that may be read, all that is in them too."""
    system = [entry.path for entry in os.scandir("/") if entry.name not in PRIVATE]
    own = (sys.prefix, sys.base_prefix, sys.exec_prefix, *filter(None, sys.path))
    searched = os.environ.get("LD_LIBRARY_PATH", "").split(":")
    source = str(Path(__file__).resolve().parents[2])
    return [*system, *_existing((*NEEDED, *own, *filter(None, searched), source))]


def _existing(paths: Iterable[str]) -> list[str]:
    """Not the folder of the moment, and nothing that would permit all."""
    return [path for path in paths if os.path.isabs(path) and os.path.exists(path) and path != "/"]


def _permit(libc: ctypes.CDLL, rules: int, path: str, access: int) -> None:
    try:
        handle = os.open(path, _O_PATH)
    except OSError:
        return
    try:
        if not stat.S_ISDIR(os.fstat(handle).st_mode):
            access &= ~_LIST
        libc.syscall(_ADD, rules, _BENEATH, struct.pack("=Qi", access, handle), 0)
    finally:
        os.close(handle)
