"""The devices of one run: prepare, commit and drop compiled plans on all, execute programs, move
tensors in and out.
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import replace
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

from potluck.errors import OutOfMemory, PlanError, PotluckError, ProtocolError
from potluck.graph.traced import Type
from potluck.run.compiled_plan import Requests, kept_types
from potluck.run.snapshots import OLD_STANDS
from potluck.run.tensors import to_raw, to_tensor
from potluck.run.weight_update import Update
from potluck.schedule import Compiled, InputBinding, ReceivedValue
from potluck.sessions.events import ExecutionResult, FeedExecution, RequestAll, StartExecution
from potluck.sessions.failures import sizes
from potluck.sessions.link import SessionLink
from potluck.sessions.members import Members
from potluck.sessions.traffic import Place, Raw
from potluck_wire.content import content_of
from potluck_wire.messages import Commit, Drop
from potluck_wire.version import KEPT_WEIGHTS, MEMORY_AT_COMMIT, PIGGYBACKED_CREDIT

if TYPE_CHECKING:
    import torch

METER_PERIOD_S = 1.0
LEAST_OFFERED_BYTES = 1024  # an offer and its answer are some 300 bytes
LOSS_BYTES = 8  # of one micro-batch, in whatever type
LOSS_TYPES = ("float32", "float64", "float16", "bfloat16")


class DeviceGroup:
    """All devices that a run has used so far.

    Parameters
    ----------
    link, members
        The home's connection and its devices.
    run
        Its name.
    """

    def __init__(self, link: SessionLink, members: Members, run: str) -> None:
        self.link = link
        self._members = members
        self.run = run
        self.devices: tuple[str, ...] = ()
        self._metered = -1  # what the devices' readings are known by

    def check_memory(self, requests: Requests) -> None:
        """Refuse requests of which a device may use less than is asked of it.

        Raises
        ------
        OutOfMemory
            Names the first such device.
        """
        for device, (order, _) in requests.items():
            needed = order.memory_bytes
            available = self._members[device].capability.get("memory_bytes")
            if available is not None and needed > available:
                much, little = sizes(needed, available)
                raise OutOfMemory(
                    f"the plan needs {much} there; {little} are available.",
                    device=device,
                    next_step="Give it fewer layers or rows, or raise its --memory.",
                    needed_bytes=needed,
                    available_bytes=available,
                )

    def prepare(self, epoch: int, requests: Requests, *, beside: bool = False) -> tuple[str, ...]:
        """Load an epoch on all these devices; everything or nothing. Returns their names.

        Parameters
        ----------
        epoch
            Its number.
        requests
            By device.
        beside
            Another epoch is in force and stays so, where there is no room for this one: then nobody
            is lost by that.

        Raises
        ------
        OutOfMemory, Refused, DeviceGone
            Named for the device; the epoch is dropped everywhere.
        """
        try:
            return self._prepared(epoch, requests)
        except OutOfMemory as error:
            error.facts[OLD_STANDS] = beside
            raise

    def _prepared(self, epoch: int, requests: Requests) -> tuple[str, ...]:
        self._members.need(requests)
        self.check_memory(requests)
        self.devices = tuple(dict.fromkeys((*self.devices, *requests)))
        along = all(self._members[device].speaks(PIGGYBACKED_CREDIT) for device in self.devices)
        orders = {
            name: (replace(order, credit_along=along), parts)
            for name, (order, parts) in requests.items()
        }
        try:
            self.link.ask(RequestAll(requests=orders)).result()
        except PotluckError:
            self.drop(epoch, requests)
            raise
        return tuple(requests)

    def commit(
        self, epoch: int, devices: Iterable[str], memory: Mapping[str, int] | None = None
    ) -> None:
        """Put an epoch into force on all of them; older ones go.

        `memory`: bytes per device that it needs alone.

        Parameters
        ----------
        epoch
            Its number.
        devices
            All that take part.
        memory
            Bytes per device that it needs alone.
        """
        requests = {}
        for device in devices:
            alone = (
                (memory or {}).get(device, 0)
                if self._members[device].speaks(MEMORY_AT_COMMIT)
                else 0
            )
            requests[device] = (Commit(run=self.run, epoch=epoch, memory_bytes=alone), ())
        if requests:
            self.link.ask(RequestAll(requests=requests)).result()

    def keep(self, devices: Iterable[str]) -> None:
        """These are the run's devices from now on; all others forget it."""
        kept = tuple(devices)
        self.drop(-1, [device for device in self.devices if device not in kept])
        self.devices = kept

    def drop(self, epoch: int = -1, devices: Iterable[str] | None = None) -> None:
        """Forget an epoch, or the run, on every device: those that are away as soon as they are
        back.
        """
        if epoch == -1 and devices is None:
            self._members.metering.enough(self._metered)
        order = Drop(run=self.run, epoch=epoch)
        for device in tuple(self.devices if devices is None else devices):
            self._members.drops.drop(device, order)

    def meter(self, period_s: float = METER_PERIOD_S) -> None:
        """Let the devices of now send power readings."""
        self._members.metering.enough(self._metered)
        self._metered = self._members.metering.want(self.devices, period_s)

    def execute(
        self,
        epoch: int,
        compiled: Compiled,
        step: int,
        *,
        batch: "Mapping[str, torch.Tensor] | None" = None,
        states: "Mapping[str, torch.Tensor] | None" = None,
        output_bytes: Mapping[str, int] | None = None,
        stream: str = "",
        request: bool = False,
        offered: bool = False,
    ) -> "Future[ExecutionResult]":
        """Execute the programs of `compiled` once, with the rows of `batch` and the `states` that
        they ask for. Done at once where they have nothing to do.

        `output_bytes`: of outputs of this batch that may be larger than the plan predicts. `stream`
        and `request`: see `StartExecution`.

        Parameters
        ----------
        epoch
            Under which the programs stand.
        compiled
            The programs.
        step
            The number of the step.
        batch
            What home feeds, by name; each [rows, ...].
        states
            Weights that home sends, by name.
        output_bytes
            Of outputs that may be larger than the plan predicts.
        stream
            As in `StartExecution`.
        request
            It is a request, which may fail alone.
        offered
            Devices may have kept these states: they are asked before any is sent.
        """
        feeds: dict[str, dict[str, Raw]] = {}
        later: list[InputBinding] = []
        for feed in sorted(compiled.feeds, key=lambda feed: feed.priority):
            if offered and self.keeps(feed.device):
                later.append(feed)
            else:
                raw = raw_of(feed, batch or {}, states or {})
                feeds.setdefault(feed.device, {})[feed.value] = raw
        expects: dict[str, dict[str, int]] = {}
        for result in compiled.results:
            expects.setdefault(result.device, {})[result.value] = _most_bytes(
                result, output_bytes or {}
            )
        active = {
            device: program for device, program in compiled.programs.items() if program.instructions
        }
        name = next(iter(compiled.programs.values())).name
        if not active:  # all is where it shall be
            return self._done(epoch, name, step)
        future: Future[ExecutionResult] = self.link.ask(
            StartExecution(
                run=self.run,
                epoch=epoch,
                program=name,
                step=step,
                devices=tuple(active),
                feeds=feeds,
                expects=expects,
                instructions={
                    device: len(program.instructions) for device, program in active.items()
                },
                stream=stream,
                together=compiled.together,
                request=request,
                follows=bool(later),
            )
        )
        self._offer(future, (self.run, epoch, name, step), later, states or {})
        return future

    def _offer(
        self,
        future: "Future[ExecutionResult]",
        place: Place,
        feeds: Iterable[InputBinding],
        states: "Mapping[str, torch.Tensor]",
    ) -> None:
        """Feed an execution with states that devices may have kept, one after the other: while the
        link carries one, the sum of the next is made.
        """
        contents: dict[str, bytes] = {}
        rows = list(in_turn(feeds))
        try:
            for feed in rows:
                if future.done():  # it has failed
                    return
                raw = raw_of(feed, {}, states)
                if len(raw.data) >= LEAST_OFFERED_BYTES:
                    if feed.tensor not in contents:
                        contents[feed.tensor] = content_of(raw.dtype, raw.shape, raw.data)
                    raw = replace(raw, content=contents[feed.tensor])
                self.link.notify(
                    FeedExecution(
                        device=feed.device,
                        place=place,
                        name=feed.value,
                        raw=raw,
                        is_last=feed is rows[-1],
                    )
                )
        except BaseException:
            future.cancel()
            raise

    def keeps(self, device: str) -> bool:
        """Whether a device may keep weights between runs.

        Parameters
        ----------
        device
            Its name.
        """
        member = self._members[device]
        return member.speaks(KEPT_WEIGHTS) and bool(member.capability.get("kept_bytes"))

    def _done(self, epoch: int, program: str, step: int) -> "Future[ExecutionResult]":
        """Nobody has anything to do."""
        future: Future[ExecutionResult] = Future()
        future.set_result(
            ExecutionResult(
                run=self.run,
                epoch=epoch,
                program=program,
                step=step,
                outputs={},
                timelines={},
                start_s=0.0,
                stop_s=0.0,
            )
        )
        return future


def in_turn(feeds: Iterable[InputBinding]) -> Iterator[InputBinding]:
    """The feeds of all devices, one of each in turn, and those of each in order.

    Parameters
    ----------
    feeds
        Of some devices.
    """
    queues: dict[str, list[InputBinding]] = {}
    for feed in feeds:
        queues.setdefault(feed.device, []).append(feed)
    for row in zip_longest(*queues.values()):
        yield from (feed for feed in row if feed is not None)


def raw_of(
    feed: InputBinding, batch: "Mapping[str, torch.Tensor]", states: "Mapping[str, torch.Tensor]"
) -> Raw:
    """What home feeds, of the rows of a batch or of states.

    Parameters
    ----------
    feed
        What a program asks for.
    batch
        By name; each [rows, ...].
    states
        By name.

    Raises
    ------
    PlanError
        It is in neither.
    """
    source = states if feed.kind == "state" else batch
    if feed.tensor not in source:
        raise PlanError(
            f"the plan needs {feed.tensor!r}, which the {feed.kind} does not have.",
            device=feed.device,
        )
    tensor = source[feed.tensor]
    return to_raw(tensor if feed.whole else tensor[feed.start : feed.stop])


def _most_bytes(result: ReceivedValue, output_bytes: Mapping[str, int]) -> int:
    """What a result can have at most. Losses and norms are predicted as float32, and of a float64
    model are as long as two.
    """
    if result.kind in ("loss", "norm"):
        return max(1, len(result.rows)) * LOSS_BYTES
    return max(result.nbytes, output_bytes.get(result.tensor, 0))


def losses_of(execution: ExecutionResult, compiled: Compiled) -> list[float]:
    """The loss of each step: the mean over the rows of its batch, or their sum."""
    totals = [0.0] * compiled.n_steps
    rows = [0] * compiled.n_steps
    sums = False
    for result in compiled.results:
        if result.kind == "loss":
            losses = _losses(execution, result)
            parts = [1 if result.sums else n for n in result.rows]
            totals[result.step] += sum(loss * n for loss, n in zip(losses, parts, strict=True))
            rows[result.step] += sum(result.rows)
            sums = result.sums
    return totals if sums else [total / n for total, n in zip(totals, rows, strict=True)]


def norm_of(execution: ExecutionResult, compiled: Compiled) -> float:
    """The norm of all gradients of a step; NaN where it is not limited.

    Raises
    ------
    ProtocolError
        A device sent something else.
    """
    for result in compiled.results:
        if result.kind == "norm":
            raw = execution.outputs[result.device, result.value]
            if raw.dtype not in LOSS_TYPES or math.prod(raw.shape) != 1:
                raise ProtocolError(
                    f"it sent {raw.dtype} of {list(raw.shape)} as the norm of the gradients.",
                    device=result.device,
                    next_step="Update potluck there, or leave the device out.",
                )
            return float(to_tensor(raw).reshape(-1)[0])
    return math.nan


def _losses(execution: ExecutionResult, result: ReceivedValue) -> list[float]:
    """The mean loss of each micro-batch, as this device says."""
    raw = execution.outputs[result.device, result.value]
    if raw.dtype not in LOSS_TYPES or math.prod(raw.shape) != len(result.rows):
        raise ProtocolError(
            f"it sent {raw.dtype} of {list(raw.shape)} as the losses of {len(result.rows)} "
            f"micro-batches; expected as many of {' or '.join(LOSS_TYPES)}.",
            device=result.device,
            next_step="Update potluck there, or leave the device out.",
        )
    losses: list[float] = to_tensor(raw).reshape(-1).tolist()
    return losses


def outputs_of(
    execution: ExecutionResult, compiled: Compiled, types: Mapping[str, Type]
) -> "dict[str, torch.Tensor]":
    """The outputs of a request, their pieces put together in row order.

    Parameters
    ----------
    execution, compiled
        What was answered, and what it was asked by.
    types
        Of every output, over all its rows.

    Raises
    ------
    ProtocolError
        A device sent something of another type.
    """
    import torch

    pieces: dict[str, list[ReceivedValue]] = {}
    for result in compiled.results:
        pieces.setdefault(result.tensor, []).append(result)
    outputs = {}
    for name, found in pieces.items():
        first = execution.outputs[found[0].device, found[0].value]
        kind, tensors = _squeezed(types[name], first.shape), []
        for result in sorted(found, key=lambda result: result.start):
            rows = () if len(found) == 1 else (result.stop - result.start,)
            expected = Type(dtype=kind.dtype, shape=(*rows, *kind.shape[len(rows) :]))
            tensors.append(_believed(execution, result, expected, f"the output {name!r}"))
        outputs[name] = tensors[0] if len(found) == 1 else torch.cat(tensors)
    return outputs


def _squeezed(kind: Type, sent: tuple[int, ...]) -> Type:
    """The type as it was sent, where only dimensions of one behind the rows are missing.

    A squeeze drops that of the sequence, where the sequence is of one.
    """
    if len(sent) < len(kind.shape) and [size for size in sent[1:] if size != 1] == [
        size for size in kind.shape[1:] if size != 1
    ]:
        return Type(dtype=kind.dtype, shape=(*kind.shape[:1], *sent[1:]))
    return kind


def states_of(
    execution: ExecutionResult, compiled: Compiled, types: Mapping[str, Type]
) -> "dict[str, torch.Tensor]":
    """The states that a pull brought home, by name.

    Parameters
    ----------
    execution, compiled
        What was told, and what it was asked by.
    types
        Of every state.

    Raises
    ------
    ProtocolError
        A device sent something of another type.
    """
    return {
        result.tensor: _believed(execution, result, types[result.tensor], result.tensor)
        for result in compiled.results
        if result.kind == "state"
    }


def state_types(model: Any, optimizer: Update | None) -> dict[str, Type]:
    """The types of all weights that training has on devices, or of the optimizer's state."""
    weights: dict[str, Type] = model.laid_out(True).line.traced.state_types
    if optimizer is None:
        return weights
    return {
        name: kept
        for parameter, kind in weights.items()
        for name, kept in kept_types(optimizer, parameter, kind).items()
    }


def _believed(
    execution: ExecutionResult, result: ReceivedValue, expected: Type, what: str
) -> "torch.Tensor":
    """The tensor that a device sent, if it is of the type that was asked for."""
    raw = execution.outputs[result.device, result.value]
    if (raw.dtype, raw.shape, len(raw.data)) != (
        expected.dtype,
        expected.shape,
        expected.nbytes({}),
    ):
        raise ProtocolError(
            f"it sent {raw.dtype} of {list(raw.shape)} ({len(raw.data)} bytes) as {what}; expected "
            f"{expected.dtype} of {list(expected.shape)}.",
            device=result.device,
            next_step="Update potluck there, or leave the device out.",
        )
    return to_tensor(raw)
