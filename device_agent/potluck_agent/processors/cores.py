"""The cores of this machine, as its system describes them, and the counts of threads that may be
the fastest on them.
"""

import math
import os
import platform
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

LIMIT = "OMP_NUM_THREADS"
MAX_THREADS = 256  # as `--threads` takes


@dataclass(frozen=True, slots=True, kw_only=True)
class Cores:
    """`logical`: threads that the processor runs at once; `allowed`: those that this process may
    use. `physical` counts no core twice, and `performance` leaves out the slower kind of cores;
    each is of the allowed ones.
    """

    logical: int
    allowed: int
    physical: int
    performance: int


def cores(root: Path = Path("/"), usable: Sequence[int] | None = None) -> Cores:
    """Those of this machine.

    Parameters
    ----------
    root
        Where /sys is.
    usable
        The numbers of the processors that this process may run on; by default asked.
    """
    logical = os.cpu_count() or 1
    numbers = tuple(usable) if usable is not None else _usable(logical)
    core_of = {number: _core(root, number) for number in numbers}
    n_cores = len({core_of[number] for number in numbers})
    if not any((root / "sys/devices/system/cpu").glob("cpu*/topology")):
        n_cores = psutil.cpu_count(logical=False) or n_cores
    allowed = max(1, min(len(numbers), _quota(root) or len(numbers)))
    return Cores(
        logical=logical,
        allowed=allowed,
        physical=min(allowed, n_cores),
        performance=min(allowed, n_cores, len({core_of[n] for n in _fast(root, numbers)})),
    )


def candidates(found: Cores, limit: int | None = None) -> tuple[int, ...]:
    """Counts of threads to try, the smallest first.

    >>> candidates(Cores(logical=20, allowed=20, physical=14, performance=6))
    (1, 6, 14, 20)
    >>> candidates(Cores(logical=8, allowed=8, physical=4, performance=4), limit=2)
    (1, 2)

    Parameters
    ----------
    found
        The cores there are.
    limit
        At most so many threads.
    """
    max_threads = min(found.allowed, MAX_THREADS, limit or MAX_THREADS)
    counts = (1, found.performance, found.physical, found.allowed)
    return tuple(sorted({min(max_threads, count) for count in counts}))


def limit_of(environment: Mapping[str, str]) -> int | None:
    """The most threads that `OMP_NUM_THREADS` permits: its first number, as OpenMP reads it.

    Parameters
    ----------
    environment
        Of this process.
    """
    first = environment.get(LIMIT, "").partition(",")[0].strip()
    return int(first) if first.isascii() and first.isdecimal() and int(first) > 0 else None


def cpu_name(root: Path = Path("/")) -> str:
    """What the system calls the processor.

    Parameters
    ----------
    root
        Where /proc is.
    """
    with suppress(OSError):
        for line in (root / "proc/cpuinfo").read_text(errors="replace").splitlines():
            key, _, value = line.partition(":")
            if key.strip() == "model name" and value.strip():
                return value.strip()
    with suppress(OSError):
        model = (root / "proc/device-tree/model").read_text(errors="replace")
        return model.strip("\0 \n")
    return platform.processor() or platform.machine() or "CPU"


def _usable(logical: int) -> tuple[int, ...]:
    if sys.platform == "linux":
        return tuple(sorted(os.sched_getaffinity(0)))
    return tuple(range(logical))


def _core(root: Path, number: int) -> str:
    """The same text for all processors of one core."""
    topology = root / f"sys/devices/system/cpu/cpu{number}/topology"
    names = ("core_cpus_list", "thread_siblings_list")  # the second: older kernels
    return next(filter(None, (_text(topology / name) for name in names)), str(number))


def _fast(root: Path, numbers: Sequence[int]) -> list[int]:
    """Of these processors, those on the fastest kind of cores: Intel says which, Arm how strong
    each is.
    """
    named = _ranges(_text(root / "sys/devices/cpu_core/cpus"))
    if found := [number for number in numbers if number in named]:
        return found
    texts = [_text(root / f"sys/devices/system/cpu/cpu{n}/cpu_capacity") for n in numbers]
    strengths = [int(text) if text.isdecimal() else 0 for text in texts]
    return [
        n for n, strength in zip(numbers, strengths, strict=True) if _is_near(strength, strengths)
    ]


def _is_near(strength: int, strengths: Sequence[int]) -> bool:
    """Whether it is of the fastest kind; a slower kind has at most half of its strength."""
    return 2 * strength > max(strengths) or max(strengths) == 0


def _quota(root: Path) -> int | None:
    """How many processors' time this process's control group may take; None without a bound."""
    quota, _, period = _text(root / "sys/fs/cgroup/cpu.max").partition(" ")
    if quota.isdecimal() and period.isdecimal() and int(period):
        return max(1, math.ceil(int(quota) / int(period)))
    return None


def _ranges(text: str) -> set[int]:
    """The numbers in a list of the kernel, as 0-3,8."""
    numbers: set[int] = set()
    with suppress(ValueError):
        for part in filter(None, text.split(",")):
            first, _, last = part.partition("-")
            numbers |= set(range(int(first), int(last or first) + 1))
    return numbers


def _text(path: Path) -> str:
    with suppress(OSError, UnicodeDecodeError):
        return path.read_text().strip()
    return ""
