"""`potluck agent`: starts the agent, and talks to one that runs."""

import os
import shutil
import sys
import threading
import time
from argparse import Namespace
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from potluck_agent import control_files, fault_log, keys, lease_file
from potluck_agent.cli import availability, options
from potluck_agent.cli.descriptors import check_descriptors
from potluck_agent.cli.machine_facts import meter_and_facts
from potluck_agent.cli.options import ARENA_BYTES, Options
from potluck_agent.errors import AgentError

if TYPE_CHECKING:
    from potluck_agent.processors.choice import Choice

MIN_ARENA_BYTES = 64 * 1024**2
NETWORK_LOOK_S = 0.5
DEVICE_SHARE_FRAC = 0.9  # of an accelerator's free memory; the rest is for its kernels
NO_THREAD = "can't start new thread"  # as Python says it, by a RuntimeError


def run(given: Namespace) -> int:
    """Carry out a command line; returns the exit code. 1: it could not be done, and standard error
    says why.
    """
    try:
        if given.command == "replay":
            return _replay(given.file)
        if given.command == "status":
            from potluck_agent.cli import status

            return status.run(
                options.state_dir(given), given.as_json, lambda line: _print_line(sys.stdout, line)
            )
        if given.command == "relay":
            from potluck_agent.cli import relay

            return relay.run(given, lambda line: _print_line(sys.stdout, line))
        if given.command == "install":
            from potluck_agent.cli import arguments, install

            place = install.this_machine(lambda line: _print_line(sys.stdout, line))
            return install.run(given, arguments.start_words(sys.argv[1:]), place)
        directory = keys.open_state_dir(options.state_dir(given))
        if given.command == "start":
            return _start(options.start_options(given, os.getppid()), directory)
        from potluck_agent.cli import trust

        return trust.run(given, directory, lambda line: _print_line(sys.stdout, line))
    except AgentError as error:
        _print_line(sys.stderr, f"potluck agent: {error}")
        return 1
    except OSError as error:
        if error.filename is None:
            raise
        _print_line(
            sys.stderr, f"potluck agent: {error.filename}: {error.strerror}. Is it this user's own?"
        )
        return 1
    except (MemoryError, RuntimeError) as error:
        if type(error) is RuntimeError and str(error) != NO_THREAD:
            raise
        _print_line(
            sys.stderr,
            "potluck agent: the system gives this process no more memory or threads. Raise its "
            "limits (ulimit -v, ulimit -u), or end something else, and start it again.",
        )
        return 1
    except KeyboardInterrupt:
        return 130


def _start(chosen: Options, directory: Path) -> int:
    """Run the agent until it is told to stop, and keep a log of it."""
    from potluck_agent.log_file import FILE, LogFile

    control_files.refuse_second(directory)  # the log is that one's
    path = (chosen.log_file or directory / FILE).absolute()
    log = LogFile(path, chosen.log_level, lambda text: _print_line(sys.stderr, text))
    try:
        return _run(chosen, directory, log)
    except BaseException as error:
        log.error("the end", f"ended by {type(error).__name__}: {error}")
        raise
    finally:
        log.close()


def _run(chosen: Options, directory: Path, log: Any) -> int:
    from potluck_agent.net.event_log import EventLog
    from potluck_wire.pairing import new_code

    note = (
        (lambda text: _print_line(sys.stderr, text))
        if chosen.as_json
        else (lambda text: _print_line(sys.stdout, text))
    )
    availability.check(chosen.rules, chosen.system_root)
    identity, journal = keys.identity(directory), EventLog(log, note)
    _await_network(chosen.await_network_s)
    net = _event_loop(chosen, directory, identity, note, journal, check_descriptors())
    announcement: Any = None
    try:
        claim = control_files.claim(
            directory, {"name": chosen.name, "address": chosen.bind, "port": net.port}
        )
    except AgentError:
        net.close()
        raise
    tunnel = _tunnel(chosen, net, journal)
    try:
        code = new_code() if chosen.pair else ""
        if code:
            net.pairing.open(code, time.monotonic())
        presence = availability.of(net, chosen)
        presence.handle_signals()
        status = _status(chosen, identity, net, log.path, tunnel)
        journal.began(status())
        _announce_ready(chosen, status, identity.public, net.port, code)
        if chosen.mdns:
            announcement = _announced(chosen, net.port, identity.public, journal.note)
        net.run(_each_tick(chosen, net, presence, journal, directory, status))
        journal.ended()
    finally:
        if tunnel is not None:
            tunnel.close()
        net.close()
        claim.release()
        if announcement is not None:
            announcement.close()
        _remove_scratch(chosen)
    return 0


def _event_loop(
    chosen: Options,
    directory: Path,
    identity: keys.Identity,
    note: Callable[[str], None],
    journal: Any,
    n_descriptors: int,
) -> Any:
    """All sockets and the core, for a worker on the processors that are fastest here."""
    from potluck_agent.net.descriptor_shares import most_links, most_strangers
    from potluck_agent.net.event_loop import EventLoop

    meter, facts = meter_and_facts(chosen)
    computes = _processors(chosen, note)
    facts |= {"threads": computes.threads, "processors": list(computes.rows)}
    settings = _settings(chosen, identity, facts, computes.device_bytes, directory, note)
    settings = replace(settings, most_links=most_links(n_descriptors))
    return EventLoop(
        core=_core(chosen, settings, note),
        identity=identity,
        state_dir=directory,
        name=chosen.name,
        host=chosen.bind,
        port=chosen.port,
        trusted=chosen.trusted,
        start_worker=lambda: _start_worker(chosen, settings, computes),
        meter=meter,
        journal=journal,
        may_rest=settings.is_told_times or bool(computes.provider or computes.device),
        most_strangers=most_strangers(n_descriptors),
    )


def _announced(chosen: Options, port: int, key: str, note: Callable[[str], None]) -> Any:
    """The announcement by mDNS."""
    from potluck_agent.net.mdns import Announcement

    return Announcement(name=chosen.name, host=chosen.bind, port=port, key=key, note=note)


def _remove_scratch(chosen: Options) -> None:
    """Where whoever would have done it was killed."""
    if chosen.scratch is None or chosen.parent_pid is None or _is_alive(chosen.parent_pid):
        return
    shutil.rmtree(chosen.scratch, ignore_errors=True)


def _each_tick(
    chosen: Options,
    net: Any,
    presence: availability.Availability,
    journal: Any,
    directory: Path,
    status: Callable[[], dict[str, Any]],
) -> Callable[[], None]:
    """What else has to be looked at some times a second: whoever started this process, whoever asks
    what goes on, whether it may take part, and an emulated load.
    """
    parent = chosen.parent_pid
    # to another parent, once this one is gone
    is_handed_on = sys.platform != "win32" and os.getppid() == parent

    def look() -> None:
        if parent is not None and not (
            os.getppid() == parent if is_handed_on else _is_alive(parent)
        ):
            net.stopping = True
        presence.look(time.monotonic())
        try:
            if control_files.requested_status(directory):
                control_files.publish_status(directory, status())
            if chosen.is_emulated:
                net.load = control_files.load(directory)
            journal.note_state("status", "")
        except (AgentError, OSError) as error:  # of its directory: the disk is full, or gone
            journal.note_state("status", f"nobody can be told how it is: {error}")

    return look


def _is_alive(pid: int) -> bool:
    import psutil

    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False
    except psutil.Error:
        return True


def _settings(
    chosen: Options,
    identity: keys.Identity,
    facts: dict[str, Any],
    device_bytes: int,
    state: Path,
    note: Callable[[str], None],
) -> Any:
    from potluck_agent.core.outbox import Settings
    from potluck_agent.net.kept_files import kept_document

    peers = (*keys.load_peers(state), *chosen.trusted)
    memory_bytes = _memory_bytes(chosen, device_bytes)
    arena_bytes = max(MIN_ARENA_BYTES, min(ARENA_BYTES, memory_bytes))
    return Settings(
        name=chosen.name,
        key=identity.public,
        memory_bytes=memory_bytes,
        inbound_bytes=arena_bytes,
        outbound_bytes=arena_bytes,
        link_bytes_per_s=chosen.link_bytes_per_s,
        hang_s=chosen.hang_s,
        grace_s=chosen.grace_s,
        is_told_times=chosen.emulated or chosen.slowdown > 1.0,
        facts=facts,
        leases=lease_file.kept(state),
        kept_bytes=chosen.kept_bytes,
        kept=kept_document(state, [peer.key for peer in peers], chosen.kept_bytes, note),
    )


def _memory_bytes(chosen: Options, device_bytes: int = 0) -> int:
    """For tensors: what the owner has said, else half of the machine's. Where an accelerator holds
    them, with `device_bytes` free, no more than fits there.
    """
    if device_bytes:
        return min(chosen.memory_bytes or device_bytes, int(DEVICE_SHARE_FRAC * device_bytes))
    return chosen.memory_bytes if chosen.memory_bytes is not None else _half_of_memory()


def _processors(chosen: Options, note: Callable[[str], None]) -> "Choice":
    """What the worker computes on; trials may take some seconds, and `note` is told so."""
    from potluck_agent.processors.choice import OwnerChoice, choose
    from potluck_agent.processors.cores import cores, cpu_name
    from potluck_agent.processors.torch_choice import kinds_here
    from potluck_agent.processors.trial import attempt
    from potluck_agent.worker.arrays.backends import backends

    owner_choice = OwnerChoice(
        threads=chosen.threads,
        device=chosen.device,
        backends=chosen.backends,
        memory_bytes=_memory_bytes(chosen),
        is_emulated=chosen.is_emulated,
    )
    present = tuple(backends(chosen.backends))
    tells = iter(["trying which processors and how many threads are fastest; some seconds ..."])

    def attempt_noted(*trial: Any) -> Any:
        for text in tells:
            note(text)
        return attempt(*trial)

    return choose(
        owner_choice,
        cores(),
        cpu_name(),
        backends=present,
        environment=os.environ,
        attempt=attempt_noted,
        kinds=kinds_here(),
    )


def _core(chosen: Options, settings: Any, note: Callable[[str], None]) -> Any:
    """What decides, and is recorded if its owner wants that."""
    from potluck_agent.core.machine import Core

    if chosen.record is None:
        return Core(settings)
    from potluck_agent.core.recorded_core import RecordedCore
    from potluck_agent.core.recorded_entries import Entry, Full, pack
    from potluck_agent.record_file import RecordFile

    file, last = RecordFile(chosen.record, note), pack(Full())

    def write(entry: Entry) -> None:
        try:
            file.write(pack(entry), last)
        except (ValueError, OverflowError, TypeError) as error:
            file.stop(f"{type(entry).__name__} cannot be written: {error}")

    return RecordedCore(settings, write)


def _start_worker(chosen: Options, settings: Any, computes: "Choice") -> Any:
    from potluck_agent.worker.arrays.backends import NOTHING, backends
    from potluck_agent.worker.launch import start

    if not backends(chosen.backends):
        raise AgentError(NOTHING)
    return start(
        memory_bytes=settings.memory_bytes,
        threads=computes.threads,
        slowdown=chosen.slowdown,
        inbound_bytes=settings.inbound_bytes,
        outbound_bytes=settings.outbound_bytes,
        backends=chosen.backends,
        provider=computes.provider,
        device=computes.device,
        fork_server=chosen.fork_server,
    )


def _await_network(most_s: float) -> None:
    """Until this machine has an address but its own: after a start that takes a while, and who
    listens before is announced to nobody.
    """
    from potluck_agent.net.own_addresses import has_network

    until_s = time.monotonic() + most_s
    while time.monotonic() < until_s and not has_network():
        time.sleep(NETWORK_LOOK_S)


def _tunnel(chosen: Options, net: Any, journal: Any) -> Any:
    """Be reached through its relay from now on; None where it has none."""
    if chosen.relay is None:
        return None
    from potluck_agent.relay.tunnel import Tunnel

    return Tunnel(chosen.relay, chosen.bind, net.port, journal.note_state)


def _half_of_memory() -> int:
    import psutil

    return int(psutil.virtual_memory().total // 2)


def _status(
    chosen: Options, identity: keys.Identity, net: Any, log: Path, tunnel: Any
) -> Callable[[], dict[str, Any]]:
    """What is told of this agent whenever somebody asks."""
    from potluck_agent.cli.status import document
    from potluck_agent.worker.arrays.backends import backends

    started = time.strftime(fault_log.DATE)
    return lambda: document(
        name=chosen.name,
        key=identity.public,
        bind=chosen.bind,
        port=net.port,
        backends=backends(chosen.backends),
        chosen=bool(chosen.backends),
        log=log,
        state=chosen.state,
        started=started,
        relay=tunnel.state if tunnel is not None else "",
        loop=net.state(),
    )


def _announce_ready(
    chosen: Options, status: Callable[[], dict[str, Any]], key: str, port: int, code: str
) -> None:
    """Say where this agent listens: one JSON line for programs, the facts for people."""
    import json

    line = json.dumps(
        {"name": chosen.name, "address": chosen.bind, "port": port, "key": key, "code": code}
    )
    if chosen.ready_fd is not None:
        os.write(chosen.ready_fd, line.encode() + b"\n")
        os.close(chosen.ready_fd)
    if chosen.as_json:
        _print_line(sys.stdout, line)
    elif chosen.ready_fd is None:
        from potluck_agent.cli import status_lines
        from potluck_wire.pairing import show_secret

        document = status()
        for fact in status_lines.facts_of(document):
            _print_line(sys.stdout, fact)
        pairing = f"pairing code {show_secret(code)} (3 minutes, 3 tries)" if code else ""
        _print_line(sys.stdout, pairing or status_lines.next_step(document))


def _replay(path: Path) -> int:
    """Say what happened in a recording; 1 where the replay differs."""
    from potluck_agent.cli.replay import run

    return run(path, lambda line: _print_line(sys.stdout, line))


_output = threading.Lock()


def _print_line(stream: Any, text: str) -> None:
    """One line, at once, from any thread; a reader that is gone, or was never there, is no reason
    to stop.
    """
    if stream is None:  # without a console (Windows)
        return
    with _output:
        try:
            stream.write(text + "\n")
            stream.flush()
        except (OSError, ValueError):
            pass
