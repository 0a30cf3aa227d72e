"""Start a worker process and talk with it: the agent's end of the pipe and of the two shared
memories.

The worker gets three descriptors (pipe, inbound, outbound) and nothing else of the agent: no
environment, no open file, no terminal, no folder. It dies with the agent, however the agent dies.
"""

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

from potluck_agent.worker.arena import Arena
from potluck_agent.worker.forked_worker import ForkedWorker
from potluck_agent.worker.process import EXIT_MEMORY
from potluck_wire.limits import clip
from potluck_wire.messages import Channel, Configure, FailureCause, Limit, Message, TryProcessor
from potluck_wire.stream import StreamReader, pack

# what a worker runs
PROGRAM: tuple[str, ...] = (str(Path(__file__).resolve().with_name("__main__.py")),)

# for which processor torch and oneDNN choose their kernels
KERNELS = ("ATEN_CPU_CAPABILITY", "ONEDNN_MAX_CPU_ISA")
# What a library needs to be found at all, or obeys; nothing that could carry a secret.
VISIBLE = ("CUDA_VISIBLE_DEVICES", "ZE_AFFINITY_MASK")  # which accelerators a driver shows
KEPT_ENVIRONMENT = (
    *("LD_LIBRARY_PATH", "PATH", "SYSTEMROOT", "TEMP", "TMPDIR"),
    *KERNELS,
    *VISIBLE,
)
# Threads that wait for each other sleep: what else the device does shall not wait for them. GNU's
# first look a few microseconds whether the others come, as they do where the cores are free.
WAITING = {"OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": "1000"}
# a process that closed its pipe by ending is gone within this; its own last word is the true reason
ENDING_S = 0.5
SOON_S = 0.02  # mostly it is gone by then; nobody else's work waits longer
# the folder of the program is no place to import from; Python 3.10 is told so by the program
SAFE_PATH = ("-P",) if sys.version_info >= (3, 11) else ()
READ_BYTES = 1 << 16  # memory for a read of 1 MiB costs more than the read
LAST_WORDS_BYTES = 4096  # of what the worker wrote to its standard error
READS_AT_ONCE = 16  # of so many bytes each
READS_AT_ITS_END = 512  # twice what the largest pipe holds for an ordinary user
# One arena, so that its memory can be counted exactly. What tensors gave back stays for the next
# ones, as much as glibc itself comes to at most by its own rule: to fetch it anew, page by page,
# took a transformer 2 to 4 % of every step. MKL gives back what a product packs its operands into:
# it kept up to 39 MiB of the largest so far, and was no faster.
MALLOC = {
    "MALLOC_ARENA_MAX": "1",
    "MALLOC_MMAP_THRESHOLD_": str(32 * 1024**2),
    "MALLOC_TRIM_THRESHOLD_": str(64 * 1024**2),
    "MKL_DISABLE_FAST_MM": "1",
}

# a module that its libraries want: the package is mostly called the same
_MISSING = re.compile(r"(?:ModuleNotFound|Import)Error: No module named '([A-Za-z0-9_]+)")

Buffers = Sequence[bytes | bytearray | memoryview]


class WorkerLink:
    """A running worker. Nothing here blocks: poll `socket` for reading, and for writing while
    `wants_write`.

    `inbound` is written by the agent (values that arrived), `outbound` by the worker (values to be
    sent).
    """

    def __init__(
        self,
        process: subprocess.Popen[bytes] | ForkedWorker,
        pipe: socket.socket,
        inbound: Arena,
        outbound: Arena,
        configure: Configure | None = None,
    ) -> None:
        self._configure = configure
        self.socket = pipe
        self.inbound = inbound
        self.outbound = outbound
        self.pid = process.pid
        self.closed = False  # the worker's end of the pipe is gone
        self._process = process
        self._reader = StreamReader(Channel.WORKER)
        self._unsent = bytearray()
        self._killed = False
        self._last_words = b""
        self._kernel_kills = _kernel_kills()

    @property
    def wants_write(self) -> bool:
        """Whether messages wait for room in the pipe."""
        return bool(self._unsent) and not self.closed

    @property
    def unsent_bytes(self) -> int:
        """How much waits for room in the pipe."""
        return len(self._unsent)

    @property
    def has_unread(self) -> bool:
        """Whether it was sent what it has not read yet; Linux knows it."""
        if sys.platform != "linux" or self.closed:
            return False
        import fcntl
        import termios

        n_unread = fcntl.ioctl(self.socket.fileno(), termios.TIOCOUTQ, bytes(4))
        return any(n_unread)

    def limit(self, memory_bytes: int) -> None:
        """Tensors may take so much from now on, of what it was started with; once it is ready.

        OSError where the system does not let it be set. Where the system limits no worker, nothing
        happens.
        """
        if self._configure is None:
            return
        if self._configure.device:  # the accelerator's memory, which torch counts
            self.hold(Limit(memory_bytes=memory_bytes))
        elif sys.platform == "linux":
            import resource

            most_bytes = resource.prlimit(self.pid, resource.RLIMIT_DATA)[1]
            if most_bytes != resource.RLIM_INFINITY:
                less_bytes = max(0, self._configure.memory_bytes - memory_bytes)
                limits = (max(0, most_bytes - less_bytes), most_bytes)
                resource.prlimit(self.pid, resource.RLIMIT_DATA, limits)

    def send(self, message: Message, buffers: Buffers = ()) -> None:
        """Send, or keep until `flush` where the pipe is full. To a worker that is gone: nothing."""
        self.hold(message, buffers)
        self.flush()

    def hold(self, message: Message, buffers: Buffers = ()) -> None:
        """Keep until `flush`: the worker wakes once for several."""
        self._unsent += pack(message, buffers)

    def flush(self) -> None:
        """Write as much of what waits as the pipe takes."""
        try:
            while self.wants_write:
                with memoryview(self._unsent)[:READ_BYTES] as head:
                    sent = self.socket.send(head)
                del self._unsent[:sent]
        except BlockingIOError:
            pass
        except OSError:
            self.closed = True

    def receive(self) -> list[tuple[Message, tuple[bytes | memoryview, ...]]]:
        """The whole messages that have come; afterwards `closed` tells whether the worker is gone.

        A worker that breaks the protocol raises `potluck_wire.errors.WireError`; kill it.
        """
        messages = []
        try:
            data = self.socket.recv(READ_BYTES)
            self.closed = not data
            messages = self._reader.feed(data)
        except BlockingIOError:
            pass
        except OSError:
            self.closed = True
        return messages

    def kill(self) -> None:
        """End the worker at once and give everything back. Twice is fine."""
        if self._process.returncode is None and self._process.poll() is None:
            self._killed = True
        self._end()
        self.closed = True
        self.socket.close()
        self.inbound.close()
        self.outbound.close()
        if self._process.stderr is not None and not self._process.stderr.closed:
            self._process.stderr.close()

    def has_ended(self, within_s: float) -> bool:
        """Whether the process is gone; waits no longer than that."""
        try:
            self._process.wait(within_s)
        except subprocess.TimeoutExpired:
            return False
        return True

    def exit_reason(self, within_s: float = ENDING_S) -> tuple[str, str]:
        """Why the worker is gone: a `FailureCause` and a text for people.

        Ends it where it only closed the pipe, and goes on `within_s` seconds later: the pipe is
        closed some moments before the process ends.
        """
        goes_on = not self.has_ended(within_s)
        self._end()
        code = self._process.returncode or 0
        if self._killed:
            return FailureCause.CANCELLED, "the worker was stopped by its agent"
        if goes_on:  # so it was this agent that ended it
            return FailureCause.CRASHED, self._crash("closed its pipe and went on")
        if sys.platform != "win32" and code == -signal.SIGKILL:
            if _kernel_kills() > self._kernel_kills:
                return FailureCause.MEMORY, "the system ran out of memory and ended the worker"
            return FailureCause.CRASHED, "the worker was killed from outside"
        if code == EXIT_MEMORY:
            return FailureCause.MEMORY, "the worker ran out of its memory outside of any task"
        how = f"exit code {code}" if code >= 0 else signal.Signals(-code).name
        text = self._crash(how)
        return FailureCause.MEMORY if "bad_alloc" in text else FailureCause.CRASHED, text

    def _crash(self, how: str) -> str:
        """What it said last, and what to install where that is that it lacks a module."""
        words = self._last_words.decode(errors="replace").strip().splitlines()
        last = next(
            (line for line in words if line.startswith("Fatal")),
            words[-1] if words else "no last words",
        )
        if lacks := _MISSING.match(last):
            name = lacks[1]
            return clip(f"this device lacks {name}: pip install {name}, with the agent's Python")
        return clip(f"the worker crashed ({how}): {last}")

    def _end(self) -> None:
        if self._process.poll() is None:
            with contextlib.suppress(OSError):
                if sys.platform == "win32":
                    self._process.kill()
                else:
                    os.killpg(self.pid, signal.SIGKILL)
            # the system takes 0.1 s to give back a GiB, in which nobody else may wait; a fork
            # server waits for its own
            if not self.has_ended(SOON_S) and not isinstance(self._process, ForkedWorker):
                wait = threading.Thread(target=self._process.wait, name="potluck end", daemon=True)
                with contextlib.suppress(RuntimeError):  # no thread is left: it is reaped later
                    wait.start()
        self.listen(READS_AT_ITS_END)

    def listen(self, most_reads: int = READS_AT_ONCE) -> None:
        """Keep the end of what the worker wrote to its standard error (a crash's trace).

        Do so now and then. No more than `most_reads` times `LAST_WORDS_BYTES` are read: one that
        was taken over may write for ever.
        """
        stderr = self._process.stderr
        if stderr is None or stderr.closed or sys.platform == "win32":  # a pipe would block there
            return
        with contextlib.suppress(BlockingIOError):
            for _ in range(most_reads):
                if not (words := os.read(stderr.fileno(), LAST_WORDS_BYTES)):
                    return
                self._last_words = (self._last_words + words)[-LAST_WORDS_BYTES:]


def start(
    *,
    memory_bytes: int,
    threads: int = 1,
    slowdown: float = 1.0,
    inbound_bytes: int,
    outbound_bytes: int,
    backends: Sequence[str] = (),
    provider: str = "",
    device: str = "",
    fork_server: Path | None = None,
) -> WorkerLink:
    """A new worker, configured; it answers `WorkerReady` once its libraries are loaded (seconds).

    Where a `fork_server` listens there, and has loaded the same ones, it answers at once. One that
    is stuck costs seconds, and the worker is a process of its own.

    Call it from a thread that lives as long as the worker shall: on Linux the worker ends with that
    thread.
    """
    configure = Configure(
        memory_bytes=memory_bytes,
        threads=threads,
        slowdown=slowdown,
        inbound_bytes=inbound_bytes,
        outbound_bytes=outbound_bytes,
        backends=tuple(backends),
        provider=provider,
        device=device,
    )
    uses = (provider, device)
    sizes = inbound_bytes, outbound_bytes
    # the server has loaded all backends that are installed, and no accelerator's
    if fork_server is not None and not backends and not any(uses):
        with contextlib.suppress(OSError):
            return _started(configure, threads, uses, *sizes, fork_server)
    return _started(configure, threads, uses, *sizes)


def start_trial(message: TryProcessor) -> WorkerLink:
    """A throw-away worker that answers `ProcessorTried` and ends; start it as any other one."""
    uses = (message.provider, message.device)
    return _started(message, max(message.threads, default=1), uses, 0, 0)


def _started(
    first: Message,
    threads: int,
    uses: tuple[str, str],
    inbound_bytes: int,
    outbound_bytes: int,
    fork_server: Path | None = None,
) -> WorkerLink:
    """A process that is told this first; `uses`: onnxruntime's accelerator, and torch's.

    OSError where the `fork_server` gives none; what it got is then no other worker's.
    """
    ours, theirs = socket.socketpair()
    inbound, outbound = Arena(inbound_bytes), Arena(outbound_bytes)
    try:
        process = (
            _new_process(threads, uses, theirs, inbound, outbound)
            if fork_server is None
            else _forked(fork_server, threads, theirs, inbound, outbound)
        )
        if process.stderr is not None and sys.platform != "win32":
            os.set_blocking(process.stderr.fileno(), False)
    except BaseException:
        for end in (ours, inbound, outbound):
            end.close()
        raise
    finally:
        theirs.close()
    ours.setblocking(False)
    configure = first if isinstance(first, Configure) else None
    link = WorkerLink(process, ours, inbound, outbound, configure)
    link.send(first)
    return link


def _forked(
    path: Path, threads: int, theirs: socket.socket, inbound: Arena, outbound: Arena
) -> ForkedWorker:
    """OSError where nobody forks workers, or not such a one."""
    if sys.platform != "linux":
        raise OSError("only Linux has fork servers")
    request = {
        "agent": os.getpid(),
        "command": worker_command(),
        "environment": worker_environment(threads),
        "affinity": sorted(os.sched_getaffinity(0)),
    }
    return ForkedWorker(path, request, [theirs.fileno(), *inbound.fds, *outbound.fds])


def _new_process(
    threads: int, uses: tuple[str, str], theirs: socket.socket, inbound: Arena, outbound: Arena
) -> "subprocess.Popen[bytes]":
    fds = () if sys.platform == "win32" else (theirs.fileno(), *inbound.fds, *outbound.fds)
    pipe = "stdin" if sys.platform == "win32" else str(theirs.fileno())
    process = subprocess.Popen(
        worker_command(pipe, inbound.handle, outbound.handle, *uses),
        env=worker_environment(threads),
        # it moves into a folder that does not exist any more once its libraries are loaded
        cwd=Path(PROGRAM[0]).anchor,
        pass_fds=fds,
        stdin=subprocess.PIPE if sys.platform == "win32" else subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL if sys.platform == "win32" else subprocess.PIPE,
        start_new_session=True,
    )
    if sys.platform == "win32":
        _hand_over(process, theirs)
    return process


def worker_command(*arguments: str) -> list[str]:
    """What starts a worker, or a fork server."""
    return [sys.executable, "-E", *SAFE_PATH, "-B", *PROGRAM, *arguments]


def worker_environment(threads: int) -> dict[str, str]:
    """The few variables that a worker gets."""
    kept = {name: os.environ[name] for name in KEPT_ENVIRONMENT if name in os.environ}
    counts = {
        name: str(threads)
        for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
    }
    return kept | counts | WAITING | MALLOC | {"LC_ALL": "C.UTF-8"}


def _hand_over(process: subprocess.Popen[bytes], pipe: socket.socket) -> None:
    """Windows: a socket is inherited by writing its description to the child's standard input."""
    if sys.platform == "win32" and process.stdin is not None:
        process.stdin.write(pipe.share(process.pid))
        process.stdin.close()


def _kernel_kills() -> int:
    """How often this system ended a process for want of memory, since it started (Linux; else
    0).
    """
    try:
        lines = Path("/proc/vmstat").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("oom_kill ")), 0)
