"""A service's model loaded on a device, or on several that share its layers: batches of any size
up to a largest one go there, each to the smallest program that takes it.
"""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

from potluck.errors import PotluckError
from potluck.records import Plan, Stage
from potluck.run.device_group import outputs_of, raw_of
from potluck.run.engine import RunEngine
from potluck.run.tensors import first_rows, kept
from potluck.schedule import Compiled
from potluck.serve.runtime.program_parts import ProgramPart, crossing_kinds, parts_of
from potluck.sessions.events import ExecutionResult
from potluck.sessions.link import SessionLink
from potluck.sessions.members import Members
from potluck.sessions.traffic import Raw

if TYPE_CHECKING:
    import torch

    from potluck.graph.traced import Type
    from potluck.profile.profiles import Profile
    from potluck.run.in_flight import RunRequest

Outputs = Mapping[str, "torch.Tensor"]


def plan_on(model: Any, device: str, batch: int) -> Plan:
    """All of a model on one device, for batches of so many rows.

    Parameters
    ----------
    model
        What is served.
    device
        Its name.
    batch
        Rows.
    """
    stage = Stage(start=0, stop=len(model.layers(False)), devices=(device,), shares=(batch,))
    return Plan(
        planner="serve", model=model.name, stages=(stage,), micro_batch=batch, training=False
    )


def sizes_below(batch: int) -> tuple[int, ...]:
    """Smaller batches that there are programs for: all powers of two.

    >>> sizes_below(8)
    (1, 2, 4)
    """
    return tuple(2**power for power in range(batch.bit_length()) if 2**power < batch)


class Loaded:
    """A model on its devices.

    Parameters
    ----------
    link, members
        The home's connection and its devices.
    model
        What is served.
    plan
        For inference; its batch is the largest.
    profile
        What emulated devices whose times the notebook knows are played by; else they are as fast
        as this machine.

    Raises
    ------
    OutOfMemory
        A device needs more memory than it may use; nothing was loaded.
    """

    def __init__(
        self,
        link: SessionLink,
        members: Members,
        model: Any,
        plan: Plan,
        profile: "Profile | None" = None,
    ) -> None:
        is_whole = all(len(stage.devices) == 1 for stage in plan.stages)
        sizes = sizes_below(plan.batch) if is_whole else ()
        self.devices = plan.devices
        self.plan = plan
        self.is_lost = self.is_leaving = False
        self.n_under_way = 0
        self._engine = RunEngine(
            link, members, model, plan, optimizer=None, seed=0, sizes=sizes, profile=profile
        )
        self._names = [tensor.name for tensor in self._engine.compiled_plan.segments[-1].outputs]
        try:
            self._engine.state.push(model.state(), offered=True)
        except BaseException:
            self.close()
            raise

    @property
    def batch(self) -> int:
        """The most rows at once."""
        return self.plan.batch

    @property
    def memory_bytes(self) -> Mapping[str, int]:
        """What it needs on each device."""
        return {name: self._engine.compiled_plan.memory_bytes(name) for name in self.devices}

    @property
    def run(self) -> str:
        """How its devices call it."""
        return self._engine.compiled_plan.run

    def ask(self, inputs: "Sequence[torch.Tensor]", rows: int) -> "RowsInFlight":
        """Have these rows computed, `batch` at most; comes back at once.

        Parameters
        ----------
        inputs
            Each [rows, ...].
        rows
            How many.
        """
        self._engine.check()
        return RowsInFlight(self._engine.request(inputs, 0, rows), self._names, self.devices)

    def batch_programs(self) -> "tuple[BatchProgram, ...]":
        """What answers requests of so many rows, the smallest first; none where inputs, or what
        devices tell each other, have other sizes than their rows.
        """
        plan, model = self._engine.compiled_plan, self._engine.model
        ports = {port.name: port for port in model.traced_line().traced.graph.inputs}
        pieces = {
            piece.name: (piece, model.segment(piece.start, piece.stop)[1])
            for piece in (plan.segments if len(self.devices) > 1 else ())
        }
        found = []
        for name, rows in plan.infer_rows.items():
            compiled = plan.compiled[name]
            kinds = (
                crossing_kinds(compiled.programs.values(), pieces, rows)
                if len(self.devices) > 1
                else {}
            )
            for feed in compiled.feeds:
                port = ports[feed.tensor]
                shape = port.shape if feed.whole else (feed.stop - feed.start, *port.shape[1:])
                if not all(type(size) is int for size in shape):
                    return ()
                kinds[feed.value] = (port.dtype, shape)
            parts = parts_of(compiled, kinds, self.devices)
            if not parts:
                return ()
            program = BatchProgram(
                run=plan.run,
                epoch=plan.epoch,
                name=name,
                rows=rows,
                model=model,
                compiled=compiled,
                parts=parts,
                names=tuple(self._names),
            )
            found.append(program)
        return tuple(found)

    def close(self) -> None:
        """Its devices forget it, where they can be reached."""
        self.is_lost = True
        try:
            self._engine.group.drop()
        except PotluckError:
            return  # the home is closed


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchProgram:
    """What answers so many `rows`: how it is called on its devices, its `compiled` form, the
    `parts` that they are asked for, and the `names` of its outputs in order.
    """

    run: str
    epoch: int
    name: str
    rows: int
    model: Any
    compiled: Compiled
    parts: tuple[ProgramPart, ...]
    names: tuple[str, ...]

    @property
    def devices(self) -> tuple[str, ...]:
        """Who computes it, the first one first."""
        return tuple(part.device for part in self.parts)

    @property
    def expects(self) -> Mapping[str, int]:
        """The outputs, each with its most bytes."""
        return {result.value: result.nbytes for result in self.compiled.results}

    def feeds(self, inputs: "Sequence[torch.Tensor]") -> Mapping[str, Raw]:
        """These as the program takes them.

        Parameters
        ----------
        inputs
            Each [rows, ...].
        """
        named = {port.name: kept(x) for port, x in zip(self.model.inputs(), inputs, strict=True)}
        return {feed.value: raw_of(feed, named, {}) for feed in self.compiled.feeds}

    def types(self, inputs: "Sequence[torch.Tensor]") -> "Mapping[str, Type]":
        """Of what it answers to these.

        Parameters
        ----------
        inputs
            Each [rows, ...].
        """
        types: Mapping[str, Type] = self.model.traced_line().traced.output_types(inputs)
        return types

    def outputs(
        self, raws: Mapping[str, Raw], types: "Mapping[str, Type]", wanted: int
    ) -> "list[torch.Tensor]":
        """What came, in order, checked.

        Parameters
        ----------
        raws
            By name of the program.
        types
            What each must be.
        wanted
            How many rows of it.

        Raises
        ------
        ProtocolError
            It is something else.
        """
        devices = {result.value: result.device for result in self.compiled.results}
        result = ExecutionResult(
            run=self.run,
            epoch=self.epoch,
            program=self.name,
            step=0,
            outputs={(devices[value], value): raw for value, raw in raws.items()},
            timelines={},
            start_s=0.0,
            stop_s=0.0,
        )
        found = outputs_of(result, self.compiled, types)
        return [first_rows(found[name], wanted, self.rows) for name in self.names]


class Computing(Protocol):
    """Rows that are computed somewhere. `devices`: who did, once they are."""

    @property
    def devices(self) -> tuple[str, ...]:
        """Who computed them."""

    def on_done(self, callback: Callable[["Future[Any]"], None]) -> None:
        """Call this once it has ended, well or not: in the link's thread, must be quick."""

    def wait(self) -> "list[torch.Tensor]":
        """Wait for the outputs, in order; each [rows x k, ...]."""


class RowsInFlight:
    """Rows that are computed.

    Parameters
    ----------
    request
        As the engine handed it out.
    names
        Of the outputs, in order.
    devices
        Who computes them.
    """

    def __init__(
        self, request: "RunRequest", names: Sequence[str], devices: tuple[str, ...]
    ) -> None:
        self._request, self._names = request, names
        self.devices = devices

    def on_done(self, callback: Callable[["Future[ExecutionResult]"], None]) -> None:
        """Call this once it has ended, well or not: in the link's thread, must be quick."""
        self._request.future.add_done_callback(callback)

    def wait(self) -> "list[torch.Tensor]":
        """Wait for the outputs, in order; each [rows x k, ...].

        Raises
        ------
        RequestFailed
            An operator failed over these values.
        PotluckError
            A device was lost, or sent what is no output.
        """
        request = self._request
        found = outputs_of(request.future.result(), request.compiled, request.types)
        return [first_rows(found[name], request.wanted, request.batch) for name in self._names]


def with_batch(plan: Plan, batch: int) -> Plan:
    """The same stages, one device each, for batches of so many rows.

    Parameters
    ----------
    plan
        For inference.
    batch
        Rows.
    """
    stages = tuple(replace(s, devices=(s.lead,), shares=(batch,)) for s in plan.stages)
    return replace(plan, stages=stages, micro_batch=batch, n_micro_batches=1, peak_bytes={})


# has the rows of a batch computed where they are loaded: service, where, inputs, how many rows, and
# the seconds that are left
Compute = Callable[[str, Loaded, "Sequence[torch.Tensor]", int, float], Computing]
