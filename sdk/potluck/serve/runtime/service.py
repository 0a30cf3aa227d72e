"""Service: a model that the home answers for, within a limit. Call it; ask it; give it a stream."""

from collections.abc import Generator, Iterable, Iterator, Mapping
from concurrent.futures import Future
from math import ceil
from typing import Any

from potluck.display_hooks import Shown
from potluck.errors import NotServed, UserError
from potluck.run import batches
from potluck.serve.runtime.argument_checks import need_frequency, own_limit_s, stream_fps
from potluck.serve.runtime.device_placement import ServiceDemand
from potluck.serve.runtime.entrance import Entrance
from potluck.serve.runtime.pending_requests import Pending, closed, in_turn
from potluck.serve.runtime.serving import Serving
from potluck.serve.scheduling.records import Slo
from potluck.serve.stats import NOBODY, ServiceStats


class Service(Shown):
    """One service of a home; made by `home.serve`.

    Parameters
    ----------
    serving
        All services of the home.
    wanted
        What was asked of this one.
    """

    def __init__(self, serving: Serving, wanted: ServiceDemand) -> None:
        self._serving, self._wanted = serving, wanted
        self._model = wanted.model
        self.name = wanted.name
        self._counts = serving.dispatch.counts[wanted.name]  # another one may get its name

    @property
    def slo(self) -> Slo:
        """Its limit."""
        return self._wanted.slo

    @property
    def model(self) -> Any:
        """What is served."""
        return self._model

    @property
    def max_rows(self) -> int:
        """The most rows that one request may have."""
        return self._wanted.max_queue

    @property
    def devices(self) -> Mapping[str, int]:
        """The devices that have it now, each with the most rows that it takes at once."""
        return self._serving.devices(self.name) if self.is_open else {}

    @property
    def stats(self) -> ServiceStats:
        """What it has done so far, or had done when it was closed."""
        return self._serving.dispatch.stats_of(self._counts)

    @property
    def is_open(self) -> bool:
        """Whether it can be asked."""
        return self._serving.is_served(self._wanted)

    @property
    def expected_s(self) -> float | None:
        """Within how many seconds a request that came now would be answered; None: not at all."""
        return self._serving.dispatch.expected_s(self.name) if self.is_open else None

    def __call__(self, *inputs: Any, **named: Any) -> Any:
        """What the module answers to these inputs, any number of rows; or a refusal, at once.

        Rows are computed together with those of other callers, where that holds every limit. The
        answer is that of one row alone but for rounding: sums over another number of rows may be
        taken in another order, which for float32 is 1e-5 of the largest output or less.

        Raises
        ------
        NotServed
            Overloaded, too late, or closed; says when an answer would have been possible.
        ModelError
            Inputs are not what they should be.
        RequestFailed
            An operator failed over these inputs.
        """
        return self.ask(*inputs, **named).result()

    def ask(self, *inputs: Any, **named: Any) -> "Future[Any]":
        """As a call, in the background: for many requests at once."""
        return self.request(*inputs, **named).future

    def at(self, device: str) -> Entrance:
        """A device that has it as its entrance: it decides by itself who answers.

        Parameters
        ----------
        device
            One of `devices`.

        Raises
        ------
        NotServed
            That device is no entrance of it.
        """
        return Entrance(self._serving, self._wanted, device)

    def request(self, *inputs: Any, limit_s: float | None = None, **named: Any) -> Pending:
        """As `ask`, with what became of it: `future`, `devices`, `n_together`.

        Parameters
        ----------
        *inputs, **named
            As `forward` takes them.
        limit_s
            A limit of its own, if it is shorter than the service's; 0 is refused at once.

        Raises
        ------
        ModelError
            Inputs are not what they should be.
        UserError
            There is no row, or that is no limit.
        """
        limit_s = own_limit_s(limit_s, self.slo.tolerance_s)
        tensors, rows = self._checked(inputs, named)
        return self._asked_for(tensors, rows, limit_s=limit_s)

    def _asked_for(self, tensors: Any, rows: int, **how: Any) -> Pending:
        dispatch, model = self._serving.dispatch, self._model
        return dispatch.ask(self.name, tensors, rows, model.answer, lambda: self.is_open, **how)

    def _checked(self, inputs: tuple[Any, ...], named: Mapping[str, Any]) -> tuple[Any, int]:
        given = batches.as_tuple((*inputs, named), self._model.arguments.requested)
        rows = self._model.check_inputs(*given)
        if rows == 0:
            raise UserError("a request needs one row or more, got none.")
        return tuple(each.clone() for each in given), rows  # they may be overwritten meanwhile

    def stream(self, frames: Iterable[Any], fps: float | None = None) -> Iterator[Any]:
        """The answers to frames, in their order; None for a frame that had no answer in time.

        Frames of a stream share batches, and are computed by several devices in turn. As many are
        under way as the tolerance allows; the next one is taken when there is room.

        Parameters
        ----------
        frames
            Each as a call takes it: one input [1, ...], or a tuple of inputs.
        fps
            Frames per second that are asked for; default: those of the service.

        Raises
        ------
        UserError
            This is no frequency service, or that is no number of frames.
        NotServed
            Other streams take all there is, or it is closed.
        """
        return (_answer_of(pending) for pending in self.pending_frames(frames, fps))

    def pending_frames(
        self, frames: Iterable[Any], fps: float | None = None
    ) -> Generator[Pending, None, None]:
        """As `stream`, without waiting: what becomes of each frame, in their order.

        The stream ends with the last frame, and when what this gives is closed or forgotten.

        Parameters
        ----------
        frames, fps
            As for `stream`.

        Raises
        ------
        UserError
            This is no frequency service, or that is no number of frames.
        NotServed
            Other streams take all there is, or it is closed.
        """
        slo = need_frequency(self.name, self.slo)
        wanted_fps = stream_fps(slo, fps)
        if not self.is_open:
            raise closed(self.name, slo.tolerance_s)
        dispatch = self._serving.dispatch
        stream, _ = dispatch.open(self.name, wanted_fps)
        is_open = dispatch.is_open(stream)
        if not is_open and not self.devices:
            raise NotServed(
                f"{self.name}: {NOBODY}.",
                next_step="Ask again when one is back, see home.devices.",
                reason=NOBODY,
                limit_s=slo.tolerance_s,
                soonest_s=None,
            )
        if not is_open:
            raise NotServed(
                f"{self.name}: other streams take all that its devices give.",
                next_step="Ask again when one of them has ended, or for fewer frames per second.",
                reason="resources do not suffice",
                limit_s=slo.tolerance_s,
                soonest_s=None,
            )
        asked = self._asked(frames, stream, max(1, ceil(slo.tolerance_s * wanted_fps)))
        next(asked)  # one that has not begun would not end its stream
        return asked

    def _asked(
        self, frames: Iterable[Any], stream: int, max_under_way: int
    ) -> Generator[Any, None, None]:
        try:
            yield None
            pending = (self._frame(frame, stream, number) for number, frame in enumerate(frames))
            yield from in_turn(pending, max_under_way)
        finally:
            self._serving.dispatch.end(self.name, stream)

    def _frame(self, frame: Any, stream: int, number: int) -> Pending:
        inputs = frame if isinstance(frame, tuple) else (frame,)
        tensors, rows = self._checked(inputs, {})
        return self._asked_for(tensors, rows, stream=stream, frame=number)

    def close(self) -> None:
        """End it: whoever waits is refused, and its devices forget it; safe to call twice."""
        self._serving.close_service(self._wanted)

    def __enter__(self) -> "Service":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        state = f"on {', '.join(self.devices) or 'no device'}" if self.is_open else "closed"
        return f"<Service {self.name} {state}: {self.stats}>"


def _answer_of(pending: Pending) -> Any:
    try:
        return pending.future.result()
    except NotServed:
        return None
