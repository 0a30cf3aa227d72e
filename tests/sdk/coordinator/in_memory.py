"""Several coordinators of one home, all in memory, of which any can be killed between two messages.

The coordinators, their journals and files, the controllers, the devices' cores and their workers
are the real ones. What is played: the network, time, and that a process ends.
"""

import json
import shutil
import threading
import time
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import zmq

from potluck.coordinator.coordinator import Coordinator
from potluck.coordinator.coordinator_group import Seat
from potluck.coordinator.detached_run import DetachedRun
from potluck.coordinator.endpoint import Endpoint
from potluck.coordinator.group_joining import GroupFollower
from potluck.coordinator.job import JOURNAL
from potluck.coordinator.journal import Progress, progress_of
from potluck.coordinator.leader_client import LeaderClient
from potluck.coordinator.periodic_task import Pace
from potluck.coordinator.server import VERSION, CoordinatorServer
from potluck.errors import HomeError, PotluckError
from potluck.handle import Task
from potluck.home import Home
from potluck.sessions.agent_specs import local_specs
from potluck.sessions.connections import Keys
from potluck.testing.memory import MemoryLab
from potluck.testing.memory.notebook import MemoryNotebook
from potluck.testing.memory.periodic_task import Life, MemoryTask

JOB = "job"
WAIT_S = 60.0
LATENCY_S = 0.02  # of every message: a step takes about as long as a pull of the journal


def new_keys():
    """Of a notebook."""
    public, secret = zmq.curve_keypair()
    return Keys(public=public.decode(), secret=secret.decode())


class Killed(HomeError):
    """Whoever asked is dead by now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPlace(Endpoint):
    """As for `Endpoint`; `home` carries what is asked."""

    home: Any = field(repr=False)
    asker: Any = field(default=None, repr=False)

    def ask(self, what, data=b"", *, within_s=0.0, **about):
        return self.home.carry(self, what, data, about)


class LivingNotebook(MemoryNotebook):
    """One that connects to nothing any more once its process was killed."""

    def __init__(self, home, name, life):
        super().__init__(home.lab, name, home.keys[name])
        self._home, self._life = home, life

    def link(self):
        with self._home.living:
            if self._life.is_over:
                raise Killed("it was killed.")
            return super().link()


class Process:
    """One life of a coordinator, from its start to its end or until it is killed."""

    def __init__(self, home, name, folder):
        self.name = name
        self.life = Life()
        self.folder = folder
        keys = home.keys[name]
        lab = home.lab
        life = self.life
        lab.notebook(name, keys)
        notebook = LivingNotebook(home, name, life)
        pace = Pace(
            beats=lambda _, every_s, work, at_end: MemoryTask(lab, life, every_s, work, at_end),
            clock=lambda: lab.clock.now_s,
        )
        self.coordinator = Coordinator(
            folder, lambda: Home.over(notebook), lambda seat: home.place(seat.key, self).ask, pace
        )
        known = frozenset({keys.public, *(each.public for each in home.keys.values())})
        self.coordinator.trusted = frozenset({home.keys["notebook"].public})
        self.server = CoordinatorServer(self.coordinator, keys, known)
        self.coordinator.seat = Seat(key=keys.public, host=name, port=1)


class Coordinators:
    """A home with two devices, and the coordinators of these names.

    `at`: called with the number of each message to, from or between coordinators.
    """

    def __init__(self, folder, names=("A", "B")):
        self.folder, self.names = folder, names
        self.lab = MemoryLab(local_specs(2))
        self.lab.watch(self._passes)
        self.keys = {name: new_keys() for name in ("notebook", *names)}
        self._named = {keys.public: name for name, keys in self.keys.items()}
        self.alive: dict[str, Process] = {}
        self.dead: list[Process] = []
        self.n_messages = 0
        self.living = threading.Lock()
        self.at = lambda number: None
        self._devices = Home.over(self.lab.notebook("keeper", new_keys()))  # time goes on
        for name in self._devices.devices:
            self.lab.delay(name, LATENCY_S)
        self.lab.driver.run_free(True)

    def close(self):
        self.at = lambda number: None
        for process in (*self.alive.values(), *self.dead):
            process.server.close()
            if process.life.is_over:
                continue
            process.coordinator.close()
        self.lab.driver.run_free(False)
        self.lab.close()
        self._devices.close()

    # --- processes --------------------------------------------------------------------------------

    def start(self, name):
        """A coordinator of this name, with what its last life has left on its disk."""
        process = Process(self, name, self.disk(name))
        self.alive[name] = process
        process.coordinator.go_on()
        return process

    def disk(self, name):
        n_lives = sum(each.name == name for each in self.dead)
        return self.folder / f"{name}{n_lives}"

    def kill(self, name):
        """As kill -9: its disk is as it is now, and nothing is heard of it any more."""
        process = self.alive.get(name)
        if process is None:
            return
        with self.living:
            process.life.is_over = True
        if process.folder.exists():
            lives = sum(each.name == name for each in self.dead) + 1
            copy_as_it_is(process.folder, self.folder / f"{name}{lives}")
        self.lab.crash(name)  # what the rest of it writes from now on is on no disk
        self.dead.append(process)
        del self.alive[name]  # from here on it may come back

    def join(self, name, other):
        """Have one look once whether the other has something to be copied; whether it has."""
        process = self.alive[name]
        ask = self.place(self.keys[other].public, process).ask
        return GroupFollower(process.coordinator, ask).look()

    # --- messages ---------------------------------------------------------------------------------

    def _passes(self, sender, receiver):
        if {sender, receiver} & set(self.names):
            self._count()

    def _count(self):
        self.n_messages += 1
        self.at(self.n_messages)

    def place(self, key, asker=None):
        """The coordinator of this key, as one of these, or the notebook, asks it."""
        name = asker.name if asker is not None else "notebook"
        return MemoryPlace(
            host=self._named[key], port=1, key=key, keys=self.keys[name], home=self, asker=asker
        )

    def carry(self, place, what, data, about):
        """A request on its way, and its answer."""
        asker = place.asker
        request = json.dumps({"version": VERSION, "ask": what, **about}).encode()
        self._count()
        self._see(asker)
        process = self.alive.get(place.host)
        if process is None or process.life.is_over:
            raise HomeError(f"no coordinator answers at {place}.", is_silent=True)
        answer = process.server.answer([b"", request, data], place.keys.public)
        if isinstance(answer, Future):
            answer = answer.result(WAIT_S)
        self._count()
        self._see(asker)
        if process.life.is_over:
            raise HomeError(f"no coordinator answers at {place}.", is_silent=True)
        document = json.loads(json.dumps(answer[0]))
        if "error" in document:
            raise HomeError(document["error"])
        return document, answer[1]

    def _see(self, asker):
        if asker is not None and asker.life.is_over:
            raise Killed("it was killed.")

    # --- what a notebook does ---------------------------------------------------------------------

    def hand_over(self, packed, name):
        """Hand a job over, and have it begin; does what is left of that where it was begun."""
        place = self.place(self.keys[name].public)
        if JOB not in place.ask("jobs")[0]["jobs"]:
            place.hand_over(JOB, packed, Task())
        place.ask("start", job=JOB)

    def attached(self, name):
        """The training as a notebook sees it that asks this one first."""
        others = [Seat(key=self.keys[each].public, host=each, port=1) for each in self.names]
        return DetachedRun(LeaderClient(self.place(self.keys[name].public), others), JOB)

    def part(self, name):
        """Nothing gets from a coordinator to the devices or back, and nobody is told."""
        for device in self._devices.devices:
            self.lab.part(name, device)
            self.lab.part(device, name)

    def mend(self, name):
        """It does again."""
        for device in self._devices.devices:
            self.lab.mend(name, device)
            self.lab.mend(device, name)

    # --- what must hold ---------------------------------------------------------------------------

    def counts(self, name):
        """Whether devices know that the copy of this one is complete."""
        machines = [each.coordinator.shared for each in (*self.alive.values(),)]
        records = [part.line.machine.record for part in machines if part is not None]
        return any(record and self.keys[name].public in record.in_sync for record in records)

    def acting(self):
        """Those that hold the lease."""
        shared = {name: each.coordinator.shared for name, each in (*self.alive.items(),)}
        return [name for name, part in shared.items() if part is not None and part.line.acts]

    def progress(self, name) -> Progress:
        """What is on a disk."""
        path = self.disk(name) / JOB / JOURNAL
        return progress_of(path) if path.exists() else Progress()


def copy_as_it_is(folder, copy):
    """What is on a disk at one moment: other threads write to it, until nothing is as it was."""
    while True:
        with suppress(shutil.Error, FileNotFoundError):  # a file got its name meanwhile
            before = _listed(folder)
            shutil.copytree(folder, copy)
            if _listed(folder) == before:
                return
        shutil.rmtree(copy, ignore_errors=True)


def _listed(folder):
    found = {}
    for path in folder.rglob("*"):
        with suppress(FileNotFoundError):
            state = path.stat()
            found[path] = state.st_ino, state.st_mtime_ns, state.st_size
    return found


def until(true, within_s=WAIT_S):
    """Wait for it."""
    end_s, pause = time.monotonic() + within_s, threading.Event()
    while not true():
        assert time.monotonic() < end_s, "nothing has come of it"
        pause.wait(0.005)


def again(act, within_s=WAIT_S):
    """Do it until it succeeds."""
    end_s, pause = time.monotonic() + within_s, threading.Event()
    while True:
        try:
            return act()
        except PotluckError:
            if time.monotonic() > end_s:
                raise
            pause.wait(0.005)
