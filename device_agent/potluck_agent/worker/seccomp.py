"""What the kernel refuses a worker that was taken over: signals to its agent, its memory, and
children of its own.

A worker has the same user as its agent, so the kernel would let it stop or end the agent. A filter
of system calls (seccomp, Linux) refuses that with EPERM, for every thread and for good. It looks at
numbers alone, so calls whose arguments lie in memory are refused whole.
"""

import ctypes
import os
import platform
import struct
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

ABSENT = "not refused: only Linux filters system calls"


@dataclass(frozen=True, slots=True)
class Machine:
    """An architecture: its number in the kernel's audit, and its system calls."""

    audit: int
    numbers: dict[str, int]


# Newer calls have one number everywhere.
_SHARED = {"pidfd_send_signal": 424, "clone3": 435, "pidfd_getfd": 438, "process_madvise": 440}
MACHINES = {
    "x86_64": Machine(
        0xC000003E,
        _SHARED
        | {
            "ioctl": 16,
            "clone": 56,
            "fork": 57,
            "vfork": 58,
            "kill": 62,
            "fcntl": 72,
            "ptrace": 101,
            "setpgid": 109,
            "setsid": 112,
            "rt_sigqueueinfo": 129,
            "prctl": 157,
            "tkill": 200,
            "tgkill": 234,
            "rt_tgsigqueueinfo": 297,
            "prlimit64": 302,
            "process_vm_readv": 310,
            "process_vm_writev": 311,
            "seccomp": 317,
        },
    ),
    "aarch64": Machine(
        0xC00000B7,
        _SHARED
        | {
            "fcntl": 25,
            "ioctl": 29,
            "ptrace": 117,
            "kill": 129,
            "tkill": 130,
            "tgkill": 131,
            "rt_sigqueueinfo": 138,
            "setpgid": 154,
            "setsid": 157,
            "prctl": 167,
            "clone": 220,
            "rt_tgsigqueueinfo": 240,
            "prlimit64": 261,
            "process_vm_readv": 270,
            "process_vm_writev": 271,
            "seccomp": 277,
        },
    ),
}
# x86_64: numbers of another convention, which would pass by a list of the usual ones
_X32 = 0x40000000

REFUSED = (
    *(
        "ptrace",
        "process_vm_readv",
        "process_vm_writev",
        "process_madvise",
        "pidfd_getfd",
        "pidfd_send_signal",
    ),
    *("setsid", "setpgid", "fork", "vfork"),
)
# the process is the first argument
TO_ITSELF = ("kill", "tkill", "tgkill", "rt_sigqueueinfo", "rt_tgsigqueueinfo")
# call -> (which argument, values that are refused): who gets the signals of a socket, and which;
# the end with the agent
VALUES = {
    "fcntl": (1, (8, 10, 15)),  # F_SETOWN, F_SETSIG, F_SETOWN_EX
    "ioctl": (1, (0x8901, 0x8902)),  # FIOSETOWN, SIOCSPGRP
    "prctl": (0, (1,)),  # PR_SET_PDEATHSIG
}
_CLONE_THREAD = 0x10000

_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _EPERM, _ENOSYS = 0x7FFF0000, 0x00050000 | 1, 0x00050000 | 38
_NUMBER, _AUDIT, _ARGUMENTS = 0, 4, 16  # where they lie in what a filter is shown
# without the last, older kernels slow all computing down
_SET_FILTER, _EVERY_THREAD, _KEEP_SPEED = 1, 1, 4

Step = tuple[int, int, int, int]  # code, jump if true, jump if false, operand


def refuse(pid: int) -> str:
    """Have the kernel refuse all that, to this process of number `pid`; says what is in force."""
    if not sys.platform.startswith("linux"):
        return ABSENT
    machine = MACHINES.get(platform.machine())
    if machine is None or sys.byteorder != "little" or struct.calcsize("P") != 8:
        return (
            f"not refused: no filter for a processor of the kind {platform.machine() or 'unknown'}"
        )
    steps = [struct.pack("=HBBI", *step) for step in program(machine, pid)]
    code = ctypes.create_string_buffer(b"".join(steps))
    handed = ctypes.create_string_buffer(struct.pack("HP", len(steps), ctypes.addressof(code)))
    libc = ctypes.CDLL(None, use_errno=True)
    for flags in (_EVERY_THREAD | _KEEP_SPEED, _EVERY_THREAD):
        if libc.syscall(machine.numbers["seccomp"], _SET_FILTER, flags, ctypes.byref(handed)) == 0:
            return "refused, but to itself"
    return (
        "not refused: this system takes no filter of system calls "
        f"({os.strerror(ctypes.get_errno())})"
    )


def program(machine: Machine, pid: int) -> list[Step]:
    """The filter, as the kernel runs it before every call: the first rule for its number
    decides.
    """
    numbers = machine.numbers
    steps: list[Step] = [
        (_LOAD, 0, 0, _AUDIT),
        *_unless_equal((machine.audit,), _EPERM),
        (_LOAD, 0, 0, _NUMBER),
    ]
    steps += [(_AT_LEAST, 0, 1, _X32), (_RETURN, 0, 0, _EPERM)]
    for name in REFUSED:
        if name in numbers:  # where there is none, `clone` does it
            steps += _rule(numbers[name], [(_RETURN, 0, 0, _EPERM)])
    # whoever wants a thread asks `clone` then
    steps += _rule(numbers["clone3"], [(_RETURN, 0, 0, _ENOSYS)])
    thread = (_ANY_BIT, 1, 0, _CLONE_THREAD)
    steps += _rule(
        numbers["clone"], [_argument(0), thread, (_RETURN, 0, 0, _EPERM), (_RETURN, 0, 0, _ALLOW)]
    )
    for name in TO_ITSELF:
        steps += _rule(
            numbers[name], [_argument(0), *_unless_equal((pid,), _EPERM), (_RETURN, 0, 0, _ALLOW)]
        )
    steps += _rule(
        numbers["prlimit64"],
        [_argument(0), *_unless_equal((0, pid), _EPERM), (_RETURN, 0, 0, _ALLOW)],
    )
    for name, (index, values) in VALUES.items():
        steps += _rule(
            numbers[name],
            [_argument(index), *_unless_equal(values, _ALLOW), (_RETURN, 0, 0, _EPERM)],
        )
    return [*steps, (_RETURN, 0, 0, _ALLOW)]


def _rule(number: int, steps: Sequence[Step]) -> list[Step]:
    """For calls of this number; each way through the steps returns."""
    return [(_EQUAL, 0, len(steps), number), *steps]


def _argument(index: int) -> Step:
    """Look at an argument, as far as the kernel itself does: numbers of processes and commands have
    32 bits.
    """
    return (_LOAD, 0, 0, _ARGUMENTS + 8 * index)


def _unless_equal(values: Iterable[int], answer: int) -> list[Step]:
    """Return the answer, unless what was looked at is one of these."""
    known = list(values)
    return [
        *((_EQUAL, len(known) - i, 0, value) for i, value in enumerate(known)),
        (_RETURN, 0, 0, answer),
    ]
