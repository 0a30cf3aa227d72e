"""A device as the entrance of a service: ask it, and see where the answer came from."""

from collections.abc import Iterable, Iterator
from concurrent.futures import Future
from math import ceil
from typing import Any

from potluck.errors import NotServed, UserError
from potluck.run import batches
from potluck.serve.runtime.argument_checks import need_frequency, stream_fps
from potluck.serve.runtime.device_placement import ServiceDemand
from potluck.serve.runtime.entrances import RoutedAnswer
from potluck.serve.runtime.pending_requests import closed, in_turn
from potluck.serve.runtime.serving import Serving
from potluck_wire.limits import MAX_ASKS

MAX_FRAMES = MAX_ASKS // 2  # of one stream under way: the home has other requests there


class Entrance:
    """Made by `service.at(device)`. That device decides, not this notebook: it answers, hands the
    request on to another device that has the service, or refuses.

    Parameters
    ----------
    serving
        All services of the home.
    wanted
        What was asked of the service.
    device
        Who is asked.
    """

    def __init__(self, serving: Serving, wanted: ServiceDemand, device: str) -> None:
        serving.entrances.programs(wanted.name, device)
        self._serving, self._wanted = serving, wanted
        self._model = wanted.model
        self.name, self.device = wanted.name, device

    def __call__(self, *inputs: Any, **named: Any) -> Any:
        """What the module answers to these rows.

        Raises
        ------
        NotServed
            It was refused; `reason` says why.
        UserError
            There is no row, or there are more than it takes at once.
        """
        return self.ask(*inputs, **named).result().value

    def ask(
        self, *inputs: Any, limit_s: float | None = None, **named: Any
    ) -> "Future[RoutedAnswer]":
        """As a call, in the background, with where the answer came from.

        Parameters
        ----------
        *inputs, **named
            As `forward` takes them; as many rows as it takes at once, at most (`devices`).
        limit_s
            A limit of its own, if it is shorter than the service's; 0 is refused at once.

        Raises
        ------
        NotServed
            The service has ended, or this device is no entrance of it any more.
        UserError
            There is no row, there are more than it takes at once, or that is no limit.
        """
        given = batches.as_tuple((*inputs, named), self._model.arguments.requested)
        given = tuple(each.clone() for each in given)  # they may be overwritten meanwhile
        if self._model.check_inputs(*given) == 0:
            raise UserError("a request needs one row or more, got none.")
        if not self._serving.is_served(self._wanted):
            raise closed(self.name, self._wanted.slo.tolerance_s)
        asked = self._serving.entrances.ask(self.name, self.device, given, limit_s)
        answer: Future[RoutedAnswer] = Future()

        def give(_: "Future[Any]") -> None:
            try:
                routed = asked.routed(self._model.answer)
            except Exception as error:  # the caller hears of it, whatever it is
                answer.set_exception(error)
            else:
                answer.set_result(routed)

        asked.on_done(give)
        return answer

    def stream(
        self, frames: Iterable[Any], fps: float | None = None
    ) -> Iterator[RoutedAnswer | None]:
        """The answers to frames, in their order; None for a frame that had no answer in time.

        Each frame is decided for itself, so that some are answered here and others elsewhere. As
        many are under way as the tolerance allows; the next one is taken when there is room.

        Parameters
        ----------
        frames
            Each as a call takes it: one input [rows, ...], or a tuple of inputs.
        fps
            Frames per second that are asked for; default: those of the service.

        Raises
        ------
        UserError
            This is no frequency service, or that is no number of frames.
        """
        slo = need_frequency(self.name, self._wanted.slo)
        most = ceil(slo.tolerance_s * stream_fps(slo, fps))
        asked = (self.ask(*(x if isinstance(x, tuple) else (x,))) for x in frames)
        return map(_in_time, in_turn(asked, min(MAX_FRAMES, max(1, most))))

    def __repr__(self) -> str:
        return f"<Entrance of {self.name} at {self.device}>"


def _in_time(asked: "Future[RoutedAnswer]") -> RoutedAnswer | None:
    try:
        return asked.result()
    except NotServed:
        return None
