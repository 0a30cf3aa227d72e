"""A model that answers one request at a time, on the device and its helpers together, or on the
device alone.

Before each request the way to share it is looked up by the bandwidth that transfers have shown. The
name of its program goes to all sides, and that is their agreement. If a helper fails, or is late,
the device answers alone; then those that are left share the requests until it is back (`upkeep`).
"""

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from potluck.display_hooks import Tabular
from potluck.errors import HomeError, ModelError, PotluckError, RequestFailed, UserError
from potluck.graph.arguments import Arguments
from potluck.graph.torch.autocast import check_autocast
from potluck.handle import Task
from potluck.offload.cache import SplitCache
from potluck.offload.compile import computing, transfers
from potluck.offload.deployment import OffloadDeployment
from potluck.offload.drift import DriftMonitor
from potluck.offload.explanation import RequestExplanation
from potluck.offload.link_bandwidth import LinkBandwidth
from potluck.offload.maintenance import Maintenance
from potluck.offload.split_table import SplitCase, SplitEntry, SplitTable
from potluck.offload.stats import ALONE, Answer, Stats
from potluck.offload.table_search import TableSearch
from potluck.records import Trace
from potluck.run.batches import as_tuple
from potluck.run.device_group import outputs_of
from potluck.run.history import measured_trace
from potluck.schedule import Compiled
from potluck.sessions.events import ExecutionResult
from potluck.sessions.link import SessionLink
from potluck.sessions.local_agents import LocalAgents
from potluck.sessions.members import Members
from potluck.simulate.equations import energy_j

if TYPE_CHECKING:
    import torch

# times what it should take, until the device begins to answer alone; 3 cost 1 %
# (`bench/estimators.py`)
LATE = 1.5
LATE_S = 0.1  # and so much more: small requests are late for many reasons


class AcceleratedModel(Tabular):
    """An accelerated model: call it. Made by `potluck.accelerate`.

    Close it, or use it as a context manager.

    Parameters
    ----------
    link, members
        The home's connection and its devices.
    case
        What is divided, between whom, and at which bandwidths.
    rebuild
        From the output tensors to what the model answers.
    agents
        An agent that was started for it and ends with it.
    task
        Where progress is reported.
    store
        Where tables of splits are kept; None keeps them in memory.
    """

    def __init__(
        self,
        link: SessionLink,
        members: Members,
        case: SplitCase,
        rebuild: Callable[[list[Any]], Any],
        agents: LocalAgents | None,
        task: Task,
        store: SplitCache | None = None,
    ) -> None:
        self._link = link
        self._members = members
        self._rebuild = rebuild
        self._agents = agents
        device, helper = case.names[:2]
        path = case.problem.network.path(device, helper)
        self._air = LinkBandwidth(case.problem.network.bandwidth(device, helper), path.latency_s)
        self._tables = TableSearch(store or SplitCache(None, case.model.signature))
        table = self._tables.first(case, self.bytes_per_s, _progress_callback(task, case))
        task.update(0.8, "loading")
        self._loaded = OffloadDeployment(link, members, case, table, self.bytes_per_s)
        self._late: tuple[Future[ExecutionResult], Compiled] | None = None
        # what the device still computes alone, and nobody needs
        self._lost_race: Future[ExecutionResult] | None = None
        self._answers: list[Answer] = []
        self._changed: ModelError | None = None  # found while the latest request was under way
        self._speeds = DriftMonitor(case.names)
        self.kept: deque[tuple[ExecutionResult, Compiled]] = deque(maxlen=64)
        self._closed = threading.Event()
        self._maintenance = Maintenance(
            link,
            self._loaded,
            self._tables,
            self._air,
            self._speeds,
            lambda: self._late is not None,
        )

    # --- what there is ----------------------------------------------------------------------------

    @property
    def model(self) -> Any:
        """The `potluck.Model` that it answers for."""
        return self._loaded.case.model

    @property
    def device(self) -> str:
        """Where answers are wanted."""
        return self._loaded.device

    @property
    def helpers(self) -> tuple[str, ...]:
        """Those it was made with, the first one first."""
        return self._loaded.helpers

    @property
    def sides(self) -> tuple[str, ...]:
        """The device, and the helpers that the table of now is for."""
        return self._loaded.case.names

    @property
    def is_helped(self) -> bool:
        """Whether there is a helper with all that it needs."""
        return self._loaded.is_helped

    @property
    def failure(self) -> PotluckError | None:
        """Why a helper was lost last, or could not be reached."""
        return self._loaded.failure

    @property
    def table(self) -> SplitTable:
        """The ways to share, by bandwidth."""
        return self._loaded.table

    @property
    def alone(self) -> Compiled:
        """The program of the device without its helpers."""
        return self._loaded.alone

    @property
    def alone_s(self) -> float:
        """What that should take."""
        return self._loaded.predictions.seconds(self.alone, self.bytes_per_s)

    @property
    def memory_bytes(self) -> dict[str, int]:
        """What each side needs: the weights once, and the most that any entry holds."""
        return self._loaded.memory_bytes

    @property
    def bytes_per_s(self) -> float:
        """Between the device and its helper, as transfers have shown."""
        return self._air.bytes_per_s

    @bytes_per_s.setter
    def bytes_per_s(self, value: float) -> None:
        self._air.bytes_per_s = value

    @property
    def is_planned(self) -> bool:
        """Whether splits have been searched for at all bandwidths, not only at the first few."""
        return self._tables.searched is None

    # --- requests ---------------------------------------------------------------------------------

    def __call__(self, *inputs: Any, **named: Any) -> Any:
        """What the model answers, in the form in which the module does.

        The input may come by its name, too.

        Raises
        ------
        ModelError, UserError
            An input of another shape than the example's; says which is expected. Or the module, or
            a value of it, was changed since it was accelerated.
        RequestFailed
            Where an operator failed over these values; other requests are answered, by all.
        """
        check_autocast("it is called")
        named = self._loaded.full.request(_in_order(inputs, named, self.model.arguments))
        types = self.model.traced_line().traced.output_types([*named.values()])
        with self._loaded.lock:  # one request at a time, whoever asks
            self._check()
            self._changed = None
            at_s = time.monotonic()
            bytes_per_s = self.bytes_per_s
            entry = self._entry()
            done = (
                self._shared(named, entry.program.compiled) if entry.program is not None else None
            )
            execution, compiled = done or self._by_itself(named)
            if self._changed is not None:
                raise self._changed
            outputs = self._loaded.full.answer(outputs_of(execution, compiled, types))
            self._note(execution, compiled, at_s, bytes_per_s, entry)
        return self._rebuild(outputs)

    def _start(
        self, compiled: Compiled, named: "dict[str, torch.Tensor]"
    ) -> "Future[ExecutionResult]":
        """Begin a request, and look meanwhile whether the module is still what devices have."""
        future = self._loaded.start(compiled, named)
        try:
            self._loaded.check_model()
        except ModelError as error:
            self._changed = error
        return future

    def _note(
        self,
        execution: ExecutionResult,
        compiled: Compiled,
        at_s: float,
        bytes_per_s: float,
        entry: SplitEntry,
    ) -> None:
        """One more answer for the records."""
        self.kept.append((execution, compiled))
        trace = self.trace
        answer = Answer(
            at_s=at_s,
            way=ALONE if compiled is self.alone else next(iter(compiled.programs.values())).name,
            latency_s=time.monotonic() - at_s,
            predicted_s=self._loaded.predictions.seconds(compiled, bytes_per_s),
            bytes_per_s=bytes_per_s,
            joules=trace.energy_j.get(self.device),
            source=trace.energy_source.get(self.device, ""),
            by=computing(compiled),
            fallback=entry.program is not None and compiled is self.alone,
        )
        self._answers.append(answer)

    def _entry(self) -> SplitEntry:
        """What to do with the next request."""
        self._harvest()
        helped = self.is_helped and self._late is None
        return self.table.at(self.bytes_per_s) if helped else SplitEntry(bytes_per_s=0.0)

    def _shared(
        self, named: "dict[str, torch.Tensor]", compiled: Compiled
    ) -> tuple[ExecutionResult, Compiled] | None:
        """The answer of all sides; None where a helper has failed."""
        future = self._start(compiled, named)
        try:
            self._await_device(future)
            execution = future.result(
                LATE * self._loaded.predictions.seconds(compiled, self.bytes_per_s) + LATE_S
            )
        except TimeoutError:
            return self._race(future, compiled, named)
        except RequestFailed as error:
            # it fails again: these values are to blame, and nobody is lost
            done = self._by_itself(named)
            self._loaded.lost(error)
            return done
        except PotluckError as error:
            self._loaded.lost(error)
            return None
        self._learn(execution, compiled)
        return execution, compiled

    def _await_device(self, future: "Future[ExecutionResult]") -> None:
        """Until this request is answered, or the device has come to it: a race that it lost may
        keep it busy.

        Else each race would make the next request late too, which would begin another.
        """
        if self._lost_race is not None:
            wait((future, self._lost_race), return_when=FIRST_COMPLETED)
            self._lost_race = None if self._lost_race.done() else self._lost_race

    def _race(
        self, late: "Future[ExecutionResult]", compiled: Compiled, named: "dict[str, torch.Tensor]"
    ) -> tuple[ExecutionResult, Compiled] | None:
        """A helper is late: the device begins to answer alone, and whoever is done first counts."""
        alone = self._loaded.start(self.alone, named)
        wait((late, alone), return_when=FIRST_COMPLETED)
        self._late = late, compiled
        self._harvest()
        if self._late is None and not late.exception():
            self._lost_race = alone
            return late.result(), compiled
        return (alone.result(), self.alone) if not alone.exception() else self._by_itself(named)

    def _harvest(self) -> None:
        """A late request has ended by now, well or not: what it tells."""
        if self._late is None or not self._late[0].done():
            return
        (future, compiled), self._late = self._late, None
        error = future.exception()
        if isinstance(error, PotluckError) and not isinstance(error, RequestFailed):
            self._loaded.lost(error)
        elif error is None:
            self._learn(future.result(), compiled)

    def _by_itself(self, named: "dict[str, torch.Tensor]") -> tuple[ExecutionResult, Compiled]:
        try:
            execution = self._start(self.alone, named).result()
        except RequestFailed:
            raise
        # its worker has ended: a new one gets the model, and the request once more
        except PotluckError as error:
            self._loaded.lost(error)
            self._loaded.load_device()
            execution = self._loaded.start(self.alone, named).result()
        self._learn(execution, self.alone)
        return execution, self.alone

    def _learn(self, execution: ExecutionResult, compiled: Compiled) -> None:
        """What a request shows of the link, and of how fast both really are."""
        for nbytes, seconds in transfers(execution, compiled, self.device):
            self._air.observe(nbytes, seconds)
        self._speeds.learn(self._loaded.case, execution, compiled)

    # --- what it does and did ---------------------------------------------------------------------

    @property
    def stats(self) -> Stats:
        """What has been answered so far, how, how fast, for how many joules.

        And how far planning is.
        """
        return Stats(answers=tuple(self._answers), searched=self._tables.searched)

    @property
    def trace(self) -> Trace:
        """The last request, as it was measured."""
        known = {device.name: device for device in self._loaded.case.problem.devices}
        metered = {self.device: self._members[self.device].metered}
        return measured_trace(tuple(self.kept)[-1:], known, energy_j, metered)

    def explain(self, bytes_per_s: float | None = None) -> RequestExplanation:
        """Which rows run where and when; at the bandwidth of now, or another.

        Parameters
        ----------
        bytes_per_s
            Default: the bandwidth of now.

        Raises
        ------
        UserError
            The bandwidth is below zero or no number.
        """
        rate = self.bytes_per_s if bytes_per_s is None else bytes_per_s
        if not (isinstance(rate, int | float) and 0 <= rate < math.inf):
            raise UserError(f"a bandwidth is in bytes per second, from zero on; got {rate!r:.40}.")
        with self._loaded.lock:
            account = self._loaded.case.account(self.table.at(rate), self.alone, rate)
        searched = self._tables.searched
        return replace(account, notes=(*account.notes, searched.note)) if searched else account

    def baselines(self, bytes_per_s: float) -> dict[str, tuple[float, float | None]]:
        """What others would do at this bandwidth, by name: (seconds, joules of the device), by the
        simulator.
        """
        return self._loaded.case.baselines(self.alone, bytes_per_s)

    def like(self, baseline: str, *, deadline_s: float | None = None) -> "AcceleratedModel":
        """Another for the same model and devices, which shares requests as a baseline does, by the
        same estimate.

        `baseline`: "device", "helper", "layer cut", "greedy tiling"; within `deadline_s`
        "thriftiest cut". Empty: ours.
        """
        self._check()
        case = replace(self._loaded.full, baseline=baseline, deadline_s=deadline_s, first=())
        return AcceleratedModel(self._link, self._members, case, self._rebuild, None, Task())

    # --- the end ----------------------------------------------------------------------------------

    def close(self) -> None:
        """All devices forget the model, and an agent that was started for it ends.

        Safe to call twice.
        """
        if self._closed.is_set():
            return
        self._closed.set()
        self._maintenance.end()
        with self._maintenance.works, self._loaded.lock:  # a request under way is answered first
            self._tables.close()
            with suppress(HomeError):  # the home was closed before
                self._loaded.group.drop()
            if self._agents is not None:
                self._members.remove(self.device)
                self._agents.close()
        self._maintenance.thread.join()

    def _check(self) -> None:
        if self._closed.is_set():
            raise HomeError(
                "this accelerated model is closed.", next_step="Call potluck.accelerate again."
            )

    def __enter__(self) -> "AcceleratedModel":
        self._check()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def state(self) -> str:
        """Why nobody helps, where nobody does."""
        if self._closed.is_set():
            return "closed"
        why = f" ({self.failure})" if self.failure else ""
        return (
            ""
            if self.is_helped
            else f"{' and '.join(self.helpers)} cannot help now{why}: {self.device} answers alone"
        )


def _in_order(
    inputs: tuple[Any, ...], named: dict[str, Any], arguments: Arguments
) -> tuple[Any, ...]:
    """The inputs of a request that gives them by name in order; any other as it is."""
    by_name = named or any(isinstance(item, Mapping) for item in inputs)
    return as_tuple((*inputs, named), arguments.requested) if by_name else inputs


def _progress_callback(task: Task, case: SplitCase) -> Callable[[int], None]:
    """Shows how far planning is; between two searches it can be cancelled."""
    n_searches = len(case.first) + 1 if case.first else case.spec.max_searches

    def report(done: int) -> None:
        task.check()
        task.update(0.6 + 0.2 * min(done / n_searches, 1.0), f"planning, {done} of {n_searches}")

    return report
