"""What the sides of shared requests hold: the whole model, and the pieces of one table.

Loaded, lost, loaded again.
"""

import threading
import uuid
from typing import TYPE_CHECKING

from potluck.errors import DeviceGone, PotluckError
from potluck.graph.values import check_as_sent
from potluck.offload.compile import shared_requests
from potluck.offload.plan.lowering import DEVICE, HELPER
from potluck.offload.predictions import Predictions
from potluck.offload.split_table import SplitCase, SplitTable
from potluck.run.compiled_plan import INFER, PUSH
from potluck.run.device_group import DeviceGroup
from potluck.sessions.link import SessionLink
from potluck.sessions.members import Members

if TYPE_CHECKING:
    from concurrent.futures import Future

    import torch

    from potluck.schedule import Compiled
    from potluck.sessions.events import ExecutionResult

_AGAIN = "Call potluck.accelerate again, which takes the values of now."


class OffloadDeployment:
    """The model and a table on all sides. Whoever holds `lock` finds all of it as it is.

    Parameters
    ----------
    link, members
        The home's connection and its devices.
    case
        What is divided, between whom.
    table
        Of splits.
    bytes_per_s
        The bandwidth of now.
    """

    def __init__(
        self,
        link: SessionLink,
        members: Members,
        case: SplitCase,
        table: SplitTable,
        bytes_per_s: float,
    ) -> None:
        self._members, self._bytes_per_s = members, bytes_per_s
        self.case = self.full = case  # of those that are there, and of all
        self.device, self.helpers = case.names[DEVICE], case.names[HELPER:]
        self.table = table
        self.group = DeviceGroup(link, members, f"fast-{uuid.uuid4().hex[:12]}")
        self.lock = threading.RLock()
        self.failure: PotluckError | None = None
        self.is_helped = False  # whether there is a helper with all that it needs
        self._n_epochs = 0
        self._epoch = 0
        self._n_steps = 0
        self._whole = {name: case.whole(name, self.group.run) for name in case.names}
        self.alone = self._whole[self.device].compiled[INFER]
        self.predictions = Predictions(case, self.alone)
        self._there = self.helpers  # that have the model
        self._value_marks = case.model.value_marks()
        try:
            for name in case.names:
                self._load(name)
            self.go_over(case, table)
        except BaseException:
            self.group.drop()
            raise

    @property
    def lacks_helpers(self) -> bool:
        """Whether one of them is gone, or none can help."""
        return not self.is_helped or self._there != self.helpers

    @property
    def memory_bytes(self) -> dict[str, int]:
        """What each side needs: the weights once, and the most that any entry holds."""
        return {name: self._needs_bytes(name, self.table) for name in self.case.names}

    def _needs_bytes(self, device: str, table: SplitTable) -> int:
        return self.predictions.memory_bytes(self._whole[device], device, table, self._bytes_per_s)

    def next_step(self) -> int:
        """A number that nothing of this run has had."""
        with self.lock:
            self._n_steps += 1
            return self._n_steps

    def check_model(self) -> None:
        """Whether the module is what the devices have.

        Raises
        ------
        ModelError
            It, or a value of it, was changed since.
        """
        check_as_sent(self.full.model, self._value_marks, _AGAIN)

    def start(
        self, compiled: "Compiled", named: "dict[str, torch.Tensor]"
    ) -> "Future[ExecutionResult]":
        """Begin a request by one of the programs."""
        epoch = 0 if compiled is self.alone else self._epoch
        return self.group.execute(epoch, compiled, self.next_step(), batch=named, request=True)

    def go_over(self, case: SplitCase, table: SplitTable) -> None:
        """The pieces and programs of the whole table onto all sides, under a new epoch, which then
        is in force.
        """
        self._n_epochs += 1
        epoch, before = self._n_epochs, (self._epoch, self.case.names)
        memory = {name: self._needs_bytes(name, table) for name in case.names}
        self.group.prepare(epoch, shared_requests(self.group.run, epoch, table.programs, memory))
        with self.lock:
            self.case = case
            self.table = table
            self._epoch = epoch
            self.is_helped = True
            self.predictions = Predictions(case, self.alone)
        if before[0]:
            self.group.drop(*before)

    def lost(self, error: PotluckError) -> None:
        """A request that was shared has failed: its epoch is gone on all sides."""
        self.failure, self._there = error, self._left(error)
        before = self._epoch
        self.is_helped = False
        self._epoch = 0
        if before:
            self.group.drop(before, (self.device, *self._there))

    def let_go(self) -> bool:
        """Do without the helpers that want to leave; whether there were any."""
        going = [name for name in self._there if self._members[name].leaving]
        for name in going:
            why = f"it wants to leave: {self._members[name].leaving}."
            self.lost(DeviceGone(why, device=name))
            self.group.drop(-1, [name])
        return bool(going)

    def load_device(self) -> None:
        """The whole model onto the device once more: its worker has ended."""
        self._members.need([self.device])
        self.group.drop(-1, [self.device])
        self._load(self.device)

    def reach(self) -> SplitCase | None:
        """Load the helpers that can be reached again, as if for the first time.

        The case of those that are there, if they are others than those of the table in force.
        """
        found = []
        for name in self.helpers:
            if name not in self._there:
                try:
                    self._members.need([name])
                    self.group.drop(-1, [name])
                    self._load(name)
                except PotluckError as error:
                    self.failure = error
                    continue
            found.append(name)
        with self.lock:
            news = tuple(found) != self._there or not self.is_helped
            self._there = tuple(found)
        return self.full.among((self.device, *found)) if found and news else None

    def back(self, case: SplitCase, table: SplitTable) -> None:
        """Go over to the table of those that were reached.

        Where that fails, they count as lost again.
        """
        try:
            self.go_over(case, table)
        except PotluckError as error:
            self._there = self._left(error)
            raise

    def _load(self, device: str) -> None:
        """The whole model with its weights onto a device that has nothing of this run."""
        compiled_plan = self._whole[device]
        self.group.prepare(
            0, compiled_plan.requests(memory={device: self._needs_bytes(device, self.table)})
        )
        self.group.commit(0, [device])
        if PUSH in compiled_plan.compiled:
            push = compiled_plan.compiled[PUSH]
            self.group.execute(0, push, self.next_step(), states=self.case.model.state()).result()

    def _left(self, error: PotluckError) -> tuple[str, ...]:
        """The helpers without the one that failed.

        Where it is not known which, all are to be loaded again.
        """
        return tuple(
            name for name in self._there if error.device in self._there and name != error.device
        )
