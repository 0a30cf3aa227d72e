"""What the kernel refuses a worker that was taken over: to change a file, the system or its own
limits, to touch another process, and children, programs and sockets of its own.

A worker has the same user as its agent, root perhaps, so the kernel would let it do all that. A
filter of system calls (seccomp, Linux) refuses it with EPERM, for every thread and for good. It
looks at numbers alone, so calls whose arguments lie in memory are refused whole.
"""

import ctypes
import os
import platform
import struct
import sys
from collections.abc import Iterable, Sequence

from potluck_agent.worker.system_calls import MACHINES, CpuArchitecture

IN_FORCE = "refused, but to itself"
ABSENT = "not refused: only Linux filters system calls"


# x86_64: numbers of another convention, which would pass by a list of the usual ones
_X32 = 0x40000000


def _names(text: str) -> tuple[str, ...]:
    return tuple(text.split())


# What would change a file or a folder, or its name, owner, rights, times or attributes.
FILES = _names(
    """truncate ftruncate fallocate creat rename renameat renameat2 link linkat symlink symlinkat
    unlink unlinkat mkdir mkdirat rmdir mknod mknodat chmod fchmod fchmodat fchmodat2 chown fchown
    lchown fchownat utime utimes futimesat utimensat setxattr lsetxattr fsetxattr setxattrat
    removexattr lremovexattr fremovexattr removexattrat file_setattr open_by_handle_at"""
)
# What only root may do, and a worker that is run by root must not.
SYSTEM = _names(
    """mount umount2 pivot_root chroot unshare setns open_tree open_tree_attr move_mount fsopen
    fsconfig fsmount fspick mount_setattr swapon swapoff reboot kexec_load kexec_file_load
    init_module finit_module delete_module acct quotactl quotactl_fd sethostname setdomainname
    settimeofday clock_settime adjtimex clock_adjtime syslog bpf perf_event_open userfaultfd
    iopl ioperm add_key request_key keyctl"""
)
# Other processes: their memory, their signals, their place on the processor, what they share by a
# name or number and who uses which file; children, programs and sockets of its own.
PROCESSES = _names(
    """ptrace process_vm_readv process_vm_writev process_madvise process_mrelease pidfd_getfd
    pidfd_send_signal migrate_pages move_pages kcmp setpriority ioprio_set setsid setpgid fork
    vfork execve execveat socket socketpair sched_setparam sched_setscheduler sched_setattr
    shmget shmat shmctl semget semop semtimedop semctl msgget msgsnd msgrcv msgctl mq_open
    mq_unlink io_setup inotify_add_watch fanotify_init setrlimit"""
)
REFUSED = FILES + SYSTEM + PROCESSES
# Told that they are not there, so that callers ask a call whose arguments can be looked at.
ABSENT_CALLS = _names("clone3 openat2 io_uring_setup io_uring_enter io_uring_register")
# the process is the first argument
TO_ITSELF = ("kill", "tkill", "tgkill", "rt_sigqueueinfo", "rt_tgsigqueueinfo")
# the same; 0 is itself, too
OF_ITSELF = ("prlimit64", "sched_setaffinity")
# of these, a pointer to what is to be set; its own limits it may look at and not change
SETS = {"prlimit64": 2}
# call -> (which argument, values that are refused): who gets the signals of a socket, and which;
# the end with the agent
VALUES = {
    "fcntl": (1, (8, 10, 15)),  # F_SETOWN, F_SETSIG, F_SETOWN_EX
    "ioctl": (1, (0x8901, 0x8902)),  # FIOSETOWN, SIOCSPGRP
    "prctl": (0, (1,)),  # PR_SET_PDEATHSIG
}
# call -> (which argument, bits of which none may be set)
BITS = {"open": (1, 0x243), "openat": (2, 0x243)}  # O_WRONLY, O_RDWR, O_CREAT, O_TRUNC
_TO_WRITE = 0x3  # O_WRONLY, O_RDWR
# Memory that no limit counts: shared, and a stack's, which grows by itself. Drivers share theirs.
_GROWS, _SHARED = 0x100, 0x1  # MAP_GROWSDOWN, MAP_SHARED
_MAP_FLAGS = 3  # which argument of `mmap`
# All that a descriptor is told or asked: what waits in it, whether it is a terminal, blocks, or is
# handed on. By others a file is changed that was opened to be read. Drivers have their own.
IOCTLS = (0x541B, 0x5411, 0x5401, 0x5413, 0x5421, 0x5450, 0x5451)
_CLONE_THREAD = 0x10000

_LOAD = 0x20
_EQUAL = 0x15
_AT_LEAST = 0x35
_ANY_BIT = 0x45
_RETURN = 0x06
_ALLOW = 0x7FFF0000
_EPERM = 0x00050000 | 1
_ENOSYS = 0x00050000 | 38
# where they lie in what a filter is shown
_NUMBER = 0
_AUDIT = 4
_ARGUMENTS = 16
# without the last, older kernels slow all computing down
_SET_FILTER = 1
_EVERY_THREAD = 1
_KEEP_SPEED = 4

Step = tuple[int, int, int, int]  # code, jump if true, jump if false, operand


def refuse(pid: int, *, opens_devices: bool = False, has_driver: bool = False) -> str:
    """Have the kernel refuse all that, to this process of number `pid`; says what is in force.

    `opens_devices`: it may open files for writing, as far as `landlock` lets it, which are those of
    an accelerator. `has_driver`: that one's driver may share memory, and tell its files anything.
    """
    if not sys.platform.startswith("linux"):
        return ABSENT
    machine = MACHINES.get(platform.machine())
    if machine is None or sys.byteorder != "little" or struct.calcsize("P") != 8:
        return (
            f"not refused: no filter for a processor of the kind {platform.machine() or 'unknown'}"
        )
    steps = [
        struct.pack("=HBBI", *step) for step in program(machine, pid, opens_devices, has_driver)
    ]
    code = ctypes.create_string_buffer(b"".join(steps))
    handed = ctypes.create_string_buffer(struct.pack("HP", len(steps), ctypes.addressof(code)))
    libc = ctypes.CDLL(None, use_errno=True)
    for flags in (_EVERY_THREAD | _KEEP_SPEED, _EVERY_THREAD):
        if libc.syscall(machine.numbers["seccomp"], _SET_FILTER, flags, ctypes.byref(handed)) == 0:
            return IN_FORCE
    return (
        "not refused: this system takes no filter of system calls "
        f"({os.strerror(ctypes.get_errno())})"
    )


def program(
    machine: CpuArchitecture, pid: int, opens_devices: bool = False, has_driver: bool = False
) -> list[Step]:
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
    for names, answer in ((REFUSED, _EPERM), (ABSENT_CALLS, _ENOSYS)):
        for name in names:
            if name in numbers:  # where there is none, another one does it
                steps += _rule(numbers[name], [(_RETURN, 0, 0, answer)])
    thread = (_ANY_BIT, 1, 0, _CLONE_THREAD)
    steps += _rule(
        numbers["clone"], [_argument(0), thread, (_RETURN, 0, 0, _EPERM), (_RETURN, 0, 0, _ALLOW)]
    )
    for name in TO_ITSELF:
        steps += _rule(
            numbers[name], [_argument(0), *_unless_equal((pid,), _EPERM), (_RETURN, 0, 0, _ALLOW)]
        )
    for name in OF_ITSELF:
        own = [_argument(0), *_unless_equal((0, pid), _EPERM)]
        if name in SETS:
            for half in (0, 4):
                look = (_LOAD, 0, 0, _ARGUMENTS + 8 * SETS[name] + half)
                own += [look, *_unless_equal((0,), _EPERM)]
        steps += _rule(numbers[name], [*own, (_RETURN, 0, 0, _ALLOW)])
    ways_in = {name: (at, bits & ~_TO_WRITE) for name, (at, bits) in BITS.items()}
    refused = (ways_in if opens_devices else BITS) | {
        "mmap": (_MAP_FLAGS, _GROWS if has_driver else _GROWS | _SHARED)
    }
    for name, (index, bits) in refused.items():
        if name in numbers:
            ways = [_argument(index), (_ANY_BIT, 0, 1, bits), (_RETURN, 0, 0, _EPERM)]
            steps += _rule(numbers[name], [*ways, (_RETURN, 0, 0, _ALLOW)])
    if not has_driver:
        ways = [_argument(1), *_unless_equal(IOCTLS, _EPERM), (_RETURN, 0, 0, _ALLOW)]
        steps += _rule(numbers["ioctl"], ways)
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
