"""Fast: a model that answers one request at a time, on the device and its helpers together, or on the device alone.

Before each request the way to share it is looked up by the bandwidth that transfers have shown; the name of its program
goes to all sides, and that is their agreement. If a helper fails, or is late, the device answers alone; then those
that are left share the requests until it is back.
"""

import math
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from potluck.adapt.bandwidth import Asking, Estimator
from potluck.errors import HomeError, PotluckError, RequestFailed, UserError
from potluck.handle import Task
from potluck.lab.local import LocalAgents
from potluck.plan.sharing.shareable import DEVICE, HELPER
from potluck.records import Trace
from potluck.run.crew import Crew, outputs_of
from potluck.run.edition import INFER, PUSH
from potluck.run.history import measured_trace
from potluck.run.sharing.account import Account
from potluck.run.sharing.answers import ALONE, Answer, Stats
from potluck.run.sharing.edition import computing, shared_requests, transfers
from potluck.run.sharing.foretold import Foretold
from potluck.run.sharing.speeds import Speeds
from potluck.run.sharing.store import SplitStore
from potluck.run.sharing.table import Entry, SplitCase, SplitTable
from potluck.schedule import Compiled
from potluck.sessions.events import Execution, Gather
from potluck.sessions.link import Link
from potluck.sessions.members import Members
from potluck.simulate.cost import energy_j
from potluck_wire.messages import Probe

if TYPE_CHECKING:
    import torch

LOOK_S = 0.25  # between two looks of the upkeep
RETRY_S = 2.0  # after a failed attempt to reach the helper
PROBE_BYTES = 32 * 1024
LATE = 1.5  # times what it should take, until the device begins to answer alone; 3 cost 1 % (`bench/estimators.py`)
LATE_S = 0.1  # and so much more: small requests are late for many reasons


class Fast:
    """An accelerated model: call it. Made by `potluck.accelerate`; close it, or use it as a context manager."""

    def __init__(
        self, link: Link, members: Members, case: SplitCase, rebuild: Callable[[list[Any]], Any],
        agents: LocalAgents | None, task: Task, store: SplitStore | None = None,
    ) -> None:  # fmt: skip
        self._link, self._members, self._rebuild, self._agents, self._store = link, members, rebuild, agents, store
        self._case = self._full = case  # of those that are there, and of all
        self.device, self.helpers = case.names[DEVICE], case.names[HELPER:]
        self.failure: PotluckError | None = None
        self.table: SplitTable = self._table_of(case)
        task.update(0.8, "loading")
        self._crew = Crew(link, members, f"fast-{uuid.uuid4().hex[:12]}")
        self.n_steps, self._n_epochs, self._epoch = 0, 0, 0
        self._lock, self._upkeeping, self._closed = threading.RLock(), threading.Lock(), threading.Event()
        self._loaded: tuple[str, ...] = ()  # helpers that have the model
        self._helped = False
        self._late: tuple[Future[Execution], Compiled] | None = None
        path = case.problem.network.path(self.device, self.helpers[0])
        self.bytes_per_s = case.problem.network.bandwidth(self.device, self.helpers[0])
        self._estimator = Estimator(self.bytes_per_s, latency_s=path.latency_s)
        self._asking = Asking(time.monotonic())
        self._answers: list[Answer] = []
        self._speeds = Speeds(case.names)
        self.kept: deque[tuple[Execution, Compiled]] = deque(maxlen=64)
        self._whole = {name: case.whole(name, self._crew.run) for name in case.names}
        self.alone = self._whole[self.device].compiled[INFER]
        self._foretold = Foretold(case, self.alone)
        self.alone_s = self._foretold.seconds(self.alone, self.bytes_per_s)
        for name in case.names:
            self._load(name)
        self._loaded = self.helpers
        self._go_over(case, self.table)
        self._thread = threading.Thread(target=self._upkeep, name="potluck fast", daemon=True)
        self._thread.start()

    # --- loading ------------------------------------------------------------------------------------------------------

    @property
    def model(self) -> Any:
        """The `potluck.Model` that it answers for."""
        return self._case.model

    @property
    def sides(self) -> tuple[str, ...]:
        """The device, and the helpers that the table of now is for."""
        return self._case.names

    @property
    def is_helped(self) -> bool:
        """Whether there is a helper with all that it needs."""
        return self._helped

    @property
    def memory_bytes(self) -> dict[str, int]:
        """What each side needs: the weights once, and the most that any entry holds."""
        return {device: self._memory(device, self.table) for device in self.sides}

    def _memory(self, device: str, table: SplitTable) -> int:
        return self._foretold.memory_bytes(self._whole[device], device, table, self.bytes_per_s)

    def _load(self, device: str) -> None:
        """The whole model with its weights onto a device that has nothing of this run."""
        edition = self._whole[device]
        self._crew.prepare(0, edition.requests(memory={device: self._memory(device, self.table)}))
        self._crew.commit(0, [device])
        if PUSH in edition.compiled:
            push = edition.compiled[PUSH]
            self._crew.execute(0, push, self._next(), states=self._case.model.state()).result()

    def _table_of(self, case: SplitCase) -> SplitTable:
        return self._store.table(case) if self._store is not None else case.table()

    def _go_over(self, case: SplitCase, table: SplitTable) -> None:
        """The pieces and programs of the whole table onto all sides, under a new epoch, which then is in force."""
        self._n_epochs += 1
        epoch, before = self._n_epochs, (self._epoch, self._case.names)
        memory = {device: self._memory(device, table) for device in case.names}
        self._crew.prepare(epoch, shared_requests(self._crew.run, epoch, table.programs, memory))
        with self._lock:
            self._case, self.table, self._epoch, self._helped = case, table, epoch, True
            self._foretold = Foretold(case, self.alone)
            self.alone_s = self._foretold.seconds(self.alone, self.bytes_per_s)
        if before[0]:
            self._crew.drop(*before)

    def _next(self) -> int:
        with self._lock:
            self.n_steps += 1
            return self.n_steps

    # --- requests -----------------------------------------------------------------------------------------------------

    def __call__(self, *inputs: "torch.Tensor") -> Any:
        """What the model answers, in the form in which the module does.

        Raises
        ------
        ModelError, UserError
            An input of another shape than the example's; says which is expected.
        RequestFailed
            Where an operator failed over these values; other requests are answered, by all.
        """
        named = self._case.request(inputs)
        with self._lock:  # one request at a time, whoever asks
            self._check()
            at_s, bytes_per_s, entry = time.monotonic(), self.bytes_per_s, self._entry()
            done = self._shared(named, entry.program.compiled) if entry.program is not None else None
            execution, compiled = done or self._by_itself(named)
            outputs = self._case.answer(outputs_of(execution, compiled))
            self._note(execution, compiled, at_s, bytes_per_s, entry)
        return self._rebuild(outputs)

    def _note(self, execution: Execution, compiled: Compiled, at_s: float, bytes_per_s: float, entry: Entry) -> None:
        """One more answer for the records."""
        self.kept.append((execution, compiled))
        trace = self.trace
        answer = Answer(
            at_s=at_s, way=ALONE if compiled is self.alone else next(iter(compiled.programs.values())).name,
            latency_s=time.monotonic() - at_s, predicted_s=self._foretold.seconds(compiled, bytes_per_s),
            bytes_per_s=bytes_per_s, joules=trace.energy_j.get(self.device),
            source=trace.energy_source.get(self.device, ""), by=computing(compiled),
            fallback=entry.program is not None and compiled is self.alone,
        )  # fmt: skip
        self._answers.append(answer)

    def _entry(self) -> Entry:
        """What to do with the next request."""
        self._harvest()
        helped = self._helped and self._late is None
        return self.table.at(self.bytes_per_s) if helped else Entry(bytes_per_s=0.0)

    # --- what it does and did -----------------------------------------------------------------------------------------

    @property
    def stats(self) -> Stats:
        """What has been answered so far, how, how fast, for how many joules."""
        return Stats(answers=tuple(self._answers))

    @property
    def trace(self) -> Trace:
        """The last request, as it was measured."""
        known = {device.name: device for device in self._case.problem.devices}
        metered = {self.device: self._members[self.device].metered}
        return measured_trace(tuple(self.kept)[-1:], known, energy_j, metered)

    def explain(self, bytes_per_s: float | None = None) -> Account:
        """Which rows run where and when; at the bandwidth of now, or another."""
        rate = self.bytes_per_s if bytes_per_s is None else bytes_per_s
        if not (isinstance(rate, int | float) and 0 <= rate < math.inf):
            raise UserError(f"a bandwidth is in bytes per second, from zero on; got {rate!r:.40}.")
        return self._case.account(self.table.at(rate), self.alone, rate)

    def rivals(self, bytes_per_s: float) -> dict[str, tuple[float, float | None]]:
        """What others would do at this bandwidth, by name: (seconds, joules of the device), by the simulator."""
        return self._case.rivals(self.alone, bytes_per_s)

    def like(self, rival: str, *, deadline_s: float | None = None) -> "Fast":
        """Another for the same model and devices, which shares requests as a rival does, by the same estimate.

        `rival`: "device", "helper", "layer cut", "greedy tiling"; within `deadline_s` "thriftiest cut". Empty: ours.
        """
        self._check()
        case = replace(self._full, rival=rival, deadline_s=deadline_s)
        return Fast(self._link, self._members, case, self._rebuild, None, Task())

    def _shared(self, named: "dict[str, torch.Tensor]", compiled: Compiled) -> tuple[Execution, Compiled] | None:
        """The answer of all sides; None where a helper has failed."""
        future = self._crew.execute(self._epoch, compiled, self._next(), batch=named, request=True)
        try:
            execution = future.result(LATE * self._foretold.seconds(compiled, self.bytes_per_s) + LATE_S)
        except TimeoutError:
            return self._race(future, compiled, named)
        except RequestFailed as error:
            done = self._by_itself(named)  # it fails again: these values are to blame, and nobody is lost
            self._lost(error)
            return done
        except PotluckError as error:
            self._lost(error)
            return None
        self._learn(execution, compiled)
        return execution, compiled

    def _race(
        self, late: "Future[Execution]", compiled: Compiled, named: "dict[str, torch.Tensor]"
    ) -> tuple[Execution, Compiled] | None:
        """A helper is late: the device begins to answer alone, and whoever is done first counts."""
        alone = self._crew.execute(0, self.alone, self._next(), batch=named, request=True)
        wait((late, alone), return_when=FIRST_COMPLETED)
        self._late = late, compiled
        self._harvest()
        if self._late is None and not late.exception():
            return late.result(), compiled
        return (alone.result(), self.alone) if not alone.exception() else self._by_itself(named)

    def _harvest(self) -> None:
        """A late request has ended by now, well or not: what it tells."""
        if self._late is None or not self._late[0].done():
            return
        (future, compiled), self._late = self._late, None
        error = future.exception()
        if isinstance(error, PotluckError) and not isinstance(error, RequestFailed):
            self._lost(error)
        elif error is None:
            self._learn(future.result(), compiled)

    def _by_itself(self, named: "dict[str, torch.Tensor]") -> tuple[Execution, Compiled]:
        try:
            execution = self._crew.execute(0, self.alone, self._next(), batch=named, request=True).result()
        except RequestFailed:
            raise
        except PotluckError as error:  # its worker has ended: a new one gets the model, and the request once more
            self._lost(error)
            self._members.need([self.device])
            self._crew.drop(-1, [self.device])
            self._load(self.device)
            execution = self._crew.execute(0, self.alone, self._next(), batch=named, request=True).result()
        self._learn(execution, self.alone)
        return execution, self.alone

    def _lost(self, error: PotluckError) -> None:
        """A request that was shared has failed: its epoch is gone on all sides."""
        self.failure, self._loaded = error, self._left(error)
        before, self._helped, self._epoch = self._epoch, False, 0
        if before:
            self._crew.drop(before, (self.device, *self._loaded))

    def _left(self, error: PotluckError) -> tuple[str, ...]:
        """The helpers without the one that failed; where it is not known which, all are to be loaded again."""
        return tuple(name for name in self._loaded if error.device in self._loaded and name != error.device)

    def _learn(self, execution: Execution, compiled: Compiled) -> None:
        """What a request shows of the link, and of how fast both really are."""
        for nbytes, seconds in transfers(execution, compiled, self.device):
            self._heard(nbytes, seconds)
        self._speeds.learn(self._case, execution, compiled)

    def _heard(self, nbytes: int, seconds: float, *, asked: bool = False) -> None:
        now_s, thought = time.monotonic(), self.bytes_per_s
        self._estimator.observe(nbytes, seconds, now_s)
        self.bytes_per_s = self._estimator.bytes_per_s
        self._asking.heard(now_s, nbytes / max(seconds, 1e-9), thought, asked=asked)

    # --- upkeep -------------------------------------------------------------------------------------------------------

    def _upkeep(self) -> None:
        """In the background: reach a lost helper again, and ask for the bandwidth where no request shows it."""
        retry_s = 0.0
        while not self._closed.wait(LOOK_S):
            now_s = time.monotonic()
            with self._upkeeping:
                try:
                    if self._late is not None:
                        continue
                    if now_s >= retry_s and (not self._helped or self._loaded != self.helpers):
                        retry_s = now_s + RETRY_S
                        self._restore()
                    elif self._helped and self._should_ask(now_s):
                        self._ask_bandwidth()
                    elif self._helped and (wrong := self._speeds.wrong()):
                        self._correct(wrong)
                except PotluckError as error:
                    self.failure = error

    def _correct(self, times: dict[str, float]) -> None:
        """Plan anew by what the sides have shown, load that, and go over to it."""
        case = self._case.corrected(times)
        self._full = self._full.corrected(times)
        self._go_over(case, case.table())
        self._speeds.forget()

    def _should_ask(self, now_s: float) -> bool:
        return self._asking.is_due(now_s, alone=self.table.at(self.bytes_per_s).program is None)

    def _ask_bandwidth(self) -> None:
        peer = self._case.names[HELPER]
        probe = Probe(task=f"{self._crew.run}-{self._next()}", peer=peer, nbytes=PROBE_BYTES, repeats=1)
        answers = self._link.ask(Gather(requests={self.device: (probe, ())})).result()
        self._heard(PROBE_BYTES, answers[self.device][0].seconds[0], asked=True)

    def _restore(self) -> None:
        """Helpers that can be reached again, as if for the first time; and the table of those that are there."""
        found = []
        for name in self.helpers:
            if name not in self._loaded:
                try:
                    self._members.need([name])
                    self._crew.drop(-1, [name])
                    self._load(name)
                except PotluckError as error:
                    self.failure = error
                    continue
            found.append(name)
        with self._lock:
            news = tuple(found) != self._loaded or not self._helped
            self._loaded = tuple(found)
        if found and news:
            case = self._full.among((self.device, *found))
            try:
                self._go_over(case, self._table_of(case))
            except PotluckError as error:
                self._loaded = self._left(error)
                raise

    # --- the end ------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """All devices forget the model, and an agent that was started for it ends; safe to call twice."""
        if self._closed.is_set():
            return
        self._closed.set()
        with self._upkeeping, self._lock:  # a request under way is answered first
            with suppress(HomeError):  # the home was closed before
                self._crew.drop()
            if self._agents is not None:
                self._members.remove(self.device)
                self._agents.close()
        self._thread.join()

    def _check(self) -> None:
        if self._closed.is_set():
            raise HomeError("this accelerated model is closed.", next_step="Call potluck.accelerate again.")

    def __enter__(self) -> "Fast":
        self._check()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _state(self) -> str:
        """Why nobody helps, where nobody does."""
        if self._closed.is_set():
            return "closed"
        why = f" ({self.failure})" if self.failure else ""
        return "" if self._helped else f"{' and '.join(self.helpers)} cannot help now{why}: {self.device} answers alone"

    def __repr__(self) -> str:
        from potluck.display import shared, text

        return text.render(shared.at_work(self.explain(), self.stats, self._state()))

    def _repr_html_(self) -> str:
        from potluck.display import html, shared, text

        account = self.explain()
        content = shared.at_work(account, self.stats, self._state())
        return html.fragment("fast", text.render(content), shared.rows(account).svg(), html.table(content))
