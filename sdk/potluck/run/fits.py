"""The fits of one run: each comes behind the one before; all of them can be stopped between two
steps.
"""

import threading
from collections.abc import Callable, Iterable
from concurrent.futures import CancelledError
from itertools import chain
from typing import TYPE_CHECKING, Any

from potluck.errors import UserError
from potluck.handle import Handle
from potluck.run.array_files import ArrayFiles
from potluck.run.batch_stream import BatchStream
from potluck.run.fit_call import FitCall
from potluck.run.history import History
from potluck.run.update_source import UpdateRequest

if TYPE_CHECKING:
    import torch

    from potluck.run.engine import RunEngine

Begin = Callable[[Handle[History] | None], Handle[History]]


class Fits:
    """Those under way, in their order, and the latest."""

    def __init__(self) -> None:
        self._all: list[tuple[Handle[History], FitCall]] = []
        self._queueing = threading.Lock()  # what one calls comes behind it

    def add(self, fitting: FitCall, begin: Begin) -> Handle[History]:
        """One more, behind those under way.

        Parameters
        ----------
        fitting
            What it does.
        begin
            Called with the fit that comes before it, or None; begins it.
        """
        with self._queueing:
            self._all = self.under_way
            self._all.append((begin(self._all[-1][0] if self._all else None), fitting))
            return self._all[-1][0]

    @property
    def under_way(self) -> list[tuple[Handle[History], FitCall]]:
        """Those that have not ended."""
        return [(handle, its) for handle, its in self._all if not handle.done]

    @property
    def latest(self) -> Handle[History] | None:
        """The one that began last, whether it has ended or not."""
        return self._all[-1][0] if self._all else None

    def stop(self, within_s: float | None = None) -> list[FitCall]:
        """End all of them, between two steps; those that were cut short.

        Parameters
        ----------
        within_s
            A step may take so long; None: as long as it likes.

        Raises
        ------
        TimeoutError
            One has not come to the end of its step; it ends there.
        """
        with self._queueing:
            cancelled = _cancelled(self.under_way)
        return _stopped(cancelled, within_s)

    def rest(self) -> "list[Iterable[tuple[torch.Tensor, ...]]]":
        """End all of them, between two steps: of each the batches that it has not trained on.

        Raises
        ------
        UserError
            One that waits for its turn has another optimizer; nothing was ended.
        """
        with self._queueing:
            under_way = self.under_way
            if any(fitting.request.one_step_late is not None for _, fitting in under_way):
                raise UserError(
                    "updates of this fit come one step late, and a coordinator takes steps one by "
                    "one.",
                    next_step="run.stop() first; then run.detach(data), synchronously.",
                )
            for _, fitting in under_way[1:]:
                if fitting.request != UpdateRequest():
                    raise UserError(
                        "a fit with another optimizer waits for its turn.",
                        next_step="Wait for the fit before, or cancel that one.",
                    )
            cancelled = _cancelled(under_way)
        return [fitting.rest() for fitting in _stopped(cancelled, None)]


def remaining_batches(
    engine: "RunEngine", fits: Fits, data: Any, epochs: int
) -> "Iterable[tuple[torch.Tensor, ...]]":
    """The batches that a run is handed over with.

    Parameters
    ----------
    engine, fits
        Of the run.
    data, epochs
        As for `Run.detach`: where no data is given, all fits end between two steps.

    Raises
    ------
    UserError
        No fit is under way, its updates come late, or one that waits for its turn has another
        optimizer.
    """
    arguments = engine.model.arguments
    if isinstance(data, ArrayFiles):
        return data.remaining(epochs, arguments)
    if data is not None:
        return BatchStream(data, engine.compiled_plan.plan.batch, arguments, epochs).rest()
    remaining = fits.rest()
    if not remaining:
        raise nothing_under_way()
    return remaining[0] if len(remaining) == 1 else chain.from_iterable(remaining)


def nothing_under_way() -> UserError:
    """Why nothing can be handed over by itself."""
    return UserError(
        "no fit is under way.", next_step="Say what to train on: run.detach(data, epochs)."
    )


Begun = list[tuple[Handle[History], FitCall]]


def _cancelled(begun: Begun) -> Begun:
    for handle, _ in reversed(begun):
        handle.cancel()
    return begun


def _stopped(cancelled: Begun, within_s: float | None) -> list[FitCall]:
    """Wait for their ends; others may begin behind them, also in what their steps call."""
    cut_short = []
    for handle, fitting in cancelled:
        try:
            handle.wait(within_s)
        except CancelledError:
            cut_short.append(fitting)
    return cut_short
